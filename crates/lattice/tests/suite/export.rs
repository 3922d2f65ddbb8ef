//! Exported lattices, compared with all paths after reading them back.
use std::collections::BTreeMap;

use lattice::{Error, OpenFstText};

use crate::table_lattices::{Random, TableLattice, log_sum};

/// Reads OpenFst's text: arcs by source state, final states, and the start.
struct ParsedFst {
    arcs: BTreeMap<usize, Vec<(usize, u32, u32, f64)>>,
    finals: Vec<usize>,
    start: Option<usize>,
}

impl ParsedFst {
    fn new(text: &str) -> Self {
        let mut read = Self { arcs: BTreeMap::new(), finals: Vec::new(), start: None };
        for line in text.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let number = |at: usize| fields[at].parse::<usize>().unwrap();
            read.start.get_or_insert(number(0));
            match fields.len() {
                1 => read.finals.push(number(0)),
                5 => read.arcs.entry(number(0)).or_default().push((
                    number(1),
                    number(2) as u32,
                    number(3) as u32,
                    fields[4].parse().unwrap(),
                )),
                _ => panic!("no line: {line:?}"),
            }
        }
        read
    }

    /// Returns inputs, outputs and cost of each path.
    fn paths(&self) -> Vec<(Vec<u32>, Vec<u32>, f64)> {
        let mut paths = Vec::new();
        let mut unfinished: Vec<_> =
            self.start.map(|start| (start, vec![], vec![], 0.0)).into_iter().collect();
        while let Some((state, inputs, outputs, cost)) = unfinished.pop() {
            for &(to, input, output, arc_cost) in self.arcs.get(&state).into_iter().flatten() {
                let inputs = [&inputs[..], &[input]].concat();
                let outputs =
                    [&outputs[..], if output > 0 { std::slice::from_ref(&output) } else { &[] }].concat();
                unfinished.push((to, inputs, outputs, cost + arc_cost));
            }
            if self.finals.contains(&state) {
                paths.push((inputs, outputs, cost));
            }
        }
        paths
    }
}

fn text(tiny: &TableLattice, utterance: usize) -> OpenFstText {
    tiny.with(|_, lattice, frames| lattice.arc_list(frames, utterance, 100_000)?.to_openfst(None)).unwrap()
}

#[test]
fn all_paths_can_be_read_from_openfst_text() {
    let mut num_paths = 0;
    for seed in 0..300 {
        let tiny = TableLattice::new(seed);
        let blank = 1 + tiny.context.vocabulary() as u32;
        for utterance in 0..tiny.lengths.len() {
            let read = ParsedFst::new(&text(&tiny, utterance).arcs).paths();
            let mut all = tiny.paths(utterance);
            assert_eq!(read.len(), all.len(), "seed {seed}");
            let (sum, expected) =
                (log_sum(read.iter().map(|path| -path.2)), log_sum(all.iter().map(|path| path.weight)));
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
            let mut read: Vec<_> = read;
            read.sort_by(|a, b| a.0.cmp(&b.0));
            all.sort_by_key(|path| symbols(&path.alignment));
            for (read, listed) in read.iter().zip(&all) {
                assert_eq!((&read.0, &read.1), (&symbols(&listed.alignment), &listed.labels), "seed {seed}");
                assert!((read.2 + listed.weight).abs() < 1e-12);
            }
            num_paths += all.len();
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
