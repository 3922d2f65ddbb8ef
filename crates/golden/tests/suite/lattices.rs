//! Tests the golden reports on recognition lattices.
//!
//! Wrong, missing or surplus values in a file must fail.
use std::path::Path;

use oracle::golden;

use crate::mutants;
use ::golden::{Error, report};

/// Returns true if all runs pass, and the text of the report.
fn run_report(dir: &Path) -> (bool, String) {
    let mut out = Vec::new();
    let passed = report(dir, &mut out).unwrap();
    (passed, String::from_utf8(out).unwrap())
}

/// Copies a case to a folder; none without golden vectors.
fn copy_case(case: &str) -> Option<tempfile::TempDir> {
    let golden = golden::system_folder("last")?;
    let dir = tempfile::tempdir().unwrap();
    for name in ["f32", "f64"].map(|width| format!("{case}.{width}")) {
        for file in ["json", "safetensors"].map(|extension| format!("{name}.{extension}")) {
            std::fs::copy(golden.join(&file), dir.path().join(&file)).unwrap();
        }
    }
    Some(dir)
}

/// Returns the byte range of a tensor in a file.
fn byte_range(file: &[u8], tensor: &str) -> std::ops::Range<usize> {
    // A file has the size of the header in 8 bytes, the header, and the tensors.
    let start = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..start]).unwrap();
    let offset = |index: usize| start + header[tensor]["data_offsets"][index].as_u64().unwrap() as usize;
    offset(0)..offset(1)
}

/// Applies a change to the bytes of a file.
fn change_file(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut file = std::fs::read(path).unwrap();
    change(&mut file);
    std::fs::write(path, file).unwrap();
}

#[test]
fn golden_vectors_pass() {
    let Some(dir) = golden::system_folder("last") else { return };
    let (passed, text) = run_report(&dir);
    println!("{text}");
    assert!(passed, "{text}");
    assert!(text.contains("32 cases in f64 and f32: 64 runs passed, 0 failed"), "{text}");
    for case in ["table_fd_c1_neginf", "joint_rnn_fld1_c1_log_softmax", "semirings", "weight_fns"] {
        assert!(text.contains(case), "no case {case}");
    }
}

#[test]
fn a_wrong_value_fails_with_its_name() {
    let Some(dir) = copy_case("joint_rnn_fd_c2") else { return };
    let path = dir.path().join("joint_rnn_fd_c2.f64.safetensors");
    let original = std::fs::read(&path).unwrap();
    assert!(run_report(dir.path()).0);
    for (tensor, factor, failed_runs) in [
        ("out/loss", 1.0 + 1e-8, 1),
        ("out/alpha_log", 1.001, 2),
        ("out/grad_loss/params/weight_fn_cacher/rnn_cell/hf/bias", 1.0 + 1e-6, 1),
        ("out/grad_denom_tropical/frames", 1.01, 2),
        ("out/lexical_marginals_by_state", 1.01, 2),
        ("out/shortest_path_weight", 0.999, 2),
    ] {
        change_file(&path, |file| {
            for value in file[byte_range(&original, tensor)].chunks_exact_mut(8) {
                let value: &mut [u8; 8] = value.try_into().unwrap();
                *value = (f64::from_le_bytes(*value) * factor).to_le_bytes();
            }
        });
        let (passed, text) = run_report(dir.path());
        assert!(!passed && text.contains(&format!("{failed_runs} failed")), "{tensor}: {text}");
        assert!(text.contains(&format!("FAIL ({tensor}[")), "{tensor}: {text}");
        std::fs::write(&path, &original).unwrap();
    }
    change_file(&path, |file| file[byte_range(&original, "out/shortest_path_labels").start] ^= 1);
    assert!(run_report(dir.path()).1.contains("FAIL (out/shortest_path_labels[0]"));
}

#[test]
fn all_results_must_be_compared() {
    const STORED_NAME: &[u8] = b"out/denom_real";
    let Some(dir) = copy_case("table_fd_c1_real") else { return };
    for width in ["f32", "f64"] {
        change_file(&dir.path().join(format!("table_fd_c1_real.{width}.safetensors")), |file| {
            let offset = file.windows(STORED_NAME.len()).position(|name| name == STORED_NAME).unwrap();
            file[offset..offset + STORED_NAME.len()].copy_from_slice(b"out/denom_else");
        });
    }
    let (passed, text) = run_report(dir.path());
    assert!(!passed && text.contains("never compared: out/denom_else, out/numer_real"), "{text}");
}

#[test]
fn both_files_must_have_equal_inputs() {
    let Some(dir) = copy_case("table_fd_c0") else { return };
    let f32_file = dir.path().join("table_fd_c0.f32.safetensors");
    change_file(&f32_file, |file| {
        let table = byte_range(file, "in/table");
        file[table.start] ^= 1;
    });
    let (passed, text) = run_report(dir.path());
    assert!(!passed && text.contains("in/table differs between f64 and f32"), "{text}");
    for extension in ["json", "safetensors"] {
        std::fs::remove_file(dir.path().join(format!("table_fd_c0.f32.{extension}"))).unwrap();
    }
    let mut out = Vec::new();
    let error = report(dir.path(), &mut out).unwrap_err();
    assert!(matches!(error, Error::Case { .. }) && error.to_string().contains("NAME.f32"), "{error}");
}

#[test]
fn fuzzing_sidecars() {
    let Some(dir) = copy_case("table_fld1_c0") else { return };
    let sidecar = dir.path().join("table_fld1_c0.f64.json");
    let seed = br#"{"case": {"V": 3, "n": 0, "align": "FLD", "K": 1, "weights": "table", "local": "hat"}, "made_with": {"last-asr": ""}}"#;
    let words: &[&[u8]] = &[
        b"\"FD\"",
        b"\"rnn\"",
        b"\"emb\"",
        b"\"log_softmax\"",
        b"null",
        b"18446744073709551615",
        b"65537",
        b"-1",
        b"{",
        b"[",
    ];
    mutants::fuzz("lattice sidecar", vec![seed.to_vec()], words, 300, move |bytes| {
        std::fs::write(&sidecar, bytes).unwrap();
        let mut out = Vec::new();
        // An error, or a report in UTF-8.
        if report(dir.path(), &mut out).is_ok() {
            assert!(String::from_utf8(out).is_ok());
        }
    });
}
