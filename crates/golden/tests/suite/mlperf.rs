//! Tests the golden reports on cases of MLPerf's RNN-T.
//!
//! Wrong values in a file must fail.
use std::path::Path;

use oracle::golden;

use ::golden::{Error, report};

/// Returns true if all runs pass, and the text of the report.
fn run_report(dir: &Path) -> (bool, String) {
    let mut out = Vec::new();
    let passed = report(dir, &mut out).unwrap();
    (passed, String::from_utf8(out).unwrap())
}

/// Copies a case to a folder; none without golden vectors.
fn copy_case(case: &str) -> Option<tempfile::TempDir> {
    let golden = golden::system_folder("mlperf")?;
    let dir = tempfile::tempdir().unwrap();
    for file in ["json", "safetensors"].map(|ending| format!("{case}.{ending}")) {
        let bytes = std::fs::read(golden.join(&file)).unwrap();
        std::fs::write(dir.path().join(&file), bytes).unwrap();
    }
    Some(dir)
}

/// Replaces a text in a sidecar.
fn replace_in_sidecar(dir: &Path, case: &str, old: &str, new: &str) {
    let path = dir.join(format!("{case}.json"));
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(old), "{old}");
    std::fs::write(path, text.replacen(old, new, 1)).unwrap();
}

/// Adds to the first number of a tensor.
fn add_to_first_value(dir: &Path, case: &str, tensor: &str, difference: f64) {
    let path = dir.join(format!("{case}.safetensors"));
    let mut file = std::fs::read(&path).unwrap();
    // A file has the size of the header in 8 bytes, the header, and the tensors.
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let offset = start + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    match header[tensor]["dtype"].as_str().unwrap() {
        "F64" => {
            let value = f64::from_le_bytes(file[offset..offset + 8].try_into().unwrap()) + difference;
            file[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
        }
        "I32" => {
            let value = i32::from_le_bytes(file[offset..offset + 4].try_into().unwrap()) + difference as i32;
            file[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        }
        other => panic!("{other}"),
    }
    std::fs::write(path, file).unwrap();
}

#[test]
fn golden_vectors_pass() {
    let Some(dir) = golden::system_folder("mlperf") else { return };
    let (passed, text) = run_report(&dir);
    println!("{text}");
    assert!(passed, "{text}");
    for (kind, runs) in [
        ("lamb", 6),
        ("schedule", 4),
        ("ema", 2),
        ("batching", 2),
        ("model", 3),
        ("decode", 2),
        ("parameters", 1),
        ("initialisation", 1),
    ] {
        let is_pass = |line: &&str| line.split_whitespace().nth(1) == Some(kind) && line.ends_with("  pass");
        assert_eq!(text.lines().filter(is_pass).count(), runs, "{kind}: {text}");
    }
}

#[test]
fn a_wrong_value_fails_with_its_name() {
    for (case, tensor, difference, failed_runs) in [
        ("lamb_single_clip", "step25.param.weight", 1e-9, 1),
        ("lamb_single_clip", "step5.v.bias", 1.0, 2),
        ("lamb_distributed_clip", "grad_divisor", 1e-3, 2),
        ("lamb_no_clip_no_bias_correction", "trust_ratio", 1e-3, 2),
        ("schedule_small", "no_hold.lr", 1e-6, 2),
        ("schedule_published", "gbs_4096.step", 1.0, 2),
        ("ema", "decay0.96.ema", 1e-9, 1),
        ("ema", "decay0.999.ema_from_f16", 1e-5, 2),
        ("batching_filter_buckets", "kept", 1.0, 1),
        ("batching_filter_buckets", "bucket_of.k6", 1.0, 1),
        ("batching_parts", "presort.order", 1.0, 1),
        ("batching_parts", "packed.batch_offset", 1.0, 1),
    ] {
        let Some(dir) = copy_case(case) else { return };
        assert!(run_report(dir.path()).0, "{case}");
        add_to_first_value(dir.path(), case, tensor, difference);
        let (passed, text) = run_report(dir.path());
        assert!(!passed && text.contains(&format!(" {failed_runs} failed")), "{case} {tensor}: {text}");
        let named_tensor = if tensor.ends_with("step") { "gbs_4096.lr" } else { tensor };
        assert!(text.contains(&format!("FAIL ({named_tensor}[")), "{case}: {text}");
    }
}

#[test]
fn values_of_sidecars_are_compared() {
    for (case, old, new, part) in [
        ("batching_parts", "\"pivot\": 244", "\"pivot\": 242", "sequence_split of"),
        ("batching_parts", "[1, 13]", "[1, 26]", "captured_lengths of 641 in 50: 1: expected Some(26)"),
        ("batching_parts", "\"loss_divisor\": 6", "\"loss_divisor\": 3", "batch_split of 12 by 3"),
        ("batching_parts", "\"frames\": 1225", "\"frames\": 1224", "lengths of 195840 samples"),
        ("batching_filter_buckets", "[42, 41, 41, 41]", "[41, 42, 41, 41]", "bucket_sizes.k4"),
        ("batching_filter_buckets", "\"steps_per_epoch\": 5", "\"steps_per_epoch\": 6", "plan 5 x 2 x 3"),
        ("lamb_single_clip", "\"no_decay\": []", "\"no_decay\": [\"bias\"]", "param.bias"),
        ("lamb_single_clip", "[1, 2, 5, 25]}", "[1, 2, 5]}", "never read: f32.step25"),
        ("ema", "[0.999, 0.995, 0.985, 0.96]", "[0.999]", "never read: decay0.96.ema"),
    ] {
        let Some(dir) = copy_case(case) else { return };
        replace_in_sidecar(dir.path(), case, old, new);
        let (passed, text) = run_report(dir.path());
        assert!(!passed && text.contains("FAIL (") && text.contains(part), "{case} {new}: {text}");
    }
}

#[test]
fn cases_that_do_not_fit_their_sidecar_are_errors() {
    for (case, old, new, part) in [
        ("lamb_single_clip", "\"beta1\"", "\"beta_1\"", "options"),
        ("lamb_single_clip", "\"clip\": \"single\"", "\"clip\": \"double\"", "double"),
        ("lamb_single_clip", "\"steps\": 25", "\"steps\": 24", "24 rows"),
        ("lamb_single_clip", "\"steps\": 25", "\"steps\": 5", "lr: expected 5 rates"),
        ("schedule_small", "\"epochs\": 24", "\"epochs\": 3", "steps from 1 in epochs from 1"),
        ("ema", "\"steps\": 60", "\"steps\": 59", "60 rows"),
        ("batching_parts", "\"sequence_split\"", "\"sequences\"", "sequence_split"),
    ] {
        let Some(dir) = copy_case(case) else { return };
        replace_in_sidecar(dir.path(), case, old, new);
        let mut out = Vec::new();
        let error = report(dir.path(), &mut out).unwrap_err();
        assert!(matches!(error, Error::Case { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(case) && text.contains(part), "{text}");
    }
    let Some(dir) = copy_case("ema") else { return };
    std::fs::remove_file(dir.path().join("ema.safetensors")).unwrap();
    let error = report(dir.path(), &mut Vec::new()).unwrap_err().to_string();
    assert!(error.contains("ema.safetensors"), "{error}");
}
