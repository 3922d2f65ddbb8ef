//! Inputs of a golden case of NeMo: features and labels.
use std::collections::BTreeMap;

use candle_core::{DType, Device, Tensor};

use super::check::NemoCheck;
use super::exact_features::ExactFrontEnd;
use super::model::candle_failure;
use crate::case::StoredTensor;
use crate::error::RunError;

/// The tensors of a case, and its inputs.
pub(super) struct NemoCase {
    /// The tensors of `io.safetensors`.
    pub tensors: BTreeMap<String, StoredTensor>,
    /// Features of NeMo in `f32`, `[B, T, F]`.
    pub features: Tensor,
    /// The same in `f64`, from the samples.
    pub exact_features: Tensor,
    pub feature_lengths: Vec<usize>,
    /// Encoder rows of each utterance.
    pub row_counts: Vec<usize>,
    /// Labels of each utterance.
    pub labels: Vec<Vec<u32>>,
}

impl NemoCase {
    pub(super) fn read(check: &NemoCheck) -> Result<Self, RunError> {
        let tensors = check.tensors("io.safetensors")?;
        let get = |name: &str| find(&tensors, name);
        let counts = |name: &str| -> Result<Vec<usize>, RunError> {
            Ok(get(name)?.values.iter().map(|&count| count as usize).collect())
        };
        let mel = get("mel")?;
        let features = Tensor::from_slice(&mel.values, &mel.shape[..], &Device::Cpu)
            .and_then(|mel| mel.transpose(1, 2)?.contiguous()?.to_dtype(DType::F64))
            .map_err(candle_failure)?;
        let exact_features = exact_features(check, &tensors, features.dims())?;
        let (labels, label_counts) = (get("labels")?, counts("label_len")?);
        let longest = labels.values.len() / label_counts.len().max(1);
        let utterance = |(b, &count): (usize, &usize)| {
            labels.values[b * longest..][..count].iter().map(|&label| label as u32).collect()
        };
        Ok(NemoCase {
            features,
            exact_features,
            feature_lengths: counts("mel_len")?,
            row_counts: counts("enc_len")?,
            labels: label_counts.iter().enumerate().map(utterance).collect(),
            tensors,
        })
    }

    /// Returns a tensor, or an error.
    pub(super) fn tensor(&self, name: &str) -> Result<&StoredTensor, RunError> {
        find(&self.tensors, name)
    }
}

/// Computes the features in `f64`, padded to `[B, T, F]`.
fn exact_features(
    check: &NemoCheck,
    tensors: &BTreeMap<String, StoredTensor>,
    shape: &[usize],
) -> Result<Tensor, RunError> {
    let weights = check.tensors("weights.safetensors")?;
    let config = check.json("config.json")?;
    let is_normalized = config["preprocessor"]["normalize"] == "per_feature";
    let front_end = ExactFrontEnd::new(&weights, is_normalized)
        .ok_or_else(|| RunError::Failed("weights.safetensors: expected window and filters".into()))?;
    let (mut samples, utterance_len) = (&find(tensors, "wave")?.values[..], shape[1] * shape[2]);
    let mut values = Vec::new();
    for (b, &count) in find(tensors, "wave_len")?.values.iter().enumerate() {
        let (utterance, rest) = samples.split_at(count as usize);
        samples = rest;
        values.extend(front_end.features(utterance));
        values.resize((b + 1) * utterance_len, 0.0);
    }
    Tensor::from_vec(values, shape, &Device::Cpu).map_err(candle_failure)
}

fn find<'a>(tensors: &'a BTreeMap<String, StoredTensor>, name: &str) -> Result<&'a StoredTensor, RunError> {
    tensors.get(name).ok_or_else(|| RunError::Failed(format!("io.safetensors: expected {name}")))
}
