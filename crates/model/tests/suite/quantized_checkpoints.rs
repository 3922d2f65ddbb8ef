//! Tests of checkpoints in 8-bit blocks and bf16.
use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use decoding::{NetworkScratch, SiteBatch, SiteIndex};
use model::encoders::NumberFormat;
use model::{Checkpoint, CheckpointFile, Model, quantize};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::pretrained_models::{Pretrained, RNNT, recipe};
use crate::rows::{bits, random, values};

const LINEAR: &str = "encoder.layers.1.feed_forward1.linear2.weight";

fn quantized(files: &Pretrained, format: NumberFormat) -> std::path::PathBuf {
    let output = files.path(&format!("{}.safetensors", format.name()));
    quantize(&CheckpointFile::open(&files.path("model.safetensors")).unwrap(), format, &output).unwrap();
    output
}

fn encode(model: &Model) -> Vec<u32> {
    let x = Tensor::from_vec(random(2 * 40 * 16, 5, 1.0), (2, 40, 16), &Device::Cpu).unwrap();
    bits(&values(&model.encode(&x, &[40, 23]).unwrap().0))
}

/// Label row and scores of the first site after the start.
fn start_scores(model: &Model) -> (Vec<f32>, Vec<f32>) {
    let (decoder, mut scratch) = (model.decoder().unwrap(), NetworkScratch::default());
    let (predictor, joint) = (decoder.predictor(), decoder.joint());
    let (mut states, mut predicted) = predictor.start();
    predictor.step(&[2], &mut states, &mut predicted, &mut scratch);
    let mut label_row = vec![0.0; joint.label_row_width()];
    joint.project(&predicted, &mut label_row, &mut scratch);
    let frame = random(joint.frame_width(), 9, 1.0);
    let site = SiteIndex { utterance: 0, frame: 0, label_row: 0 };
    let sites = SiteBatch { frames: &[&frame], label_rows: &label_row, sites: &[site] };
    let mut scores = vec![0.0; joint.classes() + joint.durations()];
    joint.scores(&sites, &mut scores, &mut scratch);
    (label_row, scores)
}

#[test]
fn predictor_and_joint_network_are_quantized_as_at_load() {
    for loss in ["kind = \"rnnt\"", "kind = \"tdt\"\ndurations = [0, 1, 2]"] {
        let sections = RNNT.replace("kind = \"rnnt\"", loss).replace("layers = 1", "layers = 2");
        let wider = sections.replace("hidden = 6", "hidden = 40").replace("width = 6", "width = 36");
        for sections in [sections, wider] {
            let files = Pretrained::new(&recipe("", &sections));
            let path = files.path("model.safetensors");
            let original = start_scores(&Model::read_for_inference(&path, NumberFormat::F32).unwrap());
            let expected = start_scores(&Model::read_for_inference(&path, NumberFormat::Q8).unwrap());
            let file = quantized(&files, NumberFormat::Q8);
            let actual = start_scores(&Model::read_for_inference(&file, NumberFormat::Q8).unwrap());
            assert_eq!((bits(&actual.0), bits(&actual.1)), (bits(&expected.0), bits(&expected.1)));
            assert_ne!(bits(&actual.1), bits(&original.1));
            for (actual, original) in actual.1.iter().zip(&original.1) {
                assert!((actual - original).abs() < 0.05, "{actual} {original}");
            }
        }
    }
}

#[test]
fn files_in_blocks_have_the_rows_of_quantization_at_load() {
    // Rows of one block that is not full, and of several.
    for encoder in ["", "convolution_norm = \"layer\"\nbias = false"] {
        let wider = recipe(encoder, RNNT).replace("width = 8\nheads", "width = 40\nheads");
        for text in [recipe(encoder, RNNT), wider] {
            let files = Pretrained::new(&text);
            let path = files.path("model.safetensors");
            let expected = Model::read_for_inference(&path, NumberFormat::Q8).unwrap();
            let output = quantized(&files, NumberFormat::Q8);
            let model = Model::read_for_inference(&output, NumberFormat::Q8).unwrap();
            assert_eq!(encode(&model), encode(&expected));
            assert_eq!(model.encoder_format(), Some(NumberFormat::Q8));
            // Other formats convert the numbers of the blocks.
            let file = CheckpointFile::open(&output).unwrap();
            let mut converted = Checkpoint::read(&path).unwrap();
            for (name, values) in &mut converted.weights {
                *values = file.read_weight(name).unwrap();
            }
            let converted_path = files.path("converted.safetensors");
            converted.write(&converted_path).unwrap();
            for format in [NumberFormat::F32, NumberFormat::Bf16] {
                let [actual, expected] = [&output, &converted_path]
                    .map(|path| encode(&Model::read_for_inference(path, format).unwrap()));
                assert_eq!(actual, expected);
            }
        }
    }
}

#[test]
fn formats_and_bytes_of_parts_are_listed() {
    let files = Pretrained::new(&recipe("", RNNT));
    for (format, value_bytes) in [(NumberFormat::Q8, 1), (NumberFormat::Bf16, 2)] {
        let file = CheckpointFile::open(&quantized(&files, format)).unwrap();
        assert_eq!(file.format(), format);
        file.check_values().unwrap();
        assert_eq!(file.shapes(), &Checkpoint::read(&files.path("model.safetensors")).unwrap().shapes);
        let parts = file.stored_parts();
        let small = parts.iter().find(|part| part.format == format && part.name == "encoder").unwrap();
        // 2 layers of 2 feed-forward modules, 5 attention matrices and 2 convolutions.
        assert_eq!((small.name.as_str(), small.values), ("encoder", 2 * (4 * 128 + 5 * 64 + 128 + 64)));
        let output = |part: &str| parts.iter().find(|other| other.name == part && other.format == format);
        let output_values = ["predictor", "joint"].map(|part| output(part).map(|part| part.values));
        let labels = file.tokenizer().unwrap().size();
        let expected = [2 * 4 * 6 * 6, 6 * (8 + 6 + labels + 1)].map(Some);
        assert_eq!(output_values, if format == NumberFormat::Q8 { expected } else { [None; 2] });
        let scales = if format == NumberFormat::Q8 { 2 * 2 * (2 * 16 + 2 * 8 + 5 * 8 + 16 + 8) } else { 0 };
        assert_eq!(small.bytes, small.values * value_bytes + scales);
        let unchanged = parts.iter().filter(|part| part.format == NumberFormat::F32);
        assert!(
            unchanged.clone().count() >= 3 && unchanged.clone().all(|part| part.bytes == 4 * part.values)
        );
    }
    let file = CheckpointFile::open(&files.path("model.safetensors")).unwrap();
    assert!(file.format() == NumberFormat::F32 && file.stored_parts().len() >= 3);
}

#[test]
fn training_and_a_second_quantization_are_refused() {
    let files = Pretrained::new(&recipe("", RNNT));
    for format in [NumberFormat::Q8, NumberFormat::Bf16] {
        let output = quantized(&files, format);
        let error = Checkpoint::read(&output).unwrap_err().to_string();
        assert!(
            error.contains("expected weights in f32") && error.contains("use the file that it read"),
            "{error}"
        );
        let file = CheckpointFile::open(&output).unwrap();
        let error = quantize(&file, NumberFormat::Q8, &files.path("again")).unwrap_err().to_string();
        assert!(error.contains("expected weights in f32"), "{error}");
        assert!(!files.path("again").exists());
    }
    let file = CheckpointFile::open(&files.path("model.safetensors")).unwrap();
    let error = quantize(&file, NumberFormat::F32, &files.path("again")).unwrap_err().to_string();
    assert_eq!(error, "format: expected q8 or bf16, found f32");
    let adapted = Pretrained::new(&(recipe("", RNNT) + "[adapter]\nrank = 3\n"));
    let file = CheckpointFile::open(&adapted.path("model.safetensors")).unwrap();
    let error = quantize(&file, NumberFormat::Q8, &files.path("again")).unwrap_err().to_string();
    assert!(error.contains("panda adapter merge"), "{error}");
}

/// Checksums cover each byte of the values and of the metadata.
#[test]
fn damaged_files_are_errors() {
    let files = Pretrained::new(&recipe("", RNNT));
    for format in [NumberFormat::Q8, NumberFormat::Bf16] {
        let bytes = std::fs::read(quantized(&files, format)).unwrap();
        let damaged_path = files.path("damaged.safetensors");
        for position in (0..bytes.len()).step_by(61) {
            let mut damaged = bytes.clone();
            damaged[position] ^= 4;
            std::fs::write(&damaged_path, &damaged).unwrap();
            let model = Model::read_for_inference(&damaged_path, format);
            assert!(model.is_err(), "{format:?} byte {position} of {}", bytes.len());
        }
    }
}

/// A file of another program, without checksums of tensors that it changed.
#[test]
fn other_shapes_and_scales_are_errors() {
    let files = Pretrained::new(&recipe("", RNNT));
    let bytes = std::fs::read(quantized(&files, NumberFormat::Q8)).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let tensors: BTreeMap<_, _> = SafeTensors::deserialize(&bytes).unwrap().tensors().into_iter().collect();
    let (integers, scales) = (format!("weight/{LINEAR}"), format!("weight/{LINEAR}.scales"));
    let error = |name: &str, tensor: Option<(Dtype, Vec<usize>)>| {
        let mut changed = tensors.clone();
        match tensor {
            Some((dtype, shape)) => {
                let view = TensorView::new(dtype, shape, tensors[name].data()).unwrap();
                changed.insert(name.to_owned(), view);
            }
            None => drop(changed.remove(name)),
        }
        let path = files.path("changed.safetensors");
        std::fs::write(&path, serialize(changed, header.metadata().clone()).unwrap()).unwrap();
        CheckpointFile::open(&path).unwrap_err().to_string()
    };
    let [rows, columns] = tensors[&integers].shape() else { panic!("a matrix") };
    let blocks = columns.div_ceil(32);
    let expected_scales = format!("expected {scales} in F16, of shape {:?}", [*rows, blocks]);
    for (name, tensor, part) in [
        (&scales, None, &*expected_scales),
        (&scales, Some((Dtype::F16, vec![rows * blocks])), &expected_scales),
        (&scales, Some((Dtype::F16, vec![blocks, *rows])), &expected_scales),
        (&scales, Some((Dtype::BF16, vec![*rows, blocks])), &expected_scales),
        (&integers, None, "expected integers with the scales"),
        (&integers, Some((Dtype::I8, vec![rows * columns])), "scales in F16, of shape"),
        (&integers, Some((Dtype::U8, vec![*rows, *columns])), "of F32, BF16 or I8"),
        (&integers, Some((Dtype::F16, vec![*rows, columns / 2])), "of F32, BF16 or I8"),
    ] {
        let error = error(name, tensor.clone());
        assert!(error.contains(part), "{name} {tensor:?}: {error}");
    }
}
