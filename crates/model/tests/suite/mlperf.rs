//! Tests of the preset of MLPerf Training's RNN-T: sizes, initial weights.
use model::config::InitKind;
use model::{Model, ModelConfig};

#[test]
fn both_presets_have_the_published_number_of_parameters() {
    let count = |config: &ModelConfig| -> usize {
        Model::shapes(config, 1023).unwrap().values().map(|shape| shape.iter().product::<usize>()).sum()
    };
    assert_eq!(count(&ModelConfig::mlperf()), 49_006_080);
    // NVIDIA's submissions have 16 unused channels at the input.
    let mut padded = ModelConfig::mlperf();
    padded.input.rows.channels = 256;
    assert_eq!(count(&padded), 49_071_616);
}

#[test]
fn initial_weights_have_their_distributions() {
    for (scale, hidden_bias_scale) in [(0.5, 0.0), (0.35, 0.25)] {
        let mut config = ModelConfig::mlperf_with_widths(64, 48, 40);
        config.init = InitKind::Mlperf { scale, hidden_bias_scale };
        let model = Model::new(&config, 30).unwrap();
        let expect_largest = |values: &[f32], limit: f64, name: &str| {
            let largest = values.iter().fold(0f64, |largest, &x| largest.max(f64::from(x).abs()));
            assert!(largest <= limit * (1.0 + 1e-6) && largest > 0.9 * limit, "{name}: {largest} of {limit}");
        };
        for (name, values) in model.parameters().values().unwrap() {
            let hidden = if name.starts_with("encoder") { 64 } else { 48 };
            let limit = scale / f64::from(hidden as u32).sqrt();
            let forget_gate = hidden..2 * hidden;
            match name.rsplit('.').next().unwrap() {
                "weight_ih_l0" | "weight_hh_l0" => expect_largest(&values, limit, &name),
                "bias_ih_l0" => {
                    assert!(values[forget_gate.clone()].iter().all(|&b| b == scale as f32), "{name}");
                    expect_largest(&values[..hidden], limit, &name);
                    expect_largest(&values[2 * hidden..], limit, &name);
                }
                "bias_hh_l0" => {
                    let forget_biases = &values[forget_gate];
                    match hidden_bias_scale {
                        0.0 => assert!(forget_biases.iter().all(|&b| b == 0.0), "{name}"),
                        ratio => expect_largest(forget_biases, ratio * limit, &name),
                    }
                    expect_largest(&values[..hidden], limit, &name);
                }
                "bias" => {
                    let inputs = match name.as_str() {
                        "joint.encoder.bias" => 64.0,
                        "joint.predictor.bias" => 48.0,
                        _ => 40.0,
                    };
                    expect_largest(&values, 1.0 / f64::sqrt(inputs), &name);
                }
                _ => {}
            }
        }
        assert_eq!(model.parameters().get("predictor.embedding.weight").unwrap().dims(), [30, 48]);
    }
}
