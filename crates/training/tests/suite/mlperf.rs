//! The model of MLPerf Training's RNN-T: sizes, names and first weights.
use std::path::Path;

use candle_core::{Device, Tensor};
use model::config::InitConfig;
use model::{Model, ModelConfig};
use training::data::Batch;
use training::optimizer::OptimizerConfig;
use training::{Learner, Moment, Recipe};

fn small() -> ModelConfig {
    let mut config = ModelConfig::mlperf_of(12, 8, 10);
    config.input.features.mels = 3;
    config
}

#[test]
fn both_presets_have_the_published_number_of_parameters() {
    let count = |config: &ModelConfig| -> usize {
        Model::shapes(config, 1023).unwrap().values().map(|shape| shape.iter().product::<usize>()).sum()
    };
    assert_eq!(count(&ModelConfig::mlperf()), 49_006_080);
    // NVIDIA's submissions have 16 dead channels at the input.
    let mut padded = ModelConfig::mlperf();
    padded.input.rows.channels = 256;
    assert_eq!(count(&padded), 49_071_616);
}

#[test]
fn first_weights_have_their_laws() {
    for (scale, hidden_bias_scale) in [(0.5, 0.0), (0.35, 0.25)] {
        let mut config = ModelConfig::mlperf_of(64, 48, 40);
        config.init = InitConfig::Mlperf { scale, hidden_bias_scale };
        let model = Model::new(&config, 30).unwrap();
        let within = |values: &[f32], limit: f64, name: &str| {
            let largest = values.iter().fold(0f64, |m, &x| m.max(f64::from(x).abs()));
            assert!(largest <= limit * (1.0 + 1e-6) && largest > 0.9 * limit, "{name}: {largest} of {limit}");
        };
        for (name, values) in model.parameters().values().unwrap() {
            let hidden = if name.starts_with("encoder") { 64 } else { 48 };
            let limit = scale / f64::from(hidden as u32).sqrt();
            let forget = hidden..2 * hidden;
            match name.rsplit('.').next().unwrap() {
                "weight_ih_l0" | "weight_hh_l0" => within(&values, limit, &name),
                "bias_ih_l0" => {
                    assert!(values[forget.clone()].iter().all(|&b| b == scale as f32), "{name}");
                    within(&values[..hidden], limit, &name);
                    within(&values[2 * hidden..], limit, &name);
                }
                "bias_hh_l0" => {
                    let forgets = &values[forget];
                    match hidden_bias_scale {
                        0.0 => assert!(forgets.iter().all(|&b| b == 0.0), "{name}"),
                        share => within(forgets, share * limit, &name),
                    }
                    within(&values[..hidden], limit, &name);
                }
                "bias" => {
                    let inputs = match name.as_str() {
                        "joint.encoder.bias" => 64.0,
                        "joint.predictor.bias" => 48.0,
                        _ => 40.0,
                    };
                    within(&values, 1.0 / f64::sqrt(inputs), &name);
                }
                _ => {}
            }
        }
        assert_eq!(model.parameters().get("predictor.embedding.weight").unwrap().dims(), [30, 48]);
    }
}

/// Both biases of a layer learn, and from the same gradient.
#[test]
fn two_biases_have_the_same_gradient_and_zeros_stand_for_no_label() {
    let model = Model::new(&small(), 5).unwrap();
    let rows: Vec<f32> = (0..2 * 9 * 9).map(|i| (0.37 * i as f32).sin()).collect();
    let rows = Tensor::from_vec(rows, (2, 9, 9), &Device::Cpu).unwrap();
    let batch = Batch::new(rows, vec![9, 6], vec![vec![0, 4, 1], vec![]]);
    let learner = Learner::new(model, &OptimizerConfig::new(1e-3)).unwrap();
    let moment = Moment { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
    let mut parts = std::iter::once(Ok(batch));
    let (gradients, _) = learner.gradients(&mut parts, 2, &moment).unwrap();
    let values = |name: &str| -> Vec<f32> { gradients.get(name).unwrap().to_vec1().unwrap() };
    for layer in ["encoder.layers.0", "encoder.layers.4", "predictor.layers.1"] {
        let (input, hidden) = (format!("{layer}.bias_ih_l0"), format!("{layer}.bias_hh_l0"));
        assert_eq!(values(&input), values(&hidden));
        assert!(values(&input).iter().any(|g| *g != 0.0));
    }
    // Row 3 of the table is nobody's label here, and there is no row for the blank.
    let table: Vec<Vec<f32>> = gradients.get("predictor.embedding.weight").unwrap().to_vec2().unwrap();
    assert_eq!(table.len(), 5);
    assert!(table[3].iter().all(|g| *g == 0.0) && table[4].iter().any(|g| *g != 0.0));
}

#[test]
fn the_recipe_has_the_model_of_the_preset() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes/librispeech-mlperf.toml");
    let (recipe, _) = Recipe::read(&path, None).unwrap();
    assert_eq!(recipe.model(), ModelConfig { seed: recipe.seed, ..ModelConfig::mlperf() });
    assert_eq!(recipe.tokens.kind, speech::TokenizerKind::Unigram { size: 1023 });
}
