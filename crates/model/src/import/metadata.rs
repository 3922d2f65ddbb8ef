//! `ImportedSource`: what export needs to restore an imported model.
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use safetensors::Dtype;
use serde::{Deserialize, Serialize};

/// Version of [`ImportedSource`]; raised whenever an old reader would misread a new one.
pub(crate) const SOURCE_VERSION: u32 = 1;

/// A layout of pretrained models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// NeMo: `.nemo` archives, or a folder with their names in safetensors.
    Nemo,
    /// Hugging Face transformers: `config.json` and `model.safetensors`.
    HuggingFace,
}

impl Layout {
    /// All layouts.
    pub const ALL: [Layout; 2] = [Layout::HuggingFace, Layout::Nemo];

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Layout::Nemo => "nemo",
            Layout::HuggingFace => "huggingface",
        }
    }
}

/// The source of an imported model, apart from its weights.
///
/// A checkpoint keeps it in its metadata, so that [`export`](crate::export) writes the same
/// configuration, files, dtypes and tensors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportedSource {
    /// Version of these fields.
    pub version: u32,
    /// The layout of the source.
    pub layout: Layout,
    /// Text of the configuration.
    pub configuration: String,
    /// Other files, such as the tokenizer's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, Base64Bytes>,
    /// Dtypes of weights that are not F32, by names of the layout.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub dtypes: BTreeMap<String, Dtype>,
    /// Tensors that are no parameters of the model: window, filter bank, counters of batches.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tensors: BTreeMap<String, ImportedTensor>,
}

/// A tensor that is no parameter of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportedTensor {
    /// Dtype of the elements.
    pub dtype: Dtype,
    /// Lengths of the axes.
    pub shape: Vec<usize>,
    /// Little-endian elements in row-major order.
    pub data: Base64Bytes,
}

/// Bytes that are base64 in JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Base64Bytes(pub Vec<u8>);

impl From<Base64Bytes> for String {
    fn from(bytes: Base64Bytes) -> Self {
        STANDARD.encode(bytes.0)
    }
}

impl TryFrom<String> for Base64Bytes {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        STANDARD.decode(text).map(Base64Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_read_as_it_is_written() {
        let tensor = ImportedTensor { dtype: Dtype::I64, shape: vec![], data: Base64Bytes(vec![0, 255, 3]) };
        let source = ImportedSource {
            version: SOURCE_VERSION,
            layout: Layout::HuggingFace,
            configuration: "{\n}".into(),
            files: [("tokenizer.model".into(), Base64Bytes(b"\x00\xff".to_vec()))].into(),
            dtypes: [("joint.head.weight".into(), Dtype::BF16)].into(),
            tensors: [("counter".into(), tensor)].into(),
        };
        let json = serde_json::to_string(&source).unwrap();
        assert!(json.contains(r#""layout":"huggingface""#) && json.contains(r#""BF16""#), "{json}");
        assert_eq!(serde_json::from_str::<ImportedSource>(&json).unwrap(), source);
        assert!(serde_json::from_str::<ImportedSource>(&json.replace("AP8=", "AP8*")).is_err());
    }
}
