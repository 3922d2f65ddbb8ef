//! The model: outputs of encoder and predictor, scores, losses, and gradients of everything.
use candle_core::{Tensor, Var};
use model::LossSessions;
use training::data::Batch;

use super::check::{Bar, Check};
use super::network::{self, NetworkSizes, refused};
use crate::error::Stop;

pub fn run(check: &mut Check) -> Result<(), Stop> {
    let sizes: NetworkSizes = check.file.field("options")?;
    let model = network::loaded(check.file, &sizes)?;
    let (x, lengths) = network::features(check, &sizes)?;
    let targets = check.whole("targets")?;
    let counts = check.whole("target_lens")?;
    let positions = targets.len() / counts.len().max(1);
    let labels: Vec<Vec<u32>> = counts
        .iter()
        .enumerate()
        .map(|(b, &count)| targets[b * positions..][..count].iter().map(|&id| id as u32).collect())
        .collect();

    let (encoded, encoded_lengths) = model.encoder().forward(&x, &lengths, None)?;
    check.same("enc_lens", &encoded_lengths)?;
    check.compare("enc_out", &within(&encoded, &encoded_lengths)?, Bar::Absolute(2e-6))?;
    let predictor = model.predictor().ok_or_else(|| Stop::Refused("no predictor".into()))?;
    let predicted = predictor.forward(&labels, None)?;
    let rows: Vec<usize> = counts.iter().map(|count| count + 1).collect();
    check.compare("pred_out", &within(&predicted, &rows)?, Bar::Absolute(2e-6))?;

    let joint = model.joint_rows(&x, &lengths, &labels)?;
    let plane = |tensor: &Tensor| tensor.to_vec3::<f32>().map_err(refused);
    let (frames, rows_of_labels) = (plane(&joint.frames)?, plane(&joint.labels)?);
    let weight: Vec<Vec<f32>> = joint.weight.to_vec2().map_err(refused)?;
    let bias: Vec<f32> = joint.bias.to_vec1().map_err(refused)?;
    let (mut scores, mut offsets, mut sites) = (Vec::new(), Vec::new(), 0);
    for (b, (&frame_count, &row_count)) in encoded_lengths.iter().zip(&rows).enumerate() {
        for frame in &frames[b][..frame_count] {
            for row in &rows_of_labels[b][..row_count] {
                let hidden: Vec<f64> =
                    frame.iter().zip(row).map(|(a, b)| f64::from(a + b).max(0.0)).collect();
                scores.extend(weight.iter().zip(&bias).map(|(weight, &bias)| {
                    f64::from(bias) + weight.iter().zip(&hidden).map(|(&w, h)| f64::from(w) * h).sum::<f64>()
                }));
            }
        }
        sites += frame_count * row_count;
        offsets.push(sites);
    }
    check.compare("logits_packed", &scores, Bar::Absolute(1e-5))?;
    check.same("batch_offset", &offsets)?;

    let x = Var::from_tensor(&x).map_err(refused)?;
    let batch = Batch::new(x.as_tensor().clone(), lengths, labels);
    let sessions = LossSessions::new(model.config())?;
    let losses = model.losses(&sessions, batch.labeled(), counts.len(), 0, None)?;
    check.compare("loss", &losses.transducer, Bar::Relative(1e-6))?;
    let mean = losses.mean.to_scalar::<f64>().map_err(refused)?;
    check.compare("loss_mean", &[mean], Bar::Relative(1e-6))?;
    let gradients = losses.mean.backward().map_err(refused)?;
    let gradient = |variable: &Var| -> Result<Vec<f32>, Stop> {
        let none = || Stop::Refused("a parameter without a gradient".into());
        gradients.get(variable).ok_or_else(none)?.flatten_all().and_then(|g| g.to_vec1()).map_err(refused)
    };
    check.compare("grad.features", &gradient(&x)?, Bar::Absolute(5e-5))?;
    for name in check.file.weights()?.keys() {
        let ours = sizes.name(check.file, name)?;
        let variable = model.parameters().get(&ours).ok_or_else(|| Stop::Refused(format!("no {ours}")))?;
        check.compare(&format!("grad.{name}"), &gradient(variable)?, Bar::Absolute(5e-5))?;
    }
    // What the reference makes of padding; an utterance's outcome depends on its batch mates there.
    check.leave_out(|name| name.ends_with("_padded_batch"));
    Ok(())
}

/// Rows `[B, T, W]`, zeros beyond each length.
fn within(rows: &Tensor, lengths: &[usize]) -> Result<Vec<f32>, Stop> {
    let rows: Vec<Vec<Vec<f32>>> = rows.to_vec3().map_err(refused)?;
    let kept = rows.into_iter().zip(lengths).flat_map(|(rows, &length)| {
        let clear = move |(t, row): (usize, Vec<f32>)| if t < length { row } else { vec![0.0; row.len()] };
        rows.into_iter().enumerate().flat_map(clear)
    });
    Ok(kept.collect())
}
