//! Tests the reference losses against golden vectors of independent programs, in f64.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor, Var};
use oracle::compare::assert_close;
use oracle::{dense, golden, reference};

/// Tensors and options of a golden case.
struct GoldenCase {
    tensors: HashMap<String, Tensor>,
    options: serde_json::Value,
}

impl GoldenCase {
    /// Values of a tensor in f64; none if it is absent.
    fn values(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.tensors.get(name)?.to_dtype(DType::F64).unwrap();
        Some(tensor.flatten_all().unwrap().to_vec1().unwrap())
    }

    /// Values of a tensor of lengths or ids.
    fn lengths(&self, name: &str) -> Vec<usize> {
        self.values(name).unwrap().into_iter().map(|n| n as usize).collect()
    }

    /// Label ids of each utterance, without padding.
    fn labels(&self) -> Vec<Vec<u32>> {
        let ids: Vec<u32> = self.lengths("targets").into_iter().map(|id| id as u32).collect();
        let width = self.tensors["targets"].dims()[1];
        let counts = self.lengths("target_lens");
        ids.chunks(width).zip(counts).map(|(row, count)| row[..count].to_vec()).collect()
    }
}

/// Tolerance: expected values stored in single precision are exact to half a unit of it.
fn tolerance(golden: &GoldenCase, name: &str) -> f64 {
    match golden.tensors[name].dtype() {
        DType::F32 => 1e-9 + f64::from(f32::EPSILON),
        _ => 1e-9,
    }
}

#[test]
fn references_match_the_dense_golden_cases() {
    let Some(folder) = golden::folder() else { return };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    paths.sort();
    let mut checked_cases = 0;
    for path in paths {
        let sidecar: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        if sidecar["kind"] != "rnnt_dense" {
            continue;
        }
        let tensors =
            candle_core::safetensors::load(path.with_extension("safetensors"), &Device::Cpu).unwrap();
        check_case(
            &sidecar["name"].to_string(),
            &GoldenCase { tensors, options: sidecar["options"].clone() },
        );
        checked_cases += 1;
    }
    assert!(checked_cases >= 27, "only {checked_cases} dense cases in {}", folder.display());
}

/// Checks both references against loss and gradient of a case.
fn check_case(name: &str, golden: &GoldenCase) {
    let logits = golden.tensors["logits"].to_dtype(DType::F64).unwrap();
    let dims: [usize; 4] = logits.dims().try_into().unwrap();
    let (frames, labels) = (golden.lengths("logit_lens"), golden.labels());
    let blank = golden.options["blank"].as_u64().unwrap() as u32;
    let fastemit = golden.options["fastemit_lambda"].as_f64().unwrap_or(0.0);
    let clip = |gradient: &[f64]| match golden.options["clamp"].as_f64() {
        Some(limit) => gradient.iter().map(|g| g.clamp(-limit, limit)).collect(),
        None => gradient.to_vec(),
    };
    // Stored values.
    let loss = golden.values("loss").unwrap();
    let loss_tolerance = 1e-9 * loss.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    let gradient = golden.values("grad_logits").unwrap();
    let gradient_tolerance = tolerance(golden, "grad_logits");

    // The f64 recursion.
    let flat = golden.values("logits").unwrap();
    let computed = reference::transducer_loss(&flat, dims, &frames, &labels, blank, fastemit).unwrap();
    assert_close(&format!("{name} reference loss"), &computed.loss, &loss, loss_tolerance);
    assert_close(
        &format!("{name} reference gradient"),
        &clip(&computed.gradient),
        &gradient,
        gradient_tolerance,
    );
    for (field, values) in [("log_alpha", &computed.log_alpha), ("log_beta", &computed.log_beta)] {
        if let Some(expected) = golden.values(field) {
            assert_close(&format!("{name} {field}"), values, &expected, 1e-9);
        }
    }
    if let Some(expected) = golden.values("grad_logits_no_fastemit") {
        let plain = reference::transducer_loss(&flat, dims, &frames, &labels, blank, 0.0).unwrap();
        assert_close(&format!("{name} plain gradient"), &plain.gradient, &expected, 1e-9);
    }

    // The dense loss with candle's autograd.
    let logits = Var::from_tensor(&logits).unwrap();
    let dense_loss = dense::transducer_loss_fastemit(&logits, &frames, &labels, blank, fastemit).unwrap();
    let grads = dense_loss.sum_all().unwrap().backward().unwrap();
    let gradients = grads.get(&logits).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_close(&format!("{name} dense loss"), &dense_loss.to_vec1::<f64>().unwrap(), &loss, loss_tolerance);
    assert_close(&format!("{name} dense gradient"), &clip(&gradients), &gradient, gradient_tolerance);
}
