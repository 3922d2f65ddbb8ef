//! Memory of models for inference: no copies of weights, and encoding within its plan.
use std::path::Path;

use panda::model::encoders::NumberFormat;
use panda::model::{CheckpointWriter, MetadataRef, Model, ModelConfig, Progress};
use panda::recognizer::Recognizer;
use panda::speech::{Tokenizer, TokenizerKind};

use crate::counting_allocator::{Measurement, exclusive, live_bytes, measure};

const FAST_CONFORMER: &str = r#"
kind = "fastconformer"
layers = 4
width = 256
heads = 4
feed_forward = 1024
kernel = 9
[encoder.subsampling]
channels = 64
factor = 8
"#;

const CONFORMER: &str = r#"
kind = "conformer"
layers = 4
width = 256
heads = 4
feed_forward = 1024
kernel = 9
[encoder.subsampling]
channels = 16
"#;

const LSTM: &str = r#"
kind = "lstm"
layers = 4
hidden = 192
bidirectional = true
[encoder.time_reduction]
after_layer = 1
factor = 2
"#;

const RECIPE: &str = r#"
[features]
preset = "nemo"
mels = 80
[tokens]
kind = "words"
[encoder]
stack = 1
stride = 1
ENCODER
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

fn model_config(encoder: &str) -> (String, ModelConfig) {
    let recipe = RECIPE.replace("ENCODER", encoder);
    let config = ModelConfig::from_recipe(&recipe, Path::new("recipe")).unwrap();
    (recipe, config)
}

#[test]
fn loading_needs_the_packed_weights_and_one_tensor() {
    let _guard = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let tokenizer = Tokenizer::train(TokenizerKind::Words, &["a b c"]).unwrap();
    for encoder in [FAST_CONFORMER, CONFORMER, LSTM] {
        let (recipe, config) = model_config(encoder);
        let model = Model::new(&config, tokenizer.size()).unwrap();
        let (progress, json) = (Progress::default(), tokenizer.to_json().unwrap());
        let metadata = MetadataRef { recipe: &recipe, tokenizer: &json, progress: &progress, data: None };
        let mut writer = CheckpointWriter::new(metadata);
        writer.add_parameters(model.parameters());
        writer.write(&path).unwrap();
        let shapes = model.parameters().shapes();
        let sizes = || shapes.values().map(|shape| 4 * shape.iter().product::<usize>());
        let (weights, mut largest) = (sizes().sum::<usize>(), sizes().max().unwrap());
        drop(writer);
        drop(model);

        let mut formats = vec![(NumberFormat::Q8, weights * 34 / 128), (NumberFormat::F32, weights)];
        if encoder == FAST_CONFORMER {
            formats.push((NumberFormat::Bf16, weights / 2));
        } else {
            // These are packed layer by layer.
            largest = weights / 4;
        }
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
}

#[test]
fn encoding_needs_at_most_the_planned_bytes() {
    let _guard = exclusive();
    let subsampled = "kind = \"lstm\"\nlayers = 2\nhidden = 256\n[encoder.subsampling]\nchannels = 32\n";
    let wide = "kind = \"lstm\"\nlayers = 1\nhidden = 1024\nbidirectional = true\n";
    for encoder in [CONFORMER, LSTM, subsampled, wide] {
        let model = Model::new(&model_config(encoder).1, 5).unwrap();
        let batches = [vec![1], vec![900], vec![300; 16], vec![2000, 7, 40], vec![1; 50], vec![1; 400]];
        let formats = [NumberFormat::F32, NumberFormat::Q8].into_iter();
        for (format, lengths) in formats.flat_map(|format| batches.iter().map(move |batch| (format, batch))) {
            let packed = model.packed_encoder(format).unwrap().unwrap();
            let rows: Vec<Vec<f32>> = lengths.iter().map(|rows| vec![0.1; rows * 80]).collect();
            let utterances: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            // The second call has the buffers of the first one.
            let Measurement { peak_growth, result, .. } = measure(|| {
                let first = packed.encode(&utterances)?.rows.len();
                packed.encode(&utterances).map(|encoded| assert_eq!(encoded.rows.len(), first))
            });
            result.unwrap();
            let planned = packed.bytes(lengths);
            assert!(
                peak_growth <= planned + OTHER_BYTES,
                "{encoder} {lengths:?}: {peak_growth} of {planned}"
            );
            assert!(
                *lengths == [1] || planned < 4 * peak_growth,
                "{encoder} {lengths:?}: {peak_growth} of {planned}"
            );
        }
    }
}
