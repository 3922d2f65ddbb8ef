//! Sizes of the full model, and the laws of its first weights.
use std::collections::BTreeMap;

use model::config::InitKind;
use model::{Model, ModelConfig};
use serde::Deserialize;

use super::check::Check;
use super::network::NetworkSizes;
use crate::error::Stop;

#[derive(Debug, Deserialize)]
struct Counts {
    total: usize,
    tensors: BTreeMap<String, Counted>,
}

#[derive(Debug, Deserialize)]
struct Counted {
    shape: Vec<usize>,
    count: usize,
}

pub fn shapes(check: &mut Check) -> Result<(), Stop> {
    let sizes: NetworkSizes = check.file.field("options")?;
    for (field, inputs) in [("in_240", 240), ("in_256", 256)] {
        let Counts { total, tensors } = check.file.field(field)?;
        let with_inputs = NetworkSizes { in_feats: inputs, ..sizes.clone() };
        let mut found = Model::shapes(&with_inputs.config(), sizes.n_classes - 1)?;
        let all: usize = found.values().map(|shape| shape.iter().product::<usize>()).sum();
        check.equal(&format!("{field}: parameters"), &all, &total);
        for (name, Counted { shape, count }) in tensors {
            let ours = sizes.name(check.file, &name)?;
            let found = found.remove(&ours);
            check.equal(&format!("{field}: {name}"), &found, &Some(shape.clone()));
            check.equal(&format!("{field}: {name}"), &shape.iter().product(), &count);
        }
        check.equal(&format!("{field}: others"), &found.keys().next(), &None);
    }
    Ok(())
}

/// What a tensor, or a part of one, should be.
#[derive(Debug, Deserialize)]
struct Law {
    exact: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
    #[serde(default)]
    std: f64,
    count: usize,
}

/// Deviations of a mean, and shares of a deviation, in units of 1/√count.
const SIGMAS: f64 = 5.0;

pub fn run(check: &mut Check) -> Result<(), Stop> {
    let sizes: NetworkSizes = check.file.field("options")?;
    let settings = check.file.sidecar().as_object().into_iter().flatten();
    let settings: Vec<String> =
        settings.map(|(key, _)| key.clone()).filter(|key| key.starts_with("weights_init_scale")).collect();
    for setting in settings {
        #[derive(Deserialize)]
        struct InitCase {
            expected: BTreeMap<String, Law>,
        }
        let InitCase { expected } = check.file.field(&setting)?;
        let numbers: Vec<f64> = setting.split([' ', ',']).filter_map(|word| word.parse().ok()).collect();
        let &[scale, hidden_bias_scale] = &numbers[..] else {
            return Err(check.file.wrong(&setting, "two numbers", &format!("{numbers:?}")).into());
        };
        let init = InitKind::Mlperf { scale, hidden_bias_scale };
        let model = Model::new(&ModelConfig { init, seed: 7, ..sizes.config() }, sizes.n_classes - 1)?;
        let values = model.parameters().values()?;
        let mut parts = 0;
        for (name, law) in &expected {
            let (tensor, part) = name.split_once('[').unwrap_or((name, ""));
            let all = &values[&sizes.name(check.file, tensor)?];
            let quarter = all.len() / 4;
            let some: Vec<f64> = all
                .iter()
                .enumerate()
                .filter(|(at, _)| match part {
                    "" => true,
                    "forget]" => at / quarter == 1,
                    _ => at / quarter != 1,
                })
                .map(|(_, &value)| f64::from(value))
                .collect();
            check.equal(&format!("{setting}: {name}: numbers"), &some.len(), &law.count);
            check.equal(&format!("{setting}: {name}: wrong"), &wrong(&some, law), &None);
            parts += some.len();
        }
        check.equal(&format!("{setting}: numbers in all"), &parts, &model.parameters().count());
    }
    Ok(())
}

/// What of a law numbers do not keep.
fn wrong(values: &[f64], law: &Law) -> Option<String> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let deviation = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count).sqrt();
    if let Some(exact) = law.exact {
        // Stored to the precision of f32.
        return values.iter().find(|&&x| (x - exact).abs() > 1e-7).map(|x| format!("{x} is not {exact}"));
    }
    let (low, high) = (law.low.unwrap_or(f64::NEG_INFINITY), law.high.unwrap_or(f64::INFINITY));
    if let Some(x) = values.iter().find(|&&x| x < low - 1e-8 || x > high + 1e-8) {
        return Some(format!("{x} is not within {low} and {high}"));
    }
    let room = SIGMAS / count.sqrt();
    let law_deviates = law.std > 0.0 && (deviation / law.std - 1.0).abs() > room;
    if law_deviates || mean.abs() > room * law.std {
        return Some(format!("mean {mean} and deviation {deviation}, of {}", law.std));
    }
    None
}
