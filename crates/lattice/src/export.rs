//! Small lattices for other programs: a picture for Graphviz, and OpenFst's text format.
use std::{
    collections::{BTreeSet, HashSet},
    fmt::Write,
};

use crate::{ArcList, Error, LatticePath, Result, StateId};

impl ArcList<'_> {
    /// The lattice in Graphviz' language: a node a state, labelled `t,a` and what `context` calls its context state; an arc a label
    /// (`·` is the blank) with its weight; the arcs of a path, if one is given, bold and red.
    ///
    /// # Errors
    /// Names that are not one a label, a path of another lattice.
    ///
    /// ```
    /// use lattice::{AlignmentLattice, Frames, FullNGram, RecognitionLattice, TableWeightFn};
    /// let (context, table) = (FullNGram::new(1, 1)?, TableWeightFn::new(&[0.5, 1.5, 2.5, 3.5], &[1, 2, 2])?);
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0], &[1, 1, 1], &[1])?;
    /// let arcs = lattice.arc_list(&frames, 0, 1000)?;
    /// let picture = arcs.to_dot(None, |state| format!("{:?}", context.history(state)), None)?;
    /// assert!(picture.contains(r#"0 -> 3 [label="1 / 1.5"]"#));
    /// assert_eq!(arcs.to_openfst(None)?.arcs, "0\t2\t2\t0\t-0.5\n0\t3\t1\t1\t-1.5\n2\n3\n");
    /// # Ok::<(), lattice::Error>(())
    /// ```
    pub fn to_dot(
        &self,
        names: Option<&[&str]>,
        context: impl Fn(usize) -> String,
        path: Option<&LatticePath>,
    ) -> Result<String> {
        let names = self.names(names)?;
        if let Some(path) = path {
            let (per_frame, labels) = (self.places.per_frame(), self.context.vocabulary());
            if path.per_frame != per_frame || path.alignment.iter().any(|&label| label as usize > labels) {
                let expected = format!("one of {per_frame} labels a frame, each at most {labels}");
                return Err(Error::shape("path", expected, format!("{path:?}")));
            }
        }
        let frames = path.map(|path| path.arcs(self.context)).unwrap_or_default();
        let of_frame = |(frame, arcs): (usize, Vec<crate::distance::FrameArc>)| {
            let spot = move |arc: &crate::distance::FrameArc| StateId {
                frame,
                alignment: arc.alignment,
                context: arc.context,
            };
            arcs.into_iter().map(move |arc| (spot(&arc), arc.label as u32))
        };
        let bold: HashSet<(StateId, u32)> = frames.into_iter().enumerate().flat_map(of_frame).collect();
        let mut spots = BTreeSet::from([self.start()]);
        spots.extend(self.arcs.iter().flat_map(|arc| [arc.from, arc.to]));

        let mut text = String::from("digraph lattice {\n  rankdir=LR;\n  node [shape=circle];\n");
        let mut line = |line: std::fmt::Arguments| {
            writeln!(text, "  {line}").expect("strings take all that is written");
        };
        for &spot in &spots {
            let (number, context) = (self.number(spot), escaped(&context(spot.context)));
            let shape = if self.finals.contains(&spot) { ", shape=doublecircle" } else { "" };
            let label = format!("{},{}\\n{context}", spot.frame, spot.alignment);
            line(format_args!("{number} [label=\"{label}\"{shape}];"));
        }
        for arc in &self.arcs {
            let (from, to) = (self.number(arc.from), self.number(arc.to));
            let name = match arc.label {
                0 => "·".to_owned(),
                label => escaped(&names[label as usize - 1]),
            };
            let bold = if bold.contains(&(arc.from, arc.label)) { ", color=red, penwidth=3" } else { "" };
            line(format_args!("{from} -> {to} [label=\"{name} / {}\"{bold}];", arc.weight));
        }
        text.push_str("}\n");
        Ok(text)
    }
}

/// As it may stand between quotation marks.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

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
