//! Runs: what they leave in their folder, how they stop and go on, and how they fail.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use training::{EpochReport, Error, Metrics, Observer, Outcome, Result, RunReport, Start, StepReport, train};

use super::toy::{RATE, Toy, leftovers, write_wav};

fn run(recipe: &Path, folder: &Path, start: Start) -> Result<Outcome> {
    train(recipe, None, folder, start, &mut (), &AtomicBool::new(false))
}

fn metrics(folder: &Path) -> Vec<Metrics> {
    let mut reader = csv::Reader::from_path(folder.join("metrics.csv")).unwrap();
    // Wall time is the one thing that two runs do not share.
    reader.deserialize().map(|row| Metrics { seconds: 0.0, ..row.unwrap() }).collect()
}

/// Sets the flag after some steps.
struct StopAfter<'a>(u64, &'a AtomicBool);

impl Observer for StopAfter<'_> {
    fn on_step(&mut self, _: &StepReport) {
        self.0 -= 1;
        self.1.store(self.0 == 0, Ordering::Relaxed);
    }
}

#[test]
fn a_stopped_run_goes_on_bit_for_bit() {
    stops_and_goes_on("kind = \"rnnt\"");
}

#[test]
fn so_does_one_with_parameters_of_its_own() {
    stops_and_goes_on("kind = \"tdt\"\ndurations = [0, 1, 3]\nomega = 0.1");
    // The scales still change where the run stops and goes on.
    stops_and_goes_on("kind = \"pruned\"\ns_range = 3\nwarm_steps = 8");
}

fn stops_and_goes_on(loss: &str) {
    let toy = Toy::new();
    let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 4\nevaluate_every = 2"), ("ctc_weight = 0.3", &loss)]);
    let (whole, parts) = (toy.path("whole"), toy.path("parts"));
    let outcome = run(&recipe, &whole, Start::Fresh).unwrap();
    // In the middle of an epoch, at its end, at once again: six utterances make at least three batches an epoch.
    let mut done = 0;
    for steps in [2, 2, 1, 3] {
        let stop = AtomicBool::new(false);
        let mut observer = StopAfter(steps, &stop);
        let part = train(&recipe, None, &parts, Start::Resume, &mut observer, &stop).unwrap();
        done += steps;
        assert!(part.stopped && part.dev.is_none() && part.steps == done, "{part:?}");
        assert!(!parts.join("evaluation.json").exists());
    }
    let last = run(&recipe, &parts, Start::Resume).unwrap();
    assert!(!last.stopped && last.steps == outcome.steps && last.steps > done);
    for name in [
        "recipe.toml",
        "last.safetensors",
        "best.safetensors",
        "evaluation.json",
        "dev.hypotheses.jsonl",
        "test.hypotheses.jsonl",
        "curve.svg",
    ] {
        assert!(
            std::fs::read(whole.join(name)).unwrap() == std::fs::read(parts.join(name)).unwrap(),
            "{name}"
        );
    }
    assert_eq!(metrics(&whole), metrics(&parts));
    assert_eq!(last.test.unwrap(), outcome.test.unwrap());
}

#[test]
fn two_runs_of_a_seed_agree_and_another_seed_differs() {
    let toy = Toy::new();
    let mut weights = Vec::new();
    for (name, seed) in [("a", "seed = 7"), ("b", "seed = 7"), ("c", "seed = 8")] {
        let recipe = toy.recipe(&[("seed = 7", seed), ("epochs = 3", "epochs = 1")]);
        run(&recipe, &toy.path(name), Start::Fresh).unwrap();
        weights.push(std::fs::read(toy.path(name).join("last.safetensors")).unwrap());
    }
    assert!(weights[0] == weights[1] && weights[0] != weights[2]);
}

#[derive(Default)]
struct Diary {
    started: Option<RunReport>,
    steps: Vec<StepReport>,
    epochs: Vec<EpochReport>,
}

impl Observer for Diary {
    fn on_start(&mut self, report: &RunReport) {
        self.started = Some(report.clone());
    }
    fn on_step(&mut self, report: &StepReport) {
        self.steps.push(report.clone());
    }
    fn on_epoch(&mut self, report: &EpochReport) {
        self.epochs.push(report.clone());
    }
}

#[test]
fn an_observer_hears_of_every_step_and_epoch() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 3\nevaluate_every = 2\nselect = \"last\"")]);
    let mut diary = Diary::default();
    let folder = toy.path("run");
    let outcome = train(&recipe, None, &folder, Start::Fresh, &mut diary, &AtomicBool::new(false)).unwrap();
    let started = diary.started.unwrap();
    assert_eq!((started.classes, started.utterances, started.epochs, started.first_epoch), (4, 6, 3, 0));
    assert_eq!(diary.steps.len() as u64, outcome.steps);
    for (index, step) in diary.steps.iter().enumerate() {
        assert_eq!(step.step, index as u64);
        assert!(step.loss.is_finite() && step.batch < step.batches && step.audio_seconds > 0.0);
    }
    assert_eq!(diary.steps.last().unwrap().steps, outcome.steps);
    assert_eq!(diary.steps.iter().filter(|step| step.batch == 0).count(), 3);
    // Due every second epoch, and at the end.
    let evaluated: Vec<bool> = diary.epochs.iter().map(|epoch| epoch.evaluation.is_some()).collect();
    assert_eq!(evaluated, [false, true, true]);
    assert_eq!(
        metrics(&folder),
        diary.epochs.iter().map(|e| Metrics { seconds: 0.0, ..e.metrics.clone() }).collect::<Vec<_>>()
    );
    let test = outcome.test.unwrap();
    assert_eq!((test.overall.utterances, test.overall.words, test.subsets.len()), (6, 14, 2));
    assert_eq!(test.subsets["even"].utterances + test.subsets["odd"].utterances, 6);
}

#[test]
fn an_old_run_is_not_overwritten_by_accident() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    run(&recipe, &folder, Start::Fresh).unwrap();
    let before = std::fs::read(folder.join("last.safetensors")).unwrap();
    let error = run(&recipe, &folder, Start::Fresh).unwrap_err();
    assert!(matches!(&error, Error::RunExists { path } if *path == folder), "{error}");
    // A forced start whose data is broken has not touched anything either.
    let broken = toy.recipe(&[("train = [\"train.jsonl\"]", "train = [\"none.jsonl\"]")]);
    assert!(run(&broken, &folder, Start::Force).is_err());
    assert!(std::fs::read(folder.join("last.safetensors")).unwrap() == before);

    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 1"),
        ("seed = 7", "seed = 8"),
        ("dev = [\"train.jsonl\"]", ""),
    ]);
    run(&recipe, &folder, Start::Force).unwrap();
    assert!(std::fs::read(folder.join("last.safetensors")).unwrap() != before);
    // The old run had a dev set, the new one has not; what is not the run's stays.
    assert!(!folder.join("best.safetensors").exists() && !folder.join("dev.hypotheses.jsonl").exists());
    assert!(folder.join("notes.txt").exists());

    // A run that died before its first checkpoint starts afresh, without what it may have left.
    std::fs::remove_file(folder.join("last.safetensors")).unwrap();
    std::fs::write(folder.join("best.safetensors"), "half of a checkpoint").unwrap();
    run(&recipe, &folder, Start::Resume).unwrap();
    assert!(!folder.join("best.safetensors").exists());
}

#[test]
fn a_run_that_diverges_names_step_and_utterances() {
    let toy = Toy::new();
    for loss in ["", "[loss]\nkind = \"tdt\"\ndurations = [0, 1, 2]", "[loss]\nkind = \"pruned\""] {
        diverges(&toy, loss);
    }
}

fn diverges(toy: &Toy, loss: &str) {
    let recipe = toy.recipe(&[
        ("learning_rate = 1e-2", "learning_rate = 1e38"),
        ("ctc_weight = 0.3", &format!("checkpoint_every = 1\n{loss}")),
    ]);
    let folder = toy.path("run");
    let error = run(&recipe, &folder, Start::Force).unwrap_err();
    let Error::Diverged { step, utterances, what, found, source } = &error else { panic!("{error}") };
    // What the loop sees itself has a value; what the loss sees, the loss's own error with the place.
    let own = ["loss", "gradient norm"].contains(what) && source.is_none();
    assert_eq!(own, source.is_none(), "{error}");
    assert!(found.is_some_and(|found| !found.is_finite()) || source.is_some(), "{error}");
    assert_eq!(std::error::Error::source(&error).is_some(), source.is_some());
    assert!(*step >= 1 && !utterances.is_empty() && utterances.len() <= 2);
    let message = error.to_string();
    assert!(
        message.starts_with(&format!("step {step}: expected a finite")) && message.contains("toy-"),
        "{message}"
    );
    assert!(folder.join("recipe.toml").exists());
    assert_eq!(leftovers(&folder), [] as [PathBuf; 0]);
}

#[test]
fn bad_data_is_named_before_anything_is_written() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[]);
    let folder = toy.path("run");
    let good = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let check = |parts: &[&str]| {
        let error = run(&recipe, &folder, Start::Fresh).unwrap_err();
        assert!(matches!(error, Error::Speech(_)), "{error}");
        let message = error.to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        assert!(!folder.exists());
    };
    toy.write("train.jsonl", "\n");
    check(&["train.jsonl", "empty manifest"]);
    toy.write("train.jsonl", "{\"id\": 3");
    check(&["train.jsonl:1"]);
    std::fs::remove_file(toy.path("train.jsonl")).unwrap();
    check(&["train.jsonl"]);

    toy.write("train.jsonl", &good.replace("3.wav", "nowhere.wav"));
    check(&["toy-3", "nowhere.wav"]);
    toy.write("train.jsonl", &good);
    let whole = std::fs::read(toy.path("3.wav")).unwrap();
    std::fs::write(toy.path("3.wav"), &whole[..whole.len() / 2]).unwrap();
    check(&["toy-3", "truncated"]);
    std::fs::write(toy.path("3.wav"), "a letter").unwrap();
    check(&["toy-3", "3.wav"]);
    write_wav(&toy.path("3.wav"), RATE, &[1; 100]);
    check(&["toy-3", "found 100"]);
    write_wav(&toy.path("3.wav"), 2 * RATE, &[1; 7100]);
    check(&["toy-3", "expected 8000 Hz, found 16000 Hz"]);
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let toy = Toy::new();
    let (recipe, file) = (toy.recipe(&[]), toy.write("file", ""));
    let error = run(&recipe, &file.join("run"), Start::Fresh).unwrap_err();
    assert!(matches!(&error, Error::Io { action: "make the run folder", .. }), "{error}");
}

#[test]
fn utterances_without_a_path_are_counted_and_harmless() {
    let toy = Toy::new();
    // Three words in one row of the encoder: no path in the modified topology, nor for CTC.
    let line = format!(
        "{{\"id\": \"short\", \"file\": \"short.wav\", \"text\": \"low low high\", \"seconds\": 0.04, \"sample_rate\": {RATE}}}\n"
    );
    write_wav(&toy.path("short.wav"), RATE, &[100; 320]);
    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.write("train.jsonl", &(manifest + &line));
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 2\ntopology = \"modified\"")]);
    run(&recipe, &toy.path("run"), Start::Fresh).unwrap();
    let rows = metrics(&toy.path("run"));
    assert!(rows.iter().all(|row| row.skipped == 1 && row.loss.is_finite()), "{rows:?}");
}
