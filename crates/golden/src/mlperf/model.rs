//! Golden test of the MLPerf RNN-T model: outputs, logits, losses, gradients.
use candle_core::{Tensor, Var};
use model::LossSessions;
use training::data::Batch;

use super::check::{MlPerfCheck, Tolerance};
use super::network::{self, NetworkSizes, candle_failure};
use crate::error::RunError;

/// Tolerance of encoder and predictor outputs.
const OUTPUT_TOLERANCE: Tolerance = Tolerance::Absolute(2e-6);
const LOGIT_TOLERANCE: Tolerance = Tolerance::Absolute(1e-5);
const LOSS_TOLERANCE: Tolerance = Tolerance::Relative(1e-6);
const GRADIENT_TOLERANCE: Tolerance = Tolerance::Absolute(5e-5);

/// Compares layer outputs, logits of all sites, losses and gradients.
pub(super) fn compare(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let sizes: NetworkSizes = check.file.field("options")?;
    let model = network::load(check.file, &sizes)?;
    let (features, lengths) = network::features(check, &sizes)?;
    let targets = check.input_integers("targets")?;
    let counts = check.input_integers("target_lens")?;
    let positions = targets.len() / counts.len().max(1);
    let labels: Vec<Vec<u32>> = counts
        .iter()
        .enumerate()
        .map(|(b, &count)| targets[b * positions..][..count].iter().map(|&id| id as u32).collect())
        .collect();

    // Outputs of encoder and predictor.
    let (encoded, encoded_lengths) = model.encoder().forward(&features, &lengths, None)?;
    check.compare_integers("enc_lens", &encoded_lengths)?;
    check.compare("enc_out", &zero_padded(&encoded, &encoded_lengths)?, OUTPUT_TOLERANCE)?;
    let predictor = model.predictor().ok_or_else(|| RunError::Failed("no predictor".into()))?;
    let predicted = predictor.forward(&labels, None)?;
    let row_counts: Vec<usize> = counts.iter().map(|count| count + 1).collect();
    check.compare("pred_out", &zero_padded(&predicted, &row_counts)?, OUTPUT_TOLERANCE)?;

    // Logits of all sites, from the definition of the joint network.
    let joint = model.joint_rows(&features, &lengths, &labels)?;
    let to_vec = |tensor: &Tensor| tensor.to_vec3::<f32>().map_err(candle_failure);
    let (frames, label_rows) = (to_vec(&joint.frames)?, to_vec(&joint.labels)?);
    let weight: Vec<Vec<f32>> = joint.weight.to_vec2().map_err(candle_failure)?;
    let bias: Vec<f32> = joint.bias.to_vec1().map_err(candle_failure)?;
    let (mut scores, mut offsets, mut site_count) = (Vec::new(), Vec::new(), 0);
    for (b, (&frame_count, &row_count)) in encoded_lengths.iter().zip(&row_counts).enumerate() {
        for frame in &frames[b][..frame_count] {
            for label_row in &label_rows[b][..row_count] {
                let hidden: Vec<f64> =
                    frame.iter().zip(label_row).map(|(a, b)| f64::from(a + b).max(0.0)).collect();
                scores.extend(weight.iter().zip(&bias).map(|(weight, &bias)| {
                    f64::from(bias) + weight.iter().zip(&hidden).map(|(&w, h)| f64::from(w) * h).sum::<f64>()
                }));
            }
        }
        site_count += frame_count * row_count;
        offsets.push(site_count);
    }
    check.compare("logits_packed", &scores, LOGIT_TOLERANCE)?;
    check.compare_integers("batch_offset", &offsets)?;

    // Losses, and gradients of features and parameters.
    let features = Var::from_tensor(&features).map_err(candle_failure)?;
    let batch = Batch::new(features.as_tensor().clone(), lengths, labels);
    let sessions = LossSessions::new(model.config())?;
    let losses = model.losses(&sessions, batch.labeled(), counts.len(), 0, None)?;
    check.compare("loss", &losses.transducer, LOSS_TOLERANCE)?;
    let mean = losses.mean.to_scalar::<f64>().map_err(candle_failure)?;
    check.compare("loss_mean", &[mean], LOSS_TOLERANCE)?;
    let gradients = losses.mean.backward().map_err(candle_failure)?;
    let gradient = |variable: &Var| -> Result<Vec<f32>, RunError> {
        let missing = || RunError::Failed("a parameter without a gradient".into());
        gradients
            .get(variable)
            .ok_or_else(missing)?
            .flatten_all()
            .and_then(|g| g.to_vec1())
            .map_err(candle_failure)
    };
    check.compare("grad.features", &gradient(&features)?, GRADIENT_TOLERANCE)?;
    for name in check.file.weights()?.keys() {
        let parameter_name = sizes.parameter_name(check.file, name)?;
        let variable = model
            .parameters()
            .get(&parameter_name)
            .ok_or_else(|| RunError::Failed(format!("no {parameter_name}")))?;
        check.compare(&format!("grad.{name}"), &gradient(variable)?, GRADIENT_TOLERANCE)?;
    }
    // In the padded batch of the reference, the result of an utterance depends on the others.
    check.ignore(|name| name.ends_with("_padded_batch"));
    Ok(())
}

/// Returns rows `[B, T, W]` with zeros beyond each length.
fn zero_padded(rows: &Tensor, lengths: &[usize]) -> Result<Vec<f32>, RunError> {
    let rows: Vec<Vec<Vec<f32>>> = rows.to_vec3().map_err(candle_failure)?;
    let values = rows.into_iter().zip(lengths).flat_map(|(rows, &length)| {
        let clear_padding =
            move |(t, row): (usize, Vec<f32>)| if t < length { row } else { vec![0.0; row.len()] };
        rows.into_iter().enumerate().flat_map(clear_padding)
    });
    Ok(values.collect())
}
