//! Tests that error messages contain the system's error, path and action.
#![cfg(unix)]
use std::fs;
use std::process::Command;

use super::toy::{Toy, leftovers};
use super::{panda, run_command, trained_for_an_epoch};

const BEST: &str = "run/best.safetensors";

#[test]
fn messages_contain_the_system_error() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    let long = "x".repeat(256);
    fs::create_dir(toy.path("taken")).unwrap();
    let recipe = fs::read_to_string(toy.path("recipe.toml")).unwrap();
    let write_recipe = |name: &str, old: &str, new: &str| {
        assert!(recipe.contains(old), "{old}");
        toy.write(name, &recipe.replace(old, new));
    };
    // Paths that cannot be opened, and the message of the system.
    let paths = [
        ("none/file", "No such file or directory (os error 2)"),
        ("taken", "Is a directory (os error 21)"),
        ("0.wav/file", "Not a directory (os error 20)"),
        (long.as_str(), "File name too long (os error 36)"),
    ];
    for (path, message) in paths {
        write_recipe("train.toml", "train = [\"train.jsonl\"]", &format!("train = [\"{path}\"]"));
        write_recipe("init.toml", "[batch]", &format!("[init]\nweights = \"{path}\"\n[batch]"));
        let line = fs::read_to_string(toy.path("train.jsonl")).unwrap();
        toy.write("sound.jsonl", &line.lines().next().unwrap().replace("0.wav", path));
        let commands: [&[&str]; 22] = [
            // As outputs.
            &["evaluate", BEST, "train.jsonl", "--hypotheses", path],
            &["evaluate", BEST, "train.jsonl", "--format", "ctm", "--output", path],
            &["align", BEST, "train.jsonl", "--json", path],
            &["align", BEST, "train.jsonl", "--ctm", path],
            &["average", path, BEST],
            &["lm", "train.jsonl", "-o", path],
            &["report", "run", "-o", path],
            &["merge", path, "train.jsonl"],
            // As inputs.
            &["train", path],
            &["train", "train.toml", "--run", "new"],
            &["train", "init.toml", "--run", "new"],
            &["evaluate", path, "train.jsonl"],
            &["evaluate", BEST, path],
            &["evaluate", BEST, "sound.jsonl"],
            &["evaluate", BEST, "train.jsonl", "--lm", path],
            &["evaluate", BEST, "train.jsonl", "--phrases", path],
            &["align", BEST, "sound.jsonl", "--json", "x.json"],
            &["transcribe", BEST, path],
            &["transcribe", BEST, path, "--stream"],
            &["average", "mean.safetensors", path],
            &["merge", "x.jsonl", path],
            &["info", path],
        ];
        for arguments in commands {
            let (code, _, err) = run_command(panda(&folder, arguments));
            assert!(code == Some(2) && err.contains(message) && err.contains(path), "{arguments:?}: {err}");
        }
    }
    assert!(!toy.path("new/last.safetensors").exists());
}

#[test]
fn names_of_255_bytes_are_written() {
    let toy = trained_for_an_epoch();
    let folder = toy.path("");
    for letter in ["x", "é", "語"] {
        let name = |ending: &str| letter.repeat((255 - ending.len()) / letter.len()) + ending;
        let (ctm, json, arpa, mean) = (name(".ctm"), name(".json"), name(".arpa"), name(".safetensors"));
        for arguments in [
            &["align", BEST, "train.jsonl", "--ctm", &ctm, "--json", &json][..],
            &["lm", "train.jsonl", "-o", &arpa],
            &["average", &mean, BEST],
            &["evaluate", &mean, "train.jsonl", "--hypotheses", &json],
        ] {
            let (code, _, err) = run_command(panda(&folder, arguments));
            assert_eq!(code, Some(0), "{arguments:?}: {err}");
        }
        assert!([ctm, json, arpa, mean].iter().all(|name| toy.path(name).exists()));
    }
    assert!(leftovers(&folder).is_empty());
}

#[test]
fn a_file_size_limit_is_a_write_error() {
    let toy = trained_for_an_epoch();
    for (arguments, output) in [
        ("average mean.safetensors run/best.safetensors", "mean.safetensors"),
        ("align run/best.safetensors train.jsonl --json a.json", "a.json"),
        ("evaluate run/best.safetensors train.jsonl --hypotheses h.jsonl", "h.jsonl"),
        ("report run -o page.html", "page.html"),
    ] {
        let line = format!("ulimit -f 0; exec $P {arguments}");
        let mut command = Command::new("bash");
        command.args(["-c", &line]).current_dir(toy.path("")).env("P", env!("CARGO_BIN_EXE_panda"));
        let (code, _, err) = run_command(command);
        assert_eq!(code, Some(2), "{arguments}: {err}");
        assert!(err.contains(&format!("{output}: could not write")), "{arguments}: {err}");
        assert!(err.contains("File too large (os error 27)"), "{arguments}: {err}");
        assert!(!toy.path(output).exists());
    }
    assert!(leftovers(&toy.path("")).is_empty());
}

#[test]
fn an_unwritable_feature_cache_is_disabled() {
    let toy = Toy::new();
    let cached = "stream = true\ncache = \"cache\"\ntrain = [\"train.jsonl\"]";
    toy.recipe(&[("train = [\"train.jsonl\"]", cached), ("epochs = 3", "epochs = 2")]);
    // A file in place of the folder has the effect of a full disk: no features can be written.
    fs::create_dir(toy.path("cache")).unwrap();
    toy.write("cache/planes", "");
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(err.matches("warning: data.cache: ").count(), 1, "{err}");
    assert!(err.contains("Not a directory (os error 20)"), "{err}");
    assert!(err.contains("the cache is disabled for the rest of the run"), "{err}");
    assert!(toy.path("run/best.safetensors").exists());
    assert_eq!(fs::read(toy.path("cache/planes")).unwrap(), b"");
    // The result is that of a run without a cache.
    let plain = "stream = true\ntrain = [\"train.jsonl\"]";
    toy.recipe(&[("train = [\"train.jsonl\"]", plain), ("epochs = 3", "epochs = 2")]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "plain"]));
    assert_eq!(code, Some(0), "{err}");
    let metrics = |run: &str| fs::read_to_string(toy.path(run).join("evaluation.json")).unwrap();
    assert_eq!(metrics("run"), metrics("plain"));
}
