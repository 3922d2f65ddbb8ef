//! Topologies by name: `regular`, `modified+2,4`, `tdt:0,1,2`.
use std::{
    fmt::{Display, Formatter},
    str::FromStr,
};

use super::{Error, Kind, Result, Token, Topology};

/// A name, what it names, and how that is made.
type NamedTopology = (&'static str, Kind, fn() -> Topology);

/// Those of a blank and a label. A new one is named here and nowhere else.
const NAMED: [NamedTopology; 3] = [
    ("regular", Kind::Regular, Topology::rnnt),
    ("modified", Kind::Modified, Topology::modified),
    ("constrained", Kind::Constrained, Topology::constrained),
];

impl FromStr for Topology {
    type Err = Error;

    /// # Errors
    /// A name that no topology has; durations that make no sense.
    fn from_str(name: &str) -> Result<Self> {
        let unknown = || Error::Name { found: name.to_owned() };
        let numbers = |list: &str| -> Result<Vec<usize>> {
            list.split(',').map(|number| number.parse().map_err(|_| unknown())).collect()
        };
        if let Some(durations) = name.strip_prefix("tdt:") {
            return Self::tdt(&numbers(durations)?);
        }
        let (base, big_blanks) = name.split_once('+').map_or((name, None), |(base, big)| (base, Some(big)));
        let (.., make) = NAMED.iter().find(|(name, ..)| *name == base).ok_or_else(unknown)?;
        match big_blanks {
            None => Ok(make()),
            Some(list) => make().with_big_blanks(&numbers(list)?),
        }
    }
}

impl Display for Topology {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let name = NAMED.iter().find(|(_, kind, _)| *kind == self.kind).map(|(name, ..)| *name);
        let (name, arcs): (_, Vec<usize>) = match self.kind {
            Kind::Tdt => ("tdt", self.arcs_of(1).collect()),
            _ => {
                let big = |arc: &usize| matches!(self.tokens[self.token_of(*arc)], Token::BigBlank(_));
                (name.unwrap_or("custom"), (0..self.arcs.len()).filter(big).collect())
            }
        };
        f.write_str(name)?;
        for (at, &arc) in arcs.iter().enumerate() {
            let before = match (at, self.kind) {
                (0, Kind::Tdt) => ":",
                (0, _) => "+",
                _ => ",",
            };
            write!(f, "{before}{}", self.arcs[arc].frames)?;
        }
        Ok(())
    }
}

impl Topology {
    /// The names of those of a blank and a label.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, ..)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_topologies_are_one_to_one() {
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
            assert_eq!(bad.parse::<Topology>(), Err(Error::Name { found: bad.into() }));
        }
        let twice = Error::Duration { expected: "each once", found: 2 };
        assert_eq!("regular+2,2".parse::<Topology>(), Err(twice));
        let forced = Error::BigBlanks { topology: "constrained".into() };
        assert_eq!("constrained+2".parse::<Topology>(), Err(forced));
        assert_eq!("tdt:0".parse::<Topology>(), Err(Error::NoEnd));
    }
}
