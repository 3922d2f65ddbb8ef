//! Export of small recognition lattices: Graphviz graphs and OpenFst text.
//!
//! The arcs come from `arc_list.rs`. The formats are read by other programs: `dot` and
//! `fstcompile`.
use std::{
    collections::{BTreeSet, HashSet},
    fmt::Write,
};

use crate::{ArcList, Error, LatticePath, Result, StateId};

impl ArcList<'_> {
    /// Returns the lattice as a Graphviz graph.
    ///
    /// A node is a state, labeled `t,a` and the name that `context` returns for its context state.
    /// An edge is an arc with its label (`·` is the blank) and weight. The arcs of `path`, if
    /// given, are bold and red.
    ///
    /// # Errors
    /// A number of names that differs from the number of labels; a path of another lattice.
    ///
    /// ```
    /// use lattice::{AlignmentLattice, Frames, FullNGram, RecognitionLattice, TableWeightFn};
    /// let context = FullNGram::new(1, 1)?;
    /// let table = TableWeightFn::new(&[0.5, 1.5, 2.5, 3.5], &[1, 2, 2])?;
    /// let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table)?;
    /// let frames = Frames::new(&[0.0], &[1, 1, 1], &[1])?;
    /// let arcs = lattice.arc_list(&frames, 0, 1000)?;
    /// let graph = arcs.to_dot(None, |state| format!("{:?}", context.history(state)), None)?;
    /// assert!(graph.contains(r#"0 -> 3 [label="1 / 1.5"]"#));
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
            let (per_frame, labels) = (self.positions.per_frame(), self.context.vocabulary());
            if path.per_frame != per_frame || path.alignment.iter().any(|&label| label as usize > labels) {
                let expected = format!("a path of {per_frame} labels per frame, each at most {labels}");
                return Err(Error::shape("path", expected, format!("{path:?}")));
            }
        }
        // Arcs of the path, by source state and label.
        let frames = path.map(|path| path.arcs(self.context)).unwrap_or_default();
        let frame_arcs = |(frame, arcs): (usize, Vec<crate::distance::FrameArc>)| {
            let source = move |arc: &crate::distance::FrameArc| StateId {
                frame,
                alignment: arc.alignment,
                context: arc.context,
            };
            arcs.into_iter().map(move |arc| (source(&arc), arc.label as u32))
        };
        let path_arcs: HashSet<(StateId, u32)> =
            frames.into_iter().enumerate().flat_map(frame_arcs).collect();
        // Nodes: all states of arcs, in order.
        let mut states = BTreeSet::from([self.start()]);
        states.extend(self.arcs.iter().flat_map(|arc| [arc.from, arc.to]));

        let mut text = String::from("digraph lattice {\n  rankdir=LR;\n  node [shape=circle];\n");
        let mut line = |line: std::fmt::Arguments| {
            writeln!(text, "  {line}").expect("writing to a string succeeds");
        };
        for &state in &states {
            let (number, context) = (self.state_number(state), escape(&context(state.context)));
            let shape = if self.finals.contains(&state) { ", shape=doublecircle" } else { "" };
            let label = format!("{},{}\\n{context}", state.frame, state.alignment);
            line(format_args!("{number} [label=\"{label}\"{shape}];"));
        }
        for arc in &self.arcs {
            let (from, to) = (self.state_number(arc.from), self.state_number(arc.to));
            let name = match arc.label {
                0 => "·".to_owned(),
                label => escape(&names[label as usize - 1]),
            };
            let style =
                if path_arcs.contains(&(arc.from, arc.label)) { ", color=red, penwidth=3" } else { "" };
            line(format_args!("{from} -> {to} [label=\"{name} / {}\"{style}];", arc.weight));
        }
        text.push_str("}\n");
        Ok(text)
    }
}

/// Escapes a text for use between quotation marks.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Input of `fstcompile`: arcs and symbol tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenFstText {
    /// Lines `from to input output cost`, and `state` for final states; the first state is the
    /// start.
    pub arcs: String,
    /// Input symbols of arcs: `<eps>` 0, labels 1 to V, `<blank>` V + 1.
    pub inputs: String,
    /// Output symbols of arcs: `<eps>` 0, labels 1 to V.
    pub outputs: String,
}

/// Symbols of OpenFst that are not labels.
const EPSILON: &str = "<eps>";
const BLANK: &str = "<blank>";

impl ArcList<'_> {
    /// Returns the lattice as a transducer from alignments to label strings.
    ///
    /// States are numbered `(t A + a) C + p`. Costs are negated weights: OpenFst's log semiring
    /// sums over paths, and its tropical semiring finds the best path:
    ///
    /// ```text
    /// fstcompile --isymbols=inputs --osymbols=outputs --arc_type=log64 arcs
    /// ```
    /// A lattice whose paths are all blocked has no lines.
    ///
    /// # Errors
    /// A number of names that differs from the number of labels; names that are empty, have white
    /// space or are repeated.
    pub fn to_openfst(&self, names: Option<&[&str]>) -> Result<OpenFstText> {
        let names = self.names(names)?;
        let mut unique = HashSet::from([EPSILON, BLANK]);
        for name in &names {
            if name.is_empty() || name.contains(char::is_whitespace) || !unique.insert(name) {
                let expected = "distinct names of labels without white space";
                return Err(Error::shape("names", expected, format!("{name:?}")));
            }
        }
        let mut arcs = String::new();
        for arc in &self.arcs {
            let input = if arc.label == 0 { 1 + names.len() as u32 } else { arc.label };
            let (from, to) = (self.state_number(arc.from), self.state_number(arc.to));
            // Avoids -0.
            let cost = 0.0 - arc.weight;
            write_line(&mut arcs, format_args!("{from}\t{to}\t{input}\t{}\t{cost}", arc.label));
        }
        if !self.arcs.is_empty() || self.finals.contains(&self.start()) {
            self.finals
                .iter()
                .for_each(|&state| write_line(&mut arcs, format_args!("{}", self.state_number(state))));
        }
        let mut outputs = format!("{EPSILON}\t0\n");
        for (label, name) in (1..).zip(&names) {
            write_line(&mut outputs, format_args!("{name}\t{label}"));
        }
        let inputs = format!("{outputs}{BLANK}\t{}\n", 1 + names.len());
        Ok(OpenFstText { arcs, inputs, outputs })
    }
}

/// Appends a line to a text.
fn write_line(text: &mut String, line: std::fmt::Arguments) {
    writeln!(text, "{line}").expect("writing to a string succeeds");
}
