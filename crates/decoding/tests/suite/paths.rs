//! Reference for beam search: sums over all paths of tiny models; scorers for tests.
use std::collections::BTreeMap;

use decoding::{
    BeamKind, BeamOptions, BeamSearch, DecodingModel, NBest, NetworkScratch, RankedHypothesis, Scorer,
    SiteBatch, SiteIndex,
};
use rnnt_dp::Topology;

use super::table_models::random_model;

/// Width that prunes nothing of a tiny model.
pub(crate) const UNPRUNED_WIDTH: usize = 3000;

/// `log(exp(a) + exp(b))`.
pub(crate) fn log_add(a: f64, b: f64) -> f64 {
    let (high, low) = if a > b { (a, b) } else { (b, a) };
    high + (low - high).exp().ln_1p()
}

pub(crate) fn log_softmax(scores: &[f32]) -> Vec<f64> {
    let log_sum = scores.iter().map(|&z| f64::from(z)).reduce(log_add).unwrap_or(0.0);
    scores.iter().map(|&z| f64::from(z) - log_sum).collect()
}

/// Log-probabilities of classes and of durations at a site.
pub(crate) fn site_log_probs(
    model: &DecodingModel,
    rows: &[f32],
    frame: usize,
    labels: &[u32],
) -> (Vec<f64>, Vec<f64>) {
    let (mut states, mut row) = (model.start().0.clone(), model.start().1.to_vec());
    for label in labels {
        let mut predicted = vec![0.0; model.predictor().width()];
        model.predictor().step(&[*label], &mut states, &mut predicted, &mut NetworkScratch::default());
        model.joint().project(&predicted, &mut row, &mut NetworkScratch::default());
    }
    let joint = model.joint();
    let mut scores = vec![0.0; joint.classes() + joint.durations()];
    let sites = [SiteIndex { utterance: 0, frame, label_row: 0 }];
    joint.scores(
        &SiteBatch { frames: &[rows], label_rows: &row, sites: &sites },
        &mut scores,
        &mut NetworkScratch::default(),
    );
    let (tokens, durations) = scores.split_at(joint.classes());
    (log_softmax(tokens), log_softmax(durations))
}

/// Limits on the enumerated paths.
#[derive(Clone, Copy)]
pub(crate) struct PathLimits {
    /// Whether labels advance by a frame in every topology.
    pub labels_advance: bool,
    /// Most labels of a frame; at the limit, the best blank follows.
    pub max_symbols: usize,
    /// Most labels of a path.
    pub max_labels: usize,
}

/// The sum over all paths of each label sequence.
pub(crate) fn sum_over_paths(
    model: &DecodingModel,
    rows: &[f32],
    limits: PathLimits,
) -> BTreeMap<Vec<u32>, f64> {
    let mut sums = BTreeMap::new();
    let start = PathEnd { frame: 0, symbols: 0, log_prob: 0.0 };
    add_paths(model, rows, limits, start, &mut Vec::new(), &mut sums);
    sums
}

/// End of a partial path.
struct PathEnd {
    frame: usize,
    /// Labels on the frame.
    symbols: usize,
    log_prob: f64,
}

/// Adds all continuations of a partial path to the sums; `labels` are those of the path.
fn add_paths(
    model: &DecodingModel,
    rows: &[f32],
    limits: PathLimits,
    PathEnd { frame, symbols, log_prob }: PathEnd,
    labels: &mut Vec<u32>,
    sums: &mut BTreeMap<Vec<u32>, f64>,
) {
    if frame >= rows.len() / model.frame_width() {
        let sum = sums.entry(labels.clone()).or_insert(f64::NEG_INFINITY);
        *sum = if *sum == f64::NEG_INFINITY { log_prob } else { log_add(*sum, log_prob) };
        return;
    }
    let token_table = model.token_table();
    let (tokens, durations) = site_log_probs(model, rows, frame, labels);
    // Class, frames and log-probability of each step.
    let mut steps = Vec::new();
    for class in 0..tokens.len() as u32 {
        for duration in 0..durations.len().max(1) {
            let value = tokens[class as usize] + durations.get(duration).unwrap_or(&0.0);
            steps.push((class, token_table.frame_advance(class, duration), value));
        }
    }
    if symbols >= limits.max_symbols || labels.len() >= limits.max_labels {
        steps.retain(|step| token_table.is_blank(step.0));
    }
    if symbols >= limits.max_symbols {
        // Only the best blank.
        steps.sort_by(|a, b| b.2.total_cmp(&a.2));
        steps.truncate(1);
    }
    for (class, frames, value) in steps {
        let log_prob = log_prob + value;
        if token_table.is_blank(class) {
            let end = PathEnd { frame: frame + frames.max(1), symbols: 0, log_prob };
            add_paths(model, rows, limits, end, labels, sums);
            continue;
        }
        let frames = if limits.labels_advance { 1 } else { frames };
        let symbols = if frames == 0 { symbols + 1 } else { 0 };
        labels.push(class);
        add_paths(model, rows, limits, PathEnd { frame: frame + frames, symbols, log_prob }, labels, sums);
        labels.pop();
    }
}

/// Options of a search whose result has the whole beam.
pub(crate) fn beam_options(kind: BeamKind, width: usize) -> BeamOptions {
    BeamOptions { kind, width, nbest: width, normalize_by_length: false, ..BeamOptions::default() }
}

/// Decodes a batch by a new search.
pub(crate) fn beam_search(model: &DecodingModel, options: &BeamOptions, utterances: &[&[f32]]) -> Vec<NBest> {
    BeamSearch::new(model.clone(), options.clone()).unwrap().decode(utterances).unwrap().to_vec()
}

/// Asserts the sum of each sequence up to a length, best first.
pub(crate) fn assert_sums(
    name: &str,
    actual: &NBest,
    expected: &BTreeMap<Vec<u32>, f64>,
    max_labels: usize,
    tolerance: f64,
) {
    let mut previous_score = f64::INFINITY;
    let is_short = |ranked: &&RankedHypothesis| ranked.labels.len() <= max_labels;
    assert_eq!(actual.hypotheses.iter().filter(is_short).count(), expected.len(), "{name}");
    for ranked in actual.hypotheses.iter().filter(is_short) {
        let sum = expected[&ranked.ids()];
        assert!(
            (ranked.log_prob - sum).abs() <= tolerance,
            "{name} {:?}: {} is not {sum}",
            ranked.ids(),
            ranked.log_prob
        );
        assert!(ranked.score == ranked.log_prob && ranked.score <= previous_score, "{name}");
        previous_score = ranked.score;
    }
}

/// A random model of each topology.
pub(crate) fn random_models(seed: u32, score_scale: f32) -> Vec<(Topology, DecodingModel)> {
    let rnnt = Topology::rnnt();
    let big = rnnt.clone().with_big_blanks(&[2, 3]).unwrap();
    let tdt = Topology::tdt(&[0, 1, 2]).unwrap();
    let tdt_without_0 = Topology::tdt(&[1, 3]).unwrap();
    let big_modified = Topology::modified().with_big_blanks(&[2]).unwrap();
    [
        (rnnt, 3, vec![]),
        (Topology::modified(), 3, vec![]),
        (big, 5, vec![0, 2]),
        (tdt, 3, vec![]),
        (tdt_without_0, 3, vec![]),
        (big_modified, 4, vec![3]),
    ]
    .into_iter()
    .map(|(topology, classes, big_blanks)| {
        let model = random_model(&topology, classes, 1, &big_blanks, seed, score_scale);
        (topology, model)
    })
    .collect()
}

/// mAES with usual parameters.
pub(crate) const MAES: BeamKind = BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 2 };

/// A language model with a state for each last label.
#[derive(Debug)]
pub(crate) struct LastLabelScorer;

impl Scorer for LastLabelScorer {
    fn start(&self) -> u32 {
        99
    }
    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        (-((state * 7 + class * 5) as f32 * 0.37).cos().abs() - 0.1, class)
    }
    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        for (class, score) in scores.iter_mut().enumerate() {
            *score += weight * self.step(state, class as u32).0;
        }
    }
    fn finish(&self, state: u32) -> f32 {
        -0.01 * state as f32
    }
}

/// Forbids a label, or scores it with NaN or infinity.
#[derive(Debug)]
pub(crate) struct LabelTwoScorer(pub f32);

impl Scorer for LabelTwoScorer {
    fn start(&self) -> u32 {
        0
    }
    fn step(&self, _: u32, class: u32) -> (f32, u32) {
        (if class == 2 { self.0 } else { 0.0 }, 0)
    }
    fn add_scores(&self, _: u32, weight: f32, scores: &mut [f32]) {
        scores[2] += weight * self.0;
    }
    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

/// Forbids every label and the end.
#[derive(Debug)]
pub(crate) struct ForbiddingScorer;

impl Scorer for ForbiddingScorer {
    fn start(&self) -> u32 {
        0
    }
    fn step(&self, _: u32, _: u32) -> (f32, u32) {
        (f32::NEG_INFINITY, 0)
    }
    fn add_scores(&self, _: u32, weight: f32, scores: &mut [f32]) {
        scores.iter_mut().for_each(|score| *score += weight * f32::NEG_INFINITY);
    }
    fn finish(&self, _: u32) -> f32 {
        f32::NEG_INFINITY
    }
}
