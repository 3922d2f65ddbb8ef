//! A case: its sidecar, and the tensors beside it if it has any.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::case::{Stored, read_tensors};
use crate::error::{Error, Result};

pub struct File {
    pub name: String,
    pub kind: String,
    pub tensors: BTreeMap<String, Stored>,
    json: PathBuf,
    sidecar: Value,
}

impl File {
    /// Reads a file from its sidecar's value. A sidecar that lists tensors has them beside it.
    pub fn read(json: PathBuf, tensors: &Path, name: &str, sidecar: Value) -> Result<Self> {
        let kind = sidecar["kind"].as_str().unwrap_or_default().to_owned();
        let listed = sidecar["tensors"].as_object().is_some_and(|list| !list.is_empty());
        let tensors = if listed || tensors.exists() { read_tensors(tensors)? } else { BTreeMap::new() };
        Ok(Self { name: name.into(), kind, tensors, json, sidecar })
    }

    /// The model's weights, in a file of their own.
    pub fn weights(&self) -> Result<BTreeMap<String, Stored>> {
        read_tensors(&self.json.with_file_name(format!("{}.weights.safetensors", self.name)))
    }

    /// The sidecar.
    pub fn sidecar(&self) -> &Value {
        &self.sidecar
    }

    /// A field of the sidecar.
    pub fn field<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let value = self.sidecar.get(name).cloned().unwrap_or_default();
        serde_json::from_value(value)
            .map_err(|source| self.wrong(name, "what this kind has there", &source.to_string()))
    }

    /// An error about this file.
    pub fn wrong(&self, argument: &str, expected: &str, found: &str) -> Error {
        Error::Case {
            path: self.json.clone(),
            argument: argument.into(),
            expected: expected.into(),
            found: found.into(),
        }
    }
}
