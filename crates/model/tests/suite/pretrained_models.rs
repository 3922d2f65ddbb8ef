//! Test helper: small pretrained models in the layouts of NeMo and Hugging Face.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use model::{
    Checkpoint, CheckpointWriter, ImportOptions, ImportedModel, Layout, MetadataRef, Model, ModelConfig,
};
use safetensors::Dtype;
use safetensors::tensor::{SafeTensors, TensorView, serialize};
use speech::Tokenizer;
use tempfile::TempDir;

/// Pieces of the tokenizer; the first one is the unknown piece.
pub(crate) const PIECES: [&str; 5] = ["<unk>", "▁a", "▁", "a", "b"];

/// Sections of a recipe after the encoder.
pub(crate) const RNNT: &str = r#"
[predictor]
kind = "lstm"
embedding = 6
hidden = 6
layers = 1
start = "zero"
two_biases = true
[joint]
width = 6
[loss]
kind = "rnnt"
activation = "relu"
[training]
"#;

/// A small recipe: an encoder and other sections.
pub(crate) fn recipe(encoder: &str, sections: &str) -> String {
    format!(
        "[features]\npreset = \"nemo\"\nmels = 16\n[tokens]\nkind = \"sentencepiece\"\n[encoder]\nkind = \"fastconformer\"\nstack = 1\n\
         stride = 1\nlayers = 2\nwidth = 8\nheads = 2\nfeed_forward = 16\nkernel = 3\n{encoder}\n[encoder.subsampling]\n\
         channels = 4\nfactor = 4\n{sections}\n[batch]\nmax_frames = 100\nmax_utterances = 2\n"
    )
}

/// The `.model` file of a SentencePiece unigram model with these pieces.
pub(crate) fn sentencepiece_model(pieces: &[&str]) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let piece = |(id, text): (usize, &&str)| {
        let score = [&[2 << 3 | 5][..], &(-(id as f32)).to_le_bytes()].concat();
        let kind = if id == 0 { 2 } else { 1 };
        field(1, &[field(1, text.as_bytes()), score, vec![3 << 3, kind]].concat())
    };
    let mut bytes: Vec<u8> = pieces.iter().enumerate().flat_map(piece).collect();
    // Trainer: model type unigram. Normalizer: identity, with a space in front.
    bytes.extend(field(2, &[3 << 3, 1]));
    bytes.extend(field(3, &[field(1, b"identity"), vec![3 << 3, 1, 4 << 3, 1, 5 << 3, 1]].concat()));
    bytes
}

/// A folder with a checkpoint of a small model.
pub(crate) struct Pretrained {
    folder: TempDir,
}

impl Pretrained {
    /// Creates a model with random weights.
    pub(crate) fn new(recipe: &str) -> Self {
        let pretrained = Pretrained { folder: tempfile::tempdir().unwrap() };
        let config = ModelConfig::from_recipe(recipe, Path::new("recipe")).unwrap();
        let tokenizer = Tokenizer::from_sentencepiece(&sentencepiece_model(&PIECES)).unwrap();
        let model = Model::new(&config, tokenizer.size()).unwrap();
        let (progress, tokenizer) = (Default::default(), tokenizer.to_json().unwrap());
        let metadata = MetadataRef { recipe, tokenizer: &tokenizer, progress: &progress, data: None };
        let mut writer = CheckpointWriter::new(metadata);
        writer.add_parameters(model.parameters());
        writer.write(&pretrained.path("model.safetensors")).unwrap();
        pretrained
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Exports the checkpoint `name` and returns the path of the model.
    pub(crate) fn export(&self, name: &str, layout: Layout, output: &str) -> PathBuf {
        let (path, output) = (self.path(name), self.path(output));
        let checkpoint = Checkpoint::read(&path).unwrap();
        model::export(&path, &checkpoint, layout, &output).unwrap();
        output
    }

    /// Imports a model and writes the checkpoint `name`.
    pub(crate) fn import(&self, model: &Path, name: &str) -> ImportedModel {
        let imported = ImportedModel::open(model, &ImportOptions::default()).unwrap();
        imported.write(&self.path(name)).unwrap();
        imported
    }

    /// Writes a folder with NeMo's names, from an archive; returns its path.
    pub(crate) fn nemo_folder(&self) -> PathBuf {
        let archive = self.export("model.safetensors", Layout::Nemo, "model.nemo");
        let imported = ImportedModel::open(&archive, &ImportOptions::default()).unwrap();
        let folder = self.path("nemo");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("model_config.yaml"), &imported.source().configuration).unwrap();
        std::fs::write(folder.join("tokenizer.model"), sentencepiece_model(&PIECES)).unwrap();
        write_tensors(&folder.join("weights.safetensors"), &source_tensors(&imported));
        folder
    }
}

/// Tensors by name: dtype, shape and bytes.
pub(crate) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// Reads all tensors of a source.
pub(crate) fn source_tensors(imported: &ImportedModel) -> Tensors {
    let read = |name: &str| {
        let tensor = imported.read_tensor(name).unwrap();
        (name.to_owned(), (tensor.dtype, tensor.shape, tensor.data.0))
    };
    imported.tensor_names().map(read).collect()
}

/// Reads a safetensors file.
pub(crate) fn read_tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let copy = |(name, view): (String, TensorView)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    tensors.tensors().into_iter().map(copy).collect()
}

/// Writes a safetensors file.
pub(crate) fn write_tensors(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

/// Reads all parameters of an imported model, as bits.
pub(crate) fn parameter_bits(imported: &ImportedModel) -> BTreeMap<String, Vec<u32>> {
    let read = |name: &String| {
        let values = imported.read_parameter(name).unwrap();
        (name.clone(), values.iter().map(|value| value.to_bits()).collect())
    };
    imported.shapes().keys().map(read).collect()
}
