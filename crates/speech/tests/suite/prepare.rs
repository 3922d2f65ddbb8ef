//! Tests of the output folder of a corpus preparation: links, pipes and locks.
//!
//! The functions at the start are helpers of all tests of `speech::prepare`.

use std::fs;
use std::path::{Path, PathBuf};

use speech::files::FileLock;
use speech::prepare::{PrepareOptions, fsdd};

use crate::common::wav_bytes;

pub(crate) fn write_file(path: PathBuf, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

pub(crate) fn sine(samples: usize) -> Vec<i16> {
    (0..samples).map(|n| ((n as f64 * 0.05).sin() * 3000.0) as i16).collect()
}

/// Names of the files in a folder, without those of the corpus.
pub(crate) fn prepared_files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["LibriSpeech", "an4", "recordings"].contains(&name.as_str()))
        .collect();
    names.sort();
    names
}

pub(crate) fn excerpt(folder: &Path) -> PrepareOptions {
    PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(folder) }
}

/// Damages the files of a folder.
pub(crate) type Damage = fn(&Path);

/// Recordings of all digits by some speakers, with as many takes each.
pub(crate) fn fsdd_excerpt(folder: &Path, speakers: &[&str], takes: u32) {
    for speaker in speakers {
        for digit in 0..10 {
            for take in 0..takes {
                let bytes = wav_bytes(8000, &sine(1600 + 10 * digit + take as usize));
                write_file(folder.join(format!("recordings/{digit}_{speaker}_{take}.wav")), bytes);
            }
        }
    }
}

#[cfg(unix)]
#[test]
fn lists_are_written_through_links_and_pipes() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 6);
    let in_folder = |name: &str| folder.path().join(name);
    for name in ["out", "plain", "shards", "far"] {
        fs::create_dir(in_folder(name)).unwrap();
    }
    let options_for =
        |name: &str| PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(in_folder(name)) };
    fsdd(folder.path(), &options_for("plain"), None).unwrap();
    fs::write(in_folder("elsewhere.jsonl"), "old").unwrap();
    symlink("../elsewhere.jsonl", in_folder("out/train.jsonl")).unwrap();
    assert!(
        std::process::Command::new("mkfifo").arg(in_folder("out/test.jsonl")).status().unwrap().success()
    );
    let reader = {
        let pipe = in_folder("out/test.jsonl");
        std::thread::spawn(move || fs::read_to_string(pipe).unwrap())
    };
    fsdd(folder.path(), &options_for("out"), None).unwrap();
    let text = |name: &str| fs::read_to_string(in_folder(name)).unwrap();
    assert_eq!(reader.join().unwrap(), text("plain/test.jsonl"));
    assert_eq!(text("elsewhere.jsonl"), text("plain/train.jsonl"));
    assert!(fs::symlink_metadata(in_folder("out/train.jsonl")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(in_folder("out/test.jsonl")).unwrap().file_type().is_fifo());
    assert_eq!(prepared_files(&in_folder("out")), ["test.jsonl", "train.jsonl"]);
    // Shards follow links too.
    symlink("../far/shard", in_folder("shards/test-000000.tar")).unwrap();
    fsdd(folder.path(), &PrepareOptions { shards: Some(100), ..options_for("shards") }, None).unwrap();
    assert!(in_folder("shards/test-000000.tar").is_symlink() && in_folder("far/shard").is_file());

    // Two lists in one file or a list over a recording are refused.
    let recording = in_folder("recordings/0_theo_0.wav");
    let before = fs::read(&recording).unwrap();
    for (target, part) in [
        ("../elsewhere.jsonl", "a different target"),
        ("../recordings/0_theo_0.wav", "no link into the corpus"),
    ] {
        fs::remove_file(in_folder("out/test.jsonl")).unwrap();
        symlink(target, in_folder("out/test.jsonl")).unwrap();
        fs::write(in_folder("elsewhere.jsonl"), "old").unwrap();
        let error = fsdd(folder.path(), &options_for("out"), None).unwrap_err().to_string();
        assert!(error.contains("out/test.jsonl: expected") && error.contains(part), "{error}");
        assert_eq!(text("elsewhere.jsonl"), "old");
        assert_eq!(prepared_files(&in_folder("out")), ["test.jsonl", "train.jsonl"]);
    }
    assert_eq!(fs::read(recording).unwrap(), before);
}

#[test]
fn only_one_process_prepares_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 6);
    let out = folder.path().join("out");
    let prepare = PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(&out) };
    fs::create_dir(&out).unwrap();
    let lock = FileLock::acquire(&out.join(".prepare.lock")).unwrap().unwrap();
    for shards in [None, Some(2)] {
        let error = fsdd(folder.path(), &PrepareOptions { shards, ..prepare.clone() }, None).unwrap_err();
        assert!(error.to_string().contains("expected no other process that prepares a corpus"), "{error}");
    }
    assert_eq!(prepared_files(&out), [".prepare.lock"]);
    drop(lock);
    // The process that held the lock may have been killed.
    fsdd(folder.path(), &prepare, None).unwrap();
    assert_eq!(prepared_files(&out), ["test.jsonl", "train.jsonl"]);

    // Of two concurrent processes, one is refused or both run one after the other.
    let pattern = |size: usize| PrepareOptions { shards: Some(size), ..prepare.clone() };
    fs::remove_dir_all(&out).unwrap();
    let outcomes: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = [7, 7]
            .map(|size| {
                scope.spawn({
                    let (pattern, folder) = (pattern(size), folder.path());
                    move || fsdd(folder, &pattern, None).is_ok()
                })
            })
            .into_iter()
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(outcomes.contains(&true));
    assert_eq!(prepared_files(&out).len(), 10usize.div_ceil(7) + 50usize.div_ceil(7));
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_the_lock_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 6);
    let (out, victim) = (folder.path().join("out"), folder.path().join("victim"));
    fs::create_dir(&out).unwrap();
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink("../victim", out.join(".prepare.lock")).unwrap();
    let prepare = PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(&out) };
    let error = fsdd(folder.path(), &prepare, None).unwrap_err().to_string();
    assert!(error.contains(".prepare.lock") && error.contains("a symbolic link"), "{error}");
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
}
