//! A golden file of MLPerf: its sidecar, and its tensors if it has any.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::case::{StoredTensor, read_tensors};
use crate::error::{Error, Result};

/// One MLPerf case: the JSON sidecar and the tensors that it lists.
pub(crate) struct MlPerfFile {
    pub name: String,
    pub kind: String,
    pub tensors: BTreeMap<String, StoredTensor>,
    json: PathBuf,
    sidecar: Value,
}

impl MlPerfFile {
    /// Creates a file from the value of its sidecar; reads the tensors that it lists.
    pub(crate) fn read(json: PathBuf, tensors: &Path, name: &str, sidecar: Value) -> Result<Self> {
        let kind = sidecar["kind"].as_str().unwrap_or_default().to_owned();
        let lists_tensors = sidecar["tensors"].as_object().is_some_and(|list| !list.is_empty());
        let tensors =
            if lists_tensors || tensors.exists() { read_tensors(tensors)? } else { BTreeMap::new() };
        Ok(Self { name: name.into(), kind, tensors, json, sidecar })
    }

    /// Reads the weights of the model from `NAME.weights.safetensors`.
    pub(crate) fn weights(&self) -> Result<BTreeMap<String, StoredTensor>> {
        read_tensors(&self.json.with_file_name(format!("{}.weights.safetensors", self.name)))
    }

    /// Returns the sidecar.
    pub(crate) fn sidecar(&self) -> &Value {
        &self.sidecar
    }

    /// Parses a field of the sidecar.
    pub(crate) fn field<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.sidecar.get(name).cloned().unwrap_or_default();
        serde_json::from_value(value)
            .map_err(|source| self.error(name, "a valid field of this kind", &source.to_string()))
    }

    /// Creates an error about a tensor or field of this file.
    pub(crate) fn error(&self, argument: &str, expected: &str, found: &str) -> Error {
        Error::Case {
            path: self.json.clone(),
            argument: argument.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}
