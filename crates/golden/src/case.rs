//! A golden case as it lies on disk: tensors, options and how far other programs were from its answer.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rnnt_loss::Element;
use rnnt_loss::Targets;
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Deserialize;

use super::error::{Error, Result};

/// The part of a sidecar that every kind has.
#[derive(Debug, Deserialize)]
struct Sidecar {
    kind: String,
    #[serde(default)]
    options: Options,
    /// Values are measures, or the message of a peer that refused the case.
    #[serde(default)]
    peer_max_disagreement: BTreeMap<String, BTreeMap<String, serde_json::Value>>,
}

/// Options of a case; those of other kinds are ignored.
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

/// A stored tensor; every type is widened to f64, which holds each of them exactly.
#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, row-major.
    pub values: Vec<f64>,
    /// Stored as f32, so that an expected value is only good to half a unit of its last place.
    pub single: bool,
}

/// How far the best f32 peer was from the stored answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peers {
    /// Smallest `|loss - stored| / max(1, |stored|)`.
    pub loss: f64,
    /// Smallest of the peers' largest absolute gradient errors.
    pub gradient: f64,
}

#[derive(Debug)]
pub(super) struct LossCase {
    pub name: String,
    pub kind: String,
    pub options: Options,
    pub peers: Option<Peers>,
    path: PathBuf,
    tensors: BTreeMap<String, Stored>,
}

impl LossCase {
    /// Reads a case from its sidecar's value; the tensors lie beside it.
    pub fn read(json: PathBuf, path: PathBuf, name: &str, value: serde_json::Value) -> Result<Self> {
        let sidecar: Sidecar =
            serde_json::from_value(value).map_err(|source| Error::Sidecar { path: json, source })?;
        let tensors = read_tensors(&path)?;
        let peers = best(&sidecar.peer_max_disagreement);
        Ok(Self { name: name.to_owned(), kind: sidecar.kind, options: sidecar.options, peers, path, tensors })
    }

    /// A tensor that the kind may leave out.
    pub fn find(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    /// A tensor that the kind must have.
    pub fn get(&self, name: &str) -> Result<&Stored> {
        self.find(name).ok_or_else(|| self.wrong(name, "a tensor of this name", "none"))
    }

    /// A tensor with `N` axes.
    pub fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = &self.get(name)?.shape;
        shape.as_slice().try_into().map_err(|_| self.wrong(name, &format!("{N} axes"), &format!("{shape:?}")))
    }

    /// A tensor's values in the type of a run; inputs are stored as f32, so that nothing is lost either way.
    pub fn values<F: Element>(&self, name: &str) -> Result<Vec<F>> {
        Ok(self.get(name)?.values.iter().map(|&value| F::from_f64(value)).collect())
    }

    /// Blank, lengths and labels.
    pub fn targets(&self) -> Result<Targets> {
        let blank = self.options.blank.ok_or_else(|| self.wrong("options.blank", "a class id", "none"))?;
        let [batch, width] = self.shape("targets")?;
        let lengths = if self.find("act_lens").is_some() { "act_lens" } else { "logit_lens" };
        let frames = self.whole(lengths, batch)?;
        let counts = self.whole("target_lens", batch)?;
        let ids = self.whole("targets", batch * width)?;
        let mut labels = Vec::with_capacity(batch);
        for (b, &count) in counts.iter().enumerate() {
            if count > width {
                let (expected, found) = (format!("at most {width}"), format!("{count} for utterance {b}"));
                return Err(self.wrong("target_lens", &expected, &found));
            }
            labels.push(ids[b * width..b * width + count].iter().map(|&id| id as u32).collect());
        }
        Targets::new(blank, frames, labels)
            .map_err(|error| self.wrong("targets", "sound targets", &error.to_string()))
    }

    /// Whole numbers that are no less than zero.
    fn whole(&self, name: &str, count: usize) -> Result<Vec<usize>> {
        let values = &self.get(name)?.values;
        if values.len() != count {
            return Err(self.wrong(name, &format!("{count} values"), &values.len().to_string()));
        }
        match values.iter().find(|&&value| value < 0.0 || value.fract() != 0.0 || value > f64::from(u32::MAX))
        {
            Some(value) => Err(self.wrong(name, "whole numbers of at least 0", &value.to_string())),
            None => Ok(values.iter().map(|&value| value as usize).collect()),
        }
    }

    /// An error about this case.
    pub fn wrong(&self, argument: &str, expected: &str, found: &str) -> Error {
        Error::Case {
            path: self.path.clone(),
            argument: argument.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}

/// All tensors of a file.
pub(super) fn read_tensors(path: &Path) -> Result<BTreeMap<String, Stored>> {
    let data =
        speech::files::read_regular(path).map_err(|source| Error::File { path: path.into(), source })?;
    let corrupt = |source| Error::Tensors { path: path.into(), source };
    let mut tensors = BTreeMap::new();
    for (name, view) in SafeTensors::deserialize(&data).map_err(corrupt)?.tensors() {
        let stored = widen(&view).ok_or_else(|| Error::Case {
            path: path.into(),
            argument: name.clone(),
            expected: "f16, f32, f64, i32 or i64 values".into(),
            found: format!("{:?}", view.dtype()),
        })?;
        tensors.insert(name, stored);
    }
    Ok(tensors)
}

fn widen(view: &TensorView) -> Option<Stored> {
    let data = view.data();
    let values: Vec<f64> = match view.dtype() {
        Dtype::F16 => data.as_chunks().0.iter().map(|&b| half::f16::from_le_bytes(b).to_f64()).collect(),
        Dtype::F32 => data.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
        Dtype::F64 => data.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)).collect(),
        Dtype::I32 => data.as_chunks().0.iter().map(|&b| f64::from(i32::from_le_bytes(b))).collect(),
        Dtype::I64 => data.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b) as f64).collect(),
        _ => return None,
    };
    Some(Stored { shape: view.shape().to_vec(), values, single: view.dtype() == Dtype::F32 })
}

/// The best of the peers that worked in f32 and finished.
fn best(peers: &BTreeMap<String, BTreeMap<String, serde_json::Value>>) -> Option<Peers> {
    let single = peers.iter().filter(|(name, _)| name.contains("fp32")).map(|(_, measures)| measures);
    let measure = |measures: &BTreeMap<String, serde_json::Value>, name: &str| measures.get(name)?.as_f64();
    single
        .filter_map(|m| Some(Peers { loss: measure(m, "loss_rel")?, gradient: measure(m, "grad_abs")? }))
        .reduce(|a, b| Peers { loss: a.loss.min(b.loss), gradient: a.gradient.min(b.gradient) })
}
