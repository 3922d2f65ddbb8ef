//! Tests that reading a model for inference copies no weights.
use std::path::Path;

use panda::model::encoders::NumberFormat;
use panda::model::{CheckpointWriter, MetadataRef, Model, ModelConfig, Progress};
use panda::recognizer::Recognizer;
use panda::speech::{Tokenizer, TokenizerKind};

use crate::counting_allocator::{Measurement, exclusive, live_bytes, measure};

const RECIPE: &str = r#"
[features]
preset = "nemo"
mels = 80
[tokens]
kind = "words"
[encoder]
kind = "fastconformer"
stack = 1
stride = 1
layers = 4
width = 256
heads = 4
feed_forward = 1024
kernel = 9
[encoder.subsampling]
channels = 64
factor = 8
[predictor]
kind = "stateless"
embedding = 8
context = 1
[joint]
width = 8
[training]
[batch]
max_frames = 100
max_utterances = 2
"#;

/// Bytes of everything besides the weights of the encoder: other parameters, buffers, metadata.
const OTHER_BYTES: usize = 3 << 20;

#[test]
fn loading_needs_the_packed_weights_and_one_tensor() {
    let _guard = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tokenizer = Tokenizer::train(TokenizerKind::Words, &["a b c"]).unwrap();
    let config = ModelConfig::from_recipe(RECIPE, Path::new("recipe")).unwrap();
    let model = Model::new(&config, tokenizer.size()).unwrap();
    let (progress, json) = (Progress::default(), tokenizer.to_json().unwrap());
    let metadata = MetadataRef { recipe: RECIPE, tokenizer: &json, progress: &progress, data: None };
    let mut writer = CheckpointWriter::new(metadata);
    writer.add_parameters(model.parameters());
    writer.write(&path).unwrap();
    let shapes = model.parameters().shapes();
    let sizes = || shapes.values().map(|shape| 4 * shape.iter().product::<usize>());
    let (weights, largest) = (sizes().sum::<usize>(), sizes().max().unwrap());
    drop(writer);
    drop(model);

    let formats = [
        (NumberFormat::F32, weights),
        (NumberFormat::Bf16, weights / 2),
        (NumberFormat::Q8, weights * 34 / 128),
    ];
    for (format, packed) in formats {
        let before = live_bytes();
        let Measurement { peak_growth, result, .. } = measure(|| Recognizer::load_as(&path, format));
        let (recognizer, kept) = (result.unwrap(), live_bytes() - before);
        // A tensor and its packed form are in memory at the same time.
        let limit = packed + packed / 10 + 2 * largest + OTHER_BYTES;
        assert!(peak_growth < limit, "{format:?}: peak {peak_growth}, weights {weights}, limit {limit}");
        assert!(kept < packed + packed / 10 + OTHER_BYTES, "{format:?}: kept {kept}, weights {weights}");
        assert!(kept > packed / 2);
        drop(recognizer);
    }
}
