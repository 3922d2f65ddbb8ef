//! Reference for tests: batches of tiny recognition lattices.
//!
//! It does not use the recursions of the crate. Some arcs are blocked, some labels have no path,
//! and padding is invalid.
use std::cmp::Reverse;

use lattice::{Context, Frames, Labels, Real, RecognitionLattice, TableWeightFn};
use proptest::prelude::*;

use crate::{
    common::narrow,
    tiny::{Automaton, PathArc, TinyLattice},
};

/// Largest number of paths of an utterance.
const MAX_PATHS: usize = 1500;

/// One utterance.
#[derive(Debug, Clone)]
pub(crate) struct TinyUtterance {
    /// N
    pub frames: usize,
    /// How much the reported number of frames exceeds T.
    pub excess_frames: usize,
    pub labels: Vec<u32>,
    /// How much the reported number of labels exceeds U.
    pub excess_labels: usize,
    /// The share of blocked arcs.
    pub blocked_fraction: f64,
}

/// Utterances over one automaton, and the weights of their arcs.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub automaton: Automaton,
    pub expansions: Option<usize>,
    pub utterances: Vec<TinyUtterance>,
    pub axes: Vec<usize>,
    /// Padding of T and U.
    pub padding: [usize; 2],
    /// Step of the weights: sums are exact in both precisions, and a step of 1 gives ties.
    pub step: f64,
    pub seed: u64,
}

/// Sums over paths of an utterance.
pub(crate) struct Sums {
    pub log_sum: f64,
    pub best: f64,
    /// Labels of the first of the best paths.
    pub best_labels: Vec<u32>,
    /// Posteriors, *T x C x (1 + V)*.
    pub posteriors: Vec<f64>,
}

impl Batch {
    pub(crate) fn padded(&self) -> usize {
        self.utterances.iter().map(|u| u.frames).max().unwrap_or(0) + self.padding[0]
    }

    pub(crate) fn padded_labels(&self) -> usize {
        self.utterances.iter().map(|u| u.labels.len()).max().unwrap_or(0) + self.padding[1]
    }

    pub(crate) fn states(&self) -> usize {
        self.automaton.rows().len()
    }

    pub(crate) fn vocabulary(&self) -> usize {
        self.automaton.rows()[0].len()
    }

    pub(crate) fn tiny(&self, frames: usize) -> TinyLattice {
        let Self { automaton, expansions, seed, .. } = self.clone();
        TinyLattice { automaton, expansions, frames, seed, blocked_below: 0.0 }
    }

    /// Returns the arc weights of an utterance, *T x C x (1 + V)*.
    pub(crate) fn table(&self, utterance: usize) -> Vec<f64> {
        let count = self.padded() * self.states() * (1 + self.vocabulary());
        let purpose = 2 * utterance as u64;
        let uniform = oracle::noise::integers(self.seed, purpose, count, 1000);
        let weights = oracle::noise::normal(self.seed, purpose + 1, count, 1.5);
        let blocked_below = (1000.0 * self.utterances[utterance].blocked_fraction) as u32;
        let weight = |(&draw, &w): (&u32, &f64)| {
            if draw < blocked_below { f64::NEG_INFINITY } else { (w / self.step).round() * self.step }
        };
        uniform.iter().zip(&weights).map(weight).collect()
    }

    /// Returns the index of an arc in a [`table`](Self::table).
    fn arc_index(&self, arc: PathArc) -> usize {
        (arc.frame * self.states() + arc.context) * (1 + self.vocabulary()) + arc.label
    }

    /// Computes sums over all paths, or over those with some labels.
    pub(crate) fn sums(&self, utterance: usize, labels: Option<&[u32]>) -> Sums {
        let table = self.table(utterance);
        let mut sums = Sums {
            log_sum: f64::NEG_INFINITY,
            best: f64::NEG_INFINITY,
            best_labels: Vec::new(),
            posteriors: vec![0.0; table.len()],
        };
        let mut paths = self.tiny(self.utterances[utterance].frames).paths();
        let has_labels = |path: &Vec<PathArc>| {
            labels.is_none_or(|labels| path_labels(path).filter(|&y| y > 0).eq(labels.iter().copied()))
        };
        paths.retain(has_labels);
        let weight = |path: &Vec<PathArc>| path.iter().map(|&arc| table[self.arc_index(arc)]).sum::<f64>();
        let total_probability: f64 = paths.iter().map(|path| weight(path).exp()).sum();
        if total_probability == 0.0 {
            return sums;
        }
        sums.log_sum = total_probability.ln();
        sums.best = paths.iter().map(weight).fold(f64::NEG_INFINITY, f64::max);
        for path in &paths {
            for &arc in path {
                sums.posteriors[self.arc_index(arc)] += weight(path).exp() / total_probability;
            }
        }
        let best =
            paths.iter().filter(|path| weight(path) == sums.best).min_by_key(|path| self.tie_order(path));
        sums.best_labels = self.alignment_labels(best.unwrap());
        sums
    }

    /// Returns `log Σ` over the paths through some frames, by final state.
    pub(crate) fn alpha(&self, utterance: usize, frames: usize) -> Vec<f64> {
        let (table, rows) = (self.table(utterance), self.automaton.rows());
        let mut sums = vec![0.0; rows.len()];
        for path in self.tiny(frames).paths() {
            let weight: f64 = path.iter().map(|&arc| table[self.arc_index(arc)]).sum();
            sums[end_state(&rows, &path)] += weight.exp();
        }
        sums.into_iter().map(f64::ln).collect()
    }

    /// Returns the labels by frame and alignment state.
    fn alignment_labels(&self, path: &[PathArc]) -> Vec<u32> {
        let per_frame = self.expansions.map_or(1, |labels| labels + 1);
        let frames = path.iter().map(|arc| arc.frame + 1).max().unwrap_or(0);
        let mut labels = vec![0; per_frame * frames];
        path.iter().for_each(|arc| labels[arc.frame * per_frame + arc.alignment] = arc.label as u32);
        labels
    }

    /// Returns a key for the order of section 10 of the specification.
    ///
    /// Final states come first; then, from the end, fewer labels in a frame and smaller sources.
    fn tie_order(&self, path: &[PathArc]) -> impl Ord + use<> {
        let frames = path.iter().map(|arc| arc.frame + 1).max().unwrap_or(0);
        let mut order = vec![(end_state(&self.automaton.rows(), path), 0)];
        for t in (0..frames).rev() {
            let labels = path.iter().filter(|arc| arc.frame == t && arc.label > 0);
            order.push((labels.clone().count(), 0));
            order.extend(labels.rev().map(|arc| (arc.context, arc.label)));
        }
        order
    }

    /// Returns the arguments of the crate.
    pub(crate) fn arguments<F: Real>(&self) -> Arguments<F> {
        let (t, u, size) = (self.padded(), self.padded_labels(), 2);
        let mut frames = Vec::new();
        let mut ids = Vec::new();
        let invalid = [f64::NAN, f64::INFINITY, -1e30, 7e9];
        for (b, utterance) in self.utterances.iter().enumerate() {
            for frame in 0..t {
                let row =
                    if frame < utterance.frames { [frame as f64 + 0.25, 9.0] } else { [invalid[b % 4]; 2] };
                frames.extend(row);
            }
            let padding = [0, u32::MAX, 1, 99][b % 4];
            ids.extend(utterance.labels.iter().copied().chain(std::iter::repeat(padding)).take(u));
        }
        let shape = |last: &[usize]| [&self.axes, last].concat();
        let table: Vec<f64> = (0..self.utterances.len()).flat_map(|b| self.table(b)).collect();
        let num_frames = self.utterances.iter().map(|utterance| {
            let excess = if utterance.frames == t { utterance.excess_frames } else { 0 };
            utterance.frames.saturating_add(excess)
        });
        let num_labels = self.utterances.iter().map(|utterance| match utterance.excess_labels {
            0 => utterance.labels.len(),
            excess => u.saturating_add(excess),
        });
        Arguments {
            context: self.automaton.context(),
            alignment: self.tiny(0).alignment(),
            table: narrow(&table),
            table_shape: shape(&[t, self.states(), 1 + self.vocabulary()]),
            frames: narrow(&frames),
            frames_shape: shape(&[t, size]),
            num_frames: num_frames.collect(),
            labels: ids,
            labels_shape: shape(&[u]),
            num_labels: num_labels.collect(),
        }
    }

    /// Returns the labels of an utterance, if the reported number is valid.
    pub(crate) fn labels(&self, utterance: usize) -> Option<&[u32]> {
        let utterance = &self.utterances[utterance];
        (utterance.excess_labels == 0).then_some(&utterance.labels[..])
    }
}

/// Returns the labels of the arcs of a path, 0 for blanks.
fn path_labels(path: &[PathArc]) -> impl Iterator<Item = u32> {
    path.iter().map(|arc| arc.label as u32)
}

/// Returns the context state at the end of a path.
fn end_state(rows: &[Vec<usize>], path: &[PathArc]) -> usize {
    let labels = path_labels(path).filter(|&y| y > 0);
    labels.fold(0, |state, y| rows[state][y as usize - 1])
}

/// Arguments of a call.
pub(crate) struct Arguments<F> {
    pub context: Box<dyn Context>,
    pub alignment: lattice::AlignmentLattice,
    pub table: Vec<F>,
    pub table_shape: Vec<usize>,
    pub frames: Vec<F>,
    pub frames_shape: Vec<usize>,
    pub num_frames: Vec<usize>,
    pub labels: Vec<u32>,
    pub labels_shape: Vec<usize>,
    pub num_labels: Vec<usize>,
}

impl<F: Real> Arguments<F> {
    pub(crate) fn with<T>(&self, run: impl FnOnce(&RecognitionLattice<F>, &Frames<F>, &Labels) -> T) -> T {
        let table = TableWeightFn::new(&self.table, &self.table_shape).unwrap();
        let lattice = RecognitionLattice::new(&*self.context, self.alignment, &table).unwrap();
        let frames = Frames::new(&self.frames, &self.frames_shape, &self.num_frames).unwrap();
        let labels = Labels::new(&self.labels, &self.labels_shape, &self.num_labels).unwrap();
        run(&lattice, &frames, &labels)
    }
}

fn automaton() -> impl Strategy<Value = Automaton> {
    let strings =
        (1usize..4, 0usize..3).prop_map(|(vocabulary, order)| Automaton::Strings { vocabulary, order });
    let rows = (1usize..5, 1usize..4).prop_flat_map(|(states, vocabulary)| {
        prop::collection::vec(prop::collection::vec(0..states, vocabulary), states).prop_map(Automaton::Rows)
    });
    prop_oneof![strings, rows]
}

/// Returns the largest number of frames with at most [`MAX_PATHS`] paths.
fn max_frames(vocabulary: usize, expansions: Option<usize>) -> usize {
    let frame_paths = match expansions {
        None => 1 + vocabulary,
        Some(limit) => (0..=limit as u32).map(|i| vocabulary.pow(i)).sum(),
    };
    (0..5).filter(|&frames| frame_paths.pow(frames) <= MAX_PATHS).map(Reverse).min().unwrap().0 as usize
}

fn utterance(frames: usize, vocabulary: u32) -> impl Strategy<Value = TinyUtterance> {
    (
        0..=frames,
        prop_oneof![3 => Just(0), 1 => 1usize..9, 1 => Just(usize::MAX)],
        prop::collection::vec(1..=vocabulary, 0..5),
        prop_oneof![7 => Just(0), 1 => 1usize..3, 1 => Just(usize::MAX)],
        prop_oneof![4 => Just(0.0), 2 => Just(0.15), 1 => Just(0.6), 1 => Just(1.0)],
    )
        .prop_map(|(frames, excess_frames, labels, excess_labels, blocked_fraction)| TinyUtterance {
            frames,
            excess_frames,
            labels,
            excess_labels,
            blocked_fraction,
        })
}

pub(crate) fn batch() -> impl Strategy<Value = Batch> {
    let axes = prop_oneof![
        Just(vec![]),
        Just(vec![1]),
        Just(vec![2]),
        Just(vec![3]),
        Just(vec![2, 2]),
        Just(vec![1, 3, 1]),
        Just(vec![2, 0]),
    ];
    let shape = (automaton(), prop::option::of(0usize..4), axes);
    let all = shape.prop_flat_map(|(automaton, expansions, axes)| {
        let vocabulary = automaton.rows()[0].len();
        let count = axes.iter().product::<usize>();
        let frames = max_frames(vocabulary, expansions);
        let utterances = prop::collection::vec(utterance(frames, vocabulary as u32), count);
        (Just(automaton), Just(expansions), Just(axes), utterances)
    });
    (all, [0usize..3, 0usize..3], prop_oneof![Just(1.0 / 1024.0), Just(1.0)], any::<u64>()).prop_map(
        |((automaton, expansions, axes, utterances), padding, step, seed)| Batch {
            automaton,
            expansions,
            utterances,
            axes,
            padding,
            step,
            seed,
        },
    )
}
