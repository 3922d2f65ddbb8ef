//! Tests of `panda prepare` on excerpts of corpora.
use std::fs;
use std::path::Path;

use crate::{panda, run_command};

/// Writes recordings of ten digits of one speaker, three takes each.
fn write_digit_recordings(folder: &Path) {
    fs::create_dir_all(folder.join("recordings")).unwrap();
    for digit in 0..10 {
        for take in [0, 5, 10] {
            let spec = hound::WavSpec {
                channels: 1,
                sample_rate: 8000,
                bits_per_sample: 16,
                sample_format: hound::SampleFormat::Int,
            };
            let path = folder.join(format!("recordings/{digit}_theo_{take}.wav"));
            let mut writer = hound::WavWriter::create(path, spec).unwrap();
            (0..2000 + digit).for_each(|n| writer.write_sample((n % 100) as i16).unwrap());
            writer.finalize().unwrap();
        }
    }
}

#[test]
fn an_excerpt_needs_allow_incomplete() {
    let folder = tempfile::tempdir().unwrap();
    write_digit_recordings(folder.path());
    let (status, _, error) = run_command(panda(folder.path(), &["prepare", "fsdd", "."]));
    assert_eq!(status, Some(2), "{error}");
    assert!(error.contains("unless it is an excerpt"), "{error}");
    assert!(!folder.path().join("train.jsonl").exists());

    let arguments = ["prepare", "fsdd", ".", "--allow-incomplete", "--strings", "20", "--output", "lists"];
    let (status, out, error) = run_command(panda(folder.path(), &arguments));
    assert_eq!(status, Some(0), "{error}");
    let row = |name: &str| {
        let line = out.lines().find(|line| line.split_whitespace().next() == Some(name));
        line.unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("train")[1..], ["20", "0.00", "1", "0.25", "0.25", "15"]);
    assert_eq!(row("strings_train")[1], "20");
    assert_eq!(row("strings_dev")[1], "2");
    assert!(out.contains("lists/strings_test.jsonl"), "{out}");
    assert_eq!(fs::read_to_string(folder.path().join("lists/test.jsonl")).unwrap().lines().count(), 10);

    let arguments = ["prepare", "fsdd", ".", "--allow-incomplete", "--shards", "8"];
    let (status, out, error) = run_command(panda(folder.path(), &arguments));
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("train-{000000..000002}.tar"), "{out}");
}

#[test]
fn invalid_arguments_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    write_digit_recordings(folder.path());
    for (arguments, part) in [
        (&["prepare", "timit", "."][..], "timit"),
        (&["prepare"], "librispeech"),
        (&["prepare", "fsdd", "none", "--allow-incomplete"], "none: cannot be read"),
        (&["prepare", "librispeech", "."], "train-clean-100"),
        (&["prepare", "an4", "."], "an4_train.transcription: cannot be read"),
        (&["prepare", "an4", ".", "--strings", "3"], "--strings"),
        (&["prepare", "fsdd", ".", "--shards", "0"], "--shards"),
        (&["prepare", "fsdd", ".", "--shards", "5", "--strings", "5"], "cannot be used with"),
        (&["prepare", "fsdd", ".", "--seed", "5"], "--strings"),
        (
            &["prepare", "fsdd", ".", "--strings", "4000000000"],
            "--strings: expected a number of strings, at most",
        ),
    ] {
        let (status, _, error) = run_command(panda(folder.path(), arguments));
        assert_eq!(status, Some(2), "{error}");
        assert!(error.to_lowercase().contains(part), "{error}\n{part}");
    }
}
