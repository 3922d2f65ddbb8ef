//! Beam search against lists of all paths, and against one by maps of strings.
use std::collections::{BTreeMap, BTreeSet};

use lattice::{
    AlignmentLattice, BeamOptions, Context, Error, Frames, FullNGram, LabelScorer, LatticeBeamStream,
    LatticeSession, Merge, RecognitionLattice, TableWeightFn, WeightedString,
};

use crate::listing::{Numbers, Tiny, merged, strings};

/// A score for each label behind the one before.
struct Bigrams(Vec<f64>);

impl Bigrams {
    fn new(seed: u64) -> Self {
        let mut numbers = Numbers::new(seed + 1000);
        Self((0..16).map(|_| numbers.number()).collect())
    }

    fn of(&self, labels: &[u32]) -> f64 {
        let before = std::iter::once(&0).chain(labels);
        before.zip(labels).map(|(&before, &label)| self.0[(before * 4 + label) as usize]).sum()
    }
}

impl LabelScorer for Bigrams {
    type State = u32;

    fn start(&self) -> u32 {
        0
    }

    fn score(&self, before: &u32, label: u32) -> (f64, u32) {
        (self.0[(before * 4 + label) as usize], label)
    }
}

/// What stays of some strings: the best by weight and score; none where equal ones are cut apart.
fn kept(
    all: BTreeMap<Vec<u32>, f64>,
    width: usize,
    scores: Option<&Bigrams>,
) -> Option<BTreeMap<Vec<u32>, f64>> {
    let score = |labels: &[u32], weight: f64| weight + scores.map_or(0.0, |scores| scores.of(labels));
    let mut list: Vec<_> = all.into_iter().filter(|(_, weight)| *weight > f64::NEG_INFINITY).collect();
    list.sort_by(|a, b| score(&b.0, b.1).total_cmp(&score(&a.0, a.1)));
    if let Some(first) = list.get(width) {
        let last = &list[width - 1];
        if score(&last.0, last.1) - score(&first.0, first.1) < 1e-9 {
            return None;
        }
    }
    list.truncate(width);
    Some(list.into_iter().collect())
}

fn put(into: &mut BTreeMap<Vec<u32>, f64>, labels: Vec<u32>, weight: f64, merge: Merge) {
    let before = into.get(&labels).copied().unwrap_or(f64::NEG_INFINITY);
    into.insert(labels, merged(vec![before, weight], merge));
}

/// The definition, over maps of strings. `row(t, p)` are the arcs of a state. None where ties decide.
fn plain<'a>(
    (context, alignment, frames): (&dyn Context, AlignmentLattice, usize),
    row: impl Fn(usize, usize) -> &'a [f64],
    (beam, scores): (BeamOptions, Option<&Bigrams>),
) -> Option<Vec<WeightedString>> {
    let mut live = BTreeMap::from([(vec![], 0.0)]);
    for t in 0..frames {
        let (mut ends, mut level) = (BTreeMap::new(), live);
        for i in 0..=alignment.expansions().unwrap_or(0) {
            let mut longer = BTreeMap::new();
            for (labels, weight) in &level {
                let state = *lattice::context::walk_states(context, labels).unwrap().last().unwrap();
                let row = row(t, state);
                put(&mut ends, labels.clone(), weight + row[0], beam.merge);
                for (label, w) in row.iter().enumerate().skip(1) {
                    let string = [&labels[..], &[label as u32]].concat();
                    match alignment.expansions() {
                        None => put(&mut ends, string, weight + w, beam.merge),
                        Some(most) if i < most => put(&mut longer, string, weight + w, beam.merge),
                        Some(_) => {}
                    }
                }
            }
            level = kept(longer, beam.width, scores)?;
        }
        live = kept(ends, beam.width, scores)?;
    }
    let of = |(labels, weight): (Vec<u32>, f64)| {
        let weight = weight + scores.map_or(0.0, |scores| scores.of(&labels));
        WeightedString { labels, weight }
    };
    let mut list: Vec<_> = live.into_iter().map(of).collect();
    list.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    Some(list)
}

fn assert_close(found: &[WeightedString], expected: &[WeightedString], seed: u64) {
    assert_eq!(found.len(), expected.len(), "seed {seed}");
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.weight - expected.weight).abs() < 1e-9, "seed {seed}: {found:?}, not {expected:?}");
    }
}

#[test]
fn a_wide_beam_finds_all_strings() {
    for seed in 0..300 {
        let (tiny, scores) = (Tiny::new(seed), Bigrams::new(seed));
        for merge in [Merge::Max, Merge::Sum] {
            let beam = BeamOptions { width: 300, merge };
            let (plain, fused) = tiny
                .with(|session, lattice, frames| {
                    let plain = session.beam_search(lattice, frames, beam, &())?;
                    Ok((plain, session.beam_search(lattice, frames, beam, &scores)?))
                })
                .unwrap();
            for utterance in 0..tiny.lengths.len() {
                let all = strings(tiny.paths(utterance), merge);
                assert_eq!(plain[utterance].len(), all.len(), "seed {seed}");
                for found in &plain[utterance] {
                    assert!((found.weight - all[&found.labels]).abs() < 1e-12, "seed {seed}: {found:?}");
                }
                for found in &fused[utterance] {
                    let expected = all[&found.labels] + scores.of(&found.labels);
                    assert!((found.weight - expected).abs() < 1e-12, "seed {seed}: {found:?}");
                }
                for found in [&plain[utterance], &fused[utterance]] {
                    assert!(found.is_sorted_by(|a, b| a.weight >= b.weight), "seed {seed}");
                }
            }
        }
    }
}

#[test]
fn a_narrow_beam_keeps_what_the_definition_keeps() {
    let mut looked_at = 0;
    for seed in 0..600 {
        let (tiny, scores) = (Tiny::new(seed), Bigrams::new(seed));
        for (merge, width) in [(Merge::Max, 1), (Merge::Sum, 1), (Merge::Sum, 2), (Merge::Max, 5)] {
            let beam = BeamOptions { width, merge };
            for scores in [None, Some(&scores)] {
                let found = tiny.with(|session, lattice, frames| match scores {
                    None => session.beam_search(lattice, frames, beam, &()),
                    Some(scores) => session.beam_search(lattice, frames, beam, scores),
                });
                for (utterance, found) in found.unwrap().iter().enumerate() {
                    let kind = (&*tiny.context, tiny.alignment, tiny.lengths[utterance]);
                    let row = |t, p| tiny.row(utterance, t, p);
                    let Some(expected) = plain(kind, row, (beam, scores)) else { continue };
                    assert_close(found, &expected, seed);
                    let labels = |list: &[WeightedString]| {
                        list.iter().map(|one| one.labels.clone()).collect::<BTreeSet<_>>()
                    };
                    assert_eq!(labels(found), labels(&expected), "seed {seed}");
                    looked_at += 1;
                }
            }
        }
    }
    assert!(looked_at > 1000);
}

/// A table of many frames, in which strings become long.
fn long(seed: u64, frames: usize, context: &FullNGram) -> Vec<f64> {
    let mut numbers = Numbers::new(seed);
    (0..frames * context.states() * (1 + context.vocabulary())).map(|_| numbers.number()).collect()
}

#[test]
fn a_stream_ends_as_the_whole_however_it_is_cut() {
    const FRAMES: usize = 1500;
    let context = FullNGram::new(3, 1).unwrap();
    for (seed, alignment) in
        [(1, AlignmentLattice::FrameDependent), (2, AlignmentLattice::frame_label_dependent(2).unwrap())]
    {
        let (weights, scores) = (long(seed, FRAMES, &context), Bigrams::new(seed));
        let table = TableWeightFn::new(&weights, &[FRAMES, 4, 4]).unwrap();
        let lattice = RecognitionLattice::new(&context, alignment, &table).unwrap();
        let rows: Vec<f64> = (0..FRAMES).map(|t| t as f64).collect();
        let frames = Frames::new(&rows, &[1, FRAMES, 1], &[FRAMES]).unwrap();
        let beam = BeamOptions { width: 6, merge: Merge::Sum };
        let mut session = LatticeSession::default();
        let whole = session.beam_search(&lattice, &frames, beam, &scores).unwrap().remove(0);
        let row = |t: usize, p: usize| &weights[(t * 4 + p) * 4..][..4];
        let expected = plain((&context, alignment, FRAMES), row, (beam, Some(&scores))).expect("no ties");
        assert_close(&whole, &expected, seed);
        assert_eq!(whole[0].labels, expected[0].labels);
        for size in [1, 7, 400, FRAMES] {
            let mut stream = LatticeBeamStream::new(&lattice, beam, &scores).unwrap();
            rows.chunks(size).for_each(|rows| stream.push(rows).unwrap());
            assert_eq!(stream.hypotheses(), whole, "chunks of {size}");
        }
    }
}

#[test]
fn what_cannot_be_searched_is_said() {
    struct Broken;
    impl LabelScorer for Broken {
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
    let mut stream = LatticeBeamStream::new(&lattice, beam, &Broken).unwrap();
    assert!(matches!(stream.push(&[0.0]), Err(Error::Fusion { label: 2, .. })));
    let error =
        LatticeBeamStream::new(&lattice, BeamOptions { width: 0, ..beam }, &()).map(drop).unwrap_err();
    assert!(error.to_string().contains("width"), "{error}");
    let mut stream = LatticeBeamStream::new(&lattice, beam, &()).unwrap();
    stream.push(&[0.0]).unwrap();
    assert!(matches!(stream.push(&[0.0, f64::NAN]), Err(Error::Frame { frame: 2, .. })));
    assert!(stream.push(&[1.0]).is_err(), "there is no such row of the table");
    stream.push(&[0.0]).unwrap();
    assert_eq!(stream.hypotheses().len(), 2);
}
