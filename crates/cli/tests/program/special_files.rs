//! Tests of links, named pipes and run files as inputs and outputs.
#![cfg(unix)]
use std::fs;
use std::os::unix::fs::{FileTypeExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{panda, run_command, trained_for_an_epoch};

/// Time limit of a command; a command that waits for a pipe exceeds it.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a command with a time limit; returns its status and standard error.
fn finish_in_time(mut command: Command) -> (Option<i32>, String) {
    let mut child: Child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if started.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("{command:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

/// Creates a named pipe.
fn make_named_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Options of `train` that decide how it treats an existing run folder.
const START_OPTIONS: [&[&str]; 3] = [&[], &["--resume"], &["--force"]];

#[test]
fn a_lock_never_changes_its_link_target() {
    let toy = trained_for_an_epoch();
    toy.write("victim.txt", "precious");
    let lock = toy.path("run/.lock");
    let before = fs::read(toy.path("run/last.safetensors")).unwrap();
    type MakeFile<'a> = (&'a str, Box<dyn Fn() + 'a>);
    let kinds: [MakeFile; 5] = [
        ("a symbolic link", Box::new(|| symlink("../victim.txt", &lock).unwrap())),
        ("a symbolic link", Box::new(|| symlink("../nowhere", &lock).unwrap())),
        ("2 names", Box::new(|| fs::hard_link(toy.path("victim.txt"), &lock).unwrap())),
        ("a named pipe", Box::new(|| make_named_pipe(&lock))),
        ("a folder", Box::new(|| fs::create_dir(&lock).unwrap())),
    ];
    for (kind, make) in &kinds {
        let _ = fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock));
        make();
        for start in START_OPTIONS {
            let arguments = [&["train", "recipe.toml", "--run", "run"], start].concat();
            let (code, err) = finish_in_time(panda(&toy.path(""), &arguments));
            assert_eq!(code, Some(2), "{kind}: {err}");
            assert!(
                err.contains("run/.lock: could not lock the run folder: ") && err.contains(kind),
                "{kind}: {err}"
            );
        }
    }
    assert_eq!(fs::read_to_string(toy.path("victim.txt")).unwrap(), "precious");
    assert!(!toy.path("nowhere").exists());
    assert_eq!(fs::read(toy.path("run/last.safetensors")).unwrap(), before);
}

#[test]
fn a_pipe_in_a_run_folder_is_an_error() {
    let toy = trained_for_an_epoch();
    let names = [
        "recipe.toml",
        "recipe.path",
        "last.safetensors",
        "best.safetensors",
        "metrics.csv",
        "curve.svg",
        "evaluation.json",
        "dev.hypotheses.jsonl",
        "test.hypotheses.jsonl",
        "epoch-3.safetensors",
    ];
    for name in names {
        let path = toy.path(&format!("run/{name}"));
        let existed = fs::rename(&path, toy.path("backup")).is_ok();
        make_named_pipe(&path);
        for start in START_OPTIONS {
            let arguments = [&["train", "recipe.toml", "--run", "run"], start].concat();
            let (code, err) = finish_in_time(panda(&toy.path(""), &arguments));
            assert!(code == Some(2) && err.contains(&format!("run/{name}: ")), "{name}: {err}");
            assert!(err.contains("expected a regular file, found a named pipe"), "{name}: {err}");
        }
        assert!(fs::symlink_metadata(&path).unwrap().file_type().is_fifo());
        fs::remove_file(&path).unwrap();
        if existed {
            fs::rename(toy.path("backup"), &path).unwrap();
        }
    }
    let resume = ["train", "recipe.toml", "--run", "run", "--resume"];
    let (code, err) = finish_in_time(panda(&toy.path(""), &resume));
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn named_pipes_as_inputs_are_errors() {
    let toy = trained_for_an_epoch();
    make_named_pipe(&toy.path("pipe"));
    // Manifests with pipes as recordings, and recipes with pipes as inputs.
    let manifest = fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let line = manifest.lines().next().unwrap();
    toy.write("sounds.jsonl", &line.replace("0.wav", "pipe"));
    toy.write("whole.jsonl", &line.replace("\"num_samples\"", "\"nothing\""));
    let recipe = fs::read_to_string(toy.path("recipe.toml")).unwrap();
    let write = |name: &str, changes: &[(&str, &str)]| {
        let text = changes.iter().fold(recipe.clone(), |text, (old, new)| {
            assert!(text.contains(old), "{old}");
            text.replace(old, new)
        });
        toy.write(name, &text);
    };
    let train = "train = [\"train.jsonl\"]";
    write("list.toml", &[(train, "train = [\"pipe\"]")]);
    write("sound.toml", &[(train, "train = [\"sounds.jsonl\"]")]);
    write("stream.toml", &[(train, "stream = true\ntrain = [\"sounds.jsonl\"]")]);
    let noise = |list: &str| format!("[augment]\nnoise = {{ manifest = \"{list}\", snr_db = [0.0, 1.0] }}");
    let streamed = (train, "stream = true\ntrain = [\"train.jsonl\"]");
    write("noise.toml", &[streamed, ("[augment]", &noise("pipe"))]);
    write("noises.toml", &[streamed, ("[augment]", &noise("sounds.jsonl"))]);
    write("init.toml", &[("[batch]", "[init]\nweights = \"pipe\"\n[batch]")]);
    // Every command fails with the name of the pipe.
    let best = "run/best.safetensors";
    let commands: [&[&str]; 19] = [
        &["train", "pipe", "--run", "new"],
        &["train", "list.toml", "--run", "new"],
        &["train", "sound.toml", "--run", "new"],
        &["train", "stream.toml", "--run", "streamed"],
        &["train", "noise.toml", "--run", "new"],
        &["train", "noises.toml", "--run", "new"],
        &["train", "init.toml", "--run", "new"],
        &["evaluate", "pipe", "train.jsonl"],
        &["evaluate", best, "pipe"],
        &["evaluate", best, "sounds.jsonl"],
        &["align", best, "sounds.jsonl", "--json", "x.json"],
        &["transcribe", best, "pipe"],
        &["transcribe", best, "0.wav", "--beam", "2", "--phrases", "pipe"],
        &["transcribe", best, "0.wav", "--beam", "2", "--lm", "pipe"],
        &["average", "mean.safetensors", "pipe"],
        &["info", "pipe"],
        &["lm", "pipe", "-o", "x.arpa"],
        &["merge", "x.ctm", "pipe"],
        &["lm", "train.jsonl", "-o", "x.arpa", "--tokens", "pipe"],
    ];
    for arguments in commands {
        let (code, err) = finish_in_time(panda(&toy.path(""), arguments));
        assert!(code != Some(0) && err.contains("pipe"), "{arguments:?}: {code:?} {err}");
        assert!(err.contains("expected a regular file, found a named pipe (FIFO)"), "{arguments:?}: {err}");
    }
    assert!(!toy.path("new/last.safetensors").exists());
    // The shell's <(...) is an open pipe, which is a valid input.
    let mut command = Command::new("bash");
    let script = format!(
        "{} lm <(cat train.jsonl | sed 's/.*\"text\": \"\\([^\"]*\\)\".*/\\1/') -o x.arpa",
        env!("CARGO_BIN_EXE_panda")
    );
    command.args(["-c", &script]).current_dir(toy.path(""));
    let (code, err) = finish_in_time(command);
    assert_eq!(code, Some(0), "{err}");
}

#[test]
fn outputs_do_not_replace_files_of_a_run() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    let before: Vec<_> = snapshot(&toy.path("run"));
    let best = "run/best.safetensors";
    fs::copy(toy.path(best), toy.path("copy.safetensors")).unwrap();
    let copy = "copy.safetensors";
    symlink("run/metrics.csv", toy.path("link.ctm")).unwrap();
    let commands: [&[&str]; 8] = [
        &["average", "run/last.safetensors", copy],
        &["average", "run/epoch-7.safetensors", copy],
        &["average", "run/.lock", copy],
        &["evaluate", copy, "train.jsonl", "--hypotheses", "run/test.hypotheses.jsonl"],
        &["align", copy, "train.jsonl", "--json", "run/evaluation.json"],
        &["align", copy, "train.jsonl", "--ctm", "link.ctm"],
        &["lm", "train.jsonl", "-o", "run/recipe.toml"],
        &["merge", "run/recipe.path", "train.jsonl"],
    ];
    for arguments in commands {
        let (code, _, err) = run_command(panda(&folder, arguments));
        assert_eq!(code, Some(2), "{arguments:?}: {err}");
        assert!(err.contains("uses for a file"), "{arguments:?}: {err}");
    }
    assert!(before == snapshot(&toy.path("run")));
    // Other names in the run folder are allowed; the report is written there by default.
    for arguments in [&["average", "run/mean.safetensors", copy][..], &["report", "run"]] {
        let (code, _, err) = run_command(panda(&folder, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
    }
}

/// Returns names and bytes of all files of a folder, recursively.
fn snapshot(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let mut all: Vec<_> = files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect();
    all.extend(folders.iter().flat_map(|folder| snapshot(folder)));
    all.sort();
    all
}
