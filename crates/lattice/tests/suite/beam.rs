//! Beam search over lattices compared with all paths and with its definition.
//!
//! A beam that is wide enough must return all strings, a narrow one those of the definition, and a
//! stream those of the batch search.
use std::collections::{BTreeMap, BTreeSet};

use lattice::{
    AlignmentLattice, BeamOptions, Context, Error, Frames, FullNGram, LabelScorer, LatticeBeamStream,
    LatticeSession, Merge, RecognitionLattice, TableWeightFn, WeightedString,
};

use crate::table_lattices::{Random, TableLattice, merged, strings};

/// Largest number of labels, and the start symbol 0.
const SYMBOLS: u32 = 4;

/// A score for each pair of successive labels: *SYMBOLS x SYMBOLS*.
struct Bigrams(Vec<f64>);

impl Bigrams {
    fn new(seed: u64) -> Self {
        let mut numbers = Random::new(seed + 1000);
        Self((0..SYMBOLS * SYMBOLS).map(|_| numbers.number()).collect())
    }

    fn total_score(&self, labels: &[u32]) -> f64 {
        let previous_labels = std::iter::once(&0).chain(labels);
        previous_labels
            .zip(labels)
            .map(|(&previous, &label)| self.0[(previous * SYMBOLS + label) as usize])
            .sum()
    }
}

impl LabelScorer for Bigrams {
    type State = u32;

    fn start(&self) -> u32 {
        0
    }

    fn score(&self, previous: &u32, label: u32) -> (f64, u32) {
        (self.0[(previous * SYMBOLS + label) as usize], label)
    }
}

/// Returns the best strings by weight and score.
///
/// None if equal scores are separated.
fn keep_best(
    strings: BTreeMap<Vec<u32>, f64>,
    width: usize,
    scores: Option<&Bigrams>,
) -> Option<BTreeMap<Vec<u32>, f64>> {
    let score =
        |labels: &[u32], weight: f64| weight + scores.map_or(0.0, |scores| scores.total_score(labels));
    let mut sorted: Vec<_> = strings.into_iter().filter(|(_, weight)| *weight > f64::NEG_INFINITY).collect();
    sorted.sort_by(|a, b| score(&b.0, b.1).total_cmp(&score(&a.0, a.1)));
    if let Some(best_pruned) = sorted.get(width) {
        let worst_kept = &sorted[width - 1];
        if score(&worst_kept.0, worst_kept.1) - score(&best_pruned.0, best_pruned.1) < 1e-9 {
            return None;
        }
    }
    sorted.truncate(width);
    Some(sorted.into_iter().collect())
}

fn merge_into(strings: &mut BTreeMap<Vec<u32>, f64>, labels: Vec<u32>, weight: f64, merge: Merge) {
    let earlier_weight = strings.get(&labels).copied().unwrap_or(f64::NEG_INFINITY);
    strings.insert(labels, merged(vec![earlier_weight, weight], merge));
}

/// Beam search by its definition, over maps of strings.
///
/// `row(t, p)` are the arcs of a state. None if ties decide.
fn reference<'a>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    frames: usize,
    row: impl Fn(usize, usize) -> &'a [f64],
    beam: BeamOptions,
    scores: Option<&Bigrams>,
) -> Option<Vec<WeightedString>> {
    let mut hypotheses = BTreeMap::from([(vec![], 0.0)]);
    for t in 0..frames {
        let (mut frame_ends, mut level) = (BTreeMap::new(), hypotheses);
        for i in 0..=alignment.expansions().unwrap_or(0) {
            let mut extended = BTreeMap::new();
            for (labels, weight) in &level {
                let state = *lattice::context::walk_states(context, labels).unwrap().last().unwrap();
                let row = row(t, state);
                merge_into(&mut frame_ends, labels.clone(), weight + row[0], beam.merge);
                for (label, w) in row.iter().enumerate().skip(1) {
                    let string = [&labels[..], &[label as u32]].concat();
                    match alignment.expansions() {
                        None => merge_into(&mut frame_ends, string, weight + w, beam.merge),
                        Some(limit) if i < limit => merge_into(&mut extended, string, weight + w, beam.merge),
                        Some(_) => {}
                    }
                }
            }
            level = keep_best(extended, beam.width, scores)?;
        }
        hypotheses = keep_best(frame_ends, beam.width, scores)?;
    }
    let with_scores = |(labels, weight): (Vec<u32>, f64)| {
        let weight = weight + scores.map_or(0.0, |scores| scores.total_score(&labels));
        WeightedString { labels, weight }
    };
    let mut strings: Vec<_> = hypotheses.into_iter().map(with_scores).collect();
    strings.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    Some(strings)
}

fn assert_close(computed: &[WeightedString], expected: &[WeightedString], seed: u64) {
    assert_eq!(computed.len(), expected.len(), "seed {seed}");
    for (computed, expected) in computed.iter().zip(expected) {
        assert!(
            (computed.weight - expected.weight).abs() < 1e-9,
            "seed {seed}: {computed:?}, not {expected:?}"
        );
    }
}

#[test]
fn a_wide_beam_finds_all_strings() {
    for seed in 0..300 {
        let (tiny, scores) = (TableLattice::new(seed), Bigrams::new(seed));
        for merge in [Merge::Max, Merge::Sum] {
            let beam = BeamOptions { width: 300, merge };
            let (unfused, fused) = tiny
                .with(|session, lattice, frames| {
                    let unfused = session.beam_search(lattice, frames, beam, &())?;
                    Ok((unfused, session.beam_search(lattice, frames, beam, &scores)?))
                })
                .unwrap();
            for utterance in 0..tiny.lengths.len() {
                let all_strings = strings(tiny.paths(utterance), merge);
                assert_eq!(unfused[utterance].len(), all_strings.len(), "seed {seed}");
                for computed in &unfused[utterance] {
                    assert!(
                        (computed.weight - all_strings[&computed.labels]).abs() < 1e-12,
                        "seed {seed}: {computed:?}"
                    );
                }
                for computed in &fused[utterance] {
                    let expected = all_strings[&computed.labels] + scores.total_score(&computed.labels);
                    assert!((computed.weight - expected).abs() < 1e-12, "seed {seed}: {computed:?}");
                }
                for computed in [&unfused[utterance], &fused[utterance]] {
                    assert!(computed.is_sorted_by(|a, b| a.weight >= b.weight), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn a_narrow_beam_equals_the_definition() {
    let mut comparisons = 0;
    for seed in 0..600 {
        let (tiny, scores) = (TableLattice::new(seed), Bigrams::new(seed));
        for (merge, width) in [(Merge::Max, 1), (Merge::Sum, 1), (Merge::Sum, 2), (Merge::Max, 5)] {
            let beam = BeamOptions { width, merge };
            for scores in [None, Some(&scores)] {
                let computed = tiny.with(|session, lattice, frames| match scores {
                    None => session.beam_search(lattice, frames, beam, &()),
                    Some(scores) => session.beam_search(lattice, frames, beam, scores),
                });
                for (utterance, computed) in computed.unwrap().iter().enumerate() {
                    let frames = tiny.lengths[utterance];
                    let row = |t, p| tiny.row(utterance, t, p);
                    let expected = reference(&*tiny.context, tiny.alignment, frames, row, beam, scores);
                    let Some(expected) = expected else { continue };
                    assert_close(computed, &expected, seed);
                    let labels = |list: &[WeightedString]| {
                        list.iter().map(|string| string.labels.clone()).collect::<BTreeSet<_>>()
                    };
                    assert_eq!(labels(computed), labels(&expected), "seed {seed}");
                    comparisons += 1;
                }
            }
        }
    }
    assert!(comparisons > 1000);
}

/// Returns a table of many frames, for long strings.
fn random_table(seed: u64, frames: usize, context: &FullNGram) -> Vec<f64> {
    let mut numbers = Random::new(seed);
    (0..frames * context.states() * (1 + context.vocabulary())).map(|_| numbers.number()).collect()
}

#[test]
fn a_stream_equals_the_batch_search_for_any_chunk_size() {
    const FRAMES: usize = 1500;
    let context = FullNGram::new(3, 1).unwrap();
    for (seed, alignment) in
        [(1, AlignmentLattice::FrameDependent), (2, AlignmentLattice::frame_label_dependent(2).unwrap())]
    {
        let (weights, scores) = (random_table(seed, FRAMES, &context), Bigrams::new(seed));
        let table = TableWeightFn::new(&weights, &[FRAMES, 4, 4]).unwrap();
        let lattice = RecognitionLattice::new(&context, alignment, &table).unwrap();
        let rows: Vec<f64> = (0..FRAMES).map(|t| t as f64).collect();
        let frames = Frames::new(&rows, &[1, FRAMES, 1], &[FRAMES]).unwrap();
        let beam = BeamOptions { width: 6, merge: Merge::Sum };
        let mut session = LatticeSession::default();
        let batch = session.beam_search(&lattice, &frames, beam, &scores).unwrap().remove(0);
        let row = |t: usize, p: usize| &weights[(t * 4 + p) * 4..][..4];
        let expected = reference(&context, alignment, FRAMES, row, beam, Some(&scores)).expect("no ties");
        assert_close(&batch, &expected, seed);
        assert_eq!(batch[0].labels, expected[0].labels);
        for size in [1, 7, 400, FRAMES] {
            let mut stream = LatticeBeamStream::new(&lattice, beam, &scores).unwrap();
            rows.chunks(size).for_each(|rows| stream.push(rows).unwrap());
            assert_eq!(stream.hypotheses(), batch, "chunks of {size}");
        }
    }
}

#[test]
fn invalid_arguments_are_reported() {
    struct NanScorer;
    impl LabelScorer for NanScorer {
        type State = ();
        fn start(&self) {}
        fn score(&self, (): &(), label: u32) -> (f64, ()) {
            (if label == 2 { f64::NAN } else { 0.0 }, ())
        }
    }
    let (context, table) =
        (FullNGram::new(2, 0).unwrap(), TableWeightFn::new(&[0.0; 3], &[1, 1, 3]).unwrap());
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let beam = BeamOptions { width: 2, merge: Merge::Max };
    let mut stream = LatticeBeamStream::new(&lattice, beam, &NanScorer).unwrap();
    assert!(matches!(stream.push(&[0.0]), Err(Error::Fusion { label: 2, .. })));
    let error =
        LatticeBeamStream::new(&lattice, BeamOptions { width: 0, ..beam }, &()).map(drop).unwrap_err();
    assert!(error.to_string().contains("width"), "{error}");
    let mut stream = LatticeBeamStream::new(&lattice, beam, &()).unwrap();
    stream.push(&[0.0]).unwrap();
    assert!(matches!(stream.push(&[0.0, f64::NAN]), Err(Error::Frame { frame: 2, .. })));
    assert!(stream.push(&[1.0]).is_err(), "the table has no such row");
    stream.push(&[0.0]).unwrap();
    assert_eq!(stream.hypotheses().len(), 2);
}
