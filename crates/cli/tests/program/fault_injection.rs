//! Fault-injection tests of the program, some minutes; `scripts/hostile` runs them.
//!
//! Kills at random moments, file size limits, two runs in one folder, and corrupted files of every
//! kind that the program reads. Lost data, a panic or a hang is a failure; counts are printed.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::encoded::{FORMATS, has_encoders, repair_pages, signal, write_inputs};
use super::mutants::{self, Random};
use super::toy::{Toy, leftovers};
use super::{panda, run_command, trained_for_an_epoch};

/// Time limit of a command.
const TIMEOUT: Duration = Duration::from_secs(20);
const CHECKPOINT: &str = "run/last.safetensors";

/// Returns a number of cases from an environment variable.
fn count_from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

/// Returns a corpus and the files of an uninterrupted run.
fn corpus_and_expected_files() -> (Toy, Vec<(&'static str, Vec<u8>)>) {
    let toy = Toy::new();
    toy.recipe(&[("epochs = 3", "epochs = 60\nevaluate_every = 7\ncheckpoint_every = 2")]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "whole"]));
    assert_eq!(code, Some(0), "{err}");
    let names = ["last.safetensors", "best.safetensors", "evaluation.json", "test.hypotheses.jsonl"];
    let files = names.map(|name| (name, fs::read(toy.path("whole").join(name)).unwrap())).to_vec();
    (toy, files)
}

/// Asserts that a run has the expected files and no temporary ones.
fn assert_expected_files(toy: &Toy, run: &str, files: &[(&str, Vec<u8>)]) {
    for (name, bytes) in files {
        assert!(fs::read(toy.path(run).join(name)).unwrap() == *bytes, "{run}/{name}");
    }
    assert_eq!(leftovers(&toy.path(run)), [] as [PathBuf; 0]);
}

/// Starts a command without input and output.
fn spawn_quiet(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for a command and panics after the time limit.
fn wait_with_timeout(mut child: Child, name: &str) -> (Option<i32>, String) {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > TIMEOUT {
            child.kill().unwrap();
            panic!("{name}: still running after {TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
#[ignore = "takes a minute"]
fn kills_at_random_moments() {
    let (toy, files) = corpus_and_expected_files();
    let mut random = Random(2026);
    let (kills, mut killed, mut finished) = (count_from_env("PANDA_KILLS", 100), 0, 0);
    let (mut round, mut runs) = (0, 0);
    while killed < kills {
        let run = format!("parts-{round}");
        let mut child =
            spawn_quiet(panda(&toy.path(""), &["train", "recipe.toml", "--run", &run, "--resume"]));
        std::thread::sleep(Duration::from_micros(random.below(400_000) as u64));
        runs += 1;
        if child.try_wait().unwrap().is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
            killed += 1;
            continue;
        }
        let (code, err) = wait_with_timeout(child, &run);
        assert_eq!(code, Some(0), "{err}");
        assert_expected_files(&toy, &run, &files);
        (finished, round) = (finished + 1, round + 1);
    }
    let run = format!("parts-{round}");
    let last = spawn_quiet(panda(&toy.path(""), &["train", "recipe.toml", "--run", &run, "--resume"]));
    let (code, err) = wait_with_timeout(last, &run);
    assert_eq!(code, Some(0), "{err}");
    assert_expected_files(&toy, &run, &files);
    println!(
        "kills: {killed} of {runs} runs killed, {} finished, each with the same files; nothing lost",
        finished + 1
    );
}

#[test]
#[ignore = "takes a minute"]
fn file_size_limits_lose_nothing() {
    let (toy, files) = corpus_and_expected_files();
    let (rounds, mut rejected, mut finished) = (count_from_env("PANDA_LIMITS", 60), 0, 0);
    for round in 0..rounds {
        let run = format!("small-{round}");
        // Limits in KiB, from 0 to more than the largest file.
        let line = format!("ulimit -f {}; exec $P train recipe.toml --run {run} --resume", 6 * round);
        let mut command = Command::new("bash");
        command.args(["-c", &line]).current_dir(toy.path("")).env("P", env!("CARGO_BIN_EXE_panda"));
        let (code, err) = wait_with_timeout(spawn_quiet(command), &line);
        assert!(!err.contains("panicked"), "{err}");
        match code {
            Some(0) => finished += 1,
            Some(2) => {
                assert!(err.contains("could not write"), "{line}: {err}");
                rejected += 1;
                if toy.path(&run).exists() {
                    assert_eq!(leftovers(&toy.path(&run)), [] as [PathBuf; 0], "{line}");
                }
            }
            other => panic!("{line}: {other:?}: {err}"),
        }
        if round % 8 == 0 {
            let arguments = ["train", "recipe.toml", "--run", &run, "--resume"];
            let (code, err) = wait_with_timeout(spawn_quiet(panda(&toy.path(""), &arguments)), &run);
            assert_eq!(code, Some(0), "{err}");
            assert_expected_files(&toy, &run, &files);
        }
        let _ = fs::remove_dir_all(toy.path(&run));
    }
    println!("limits: {rejected} of {rounds} runs rejected, {finished} finished; nothing half-written");
}

#[test]
#[ignore = "takes a minute"]
fn two_runs_at_once() {
    let (toy, files) = corpus_and_expected_files();
    let (pairs, mut rejected) = (count_from_env("PANDA_PAIRS", 20), 0);
    for pair in 0..pairs {
        let run = format!("pair-{pair}");
        let start =
            || spawn_quiet(panda(&toy.path(""), &["train", "recipe.toml", "--run", &run, "--resume"]));
        let outcomes = [start(), start()].map(|child| wait_with_timeout(child, &run));
        for (code, err) in &outcomes {
            match code {
                Some(0) => {}
                Some(2) if err.contains("another process that trains in it") => rejected += 1,
                other => panic!("{run}: {other:?}: {err}"),
            }
        }
        assert!(outcomes.iter().any(|(code, _)| *code == Some(0)));
        assert_expected_files(&toy, &run, &files);
        fs::remove_dir_all(toy.path(&run)).unwrap();
    }
    println!("pairs: {rejected} second runs rejected of {pairs} pairs; the first ones left the same files");
}

/// Runs the program on corrupted files and counts exit codes.
fn run_on_mutants(
    kind: &str,
    valid_files: &[Vec<u8>],
    words: &[&[u8]],
    run: impl Fn(&Path, &[u8]) -> Command + Sync,
) {
    run_on_counted_mutants(count_from_env("PANDA_BROKEN", 2000), kind, valid_files, words, run);
}

/// [`run_on_mutants`] with a given number of files.
fn run_on_counted_mutants(
    cases: u64,
    kind: &str,
    valid_files: &[Vec<u8>],
    words: &[&[u8]],
    run: impl Fn(&Path, &[u8]) -> Command + Sync,
) {
    let (next, accepted, rejected) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let folder = tempfile::tempdir().unwrap();
                loop {
                    let case = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if case >= cases {
                        return;
                    }
                    let mutant = mutants::mutant(kind, case, valid_files, words);
                    let mut command = run(folder.path(), &mutant);
                    // Somewhat more than the valid files need.
                    command.env("RAYON_NUM_THREADS", "1").env("PANDA_MEMORY", "2GiB");
                    let (code, err) = wait_with_timeout(spawn_quiet(command), &format!("{kind} {case}"));
                    assert!(!err.contains("panicked"), "{kind} {case}: {err}");
                    match code {
                        Some(0) => accepted.fetch_add(1, Ordering::Relaxed),
                        Some(1 | 2) => rejected.fetch_add(1, Ordering::Relaxed),
                        other => panic!("{kind} {case}: {other:?}: {err}"),
                    };
                }
            });
        }
    });
    println!(
        "{kind}: {} broken files, {} rejected, {} read",
        cases,
        rejected.into_inner(),
        accepted.into_inner()
    );
}

/// Corrupted files of all formats that ffmpeg, sox and other encoders write.
#[test]
#[ignore = "takes some minutes"]
fn corrupted_audio_of_every_format() {
    if !has_encoders() {
        return;
    }
    let toy = trained_for_an_epoch();
    let (corpus_folder, inputs) = (toy.path(""), tempfile::tempdir().unwrap());
    write_inputs(inputs.path(), &signal(1201));
    let words: &[&[u8]] =
        &[b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"ID3\x04\0\0\x7f\x7f\x7f\x7f"];
    for kind in ["wav", "aiff aif", "caf", "flac", "mp3 mp2", "aac", "mp4 m4a", "ogg oga opus"] {
        let extensions: Vec<&str> = kind.split(' ').collect();
        let formats = FORMATS.iter().filter(|format| extensions.contains(&format.ending));
        let valid_files: Vec<Vec<u8>> = formats.map(|format| format.encode(inputs.path())).collect();
        run_on_counted_mutants(
            count_from_env("PANDA_SOUNDS", 400),
            kind,
            &valid_files,
            words,
            |folder, bytes| {
                let path = folder.join("sound");
                // Half of the corrupted Ogg pages get a valid checksum.
                let bytes = if bytes.len() % 2 == 0 { repair_pages(bytes.to_vec()) } else { bytes.to_vec() };
                fs::write(&path, bytes).unwrap();
                let path = path.to_str().unwrap();
                panda(&corpus_folder, &["transcribe", CHECKPOINT, path, "--resample", "--channel", "1"])
            },
        );
    }
}

#[test]
#[ignore = "takes some minutes"]
fn corrupted_files_of_every_kind() {
    let toy = trained_for_an_epoch();
    let corpus_folder = toy.path("");
    let checkpoint = toy.path(CHECKPOINT);
    let command = |arguments: &[&str]| panda(&corpus_folder, arguments);
    let write = |folder: &Path, name: &str, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let read = |name: &str| fs::read(toy.path(name)).unwrap();

    // Audio files.
    let mut wav = mutants::wav_files();
    wav.push(read("0.wav"));
    run_on_mutants("wav", &wav, mutants::WAV_WORDS, |folder, bytes| {
        command(&["transcribe", CHECKPOINT, &write(folder, "x.wav", bytes), "--resample", "--channel", "1"])
    });
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../data/digits/audio");
    let flac = ["dev/digits-dev-0000.flac", "test/digits-test-0001.flac"];
    let flac = flac.map(|name| fs::read(digits.join(name)).unwrap());
    run_on_mutants("flac", &flac, &[b"fLaC", b"\xff\xf8", b"\xff\xf9"], |folder, bytes| {
        command(&["transcribe", CHECKPOINT, &write(folder, "x.flac", bytes), "--resample"])
    });
    // Manifests, recipes, checkpoints and tokenizers.
    let words: &[&[u8]] =
        &[b"\"seconds\": ", b"\"id\": ", b"1e300", b"-1", b"null", b"\"lead_ms\": 4294967295", b"[", b"{"];
    run_on_mutants("manifest", &[read("train.jsonl")], words, |folder, bytes| {
        for name in 0..6 {
            let to = folder.join(format!("{name}.wav"));
            if !to.exists() {
                fs::copy(toy.path(&format!("{name}.wav")), to).unwrap();
            }
        }
        command(&["evaluate", CHECKPOINT, &write(folder, "x.jsonl", bytes)])
    });
    let words: &[&[u8]] =
        &[b"= 1e300\n", b"= 99999999999\n", b"hidden", b"layers", b"[loss]\nkind = \"tdt\"\n", b"[", b"\""];
    run_on_mutants("recipe", &[read("recipe.toml")], words, |folder, bytes| {
        let manifest = folder.join("train.jsonl");
        if !manifest.exists() {
            fs::copy(toy.path("train.jsonl"), manifest).unwrap();
        }
        command(&["info", &write(folder, "x.toml", bytes)])
    });
    let words: &[&[u8]] =
        &[b"\"F32\"", b"[0,1]", b"data_offsets", b"\"version\":2", b"\xff\xff\xff\xff\xff\xff\xff\x7f"];
    run_on_mutants("checkpoint", &[read(CHECKPOINT)], words, |folder, bytes| {
        command(&["transcribe", &write(folder, "x.safetensors", bytes), "0.wav"])
    });
    let tokenizer = model::Checkpoint::read(&checkpoint).unwrap().tokenizer;
    run_on_mutants(
        "tokenizer",
        &[tokenizer.into_bytes()],
        &[b"\"vocab\"", b"[", b"{}", b"null", b"\xe2\x96\x81"],
        |folder, bytes| {
            let mut checkpoint = model::Checkpoint::read(&checkpoint).unwrap();
            checkpoint.tokenizer = String::from_utf8_lossy(bytes).into_owned();
            checkpoint.write(&folder.join("x.safetensors")).unwrap();
            command(&["transcribe", folder.join("x.safetensors").to_str().unwrap(), "0.wav"])
        },
    );
}
