//! Tests of MLPerf Training's RNN-T model: gradients, and its recipe.
use std::path::Path;

use candle_core::{Device, Tensor};
use model::{Model, ModelConfig};
use training::data::Batch;
use training::optimizer::OptimizerConfig;
use training::{Learner, Recipe, StepPosition};

/// The model of MLPerf with small layers.
fn small_config() -> ModelConfig {
    let mut config = ModelConfig::mlperf_with_widths(12, 8, 10);
    config.input.features.mels = 3;
    config
}

/// Both biases of a layer have the same gradient.
#[test]
fn two_biases_have_the_same_gradient_and_unused_labels_have_none() {
    let model = Model::new(&small_config(), 5).unwrap();
    let rows: Vec<f32> = (0..2 * 9 * 9).map(|i| (0.37 * i as f32).sin()).collect();
    let rows = Tensor::from_vec(rows, (2, 9, 9), &Device::Cpu).unwrap();
    let batch = Batch::new(rows, vec![9, 6], vec![vec![0, 4, 1], vec![]]);
    let learner = Learner::new(model, &OptimizerConfig::new(1e-3)).unwrap();
    let position = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
    let mut batches = std::iter::once(Ok(batch));
    let (gradients, _) = learner.gradients(&mut batches, 2, &position).unwrap();
    let values = |name: &str| -> Vec<f32> { gradients.get(name).unwrap().to_vec1().unwrap() };
    for layer in ["encoder.layers.0", "encoder.layers.4", "predictor.layers.1"] {
        let (input, hidden) = (format!("{layer}.bias_ih_l0"), format!("{layer}.bias_hh_l0"));
        assert_eq!(values(&input), values(&hidden));
        assert!(values(&input).iter().any(|g| *g != 0.0));
    }
    // No label of the batch has row 3 of the table, and the blank has no row.
    let table: Vec<Vec<f32>> = gradients.get("predictor.embedding.weight").unwrap().to_vec2().unwrap();
    assert_eq!(table.len(), 5);
    assert!(table[3].iter().all(|g| *g == 0.0) && table[4].iter().any(|g| *g != 0.0));
}

#[test]
fn the_recipe_has_the_model_of_the_preset() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/librispeech-mlperf.toml");
    let (recipe, _) = Recipe::read(&path, None).unwrap();
    assert_eq!(recipe.model_config(), ModelConfig { seed: recipe.seed, ..ModelConfig::mlperf() });
    assert_eq!(recipe.tokens.kind, speech::TokenizerKind::Unigram { size: 1023 });
}
