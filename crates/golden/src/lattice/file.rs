//! A golden file of recognition lattices: its tensors and its settings, as read.
use std::collections::BTreeMap;
use std::path::PathBuf;

use rnnt_loss::Element;
use serde::Deserialize;

use crate::case::{StoredTensor, read_tensors};
use crate::error::{Error, Result};

/// Fields of a sidecar that the run needs.
#[derive(Debug, Deserialize)]
struct Sidecar {
    /// Settings of the lattice; none in files of components.
    case: Option<LatticeSettings>,
}

/// Settings of a whole lattice; other sizes follow from the tensors.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct LatticeSettings {
    /// Number of labels, V.
    #[serde(rename = "V")]
    pub vocabulary: usize,
    /// Number of labels in a context.
    #[serde(rename = "n")]
    pub order: usize,
    pub align: AlignmentKind,
    /// Maximum number of labels per frame.
    #[serde(rename = "K")]
    pub expansions: Option<usize>,
    pub weights: WeightSource,
    pub local: Option<LocalNormalization>,
}

/// How many labels a frame may emit: one (FD), or up to `expansions` (FLD).
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) enum AlignmentKind {
    #[serde(rename = "FD")]
    FrameDependent,
    #[serde(rename = "FLD")]
    FrameLabelDependent,
}

/// Source of the arc weights.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum WeightSource {
    /// Table of weights.
    Table,
    /// Joint network over a table of context embeddings.
    Emb,
    /// Joint network over the embeddings of a recurrent network.
    Rnn,
}

/// Normalization of the arc weights of each state.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LocalNormalization {
    Hat,
    LogSoftmax,
}

/// Tensors of a golden file, with the settings of a whole lattice.
pub(crate) struct LatticeFile {
    pub name: String,
    pub settings: Option<LatticeSettings>,
    path: PathBuf,
    tensors: BTreeMap<String, StoredTensor>,
}

impl LatticeFile {
    /// Reads the tensors at `path`.
    ///
    /// `value` is the content of the sidecar `json`, the JSON file of the same name.
    pub(crate) fn read(json: PathBuf, path: PathBuf, name: &str, value: serde_json::Value) -> Result<Self> {
        let sidecar: Sidecar =
            serde_json::from_value(value).map_err(|source| Error::Sidecar { path: json, source })?;
        let tensors = read_tensors(&path)?;
        Ok(Self { name: name.into(), settings: sidecar.case, path, tensors })
    }

    /// Returns the names of all tensors, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&StoredTensor> {
        self.tensors.get(name)
    }

    pub(crate) fn get(&self, name: &str) -> Result<&StoredTensor> {
        self.find(name).ok_or_else(|| self.error(name, "a tensor of this name", "none"))
    }

    /// Returns the values of a tensor in the type of a run.
    pub(crate) fn values<F: Element>(&self, name: &str) -> Result<Vec<F>> {
        Ok(self.get(name)?.values.iter().map(|&value| F::from_f64(value)).collect())
    }

    pub(crate) fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = &self.get(name)?.shape;
        shape.as_slice().try_into().map_err(|_| self.error(name, &format!("{N} axes"), &format!("{shape:?}")))
    }

    /// Returns the rows of a tensor, of at least one number.
    pub(crate) fn rows(&self, name: &str, width: usize) -> Result<std::slice::ChunksExact<'_, f64>> {
        let values = &self.get(name)?.values;
        if width == 0 || !values.len().is_multiple_of(width) {
            return Err(self.error(name, &format!("rows of {width}"), &format!("{} values", values.len())));
        }
        Ok(values.chunks_exact(width))
    }

    /// Returns nonnegative integers.
    pub(crate) fn integers(&self, name: &str) -> Result<Vec<usize>> {
        let values = &self.get(name)?.values;
        let is_invalid = |&&value: &&f64| value < 0.0 || value.fract() != 0.0 || value > f64::from(u32::MAX);
        match values.iter().find(is_invalid) {
            Some(value) => Err(self.error(name, "integers of at least 0", &value.to_string())),
            None => Ok(values.iter().map(|&value| value as usize).collect()),
        }
    }

    /// Returns tensors with a name prefix, by the rest of the name.
    pub(crate) fn with_prefix<'a>(
        &'a self,
        prefix: &str,
    ) -> impl Iterator<Item = (&'a str, &'a StoredTensor)> {
        self.tensors.iter().filter_map(move |(name, stored)| Some((name.strip_prefix(prefix)?, stored)))
    }

    /// Creates an error about a tensor or option of this file.
    pub(crate) fn error(&self, argument: &str, expected: &str, found: &str) -> Error {
        Error::Case {
            path: self.path.clone(),
            argument: argument.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}
