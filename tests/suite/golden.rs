//! Tests losses on candle tensors against golden vectors, gradients by autograd.
//!
//! The crate `golden` checks the functions on slices.
use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor, Var};
use oracle::{compare::difference, golden};
use panda::rnnt_loss::{Options, Targets, candle};

use crate::loss_problem::tensor_values;

/// A golden case: its options and its tensors.
struct GoldenCase {
    name: String,
    options: serde_json::Value,
    tensors: HashMap<String, Tensor>,
}

/// All golden cases of a kind.
fn cases(kind: &str) -> Vec<GoldenCase> {
    let Some(folder) = golden::folder() else { return Vec::new() };
    let entries = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let mut sidecars: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    sidecars.sort();
    let mut cases = Vec::new();
    for path in sidecars {
        let sidecar: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        if sidecar["kind"] == kind {
            let tensors =
                candle_core::safetensors::load(path.with_extension("safetensors"), &Device::Cpu).unwrap();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            cases.push(GoldenCase { name, options: sidecar["options"].clone(), tensors });
        }
    }
    assert!(!cases.is_empty(), "no case of kind {kind} in {}", folder.display());
    cases
}

impl GoldenCase {
    fn var(&self, name: &str, dtype: DType) -> Var {
        Var::from_tensor(&self.tensors[name].to_dtype(dtype).unwrap()).unwrap()
    }

    fn integers(&self, name: &str) -> Vec<usize> {
        tensor_values(&self.tensors[name]).into_iter().map(|n| n as usize).collect()
    }

    fn targets(&self) -> Targets {
        let (ids, counts) = (self.integers("targets"), self.integers("target_lens"));
        let width = ids.len() / counts.len();
        let row = |(row, count): (&[usize], usize)| row[..count].iter().map(|&id| id as u32).collect();
        let labels = ids.chunks(width).zip(counts).map(row).collect();
        let blank = self.options["blank"].as_u64().unwrap() as u32;
        Targets::new(blank, self.integers("logit_lens"), labels).unwrap()
    }

    fn options(&self) -> Options {
        let fastemit = self.options["fastemit_lambda"].as_f64().unwrap_or(0.0);
        Options { fastemit, clamp: self.options["clamp"].as_f64(), ..Options::default() }
    }

    #[track_caller]
    /// Compares a loss and its gradients with the stored ones.
    fn check(&self, dtype: DType, loss: &Tensor, variables: &[(&str, &Var)]) {
        let name = &self.name;
        let expected = tensor_values(&self.tensors["loss"]);
        let (loss_tolerance, gradient_tolerance) =
            if dtype == DType::F64 { (1e-9, 1e-9) } else { (2e-6, 2e-5) };
        for (computed, expected) in tensor_values(loss).iter().zip(&expected) {
            let error = (computed - expected).abs() / expected;
            assert!(error <= loss_tolerance, "{name} in {dtype:?}: loss {computed} against {expected}");
        }
        let grads = loss.sum_all().unwrap().backward().unwrap();
        for (input, var) in variables {
            let stored = &self.tensors[&format!("grad_{input}")];
            let gap = difference(&tensor_values(grads.get(var).unwrap()), &tensor_values(stored)).unwrap();
            let error = match (dtype, stored.dtype()) {
                (DType::F64, DType::F64) => gap.absolute,
                // Values stored in f32 have seven digits.
                _ => gap.relative_l2,
            };
            let tolerance = if stored.dtype() == DType::F32 { 2e-5 } else { gradient_tolerance };
            assert!(error <= tolerance, "{name} in {dtype:?}: grad_{input} differs: {gap:?}");
        }
    }
}

#[test]
fn losses_of_scores_match_golden_vectors() {
    for case in cases("rnnt_dense") {
        for dtype in [DType::F64, DType::F32] {
            let scores = case.var("logits", dtype);
            let loss = candle::scores_loss(&scores, &case.targets(), &case.options()).unwrap();
            case.check(dtype, &loss, &[("logits", &scores)]);
        }
    }
}

#[test]
fn losses_of_joint_networks_match_golden_vectors() {
    for case in cases("rnnt_joint_network") {
        for dtype in [DType::F64, DType::F32] {
            let names = ["h_enc", "h_pred", "W_A", "W_L", "b_Z", "W_O", "b_O"];
            let vars = names.map(|name| case.var(name, dtype));
            let [h_enc, h_pred, w_a, w_l, b_z, w_o, b_o] = &vars;
            let project = |x: &Tensor, w: &Tensor| x.broadcast_matmul(&w.t().unwrap()).unwrap();
            let frames = project(h_enc, w_a).broadcast_add(b_z).unwrap();
            let labels = project(h_pred, w_l);
            let loss = candle::transducer_loss(&frames, &labels, w_o, b_o, &case.targets(), &case.options())
                .unwrap();
            case.check(dtype, &loss, &names.into_iter().zip(&vars).collect::<Vec<_>>());
        }
    }
}
