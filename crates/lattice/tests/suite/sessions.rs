//! Lattice sessions compared with all paths, with several budgets and batches.
//!
//! Sums, gradients, α, marginals and paths must equal enumeration. Long utterances are compared
//! across precisions, budgets, batches and threads.
use std::ops::Range;

use lattice::{
    Error, Frames, FullNGram, Labels, LatticeOutput, LatticePath, LatticeSession, Options, PathSum, Real,
    RecognitionLattice, Result, TableWeightFn,
};
use oracle::compare::assert_near;
use proptest::prelude::*;

use crate::{
    common::{assert_thread_independent, narrow, random, widened},
    tiny::{PathArc, TinyLattice, tiny},
};

/// Utterances over one automaton, with a string each.
#[derive(Debug, Clone)]
struct Batch {
    utterances: Vec<TinyLattice>,
    strings: Vec<Vec<u32>>,
}

/// Any batch.
fn batches() -> impl Strategy<Value = Batch> {
    let utterance_params = prop::collection::vec((0usize..4, any::<u64>()), 1..5);
    let strings = prop::collection::vec(prop::collection::vec(0u32..3, 0..4), 4);
    (tiny(), utterance_params, strings).prop_map(|(first, utterance_params, strings)| {
        let utterances: Vec<TinyLattice> = utterance_params
            .iter()
            .map(|&(frames, seed)| TinyLattice { frames, seed, ..first.clone() })
            .collect();
        let vocabulary = first.automaton.rows()[0].len() as u32;
        let string = |string: &Vec<u32>| string.iter().map(|y| y % vocabulary + 1).collect();
        let strings = strings.iter().take(utterances.len()).map(string).collect();
        Batch { utterances, strings }
    })
}

/// All results of a session for a batch.
#[derive(Debug, Clone, PartialEq)]
struct Results {
    distances: Vec<Vec<f64>>,
    alphas: Vec<f64>,
    outputs: Vec<LatticeOutput<f64>>,
    pending: LatticeOutput<f64>,
    marginals: (Vec<f64>, Vec<f64>),
    best: Vec<LatticePath>,
    aligned: Vec<LatticePath>,
}

/// Sums over paths of an utterance, by enumeration.
struct EnumeratedSums {
    log_sum: f64,
    /// Posteriors of arcs, *T x C x (1 + V)*.
    posteriors: Vec<f64>,
    /// Weight of the best path.
    best_weight: f64,
}

const SUMS: [PathSum; 3] = [PathSum::Denominator, PathSum::Numerator, PathSum::Loss];

impl Batch {
    fn padded(&self) -> usize {
        self.utterances.iter().map(|tiny| tiny.frames).max().unwrap_or(0) + 1
    }

    /// Returns arc weights *B x T x C x (1 + V)*, including padding.
    fn table(&self) -> (Vec<f64>, [usize; 4]) {
        let rows = self.utterances[0].automaton.rows();
        let (states, vocabulary) = (rows.len(), rows[0].len());
        let shape = [self.utterances.len(), self.padded(), states, 1 + vocabulary];
        let mut table = Vec::new();
        for tiny in &self.utterances {
            for t in 0..shape[1] {
                for p in 0..states {
                    table.extend(
                        (0..=vocabulary)
                            .map(|y| tiny.weight(PathArc { frame: t, alignment: 0, context: p, label: y })),
                    );
                }
            }
        }
        (table, shape)
    }

    fn with<T>(&self, run: impl FnOnce(&RecognitionLattice<f64>, &Frames<f64>, &Labels) -> T) -> T {
        let (table, shape) = self.table();
        let weights = TableWeightFn::new(&table, &shape).unwrap();
        let context = self.utterances[0].automaton.context();
        let lattice = RecognitionLattice::new(&*context, self.utterances[0].alignment(), &weights).unwrap();
        let rows: Vec<f64> = (0..shape[0] * shape[1]).map(|row| (row % shape[1]) as f64).collect();
        let lengths: Vec<usize> = self.utterances.iter().map(|tiny| tiny.frames).collect();
        let frames = Frames::new(&rows, &[shape[0], shape[1], 1], &lengths).unwrap();
        let max_labels = self.strings.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |string: &Vec<u32>| [&string[..], &vec![0; max_labels - string.len()]].concat();
        let ids: Vec<u32> = self.strings.iter().flat_map(padded).collect();
        let counts: Vec<usize> = self.strings.iter().map(Vec::len).collect();
        let labels = Labels::new(&ids, &[shape[0], max_labels], &counts).unwrap();
        run(&lattice, &frames, &labels)
    }

    /// Returns the utterance weights of gradients.
    fn cotangents(&self) -> Vec<f64> {
        (0..self.utterances.len()).map(|b| 1.5 - b as f64).collect()
    }

    /// Runs all calls of a session, which keeps its buffers.
    fn run_all(&self, session: &mut LatticeSession<f64>) -> Results {
        let weights = self.cotangents();
        self.with(|lattice, frames, labels| Results {
            best: session.best_paths(lattice, frames).unwrap(),
            distances: SUMS
                .map(|sum| session.distances(sum, lattice, frames, Some(labels)).unwrap())
                .to_vec(),
            aligned: session.best_alignments(lattice, frames, labels).unwrap(),
            outputs: SUMS
                .map(|sum| session.sum_paths(sum, lattice, frames, Some(labels), &weights).unwrap())
                .to_vec(),
            alphas: session.alphas(lattice, frames).unwrap(),
            pending: LatticeSession::new(Options::new(usize::MAX))
                .forward(lattice, frames, labels)
                .unwrap()
                .backward(&weights)
                .unwrap(),
            marginals: session.marginals(lattice, frames).unwrap(),
        })
    }

    /// Returns the smallest budget for all calls.
    fn smallest(&self) -> Options {
        let mut bytes = 0;
        loop {
            let mut session = LatticeSession::<f64>::new(Options::new(bytes));
            let weights = self.cotangents();
            let computed = self.with(|lattice, frames, labels| {
                session.sum(lattice, frames, labels, &weights)?;
                session.sum_paths(PathSum::Denominator, lattice, frames, None, &weights)?;
                session.best_paths(lattice, frames)?;
                session.best_alignments(lattice, frames, labels)
            });
            match computed {
                Err(Error::Budget { smallest, .. }) => bytes = bytes.max(smallest),
                result => {
                    result.unwrap();
                    return Options::new(bytes);
                }
            }
        }
    }

    /// Returns sums over all paths, or over the paths of a string.
    fn enumerate(&self, b: usize, string: Option<&[u32]>) -> EnumeratedSums {
        let tiny = &self.utterances[b];
        let (_, [_, padded, states, columns]) = self.table();
        let path_labels = |path: &[PathArc]| {
            path.iter().filter(|arc| arc.label > 0).map(|arc| arc.label as u32).collect::<Vec<u32>>()
        };
        // The weight of an arc does not depend on the alignment state.
        let weight = |path: &[PathArc]| {
            path.iter().map(|&arc| tiny.weight(PathArc { alignment: 0, ..arc })).sum::<f64>()
        };
        let paths = tiny.paths();
        let paths = paths.iter().filter(|path| string.is_none_or(|string| path_labels(path) == string));
        let (mut total, mut best) = (0.0, f64::NEG_INFINITY);
        let mut posteriors = vec![0.0; padded * states * columns];
        for path in paths {
            let weight = weight(path);
            best = f64::max(best, weight);
            total += weight.exp();
            for arc in path {
                posteriors[(arc.frame * states + arc.context) * columns + arc.label] += weight.exp();
            }
        }
        if total > 0.0 {
            posteriors.iter_mut().for_each(|posterior| *posterior /= total);
        }
        EnumeratedSums { log_sum: total.ln(), posteriors, best_weight: best }
    }

    /// Compares results with enumeration.
    fn assert_enumerated(&self, results: &Results) {
        let all_paths: Vec<_> = (0..self.utterances.len()).map(|b| self.enumerate(b, None)).collect();
        let forced_paths: Vec<_> =
            (0..self.utterances.len()).map(|b| self.enumerate(b, Some(&self.strings[b]))).collect();
        let near = |name: &str, computed: &[f64], expected: &[f64]| {
            assert_near(name, computed, expected, 1e-10, 1e-11);
        };
        let denominators: Vec<f64> = all_paths.iter().map(|sums| sums.log_sum).collect();
        let numerators: Vec<f64> = forced_paths.iter().map(|sums| sums.log_sum).collect();
        let loss = |(&d, &s): (&f64, &f64)| if s == f64::NEG_INFINITY { f64::INFINITY } else { d - s };
        let losses: Vec<f64> = denominators.iter().zip(&numerators).map(loss).collect();
        let sums = [denominators, numerators, losses];
        // Factors of the posteriors of all paths, and of those of the string.
        let factors = [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]];
        for (((computed, distances), sums), [all_factor, forced_factor]) in
            results.outputs.iter().zip(&results.distances).zip(&sums).zip(factors)
        {
            near("sums", &computed.sums, sums);
            near("distances", distances, sums);
            let gradient = |b: usize| {
                let g = self.cotangents()[b];
                all_paths[b]
                    .posteriors
                    .iter()
                    .zip(&forced_paths[b].posteriors)
                    .map(move |(all, forced)| g * (all_factor * all + forced_factor * forced))
            };
            let gradient: Vec<f64> = (0..self.utterances.len()).flat_map(gradient).collect();
            near("gradient", &computed.parameters["table"], &gradient);
        }
        near("pending", &results.pending.sums, &sums[2]);
        near("pending", &results.pending.parameters["table"], &results.outputs[2].parameters["table"]);
        let columns = self.table().1[3];
        let rows = || all_paths.iter().flat_map(|sums| sums.posteriors.chunks_exact(columns));
        near("blank marginals", &results.marginals.0, &rows().map(|row| row[0]).collect::<Vec<_>>());
        let label_arcs: Vec<f64> = rows().flat_map(|row| row[1..].iter().copied()).collect();
        near("lexical marginals", &results.marginals.1, &label_arcs);
        let weights = |paths: &[LatticePath]| paths.iter().map(|path| path.weight).collect::<Vec<_>>();
        near(
            "best",
            &weights(&results.best),
            &all_paths.iter().map(|sums| sums.best_weight).collect::<Vec<_>>(),
        );
        near(
            "aligned",
            &weights(&results.aligned),
            &forced_paths.iter().map(|sums| sums.best_weight).collect::<Vec<_>>(),
        );
        let context = self.utterances[0].automaton.context();
        for (path, (b, is_forced)) in results
            .best
            .iter()
            .zip((0..).map(|b| (b, false)))
            .chain(results.aligned.iter().zip((0..).map(|b| (b, true))))
        {
            let arcs = path.arcs(&*context);
            assert_eq!(arcs.len(), self.utterances[b].frames);
            if path.weight > f64::NEG_INFINITY {
                let frame_weight = |(t, arcs): (usize, &Vec<lattice::distance::FrameArc>)| -> f64 {
                    let weight = |arc: &lattice::distance::FrameArc| {
                        let (context, label) = (arc.context, arc.label);
                        self.utterances[b].weight(PathArc { frame: t, alignment: 0, context, label })
                    };
                    arcs.iter().map(weight).sum()
                };
                near("rescored", &[arcs.iter().enumerate().map(frame_weight).sum()], &[path.weight]);
                assert!(!is_forced || path.labels() == self.strings[b]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn sessions_equal_enumeration(first in batches(), second in batches()) {
        // One session runs larger and smaller batches.
        let mut session = LatticeSession::new(Options::new(usize::MAX));
        let mut recompute = LatticeSession::new(Options::new(usize::MAX).recompute());
        for batch in [&first, &second, &first] {
            batch.assert_enumerated(&batch.run_all(&mut session));
            batch.assert_enumerated(&batch.run_all(&mut recompute));
            batch.assert_enumerated(&batch.run_all(&mut LatticeSession::new(batch.smallest())));
        }
    }
}

/// States of a context of the last two of three labels.
const LONG_STATES: usize = 1 + 3 + 9;
/// Arcs of a state: the blank and three labels.
const LONG_ARCS: usize = 1 + 3;

/// A lattice of many frames, with labels.
struct LongBatch {
    table: Vec<f64>,
    /// Rows of the table of an utterance, one for each frame.
    rows: usize,
    context: FullNGram,
    lengths: Vec<usize>,
    strings: Vec<Vec<u32>>,
    alignment: lattice::AlignmentLattice,
}

impl LongBatch {
    fn new(alignment: lattice::AlignmentLattice, lengths: Vec<usize>, scale: f64, seed: u64) -> Self {
        let context = FullNGram::new(3, 2).unwrap();
        let rows = *lengths.iter().max().unwrap();
        let table = random(lengths.len() * rows * LONG_STATES * LONG_ARCS, seed, scale);
        let string = |&length: &usize| (0..length / 3).map(|u| (u * 7 % 5 % 3) as u32 + 1).collect();
        let strings = lengths.iter().map(string).collect();
        Self { table, rows, context, lengths, strings, alignment }
    }

    fn sum<F: Real>(
        &self,
        budget: Options,
        utterances: Range<usize>,
    ) -> Result<(LatticeOutput<F>, Vec<LatticePath>)> {
        let (count, size) = (utterances.len(), self.rows * LONG_STATES * LONG_ARCS);
        let table: Vec<F> = narrow(&self.table[utterances.start * size..utterances.end * size]);
        let weights = TableWeightFn::new(&table, &[count, self.rows, LONG_STATES, LONG_ARCS]).unwrap();
        let lattice = RecognitionLattice::new(&self.context, self.alignment, &weights).unwrap();
        let rows: Vec<F> = (0..count * self.rows).map(|row| F::from_f64((row % self.rows) as f64)).collect();
        let frames = Frames::new(&rows, &[count, self.rows, 1], &self.lengths[utterances.clone()]).unwrap();
        let max_labels = self.rows / 3;
        let strings = &self.strings[utterances];
        let ids: Vec<u32> =
            strings.iter().flat_map(|y| [&y[..], &vec![9; max_labels - y.len()]].concat()).collect();
        let counts: Vec<usize> = strings.iter().map(Vec::len).collect();
        let labels = Labels::new(&ids, &[count, max_labels], &counts).unwrap();
        let mut session = LatticeSession::new(budget);
        let computed = session.sum(&lattice, &frames, &labels, &vec![1.0; count])?;
        Ok((computed, session.best_paths(&lattice, &frames)?))
    }
}

/// Both alignment lattices.
fn alignments() -> [lattice::AlignmentLattice; 2] {
    [lattice::AlignmentLattice::FrameDependent, lattice::AlignmentLattice::frame_label_dependent(2).unwrap()]
}

/// Compares gradients in f32 with gradients in f64.
#[test]
fn single_precision_is_accurate_for_long_utterances_and_large_weights() {
    for alignment in alignments() {
        for scale in [1.0, 8.0] {
            let long = LongBatch::new(alignment, vec![2000, 1999, 700], scale, 5);
            let (exact, _) = long.sum::<f64>(Options::new(usize::MAX), 0..3).unwrap();
            let (computed, _) = long.sum::<f32>(Options::new(usize::MAX), 0..3).unwrap();
            let relative: Vec<f64> =
                computed.sums.iter().zip(&exact.sums).map(|(f, e)| (f - e).abs() / e.abs()).collect();
            let (computed, exact) = (widened(&computed.parameters["table"]), &exact.parameters["table"]);
            let largest_error = computed.iter().zip(exact).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
            println!(
                "{alignment:?} scale {scale}: losses off by {relative:?}, a gradient by {largest_error:e}"
            );
            assert!(relative.iter().all(|&error| error < 2e-5));
            assert_near("gradient", &computed, exact, 1e-4, 1e-5);
        }
    }
}

/// Budgets change results up to rounding; other utterances and threads do not change them.
#[test]
fn budgets_batches_and_threads_do_not_change_results() {
    for alignment in alignments() {
        let long = LongBatch::new(alignment, vec![40, 1, 37, 0, 12], 3.0, 11);
        let (complete, best) = long.sum::<f64>(Options::new(usize::MAX), 0..5).unwrap();
        let Err(Error::Budget { smallest, .. }) = long.sum::<f64>(Options::new(0), 0..5) else {
            panic!("no budget error");
        };
        for bytes in [smallest, smallest + smallest / 4, 2 * smallest] {
            let (limited, paths) = long.sum::<f64>(Options::new(bytes), 0..5).unwrap();
            assert_near("sums", &limited.sums, &complete.sums, 1e-13, 0.0);
            assert_near("gradient", &limited.parameters["table"], &complete.parameters["table"], 0.0, 1e-13);
            assert_eq!(paths, best);
        }
        for (b, best) in best.iter().enumerate() {
            let (single, path) = long.sum::<f64>(Options::new(usize::MAX), b..b + 1).unwrap();
            assert_eq!(single.sums[0].to_bits(), complete.sums[b].to_bits());
            let size = single.parameters["table"].len();
            assert!(single.parameters["table"] == complete.parameters["table"][b * size..][..size]);
            assert_eq!(path[0], *best);
        }
        assert_thread_independent(|| long.sum::<f32>(Options::new(usize::MAX), 0..5).unwrap());
        assert_thread_independent(|| long.sum::<f32>(Options::new(usize::MAX).recompute(), 0..5).unwrap());
    }
}
