//! Export of FastConformer models to NeMo and Hugging Face.
//!
//! | layout | files |
//! |---|---|
//! | NeMo | `NAME.nemo`: `model_config.yaml`, `model_weights.ckpt`, tokenizer |
//! | Hugging Face | a folder: `config.json`, `model.safetensors`, tokenizer |
//!
//! A model that was imported from the same layout is restored: configuration, files, dtypes and the
//! bits of every tensor. For other models, configuration and missing tensors are created.
mod architecture;
mod huggingface;
mod nemo;
mod nemo_config;
mod torch_file;
mod weights;
mod yaml;

use std::io::Write;
use std::path::{Path, PathBuf};

use speech::Tokenizer;
use speech::files::{Destination, is_same_file};

use crate::checkpoint::Checkpoint;
use crate::import::architecture::Architecture;
use crate::import::{ImportedSource, Layout};
use crate::{Error, Model, Result, merge_adapter};
use weights::ExportWeights;

/// A checkpoint to be exported.
struct Export<'a> {
    /// The checkpoint file.
    path: &'a Path,
    architecture: Architecture,
    tokenizer: Tokenizer,
    imported: Option<&'a ImportedSource>,
    weights: ExportWeights<'a>,
}

/// Writes a model in the layout of another toolkit; returns the files.
///
/// Averaged weights are exported if the checkpoint has them, and an adapter is merged. NeMo's
/// archive is `output` if that ends with `.nemo`, otherwise a file in the folder `output` with the
/// checkpoint's name. Existing files are replaced, each completely or not at all.
///
/// # Errors
/// [`Error::Conversion`] for a model that the layout cannot represent, and for an output that is
/// the checkpoint; [`Error::Checkpoint`] for a checkpoint with other parameters than its recipe;
/// [`Error::Io`].
pub fn export(path: &Path, checkpoint: &Checkpoint, layout: Layout, output: &Path) -> Result<Vec<PathBuf>> {
    let config = checkpoint.model_config(path)?;
    if config.adapter.is_some() {
        return export(path, &merge_adapter(path, checkpoint)?, layout, output);
    }
    let tokenizer = checkpoint.tokenizer(path)?;
    let shapes = Model::shapes(&config, tokenizer.size())?;
    checkpoint.check(path, &shapes)?;
    let architecture = architecture::from_config(path, &config, tokenizer.size())?;
    let values = checkpoint.average.as_ref().unwrap_or(&checkpoint.weights);
    let imported = checkpoint.imported.as_ref();
    let weights = ExportWeights::new(path, &config, &shapes, values, layout, imported)?;
    let export = Export { path, architecture, tokenizer, imported, weights };
    match layout {
        Layout::Nemo => nemo::write(&export, output),
        Layout::HuggingFace => huggingface::write(&export, output),
    }
}

impl Export<'_> {
    /// Returns the source if it has this layout and describes this model.
    ///
    /// `read` returns the architecture of its configuration.
    fn source_of_layout(
        &self,
        layout: Layout,
        read: impl FnOnce(&ImportedSource) -> Result<Architecture>,
    ) -> Option<&ImportedSource> {
        let source = self.imported.filter(|source| source.layout == layout)?;
        let architecture = read(source).ok()?;
        (architecture.without_training() == self.architecture.clone().without_training()).then_some(source)
    }

    /// Creates an error about an unsupported part of the model.
    fn error(&self, item: &str, expected: impl Into<String>, found: impl Into<String>) -> Error {
        Error::conversion(self.path, item, expected, found)
    }

    /// Writes a file with a function, completely or not at all.
    fn write_file(
        &self,
        output: &Path,
        write: &mut dyn FnMut(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<()> {
        if is_same_file(self.path, output) {
            return Err(Error::conversion(
                output,
                "output",
                "another file than the checkpoint",
                "the checkpoint",
            ));
        }
        Destination::open(output)
            .and_then(|destination| destination.write_with(write))
            .map_err(Error::io(output, "write"))
    }
}
