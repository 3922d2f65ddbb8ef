//! A file of golden vectors of recognition lattices: tensors and what they are about.
use std::collections::BTreeMap;
use std::path::PathBuf;

use rnnt_loss::Element;
use serde::Deserialize;

use crate::case::{Stored, read_tensors};
use crate::error::{Error, Result};

/// The part of a sidecar that says what to do.
#[derive(Debug, Deserialize)]
struct Sidecar {
    /// None in files of components.
    case: Option<LatticeSettings>,
}

/// What a lattice is made of; sizes that the tensors have too are not repeated.
#[derive(Debug, Clone, Deserialize)]
pub struct LatticeSettings {
    /// V
    #[serde(rename = "V")]
    pub vocabulary: usize,
    /// Labels that a context remembers.
    #[serde(rename = "n")]
    pub order: usize,
    pub align: Align,
    /// Labels of a frame.
    #[serde(rename = "K")]
    pub expansions: Option<usize>,
    pub weights: WeightsFrom,
    pub local: Option<Local>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub enum Align {
    #[serde(rename = "FD")]
    FrameDependent,
    #[serde(rename = "FLD")]
    FrameLabelDependent,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightsFrom {
    Table,
    Emb,
    Rnn,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Local {
    Hat,
    LogSoftmax,
}

pub struct File {
    pub name: String,
    pub settings: Option<LatticeSettings>,
    path: PathBuf,
    tensors: BTreeMap<String, Stored>,
}

impl File {
    /// Reads a file from its sidecar's value; the tensors lie beside it.
    pub fn read(json: PathBuf, path: PathBuf, name: &str, value: serde_json::Value) -> Result<Self> {
        let sidecar: Sidecar =
            serde_json::from_value(value).map_err(|source| Error::Sidecar { path: json, source })?;
        let tensors = read_tensors(&path)?;
        Ok(Self { name: name.into(), settings: sidecar.case, path, tensors })
    }

    /// Names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    pub fn find(&self, name: &str) -> Option<&Stored> {
        self.tensors.get(name)
    }

    pub fn get(&self, name: &str) -> Result<&Stored> {
        self.find(name).ok_or_else(|| self.wrong(name, "a tensor of this name", "none"))
    }

    /// A tensor's values in the type of a run.
    pub fn values<F: Element>(&self, name: &str) -> Result<Vec<F>> {
        Ok(self.get(name)?.values.iter().map(|&value| F::from_f64(value)).collect())
    }

    pub fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = &self.get(name)?.shape;
        shape.as_slice().try_into().map_err(|_| self.wrong(name, &format!("{N} axes"), &format!("{shape:?}")))
    }

    /// Rows of a tensor, of at least one number.
    pub fn rows(&self, name: &str, width: usize) -> Result<std::slice::ChunksExact<'_, f64>> {
        let values = &self.get(name)?.values;
        if width == 0 || !values.len().is_multiple_of(width) {
            return Err(self.wrong(name, &format!("rows of {width}"), &format!("{} values", values.len())));
        }
        Ok(values.chunks_exact(width))
    }

    /// Whole numbers that are no less than zero.
    pub fn whole(&self, name: &str) -> Result<Vec<usize>> {
        let values = &self.get(name)?.values;
        let wrong = |&&value: &&f64| value < 0.0 || value.fract() != 0.0 || value > f64::from(u32::MAX);
        match values.iter().find(wrong) {
            Some(value) => Err(self.wrong(name, "whole numbers of at least 0", &value.to_string())),
            None => Ok(values.iter().map(|&value| value as usize).collect()),
        }
    }

    /// Tensors whose names begin so, by the rest of their names.
    pub fn under<'a>(&'a self, prefix: &str) -> impl Iterator<Item = (&'a str, &'a Stored)> {
        self.tensors.iter().filter_map(move |(name, stored)| Some((name.strip_prefix(prefix)?, stored)))
    }

    /// An error about this file.
    pub fn wrong(&self, argument: &str, expected: &str, found: &str) -> Error {
        Error::Case {
            path: self.path.clone(),
            argument: argument.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}
