//! Golden test of MLPerf's full model: parameter shapes and initial distributions.
use std::collections::BTreeMap;

use model::config::InitKind;
use model::{Model, ModelConfig};
use serde::Deserialize;

use super::check::MlPerfCheck;
use super::network::NetworkSizes;
use crate::error::RunError;

#[derive(Debug, Deserialize)]
struct ModelShapes {
    total: usize,
    tensors: BTreeMap<String, TensorShape>,
}

#[derive(Debug, Deserialize)]
struct TensorShape {
    shape: Vec<usize>,
    count: usize,
}

/// Compares names, shapes and the total number of parameters.
pub(super) fn compare_shapes(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let sizes: NetworkSizes = check.file.field("options")?;
    // A field has the shapes for an input width: 240, or 256 with padding.
    for (field, inputs) in [("in_240", 240), ("in_256", 256)] {
        let ModelShapes { total, tensors } = check.file.field(field)?;
        let with_inputs = NetworkSizes { in_feats: inputs, ..sizes.clone() };
        let mut shapes = Model::shapes(&with_inputs.config(), sizes.n_classes - 1)?;
        let parameters: usize = shapes.values().map(|shape| shape.iter().product::<usize>()).sum();
        check.expect_equal(&format!("{field}: parameters"), &parameters, &total);
        for (name, TensorShape { shape, count }) in tensors {
            let shape_of_model = shapes.remove(&sizes.parameter_name(check.file, &name)?);
            check.expect_equal(&format!("{field}: {name}"), &shape_of_model, &Some(shape.clone()));
            check.expect_equal(&format!("{field}: {name}"), &shape.iter().product(), &count);
        }
        check.expect_equal(&format!("{field}: others"), &shapes.keys().next(), &None);
    }
    Ok(())
}

/// Expected distribution of a tensor, or of some gates of an LSTM.
///
/// A name that ends in `[forget]` selects the forget gates; other suffixes select the other gates.
#[derive(Debug, Deserialize)]
struct Distribution {
    exact: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    #[serde(default)]
    std: f64,
    count: usize,
}

/// Largest error of a constant value, which is stored in f32.
const CONSTANT_TOLERANCE: f64 = 1e-7;
/// Largest distance of a value from the range of its distribution.
const RANGE_TOLERANCE: f64 = 1e-8;
/// Maximum deviation of mean and standard deviation, in units of 1/√count.
const MAX_SIGMAS: f64 = 5.0;

/// Compares mean, deviation and limits of initial weights with their distributions.
pub(super) fn compare_distributions(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let sizes: NetworkSizes = check.file.field("options")?;
    let settings = check.file.sidecar().as_object().into_iter().flatten();
    let settings: Vec<String> =
        settings.map(|(key, _)| key.clone()).filter(|key| key.starts_with("weights_init_scale")).collect();
    for setting in settings {
        #[derive(Deserialize)]
        struct InitCase {
            expected: BTreeMap<String, Distribution>,
        }
        let InitCase { expected } = check.file.field(&setting)?;
        let numbers: Vec<f64> = setting.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let &[scale, hidden_bias_scale] = &numbers[..] else {
            return Err(check.file.error(&setting, "two numbers", &format!("{numbers:?}")).into());
        };
        let init = InitKind::Mlperf { scale, hidden_bias_scale };
        let model = Model::new(&ModelConfig { init, seed: 7, ..sizes.config() }, sizes.n_classes - 1)?;
        let values = model.parameters().values()?;
        let mut compared_values = 0;
        for (name, distribution) in &expected {
            // `TENSOR`, or `TENSOR[GATES]` for some gates of an LSTM.
            let (tensor, gates) =
                name.strip_suffix(']').and_then(|name| name.split_once('[')).unwrap_or((name, ""));
            let tensor_values = &values[&sizes.parameter_name(check.file, tensor)?];
            // Order of the gates of an LSTM: input, forget, cell, output.
            let gate_size = tensor_values.len() / 4;
            let part_values: Vec<f64> = tensor_values
                .iter()
                .enumerate()
                .filter(|(index, _)| match gates {
                    "" => true,
                    "forget" => index / gate_size == 1,
                    _ => index / gate_size != 1,
                })
                .map(|(_, &value)| f64::from(value))
                .collect();
            check.expect_equal(&format!("{setting}: {name}: count"), &part_values.len(), &distribution.count);
            check.expect_equal(
                &format!("{setting}: {name}: mismatch"),
                &find_mismatch(&part_values, distribution),
                &None,
            );
            compared_values += part_values.len();
        }
        check.expect_equal(&format!("{setting}: total count"), &compared_values, &model.parameters().count());
    }
    Ok(())
}

/// Returns how values differ from a distribution, if they do.
fn find_mismatch(values: &[f64], distribution: &Distribution) -> Option<String> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
    if let Some(exact) = distribution.exact {
        return values
            .iter()
            .find(|&&x| (x - exact).abs() > CONSTANT_TOLERANCE)
            .map(|x| format!("{x} is not {exact}"));
    }
    let (low, high) =
        (distribution.low.unwrap_or(f64::NEG_INFINITY), distribution.high.unwrap_or(f64::INFINITY));
    if let Some(x) = values.iter().find(|&&x| x < low - RANGE_TOLERANCE || x > high + RANGE_TOLERANCE) {
        return Some(format!("{x} is not within {low} and {high}"));
    }
    let tolerance = MAX_SIGMAS / count.sqrt();
    let is_deviation_off = distribution.std > 0.0 && (deviation / distribution.std - 1.0).abs() > tolerance;
    if is_deviation_off || mean.abs() > tolerance * distribution.std {
        return Some(format!(
            "mean {mean} and deviation {deviation}, expected deviation {}",
            distribution.std
        ));
    }
    None
}
