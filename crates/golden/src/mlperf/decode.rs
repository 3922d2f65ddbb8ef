//! Golden test of MLPerf's greedy search, with two early stopping rules.
use decoding::{GreedyOptions, GreedySearch, unpad};
use serde::Deserialize;

use super::check::MlPerfCheck;
use super::network::{self, NetworkSizes, candle_failure};
use crate::error::RunError;

/// Largest error of an encoder output.
const ENCODER_TOLERANCE: f32 = 2e-6;

/// A search with its limits, and the expected hypotheses.
#[derive(Debug, Deserialize)]
struct DecodeCase {
    #[serde(rename = "form")]
    stop_rule: StopRule,
    max_symbols_per_step: usize,
    max_symbols_per_utterance: Option<usize>,
    utterances: Vec<DecodedUtterance>,
}

/// Rule that ends a search early.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StopRule {
    /// At the start of a frame, after more labels than the cap.
    FrameStart,
    /// At the label that reaches the cap, which is dropped.
    #[serde(rename = "every_step")]
    AtCap,
}

#[derive(Debug, Deserialize)]
struct DecodedUtterance {
    tokens: Vec<usize>,
    frames: Vec<usize>,
    steps: usize,
}

/// Compares encoder outputs, hypotheses and numbers of joint evaluations.
pub(super) fn compare(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let sizes: NetworkSizes = check.file.field("options")?;
    let decodes: Vec<DecodeCase> = check.file.field("decodes")?;
    let model = network::load(check.file, &sizes)?;
    let (features, lengths) = network::features(check, &sizes)?;
    let (encoded, encoded_lengths) = model.encoder().forward(&features, &lengths, None)?;
    check.compare_integers("enc_lens", &encoded_lengths)?;
    let encoder_rows: Vec<f32> =
        encoded.flatten_all().and_then(|rows| rows.to_vec1()).map_err(candle_failure)?;
    // Encoder outputs, each frame within a tolerance.
    let width = model.encoder().width();
    let stored = check.input::<f32>("enc_out")?;
    let padded_frames = stored.len() / (encoded_lengths.len() * width).max(1);
    for (b, &length) in encoded_lengths.iter().enumerate() {
        for (t, row) in
            encoder_rows[b * padded_frames * width..][..length * width].chunks_exact(width).enumerate()
        {
            let expected = &stored[(b * padded_frames + t) * width..][..width];
            let is_close = row.iter().zip(expected).all(|(a, b)| (a - b).abs() <= ENCODER_TOLERANCE);
            check.expect_equal(
                &format!("enc_out of utterance {b}, frame {t}, within 2e-6"),
                &is_close,
                &true,
            );
        }
    }
    // Hypotheses and numbers of joint evaluations of each search.
    let (frames, lengths) = model.encode(&features, &lengths)?;
    let frames: Vec<f32> = frames.flatten_all().and_then(|rows| rows.to_vec1()).map_err(candle_failure)?;
    let decoder = model.decoder()?;
    for (number, decode_case) in decodes.iter().enumerate() {
        let DecodeCase {
            stop_rule,
            max_symbols_per_step: max_symbols,
            max_symbols_per_utterance: label_cap,
            utterances,
        } = decode_case;
        // The label that reaches the cap is dropped, so one fewer remains.
        let max_labels = label_cap.filter(|_| *stop_rule == StopRule::AtCap).map(|cap| cap - 1);
        let options =
            GreedyOptions { max_symbols: Some(*max_symbols), max_labels, ..GreedyOptions::default() };
        let to_failure = |error: decoding::Error| RunError::Failed(error.to_string());
        let mut search = GreedySearch::new(decoder.clone(), options).map_err(to_failure)?;
        let utterance_frames = unpad(&frames, model.width(), &lengths).map_err(to_failure)?;
        let hypotheses = search.decode(&utterance_frames).map_err(to_failure)?;
        for ((b, hypothesis), expected) in hypotheses.iter().enumerate().zip(utterances) {
            let mut labels: Vec<(usize, usize)> =
                hypothesis.labels.iter().map(|label| (label.label as usize, label.frame)).collect();
            let mut end = lengths[b];
            if let Some(label_cap) = label_cap.filter(|_| *stop_rule == StopRule::FrameStart) {
                // The first frame with more labels than the cap before it.
                let exceeds_cap =
                    |&frame: &usize| labels.iter().filter(|(_, t)| *t < frame).count() > label_cap;
                end = (0..end).find(exceeds_cap).unwrap_or(end);
                labels.retain(|(_, frame)| *frame < end);
            }
            let name = |quantity: &str| format!("decode {number}, utterance {b}: {quantity}");
            let (tokens, frames): (Vec<usize>, Vec<usize>) = labels.into_iter().unzip();
            let steps = count_joint_evaluations(
                &frames,
                if hypothesis.is_capped { hypothesis.end_frame } else { end },
                *max_symbols,
                hypothesis.is_capped,
            );
            check.expect_equal(&name("tokens"), &tokens, &expected.tokens);
            check.expect_equal(&name("frames"), &frames, &expected.frames);
            check.expect_equal(&name("joint evaluations"), &steps, &expected.steps);
        }
    }
    Ok(())
}

/// Counts the joint evaluations of a search before frame `end`.
///
/// Each label is one evaluation, and so is each frame that ends with a blank. A frame with
/// `max_symbols` labels ends without a blank. A search with `is_capped` has one more: the label
/// that reaches the cap at `end`.
fn count_joint_evaluations(frames: &[usize], end: usize, max_symbols: usize, is_capped: bool) -> usize {
    let has_blank = |&frame: &usize| frames.iter().filter(|&&t| t == frame).count() < max_symbols;
    frames.len() + (0..end).filter(has_blank).count() + usize::from(is_capped)
}
