//! Tests the reference losses against golden vectors of independent programs, in f64.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor, Var};
use oracle::compare::assert_close;
use oracle::{dense, golden, reference};

struct Golden {
    tensors: HashMap<String, Tensor>,
    options: serde_json::Value,
}

impl Golden {
    fn f64s(&self, name: &str) -> Option<Vec<f64>> {
        let tensor = self.tensors.get(name)?.to_dtype(DType::F64).unwrap();
        Some(tensor.flatten_all().unwrap().to_vec1().unwrap())
    }

    fn lengths(&self, name: &str) -> Vec<usize> {
        self.f64s(name).unwrap().into_iter().map(|n| n as usize).collect()
    }

    fn labels(&self) -> Vec<Vec<u32>> {
        let ids: Vec<u32> = self.lengths("targets").into_iter().map(|id| id as u32).collect();
        let width = self.tensors["targets"].dims()[1];
        let counts = self.lengths("target_lens");
        ids.chunks(width).zip(counts).map(|(row, count)| row[..count].to_vec()).collect()
    }
}

/// Tolerance: expected values stored in single precision are exact to half a unit of it.
fn tolerance(golden: &Golden, name: &str) -> f64 {
    match golden.tensors[name].dtype() {
        DType::F32 => 1e-9 + f64::from(f32::EPSILON),
        _ => 1e-9,
    }
}

#[test]
fn dense_cases() {
    let Some(folder) = golden::folder() else { return };
    let mut names: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    names.sort();
    let mut done = 0;
    for path in names {
        let sidecar: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        if sidecar["kind"] != "rnnt_dense" {
            continue;
        }
        let tensors =
            candle_core::safetensors::load(path.with_extension("safetensors"), &Device::Cpu).unwrap();
        check(&sidecar["name"].to_string(), &Golden { tensors, options: sidecar["options"].clone() });
        done += 1;
    }
    assert!(done >= 27, "only {done} dense cases in {}", folder.display());
}

fn check(name: &str, golden: &Golden) {
    let logits = golden.tensors["logits"].to_dtype(DType::F64).unwrap();
    let dims: [usize; 4] = logits.dims().try_into().unwrap();
    let (frames, labels) = (golden.lengths("logit_lens"), golden.labels());
    let blank = golden.options["blank"].as_u64().unwrap() as u32;
    let fastemit = golden.options["fastemit_lambda"].as_f64().unwrap_or(0.0);
    let clip = |gradient: &[f64]| match golden.options["clamp"].as_f64() {
        Some(limit) => gradient.iter().map(|g| g.clamp(-limit, limit)).collect(),
        None => gradient.to_vec(),
    };
    let loss = golden.f64s("loss").unwrap();
    let loss_tolerance = 1e-9 * loss.iter().fold(0.0, |a: f64, b| a.max(b.abs()));
    let gradient = golden.f64s("grad_logits").unwrap();
    let gradient_tolerance = tolerance(golden, "grad_logits");

    let flat = golden.f64s("logits").unwrap();
    let computed = reference::transducer_loss(&flat, dims, &frames, &labels, blank, fastemit).unwrap();
    assert_close(&format!("{name} reference loss"), &computed.loss, &loss, loss_tolerance);
    assert_close(
        &format!("{name} reference gradient"),
        &clip(&computed.gradient),
        &gradient,
        gradient_tolerance,
    );
    for (field, values) in [("log_alpha", &computed.log_alpha), ("log_beta", &computed.log_beta)] {
        if let Some(expected) = golden.f64s(field) {
            assert_close(&format!("{name} {field}"), values, &expected, 1e-9);
        }
    }
    if let Some(expected) = golden.f64s("grad_logits_no_fastemit") {
        let plain = reference::transducer_loss(&flat, dims, &frames, &labels, blank, 0.0).unwrap();
        assert_close(&format!("{name} plain gradient"), &plain.gradient, &expected, 1e-9);
    }

    let logits = Var::from_tensor(&logits).unwrap();
    let dense_loss = dense::transducer_loss_fastemit(&logits, &frames, &labels, blank, fastemit).unwrap();
    let grads = dense_loss.sum_all().unwrap().backward().unwrap();
    let gradients = grads.get(&logits).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
    assert_close(&format!("{name} dense loss"), &dense_loss.to_vec1::<f64>().unwrap(), &loss, loss_tolerance);
    assert_close(&format!("{name} dense gradient"), &clip(&gradients), &gradient, gradient_tolerance);
}
