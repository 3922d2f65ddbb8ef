//! Each kind of decoding, run and compared.
use std::sync::Arc;

use decoding::{
    BeamSearch, Confidence, ConfidenceMeasure, Fusion, GreedySearch, GreedyStream, Hypotheses,
    NetworkScratch, Scorer, frame_looping, unpad,
};
use rnnt_loss::{Head, JointInputs, Options, Session, Targets};

use super::{AlignedCase, Check, Chunk, DecodingCase, GreedyCase, RankedCase, Result, SCORES, SUMS};

impl DecodingCase {
    /// The rows of each utterance.
    fn utterances(&self) -> Vec<&[f32]> {
        unpad(&self.frames, self.model.width(), &self.sidecar.lengths).unwrap_or_default()
    }
}

fn options(max_symbols: Option<usize>) -> decoding::GreedyOptions {
    decoding::GreedyOptions { max_symbols, record_steps: true, ..decoding::GreedyOptions::default() }
}

fn compare(found: &Hypotheses, expected: &[GreedyCase], steps: bool, check: &mut Check) {
    check.same("utterances", found.len(), expected.len());
    for (b, expected) in expected.iter().enumerate().take(found.len()) {
        check.at(format!("utterance {b}"));
        let labels = found.labels(b);
        check.same("tokens", &found.get(b).ids(), &expected.tokens);
        check.same("timestamps", &labels.iter().map(|label| label.frame).collect(), &expected.timestamps);
        check.close("token_logp", labels.iter().map(|label| label.log_prob), &expected.token_logp, SCORES);
        let logits = labels.iter().map(|label| f64::from(label.logit));
        check.close("token_logit", logits, &expected.token_logit, SCORES);
        check.close("score_logp_sum", [found.get(b).score()], &[expected.score_logp_sum], SUMS);
        check.close("score_logit_sum", [found.get(b).logits()], &[expected.score_logit_sum], SUMS);
        if let Some(durations) = &expected.durations {
            check.same("durations", &labels.iter().map(|label| label.duration).collect(), durations);
            let log_probs = labels.iter().map(|label| label.duration_log_prob);
            check.close("duration_logp", log_probs, &expected.duration_logp, SCORES);
        }
        if let Some(end) = expected.end_time {
            check.same("end_time", found.end_frame(b), end);
        }
        if steps {
            check.same("joint_steps", found.steps(b).len(), expected.joint_steps);
            for (found, expected) in found.steps(b).iter().zip(&expected.steps) {
                let exact = [found.frame as f64, f64::from(found.class)];
                check.close("steps", exact, &expected[..expected.len().min(2)], 0.0);
                check.close("steps", [found.log_prob], expected.get(2..3).unwrap_or_default(), SCORES);
                if let Some(frames) = expected.get(3) {
                    check.close("steps", [found.frames as f64], &[*frames], 0.0);
                }
            }
        }
    }
}

/// Label-looping one frame at a time and with look-ahead, frame-looping, one utterance at a time, and every measure of confidence.
pub(super) fn greedy(
    case: &DecodingCase,
    max_symbols: Option<usize>,
    expected: &[GreedyCase],
    check: &mut Check,
) {
    let (frames, options) = (case.utterances(), options(max_symbols));
    for look_ahead in [1, 5, 32] {
        let options = decoding::GreedyOptions { look_ahead, ..options.clone() };
        search(case, options, check, |found, check| compare(found, expected, true, check));
    }
    let without_steps = decoding::GreedyOptions { record_steps: false, ..options.clone() };
    if let Some(found) = check.outcome(frame_looping(&case.model, &frames, &without_steps)) {
        compare(&found, expected, false, check);
    }
    for (b, (frames, expected)) in frames.iter().zip(expected).enumerate() {
        check.at(format!("utterance {b} alone"));
        if let Some(found) = check.outcome(decoding::greedy(&case.model, frames, &options)) {
            check.same("tokens", &found.ids(), &expected.tokens);
            check.same("timestamps", &found.labels.iter().map(|l| l.frame).collect(), &expected.timestamps);
        }
    }
    let measures = ConfidenceMeasure::ALL.map(|measure| (measure.name().replace('-', "_"), measure, 0.33));
    for (name, measure, exponent) in
        measures.into_iter().chain([("max_prob_a1".into(), ConfidenceMeasure::MaxProb, 1.0)])
    {
        if expected.iter().all(|expected| !expected.confidence.contains_key(&name)) {
            continue;
        }
        let confidence = Some(Confidence { measure, exponent });
        search(case, decoding::GreedyOptions { confidence, ..options.clone() }, check, |found, check| {
            for (b, expected) in expected.iter().enumerate() {
                check.at(format!("utterance {b} {name}"));
                let wanted = expected.confidence.get(&name).map_or(&[][..], Vec::as_slice);
                check.close("confidence", found.labels(b).iter().map(|l| l.confidence), wanted, SCORES);
            }
        });
    }
}

fn search(
    case: &DecodingCase,
    options: decoding::GreedyOptions,
    check: &mut Check,
    compare: impl FnOnce(&Hypotheses, &mut Check),
) {
    let Some(mut search) = check.outcome(GreedySearch::new(case.model.clone(), options)) else { return };
    if let Some(found) = check.outcome(search.decode(&case.utterances())) {
        compare(found, check);
    }
}

/// Log-probabilities `[V + 1, V]`: rows are the label before (V: none), columns the next one, both without the blank.
#[derive(Debug)]
struct Bigram {
    table: Vec<f32>,
    labels: usize,
    blank: u32,
}

impl Scorer for Bigram {
    fn start(&self) -> u32 {
        self.labels as u32
    }

    fn step(&self, state: u32, class: u32) -> (f32, u32) {
        let label = class - u32::from(class > self.blank);
        (self.table[state as usize * self.labels + label as usize], label)
    }

    fn add_scores(&self, state: u32, weight: f32, scores: &mut [f32]) {
        let labels = scores.iter_mut().zip(0..).filter(|(_, class)| *class != self.blank);
        labels.for_each(|(score, class)| *score += weight * self.step(state, class).0);
    }

    fn finish(&self, _: u32) -> f32 {
        0.0
    }
}

pub(super) fn fused(
    case: &DecodingCase,
    max_symbols: Option<usize>,
    weight: f32,
    expected: &[GreedyCase],
    check: &mut Check,
) -> Result<()> {
    let table = case.floats("lm.log_prob")?;
    let (labels, blank) = (case.sidecar.model.vocab, case.sidecar.model.blank);
    check.same("lm.log_prob", table.len(), (labels + 1) * labels);
    if check.failure.is_none() {
        let fusion = vec![Fusion { scorer: Arc::new(Bigram { table, labels, blank }), weight }];
        let options = decoding::GreedyOptions { fusion, ..options(max_symbols) };
        search(case, options, check, |found, check| compare(found, expected, true, check));
    }
    Ok(())
}

pub(super) fn chunked(
    case: &DecodingCase,
    max_symbols: Option<usize>,
    chunk: usize,
    expected: &[Vec<Chunk>],
    check: &mut Check,
) {
    let (frames, width) = (case.utterances(), case.model.width());
    let Some(mut search) = check.outcome(GreedySearch::new(case.model.clone(), options(max_symbols))) else {
        return;
    };
    let mut streams: Vec<GreedyStream> = frames.iter().map(|_| search.stream()).collect();
    let rounds = expected.iter().map(Vec::len).max().unwrap_or(0);
    for at in 0..rounds {
        let cut = |frames: &&[f32], at: usize| (at.saturating_mul(chunk * width)).min(frames.len());
        let chunks: Vec<&[f32]> = frames.iter().map(|f| &f[cut(f, at)..cut(f, at + 1)]).collect();
        let mut all: Vec<&mut GreedyStream> = streams.iter_mut().collect();
        let Some(found) = check.outcome(search.advance(&mut all, &chunks)) else { return };
        for (b, expected) in expected.iter().enumerate().take(chunks.len()) {
            let Some(expected) = expected.get(at) else { continue };
            check.at(format!("utterance {b} chunk {at}"));
            check.same("tokens", &found.get(b).ids(), &expected.tokens);
            let times = found.labels(b).iter().map(|label| label.frame).collect();
            check.same("timestamps", &times, &expected.timestamps);
            check.same("time_jump", all[b].jump(), expected.time_jump);
        }
    }
}

pub(super) fn beam(
    case: &DecodingCase,
    options: decoding::BeamOptions,
    expected: &[Vec<RankedCase>],
    check: &mut Check,
) {
    let Some(mut search) = check.outcome(BeamSearch::new(case.model.clone(), options)) else { return };
    let Some(found) = check.outcome(search.decode(&case.utterances())) else { return };
    check.same("utterances", found.len(), expected.len());
    for (b, (found, expected)) in found.iter().zip(expected).enumerate() {
        check.at(format!("utterance {b}"));
        check.same("hypotheses", found.hypotheses.len(), expected.len());
        for (place, (found, expected)) in found.hypotheses.iter().zip(expected).enumerate() {
            check.at(format!("utterance {b} hypothesis {place}"));
            check.same("tokens", &found.ids(), &expected.tokens);
            let times = found.labels.iter().map(|label| label.frame).collect();
            check.same("timestamps", &times, &expected.timestamps);
            check.close("log_prob", [found.log_prob], &[expected.log_prob], SUMS);
            check.close("norm_score", [found.score], &[expected.norm_score], SCORES);
        }
    }
}

/// Best path and sum over all paths, by the session that trains.
pub(super) fn aligned(
    case: &DecodingCase,
    expected: &[Option<AlignedCase>],
    check: &mut Check,
) -> Result<()> {
    let width = case.model.width();
    let (weight, bias) = (case.floats("out.weight")?, case.floats("out.bias")?);
    let activation = case.network.activation();
    for (b, (frames, expected)) in case.utterances().into_iter().zip(expected).enumerate() {
        check.at(format!("utterance {b}"));
        let Some(expected) = expected else {
            check.same("frames", frames.len(), 0);
            continue;
        };
        let (states, row) = case.model.start();
        let (mut states, mut rows) = (states.clone(), row.to_vec());
        let mut predicted = vec![0.0; case.model.predictor().width()];
        let mut next = vec![0.0; width];
        for &label in &expected.labels {
            case.model.predictor().step(
                &[label],
                &mut states,
                &mut predicted,
                &mut NetworkScratch::default(),
            );
            case.model.joint().project(&predicted, &mut next, &mut NetworkScratch::default());
            rows.extend_from_slice(&next);
        }
        let found = (|| -> rnnt_loss::Result<_> {
            let head = Head::new(&weight, Some(&bias), width)?;
            let joint = JointInputs::new(frames, &rows, head);
            let targets = Targets::new(
                case.sidecar.model.blank,
                vec![frames.len() / width],
                vec![expected.labels.clone()],
            )?;
            Session::new(&Options { activation, ..Options::default() })?.align(&joint, &targets)
        })();
        let Some(found) = check.outcome(found) else { continue };
        let Some(Some(found)) = found.into_iter().next() else {
            check.fail("path", "expected one, found none".into());
            continue;
        };
        check.close("total_logp", [-found.loss], &[expected.total_logp], SUMS);
        check.close("best_logp", [found.log_prob], &[expected.best_logp], SUMS);
        if expected.path_stable_in_f32 {
            check.same("timestamps", &found.tokens.iter().map(|t| t.frame).collect(), &expected.timestamps);
        }
    }
    Ok(())
}
