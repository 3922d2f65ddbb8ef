//! Golden test of packed inference with NeMo's encoders.
use std::sync::Arc;

use candle_core::DType;
use kernels::packed::NumberFormat;
use model::encoders::{FastConformerEncoderConfig, PackedFastConformer};

use super::case::NemoCase;
use super::check::NemoCheck;
use super::model::NemoModel;
use super::network::{self, stored_rows, to_f64};
use crate::error::RunError;
use crate::mlperf::Tolerance;

const ROW_TOLERANCE: Tolerance = Tolerance::Absolute(5e-5);
/// Tolerance in bf16, of 8 bits; rows are results of a layer norm.
const BF16_TOLERANCE: Tolerance = Tolerance::Absolute(0.25);
/// Limit of the root mean square of the errors in bf16.
const BF16_RMS_TOLERANCE: Tolerance = Tolerance::Absolute(0.04);
/// Tolerance with 8-bit blocks.
const Q8_TOLERANCE: Tolerance = Tolerance::Absolute(0.6);
/// Limit of the errors with 8-bit blocks relative to the rows.
///
/// Both are root mean squares.
const Q8_RELATIVE_TOLERANCE: Tolerance = Tolerance::Absolute(0.03);

/// Compares the rows of packed encoders in all variants.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    let (nemo, case) = (NemoModel::read(check)?, NemoCase::read(check)?);
    let config = nemo.encoder_config();
    for (format, tolerance) in [
        (NumberFormat::F32, ROW_TOLERANCE),
        (NumberFormat::Bf16, BF16_TOLERANCE),
        (NumberFormat::Q8, Q8_TOLERANCE),
    ] {
        let encoder = packed_encoder(&nemo, &config, format)?;
        let utterances = utterances(&case)?;
        let utterances: Vec<&[f32]> = utterances.iter().map(Vec::as_slice).collect();
        let encoded = encoder.encode(&utterances)?;
        check.expect_equal("enc_len", &encoded.lengths, &case.row_counts);
        compare_rows(check, &case, "enc", &encoded.rows, tolerance)?;
        if format != NumberFormat::F32 {
            let stored = stored_rows(case.tensor("enc")?, &case.row_counts).concat();
            let squares =
                encoded.rows.iter().zip(&stored).map(|(&x, stored)| (f64::from(x) - stored).powi(2));
            let rms = (squares.sum::<f64>() / stored.len() as f64).sqrt();
            let norm = (stored.iter().map(|x| x * x).sum::<f64>() / stored.len() as f64).sqrt();
            match format {
                NumberFormat::Q8 => {
                    check.compare("relative error in q8", &[rms / norm], &[0.0], Q8_RELATIVE_TOLERANCE);
                }
                _ => check.compare("root mean square error in bf16", &[rms], &[0.0], BF16_RMS_TOLERANCE),
            }
        }
        let mut alone = Vec::new();
        for frames in &utterances {
            alone.extend(encoder.encode(&[frames])?.rows);
        }
        check.expect_equal(&format!("bits of single utterances, {format:?}"), &alone, &encoded.rows);
    }
    for (name, attention) in network::attention_variants(&nemo, &case, "")? {
        let config = FastConformerEncoderConfig { attention, ..config.clone() };
        let encoder = packed_encoder(&nemo, &config, NumberFormat::F32)?;
        let utterances = utterances(&case)?;
        let utterances: Vec<&[f32]> = utterances.iter().map(Vec::as_slice).collect();
        compare_rows(check, &case, &name, &encoder.encode(&utterances)?.rows, ROW_TOLERANCE)?;
    }
    Ok(())
}

/// Packs the weights of a case's encoder.
pub(super) fn packed_encoder(
    nemo: &NemoModel,
    config: &FastConformerEncoderConfig,
    format: NumberFormat,
) -> Result<Arc<PackedFastConformer>, RunError> {
    let variables = nemo.variables(DType::F32)?;
    let input_width = nemo.config.input.features.mels;
    let encoder = PackedFastConformer::new(config, input_width, format, &mut |name| {
        let variable = variables.get(name);
        let variable = variable.ok_or_else(|| model::Error::shape(name, "a weight", "none"))?;
        Ok(model::tensors::to_vec(variable)?.into())
    })?;
    Ok(Arc::new(encoder))
}

/// Returns the frames of each utterance.
pub(super) fn utterances(case: &NemoCase) -> Result<Vec<Vec<f32>>, RunError> {
    let (values, width) = (to_f64(&case.features)?, case.features.dims()[2]);
    let utterance_len = values.len() / case.feature_lengths.len().max(1);
    let utterances = case.feature_lengths.iter().enumerate();
    let frames = utterances.map(|(b, frames)| &values[b * utterance_len..][..frames * width]);
    Ok(frames.map(|frames| frames.iter().map(|&x| x as f32).collect()).collect())
}

/// Compares the rows of all utterances with a stored padded batch.
fn compare_rows(
    check: &mut NemoCheck,
    case: &NemoCase,
    name: &str,
    rows: &[f32],
    tolerance: Tolerance,
) -> Result<(), RunError> {
    let rows: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
    let stored = stored_rows(case.tensor(name)?, &case.row_counts).concat();
    check.compare(name, &rows, &stored, tolerance);
    Ok(())
}
