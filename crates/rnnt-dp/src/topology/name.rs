//! Parses and displays topology names: `regular`, `modified+2,4`, `tdt:0,1,2`.
use std::{
    fmt::{Display, Formatter},
    str::FromStr,
};

use super::{Error, Result, Token, Topology, TopologyKind};

/// Name, kind and constructor of a topology.
type NamedTopology = (&'static str, TopologyKind, fn() -> Topology);

/// Topologies of a blank and a label. A new one is named only here.
const NAMED: [NamedTopology; 3] = [
    ("regular", TopologyKind::Regular, Topology::rnnt),
    ("modified", TopologyKind::Modified, Topology::modified),
    ("constrained", TopologyKind::Constrained, Topology::constrained),
];

impl FromStr for Topology {
    type Err = Error;

    /// # Errors
    /// An unknown name, or invalid durations.
    fn from_str(name: &str) -> Result<Self> {
        let unknown = || Error::UnknownName { found: name.to_owned() };
        let numbers = |list: &str| -> Result<Vec<usize>> {
            list.split(',').map(|number| number.parse().map_err(|_| unknown())).collect()
        };
        if let Some(durations) = name.strip_prefix("tdt:") {
            return Self::tdt(&numbers(durations)?);
        }
        let (base, big_blanks) = name.split_once('+').map_or((name, None), |(base, big)| (base, Some(big)));
        let (.., construct) = NAMED.iter().find(|(name, ..)| *name == base).ok_or_else(unknown)?;
        match big_blanks {
            None => Ok(construct()),
            Some(list) => construct().with_big_blanks(&numbers(list)?),
        }
    }
}

impl Display for Topology {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let name = NAMED.iter().find(|(_, kind, _)| *kind == self.kind).map(|(name, ..)| *name);
        let (name, arcs): (_, Vec<usize>) = match self.kind {
            TopologyKind::Tdt => ("tdt", self.token_arcs(1).collect()),
            _ => {
                let is_big = |arc: &usize| matches!(self.tokens[self.arc_token(*arc)], Token::BigBlank(_));
                (name.unwrap_or("custom"), (0..self.arcs.len()).filter(is_big).collect())
            }
        };
        f.write_str(name)?;
        for (at, &arc) in arcs.iter().enumerate() {
            let separator = match (at, self.kind) {
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
        NAMED.iter().map(|(name, ..)| *name)
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
