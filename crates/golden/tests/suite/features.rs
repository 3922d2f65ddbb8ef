//! The report on front ends and masks of the golden folder, and on answers that are wrong or missing.
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

/// A folder with copies of cases; none on a clone without golden vectors.
fn copies_of(cases: &[&str]) -> Option<tempfile::TempDir> {
    let golden = golden::system_folder("mlperf")?;
    let dir = tempfile::tempdir().unwrap();
    for file in cases.iter().flat_map(|case| ["json", "safetensors"].map(|ending| format!("{case}.{ending}")))
    {
        // The originals may not be written.
        std::fs::write(dir.path().join(&file), std::fs::read(golden.join(&file)).unwrap()).unwrap();
    }
    Some(dir)
}

fn text(dir: &Path) -> (bool, String) {
    let mut out = Vec::new();
    let good = report(dir, &mut out).unwrap();
    (good, String::from_utf8(out).unwrap())
}

/// Changes the last number of a tensor.
fn change(path: &Path, tensor: &str, by: impl FnOnce(&mut [u8])) {
    let mut file = std::fs::read(path).unwrap();
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let end = start + header[tensor]["data_offsets"][1].as_u64().unwrap() as usize;
    by(&mut file[end - 8..end]);
    std::fs::write(path, file).unwrap();
}

#[test]
fn golden_vectors_pass() {
    let Some(dir) = copies_of(&CASES) else { return };
    let (good, text) = text(dir.path());
    println!("{text}");
    assert!(good && text.contains("11 cases of MLPerf: 20 runs passed, 0 failed"), "{text}");
}

#[test]
fn wrong_answers_fail_and_are_named() {
    let double = |by: f64| {
        move |bytes: &mut [u8]| {
            let changed = f64::from_le_bytes(bytes.try_into().unwrap()) + by;
            bytes.copy_from_slice(&changed.to_le_bytes());
        }
    };
    let single = |by: f32| {
        move |bytes: &mut [u8]| {
            let changed = f32::from_le_bytes(bytes[4..].try_into().unwrap()) + by;
            bytes[4..].copy_from_slice(&changed.to_le_bytes());
        }
    };
    type Change = Box<dyn Fn(&mut [u8])>;
    let changes: [(&str, &str, Change); 9] = [
        ("features_an4_edges", "log_mel", Box::new(double(2e-8))),
        ("features_an4_edges", "normalized", Box::new(double(2e-8))),
        ("features_an4_edges", "trim", Box::new(|bytes| bytes[4] ^= 1)),
        ("features_an4_whole", "spliced_256", Box::new(single(1e-3))),
        ("features_an4_whole", "dali_normalized", Box::new(single(1e-3))),
        ("features_mel_matrix", "mel_edges_hz", Box::new(double(1e-6))),
        ("features_resample", "r3.resampled", Box::new(single(1e-2))),
        ("specaugment_masks", "output", Box::new(single(1.0))),
        ("specaugment_distribution", "p1.frame_masked_nvidia", Box::new(double(0.3))),
    ];
    for (case, tensor, by) in changes {
        let Some(dir) = copies_of(&[case]) else { return };
        change(&dir.path().join(format!("{case}.safetensors")), tensor, by);
        let (good, text) = text(dir.path());
        assert!(!good && text.contains("FAIL") && text.contains(tensor), "{case}, {tensor}: {text}");
    }
}

#[test]
fn a_model_without_sizes_is_named() {
    let Some(dir) = copies_of(&["features_trim"]) else { return };
    std::fs::write(dir.path().join("a_model.json"), r#"{"kind": "model", "options": {}}"#).unwrap();
    let error = report(dir.path(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Case { .. }), "{error}");
    assert!(error.to_string().contains("a_model.json") && error.to_string().contains("options"), "{error}");
}

#[test]
fn a_missing_tensor_is_named() {
    let Some(dir) = copies_of(&["features_trim", "specaugment_masks"]) else { return };
    let copy = |from: &str, to: &str| std::fs::copy(dir.path().join(from), dir.path().join(to)).unwrap();
    copy("features_trim.safetensors", "specaugment_masks.safetensors");
    let error = report(dir.path(), &mut Vec::new()).unwrap_err();
    assert!(matches!(error, Error::Case { .. }), "{error}");
    assert!(error.to_string().contains("specaugment_masks"), "{error}");
}

#[test]
fn fuzzing_sidecars() {
    for case in ["specaugment_distribution", "specaugment_masks", "features_trim"] {
        let Some(dir) = copies_of(&[case]) else { return };
        let json = dir.path().join(format!("{case}.json"));
        let sidecar = std::fs::read(&json).unwrap();
        let words: &[&[u8]] =
            &[b"\"kind\": ", b"18446744073709551615", b"1e300", b"-1", b"0", b"null", b"[", b"{"];
        let tries = if case == "specaugment_distribution" { 15 } else { 300 };
        mutants::fuzz(case, vec![sidecar], words, tries, move |bytes| {
            std::fs::write(dir.path().join(&json), bytes).unwrap();
            // An error or a report; never a panic.
            let _ = report(dir.path(), &mut Vec::new());
        });
    }
}
