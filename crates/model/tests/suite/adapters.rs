//! Tests of low-rank adapters: models, checkpoints, adapter files.
use std::path::Path;

use candle_core::Tensor;
use model::config::{AdapterConfig, AdapterModule};
use model::encoders::NumberFormat;
use model::{Adapter, Checkpoint, Layout, Model, ModelConfig, merge_adapter, remove_adapter};

use crate::pretrained_models::{Pretrained, RNNT, recipe};
use crate::rows::{bits, random, tensor, values};

const LABELS: usize = 5;
/// Bins and frames of the input.
const INPUT: [usize; 2] = [16, 40];

const ADAPTER: &str = "\n[adapter]\nrank = 3\nalpha = 1.5\n";

const CONFORMER: &str = "[features]\nmels = 16\n[encoder]\nkind = \"conformer\"\nstack = 1\nstride = 1\nlayers = 2\n\
     width = 8\nheads = 2\nfeed_forward = 16\nkernel = 3\nattention = { chunk = 4, left = 2 }\n";

fn fast_conformer_recipe() -> String {
    recipe("convolution_norm = \"batch\"\nbias = false", RNNT)
}

fn config(recipe: &str) -> ModelConfig {
    ModelConfig::from_recipe(recipe, Path::new("recipe")).unwrap()
}

/// Changes the values of parameters that `selects`.
fn change_values(values: &mut model::checkpoint::Values, selects: impl Fn(&str) -> bool) {
    for (seed, (_, values)) in (1..).zip(values.iter_mut().filter(|(name, _)| selects(name))) {
        *values = random(values.len(), seed, 0.5);
    }
}

/// Creates a model whose updates are not 0.
fn adapted_model(recipe: &str) -> Model {
    let model = Model::new(&config(&(recipe.to_owned() + ADAPTER)), LABELS).unwrap();
    let mut values = model.parameters().values().unwrap();
    change_values(&mut values, |name| name.ends_with("lora_b"));
    model.parameters().set(&values).unwrap();
    model
}

fn input() -> Tensor {
    tensor(&random(INPUT[0] * INPUT[1], 3, 1.0), &[1, INPUT[1], INPUT[0]])
}

fn encode(model: &Model) -> Tensor {
    model.encoder().forward(&input(), &[INPUT[1]], None).unwrap().0
}

/// A model without an adapter, with the merged weights of another.
fn merged_model(recipe: &str, adapted: &Model) -> Model {
    let adapter = adapted.config().adapter.clone().unwrap();
    let merged = Model::new(&config(recipe), LABELS).unwrap();
    let values = adapted.parameters().values().unwrap();
    let mut merged_values = merged.parameters().values().unwrap();
    for (name, weight) in &mut merged_values {
        weight.clone_from(&values[name]);
        let factor = |factor: &str| {
            let name = format!("{}.{factor}", name.strip_suffix(".weight")?);
            Some((values.get(&name)?, adapted.parameters().get(&name)?.dims()[1]))
        };
        let (Some((a, inputs)), Some((b, rank))) = (factor("lora_a"), factor("lora_b")) else { continue };
        for (index, weight) in weight.iter_mut().enumerate() {
            let (row, column) = (index / inputs, index % inputs);
            let sum: f32 = (0..rank).map(|k| b[row * rank + k] * a[k * inputs + column]).sum();
            *weight += adapter.scale() as f32 * sum;
        }
    }
    merged.parameters().set(&merged_values).unwrap();
    merged
}

fn assert_close(a: &[f32], b: &[f32], tolerance: f32) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < tolerance * (1.0 + b.abs())));
}

#[test]
fn encoders_with_adapters_equal_those_with_merged_weights() {
    let mut streams = 0;
    for recipe in [fast_conformer_recipe(), CONFORMER.to_owned() + RNNT] {
        // A new adapter changes nothing.
        let base = Model::new(&config(&recipe), LABELS).unwrap();
        let new = Model::new(&config(&(recipe.clone() + ADAPTER)), LABELS).unwrap();
        assert_eq!(values(&encode(&base)), values(&encode(&new)));
        // Each of 2 layers has 4 updates in attention and 4 in feed-forward modules.
        assert_eq!(new.parameters().iter().count() - base.parameters().iter().count(), 2 * 8 * 2);

        let adapted = adapted_model(&recipe);
        let merged = merged_model(&recipe, &adapted);
        let rows = values(&encode(&adapted));
        assert_close(&rows, &values(&encode(&merged)), 1e-5);
        assert!(rows.iter().zip(values(&encode(&base))).any(|(a, b)| (a - b).abs() > 0.1));
        let features = values(&input());
        let packed = adapted.packed_encoder(NumberFormat::F32).unwrap().unwrap();
        assert_close(&packed.encode(&[&features]).unwrap().rows, &rows, 2e-5);
        if let Some(stream) = adapted.stream_encoder().unwrap() {
            let mut state = stream.start();
            let chunk = model::encoders::EncoderChunk { state: &mut state, rows: &features, is_last: true };
            assert_close(&stream.step(&mut [chunk]).unwrap().concat(), &rows, 2e-5);
            streams += 1;
        }
    }
    assert!(streams > 0);
}

#[test]
fn only_the_factors_of_adapted_modules_have_gradients() {
    for (modules, module) in [("attention", "self_attn"), ("feed_forward", "feed_forward")] {
        let text = format!("{}{ADAPTER}modules = [\"{modules}\"]\n", fast_conformer_recipe());
        let model = Model::new(&config(&text), LABELS).unwrap();
        let mut values = model.parameters().values().unwrap();
        change_values(&mut values, |name| name.ends_with("lora_b"));
        model.parameters().set(&values).unwrap();
        let gradients = encode(&model).sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let mut count = 0;
        for (name, variable) in model.parameters().iter().filter(|(name, _)| name.starts_with("encoder.")) {
            let is_factor = name.ends_with("lora_a") || name.ends_with("lora_b");
            assert_eq!(gradients.get(variable).is_some(), is_factor, "{name}");
            assert!(!is_factor || name.contains(module), "{name}");
            count += usize::from(is_factor);
        }
        assert_eq!(count, 2 * 4 * 2);
        let trained = model.parameters().iter_trained();
        assert!(trained.into_iter().all(|(name, _)| !name.starts_with("encoder.") || name.contains("lora_")));
    }
}

#[test]
fn adapters_are_rejected_for_custom_encoders_without_them() {
    let text = "[encoder]\nlayers = 1\nhidden = 4\n".to_owned() + RNNT + ADAPTER;
    let error = ModelConfig::from_recipe(&text, Path::new("recipe")).unwrap_err().to_string();
    assert!(error.contains("adapter: expected none with encoder.kind = \"lstm\""), "{error}");
    let mut config = config(&("[encoder]\nlayers = 1\nhidden = 4\n".to_owned() + RNNT));
    let modules = vec![AdapterModule::Attention];
    config.adapter = Some(AdapterConfig { rank: 1, alpha: None, modules });
    assert!(Model::shapes(&config, LABELS).unwrap_err().to_string().contains("adapter: expected none"));
}

/// A base `model.safetensors`, and `adapted.safetensors` with other factors and parameters.
fn pretrained(trains_head: bool) -> Pretrained {
    let pretrained = Pretrained::new(&fast_conformer_recipe());
    let adapted = Pretrained::new(&(fast_conformer_recipe() + ADAPTER));
    let mut checkpoint = Checkpoint::read(&adapted.path("model.safetensors")).unwrap();
    change_values(&mut checkpoint.weights, |name| {
        name.contains("lora_") || (trains_head && name.starts_with("joint.head."))
    });
    if !trains_head {
        let names = "seed = 0\n[init]\nweights = \"x\"\nfrozen = [\"predictor\", \"joint\"]\n";
        checkpoint.recipe = names.to_owned() + &checkpoint.recipe;
    }
    checkpoint.write(&pretrained.path("adapted.safetensors")).unwrap();
    pretrained
}

fn read(path: &Path) -> Checkpoint {
    Checkpoint::read(path).unwrap()
}

fn assert_same_bits(a: &Checkpoint, b: &Checkpoint) {
    assert_eq!(a.shapes, b.shapes);
    for (name, values) in &a.weights {
        assert_eq!(bits(values), bits(&b.weights[name]), "{name}");
    }
}

#[test]
fn adapters_are_extracted_applied_and_removed_bit_for_bit() {
    let pretrained = pretrained(true);
    let [base_path, adapted_path, file] =
        ["model.safetensors", "adapted.safetensors", "adapter.safetensors"].map(|name| pretrained.path(name));
    let (base, adapted) = (read(&base_path), read(&adapted_path));
    let adapter = Adapter::extract(&adapted_path, &adapted).unwrap();
    let is_trained = |name: &str| !name.starts_with("encoder.") || name.contains("lora_");
    let trained: Vec<&String> = adapted.weights.keys().filter(|name| is_trained(name)).collect();
    assert_eq!(adapter.values.keys().collect::<Vec<_>>(), trained);
    adapter.write(&file).unwrap();
    assert_eq!(Adapter::read(&file).unwrap(), adapter);

    let applied = adapter.apply(&file, &base_path, &base).unwrap();
    assert_same_bits(&applied, &adapted);
    let applied_path = pretrained.path("applied.safetensors");
    applied.write(&applied_path).unwrap();
    let applied = read(&applied_path);
    assert_eq!((&applied.recipe, &applied.tokenizer), (&adapted.recipe, &adapted.tokenizer));
    // An adapter of the applied checkpoint is the same.
    assert_eq!(Adapter::extract(&applied_path, &applied).unwrap(), adapter);

    // The file of the base is restored.
    let removed_path = pretrained.path("removed.safetensors");
    remove_adapter(&applied_path, &applied).unwrap().write(&removed_path).unwrap();
    assert_eq!(std::fs::read(&removed_path).unwrap(), std::fs::read(&base_path).unwrap());
    // Without the values of the base, it cannot be.
    let error = remove_adapter(&adapted_path, &adapted).unwrap_err().to_string();
    assert!(error.contains("found other trained parameters: joint.encoder.bias, "), "{error}");
}

#[test]
fn an_adapter_that_is_the_only_trained_part_is_removed_from_its_run() {
    let pretrained = pretrained(false);
    let path = pretrained.path("adapted.safetensors");
    let adapted = read(&path);
    let base = read(&pretrained.path("model.safetensors"));
    assert_same_bits(&remove_adapter(&path, &adapted).unwrap(), &base);
    let adapter = Adapter::extract(&path, &adapted).unwrap();
    assert!(adapter.values.keys().all(|name| name.contains("lora_")));
    let applied = adapter.apply(Path::new("adapter"), &path, &base).unwrap();
    assert!(applied.adapter_base.as_ref().unwrap().values.is_empty());
    assert_same_bits(&remove_adapter(&path, &applied).unwrap(), &base);
}

#[test]
fn averages_are_extracted_and_frozen_parameters_are_weights() {
    let pretrained = pretrained(true);
    let path = pretrained.path("adapted.safetensors");
    let mut adapted = read(&path);
    let mut average = adapted.weights.clone();
    change_values(&mut average, |name| name.contains("lora_"));
    adapted.average = Some(average.clone());
    // The average of a frozen parameter is not used.
    let frozen = "encoder.layers.0.norm_out.bias";
    adapted.average.as_mut().unwrap().get_mut(frozen).unwrap()[0] = -0.0;
    let adapter = Adapter::extract(&path, &adapted).unwrap();
    assert!(adapter.values.iter().all(|(name, values)| *values == average[name]));
    let base_path = pretrained.path("model.safetensors");
    adapter.apply(Path::new("adapter"), &base_path, &read(&base_path)).unwrap();
}

#[test]
fn other_bases_and_other_files_are_errors() {
    let pretrained = pretrained(true);
    let [base_path, path, file] =
        ["model.safetensors", "adapted.safetensors", "adapter.safetensors"].map(|name| pretrained.path(name));
    let (base, adapted) = (read(&base_path), read(&path));
    let adapter = Adapter::extract(&path, &adapted).unwrap();
    let error = |adapter: &Adapter, base: &Checkpoint| {
        adapter.apply(&file, &base_path, base).unwrap_err().to_string()
    };
    // One bit of one frozen weight.
    let mut changed_base = base.clone();
    let name = "encoder.layers.1.conv.pointwise_conv2.weight";
    let weight = &mut changed_base.weights.get_mut(name).unwrap()[5];
    *weight = f32::from_bits(weight.to_bits() ^ 1);
    let message = error(&adapter, &changed_base);
    assert!(message.contains("model.safetensors: expected encoder.layers.1.conv.pointwise_conv2.weight"));
    assert!(message.contains("with the checksum") && message.contains("the base of "), "{message}");
    // Another head may be replaced.
    let mut changed_base = base.clone();
    changed_base.weights.get_mut("joint.head.bias").unwrap()[0] = 7.0;
    adapter.apply(&file, &base_path, &changed_base).unwrap();
    assert!(error(&adapter, &adapted).contains("expected a base without an adapter"));
    let mut incomplete = adapter.clone();
    incomplete.values.remove("joint.head.bias");
    assert!(error(&incomplete, &base).contains("expected joint.head.bias of shape [6], found none"));
    let mut wide = adapter.clone();
    wide.shapes.insert("joint.head.bias".into(), vec![7]);
    assert!(error(&wide, &base).contains("joint.head.bias as in its recipe: [6], found [7]"));
    // Checkpoints without an adapter.
    for result in [
        Adapter::extract(&base_path, &base).map(drop),
        merge_adapter(&base_path, &base).map(drop),
        remove_adapter(&base_path, &base).map(drop),
    ] {
        assert!(result.unwrap_err().to_string().contains("expected a recipe with [adapter], found none"));
    }
    // Files.
    assert!(Adapter::read(&base_path).unwrap_err().to_string().contains("expected format \"panda adapter\""));
    let bytes = adapter.to_bytes(&file).unwrap();
    assert!(bytes.len() < std::fs::read(&base_path).unwrap().len());
    for index in [0, 9, bytes.len() / 3, bytes.len() / 2, bytes.len() - 2] {
        let mut damaged = bytes.clone();
        damaged[index] ^= 1;
        std::fs::write(&file, damaged).unwrap();
        assert!(Adapter::read(&file).is_err(), "{index}");
    }
    std::fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(Adapter::read(&file).unwrap_err().to_string().contains("whole safetensors file"));
    assert!(Checkpoint::read(&path).is_ok());
    adapter.write(&file).unwrap();
    let error = Checkpoint::read(&file).unwrap_err().to_string();
    assert!(error.contains("format \"panda adapter\""), "{error}");
}

#[test]
fn merged_checkpoints_have_the_bits_of_the_adapted_model() {
    let pretrained = pretrained(true);
    let path = pretrained.path("adapted.safetensors");
    let adapted = read(&path);
    let merged = merge_adapter(&path, &adapted).unwrap();
    assert!(!merged.recipe.contains("[adapter]"), "{}", merged.recipe);
    let model_of = |checkpoint: &Checkpoint| {
        let model = Model::new(&checkpoint.model_config(&path).unwrap(), LABELS).unwrap();
        checkpoint.check(&path, &model.parameters().shapes()).unwrap();
        model.parameters().set(&checkpoint.weights).unwrap();
        model
    };
    let (adapted_model, merged_model) = (model_of(&adapted), model_of(&merged));
    assert_eq!(bits(&values(&encode(&adapted_model))), bits(&values(&encode(&merged_model))));
    let packed = |model: &Model| {
        let encoder = model.packed_encoder(NumberFormat::F32).unwrap().unwrap();
        bits(&encoder.encode(&[&values(&input())]).unwrap().rows)
    };
    assert_eq!(packed(&adapted_model), packed(&merged_model));
    // Exports are equal too.
    merged.write(&pretrained.path("merged.safetensors")).unwrap();
    let exports = ["adapted", "merged"].map(|name| {
        let archive =
            pretrained.export(&format!("{name}.safetensors"), Layout::Nemo, &format!("{name}.nemo"));
        std::fs::read(archive).unwrap()
    });
    assert!(exports[0] == exports[1]);
}
