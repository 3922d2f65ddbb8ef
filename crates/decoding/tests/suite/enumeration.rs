//! Tests of transducer and CTC beam search: results match sums over all alignments.
//!
//! The alignments of thousands of tiny random models are enumerated.
use std::collections::BTreeMap;
use std::sync::Arc;

use decoding::ngram::{Ngram, NgramTable, OutOfVocabulary};
use decoding::{
    BeamKind, BeamOptions, BeamSearch, CtcBeamOptions, DecodingModel, Fusion, JointScorer, NBest,
    NetworkScratch, Phrase, PhraseBooster, Predictor, SiteBatch, States, WordBoundaries, ctc_beam,
};
use rayon::prelude::*;
use rnnt_dp::Topology;

/// Beam width, wider than the number of hypotheses of a tiny model.
const UNPRUNED_WIDTH: usize = 3000;
/// Number of random models of a test.
const MODEL_COUNT: u64 = 10_000;

/// Log-probability of each label sequence.
type SequenceLogProbs = BTreeMap<Vec<u32>, f64>;

/// The predictor's state after a label is `(memory state + label + 1) mod states`.
#[derive(Debug, Clone, Copy)]
struct ModularPredictor {
    ids: usize,
    memory: usize,
    states: usize,
}

impl ModularPredictor {
    fn next(&self, state: usize, label: u32) -> usize {
        (self.memory * state + label as usize + 1) % self.states
    }
}

/// A joint network with the scores `[T, states, C + D]`.
#[derive(Debug, Clone)]
struct TableJoint {
    classes: usize,
    durations: usize,
    predictor: ModularPredictor,
    scores: Arc<Vec<f32>>,
}

impl TableJoint {
    fn row(&self, frame: usize, state: usize) -> &[f32] {
        let width = self.classes + self.durations;
        // Models without frames are evaluated as well.
        let frame = frame.min(self.scores.len() / (width * self.predictor.states) - 1);
        &self.scores[(frame * self.predictor.states + state) * width..][..width]
    }
}

impl JointScorer for TableJoint {
    fn frame_width(&self) -> usize {
        1
    }
    fn prediction_width(&self) -> usize {
        1
    }
    fn label_row_width(&self) -> usize {
        1
    }
    fn classes(&self) -> usize {
        self.classes
    }
    fn durations(&self) -> usize {
        self.durations
    }
    fn project(&self, predicted: &[f32], rows: &mut [f32], _: &mut NetworkScratch) {
        rows.copy_from_slice(predicted);
    }
    fn scores(&self, sites: &SiteBatch, out: &mut [f32], _: &mut NetworkScratch) {
        for (out, &site) in out.chunks_exact_mut(self.classes + self.durations).zip(sites.sites) {
            let (frame, row) = sites.rows_at(site, 1, 1);
            out.copy_from_slice(self.row(frame[0] as usize, row[0] as usize));
        }
    }
}

impl Predictor for ModularPredictor {
    fn width(&self) -> usize {
        1
    }
    fn label_ids(&self) -> usize {
        self.ids
    }
    fn start(&self) -> (States, Vec<f32>) {
        (States::from_row(vec![], vec![0.0]), vec![0.0])
    }
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], _: &mut NetworkScratch) {
        for (state, &label) in states.values_mut().iter_mut().zip(labels) {
            *state = self.next(*state as usize, label) as f32;
        }
        out.copy_from_slice(states.values());
    }
}

/// Random numbers (SplitMix64).
struct RandomNumbers(u64);

impl RandomNumbers {
    fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: usize) -> usize {
        (self.next_bits() % limit as u64) as usize
    }

    fn score(&mut self) -> f32 {
        6.0 * (self.next_bits() >> 40) as f32 / (1u64 << 24) as f32 - 3.0
    }
}

/// A topology as numbers: the frames that each class advances.
#[derive(Debug, Clone)]
struct TopologyCase {
    name: &'static str,
    topology: Topology,
    /// Class, and frames of each blank. Class 0 is the blank.
    blanks: Vec<(u32, usize)>,
    /// Frames that a label advances, without durations.
    label_frames: usize,
    durations: Vec<usize>,
}

fn topology_cases() -> Vec<TopologyCase> {
    let case = |name, topology, blanks: &[(u32, usize)], label_frames, durations: &[usize]| TopologyCase {
        name,
        topology,
        blanks: blanks.to_vec(),
        label_frames,
        durations: durations.to_vec(),
    };
    let tdt = |durations: &[usize]| Topology::tdt(durations).unwrap();
    vec![
        case("rnnt", Topology::rnnt(), &[(0, 1)], 0, &[]),
        case("modified", Topology::modified(), &[(0, 1)], 1, &[]),
        case("multi-blank", Topology::multi_blank(&[2]).unwrap(), &[(0, 1), (1, 2)], 0, &[]),
        case(
            "multi-modified",
            Topology::modified().with_big_blanks(&[2]).unwrap(),
            &[(0, 1), (1, 2)],
            1,
            &[],
        ),
        case("tdt", tdt(&[0, 1]), &[(0, 1)], 0, &[0, 1]),
        case("tdt", tdt(&[0, 1, 2]), &[(0, 1)], 0, &[0, 1, 2]),
        case("tdt", tdt(&[0, 2]), &[(0, 1)], 0, &[0, 2]),
        case("tdt without 0", tdt(&[1, 2]), &[(0, 1)], 0, &[1, 2]),
    ]
}

fn log_softmax(scores: &[f32]) -> Vec<f64> {
    let sum: f64 = scores.iter().map(|&score| f64::from(score).exp()).sum();
    scores.iter().map(|&score| f64::from(score) - sum.ln()).collect()
}

/// Restrictions of the enumerated alignments.
#[derive(Debug, Clone, Copy)]
struct AlignmentLimits {
    /// Most labels on a frame; at the limit, the best blank follows.
    max_symbols: usize,
    /// Most labels.
    max_labels: usize,
    /// Whether labels advance by a frame in every topology.
    labels_advance: bool,
}

/// Recursion over the alignments of an utterance.
struct Enumeration<'a> {
    tables: &'a TableJoint,
    case: &'a TopologyCase,
    limits: AlignmentLimits,
    frames: std::ops::Range<usize>,
    sums: SequenceLogProbs,
}

impl Enumeration<'_> {
    /// Adds the probabilities of all alignments from a frame on to `sums`.
    fn enumerate_from(
        &mut self,
        frame: usize,
        state: usize,
        symbols: usize,
        labels: &mut Vec<u32>,
        log_prob: f64,
    ) {
        if frame >= self.frames.end {
            *self.sums.entry(labels.clone()).or_insert(0.0) += log_prob.exp();
            return;
        }
        let (tokens, durations) = self.tables.row(frame, state).split_at(self.tables.classes);
        let (tokens, durations) = (log_softmax(tokens), log_softmax(durations));
        let duration_scores: Vec<(usize, f64)> = match durations.is_empty() {
            true => vec![(0, 0.0)],
            false => self.case.durations.iter().copied().zip(durations).collect(),
        };
        let is_frame_full = symbols >= self.limits.max_symbols;
        // Blanks; at the limit of labels on the frame, only the best one.
        let mut blanks = Vec::new();
        for &(class, frames) in &self.case.blanks {
            for &(duration, log_prob) in &duration_scores {
                let frames = if self.case.durations.is_empty() { frames } else { duration.max(1) };
                blanks.push((frames, tokens[class as usize] + log_prob));
            }
        }
        if is_frame_full {
            blanks.sort_by(|a, b| b.1.total_cmp(&a.1));
            blanks.truncate(1);
        }
        for (frames, value) in blanks {
            self.enumerate_from(frame + frames, state, 0, labels, log_prob + value);
        }
        // Labels, unless a limit is reached.
        if is_frame_full || labels.len() >= self.limits.max_labels {
            return;
        }
        for label in self.case.blanks.len() as u32..self.tables.classes as u32 {
            for &(duration, duration_log_prob) in &duration_scores {
                let mut frames =
                    if self.case.durations.is_empty() { self.case.label_frames } else { duration };
                if self.limits.labels_advance {
                    frames = 1;
                }
                let value = log_prob + tokens[label as usize] + duration_log_prob;
                let symbols = if frames == 0 { symbols + 1 } else { 0 };
                labels.push(label);
                self.enumerate_from(
                    frame + frames,
                    self.tables.predictor.next(state, label),
                    symbols,
                    labels,
                    value,
                );
                labels.pop();
            }
        }
    }
}

/// Log-probabilities of all label sequences, with fusion scores.
fn enumerate(
    tables: &TableJoint,
    case: &TopologyCase,
    limits: AlignmentLimits,
    frames: std::ops::Range<usize>,
    fusion: &[Fusion],
) -> SequenceLogProbs {
    let mut enumeration =
        Enumeration { tables, case, limits, frames: frames.clone(), sums: SequenceLogProbs::new() };
    enumeration.enumerate_from(frames.start, 0, 0, &mut Vec::new(), 0.0);
    enumeration
        .sums
        .iter()
        .map(|(labels, sum)| (labels.clone(), sum.ln() + fusion_score(labels, fusion)))
        .collect()
}

/// Weighted scores of a complete label sequence.
fn fusion_score(labels: &[u32], fusion: &[Fusion]) -> f64 {
    let score = |fusion: &Fusion| {
        let (mut state, mut sum) = (fusion.scorer.start(), 0.0);
        for &label in labels {
            let (score, next) = fusion.scorer.step(state, label);
            (sum, state) = (sum + f64::from(score), next);
        }
        f64::from(fusion.weight) * (sum + f64::from(fusion.scorer.finish(state)))
    };
    fusion.iter().map(score).sum()
}

/// A language model of order 2.
const ARPA: &str = "\\data\\\nngram 1=4\nngram 2=3\n\\1-grams:\n-0.6 a -0.3\n-0.9 b -0.1\n-0.8 </s>\n-99 <s> -0.2\n\
    \\2-grams:\n-0.2 <s> a\n-0.4 a b\n-0.7 b b\n\\end\\";

/// No fusion, an n-gram, phrases, or both, for labels from `first_label` on.
fn random_fusion(random: &mut RandomNumbers, first_label: u32, classes: usize) -> Vec<Fusion> {
    let name = |class: usize| {
        if class < first_label as usize { "" } else { ["a", "b"][class - first_label as usize] }
    };
    let names: Vec<&str> = (0..classes).map(name).collect();
    let mut fusion: Vec<Fusion> = Vec::new();
    let choice = random.below(4);
    if choice & 1 > 0 {
        let ngram =
            Ngram::new(&NgramTable::read(ARPA.as_bytes()).unwrap(), &names, OutOfVocabulary::Ignore).unwrap();
        fusion.push(Fusion { scorer: Arc::new(ngram), weight: 0.4 });
    }
    if choice & 2 > 0 {
        let labels = classes - first_label as usize;
        let phrases: Vec<Phrase> = (0..1 + random.below(3))
            .map(|_| {
                let tokens =
                    (0..1 + random.below(3)).map(|_| first_label + random.below(labels) as u32).collect();
                Phrase { tokens, score: random.score() / 2.0 }
            })
            .collect();
        // Words, or labels with random word boundaries.
        let is_word = random.below(2) == 0;
        let boundaries: Vec<Option<WordBoundaries>> = (0..classes as u32)
            .map(|class| {
                let random_boundaries =
                    WordBoundaries { before: random.below(2) == 0, after: random.below(3) == 0 };
                (class >= first_label).then_some(if is_word {
                    WordBoundaries::BOTH
                } else {
                    random_boundaries
                })
            })
            .collect();
        let boost = PhraseBooster::with_boundaries(&phrases, &boundaries, 1.0).unwrap();
        fusion.push(Fusion { scorer: Arc::new(boost), weight: 0.7 });
    }
    fusion
}

/// Asserts that the result has the log-probability of every sequence.
fn assert_sums(name: &str, actual: &NBest, expected: &SequenceLogProbs) {
    assert_eq!(actual.hypotheses.len(), expected.len(), "{name}");
    for ranked in &actual.hypotheses {
        let sum = expected[&ranked.ids()];
        assert!((ranked.log_prob - sum).abs() < 1e-4, "{name} {:?} {} {sum}", ranked.ids(), ranked.log_prob);
    }
    assert!(actual.hypotheses.is_sorted_by(|a, b| a.log_prob >= b.log_prob), "{name}");
}

/// Asserts that no sequence exceeds the probability of its alignments.
fn assert_at_most(name: &str, actual: &NBest, expected: &SequenceLogProbs) {
    for ranked in &actual.hypotheses {
        let sum = expected[&ranked.ids()];
        assert!(ranked.log_prob <= sum + 1e-4, "{name} {:?} {} {sum}", ranked.ids(), ranked.log_prob);
    }
}

/// A random model, small enough to enumerate, with two utterances.
struct RandomModel {
    model: DecodingModel,
    tables: TableJoint,
    /// Frames of each utterance.
    utterances: [std::ops::Range<usize>; 2],
    /// Most labels of a frame.
    max_symbols: usize,
}

fn random_model(random: &mut RandomNumbers, case: &TopologyCase) -> RandomModel {
    let (labels, max_symbols) = (1 + random.below(2), 1 + random.below(3));
    // At most 6 labels per utterance, or 4 if there are two different ones.
    let max_frames = if labels == 1 { 6 / max_symbols } else { (4 / max_symbols).max(1) };
    let counts = [random.below(max_frames + 1), random.below(max_frames + 1)];
    let classes = case.blanks.len() + labels;
    let durations = case.durations.len();
    let total = counts[0] + counts[1];
    let predictor = ModularPredictor { ids: classes, memory: 3, states: 5 };
    let scores =
        (0..total.max(1) * predictor.states * (classes + durations)).map(|_| random.score()).collect();
    let tables = TableJoint { classes, durations, predictor, scores: Arc::new(scores) };
    let big_blanks: Vec<u32> = case.blanks[1..].iter().map(|blank| blank.0).collect();
    let model =
        DecodingModel::new(Arc::new(predictor), Arc::new(tables.clone()), 0, &big_blanks, &case.topology);
    let utterances = [0..counts[0], counts[0]..total];
    RandomModel { model: model.unwrap(), tables, utterances, max_symbols }
}

/// Rows of frames: their numbers.
fn frame_rows(frames: &std::ops::Range<usize>) -> Vec<f32> {
    frames.clone().map(|frame| frame as f32).collect()
}

/// Compares searches of a random model with the sums over all alignments.
///
/// `search` returns the algorithm and its limits for a number of labels per frame.
fn check_model(
    random: &mut RandomNumbers,
    case: &TopologyCase,
    search: impl Fn(usize, &mut RandomNumbers) -> (BeamKind, AlignmentLimits),
) {
    let RandomModel { model, tables, utterances, max_symbols } = random_model(random, case);
    let (beam_kind, limits) = search(max_symbols, random);
    let fusion = random_fusion(random, case.blanks.len() as u32, tables.classes);
    let name = format!("{} {beam_kind:?} {utterances:?} {tables:?} {fusion:?}", case.name);
    let expected =
        utterances.each_ref().map(|frames| enumerate(&tables, case, limits, frames.clone(), &fusion));
    let options = BeamOptions {
        kind: beam_kind,
        width: UNPRUNED_WIDTH,
        nbest: UNPRUNED_WIDTH,
        normalize_by_length: false,
        fusion: fusion.clone(),
        ..BeamOptions::default()
    };
    // A beam that prunes nothing finds every sum: in a batch, separately, and frame by frame.
    let chunks = utterances.each_ref().map(frame_rows);
    let mut search = BeamSearch::new(model.clone(), options.clone()).unwrap();
    let actual = search.decode(&[&chunks[0], &chunks[1]]).unwrap().to_vec();
    for (actual, expected) in actual.iter().zip(&expected) {
        assert_sums(&name, actual, expected);
    }
    assert_eq!(search.decode(&[&chunks[1]]).unwrap(), &actual[1..], "alone {name}");
    if beam_kind.supports_streaming() {
        let mut stream = search.stream().unwrap();
        for row in &chunks[0] {
            search.advance(&mut [&mut stream], &[&[*row]]).unwrap();
        }
        assert_eq!(search.finish(&mut [&mut stream]).unwrap(), &actual[..1], "stream {name}");
    }
    // A narrow beam may miss paths.
    let narrow_options = BeamOptions { width: 1 + random.below(4), ..options };
    let actual =
        BeamSearch::new(model, narrow_options).unwrap().decode(&[&chunks[0], &chunks[1]]).unwrap().to_vec();
    for (actual, expected) in actual.iter().zip(&expected) {
        assert_at_most(&name, actual, expected);
    }
}

/// Checks random models of each topology.
fn check_random_models(
    cases: &[TopologyCase],
    seed: u64,
    search: impl Fn(usize, &mut RandomNumbers) -> (BeamKind, AlignmentLimits) + Sync,
) {
    (0..MODEL_COUNT).into_par_iter().for_each(|number| {
        check_model(&mut RandomNumbers(seed << 32 | number), &cases[number as usize % cases.len()], &search);
    });
}

const UNLIMITED: AlignmentLimits = AlignmentLimits { max_symbols: 99, max_labels: 99, labels_advance: false };

#[test]
fn malsd_matches_the_sum_over_all_alignments() {
    check_random_models(&topology_cases(), 1, |max_symbols, _| {
        (BeamKind::Malsd { max_symbols }, AlignmentLimits { max_symbols, ..UNLIMITED })
    });
}

#[test]
fn maes_matches_the_sum_over_all_alignments() {
    check_random_models(&topology_cases()[..1], 2, |max_symbols, random| {
        let (beta, prefix) = (random.below(3), random.below(4));
        let kind = BeamKind::Maes { expansions: max_symbols, beta, gamma: f64::INFINITY, prefix };
        (kind, AlignmentLimits { max_symbols, ..UNLIMITED })
    });
}

#[test]
fn alsd_matches_the_sum_over_all_alignments() {
    check_random_models(&topology_cases()[..1], 3, |max_symbols, random| {
        let max_labels = max_symbols + random.below(3);
        (BeamKind::Alsd { max_labels: Some(max_labels) }, AlignmentLimits { max_labels, ..UNLIMITED })
    });
}

#[test]
fn modified_matches_the_sum_over_all_alignments() {
    check_random_models(&topology_cases()[..4], 4, |_, _| {
        (BeamKind::Modified, AlignmentLimits { labels_advance: true, ..UNLIMITED })
    });
}

#[test]
fn ctc_matches_the_sum_over_all_paths() {
    (0..MODEL_COUNT).into_par_iter().for_each(|number| {
        let mut random = RandomNumbers(5 << 32 | number);
        let (frames, classes) = (random.below(6), 2 + random.below(2));
        let rows: Vec<f64> = (0..frames)
            .flat_map(|_| log_softmax(&(0..classes).map(|_| random.score()).collect::<Vec<_>>()))
            .collect();
        let fusion = random_fusion(&mut random, 1, classes);
        let mut sums = SequenceLogProbs::new();
        for path in 0..classes.pow(frames as u32) {
            let path: Vec<usize> = (0..frames as u32).map(|t| path / classes.pow(t) % classes).collect();
            let value: f64 = path.iter().enumerate().map(|(t, class)| rows[t * classes + class]).sum();
            let mut labels = path;
            labels.dedup();
            let labels = labels.iter().filter(|&&class| class > 0).map(|&class| class as u32).collect();
            *sums.entry(labels).or_insert(0.0) += value.exp();
        }
        let sums = sums.into_iter().map(|(ids, sum)| (ids.clone(), sum.ln() + fusion_score(&ids, &fusion)));
        let (expected, name) = (sums.collect(), format!("{rows:?} {fusion:?}"));
        let rows: Vec<f32> = rows.iter().map(|&value| value as f32).collect();
        let options = CtcBeamOptions {
            width: UNPRUNED_WIDTH,
            nbest: UNPRUNED_WIDTH,
            fusion,
            ..CtcBeamOptions::default()
        };
        let actual = ctc_beam(&[&[], &rows], classes, &options).unwrap();
        assert_sums(&name, &actual[1], &expected);
        let narrow_options = CtcBeamOptions { width: 1 + random.below(4), ..options };
        assert_at_most(&name, &ctc_beam(&[&rows], classes, &narrow_options).unwrap()[0], &expected);
    });
}

/// The number of labels on a frame restricts the continuations.
#[test]
fn equal_labels_with_different_counts_on_the_frame_are_not_merged() {
    let predictor = ModularPredictor { ids: 3, memory: 0, states: 4 };
    let tables = |durations, scores: &[f32]| TableJoint {
        classes: 3,
        durations,
        predictor,
        scores: Arc::new(scores.to_vec()),
    };
    let rnnt = tables(
        0,
        &[
            -2.0, -1.0, -3.0, -2.0, 1.0, 0.0, 1.0, -2.0, 0.0, 2.0, 2.0, 0.0, 1.0, 3.0, -1.0, 1.0, 1.0, 0.0,
            -1.0, -1.0, 0.0, 1.0, 0.0, 1.0,
        ],
    );
    let tdt = tables(
        2,
        &[
            1.0, 1.0, 0.0, 1.0, 0.0, 0.0, -2.0, 0.0, 0.0, -1.0, -1.0, -2.0, -1.0, -1.0, 1.0, 2.0, 0.0, 1.0,
            1.0, 0.0, 0.0, 1.0, 0.0, 1.0, -2.0, 1.0, -5.0, -3.0, 2.0, -3.0, -1.0, -2.0, 0.0, 3.0, -1.0, -2.0,
            -2.0, 1.0, -2.0, 1.0,
        ],
    );
    for (tables, topology, max_symbols, expected) in [
        (rnnt, Topology::rnnt(), 1, [(vec![1], -1.9351), (vec![1, 2], -2.1701)]),
        (tdt, Topology::tdt(&[0, 1]).unwrap(), 2, [(vec![1, 2, 2], -1.4079), (vec![2, 2], -1.7334)]),
    ] {
        let model = DecodingModel::new(Arc::new(predictor), Arc::new(tables), 0, &[], &topology).unwrap();
        let kind = BeamKind::Malsd { max_symbols };
        let options =
            BeamOptions { kind, width: 64, nbest: 2, normalize_by_length: false, ..BeamOptions::default() };
        let actual = BeamSearch::new(model, options).unwrap().decode(&[&[0.0, 1.0]]).unwrap().to_vec();
        assert_eq!(actual[0].hypotheses.len(), 2);
        for (actual, (ids, log_prob)) in actual[0].hypotheses.iter().zip(expected) {
            assert_eq!(actual.ids(), ids);
            assert!((actual.log_prob - log_prob).abs() < 1e-4, "{ids:?} {}", actual.log_prob);
        }
    }
}
