//! Exported lattices, compared with all paths after reading them back.
//!
//! OpenFst's text must contain all paths with their labels and weights, a graph every arc.
use std::collections::BTreeMap;

use lattice::{Error, OpenFstText};

use crate::table_lattices::{Random, TableLattice, log_sum};

/// An arc of OpenFst's text.
#[derive(Clone, Copy)]
struct FstArc {
    target: usize,
    input: u32,
    output: u32,
    cost: f64,
}

/// A path from the start to a final state.
#[derive(Clone, Default)]
struct FstPath {
    inputs: Vec<u32>,
    /// Without epsilon.
    outputs: Vec<u32>,
    cost: f64,
}

/// OpenFst's text after parsing.
struct ParsedFst {
    /// Arcs by source state.
    arcs: BTreeMap<usize, Vec<FstArc>>,
    finals: Vec<usize>,
    start: Option<usize>,
}

impl ParsedFst {
    fn new(text: &str) -> Self {
        let mut parsed = Self { arcs: BTreeMap::new(), finals: Vec::new(), start: None };
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |index: usize| fields[index].parse::<usize>().unwrap();
            parsed.start.get_or_insert(number(0));
            match fields.len() {
                1 => parsed.finals.push(number(0)),
                5 => parsed.arcs.entry(number(0)).or_default().push(FstArc {
                    target: number(1),
                    input: number(2) as u32,
                    output: number(3) as u32,
                    cost: fields[4].parse().unwrap(),
                }),
                _ => panic!("no line: {line:?}"),
            }
        }
        parsed
    }

    /// Returns all paths.
    fn paths(&self) -> Vec<FstPath> {
        let mut paths = Vec::new();
        let mut unfinished: Vec<(usize, FstPath)> =
            self.start.map(|start| (start, FstPath::default())).into_iter().collect();
        while let Some((state, path)) = unfinished.pop() {
            for &FstArc { target, input, output, cost } in self.arcs.get(&state).into_iter().flatten() {
                let mut extended = path.clone();
                extended.inputs.push(input);
                if output > 0 {
                    extended.outputs.push(output);
                }
                extended.cost += cost;
                unfinished.push((target, extended));
            }
            if self.finals.contains(&state) {
                paths.push(path);
            }
        }
        paths
    }
}

/// Exports one utterance of a batch.
fn openfst_text(tiny: &TableLattice, utterance: usize) -> OpenFstText {
    tiny.with(|_, lattice, frames| lattice.arc_list(frames, utterance, 100_000)?.to_openfst(None)).unwrap()
}

#[test]
fn all_paths_can_be_read_from_openfst_text() {
    let mut num_paths = 0;
    for seed in 0..300 {
        let tiny = TableLattice::new(seed);
        let blank = 1 + tiny.context.vocabulary() as u32;
        for utterance in 0..tiny.lengths.len() {
            let mut exported = ParsedFst::new(&openfst_text(&tiny, utterance).arcs).paths();
            let mut listed = tiny.paths(utterance);
            assert_eq!(exported.len(), listed.len(), "seed {seed}");
            let sum = log_sum(exported.iter().map(|path| -path.cost));
            let expected = log_sum(listed.iter().map(|path| path.weight));
            assert!(sum == expected || (sum - expected).abs() < 1e-12, "seed {seed}: {sum}, not {expected}");
            // Labels and blanks in order, without the padding of an alignment.
            let per_frame = tiny.alignment.num_states();
            let symbols = |alignment: &[u32]| {
                let mut arcs = Vec::new();
                for frame in alignment.chunks_exact(per_frame) {
                    let labels: Vec<u32> = frame.iter().copied().filter(|&label| label > 0).collect();
                    arcs.extend(&labels);
                    if per_frame > 1 || labels.is_empty() || tiny.alignment.expansions().is_some() {
                        arcs.push(blank);
                    }
                }
                arcs
            };
            exported.sort_by(|a, b| a.inputs.cmp(&b.inputs));
            listed.sort_by_key(|path| symbols(&path.alignment));
            for (exported, listed) in exported.iter().zip(&listed) {
                assert_eq!(exported.inputs, symbols(&listed.alignment), "seed {seed}");
                assert_eq!(exported.outputs, listed.labels, "seed {seed}");
                assert!((exported.cost + listed.weight).abs() < 1e-12);
            }
            num_paths += listed.len();
        }
    }
    assert!(num_paths > 1000);
}

#[test]
fn symbol_tables_use_the_names() {
    let tiny = (0..).map(TableLattice::new).find(|tiny| tiny.context.vocabulary() == 2).unwrap();
    let named = |names: &[&str]| {
        tiny.with(|_, lattice, frames| lattice.arc_list(frames, 0, 100_000)?.to_openfst(Some(names)))
    };
    let text = named(&["yes", "no"]).unwrap();
    assert_eq!(text.outputs, "<eps>\t0\nyes\t1\nno\t2\n");
    assert_eq!(text.inputs, "<eps>\t0\nyes\t1\nno\t2\n<blank>\t3\n");
    for wrong in [&["yes"][..], &["yes", "yes"], &["a b", "c"], &["", "c"], &["<eps>", "c"]] {
        let error = named(wrong).unwrap_err();
        assert!(error.to_string().starts_with("names: "), "{error}");
    }
}

#[test]
fn graphs_show_every_arc_and_mark_the_path() {
    let mut num_path_arcs = 0;
    for seed in 0..200 {
        let tiny = TableLattice::new(seed);
        for utterance in 0..tiny.lengths.len() {
            tiny.with(|session, lattice, frames| {
                let list = lattice.arc_list(frames, utterance, 100_000)?;
                let best = session.n_best_paths(lattice, frames, 1)?.swap_remove(utterance);
                let graph = list.to_dot(None, |state| format!("\"{state}\\"), best.first())?;
                assert_eq!(graph.matches(" -> ").count(), list.arcs.len());
                assert_eq!(graph.matches("doublecircle").count(), list.finals.len());
                assert_eq!(graph.lines().count(), graph.matches(';').count() + 2);
                // Nothing quoted is left outside of the quotation marks.
                let outside: String =
                    graph.replace("\\\\", "").replace("\\\"", "").split('"').step_by(2).collect();
                assert!(!outside.contains('\\'), "{outside}");
                let arcs: usize =
                    best.iter().flat_map(|path| path.arcs(lattice.context())).map(|arcs| arcs.len()).sum();
                assert_eq!(graph.matches("color=red").count(), arcs, "seed {seed}");
                num_path_arcs += arcs;
                Ok(())
            })
            .unwrap();
        }
    }
    assert!(num_path_arcs > 100);
}

#[test]
fn lists_have_a_limit() {
    let mut numbers = Random::new(5);
    for seed in 0..100 {
        let tiny = TableLattice::new(seed);
        let utterance = numbers.index(tiny.lengths.len());
        tiny.with(|_, lattice, frames| {
            let arcs = lattice.arc_list(frames, utterance, usize::MAX)?.arcs.len();
            assert_eq!(lattice.arc_list(frames, utterance, arcs)?.arcs.len(), arcs);
            if let Some(limit) = arcs.checked_sub(1) {
                assert_eq!(lattice.arc_list(frames, utterance, limit).map(drop), Err(Error::Arcs { limit }));
            }
            assert!(lattice.arc_list(frames, tiny.lengths.len(), 10).is_err(), "no such utterance");
            Ok(())
        })
        .unwrap();
    }
}
