//! Tests the golden reports on losses.
//!
//! Wrong values must fail, and corrupted folders must give an error.
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

/// Writes a case with T = 1, U = 0, two classes; loss `ln 2`.
fn single_case_folder(loss: f64) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("one.5.json"), r#"{"kind": "rnnt_dense", "options": {"blank": 0}}"#)
        .unwrap();
    std::fs::write(dir.path().join("one.5.safetensors"), tensors(loss, &[0; 4])).unwrap();
    dir
}

/// Returns the bytes of the tensor file; `first_logit` are those of the first logit.
fn tensors(loss: f64, first_logit: &[u8; 4]) -> Vec<u8> {
    let mut data = Vec::new();
    let mut header = Vec::new();
    let mut add = |name: &str, dtype: &str, shape: &str, bytes: &[u8]| {
        let (from, to) = (data.len(), data.len() + bytes.len());
        data.extend_from_slice(bytes);
        header
            .push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#));
    };
    add("loss", "F64", "[1]", &loss.to_le_bytes());
    add("grad_logits", "F64", "[1,1,1,2]", &[(-0.5f64).to_le_bytes(), 0.5f64.to_le_bytes()].concat());
    add("logits", "F32", "[1,1,1,2]", &[*first_logit, [0; 4]].concat());
    add("targets", "I32", "[1,1]", &1i32.to_le_bytes());
    add("logit_lens", "I32", "[1]", &1i32.to_le_bytes());
    add("target_lens", "I32", "[1]", &0i32.to_le_bytes());
    let header = format!("{{{}}}", header.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// Expects an error that names a file, before any output.
fn expect_error(dir: &Path, file: &str) -> Error {
    let mut out = Vec::new();
    let error = report(dir, &mut out).expect_err("must be an error");
    assert!(error.to_string().contains(file), "{error} does not contain {file}");
    assert!(out.is_empty(), "printed before all files were read");
    error
}

#[test]
fn golden_vectors_pass() {
    let Some(dir) = golden::folder() else { return };
    let (passed, text) = run_report(&dir);
    println!("{text}");
    assert!(passed, "{text}");
    for kind in ["rnnt_dense", "rnnt_fused_linear", "rnnt_joint_network", "tdt", "multiblank", "rnnt_pruned"]
    {
        assert!(text.contains(kind), "no case of kind {kind}");
    }
    let runs = text.lines().filter(|line| line.contains("  pass")).count();
    assert!(runs >= 122, "only {runs} runs");
}

#[test]
fn a_correct_loss_passes_and_a_wrong_one_fails() {
    let (passed, text) = run_report(single_case_folder(2f64.ln()).path());
    assert!(passed && text.contains("2 runs passed, 0 failed"), "{text}");
    let (passed, text) = run_report(single_case_folder(2f64.ln() * (1.0 + 1e-8)).path());
    assert!(!passed && text.contains("1 runs passed, 1 failed") && text.contains("FAIL (loss:"), "{text}");
}

#[test]
fn an_error_of_the_loss_is_a_failure() {
    let dir = single_case_folder(2f64.ln());
    let bytes = tensors(2f64.ln(), &f32::NAN.to_le_bytes());
    std::fs::write(dir.path().join("one.5.safetensors"), bytes).unwrap();
    let (passed, text) = run_report(dir.path());
    assert!(!passed && text.contains("FAIL (utterance 0, frame 0"), "{text}");
}

#[test]
fn unknown_kinds_are_listed() {
    let dir = single_case_folder(2f64.ln());
    std::fs::write(dir.path().join("one.5.json"), r#"{"kind": "unknown", "options": {"blank": 0}}"#).unwrap();
    let (passed, text) = run_report(dir.path());
    assert!(passed && text.contains("unsupported kind unknown: one.5") && text.contains("1 cases skipped"));
}

#[test]
fn corrupted_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(expect_error(&dir.path().join("nowhere"), "nowhere"), Error::Folder { .. }));
    assert!(matches!(expect_error(dir.path(), "found none"), Error::NoCases { .. }));

    let dir = single_case_folder(1.0);
    let (json, tensors) = (dir.path().join("one.5.json"), dir.path().join("one.5.safetensors"));
    let original = std::fs::read(&tensors).unwrap();
    std::fs::write(&tensors, &original[..original.len() - 1]).unwrap();
    assert!(matches!(expect_error(dir.path(), "one.5.safetensors"), Error::Tensors { .. }));
    std::fs::remove_file(&tensors).unwrap();
    assert!(matches!(expect_error(dir.path(), "one.5.safetensors"), Error::File { .. }));
    std::fs::write(&tensors, &original).unwrap();
    std::fs::write(&json, "{").unwrap();
    assert!(matches!(expect_error(dir.path(), "one.5.json"), Error::Sidecar { .. }));
    std::fs::remove_file(&json).unwrap();
    assert!(matches!(expect_error(dir.path(), "one.5.json"), Error::File { .. }));
}

#[test]
fn incomplete_cases_are_errors() {
    let dir = single_case_folder(1.0);
    let json = dir.path().join("one.5.json");
    for (sidecar, word) in [
        (r#"{"kind": "rnnt_dense"}"#, "options.blank"),
        (r#"{"kind": "rnnt_dense", "options": {"blank": 1, "x": 0}}"#, ""),
        (r#"{"kind": "rnnt_fused_linear", "options": {"blank": 0}}"#, "W"),
        (r#"{"kind": "rnnt_joint_network", "options": {"blank": 0}}"#, "h_enc"),
    ] {
        std::fs::write(&json, sidecar).unwrap();
        let mut out = Vec::new();
        match report(dir.path(), &mut out) {
            Err(Error::Case { argument, .. }) => assert_eq!(argument, word),
            other => assert!(word.is_empty() && matches!(other, Ok(false)), "{sidecar}: {other:?}"),
        }
    }
}

#[test]
fn fuzzing_sidecars() {
    let dir = single_case_folder(2f64.ln());
    let sidecar = std::fs::read(dir.path().join("one.5.json")).unwrap();
    let large = br#"{"kind": "rnnt_dense", "options": {"blank": 1, "fastemit_lambda": 0.25, "clamp": -1.0, "reduction": "mean"}}"#;
    let words: &[&[u8]] = &[
        b"\"kind\": ",
        b"\"tdt\"",
        b"\"rnnt_joint\"",
        b"\"durations\": [0, 1, 4294967295]",
        b"\"blank\": ",
        b"18446744073709551615",
        b"1e300",
        b"-1",
        b"null",
        b"[",
        b"{",
    ];
    mutants::fuzz("sidecar", vec![sidecar, large.to_vec()], words, 2000, move |bytes| {
        std::fs::write(dir.path().join("one.5.json"), bytes).unwrap();
        let mut out = Vec::new();
        // An error, or a report in UTF-8.
        if report(dir.path(), &mut out).is_ok() {
            assert!(out.is_ascii() || String::from_utf8(out).is_ok());
        }
    });
}

#[test]
fn fuzzing_golden_sidecars() {
    let Some(golden) = golden::folder() else { return };
    let copy = tempfile::tempdir().unwrap();
    let name = "dense_01_basic_blank0";
    let golden_file = |extension: &str| golden.join(format!("{name}.{extension}"));
    std::fs::copy(golden_file("safetensors"), copy.path().join("case.safetensors")).unwrap();
    let sidecar = std::fs::read(golden_file("json")).unwrap();
    let words: &[&[u8]] = &[b"\"kind\": ", b"\"blank\": ", b"1e300", b"[", b"{", b"-1", b"null"];
    mutants::fuzz("golden sidecar", vec![sidecar], words, 2000, move |bytes| {
        std::fs::write(copy.path().join("case.json"), bytes).unwrap();
        // An error or a report, but no panic.
        let _ = report(copy.path(), &mut Vec::new());
    });
}
