//! A golden case of a transducer loss: tensors, options, errors of other programs.
//!
//! A case is `NAME.safetensors` with inputs and results, and a JSON sidecar with its options. A
//! peer is another program that computed the same results, for example in f32.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rnnt_loss::Element;
use rnnt_loss::Targets;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Deserialize;

use super::error::{Error, Result};

/// Fields of a sidecar that all kinds have.
#[derive(Debug, Deserialize)]
struct Sidecar {
    kind: String,
    #[serde(default)]
    options: Options,
    /// Errors of each peer, or the message of a peer that failed.
    #[serde(default)]
    peer_max_disagreement: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

/// Options of a case; options of other kinds are ignored.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Options {
    pub blank: Option<u32>,
    #[serde(default)]
    pub fastemit_lambda: f64,
    pub clamp: Option<f64>,
    pub layout: Option<String>,
    #[serde(default)]
    pub sigma: f64,
    #[serde(default)]
    pub omega: f64,
    #[serde(default)]
    pub durations: Vec<usize>,
    #[serde(default)]
    pub big_blank_durations: Vec<usize>,
    #[serde(default)]
    pub big_blank_ids: Vec<u32>,
    pub rnnt_type: Option<String>,
    pub s_range_requested: Option<usize>,
    #[serde(default)]
    pub delay_penalty: f64,
    #[serde(default)]
    pub lm_only_scale: f64,
    #[serde(default)]
    pub am_only_scale: f64,
}

/// A stored tensor, converted to f64 exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredTensor {
    /// Dimensions.
    pub shape: Vec<usize>,
    /// Elements, row-major.
    pub values: Vec<f64>,
    /// True if stored as f32, rounded to half a ULP.
    pub is_stored_in_f32: bool,
}

/// Smallest errors of the f32 peers, compared with the stored values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PeerErrors {
    /// Smallest `|loss - stored| / max(1, |stored|)`.
    pub loss: f64,
    /// Smallest maximum absolute error of a gradient.
    pub gradient: f64,
}

/// A golden case of a loss: its options, its tensors and the errors of its peers.
#[derive(Debug)]
pub(super) struct LossCase {
    pub name: String,
    pub kind: String,
    pub options: Options,
    /// Smallest errors of other programs in f32, if the sidecar has some.
    pub peer_errors: Option<PeerErrors>,
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
}

impl LossCase {
    /// Reads the tensors at `path`.
    ///
    /// `value` is the content of the sidecar `json`, the JSON file of the same name.
    pub(crate) fn read(json: PathBuf, path: PathBuf, name: &str, value: serde_json::Value) -> Result<Self> {
        let sidecar: Sidecar =
            serde_json::from_value(value).map_err(|source| Error::Sidecar { path: json, source })?;
        let tensors = read_tensors(&path)?;
        let peer_errors = smallest_peer_errors(&sidecar.peer_max_disagreement);
        Ok(Self {
            name: name.to_owned(),
            kind: sidecar.kind,
            options: sidecar.options,
            peer_errors,
            path,
            tensors,
        })
    }

    /// Returns an optional tensor.
    pub(crate) fn find(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    /// Returns a required tensor.
    pub(crate) fn get(&self, name: &str) -> Result<&StoredTensor> {
        self.find(name).ok_or_else(|| self.error(name, "a tensor of this name", "none"))
    }

    /// Fails if a tensor is missing.
    pub(crate) fn require(&self, names: &[&str]) -> Result<()> {
        for name in names {
            self.get(name)?;
        }
        Ok(())
    }

    /// Returns the shape of a tensor with `N` axes.
    pub(crate) fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = &self.get(name)?.shape;
        shape.as_slice().try_into().map_err(|_| self.error(name, &format!("{N} axes"), &format!("{shape:?}")))
    }

    /// Returns the values of a tensor in the type of a run.
    ///
    /// Inputs are stored as f32, so both types are exact.
    pub(crate) fn values<F: Element>(&self, name: &str) -> Result<Vec<F>> {
        Ok(self.get(name)?.values.iter().map(|&value| F::from_f64(value)).collect())
    }

    /// Returns blank, lengths and labels.
    pub(crate) fn targets(&self) -> Result<Targets> {
        let blank = self.options.blank.ok_or_else(|| self.error("options.blank", "a class id", "none"))?;
        let [batch, max_labels] = self.shape("targets")?;
        let lengths_name = if self.find("act_lens").is_some() { "act_lens" } else { "logit_lens" };
        let frames = self.integers(lengths_name, batch)?;
        let label_counts = self.integers("target_lens", batch)?;
        let ids = self.integers("targets", batch * max_labels)?;
        let mut labels = Vec::with_capacity(batch);
        for (b, &count) in label_counts.iter().enumerate() {
            if count > max_labels {
                let (expected, found) =
                    (format!("at most {max_labels}"), format!("{count} for utterance {b}"));
                return Err(self.error("target_lens", &expected, &found));
            }
            labels.push(ids[b * max_labels..][..count].iter().map(|&id| id as u32).collect());
        }
        Targets::new(blank, frames, labels)
            .map_err(|error| self.error("targets", "valid targets", &error.to_string()))
    }

    /// Returns nonnegative integers.
    fn integers(&self, name: &str, count: usize) -> Result<Vec<usize>> {
        let values = &self.get(name)?.values;
        if values.len() != count {
            return Err(self.error(name, &format!("{count} values"), &values.len().to_string()));
        }
        match values.iter().find(|&&value| value < 0.0 || value.fract() != 0.0 || value > f64::from(u32::MAX))
        {
            Some(value) => Err(self.error(name, "integers of at least 0", &value.to_string())),
            None => Ok(values.iter().map(|&value| value as usize).collect()),
        }
    }

    /// Creates an error about a tensor or option of this case.
    pub(crate) fn error(&self, argument: &str, expected: &str, found: &str) -> Error {
        Error::Case {
            path: self.path.clone(),
            argument: argument.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// Reads all tensors of a file.
pub(super) fn read_tensors(path: &Path) -> Result<BTreeMap<String, StoredTensor>> {
    let data =
        speech::files::read_regular(path).map_err(|source| Error::File { path: path.into(), source })?;
    let corrupt = |source| Error::Tensors { path: path.into(), source };
    let mut tensors = BTreeMap::new();
    for (name, view) in SafeTensors::deserialize(&data).map_err(corrupt)?.tensors() {
        let stored = stored_tensor(&view).ok_or_else(|| Error::Case {
            path: path.into(),
            argument: name.clone(),
            expected: "f16, f32, f64, i16, i32 or i64 values".into(),
            found: format!("{:?}", view.dtype()),
        })?;
        tensors.insert(name, stored);
    }
    Ok(tensors)
}

/// Converts a tensor of a supported type; returns none for other types.
fn stored_tensor(view: &TensorView) -> Option<StoredTensor> {
    let data = view.data();
    let values: Vec<f64> = match view.dtype() {
        Dtype::F16 => data.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f64()).collect(),
        Dtype::F32 => data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
        Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        Dtype::I16 => data.as_chunks().0.iter().map(|&b| f64::from(i16::from_le_bytes(b))).collect(),
        Dtype::I32 => data.as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect(),
        Dtype::I64 => data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
        _ => return None,
    };
    Some(StoredTensor { shape: view.shape().to_vec(), values, is_stored_in_f32: view.dtype() == Dtype::F32 })
}

/// Returns the smallest errors of the f32 peers that finished.
fn smallest_peer_errors(peers: &BTreeMap<String, BTreeMap<String, serde_json::Value>>) -> Option<PeerErrors> {
    let f32_peers = peers.iter().filter(|(name, _)| name.contains("fp32")).map(|(_, measures)| measures);
    let measure = |measures: &BTreeMap<String, serde_json::Value>, name: &str| measures.get(name)?.as_f64();
    f32_peers
        .filter_map(|measures| {
            Some(PeerErrors {
                loss: measure(measures, "loss_rel")?,
                gradient: measure(measures, "grad_abs")?,
            })
        })
        .reduce(|a, b| PeerErrors { loss: a.loss.min(b.loss), gradient: a.gradient.min(b.gradient) })
}
