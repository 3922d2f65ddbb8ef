//! A lattice in OpenFst's text format.
use std::{collections::HashSet, fmt::Write};

use crate::{ArcList, Error, Result};

/// What `fstcompile` reads: arcs and symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFst {
    /// Lines `from to input output cost`, and `state` for final ones; the first state is the start.
    pub arcs: String,
    /// Input symbols, what each arc says: `<eps>` 0, labels 1 to V, `<blank>` V + 1.
    pub inputs: String,
    /// Output symbols, the string of labels: `<eps>` 0, labels 1 to V.
    pub outputs: String,
}

const EPSILON: &str = "<eps>";
const BLANK: &str = "<blank>";

impl ArcList<'_> {
    /// The lattice as a transducer from alignments to strings of labels.
    ///
    /// States are numbered `(t A + a) C + p`. Costs are negated weights, so that the log semiring of OpenFst sums and its tropical
    /// one finds the best path:
    ///
    /// ```text
    /// fstcompile --isymbols=inputs --osymbols=outputs --arc_type=log64 arcs
    /// ```
    /// A lattice whose every path is blocked has no lines.
    ///
    /// # Errors
    /// Names that are not one a label, empty ones, ones with white space in them, or the same twice.
    pub fn to_openfst(&self, names: Option<&[&str]>) -> Result<OpenFst> {
        let names = self.names(names)?;
        let mut seen = HashSet::from([EPSILON, BLANK]);
        for name in &names {
            if name.is_empty() || name.contains(char::is_whitespace) || !seen.insert(name) {
                let expected = "names of labels without white space, all different";
                return Err(Error::shape("names", expected, format!("{name:?}")));
            }
        }
        let mut arcs = String::new();
        for arc in &self.arcs {
            let input = if arc.label == 0 { 1 + names.len() as u32 } else { arc.label };
            let (from, to) = (self.number(arc.from), self.number(arc.to));
            // No -0, which is a 0 that looks like a mistake.
            let cost = 0.0 - arc.weight;
            line(&mut arcs, format_args!("{from}\t{to}\t{input}\t{}\t{cost}", arc.label));
        }
        if !self.arcs.is_empty() || self.finals.contains(&self.start()) {
            self.finals.iter().for_each(|&spot| line(&mut arcs, format_args!("{}", self.number(spot))));
        }
        let mut outputs = format!("{EPSILON}\t0\n");
        for (label, name) in (1..).zip(&names) {
            line(&mut outputs, format_args!("{name}\t{label}"));
        }
        let inputs = format!("{outputs}{BLANK}\t{}\n", 1 + names.len());
        Ok(OpenFst { arcs, inputs, outputs })
    }
}

fn line(to: &mut String, line: std::fmt::Arguments) {
    writeln!(to, "{line}").expect("strings take all that is written");
}
