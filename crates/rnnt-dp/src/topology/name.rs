//! Parses and displays names of transducer topologies: `regular`, `modified+2,4`, `tdt:0,1,2`.
use std::{
    fmt::{Display, Formatter},
    str::FromStr,
};

use super::{Error, Result, Token, Topology, TopologyKind};

/// A topology with a name, before big blanks are added.
struct NamedTopology {
    name: &'static str,
    kind: TopologyKind,
    construct: fn() -> Topology,
}

/// Topologies of a blank and a label. A new one is named only here.
const NAMED_TOPOLOGIES: [NamedTopology; 3] = [
    NamedTopology { name: "regular", kind: TopologyKind::Regular, construct: Topology::rnnt },
    NamedTopology { name: "modified", kind: TopologyKind::Modified, construct: Topology::modified },
    NamedTopology { name: "constrained", kind: TopologyKind::Constrained, construct: Topology::constrained },
];

impl FromStr for Topology {
    type Err = Error;

    /// # Errors
    /// An unknown name, or invalid durations.
    fn from_str(name: &str) -> Result<Self> {
        let unknown = || Error::UnknownName { found: name.to_owned() };
        let parse_list = |list: &str| -> Result<Vec<usize>> {
            list.split(',').map(|number| number.parse().map_err(|_| unknown())).collect()
        };
        if let Some(durations) = name.strip_prefix("tdt:") {
            return Self::tdt(&parse_list(durations)?);
        }
        let (base, big_blanks) = name.split_once('+').map_or((name, None), |(base, big)| (base, Some(big)));
        let named = NAMED_TOPOLOGIES.iter().find(|named| named.name == base).ok_or_else(unknown)?;
        let topology = (named.construct)();
        match big_blanks {
            None => Ok(topology),
            Some(list) => topology.with_big_blanks(&parse_list(list)?),
        }
    }
}

impl Display for Topology {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let name = NAMED_TOPOLOGIES.iter().find(|named| named.kind == self.kind).map(|named| named.name);
        let (name, duration_arcs): (_, Vec<usize>) = match self.kind {
            TopologyKind::Tdt => ("tdt", self.arcs_of_token(1).collect()),
            _ => {
                let is_big_blank =
                    |arc: &usize| matches!(self.tokens[self.arc_token(*arc)], Token::BigBlank(_));
                (name.unwrap_or("custom"), (0..self.arcs.len()).filter(is_big_blank).collect())
            }
        };
        f.write_str(name)?;
        for (index, &arc) in duration_arcs.iter().enumerate() {
            let separator = match (index, self.kind) {
                (0, TopologyKind::Tdt) => ":",
                (0, _) => "+",
                _ => ",",
            };
            write!(f, "{separator}{}", self.arcs[arc].frames)?;
        }
        Ok(())
    }
}

impl Topology {
    /// Names of the topologies of a blank and a label.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED_TOPOLOGIES.iter().map(|named| named.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_topologies_and_back() {
        for (name, topology) in [
            ("regular", Ok(Topology::rnnt())),
            ("modified", Ok(Topology::modified())),
            ("constrained", Ok(Topology::constrained())),
            ("regular+2,4", Topology::multi_blank(&[2, 4])),
            ("modified+3", Topology::modified().with_big_blanks(&[3])),
            ("tdt:0,1,4", Topology::tdt(&[0, 1, 4])),
        ] {
            let topology = topology.unwrap();
            assert_eq!(name.parse(), Ok(topology.clone()));
            assert_eq!(topology.to_string(), name);
        }
        assert_eq!(Topology::names().collect::<Vec<_>>(), ["regular", "modified", "constrained"]);
        for bad in ["", "round", "Regular", "regular+", "tdt:", "tdt:a", "tdt", "regular+1,,2", "custom"] {
            assert_eq!(bad.parse::<Topology>(), Err(Error::UnknownName { found: bad.into() }));
        }
        let repeated = Error::Duration { expected: "distinct durations", found: 2 };
        assert_eq!("regular+2,2".parse::<Topology>(), Err(repeated));
        let forced = Error::BigBlanks { topology: "constrained".into() };
        assert_eq!("constrained+2".parse::<Topology>(), Err(forced));
        assert_eq!("tdt:0".parse::<Topology>(), Err(Error::NoFinalDuration));
    }
}
