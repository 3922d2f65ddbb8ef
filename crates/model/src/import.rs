//! Import of pretrained FastConformer models of NeMo and Hugging Face.
//!
//! | source | configuration | weights | tokenizer |
//! |---|---|---|---|
//! | `.nemo` archive | `model_config.yaml` | `model_weights.ckpt` of torch | the member that the configuration names |
//! | folder of NeMo | `model_config.yaml` or `config.json` | `weights.safetensors` | `tokenizer.model` |
//! | folder of Hugging Face | `config.json` | `model.safetensors`, or several and an index | `tokenizer.json` or `tokenizer.model` |
//!
//! [`ImportedModel::open`] checks every name, shape and dtype without reading the weights;
//! [`ImportedModel::write`] writes a checkpoint tensor by tensor. The checkpoint contains a recipe,
//! and an [`ImportedSource`] for [`export`](crate::export()).
pub(crate) mod architecture;
mod archive;
mod file_range;
pub(crate) mod front_end_tensors;
pub(crate) mod huggingface;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod nemo_config;
mod pickle;
mod safetensors_file;
mod section;
mod source;
pub(crate) mod tensors;
mod torch_file;
pub(crate) mod yaml;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use speech::Tokenizer;
use speech::files::read_regular;

use crate::checkpoint::Progress;
use crate::config::ModelConfig;
use crate::encoders::{AttentionLimits, ConvolutionNorm, EncoderKind};
use crate::parameters::Shapes;
use crate::{CheckpointWriter, Error, MetadataRef, Model, Result};
use architecture::Architecture;
pub(crate) use metadata::SOURCE_VERSION;
pub use metadata::{Base64Bytes, ImportedSource, ImportedTensor, Layout};
use names::{ForeignTensor, NameOptions, counter_name, foreign_tensors};
use source::ModelSource;
use tensors::{StoredTensor, TensorFiles, is_float};
use yaml::MAX_CONFIGURATION_BYTES;

/// Name of the embedding table in Hugging Face's layout.
const HUGGINGFACE_EMBEDDING: &str = "decoder.embedding.weight";
/// A bias that shows whether the layers of NeMo's encoder have biases.
const NEMO_LAYER_BIAS: &str = "encoder.layers.0.feed_forward1.linear1.bias";

/// Options of an import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// The range of attention, instead of the configuration's.
    pub attention: Option<AttentionLimits>,
    /// File of the tokenizer, instead of that of the model: `tokenizer.model` or `tokenizer.json`.
    pub tokenizer: Option<PathBuf>,
    /// Folder of a temporary file for gzipped archives; the system's by default.
    pub scratch_folder: Option<PathBuf>,
}

/// A model of another toolkit, with checked configuration, names and shapes.
#[derive(Debug)]
pub struct ImportedModel {
    recipe: String,
    config: ModelConfig,
    tokenizer: Tokenizer,
    shapes: Shapes,
    files: TensorFiles,
    /// The tensor of each parameter, and its rows there.
    places: BTreeMap<String, ParameterPlace>,
    source: ImportedSource,
}

/// The rows of a tensor that are a parameter.
#[derive(Debug)]
struct ParameterPlace {
    tensor: String,
    first_row: usize,
    rows: usize,
}

impl ImportedModel {
    /// Opens an archive or a folder, and checks everything except values.
    ///
    /// # Errors
    /// [`Error::Conversion`] for the first unsupported key, and the first missing, surplus or
    /// different tensor; [`Error::Io`].
    pub fn open(path: &Path, options: &ImportOptions) -> Result<Self> {
        let scratch_folder = options.scratch_folder.clone().unwrap_or_else(std::env::temp_dir);
        let source = ModelSource::open(path, &scratch_folder)?;
        let (mut architecture, tokenizer) = read_architecture(&source, options)?;
        if let (Some(attention), encoder) = (options.attention, &mut architecture.encoder) {
            let trained = std::mem::replace(&mut encoder.attention, attention);
            encoder.other_attention.retain(|limits| *limits != attention);
            if trained != attention {
                encoder.other_attention.insert(0, trained);
            }
        }
        let (recipe, config) = architecture.recipe(path, tokenizer_kind_name(&tokenizer))?;
        let shapes = Model::shapes(&config, architecture.labels)?;
        let names = NameOptions::new(&config, source.layout);
        let expected = foreign_tensors(&shapes, &names)
            .map_err(|name| Error::conversion(path, name, "a parameter with an equivalent", "none"))?;
        let mut imported = ImportedSource {
            version: SOURCE_VERSION,
            layout: source.layout,
            configuration: source.configuration,
            files: source.other_files.into_iter().map(|(name, bytes)| (name, Base64Bytes(bytes))).collect(),
            dtypes: BTreeMap::new(),
            tensors: BTreeMap::new(),
        };
        check_tensors(path, &source.files, &expected, &mut imported.dtypes)?;
        check_zero_rows(&source.files, &expected)?;
        imported.tensors = read_other_tensors(path, &source.files, &expected, &names, &config)?;
        let places = parameter_places(&expected);
        Ok(ImportedModel { recipe, config, tokenizer, shapes, files: source.files, places, source: imported })
    }

    /// Returns the text of the recipe.
    pub fn recipe(&self) -> &str {
        &self.recipe
    }

    /// Returns the configuration of the model.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Returns what an export needs besides the weights.
    pub fn source(&self) -> &ImportedSource {
        &self.source
    }

    /// Returns names and shapes of the parameters.
    pub fn shapes(&self) -> &Shapes {
        &self.shapes
    }

    /// Iterates over the names of the source's tensors, in alphabetical order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.files.tensors.keys().map(String::as_str)
    }

    /// Reads a tensor of the source as it is stored.
    ///
    /// # Errors
    /// [`Error::Shape`] for an unknown name; [`Error::Conversion`] for damage; [`Error::Io`].
    pub fn read_tensor(&self, name: &str) -> Result<ImportedTensor> {
        let tensor = self.files.tensors.get(name);
        let tensor = tensor.ok_or_else(|| Error::shape("name", "a tensor of the source", name))?;
        let data = Base64Bytes(self.files.read_bytes(name, tensor)?);
        Ok(ImportedTensor { dtype: tensor.dtype, shape: tensor.shape.clone(), data })
    }

    /// Reads the values of a parameter.
    ///
    /// # Errors
    /// [`Error::Conversion`] for values that are not finite, or not exact in `f32`;
    /// [`Error::Shape`] for an unknown name; [`Error::Io`].
    pub fn read_parameter(&self, name: &str) -> Result<Vec<f32>> {
        let Some(ParameterPlace { tensor, first_row, rows }) = self.places.get(name) else {
            return Err(Error::shape("name", "a parameter of the model", name));
        };
        let stored = &self.files.tensors[tensor];
        let mut values = self.files.read_f32(tensor, stored)?;
        let row = values.len() / stored.shape.first().copied().unwrap_or(1).max(1);
        values.truncate((first_row + rows) * row);
        values.drain(..first_row * row);
        Ok(values)
    }

    /// Writes a checkpoint, completely or not at all.
    ///
    /// One tensor is in memory at a time.
    ///
    /// # Errors
    /// Those of [`Self::read_parameter`]; [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let (progress, tokenizer) = (Progress::default(), self.tokenizer.to_json()?);
        let metadata =
            MetadataRef { recipe: &self.recipe, tokenizer: &tokenizer, progress: &progress, data: None };
        let mut writer = CheckpointWriter::new(metadata).with_imported(Some(&self.source));
        for (name, shape) in &self.shapes {
            writer.add_reader("weight", name, shape.clone(), || self.read_parameter(name));
        }
        writer.write(path)
    }
}

/// Reads configuration and tokenizer, which must have the same labels.
fn read_architecture(source: &ModelSource, options: &ImportOptions) -> Result<(Architecture, Tokenizer)> {
    let path = &source.configuration_path;
    match source.layout {
        Layout::Nemo => {
            let facts =
                nemo_config::TensorFacts { has_bias: source.files.tensors.contains_key(NEMO_LAYER_BIAS) };
            let config = nemo_config::read(path, &source.value, facts)?;
            let tokenizer = read_tokenizer(source, options, config.tokenizer_file.as_deref())?;
            if let Some(pieces) = &config.pieces {
                nemo_config::check_pieces(path, pieces, tokenizer.tokens())?;
            }
            with_labels(path, config.architecture, tokenizer)
        }
        Layout::HuggingFace => {
            let architecture = huggingface::read(path, &source.value, has_blank_embedding(&source.files)?)?;
            let tokenizer = read_tokenizer(source, options, None)?;
            with_labels(path, architecture, tokenizer)
        }
    }
}

/// Checks the number of labels; special tokens after them are removed from the tokenizer.
fn with_labels(
    path: &Path,
    architecture: Architecture,
    tokenizer: Tokenizer,
) -> Result<(Architecture, Tokenizer)> {
    let (labels, found) = (architecture.labels, tokenizer.size());
    let error = |found: String| Error::conversion(path, "tokenizer", format!("{labels} tokens"), found);
    if found == labels {
        return Ok((architecture, tokenizer));
    }
    let tokenizer = tokenizer.with_size(labels).map_err(|reason| error(format!("{found}: {reason}")))?;
    Ok((architecture, tokenizer))
}

/// Reads the tokenizer of the options, or that of the source.
fn read_tokenizer(source: &ModelSource, options: &ImportOptions, name: Option<&str>) -> Result<Tokenizer> {
    let (path, bytes) = match &options.tokenizer {
        Some(path) => (path.clone(), read_regular(path).map_err(Error::io(path, "read the tokenizer"))?),
        None => source.read_tokenizer(name)?,
    };
    let parsed = match path.extension().is_some_and(|extension| extension == "json") {
        true => Tokenizer::from_huggingface(&String::from_utf8_lossy(&bytes)),
        false => Tokenizer::from_sentencepiece(&bytes),
    };
    parsed.map_err(|source| Error::Inside { path, source: Box::new(source.into()) })
}

/// Returns the name of a tokenizer's kind in recipes.
fn tokenizer_kind_name(tokenizer: &Tokenizer) -> &'static str {
    match tokenizer.kind() {
        speech::TokenizerKind::HuggingFace => "huggingface",
        _ => "sentencepiece",
    }
}

/// Returns true if Hugging Face's embedding of the blank is not zero.
fn has_blank_embedding(files: &TensorFiles) -> Result<bool> {
    let Some(tensor) = files.tensors.get(HUGGINGFACE_EMBEDDING).filter(|tensor| is_float(tensor.dtype))
    else {
        return Ok(false);
    };
    Ok(!is_last_row_zero(files, HUGGINGFACE_EMBEDDING, tensor, 1)?)
}

/// Returns true if all bits of the last rows are zero.
fn is_last_row_zero(files: &TensorFiles, name: &str, tensor: &StoredTensor, rows: usize) -> Result<bool> {
    let bytes = files.read_bytes(name, tensor)?;
    let row = bytes.len() / tensor.shape.first().copied().unwrap_or(1).max(1);
    Ok(bytes[bytes.len() - rows * row..].iter().all(|&byte| byte == 0))
}

/// Checks names, shapes and dtypes; collects dtypes that are not F32.
fn check_tensors(
    path: &Path,
    files: &TensorFiles,
    expected: &BTreeMap<String, ForeignTensor>,
    dtypes: &mut BTreeMap<String, Dtype>,
) -> Result<()> {
    for (name, ForeignTensor { shape, .. }) in expected {
        let error = |expected: String, found: String| Err(Error::conversion(path, name, expected, found));
        let Some(tensor) = files.tensors.get(name) else {
            return error(format!("a tensor of shape {shape:?}"), "none".into());
        };
        if tensor.shape != *shape {
            return error(format!("shape {shape:?}"), format!("{:?}", tensor.shape));
        }
        if !is_float(tensor.dtype) {
            return error("F32, F16, BF16 or F64".into(), tensor.dtype.to_string());
        }
        if tensor.dtype != Dtype::F32 {
            dtypes.insert(name.clone(), tensor.dtype);
        }
    }
    Ok(())
}

/// Checks that embeddings of the blank, which models omit, are zero.
fn check_zero_rows(files: &TensorFiles, expected: &BTreeMap<String, ForeignTensor>) -> Result<()> {
    for (name, foreign) in expected.iter().filter(|(_, foreign)| foreign.zero_rows > 0) {
        let tensor = &files.tensors[name];
        if !is_last_row_zero(files, name, tensor, foreign.zero_rows)? {
            let expected = "zeros in its last row, the blank's";
            return Err(Error::conversion(files.path(tensor), name, expected, "other values"));
        }
    }
    Ok(())
}

/// Reads and checks tensors that are no parameters; all others are errors.
fn read_other_tensors(
    path: &Path,
    files: &TensorFiles,
    expected: &BTreeMap<String, ForeignTensor>,
    names: &NameOptions,
    config: &ModelConfig,
) -> Result<BTreeMap<String, ImportedTensor>> {
    let counters: Vec<String> = match &config.encoder {
        EncoderKind::FastConformer(encoder) if encoder.convolution_norm == ConvolutionNorm::Batch => {
            (0..encoder.layers).filter_map(|layer| counter_name(layer, names)).collect()
        }
        _ => Vec::new(),
    };
    let mels = config.input.features.mels;
    let mut other_tensors = BTreeMap::new();
    for (name, tensor) in files.tensors.iter().filter(|(name, _)| !expected.contains_key(*name)) {
        let error = |expected: String, found: String| Err(Error::conversion(path, name, expected, found));
        let front_end = match names.layout {
            Layout::Nemo => front_end_tensors::expected_tensor(name, mels),
            Layout::HuggingFace => None,
        };
        if let Some((shape, values)) = front_end {
            if tensor.shape != shape {
                return error(format!("shape {shape:?}"), format!("{:?}", tensor.shape));
            }
            let stored = files.read_f32(name, tensor)?;
            if let Some(index) = front_end_tensors::first_difference(tensor.dtype, &stored, &values) {
                let expected = format!("{} at {index}, as the front end computes it", values[index]);
                return error(expected, stored[index].to_string());
            }
        } else if counters.contains(name) {
            if tensor.dtype != Dtype::I64 || !tensor.shape.is_empty() {
                return error(
                    "an I64 scalar".into(),
                    format!("{} of shape {:?}", tensor.dtype, tensor.shape),
                );
            }
        } else {
            let surplus = format!("a surplus tensor, {} of shape {:?}", tensor.dtype, tensor.shape);
            return error("tensors of the model only".into(), surplus);
        }
        let data = Base64Bytes(files.read_bytes(name, tensor)?);
        other_tensors
            .insert(name.clone(), ImportedTensor { dtype: tensor.dtype, shape: tensor.shape.clone(), data });
    }
    Ok(other_tensors)
}

/// Returns the rows of each parameter in the tensors.
fn parameter_places(expected: &BTreeMap<String, ForeignTensor>) -> BTreeMap<String, ParameterPlace> {
    let mut places = BTreeMap::new();
    for (tensor, foreign) in expected {
        let mut first_row = 0;
        for (parameter, rows) in &foreign.parts {
            let place = ParameterPlace { tensor: tensor.clone(), first_row, rows: *rows };
            places.insert(parameter.clone(), place);
            first_row += rows;
        }
    }
    places
}

/// Reads a configuration or an index, whose size is limited.
fn read_text(path: &Path) -> Result<String> {
    let io_error = |error| Error::io(path, "read the configuration")(error);
    let bytes = std::fs::metadata(path).map_err(io_error)?.len();
    if bytes > MAX_CONFIGURATION_BYTES {
        let expected = format!("at most {MAX_CONFIGURATION_BYTES} bytes");
        return Err(Error::conversion(path, "configuration", expected, bytes.to_string()));
    }
    to_text(path, read_regular(path).map_err(io_error)?)
}

/// Converts the bytes of a configuration to text.
fn to_text(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| Error::conversion(path, "configuration", "text in UTF-8", "other bytes"))
}
