//! Golden test of decoders: one function runs and compares each decoder.
use std::sync::Arc;

use decoding::{
    BeamSearch, Confidence, ConfidenceMeasure, Fusion, GreedySearch, GreedyStream, Hypotheses,
    NetworkScratch, Scorer, frame_looping, unpad,
};
use rnnt_loss::{Head, JointInputs, Options, Session, Targets};

use super::{
    DecodingCase, DecodingCheck, ExpectedAlignment, ExpectedChunk, ExpectedGreedy, ExpectedNBestEntry,
    Result, SCORE_TOLERANCE, SUM_TOLERANCE,
};

/// Numbers of frames whose joint scores are computed in one product.
const LOOK_AHEADS: [usize; 3] = [1, 5, 32];
/// Exponent of the confidence measures in the cases; names that end in `_a1` have 1.
const CONFIDENCE_EXPONENT: f64 = 0.33;

impl DecodingCase {
    /// Returns the frames of each utterance.
    fn utterances(&self) -> Vec<&[f32]> {
        unpad(&self.frames, self.model.frame_width(), &self.sidecar.lengths).unwrap_or_default()
    }
}

/// Returns greedy options with a record of the joint evaluations.
fn greedy_options(max_symbols: Option<usize>) -> decoding::GreedyOptions {
    decoding::GreedyOptions { max_symbols, record_steps: true, ..decoding::GreedyOptions::default() }
}

/// Compares labels, times and scores.
///
/// With `compare_steps`, also compares the site of every joint evaluation.
fn compare_hypotheses(
    actual: &Hypotheses,
    expected: &[ExpectedGreedy],
    compare_steps: bool,
    check: &mut DecodingCheck,
) {
    check.expect_equal("utterances", actual.len(), expected.len());
    for (b, expected) in expected.iter().enumerate().take(actual.len()) {
        check.set_location(format!("utterance {b}"));
        // Labels, times and scores.
        let labels = actual.labels(b);
        check.expect_equal("tokens", &actual.get(b).ids(), &expected.tokens);
        check.expect_equal(
            "timestamps",
            &labels.iter().map(|label| label.frame).collect(),
            &expected.timestamps,
        );
        check.expect_close(
            "token_logp",
            labels.iter().map(|label| label.log_prob),
            &expected.token_logp,
            SCORE_TOLERANCE,
        );
        let logits = labels.iter().map(|label| f64::from(label.logit));
        check.expect_close("token_logit", logits, &expected.token_logit, SCORE_TOLERANCE);
        check.expect_close(
            "score_logp_sum",
            [actual.get(b).score()],
            &[expected.score_logp_sum],
            SUM_TOLERANCE,
        );
        check.expect_close(
            "score_logit_sum",
            [actual.get(b).logit_sum()],
            &[expected.score_logit_sum],
            SUM_TOLERANCE,
        );
        // Durations, and joint evaluations.
        if let Some(durations) = &expected.durations {
            check.expect_equal("durations", &labels.iter().map(|label| label.duration).collect(), durations);
            let log_probs = labels.iter().map(|label| label.duration_log_prob);
            check.expect_close("duration_logp", log_probs, &expected.duration_logp, SCORE_TOLERANCE);
        }
        if let Some(end) = expected.end_time {
            check.expect_equal("end_time", actual.end_frame(b), end);
        }
        if compare_steps {
            check.expect_equal("joint_steps", actual.steps(b).len(), expected.joint_steps);
            for (actual, expected) in actual.steps(b).iter().zip(&expected.steps) {
                // Frame, class, log-probability and, with durations, frames to advance.
                let exact = [actual.frame as f64, f64::from(actual.class)];
                check.expect_close("steps", exact, &expected[..expected.len().min(2)], 0.0);
                check.expect_close(
                    "steps",
                    [actual.log_prob],
                    expected.get(2..3).unwrap_or_default(),
                    SCORE_TOLERANCE,
                );
                if let Some(frames) = expected.get(3) {
                    check.expect_close("steps", [actual.frames as f64], &[*frames], 0.0);
                }
            }
        }
    }
}

/// Checks all variants of greedy search and all confidence measures.
///
/// Label looping one frame at a time and with look-ahead, frame looping, and single utterances.
pub(super) fn check_greedy(
    case: &DecodingCase,
    max_symbols: Option<usize>,
    expected: &[ExpectedGreedy],
    check: &mut DecodingCheck,
) {
    let (frames, options) = (case.utterances(), greedy_options(max_symbols));
    // Label looping.
    for look_ahead in LOOK_AHEADS {
        let options = decoding::GreedyOptions { look_ahead, ..options.clone() };
        decode_and_compare(case, options, check, |actual, check| {
            compare_hypotheses(actual, expected, true, check)
        });
    }
    // Frame looping, which records no steps.
    let without_steps = decoding::GreedyOptions { record_steps: false, ..options.clone() };
    if let Some(actual) = check.expect_ok(frame_looping(&case.model, &frames, &without_steps)) {
        compare_hypotheses(&actual, expected, false, check);
    }
    // One utterance at a time.
    for (b, (frames, expected)) in frames.iter().zip(expected).enumerate() {
        check.set_location(format!("single utterance {b}"));
        if let Some(actual) = check.expect_ok(decoding::greedy(&case.model, frames, &options)) {
            check.expect_equal("tokens", &actual.ids(), &expected.tokens);
            check.expect_equal(
                "timestamps",
                &actual.labels.iter().map(|l| l.frame).collect(),
                &expected.timestamps,
            );
        }
    }
    // Confidence measures with both exponents of the reference.
    let measures = ConfidenceMeasure::ALL
        .map(|measure| (measure.name().replace('-', "_"), measure, CONFIDENCE_EXPONENT));
    for (name, measure, exponent) in
        measures.into_iter().chain([("max_prob_a1".into(), ConfidenceMeasure::MaxProb, 1.0)])
    {
        if expected.iter().all(|expected| !expected.confidence.contains_key(&name)) {
            continue;
        }
        let confidence = Some(Confidence { measure, exponent });
        decode_and_compare(
            case,
            decoding::GreedyOptions { confidence, ..options.clone() },
            check,
            |actual, check| {
                for (b, expected) in expected.iter().enumerate() {
                    check.set_location(format!("utterance {b} {name}"));
                    let confidences = expected.confidence.get(&name).map_or(&[][..], Vec::as_slice);
                    check.expect_close(
                        "confidence",
                        actual.labels(b).iter().map(|l| l.confidence),
                        confidences,
                        SCORE_TOLERANCE,
                    );
                }
            },
        );
    }
}

/// Decodes all utterances and passes the hypotheses to `compare`.
fn decode_and_compare(
    case: &DecodingCase,
    options: decoding::GreedyOptions,
    check: &mut DecodingCheck,
    compare: impl FnOnce(&Hypotheses, &mut DecodingCheck),
) {
    let Some(mut search) = check.expect_ok(GreedySearch::new(case.model.clone(), options)) else { return };
    if let Some(actual) = check.expect_ok(search.decode(&case.utterances())) {
        compare(actual, check);
    }
}

/// Log-probabilities `[V + 1, V]` of the next label (column) after a label (row).
///
/// Neither axis contains the blank; row V is the start of the sequence.
#[derive(Debug)]
struct Bigram {
    table: Vec<f32>,
    /// Number of labels, V.
    label_count: usize,
    blank: u32,
}

impl Scorer for Bigram {
    fn start(&self) -> u32 {
        self.label_count as u32
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let label = class - u32::from(class > self.blank);
        (self.table[state as usize * self.label_count + label as usize], label)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let labels = scores.iter_mut().zip(0..).filter(|(_, class)| *class != self.blank);
        labels.for_each(|(score, class)| *score += weight * self.step(state, class).0);
    }

    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

/// Checks greedy search with shallow fusion of a bigram language model.
pub(super) fn check_greedy_with_lm(
    case: &DecodingCase,
    max_symbols: Option<usize>,
    weight: f32,
    expected: &[ExpectedGreedy],
    check: &mut DecodingCheck,
) -> Result<()> {
    let table = case.read_f32("lm.log_prob")?;
    let (label_count, blank) = (case.sidecar.model.vocab, case.sidecar.model.blank);
    check.expect_equal("lm.log_prob", table.len(), (label_count + 1) * label_count);
    if check.failure.is_none() {
        let fusion = vec![Fusion { scorer: Arc::new(Bigram { table, label_count, blank }), weight }];
        let options = decoding::GreedyOptions { fusion, ..greedy_options(max_symbols) };
        decode_and_compare(case, options, check, |actual, check| {
            compare_hypotheses(actual, expected, true, check)
        });
    }
    Ok(())
}

/// Checks streaming: greedy search that receives `chunk` frames at a time.
pub(super) fn check_chunked_greedy(
    case: &DecodingCase,
    max_symbols: Option<usize>,
    chunk: usize,
    expected: &[Vec<ExpectedChunk>],
    check: &mut DecodingCheck,
) {
    let (frames, width) = (case.utterances(), case.model.frame_width());
    let Some(mut search) =
        check.expect_ok(GreedySearch::new(case.model.clone(), greedy_options(max_symbols)))
    else {
        return;
    };
    let mut streams: Vec<GreedyStream> = frames.iter().map(|_| search.stream()).collect();
    let chunk_count = expected.iter().map(Vec::len).max().unwrap_or(0);
    for chunk_index in 0..chunk_count {
        let chunk_start =
            |frames: &&[f32], index: usize| (index.saturating_mul(chunk * width)).min(frames.len());
        let chunks: Vec<&[f32]> =
            frames.iter().map(|f| &f[chunk_start(f, chunk_index)..chunk_start(f, chunk_index + 1)]).collect();
        let mut batch: Vec<&mut GreedyStream> = streams.iter_mut().collect();
        let Some(actual) = check.expect_ok(search.advance(&mut batch, &chunks)) else { return };
        for (b, expected) in expected.iter().enumerate().take(chunks.len()) {
            let Some(expected) = expected.get(chunk_index) else { continue };
            check.set_location(format!("utterance {b} chunk {chunk_index}"));
            check.expect_equal("tokens", &actual.get(b).ids(), &expected.tokens);
            let times = actual.labels(b).iter().map(|label| label.frame).collect();
            check.expect_equal("timestamps", &times, &expected.timestamps);
            check.expect_equal("time_jump", batch[b].skipped_frames(), expected.time_jump);
        }
    }
}

/// Checks the n-best lists of modified beam search.
///
/// It emits at most one label per frame.
pub(super) fn check_modified_beam(
    case: &DecodingCase,
    options: decoding::BeamOptions,
    expected: &[Vec<ExpectedNBestEntry>],
    check: &mut DecodingCheck,
) {
    let Some(mut search) = check.expect_ok(BeamSearch::new(case.model.clone(), options)) else { return };
    let Some(actual) = check.expect_ok(search.decode(&case.utterances())) else { return };
    check.expect_equal("utterances", actual.len(), expected.len());
    for (b, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        check.set_location(format!("utterance {b}"));
        check.expect_equal("hypotheses", actual.hypotheses.len(), expected.len());
        for (rank, (actual, expected)) in actual.hypotheses.iter().zip(expected).enumerate() {
            check.set_location(format!("utterance {b} hypothesis {rank}"));
            check.expect_equal("tokens", &actual.ids(), &expected.tokens);
            let times = actual.labels.iter().map(|label| label.frame).collect();
            check.expect_equal("timestamps", &times, &expected.timestamps);
            check.expect_close("log_prob", [actual.log_prob], &[expected.log_prob], SUM_TOLERANCE);
            check.expect_close("norm_score", [actual.score], &[expected.norm_score], SCORE_TOLERANCE);
        }
    }
}

/// Checks best paths and sums over all paths of a training session.
pub(super) fn check_forced_alignment(
    case: &DecodingCase,
    expected: &[Option<ExpectedAlignment>],
    check: &mut DecodingCheck,
) -> Result<()> {
    let width = case.model.frame_width();
    let (weight, bias) = (case.read_f32("out.weight")?, case.read_f32("out.bias")?);
    let activation = case.network.activation();
    for (b, (frames, expected)) in case.utterances().into_iter().zip(expected).enumerate() {
        check.set_location(format!("utterance {b}"));
        let Some(expected) = expected else {
            check.expect_equal("frames", frames.len(), 0);
            continue;
        };
        // Projected predictor rows of all label positions.
        let (start_states, start_row) = case.model.start();
        let (mut states, mut label_rows) = (start_states.clone(), start_row.to_vec());
        let mut predicted = vec![0.0; case.model.predictor().width()];
        let mut projected = vec![0.0; width];
        for &label in &expected.labels {
            case.model.predictor().step(
                &[label],
                &mut states,
                &mut predicted,
                &mut NetworkScratch::default(),
            );
            case.model.joint().project(&predicted, &mut projected, &mut NetworkScratch::default());
            label_rows.extend_from_slice(&projected);
        }
        // Best path and sum over all paths.
        let actual = (|| -> rnnt_loss::Result<_> {
            let head = Head::new(&weight, Some(&bias), width)?;
            let joint = JointInputs::new(frames, &label_rows, head);
            let targets = Targets::new(
                case.sidecar.model.blank,
                vec![frames.len() / width],
                vec![expected.labels.clone()],
            )?;
            Session::new(&Options { activation, ..Options::default() })?.align(&joint, &targets)
        })();
        let Some(actual) = check.expect_ok(actual) else { continue };
        let Some(Some(actual)) = actual.into_iter().next() else {
            check.fail("path", "expected one, found none".into());
            continue;
        };
        check.expect_close("total_logp", [-actual.loss], &[expected.total_logp], SUM_TOLERANCE);
        check.expect_close("best_logp", [actual.log_prob], &[expected.best_logp], SUM_TOLERANCE);
        if expected.path_stable_in_f32 {
            check.expect_equal(
                "timestamps",
                &actual.labels.iter().map(|t| t.frame).collect(),
                &expected.timestamps,
            );
        }
    }
    Ok(())
}
