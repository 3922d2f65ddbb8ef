//! Tests the golden reports on front ends and SpecAugment masks.
//!
//! Wrong values in a file must fail.
use std::path::Path;

use oracle::golden;

use crate::mutants;
use ::golden::{Error, report};

const CASES: [&str; 11] = [
    "features_an4_edges",
    "features_an4_whole",
    "features_batch",
    "features_chirp",
    "features_digital_silence",
    "features_mel_matrix",
    "features_resample",
    "features_short_signals",
    "features_trim",
    "specaugment_distribution",
    "specaugment_masks",
];

/// Copies cases to a folder; none without golden vectors.
fn copy_cases(cases: &[&str]) -> Option<tempfile::TempDir> {
    let golden = golden::system_folder("mlperf")?;
    let dir = tempfile::tempdir().unwrap();
    for file in
        cases.iter().flat_map(|case| ["json", "safetensors"].map(|extension| format!("{case}.{extension}")))
    {
        // A copy of the file would be read-only.
        std::fs::write(dir.path().join(&file), std::fs::read(golden.join(&file)).unwrap()).unwrap();
    }
    Some(dir)
}

/// Returns true if all runs pass, and the text of the report.
fn run_report(dir: &Path) -> (bool, String) {
    let mut out = Vec::new();
    let passed = report(dir, &mut out).unwrap();
    (passed, String::from_utf8(out).unwrap())
}

/// Changes the last 8 bytes of a tensor.
fn change_last_bytes(path: &Path, tensor: &str, change: impl FnOnce(&mut [u8])) {
    let mut file = std::fs::read(path).unwrap();
    // A file has the size of the header in 8 bytes, the header, and the tensors.
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let end = start + header[tensor]["data_offsets"][1].as_u64().unwrap() as usize;
    change(&mut file[end - 8..end]);
    std::fs::write(path, file).unwrap();
}

#[test]
fn golden_vectors_pass() {
    let Some(dir) = copy_cases(&CASES) else { return };
    let (passed, text) = run_report(dir.path());
    println!("{text}");
    assert!(passed && text.contains("11 cases of MLPerf: 20 runs passed, 0 failed"), "{text}");
}

#[test]
fn wrong_values_fail_with_their_names() {
    let add_f64 = |difference: f64| {
        move |bytes: &mut [u8]| {
            let changed = f64::from_le_bytes(bytes.try_into().unwrap()) + difference;
            bytes.copy_from_slice(&changed.to_le_bytes());
        }
    };
    let add_f32 = |difference: f32| {
        move |bytes: &mut [u8]| {
            let changed = f32::from_le_bytes(bytes[4..].try_into().unwrap()) + difference;
            bytes[4..].copy_from_slice(&changed.to_le_bytes());
        }
    };
    type Change = Box<dyn Fn(&mut [u8])>;
    let changes: [(&str, &str, Change); 9] = [
        ("features_an4_edges", "log_mel", Box::new(add_f64(2e-8))),
        ("features_an4_edges", "normalized", Box::new(add_f64(2e-8))),
        ("features_an4_edges", "trim", Box::new(|bytes| bytes[4] ^= 1)),
        ("features_an4_whole", "spliced_256", Box::new(add_f32(1e-3))),
        ("features_an4_whole", "dali_normalized", Box::new(add_f32(1e-3))),
        ("features_mel_matrix", "mel_edges_hz", Box::new(add_f64(1e-6))),
        ("features_resample", "r3.resampled", Box::new(add_f32(1e-2))),
        ("specaugment_masks", "output", Box::new(add_f32(1.0))),
        ("specaugment_distribution", "p1.frame_masked_nvidia", Box::new(add_f64(0.3))),
    ];
    for (case, tensor, change) in changes {
        let Some(dir) = copy_cases(&[case]) else { return };
        change_last_bytes(&dir.path().join(format!("{case}.safetensors")), tensor, change);
        let (passed, text) = run_report(dir.path());
        assert!(!passed && text.contains("FAIL") && text.contains(tensor), "{case}, {tensor}: {text}");
    }
}

#[test]
fn a_model_without_sizes_is_an_error() {
    let Some(dir) = copy_cases(&["features_trim"]) else { return };
    std::fs::write(dir.path().join("a_model.json"), r#"{"kind": "model", "options": {}}"#).unwrap();
    let error = report(dir.path(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Case { .. }), "{error}");
    assert!(error.to_string().contains("a_model.json") && error.to_string().contains("options"), "{error}");
}

#[test]
fn a_missing_tensor_is_an_error() {
    let Some(dir) = copy_cases(&["features_trim", "specaugment_masks"]) else { return };
    let copy = |from: &str, to: &str| std::fs::copy(dir.path().join(from), dir.path().join(to)).unwrap();
    copy("features_trim.safetensors", "specaugment_masks.safetensors");
    let error = report(dir.path(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Case { .. }), "{error}");
    assert!(error.to_string().contains("specaugment_masks"), "{error}");
}

#[test]
fn fuzzing_sidecars() {
    for case in ["specaugment_distribution", "specaugment_masks", "features_trim"] {
        let Some(dir) = copy_cases(&[case]) else { return };
        let json = dir.path().join(format!("{case}.json"));
        let sidecar = std::fs::read(&json).unwrap();
        let words: &[&[u8]] =
            &[b"\"kind\": ", b"18446744073709551615", b"1e300", b"-1", b"0", b"null", b"[", b"{"];
        let tries = if case == "specaugment_distribution" { 15 } else { 300 };
        mutants::fuzz(case, vec![sidecar], words, tries, move |bytes| {
            std::fs::write(dir.path().join(&json), bytes).unwrap();
            // An error or a report, but no panic.
            let _ = report(dir.path(), &mut Vec::new());
        });
    }
}
