//! The `verify` command as a user runs it: exit status and what it prints.
use std::path::Path;
use std::process::{Command, Output};

use oracle::golden;

fn verify(dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_panda")).arg("verify").arg(dir).output().unwrap()
}

#[test]
fn sound_answers_exit_with_0() {
    let Some(dir) = golden::folder() else { return };
    let out = verify(&dir);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.contains(" 0 failed")), "{text}");
}

#[test]
fn a_wrong_answer_exits_with_1() {
    let Some(dir) = golden::folder() else { return };
    let copy = tempfile::tempdir().unwrap();
    let name = "dense_01_basic_blank0";
    let tensors = format!("{name}.safetensors");
    std::fs::copy(dir.join(&tensors), copy.path().join(&tensors)).unwrap();
    let sidecar = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
    // The stored gradient has no FastEmit in it.
    let changed = sidecar.replace(r#""fastemit_lambda": 0.0"#, r#""fastemit_lambda": 0.5"#);
    assert_ne!(changed, sidecar);
    std::fs::write(copy.path().join(format!("{name}.json")), changed).unwrap();
    let out = verify(copy.path());
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL (grad_logits") && text.contains(" 2 failed"), "{text}");
}

#[test]
fn a_missing_folder_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let out = verify(&dir.path().join("nowhere"));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("nowhere"), "{text}");
    assert!(out.stdout.is_empty());
}
