//! Tests of output targets (links, pipes, full disks) and of signals.
#![cfg(unix)]
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::toy::{Toy, leftovers};
use super::{panda, run_command, trained_for_an_epoch};

const CHECKPOINT: &str = "run/last.safetensors";

/// Runs a shell line in a folder; `$P` is the program.
fn run_shell(folder: &Path, line: &str) -> (Option<i32>, String, String) {
    let mut command = Command::new("bash");
    command.args(["-c", line]).current_dir(folder).env("P", env!("CARGO_BIN_EXE_panda"));
    run_command(command)
}

#[test]
fn links_and_pipes_are_written_through() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    let align = format!("$P align {CHECKPOINT} train.jsonl");
    let (_, expected, _) = run_shell(&folder, &align);
    assert!(expected.lines().count() > 6, "{expected}");

    fs::create_dir(toy.path("far")).unwrap();
    symlink("far/out", toy.path("link")).unwrap();
    let (code, ..) = run_shell(&folder, &format!("{align} --ctm link"));
    assert_eq!(code, Some(0));
    assert!(fs::symlink_metadata(toy.path("link")).unwrap().is_symlink());
    assert_eq!(fs::read_to_string(toy.path("far/out")).unwrap(), expected);

    // Named pipes, process substitutions and standard output are not replaced by files.
    let (code, out, _) = run_shell(&folder, &format!("mkfifo pipe; cat pipe & {align} --ctm pipe; wait"));
    assert_eq!(code, Some(0));
    assert!(out.contains(&expected), "{out}");
    assert!(fs::metadata(toy.path("pipe")).unwrap().file_type().is_fifo());
    let (_, out, _) = run_shell(&folder, &format!("{align} --ctm >(cat); sleep 0.2"));
    assert!(out.contains(&expected), "{out}");
    let (code, out, _) = run_shell(&folder, &format!("{align} --ctm /dev/stdout"));
    assert_eq!((code, out.as_str()), (Some(0), expected.as_str()));
    let (code, ..) = run_shell(&folder, &format!("{align} --ctm /dev/stdout > redirected"));
    assert_eq!(code, Some(0));
    assert_eq!(fs::read_to_string(toy.path("redirected")).unwrap(), expected);
    assert_eq!(leftovers(&folder), [] as [PathBuf; 0]);
}

#[test]
fn no_output_is_an_input_or_another_output() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    let before = ["train.jsonl", CHECKPOINT, "0.wav"].map(|name| fs::read(toy.path(name)).unwrap());
    symlink("train.jsonl", toy.path("alias")).unwrap();
    // Dangling links to the same target are the same output.
    fs::create_dir(toy.path("captions")).unwrap();
    for name in ["json", "captions/0.srt", "captions/toy-0.srt", "captions/toy-1.srt"] {
        let up = if name.contains('/') { "../new" } else { "new" };
        symlink(up, toy.path(name)).unwrap();
    }
    for line in [
        format!("$P align {CHECKPOINT} train.jsonl --ctm train.jsonl"),
        format!("$P align {CHECKPOINT} train.jsonl --json alias"),
        format!("$P align {CHECKPOINT} train.jsonl --json ./run/../0.wav"),
        format!("$P evaluate {CHECKPOINT} train.jsonl --hypotheses {CHECKPOINT}"),
        format!("$P align {CHECKPOINT} train.jsonl --json new --ctm ./new"),
        format!("$P align {CHECKPOINT} train.jsonl --json json --ctm new"),
        format!("$P evaluate {CHECKPOINT} train.jsonl --format srt --output captions"),
        format!(
            "head -1 train.jsonl > 1.jsonl; $P evaluate {CHECKPOINT} 1.jsonl --format srt --output captions --hypotheses new"
        ),
    ] {
        let (code, _, err) = run_shell(&folder, &line);
        assert_eq!(code, Some(2), "{line}: {err}");
        assert!(
            err.contains("expected an output other than the inputs")
                || err.contains("a separate file")
                || err.contains("one recording of this name"),
            "{line}: {err}"
        );
    }
    let after = ["train.jsonl", CHECKPOINT, "0.wav"].map(|name| fs::read(toy.path(name)).unwrap());
    assert!(before == after && !toy.path("new").exists());
}

#[test]
fn outputs_are_opened_before_the_work() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    // Without recordings, reading them first would fail with another error.
    let manifest = fs::read_to_string(toy.path("train.jsonl")).unwrap();
    fs::write(toy.path("gone.jsonl"), manifest.replace(".wav", "-gone.wav")).unwrap();
    for line in [
        format!("$P align {CHECKPOINT} gone.jsonl --ctm no/such/folder"),
        format!("$P evaluate {CHECKPOINT} gone.jsonl --hypotheses run"),
    ] {
        let (code, _, err) = run_shell(&folder, &line);
        assert_eq!(code, Some(2), "{line}: {err}");
        assert!(err.contains("could not write: ") && !err.contains("gone"), "{line}: {err}");
    }
}

#[test]
fn a_closed_pipe_ends_reading_commands_quietly() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    let lines = [
        format!("$P transcribe {CHECKPOINT} $(yes 0.wav | head -40) --times"),
        format!("$P align {CHECKPOINT} train.jsonl"),
        format!("$P evaluate {CHECKPOINT} train.jsonl"),
        format!("$P info {CHECKPOINT}"),
    ];
    for line in &lines {
        // The reader exits before the first byte.
        let (_, out, err) = run_shell(&folder, &format!("({line}; echo $? > status) | true; sleep 0.01"));
        let status = || fs::read_to_string(toy.path("status")).unwrap_or_default();
        let start = Instant::now();
        while status().is_empty() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(["141\n", "0\n"].contains(&status().as_str()), "{line}: {}{err}", status());
        assert_eq!((out.as_str(), err.as_str()), ("", ""), "{line}");
        fs::remove_file(toy.path("status")).unwrap();
        if Path::new("/dev/full").exists() {
            let (code, _, err) = run_shell(&folder, &format!("{line} > /dev/full"));
            assert_eq!(code, Some(2), "{line}: {err}");
            assert!(err.starts_with("error: standard output: could not write: "), "{line}: {err}");
        }
    }
}

#[test]
fn training_continues_without_a_reader_of_its_output() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 20")]);
    for (run, line) in [
        ("a", "($P train recipe.toml --run a; echo $? > status) | head -1 > /dev/null"),
        ("b", "$P train recipe.toml --run b > /dev/full; echo $? > status"),
        ("c", "$P train recipe.toml --run c >&- 2>&-; echo $? > status"),
    ] {
        if !Path::new("/dev/full").exists() && run == "b" {
            continue;
        }
        let (_, _, err) = run_shell(&folder, line);
        assert_eq!(fs::read_to_string(toy.path("status")).unwrap(), "0\n", "{line}: {err}");
        assert!(!err.contains("panicked"), "{line}: {err}");
        assert!(toy.path(run).join("evaluation.json").exists(), "{line}");
    }
}

#[test]
fn an_ignored_sighup_stays_ignored() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 400")]);
    // The test process may ignore the signal, too.
    for (prefix, ends) in [("trap '' HUP; exec", false), ("exec env --default-signal=HUP", true)] {
        let line = format!("{prefix} $P train recipe.toml --run run --force");
        let mut command = Command::new("bash");
        command.args(["-c", &line]).current_dir(&folder).env("P", env!("CARGO_BIN_EXE_panda"));
        let mut run = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut out = BufReader::new(run.stdout.take().unwrap());
        let mut text = String::new();
        while !text.contains("epoch    2/") {
            assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
        }
        let send = |signal: &str| {
            let kill = format!("kill -{signal} {}", run.id());
            assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        };
        send("HUP");
        if !ends {
            text.clear();
            // Two more epochs show that the run continues.
            while text.matches("epoch").count() < 2 {
                assert!(out.read_line(&mut text).unwrap() > 0, "{text}");
            }
            assert!(!text.contains("stopped"), "{text}");
            send("INT");
        }
        out.read_to_string(&mut text).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(130), "{text}");
        assert!(text.contains("stopped and saved after "), "{text}");
    }
}

/// Sends SIGINT once the program handles it; returns false where that is unknown.
///
/// In the latter case (no `/proc`) the program is killed.
fn interrupt_once_handled(run: &mut Child) -> bool {
    let kill = format!("kill -INT {}", run.id());
    // The handler is installed once the signal mask contains SIGINT.
    let status = format!("/proc/{}/status", run.id());
    let is_handled = || {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let mask =
            text.lines().find_map(|line| line.strip_prefix("SigCgt:").map(str::trim).map(str::to_owned));
        mask.is_some_and(|mask| u64::from_str_radix(&mask, 16).unwrap() >> 1 & 1 == 1)
    };
    if !Path::new("/proc/self/status").exists() {
        run.kill().unwrap();
        run.wait().unwrap();
        return false;
    }
    while !is_handled() {
        assert!(run.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    true
}

#[test]
fn ctrl_c_ends_a_wait_for_standard_input() {
    let toy = trained_for_an_epoch();
    let mut command = panda(&toy.path(""), &["transcribe", CHECKPOINT, "-"]);
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = pipes.spawn().unwrap();
    let mut input = run.stdin.take().unwrap();
    input.write_all(&[0; 3200]).unwrap();
    // The program reads once its reader thread exists.
    let is_reading = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", run.id())).into_iter().flatten().flatten();
        let mut names = tasks.flat_map(|task| fs::read_to_string(task.path().join("comm")));
        names.any(|name| name.trim() == "standard input")
    };
    let start = Instant::now();
    while Path::new("/proc/self/task").exists() && !is_reading() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
    if interrupt_once_handled(&mut run) {
        let start = Instant::now();
        while run.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(60) {
                run.kill().unwrap();
                panic!("the program does not react to SIGINT");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let output = run.wait_with_output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(130) && err.contains("finishing"), "{err}");
    }
    drop(input);
}

#[test]
fn ctrl_c_ends_the_loading_of_data() {
    let toy = Toy::new();
    let folder = toy.path("");
    // Loading so many recordings takes a while.
    let repeated = format!("train = {:?}", ["train.jsonl"; 400]);
    toy.recipe(&[("train = [\"train.jsonl\"]", repeated.as_str())]);
    let mut command = panda(&folder, &["train", "recipe.toml", "--run", "run"]);
    let mut run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    if !interrupt_once_handled(&mut run) {
        return;
    }
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("stopped before the first step; nothing is written"), "{text}");
    assert!(!toy.path("run").exists());
}

#[test]
fn a_file_size_limit_leaves_the_old_file() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    fs::write(toy.path("out.json"), "old").unwrap();
    let line = format!("ulimit -f 1; $P align {CHECKPOINT} train.jsonl --json out.json");
    let (code, _, err) = run_shell(&folder, &line);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("out.json: could not write: "), "{err}");
    assert_eq!(fs::read_to_string(toy.path("out.json")).unwrap(), "old");
    assert_eq!(leftovers(&folder), [] as [PathBuf; 0]);
    let (code, _, err) = run_shell(&folder, "ulimit -f 1; $P train recipe.toml --run small");
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("could not write: "), "{err}");
    assert_eq!(leftovers(&folder), [] as [PathBuf; 0]);
}
