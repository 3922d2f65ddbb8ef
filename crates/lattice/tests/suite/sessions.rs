//! Sessions against lists of all paths, and against themselves with other budgets, batches, threads and numbers.
use std::ops::Range;

use lattice::{
    Error, Frames, FullNGram, Labels, LatticeOutput, LatticePath, LatticeSession, Options, Real,
    RecognitionLattice, Result, Sum, TableWeightFn,
};
use oracle::compare::assert_near;
use proptest::prelude::*;

use crate::{
    common::{made_up, narrow, on_any_threads, widened},
    tiny::{Place, Tiny, tiny},
};

/// Utterances over one automaton, and the string of each.
#[derive(Debug, Clone)]
struct Batch {
    of: Vec<Tiny>,
    strings: Vec<Vec<u32>>,
}

fn batches() -> impl Strategy<Value = Batch> {
    let more = prop::collection::vec((0usize..4, any::<u64>()), 1..5);
    let strings = prop::collection::vec(prop::collection::vec(0u32..3, 0..4), 4);
    (tiny(), more, strings).prop_map(|(first, more, strings)| {
        let of: Vec<Tiny> =
            more.iter().map(|&(frames, seed)| Tiny { frames, seed, ..first.clone() }).collect();
        let vocabulary = first.automaton.rows()[0].len() as u32;
        let string = |string: &Vec<u32>| string.iter().map(|y| y % vocabulary + 1).collect();
        let strings = strings.iter().take(of.len()).map(string).collect();
        Batch { of, strings }
    })
}

/// Everything that a session says of a batch.
#[derive(Debug, Clone, PartialEq)]
struct Said {
    distances: Vec<Vec<f64>>,
    alphas: Vec<f64>,
    outputs: Vec<LatticeOutput<f64>>,
    pending: LatticeOutput<f64>,
    marginals: (Vec<f64>, Vec<f64>),
    best: Vec<LatticePath>,
    aligned: Vec<LatticePath>,
}

const SUMS: [Sum; 3] = [Sum::Denominator, Sum::Numerator, Sum::Loss];

impl Batch {
    fn padded(&self) -> usize {
        self.of.iter().map(|tiny| tiny.frames).max().unwrap_or(0) + 1
    }

    /// Arc weights *B x T x C x (1 + V)*, what is padded too.
    fn table(&self) -> (Vec<f64>, [usize; 4]) {
        let rows = self.of[0].automaton.rows();
        let (states, vocabulary) = (rows.len(), rows[0].len());
        let shape = [self.of.len(), self.padded(), states, 1 + vocabulary];
        let mut table = Vec::new();
        for tiny in &self.of {
            for t in 0..shape[1] {
                for p in 0..states {
                    table.extend((0..=vocabulary).map(|y| tiny.weight((t, 0, p, y))));
                }
            }
        }
        (table, shape)
    }

    fn with<T>(&self, work: impl FnOnce(&RecognitionLattice<f64>, &Frames<f64>, &Labels) -> T) -> T {
        let (table, shape) = self.table();
        let weights = TableWeightFn::new(&table, &shape).unwrap();
        let context = self.of[0].automaton.context();
        let lattice = RecognitionLattice::new(&*context, self.of[0].alignment(), &weights).unwrap();
        let rows: Vec<f64> = (0..shape[0] * shape[1]).map(|row| (row % shape[1]) as f64).collect();
        let lengths: Vec<usize> = self.of.iter().map(|tiny| tiny.frames).collect();
        let frames = Frames::new(&rows, &[shape[0], shape[1], 1], &lengths).unwrap();
        let most = self.strings.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |string: &Vec<u32>| [&string[..], &vec![0; most - string.len()]].concat();
        let ids: Vec<u32> = self.strings.iter().flat_map(padded).collect();
        let counts: Vec<usize> = self.strings.iter().map(Vec::len).collect();
        let labels = Labels::new(&ids, &[shape[0], most], &counts).unwrap();
        work(&lattice, &frames, &labels)
    }

    fn cotangents(&self) -> Vec<f64> {
        (0..self.of.len()).map(|b| 1.5 - b as f64).collect()
    }

    /// What a session says; its buffers stay from call to call.
    fn ask(&self, session: &mut LatticeSession<f64>) -> Said {
        let weights = self.cotangents();
        self.with(|lattice, frames, labels| Said {
            best: session.best_paths(lattice, frames).unwrap(),
            distances: SUMS
                .map(|sum| session.distances(sum, lattice, frames, Some(labels)).unwrap())
                .to_vec(),
            aligned: session.best_alignments(lattice, frames, labels).unwrap(),
            outputs: SUMS
                .map(|sum| session.sum_of(sum, lattice, frames, Some(labels), &weights).unwrap())
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

    /// The smallest budget that every call has room in.
    fn smallest(&self) -> Options {
        let mut bytes = 0;
        loop {
            let mut session = LatticeSession::<f64>::new(Options::new(bytes));
            let weights = self.cotangents();
            let found = self.with(|lattice, frames, labels| {
                session.sum(lattice, frames, labels, &weights)?;
                session.sum_of(Sum::Denominator, lattice, frames, None, &weights)?;
                session.best_paths(lattice, frames)?;
                session.best_alignments(lattice, frames, labels)
            });
            match found {
                Err(Error::Budget { smallest, .. }) => bytes = bytes.max(smallest),
                other => {
                    other.unwrap();
                    return Options::new(bytes);
                }
            }
        }
    }

    /// Sum over paths, and the share of each arc: *T x C x (1 + V)*.
    fn list(&self, b: usize, string: Option<&[u32]>) -> (f64, Vec<f64>, f64) {
        let tiny = &self.of[b];
        let (_, [_, padded, states, columns]) = self.table();
        let spelt = |path: &[Place]| {
            path.iter().filter(|arc| arc.3 > 0).map(|arc| arc.3 as u32).collect::<Vec<u32>>()
        };
        // The weight of an arc does not depend on the state of the alignment.
        let weight = |path: &[Place]| path.iter().map(|&(t, _, p, y)| tiny.weight((t, 0, p, y))).sum::<f64>();
        let paths = tiny.paths();
        let paths = paths.iter().filter(|path| string.is_none_or(|string| spelt(path) == string));
        let (mut total, mut best) = (0.0, f64::NEG_INFINITY);
        let mut shares = vec![0.0; padded * states * columns];
        for path in paths {
            let weight = weight(path);
            best = f64::max(best, weight);
            total += weight.exp();
            for &(t, _, p, y) in path {
                shares[(t * states + p) * columns + y] += weight.exp();
            }
        }
        if total > 0.0 {
            shares.iter_mut().for_each(|share| *share /= total);
        }
        (total.ln(), shares, best)
    }

    fn check(&self, said: &Said) {
        let all: Vec<_> = (0..self.of.len()).map(|b| self.list(b, None)).collect();
        let own: Vec<_> = (0..self.of.len()).map(|b| self.list(b, Some(&self.strings[b]))).collect();
        let near = |what: &str, found: &[f64], expected: &[f64]| {
            assert_near(what, found, expected, 1e-10, 1e-11);
        };
        let denominators: Vec<f64> = all.iter().map(|sums| sums.0).collect();
        let numerators: Vec<f64> = own.iter().map(|sums| sums.0).collect();
        let loss = |(&d, &s): (&f64, &f64)| if s == f64::NEG_INFINITY { f64::INFINITY } else { d - s };
        let losses: Vec<f64> = denominators.iter().zip(&numerators).map(loss).collect();
        let sums = [denominators, numerators, losses];
        let factors = [[1.0, 0.0], [0.0, 1.0], [1.0, -1.0]];
        for (((found, distances), sums), [of_all, of_own]) in
            said.outputs.iter().zip(&said.distances).zip(&sums).zip(factors)
        {
            near("sums", &found.sums, sums);
            near("distances", distances, sums);
            let gradient = |b: usize| {
                let g = self.cotangents()[b];
                all[b].1.iter().zip(&own[b].1).map(move |(all, own)| g * (of_all * all + of_own * own))
            };
            let gradient: Vec<f64> = (0..self.of.len()).flat_map(gradient).collect();
            near("gradient", &found.parameters["table"], &gradient);
        }
        near("pending", &said.pending.sums, &sums[2]);
        near("pending", &said.pending.parameters["table"], &said.outputs[2].parameters["table"]);
        let columns = self.table().1[3];
        let rows = || all.iter().flat_map(|sums| sums.1.chunks_exact(columns));
        near("blank marginals", &said.marginals.0, &rows().map(|row| row[0]).collect::<Vec<_>>());
        let lexical: Vec<f64> = rows().flat_map(|row| row[1..].iter().copied()).collect();
        near("lexical marginals", &said.marginals.1, &lexical);
        let weights = |paths: &[LatticePath]| paths.iter().map(|path| path.weight).collect::<Vec<_>>();
        near("best", &weights(&said.best), &all.iter().map(|sums| sums.2).collect::<Vec<_>>());
        near("aligned", &weights(&said.aligned), &own.iter().map(|sums| sums.2).collect::<Vec<_>>());
        let context = self.of[0].automaton.context();
        for (path, (b, own)) in said
            .best
            .iter()
            .zip((0..).map(|b| (b, false)))
            .chain(said.aligned.iter().zip((0..).map(|b| (b, true))))
        {
            let arcs = path.arcs(&*context);
            assert_eq!(arcs.len(), self.of[b].frames);
            if path.weight > f64::NEG_INFINITY {
                let of_frame = |(t, arcs): (usize, &Vec<lattice::distance::FrameArc>)| -> f64 {
                    arcs.iter().map(|arc| self.of[b].weight((t, 0, arc.context, arc.label))).sum()
                };
                near("rescored", &[arcs.iter().enumerate().map(of_frame).sum()], &[path.weight]);
                assert!(!own || path.labels() == self.strings[b]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn sessions_are_lists_of_all_paths(first in batches(), second in batches()) {
        // One session goes from batch to batch, larger and smaller ones.
        let mut kept = LatticeSession::new(Options::new(usize::MAX));
        let mut again = LatticeSession::new(Options::new(usize::MAX).recompute());
        for batch in [&first, &second, &first] {
            batch.check(&batch.ask(&mut kept));
            batch.check(&batch.ask(&mut again));
            batch.check(&batch.ask(&mut LatticeSession::new(batch.smallest())));
        }
    }
}

/// A lattice of many frames, and what is asked of it.
struct Long {
    table: Vec<f64>,
    rows: usize,
    context: FullNGram,
    lengths: Vec<usize>,
    strings: Vec<Vec<u32>>,
    alignment: lattice::AlignmentLattice,
}

impl Long {
    fn new(alignment: lattice::AlignmentLattice, lengths: Vec<usize>, scale: f64, seed: u64) -> Self {
        let context = FullNGram::new(3, 2).unwrap();
        let rows = *lengths.iter().max().unwrap();
        let table = made_up(lengths.len() * rows * 13 * 4, seed, scale);
        let string = |&length: &usize| (0..length / 3).map(|at| (at * 7 % 5 % 3) as u32 + 1).collect();
        let strings = lengths.iter().map(string).collect();
        Self { table, rows, context, lengths, strings, alignment }
    }

    fn sum<F: Real>(
        &self,
        budget: Options,
        utterances: Range<usize>,
    ) -> Result<(LatticeOutput<F>, Vec<LatticePath>)> {
        let (count, size) = (utterances.len(), self.rows * 13 * 4);
        let table: Vec<F> = narrow(&self.table[utterances.start * size..utterances.end * size]);
        let weights = TableWeightFn::new(&table, &[count, self.rows, 13, 4]).unwrap();
        let lattice = RecognitionLattice::new(&self.context, self.alignment, &weights).unwrap();
        let rows: Vec<F> = (0..count * self.rows).map(|row| F::from_f64((row % self.rows) as f64)).collect();
        let frames = Frames::new(&rows, &[count, self.rows, 1], &self.lengths[utterances.clone()]).unwrap();
        let most = self.rows / 3;
        let strings = &self.strings[utterances];
        let ids: Vec<u32> =
            strings.iter().flat_map(|y| [&y[..], &vec![9; most - y.len()]].concat()).collect();
        let counts: Vec<usize> = strings.iter().map(Vec::len).collect();
        let labels = Labels::new(&ids, &[count, most], &counts).unwrap();
        let mut session = LatticeSession::new(budget);
        let found = session.sum(&lattice, &frames, &labels, &vec![1.0; count])?;
        Ok((found, session.best_paths(&lattice, &frames)?))
    }
}

fn both() -> [lattice::AlignmentLattice; 2] {
    [lattice::AlignmentLattice::FrameDependent, lattice::AlignmentLattice::frame_label_dependent(2).unwrap()]
}

/// The largest difference of an f32 gradient from the f64 one.
#[test]
fn long_and_large_in_single_precision() {
    for alignment in both() {
        for scale in [1.0, 8.0] {
            let long = Long::new(alignment, vec![2000, 1999, 700], scale, 5);
            let (exact, _) = long.sum::<f64>(Options::new(usize::MAX), 0..3).unwrap();
            let (found, _) = long.sum::<f32>(Options::new(usize::MAX), 0..3).unwrap();
            let relative: Vec<f64> =
                found.sums.iter().zip(&exact.sums).map(|(f, e)| (f - e).abs() / e.abs()).collect();
            let (found, exact) = (widened(&found.parameters["table"]), &exact.parameters["table"]);
            let worst = found.iter().zip(exact).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
            println!("{alignment:?} scale {scale}: losses off by {relative:?}, a gradient by {worst:e}");
            assert!(relative.iter().all(|&error| error < 2e-5));
            assert_near("gradient", &found, exact, 1e-4, 1e-5);
        }
    }
}

/// The cut changes nothing but roundings, and neither batch mates nor threads change a bit.
#[test]
fn cuts_batches_and_threads() {
    for alignment in both() {
        let long = Long::new(alignment, vec![40, 1, 37, 0, 12], 3.0, 11);
        let (whole, best) = long.sum::<f64>(Options::new(usize::MAX), 0..5).unwrap();
        let Err(Error::Budget { smallest, .. }) = long.sum::<f64>(Options::new(0), 0..5) else {
            panic!("no room at all");
        };
        for bytes in [smallest, smallest + smallest / 4, 2 * smallest] {
            let (cut, paths) = long.sum::<f64>(Options::new(bytes), 0..5).unwrap();
            assert_near("sums", &cut.sums, &whole.sums, 1e-13, 0.0);
            assert_near("gradient", &cut.parameters["table"], &whole.parameters["table"], 0.0, 1e-13);
            assert_eq!(paths, best);
        }
        for (b, best) in best.iter().enumerate() {
            let (alone, path) = long.sum::<f64>(Options::new(usize::MAX), b..b + 1).unwrap();
            assert_eq!(alone.sums[0].to_bits(), whole.sums[b].to_bits());
            let size = alone.parameters["table"].len();
            assert!(alone.parameters["table"] == whole.parameters["table"][b * size..][..size]);
            assert_eq!(path[0], *best);
        }
        on_any_threads(|| long.sum::<f32>(Options::new(usize::MAX), 0..5).unwrap());
        on_any_threads(|| long.sum::<f32>(Options::new(usize::MAX).recompute(), 0..5).unwrap());
    }
}
