//! Golden test of CTC heads: greedy search and loss from stored log-probabilities.
use decoding::{CtcGreedySearch, Hypothesis};
use serde::Deserialize;

use super::check::NemoCheck;
use crate::error::{Error, RunError};
use crate::mlperf::Tolerance;

/// Relative tolerance of losses from log-probabilities that are stored in f32.
const LOSS_TOLERANCE: f64 = 1e-5;

/// The result of a greedy search in `case.json`.
#[derive(Deserialize)]
struct DecodedUtterance {
    /// Best class of each frame.
    frame_argmax: Vec<u32>,
    tokens: Vec<u32>,
    /// Frame of each token.
    timestamps: Vec<usize>,
}

/// Compares searches and losses of a case with a CTC head.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    let case = check.json("case.json")?;
    let tensors = check.tensors("io.safetensors")?;
    let tensor = |name: &str| {
        tensors.get(name).ok_or_else(|| invalid_case(check, name, "a tensor", "none".to_owned()))
    };
    let (log_probs, lengths) = (tensor("ctc.log_probs")?, tensor("enc_len")?);
    let (labels, label_lengths, losses) = (tensor("labels")?, tensor("label_len")?, tensor("loss.ctc.f64")?);
    let decoded = read_decoded(check, &case)?;
    // Log-probabilities of each utterance, without padding.
    let &[_, padded_frames, classes] = &log_probs.shape[..] else {
        return Err(
            invalid_case(check, "ctc.log_probs", "[B, T, V + 1]", format!("{:?}", log_probs.shape)).into()
        );
    };
    let values: Vec<f32> = log_probs.values.iter().map(|&value| value as f32).collect();
    let utterances: Vec<&[f32]> = values
        .chunks_exact(padded_frames * classes)
        .zip(&lengths.values)
        .map(|(rows, &length)| &rows[..length as usize * classes])
        .collect();
    // Greedy search of the batch.
    let blank = classes as u32 - 1;
    let to_failure = |error: decoding::Error| RunError::Failed(error.to_string());
    let search = CtcGreedySearch::new(classes, blank).map_err(to_failure)?;
    let hypotheses = search.decode(&utterances).map_err(to_failure)?;
    check.expect_equal("utterances", &hypotheses.len(), &decoded.len());
    for (b, (hypothesis, expected)) in hypotheses.iter().zip(&decoded).enumerate() {
        let name = |quantity: &str| format!("utterance {b}: {quantity}");
        let frames: Vec<usize> = hypothesis.labels.iter().map(|label| label.frame).collect();
        check.expect_equal(&name("tokens"), &hypothesis.ids(), &expected.tokens);
        check.expect_equal(&name("timestamps"), &frames, &expected.timestamps);
        // The search of a single frame returns its best class.
        let frames: Vec<&[f32]> = utterances[b].chunks_exact(classes).collect();
        let single_frames = search.decode(&frames).map_err(to_failure)?;
        let best_class = |frame: &Hypothesis| frame.labels.first().map_or(blank, |label| label.label);
        let best_classes: Vec<u32> = single_frames.iter().map(best_class).collect();
        check.expect_equal(&name("frame_argmax"), &best_classes, &expected.frame_argmax);
    }
    // Losses.
    let width = labels.shape.last().copied().unwrap_or(0);
    for (b, &rows) in utterances.iter().enumerate() {
        let num_labels = label_lengths.values[b] as usize;
        let labels: Vec<u32> =
            labels.values[b * width..][..num_labels].iter().map(|&label| label as u32).collect();
        let loss = loss(rows, classes, &labels)?;
        let tolerance = Tolerance::Relative(LOSS_TOLERANCE);
        check.compare(&format!("loss.ctc.f64[{b}]"), &[loss], &[losses.values[b]], tolerance);
    }
    Ok(())
}

/// Reads the greedy search with the CTC head.
fn read_decoded(check: &NemoCheck, case: &serde_json::Value) -> Result<Vec<DecodedUtterance>, Error> {
    let decodes = case["decodes"].as_array().into_iter().flatten();
    let decode = decodes.into_iter().find(|decode| decode["kind"] == "ctc_greedy");
    let decode =
        decode.ok_or_else(|| invalid_case(check, "decodes", "one of kind ctc_greedy", "none".into()))?;
    let path = check.folder.join("case.json");
    Vec::deserialize(&decode["utterances"]).map_err(|source| Error::Sidecar { path, source })
}

/// Returns the CTC loss of an utterance; the blank is the last class.
fn loss(rows: &[f32], classes: usize, labels: &[u32]) -> Result<f64, RunError> {
    let columns: Vec<usize> =
        [classes - 1].into_iter().chain(labels.iter().map(|&label| label as usize)).collect();
    let emissions: Vec<f64> = rows
        .chunks_exact(classes)
        .flat_map(|row| columns.iter().map(|&column| f64::from(row[column])))
        .collect();
    let log_prob = rnnt_dp::ctc::log_prob(labels, &emissions);
    Ok(-log_prob.map_err(|error| RunError::Failed(error.to_string()))?)
}

/// Returns the error of a case without the expected contents.
fn invalid_case(check: &NemoCheck, argument: &str, expected: &str, found: String) -> Error {
    Error::Case { path: check.folder.clone(), argument: argument.into(), expected: expected.into(), found }
}
