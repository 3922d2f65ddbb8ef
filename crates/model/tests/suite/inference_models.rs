//! Models for inference compared with models that are read completely.
use std::path::Path;

use candle_core::{Device, Tensor};
use model::encoders::NumberFormat;
use model::{Checkpoint, CheckpointFile, Error, Model, ModelConfig, TrainingPass};

use crate::pretrained_models::{Pretrained, RNNT, recipe};
use crate::rows::{bits, random, values};

const LSTM: &str = r#"
[features]
mels = 16
[tokens]
kind = "sentencepiece"
[encoder]
stack = 1
stride = 1
layers = 2
hidden = 6
[predictor]
kind = "stateless"
embedding = 4
context = 1
[joint]
width = 6
[training]
[batch]
max_frames = 100
max_utterances = 2
"#;

/// Reads all values, then creates the model.
fn read_completely(path: &Path) -> Model {
    let checkpoint = Checkpoint::read(path).unwrap();
    let config = checkpoint.model_config(path).unwrap();
    let model = Model::new(&config, checkpoint.tokenizer(path).unwrap().size()).unwrap();
    model.parameters().set(checkpoint.average.as_ref().unwrap_or(&checkpoint.weights)).unwrap();
    model
}

/// Two utterances `[2, 40, 16]`.
fn rows() -> Tensor {
    Tensor::from_vec(random(2 * 40 * 16, 5, 1.0), (2, 40, 16), &Device::Cpu).unwrap()
}

fn encode(model: &Model) -> (Vec<u32>, Vec<usize>) {
    let (encoded, lengths) = model.encode(&rows(), &[40, 23]).unwrap();
    (bits(&values(&encoded)), lengths)
}

#[test]
fn models_for_inference_have_the_rows_of_models_that_are_read_completely() {
    for text in [recipe("", RNNT), LSTM.to_owned()] {
        let files = Pretrained::new(&text);
        let path = files.path("model.safetensors");
        // An average with other values is preferred.
        let mut checkpoint = Checkpoint::read(&path).unwrap();
        let mut average = checkpoint.weights.clone();
        average.values_mut().flatten().for_each(|value| *value *= 0.9);
        checkpoint.average = Some(average);
        checkpoint.write(&files.path("averaged.safetensors")).unwrap();
        let mut encoded = Vec::new();
        for name in ["model.safetensors", "averaged.safetensors"] {
            let complete = read_completely(&files.path(name));
            let model = Model::read_for_inference(&files.path(name), NumberFormat::F32).unwrap();
            assert_eq!(encode(&model), encode(&complete.for_inference(NumberFormat::F32).unwrap()));
            assert_eq!(model.encoder_format(), Some(NumberFormat::F32));
            assert!(model.parameters().iter().all(|(name, _)| !name.starts_with("encoder.")));
            assert_eq!(model.weight_checksums().unwrap(), complete.weight_checksums().unwrap());
            for (name, variable) in model.parameters().iter() {
                assert_eq!(values(variable), values(complete.parameters().get(name).unwrap()), "{name}");
            }
            let joint = |model: &Model| {
                bits(&values(&model.joint_rows(&rows(), &[40, 23], &[vec![1], vec![2, 0]]).unwrap().labels))
            };
            assert_eq!(joint(&model), joint(&complete));
            encoded.push(encode(&model));
            // In blocks, weights outside the encoder are equal as well.
            let quantized = complete.for_inference(NumberFormat::Q8).unwrap();
            let model = Model::read_for_inference(&files.path(name), NumberFormat::Q8).unwrap();
            assert_eq!(encode(&model), encode(&quantized));
            assert_eq!(joint(&model), joint(&quantized));
            assert_ne!(joint(&quantized), joint(&complete));
            assert_eq!(model.weight_checksums().unwrap(), quantized.weight_checksums().unwrap());
            assert_eq!(quantized.parameters().count(), model.parameters().count());
        }
        assert_ne!(encoded[0], encoded[1]);
    }
}

#[test]
fn other_formats_and_training_are_errors() {
    let files = Pretrained::new(&recipe("", RNNT));
    let path = files.path("model.safetensors");
    let model = Model::read_for_inference(&path, NumberFormat::Bf16).unwrap();
    let is_format_error =
        |error: Option<Error>| matches!(error, Some(Error::Shape { argument, .. }) if argument == "format");
    assert!(is_format_error(model.for_inference(NumberFormat::F32).err()));
    assert!(is_format_error(model.packed_encoder(NumberFormat::F32).err()));
    model.for_inference(NumberFormat::Bf16).unwrap();
    let mut pass = TrainingPass::new(1, 1, &[0, 1]);
    let error = model.encoder().forward(&rows(), &[40, 23], Some(&mut pass)).unwrap_err();
    assert!(error.to_string().contains("expected none: the encoder is for inference"), "{error}");
    for (shape, lengths) in
        [(vec![2, 40, 16], vec![40]), (vec![2, 20, 32], vec![20, 3]), (vec![2, 40, 16], vec![41, 3])]
    {
        let x = rows().reshape(shape).unwrap();
        let error = model.encoder().forward(&x, &lengths, None).unwrap_err();
        assert!(matches!(&error, Error::Shape { argument, .. } if argument == "x"), "{error}");
    }
    let files = Pretrained::new(LSTM);
    let error = Model::read_for_inference(&files.path("model.safetensors"), NumberFormat::Bf16).err();
    assert!(is_format_error(error));
}

#[test]
fn updates_of_an_adapter_are_merged() {
    let files = Pretrained::new(&(recipe("", RNNT) + "[adapter]\nrank = 3\nalpha = 1.5\n"));
    let path = files.path("model.safetensors");
    let base = Model::read_for_inference(&path, NumberFormat::F32).unwrap();
    let mut checkpoint = Checkpoint::read(&path).unwrap();
    for (name, values) in checkpoint.weights.iter_mut().filter(|(name, _)| name.ends_with("lora_b")) {
        *values = random(values.len(), name.len() as u64, 0.5);
    }
    checkpoint.write(&path).unwrap();
    let model = Model::read_for_inference(&path, NumberFormat::F32).unwrap();
    let complete = read_completely(&path).for_inference(NumberFormat::F32).unwrap();
    assert_eq!(encode(&model), encode(&complete));
    assert_ne!(encode(&model), encode(&base));
}

#[test]
fn damaged_and_foreign_tensors_are_errors_when_they_are_read() {
    let files = Pretrained::new(&recipe("", RNNT));
    let path = files.path("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let open = |bytes: &[u8]| {
        std::fs::write(files.path("damaged.safetensors"), bytes).unwrap();
        CheckpointFile::open(&files.path("damaged.safetensors"))
    };
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let file = open(&damaged).unwrap();
    let last = file.shapes().keys().last().unwrap().clone();
    let error = file.read_weight(&last).unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains(&last), "{error}");
    let first = file.shapes().keys().next().unwrap();
    file.read_weight(first).unwrap();
    assert!(file.read_weight("encoder").unwrap_err().to_string().contains("weight/encoder"));
    for end in [0, 7, 8, 100, bytes.len() - 1] {
        let error = open(&bytes[..end]).unwrap_err().to_string();
        assert!(error.contains("a whole safetensors file"), "{end}: {error}");
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(open(&longer).unwrap_err().to_string().contains("a whole safetensors file"));
    let file = open(&bytes).unwrap();
    assert_eq!(file.recipe(), Checkpoint::read(&path).unwrap().recipe);
    assert!(file.has_checksums() && file.imported().is_none());
    // A recipe with other shapes.
    let wider = recipe("", RNNT).replace("width = 8", "width = 16");
    let config = ModelConfig::from_recipe(&wider, Path::new("wider")).unwrap();
    let error = Model::from_file(&file, &config, 5, NumberFormat::F32).err().unwrap();
    assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
}
