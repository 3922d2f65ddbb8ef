//! `ModelSource`: configuration, tensors and files of an archive or folder, before any check.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use speech::files::read_regular;

use super::archive::Archive;
use super::metadata::Layout;
use super::tensors::TensorFiles;
use super::yaml::{self, MAX_CONFIGURATION_BYTES};
use super::{read_text, safetensors_file, to_text, torch_file};
use crate::{Error, Result};

/// Names of NeMo's configuration, in an archive and in folders.
const NEMO_CONFIGURATIONS: [&str; 2] = ["model_config.yaml", "config.json"];
/// Name of the configuration of Hugging Face.
const HUGGINGFACE_CONFIGURATION: &str = "config.json";
/// Name of the weights in NeMo's archives.
const TORCH_WEIGHTS: &str = "model_weights.ckpt";
/// Largest file besides weights and configuration, such as a tokenizer.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// Files of Hugging Face folders that an export writes again.
const HUGGINGFACE_FILES: [&str; 7] = [
    "added_tokens.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
    "vocab.txt",
];

/// A model of another toolkit as it is stored.
pub(super) struct ModelSource {
    pub layout: Layout,
    pub files: TensorFiles,
    /// Text of the configuration, its file for messages, and its value.
    pub configuration: String,
    pub configuration_path: PathBuf,
    pub value: Value,
    /// Other files, without the tokenizer.
    pub other_files: BTreeMap<String, Vec<u8>>,
    tokenizers: TokenizerFiles,
}

/// The place of tokenizer files.
enum TokenizerFiles {
    Archive(Archive, PathBuf),
    Folder(PathBuf),
}

impl ModelSource {
    /// Opens an archive or a folder, whose contents determine its layout.
    ///
    /// # Errors
    /// [`Error::Conversion`] for a folder without a model, and for damaged files.
    pub(super) fn open(path: &Path, scratch_folder: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Self::open_archive(path, scratch_folder);
        }
        if let Some(files) = safetensors_file::read_folder(path, "model")? {
            return Self::open_folder(path, Layout::HuggingFace, files, &[HUGGINGFACE_CONFIGURATION]);
        }
        if let Some(files) = safetensors_file::read_folder(path, "weights")? {
            return Self::open_folder(path, Layout::Nemo, files, &NEMO_CONFIGURATIONS);
        }
        let expected =
            "model.safetensors (Hugging Face) or weights.safetensors (NeMo), or the index of several";
        Err(Error::conversion(
            path,
            "weights",
            expected,
            "neither; the path of a .nemo file is also accepted",
        ))
    }

    fn open_archive(path: &Path, scratch_folder: &Path) -> Result<Self> {
        let archive = Archive::open(path, scratch_folder)?;
        let configuration_path = path.join(NEMO_CONFIGURATIONS[0]);
        let bytes = archive.read(NEMO_CONFIGURATIONS[0], MAX_CONFIGURATION_BYTES)?;
        let configuration = to_text(&configuration_path, bytes)?;
        let value = yaml::parse(&configuration_path, &configuration)?;
        let (file, start, bytes) = archive.member(TORCH_WEIGHTS)?;
        let files = torch_file::read(path, TORCH_WEIGHTS, &file, start, bytes)?;
        let is_other =
            |name: &&str| ![NEMO_CONFIGURATIONS[0], TORCH_WEIGHTS].contains(name) && !is_tokenizer(name);
        let other_files = archive
            .names()
            .filter(is_other)
            .map(|name| Ok((name.to_owned(), archive.read(name, MAX_FILE_BYTES)?)))
            .collect::<Result<_>>()?;
        let tokenizers = TokenizerFiles::Archive(archive, path.to_owned());
        Ok(ModelSource {
            layout: Layout::Nemo,
            files,
            configuration,
            configuration_path,
            value,
            other_files,
            tokenizers,
        })
    }

    fn open_folder(path: &Path, layout: Layout, files: TensorFiles, configurations: &[&str]) -> Result<Self> {
        let Some(configuration_path) =
            configurations.iter().map(|name| path.join(name)).find(|path| path.exists())
        else {
            return Err(Error::conversion(path, "configuration", configurations.join(" or "), "none"));
        };
        let configuration = read_text(&configuration_path)?;
        // JSON is YAML, except for the limits of keys.
        let is_json = configuration_path.extension().is_some_and(|extension| extension == "json");
        let value = match is_json {
            true => serde_json::from_str(&configuration).map_err(|error| {
                Error::conversion(&configuration_path, "configuration", "JSON", error.to_string())
            })?,
            false => yaml::parse(&configuration_path, &configuration)?,
        };
        let other_files = match layout {
            Layout::HuggingFace => read_other_files(path, &HUGGINGFACE_FILES)?,
            Layout::Nemo => BTreeMap::new(),
        };
        let tokenizers = TokenizerFiles::Folder(path.to_owned());
        Ok(ModelSource { layout, files, configuration, configuration_path, value, other_files, tokenizers })
    }

    /// Reads the file of the tokenizer: `name`, or one with a usual name.
    ///
    /// # Errors
    /// [`Error::Conversion`] if there is none, or several that `name` does not decide between.
    pub(super) fn read_tokenizer(&self, name: Option<&str>) -> Result<(PathBuf, Vec<u8>)> {
        match &self.tokenizers {
            TokenizerFiles::Archive(archive, path) => {
                let names: Vec<&str> = archive.names().collect();
                let name = choose_tokenizer(path, &names, name)?;
                Ok((path.join(name), archive.read(name, MAX_FILE_BYTES)?))
            }
            TokenizerFiles::Folder(folder) => {
                let read_error = |error| Error::io(folder, "list the folder")(error);
                let mut names = Vec::new();
                for entry in std::fs::read_dir(folder).map_err(read_error)? {
                    names.extend(entry.map_err(read_error)?.file_name().into_string());
                }
                names.sort_unstable();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let path = folder.join(choose_tokenizer(folder, &names, name)?);
                let bytes = read_regular(&path).map_err(Error::io(&path, "read the tokenizer"))?;
                Ok((path, bytes))
            }
        }
    }
}

/// Returns true for the names of tokenizer models.
fn is_tokenizer(name: &str) -> bool {
    name.ends_with("tokenizer.model") || name.ends_with("tokenizer.json")
}

/// Chooses the file of the tokenizer.
fn choose_tokenizer<'a>(path: &Path, names: &[&'a str], name: Option<&str>) -> Result<&'a str> {
    let usual = [name.unwrap_or_default(), "tokenizer.json", "tokenizer.model"];
    if let Some(name) = usual.iter().find_map(|usual| names.iter().find(|name| *name == usual)) {
        return Ok(name);
    }
    let candidates: Vec<&&str> = names.iter().filter(|name| name.ends_with("tokenizer.model")).collect();
    match candidates[..] {
        [candidate] => Ok(candidate),
        [] => {
            let expected = name.map_or("tokenizer.json or tokenizer.model".into(), str::to_owned);
            Err(Error::conversion(path, "tokenizer", expected, "none; --tokenizer FILE names another file"))
        }
        _ => {
            let names = candidates.iter().map(|name| **name).collect::<Vec<_>>().join(", ");
            Err(Error::conversion(path, "tokenizer", "one file tokenizer.model", names))
        }
    }
}

/// Reads those of the files that exist.
fn read_other_files(folder: &Path, names: &[&str]) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut files = BTreeMap::new();
    for name in names {
        let path = folder.join(name);
        let Ok(metadata) = std::fs::metadata(&path) else { continue };
        if metadata.len() > MAX_FILE_BYTES {
            let expected = format!("at most {MAX_FILE_BYTES} bytes");
            return Err(Error::conversion(&path, "file", expected, metadata.len().to_string()));
        }
        files.insert((*name).to_owned(), read_regular(&path).map_err(Error::io(&path, "read"))?);
    }
    Ok(files)
}
