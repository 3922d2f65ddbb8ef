//! Tests of the program `golden`: exit status, standard output, error messages.
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use ::golden::PrintableLines;
use oracle::golden;

fn run_golden(dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_golden")).arg(dir).output().unwrap()
}

#[test]
fn correct_values_exit_with_0() {
    let Some(dir) = golden::folder() else { return };
    let out = run_golden(&dir);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    assert!(text.lines().last().is_some_and(|line| line.contains(" 0 failed")), "{text}");
}

#[test]
fn a_wrong_value_exits_with_1() {
    let Some(dir) = golden::folder() else { return };
    let copy = tempfile::tempdir().unwrap();
    let name = "dense_01_basic_blank0";
    let tensors = format!("{name}.safetensors");
    std::fs::copy(dir.join(&tensors), copy.path().join(&tensors)).unwrap();
    let sidecar = std::fs::read_to_string(dir.join(format!("{name}.json"))).unwrap();
    // The stored gradient is without FastEmit.
    let changed = sidecar.replace(r#""fastemit_lambda": 0.0"#, r#""fastemit_lambda": 0.5"#);
    assert_ne!(changed, sidecar);
    std::fs::write(copy.path().join(format!("{name}.json")), changed).unwrap();
    let out = run_golden(copy.path());
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL (grad_logits") && text.contains(" 2 failed"), "{text}");
}

#[test]
fn a_missing_folder_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let out = run_golden(&dir.path().join("nowhere"));
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && text.contains("nowhere"), "{text}");
    assert!(out.stdout.is_empty());
}

#[test]
fn a_missing_file_is_an_error() {
    let Some(dir) = golden::folder() else { return };
    let copy = tempfile::tempdir().unwrap();
    let name = "dense_01_basic_blank0.json";
    std::fs::copy(dir.join(name), copy.path().join(name)).unwrap();
    let out = run_golden(copy.path());
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(text.contains("dense_01_basic_blank0.safetensors: expected a readable file"), "{text}");
    assert!(out.stdout.is_empty());
}

#[test]
fn control_characters_of_paths_are_escaped() {
    let out = run_golden(Path::new("x\nfake 0.00 %\r\nfake\u{1b}[2J\u{9b}31m\u{202e}"));
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{text}");
    assert!(!text.contains(|c: char| c != '\n' && c.is_control() || c == '\u{202e}'), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("fake")), "{text}");
}

#[test]
fn golden_cases_of_decoding_pass() {
    let Some(dir) = golden::system_folder("decoding") else { return };
    let out = run_golden(&dir);
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("17 cases of decoding: 72 decodes passed, 0 failed; 0 skipped"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_or_full_output_is_an_error() {
    let Some(dir) = golden::folder() else { return };
    let shell = |line: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", line]).env("P", env!("CARGO_BIN_EXE_golden")).env("DIR", &dir);
        let out = command.output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    // The reader closes the pipe before the first byte.
    let (_, status, err) = shell("{ { sleep 0.1; \"$P\" \"$DIR\"; echo $? >&3; } | true; } 3>&1");
    assert_eq!((status.as_str(), err.as_str()), ("141\n", ""));
    let (code, _, err) = shell("\"$P\" \"$DIR\" > /dev/full");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.starts_with("error: standard output: could not write: "), "{err}");
}

#[test]
fn line_breaks_in_names_are_escaped() {
    let mut out = Vec::new();
    let mut lines = PrintableLines(&mut out);
    let name = "a\nb\u{1b}[2J";
    writeln!(lines, "{name}  pass").unwrap();
    writeln!(lines, "{} done", 3).unwrap();
    assert_eq!(String::from_utf8(out).unwrap(), "a\\nb\\u{1b}[2J  pass\n3 done\n");
}
