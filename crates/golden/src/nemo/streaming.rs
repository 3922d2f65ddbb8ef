//! Golden test of cache-aware streaming with NeMo's encoders.
use kernels::packed::NumberFormat;
use model::encoders::{EncoderChunk, EncoderState, EncoderStream, FastConformerEncoderConfig};

use super::case::NemoCase;
use super::check::NemoCheck;
use super::inference::{packed_encoder, utterances};
use super::model::NemoModel;
use super::network::{attention_variants, stored_rows};
use crate::error::RunError;
use crate::mlperf::Tolerance;

const ROW_TOLERANCE: Tolerance = Tolerance::Absolute(5e-5);
const CACHE_TOLERANCE: Tolerance = Tolerance::Absolute(5e-5);
/// Frames of a call; the first two do not divide the frames of a row.
const CHUNK_FRAMES: [usize; 4] = [1, 7, 16, 1000];

/// Compares streamed rows with those of complete utterances.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    let (nemo, case) = (NemoModel::read(check)?, NemoCase::read(check)?);
    let utterances = utterances(&case)?;
    let config = nemo.encoder_config();
    if !config.subsampling.causal {
        let encoder = packed_encoder(&nemo, &config, NumberFormat::F32)?;
        check.expect_equal("streams", &encoder.stream().is_some(), &false);
        return Ok(());
    }
    for (name, attention) in attention_variants(&nemo, &case, "")? {
        let config = FastConformerEncoderConfig { attention, ..config.clone() };
        let encoder = packed_encoder(&nemo, &config, NumberFormat::F32)?;
        let Some(stream) = encoder.stream() else {
            return Err(RunError::Failed(format!("{name}: expected a streaming encoder")));
        };
        let stored = stored_rows(case.tensor(&name)?, &case.row_counts);
        for (frames, stored) in utterances.iter().zip(&stored) {
            let offline = encoder.encode(&[frames])?.rows;
            for chunk_frames in CHUNK_FRAMES {
                let mut state = stream.start();
                let rows = stream_utterance(&stream, &mut state, frames, chunk_frames)?;
                check.expect_equal(&format!("bits of {name}, chunks of {chunk_frames}"), &rows, &offline);
                let rows: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
                check.compare(&name, &rows, stored, ROW_TOLERANCE);
                check.expect_equal("the state after an utterance", &state, &stream.start());
            }
        }
        let setting = name.trim_end_matches(".offline");
        if case.tensors.contains_key(&format!("{setting}.utt0.cache_last_time")) {
            compare_caches(check, &case, setting, &stream, &utterances[0])?;
        }
    }
    Ok(())
}

/// Streams an utterance in chunks of frames.
fn stream_utterance(
    stream: &impl EncoderStream,
    state: &mut EncoderState,
    frames: &[f32],
    chunk_frames: usize,
) -> Result<Vec<f32>, RunError> {
    let mut rows = Vec::new();
    let chunks: Vec<&[f32]> = frames.chunks(chunk_frames * stream.input()).collect();
    for (index, chunk) in chunks.iter().enumerate() {
        let is_last = index + 1 == chunks.len();
        let mut chunk = [EncoderChunk { state: &mut *state, rows: chunk, is_last }];
        rows.extend(stream.step(&mut chunk)?.concat());
    }
    Ok(rows)
}

/// Compares the kept inputs of the depthwise convolutions.
///
/// NeMo's own feeding of the chunks equals whole utterances where a chunk has several rows.
fn compare_caches(
    check: &mut NemoCheck,
    case: &NemoCase,
    setting: &str,
    stream: &impl EncoderStream,
    frames: &[f32],
) -> Result<(), RunError> {
    let name = format!("{setting}.utt0.cache_last_time");
    let stored = case.tensor(&name)?;
    let &[steps, layers, width, tail_rows] = &stored.shape[..] else {
        return Err(RunError::Failed(format!("{name}: expected four axes")));
    };
    let lengths = case.tensor(&format!("{setting}.utt0.cache_last_channel_len"))?;
    let schedule = check.json("case.json")?;
    let settings = schedule["stream"].as_array().into_iter().flatten();
    let size = |setting: &serde_json::Value| {
        let size = setting["att_context_size"].as_array().into_iter().flatten();
        size.filter_map(|value| value.as_i64()).map(|value| format!("_{value}")).collect::<String>()
    };
    let Some(found) = settings.into_iter().find(|found| format!("stream{}", size(found)) == setting) else {
        return Err(RunError::Failed(format!("case.json: expected the schedule of {setting}")));
    };
    let chunks: Vec<usize> = found["utterances"][0]["chunks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|chunk| chunk["mel_frames"].as_u64())
        .map(|frames| frames as usize)
        .collect();
    let right_rows = setting.rsplit('_').next().and_then(|rows| rows.parse().ok()).unwrap_or(0usize);
    // With one row per chunk, NeMo's feeding differs from the second chunk on.
    let compared_steps = if right_rows == 0 { 1 } else { steps };
    let mut state = stream.start();
    let mut rest = frames;
    for (step, frames) in chunks.iter().enumerate().take(compared_steps) {
        let (chunk, later) = rest.split_at(frames * stream.input());
        rest = later;
        stream.step(&mut [EncoderChunk { state: &mut state, rows: chunk, is_last: false }])?;
        for layer in 0..layers {
            let tail = &state.values[&format!("layers.{layer}.tail")];
            let rows = tail.len() / width;
            // Stored are channels of rows, zeros before the utterance.
            let values = (0..width * tail_rows).map(|i| {
                let (channel, row) = (i / tail_rows, i % tail_rows);
                (row + rows).checked_sub(tail_rows).map_or(0.0, |row| f64::from(tail[row * width + channel]))
            });
            let start = (step * layers + layer) * width * tail_rows;
            let stored = &stored.values[start..][..width * tail_rows];
            check.compare(&name, &values.collect::<Vec<f64>>(), stored, CACHE_TOLERANCE);
            let keys = state.values[&format!("layers.{layer}.keys")].len() / (2 * width);
            check.expect_equal("cache_last_channel_len", &(keys as f64), &lengths.values[step]);
        }
    }
    Ok(())
}
