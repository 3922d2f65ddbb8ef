//! Golden test of the networks of NeMo's models.
//!
//! Outputs of a part are those of an encoder with fewer stages or layers.
use std::collections::HashMap;

use candle_core::{DType, Device, Tensor, Var};
use model::encoders::{AttentionLimits, DepthwiseSubsamplingConfig, FastConformerEncoderConfig};

use super::case::NemoCase;
use super::check::NemoCheck;
use super::model::{NemoModel, attention_limits, candle_failure};
use crate::case::StoredTensor;
use crate::error::RunError;
use crate::mlperf::Tolerance;

const ROW_TOLERANCE: Tolerance = Tolerance::Absolute(5e-5);
const PREDICTOR_TOLERANCE: Tolerance = Tolerance::Absolute(1e-5);
const SCORE_TOLERANCE: Tolerance = Tolerance::Absolute(2e-4);
const F64_TOLERANCE: Tolerance = Tolerance::Absolute(1e-10);

/// Compares all outputs of a case.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    let (nemo, case) = (NemoModel::read(check)?, NemoCase::read(check)?);
    for (dtype, suffix, tolerance) in [(DType::F32, "", ROW_TOLERANCE), (DType::F64, ".f64", F64_TOLERANCE)] {
        let run = NetworkRun { nemo: &nemo, case: &case, dtype, variables: nemo.variables(dtype)? };
        run.compare_encoder(check, suffix, tolerance)?;
        run.compare_variants(check, suffix, tolerance)?;
        if dtype == DType::F32 {
            run.compare_single_utterances(check)?;
            run.compare_subsampling_stages(check)?;
        }
        let tolerance = if dtype == DType::F64 { F64_TOLERANCE } else { SCORE_TOLERANCE };
        run.compare_outputs(check, suffix, tolerance)?;
    }
    Ok(())
}

/// A model in one floating-point type.
struct NetworkRun<'a> {
    nemo: &'a NemoModel,
    case: &'a NemoCase,
    dtype: DType,
    variables: HashMap<String, Var>,
}

impl NetworkRun<'_> {
    /// Runs an encoder on a padded batch; returns the valid rows of each utterance.
    fn encode(
        &self,
        config: &FastConformerEncoderConfig,
        variables: &HashMap<String, Var>,
        features: &Tensor,
        lengths: &[usize],
    ) -> Result<Vec<Vec<f64>>, RunError> {
        let encoder = self.nemo.encoder(config, variables)?;
        let features = features.to_dtype(self.dtype).map_err(candle_failure)?;
        let (rows, lengths) = encoder.forward(&features, lengths, None)?;
        valid_rows(&rows, &lengths)
    }

    /// Returns the features that NeMo's answers in this type belong to.
    fn features(&self) -> &Tensor {
        if self.dtype == DType::F64 { &self.case.exact_features } else { &self.case.features }
    }

    /// Runs an encoder on the utterances of the case.
    fn encode_all(&self, config: &FastConformerEncoderConfig) -> Result<Vec<Vec<f64>>, RunError> {
        self.encode(config, &self.variables, self.features(), &self.case.feature_lengths)
    }

    /// Compares the rows after the subsampling, after each layer, and the encoder's.
    fn compare_encoder(
        &self,
        check: &mut NemoCheck,
        suffix: &str,
        tolerance: Tolerance,
    ) -> Result<(), RunError> {
        let full = self.nemo.encoder_config();
        let encoded = self.encode_all(&full)?;
        let row_counts: Vec<usize> = encoded.iter().map(|rows| rows.len() / full.width).collect();
        check.expect_equal("enc_len", &row_counts, &self.case.row_counts);
        self.compare_rows(check, &format!("enc{suffix}"), &encoded, tolerance);
        let subsampling = FastConformerEncoderConfig { layers: 0, scale_input: false, ..full.clone() };
        self.compare_rows(check, &format!("sub.out{suffix}"), &self.encode_all(&subsampling)?, tolerance);
        for layer in 0..full.layers {
            let config = FastConformerEncoderConfig { layers: layer + 1, ..full.clone() };
            let rows = self.encode_all(&config)?;
            self.compare_rows(check, &format!("layer{layer}.out{suffix}"), &rows, tolerance);
        }
        Ok(())
    }

    /// Compares rows with a stored padded batch, if there is one.
    fn compare_rows(&self, check: &mut NemoCheck, name: &str, rows: &[Vec<f64>], tolerance: Tolerance) {
        if let Some(stored) = self.case.tensors.get(name) {
            let stored = stored_rows(stored, &self.case.row_counts);
            check.compare(name, &rows.concat(), &stored.concat(), tolerance);
        }
    }

    /// Compares encoders of the same weights with other limits of attention.
    fn compare_variants(
        &self,
        check: &mut NemoCheck,
        suffix: &str,
        tolerance: Tolerance,
    ) -> Result<(), RunError> {
        for (name, attention) in attention_variants(self.nemo, self.case, suffix)? {
            let config = FastConformerEncoderConfig { attention, ..self.nemo.encoder_config() };
            self.compare_rows(check, &name, &self.encode_all(&config)?, tolerance);
        }
        Ok(())
    }

    /// Compares each utterance by itself; its bits are those of the batch.
    fn compare_single_utterances(&self, check: &mut NemoCheck) -> Result<(), RunError> {
        let config = self.nemo.encoder_config();
        let batched = self.encode_all(&config)?;
        for (b, batched) in batched.iter().enumerate() {
            let name = format!("alone{b}.enc");
            let features = self.case.features.narrow(0, b, 1).map_err(candle_failure)?;
            let lengths = &self.case.feature_lengths[b..=b];
            let rows = self.encode(&config, &self.variables, &features, lengths)?;
            check.expect_equal(&format!("{name} in the batch"), &rows[0], batched);
            // NeMo may return a row of padding after the last.
            let stored = self.case.tensor(&name)?.values.get(..rows[0].len()).unwrap_or_default();
            check.compare(&name, &rows[0], stored, ROW_TOLERANCE);
        }
        Ok(())
    }

    /// Compares the outputs of each convolution of the subsampling, after ReLU.
    ///
    /// The rows of a linear layer with an identity as weight are the convolution's output. So are
    /// those of a 1 x 1 convolution with an identity.
    fn compare_subsampling_stages(&self, check: &mut NemoCheck) -> Result<(), RunError> {
        let Some(utterance) = self.case.tensors.get("stage_utt") else { return Ok(()) };
        let b = utterance.values[0] as usize;
        let features = self.case.features.narrow(0, b, 1).map_err(candle_failure)?;
        let full = self.nemo.encoder_config();
        let channels = full.subsampling.channels;
        for (name, stored) in &self.case.tensors {
            let Some(index) = name.strip_prefix("sub.conv").and_then(|rest| rest.strip_suffix(".out")) else {
                continue;
            };
            let index: usize =
                index.parse().map_err(|_| RunError::Failed(format!("{name}: expected an index")))?;
            let &[_, frames, bins] = &stored.shape[..] else {
                return Err(RunError::Failed(format!("{name}: expected three axes")));
            };
            // Stages of the convolutions 0; 2, 3; 5, 6.
            let stages = 1 + index.div_ceil(3);
            let width = channels * bins;
            let mut variables = self.variables.clone();
            let mut set = |name: String, tensor: candle_core::Result<Tensor>| {
                let tensor = tensor.and_then(|tensor| Var::from_tensor(&tensor));
                tensor.map(|tensor| drop(variables.insert(name, tensor))).map_err(candle_failure)
            };
            let (dtype, device) = (self.dtype, &Device::Cpu);
            let mut set_identity = |layer: &str, width: usize| {
                set(format!("encoder.pre_encode.{layer}.weight"), Tensor::eye(width, dtype, device))?;
                set(format!("encoder.pre_encode.{layer}.bias"), Tensor::zeros(width, dtype, device))
            };
            set_identity("out", width)?;
            if index % 3 == 2 {
                set_identity(&format!("conv.{}", index + 1), channels)?;
            }
            let config = FastConformerEncoderConfig {
                layers: 0,
                width,
                scale_input: false,
                subsampling: DepthwiseSubsamplingConfig { factor: 1 << stages, ..full.subsampling.clone() },
                ..full.clone()
            };
            let rows = self.encode(&config, &variables, &features, &self.case.feature_lengths[b..=b])?;
            // Stored are channels, frames, bins; rows are frames with the bins of each channel.
            let stored_value = |i: usize| {
                let (frame, channel, bin) = (i / width, i % width / bins, i % bins);
                stored.values[(channel * frames + frame) * bins + bin].max(0.0)
            };
            let expected: Vec<f64> = (0..rows[0].len()).map(stored_value).collect();
            check.compare(name, &rows[0], &expected, ROW_TOLERANCE);
        }
        Ok(())
    }

    /// Compares predictor, projections, logits and log-probabilities.
    fn compare_outputs(
        &self,
        check: &mut NemoCheck,
        suffix: &str,
        tolerance: Tolerance,
    ) -> Result<(), RunError> {
        let encoded = self.encode_all(&self.nemo.encoder_config())?;
        if self.nemo.has_ctc() {
            let name = format!("ctc.log_probs{suffix}");
            let log_probs =
                encoded.iter().map(|rows| Ok(log_softmax(self.linear("ctc", rows)?, self.nemo.labels + 1)));
            let log_probs = log_probs.collect::<Result<Vec<_>, RunError>>()?;
            self.compare_rows(check, &name, &log_probs, tolerance);
        }
        if self.nemo.is_ctc_only() {
            return Ok(());
        }
        let label_rows = self.nemo.predictor(&self.variables)?.forward(&self.case.labels, None)?;
        let position_counts: Vec<usize> = self.case.labels.iter().map(|labels| labels.len() + 1).collect();
        let label_rows = valid_rows(&label_rows, &position_counts)?;
        if self.dtype == DType::F32 {
            let stored = stored_rows(self.case.tensor("pred.out")?, &position_counts);
            check.compare("pred.out", &label_rows.concat(), &stored.concat(), PREDICTOR_TOLERANCE);
        }
        let project = |layer: &str, rows: &[Vec<f64>]| -> Result<Vec<Vec<f64>>, RunError> {
            rows.iter().map(|rows| self.linear(layer, rows)).collect()
        };
        let frames = project("joint.encoder", &encoded)?;
        let positions = project("joint.predictor", &label_rows)?;
        if self.dtype == DType::F32 {
            self.compare_rows(check, "joint.enc_proj", &frames, tolerance);
            let stored = stored_rows(self.case.tensor("joint.pred_proj")?, &position_counts);
            check.compare("joint.pred_proj", &positions.concat(), &stored.concat(), tolerance);
        }
        for (b, (frames, positions)) in frames.iter().zip(&positions).enumerate() {
            let name = match self.dtype {
                DType::F64 => format!("joint.logits.f64.utt{b}"),
                _ => format!("joint.logits.utt{b}"),
            };
            if let Some(stored) = self.case.tensors.get(&name) {
                check.compare(&name, &self.logits(frames, positions)?, &stored.values, tolerance);
            }
        }
        Ok(())
    }

    /// Computes the logits of all sites: labels, blank and durations.
    fn logits(&self, frames: &[f64], positions: &[f64]) -> Result<Vec<f64>, RunError> {
        let width = self.nemo.config.joint.as_ref().map_or(1, |joint| joint.width);
        let is_relu = self.nemo.config.loss.options.activation == model::config::ActivationKind::Relu;
        let activation = |x: f64| if is_relu { x.max(0.0) } else { x.tanh() };
        let mut hidden = Vec::new();
        for frame in frames.chunks_exact(width) {
            for position in positions.chunks_exact(width) {
                hidden.extend(frame.iter().zip(position).map(|(a, b)| activation(a + b)));
            }
        }
        let labels = self.linear("joint.head", &hidden)?;
        if !self.variables.contains_key("joint.durations.weight") {
            return Ok(labels);
        }
        let durations = self.linear("joint.durations", &hidden)?;
        let sites = hidden.len() / width;
        let rows =
            labels.chunks_exact(labels.len() / sites).zip(durations.chunks_exact(durations.len() / sites));
        Ok(rows.flat_map(|(labels, durations)| [labels, durations].concat()).collect())
    }

    /// Applies a linear layer to rows, in `f64`.
    fn linear(&self, layer: &str, rows: &[f64]) -> Result<Vec<f64>, RunError> {
        let values = |name: &str| {
            let variable = self.variables.get(&format!("{layer}.{name}"));
            let variable = variable.ok_or_else(|| RunError::Failed(format!("no {layer}.{name}")))?;
            to_f64(variable)
        };
        let (weight, bias) = (values("weight")?, values("bias")?);
        let width = weight.len() / bias.len();
        let outputs = rows.chunks_exact(width).flat_map(|row| {
            weight.chunks_exact(width).zip(&bias).map(move |(weight, bias)| {
                bias + weight.iter().zip(row).map(|(weight, x)| weight * x).sum::<f64>()
            })
        });
        Ok(outputs.collect())
    }
}

/// Returns the names of stored variants, and their attention limits.
pub(super) fn attention_variants(
    nemo: &NemoModel,
    case: &NemoCase,
    suffix: &str,
) -> Result<Vec<(String, AttentionLimits)>, RunError> {
    let mut variants = Vec::new();
    for name in case.tensors.keys() {
        // With unequal sides, NeMo's local attention has wrong positions: `enc_as_nemo`.
        let (kind, style) = match name.split('_').next() {
            Some("local" | "limited") => ("enc", "regular"),
            Some("stream") => ("offline", nemo.attention_style()),
            _ => continue,
        };
        let Some(limits) = name.strip_suffix(&format!(".{kind}{suffix}")) else { continue };
        let sides: Vec<i64> = limits.split('_').skip(1).filter_map(|side| side.parse().ok()).collect();
        let &[left, right] = &sides[..] else {
            return Err(RunError::Failed(format!("{name}: expected two limits")));
        };
        variants.push((name.clone(), attention_limits(style, left, right)));
    }
    Ok(variants)
}

/// Copies all elements as `f64`.
pub(super) fn to_f64(tensor: &Tensor) -> Result<Vec<f64>, RunError> {
    let values = tensor.to_dtype(DType::F64).and_then(|tensor| tensor.flatten_all()?.to_vec1());
    values.map_err(candle_failure)
}

/// Returns the first rows of each utterance of a padded batch `[B, T, W]`.
fn valid_rows(rows: &Tensor, lengths: &[usize]) -> Result<Vec<Vec<f64>>, RunError> {
    let (values, width) = (to_f64(rows)?, rows.dims().last().copied().unwrap_or(0));
    let utterance_len = values.len() / lengths.len().max(1);
    let utterances = lengths.iter().enumerate();
    Ok(utterances.map(|(b, length)| values[b * utterance_len..][..length * width].to_vec()).collect())
}

/// Returns the first rows of each utterance of a stored padded batch.
pub(super) fn stored_rows(stored: &StoredTensor, lengths: &[usize]) -> Vec<Vec<f64>> {
    let width = stored.shape.last().copied().unwrap_or(0);
    let utterance_len = stored.values.len() / lengths.len().max(1);
    let utterances = lengths.iter().enumerate();
    utterances.map(|(b, length)| stored.values[b * utterance_len..][..length * width].to_vec()).collect()
}

/// Computes the log-softmax of each row.
fn log_softmax(mut scores: Vec<f64>, width: usize) -> Vec<f64> {
    for row in scores.chunks_exact_mut(width) {
        let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = max + row.iter().map(|score| (score - max).exp()).sum::<f64>().ln();
        row.iter_mut().for_each(|score| *score -= log_sum);
    }
    scores
}
