//! Tests of training runs: files in the folder, stops, resumption, errors.
//!
//! A run that was stopped, or whose process was killed, must continue with the bits of an
//! uninterrupted run.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use model::Checkpoint;
use training::{
    EpochReport, Error, Metrics, Observer, Result, RunOutcome, RunReport, StartMode, StepReport, train,
};

use super::tfevents;
use super::toy::{RATE, Toy, leftovers, write_wav};

fn run(recipe: &Path, folder: &Path, start: StartMode) -> Result<RunOutcome> {
    train(recipe, None, folder, start, &mut (), &AtomicBool::new(false))
}

/// Reads the metrics of a run, without times and memory.
fn read_metrics(folder: &Path) -> Vec<Metrics> {
    let mut reader = csv::Reader::from_path(folder.join("metrics.csv")).unwrap();
    // Two runs differ in wall time, and in the peak memory of a process that runs other tests too.
    reader.deserialize().map(|row| Metrics { seconds: 0.0, resident_bytes: 0, ..row.unwrap() }).collect()
}

/// Sets the flag after a number of steps.
struct StopAfter<'a> {
    remaining_steps: u64,
    stop: &'a AtomicBool,
}

impl Observer for StopAfter<'_> {
    fn on_step(&mut self, _: &StepReport) {
        self.remaining_steps -= 1;
        self.stop.store(self.remaining_steps == 0, Ordering::Relaxed);
    }
}

#[test]
fn a_stopped_run_resumes_to_the_same_bits() {
    expect_resumption("kind = \"rnnt\"", &[]);
}

#[test]
fn a_stopped_run_of_a_streaming_model_resumes_to_the_same_bits() {
    let changes = [
        ("mels = 12", "mels = 12\nnormalize = \"running\""),
        ("[augment]", "[augment]\njoin = 4"),
        ("bidirectional = true", "bidirectional = false"),
    ];
    expect_resumption("kind = \"rnnt\"", &changes);
}

#[test]
fn a_stopped_run_of_a_loss_with_parameters_resumes_to_the_same_bits() {
    expect_resumption("kind = \"tdt\"\ndurations = [0, 1, 3]\nomega = 0.1", &[]);
    // The scales still change at the step where the run stops and resumes.
    expect_resumption("kind = \"pruned\"\ns_range = 3\nwarm_steps = 8", &[]);
}

/// Expects the same files of a run with and without stops.
fn expect_resumption(loss: &str, changes: &[(&str, &str)]) {
    let toy = Toy::new();
    let loss = format!("ctc_weight = 0.3\n[loss]\n{loss}");
    let basic = [("epochs = 3", "epochs = 4\nevaluate_every = 2"), ("ctc_weight = 0.3", loss.as_str())];
    let recipe = toy.recipe(&[&basic, changes].concat());
    let (uninterrupted, parts) = (toy.path("whole"), toy.path("parts"));
    let outcome = run(&recipe, &uninterrupted, StartMode::Fresh).unwrap();
    // Stops within an epoch, at its end and directly after; an epoch has at least three batches.
    let mut finished_steps = 0;
    for steps in [2, 2, 1, 3] {
        let stop = AtomicBool::new(false);
        let mut observer = StopAfter { remaining_steps: steps, stop: &stop };
        let part = train(&recipe, None, &parts, StartMode::Resume, &mut observer, &stop).unwrap();
        finished_steps += steps;
        assert!(part.stopped && part.dev.is_none() && part.steps == finished_steps, "{part:?}");
        assert!(!parts.join("evaluation.json").exists());
    }
    let last = run(&recipe, &parts, StartMode::Resume).unwrap();
    assert!(!last.stopped && last.steps == outcome.steps && last.steps > finished_steps);
    for name in [
        "recipe.toml",
        "last.safetensors",
        "best.safetensors",
        "evaluation.json",
        "dev.hypotheses.jsonl",
        "test.hypotheses.jsonl",
    ] {
        assert!(
            std::fs::read(uninterrupted.join(name)).unwrap() == std::fs::read(parts.join(name)).unwrap(),
            "{name}"
        );
    }
    assert_eq!(read_metrics(&uninterrupted), read_metrics(&parts));
    let mut events = [&uninterrupted, &parts].map(|folder| tfevents::scalars(folder));
    let excluded = ["epoch/seconds", "epoch/resident_bytes"];
    events.iter_mut().for_each(|events| events.retain(|event| !excluded.contains(&&*event.1)));
    assert_eq!(events[0], events[1]);
    assert_eq!(last.test.unwrap(), outcome.test.unwrap());
}

#[test]
fn event_files_have_the_values_of_the_metrics() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 6\nevaluate_every = 2\ncheckpoint_every = 2")]);
    let folder = toy.path("run");
    let mut recorder = ReportRecorder::default();
    let outcome =
        train(&recipe, None, &folder, StartMode::Fresh, &mut recorder, &AtomicBool::new(false)).unwrap();
    let events = tfevents::scalars(&folder);
    let values_of = |name: &str| -> Vec<(u64, f32)> {
        events.iter().filter(|event| event.1 == name).map(|event| (event.0, event.2)).collect()
    };
    let rows = read_metrics(&folder);
    let losses: Vec<_> = rows.iter().map(|row| (row.step, row.loss as f32)).collect();
    assert_eq!(values_of("epoch/loss"), losses);
    let rates = rows.iter().filter_map(|row| Some((row.step, row.dev_cer? as f32)));
    assert_eq!(values_of("epoch/dev_cer"), rates.collect::<Vec<_>>());
    assert_eq!(values_of("epoch/dev_wer").len(), 3);
    let every_tenth = recorder.steps.iter().filter(|step| step.step % 10 == 9);
    let losses: Vec<_> = every_tenth.map(|step| (step.step + 1, step.loss as f32)).collect();
    assert_eq!(losses.len() as u64, outcome.steps / 10);
    assert_eq!(values_of("step/loss"), losses);
    assert!(values_of("step/ctc_loss").len() == losses.len() && values_of("step/simple_loss").is_empty());
    // One file, not one for each checkpoint, and none next to the other files of the run.
    assert_eq!(tfevents::files(&folder).len(), 1);
    assert!(!contains_name_with(&folder, "tfevents"));
    // A new run in the same folder deletes the events of the old one.
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    run(&recipe, &folder, StartMode::Force).unwrap();
    assert_eq!(tfevents::scalars(&folder).iter().filter(|event| event.1 == "epoch/loss").count(), 1);
}

/// Returns whether a folder contains a name with `part`.
fn contains_name_with(folder: &Path, part: &str) -> bool {
    let mut entries = std::fs::read_dir(folder).unwrap();
    entries.any(|entry| entry.unwrap().file_name().to_str().unwrap().contains(part))
}

#[test]
fn each_start_of_a_run_writes_one_event_file() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 6\ncheckpoint_every = 2")]);
    let folder = toy.path("run");
    let stop_after = |steps| {
        let stop = AtomicBool::new(false);
        train(
            &recipe,
            None,
            &folder,
            StartMode::Resume,
            &mut StopAfter { remaining_steps: steps, stop: &stop },
            &stop,
        )
        .unwrap()
    };
    assert!(stop_after(11).stopped);
    let first = tfevents::files(&folder);
    assert_eq!(first.len(), 1);
    let values = tfevents::scalars(&folder);
    let checkpoint = std::fs::read(folder.join("last.safetensors")).unwrap();
    assert!(!run(&recipe, &folder, StartMode::Resume).unwrap().stopped);
    assert_eq!(tfevents::files(&folder).len(), 2);
    let all = tfevents::scalars(&folder);
    assert!(all.len() > values.len() && all.starts_with(&values));
    // A killed run leaves events after its last checkpoint, and an incomplete record.
    let second = std::fs::read(&tfevents::files(&folder)[1]).unwrap();
    // The first record: 16 bytes of a frame, and a message of the length in its first eight bytes.
    let version_bytes = 16 + u64::from_le_bytes(second[..8].try_into().unwrap()) as usize;
    let written = std::fs::read(&first[0]).unwrap();
    std::fs::write(&first[0], [&written[..], &second[version_bytes..], &second[..20]].concat()).unwrap();
    std::fs::write(folder.join("last.safetensors"), checkpoint).unwrap();
    // Also with the layout of earlier versions: all files in the run folder.
    for file in tfevents::files(&folder) {
        std::fs::rename(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    std::fs::remove_dir(folder.join("tensorboard")).unwrap();
    assert!(!run(&recipe, &folder, StartMode::Resume).unwrap().stopped);
    assert_eq!(std::fs::read(&first[0]).unwrap(), written);
    let measured = ["epoch/seconds", "epoch/resident_bytes"];
    let without_measured = |mut events: Vec<tfevents::Scalar>| {
        events.retain(|event| !measured.contains(&&*event.1));
        events
    };
    assert_eq!(without_measured(tfevents::scalars(&folder)), without_measured(all));
    assert!(!contains_name_with(&folder, "tfevents"));
    // A finished run has no more events.
    run(&recipe, &folder, StartMode::Resume).unwrap();
    assert_eq!(tfevents::files(&folder).len(), 2);
    // The name of the folder is checked before the run.
    std::fs::remove_dir_all(folder.join("tensorboard")).unwrap();
    std::fs::write(folder.join("tensorboard"), "").unwrap();
    let error = run(&recipe, &folder, StartMode::Resume).unwrap_err().to_string();
    assert!(error.contains("tensorboard: ") && error.contains("expected a folder"), "{error}");
}

#[test]
fn the_best_checkpoint_has_the_best_value_of_the_recipes_metric() {
    let toy = Toy::new();
    for metric in ["wer", "cer"] {
        let recipe = toy.recipe(&[("epochs = 3", &format!("epochs = 30\nmetric = \"{metric}\""))]);
        run(&recipe, &toy.path(metric), StartMode::Fresh).unwrap();
        let checkpoint = Checkpoint::read(&toy.path(metric).join("best.safetensors")).unwrap();
        let rows = read_metrics(&toy.path(metric));
        let rates = rows.iter().map(|row| if metric == "wer" { row.dev_wer } else { row.dev_cer });
        let rates: Vec<f64> = rates.map(Option::unwrap).collect();
        let lowest = rates.iter().copied().fold(f64::INFINITY, f64::min);
        let first = rates.iter().position(|&rate| rate == lowest).unwrap();
        assert_eq!(checkpoint.progress.best, Some(lowest.to_bits()), "{metric}: {rates:?}");
        assert_eq!(checkpoint.progress.epoch, first as u64 + 1);
        // Otherwise the test could not detect that the two rates are exchanged.
        assert!(rows.iter().any(|row| row.dev_wer != row.dev_cer));
    }
}

#[test]
fn two_runs_of_a_seed_agree_and_another_seed_differs() {
    let toy = Toy::new();
    let mut weights = Vec::new();
    for (name, seed) in [("a", "seed = 7"), ("b", "seed = 7"), ("c", "seed = 8")] {
        let recipe = toy.recipe(&[("seed = 7", seed), ("epochs = 3", "epochs = 1")]);
        run(&recipe, &toy.path(name), StartMode::Fresh).unwrap();
        weights.push(std::fs::read(toy.path(name).join("last.safetensors")).unwrap());
    }
    assert!(weights[0] == weights[1] && weights[0] != weights[2]);
}

/// Records all reports.
#[derive(Default)]
struct ReportRecorder {
    started: Option<RunReport>,
    steps: Vec<StepReport>,
    epochs: Vec<EpochReport>,
}

impl Observer for ReportRecorder {
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
fn an_observer_gets_a_report_of_every_step_and_epoch() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 3\nevaluate_every = 2\nselect = \"last\"")]);
    let mut recorder = ReportRecorder::default();
    let folder = toy.path("run");
    let outcome =
        train(&recipe, None, &folder, StartMode::Fresh, &mut recorder, &AtomicBool::new(false)).unwrap();
    let started = recorder.started.unwrap();
    assert_eq!((started.classes, started.utterances, started.epochs, started.first_epoch), (4, 6, 3, 0));
    assert_eq!(recorder.steps.len() as u64, outcome.steps);
    for (index, step) in recorder.steps.iter().enumerate() {
        assert_eq!(step.step, index as u64);
        assert!(step.loss.is_finite() && step.batch < step.batches && step.audio_seconds > 0.0);
    }
    assert_eq!(recorder.steps.last().unwrap().steps, outcome.steps);
    assert_eq!(recorder.steps.iter().filter(|step| step.batch == 0).count(), 3);
    // Evaluated every second epoch, and at the end.
    let evaluated: Vec<bool> = recorder.epochs.iter().map(|epoch| epoch.evaluation.is_some()).collect();
    assert_eq!(evaluated, [false, true, true]);
    assert_eq!(
        read_metrics(&folder),
        recorder
            .epochs
            .iter()
            .map(|epoch| Metrics { seconds: 0.0, resident_bytes: 0, ..epoch.metrics.clone() })
            .collect::<Vec<_>>()
    );
    let test = outcome.test.unwrap();
    assert_eq!((test.overall.utterances, test.overall.words, test.subsets.len()), (6, 14, 2));
    assert_eq!(test.subsets["even"].utterances + test.subsets["odd"].utterances, 6);
    assert_eq!(test.speakers.keys().collect::<Vec<_>>(), ["flute", "kettle", "wind"]);
    assert!(test.speakers.values().all(|speaker| speaker.utterances == 2 && speaker.over_speakers.is_none()));
    assert_eq!(test.overall.over_speakers.unwrap().speakers, 3);
    let json = std::fs::read_to_string(folder.join("evaluation.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    // "middle" and "high middle low low".
    assert_eq!(json["test"]["speakers"]["wind"]["characters"]["total"], 22);
    assert!(json["test"]["overall"]["over_speakers"]["cer_interval"][1].is_number(), "{json}");
}

#[test]
fn an_old_run_is_not_overwritten_without_force() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    run(&recipe, &folder, StartMode::Fresh).unwrap();
    let before = std::fs::read(folder.join("last.safetensors")).unwrap();
    let error = run(&recipe, &folder, StartMode::Fresh).unwrap_err();
    assert!(matches!(&error, Error::RunExists { path } if *path == folder), "{error}");
    // A forced start with invalid data does not change the folder either.
    let broken = toy.recipe(&[("train = [\"train.jsonl\"]", "train = [\"none.jsonl\"]")]);
    assert!(run(&broken, &folder, StartMode::Force).is_err());
    assert!(std::fs::read(folder.join("last.safetensors")).unwrap() == before);

    std::fs::write(folder.join("notes.txt"), "mine").unwrap();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 1"),
        ("seed = 7", "seed = 8"),
        ("dev = [\"train.jsonl\"]", ""),
    ]);
    run(&recipe, &folder, StartMode::Force).unwrap();
    assert!(std::fs::read(folder.join("last.safetensors")).unwrap() != before);
    // The old run had a dev set, the new one has none; other files stay.
    assert!(!folder.join("best.safetensors").exists() && !folder.join("dev.hypotheses.jsonl").exists());
    assert!(folder.join("notes.txt").exists());
}

#[test]
fn a_run_without_its_checkpoint_is_not_overwritten() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    run(&recipe, &folder, StartMode::Fresh).unwrap();
    std::fs::remove_file(folder.join("last.safetensors")).unwrap();
    let before = std::fs::read(folder.join("best.safetensors")).unwrap();
    for name in ["best.safetensors", "metrics.csv", "evaluation.json", "test.hypotheses.jsonl"] {
        let error = run(&recipe, &folder, StartMode::Resume).unwrap_err();
        assert!(matches!(&error, Error::NoCheckpoint { .. }), "{name}: {error}");
        let text = error.to_string();
        assert!(text.contains("last.safetensors: expected") && text.contains("--force"), "{name}: {text}");
        assert!(matches!(run(&recipe, &folder, StartMode::Fresh), Err(Error::RunExists { .. })), "{name}");
        if name == "best.safetensors" {
            assert!(std::fs::read(folder.join(name)).unwrap() == before);
        }
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    // Only files remain that a run writes before its first step.
    std::fs::remove_file(folder.join("dev.hypotheses.jsonl")).unwrap();
    assert!(folder.join("recipe.toml").exists());
    run(&recipe, &folder, StartMode::Resume).unwrap();
}

#[test]
fn a_run_that_failed_early_can_be_started_again() {
    let toy = Toy::new();
    let folder = toy.path("run");
    let bad = toy.recipe(&[("learning_rate = 1e-2", "learning_rate = 1e5"), ("epochs = 3", "epochs = 9")]);
    assert!(matches!(run(&bad, &folder, StartMode::Fresh), Err(Error::Diverged { .. }) | Ok(_)));
    if folder.join("last.safetensors").exists() {
        // It did not fail early enough. Keep only the files that a run writes first.
        let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let (recipe, others): (Vec<_>, Vec<_>) = files
            .partition(|path| path.file_name().is_some_and(|name| name.to_str().unwrap().contains("recipe")));
        assert_eq!(recipe.len(), 2, "{recipe:?}");
        others.iter().for_each(|path| {
            if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
        });
    }
    let good = toy.recipe(&[("epochs = 3", "epochs = 1")]);
    run(&good, &folder, StartMode::Fresh).unwrap();
    assert!(folder.join("last.safetensors").exists());
}

/// Starts a second run in the same folder at its first step.
struct SecondRun<'a> {
    recipe: &'a Path,
    folder: &'a Path,
    num_steps: usize,
}

impl Observer for SecondRun<'_> {
    fn on_step(&mut self, _: &StepReport) {
        if self.num_steps == 0 {
            for start in [StartMode::Resume, StartMode::Force, StartMode::Fresh] {
                let error = run(self.recipe, self.folder, start).unwrap_err();
                assert!(matches!(&error, Error::RunLocked { path } if path == self.folder), "{error}");
            }
        }
        self.num_steps += 1;
    }
}

#[test]
fn two_runs_do_not_share_a_folder() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 1")]), toy.path("run"));
    let mut second = SecondRun { recipe: &recipe, folder: &folder, num_steps: 0 };
    train(&recipe, None, &folder, StartMode::Fresh, &mut second, &AtomicBool::new(false)).unwrap();
    assert!(second.num_steps > 0 && folder.join("evaluation.json").exists());
    // The lock ended with the run.
    run(&recipe, &folder, StartMode::Resume).unwrap();
}

#[test]
fn a_run_resumes_with_its_own_data_only() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[]), toy.path("run"));
    let stop = AtomicBool::new(false);
    train(
        &recipe,
        None,
        &folder,
        StartMode::Fresh,
        &mut StopAfter { remaining_steps: 4, stop: &stop },
        &stop,
    )
    .unwrap();
    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.write("train.jsonl", &manifest.replace("\"text\": \"middle\"", "\"text\": \"low\""));
    let error = run(&recipe, &folder, StartMode::Resume).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::DataChanged { set: "data.train", .. }), "{text}");
    assert!(text.contains("at position 5: toy-4") && text.contains("--changed-data"), "{text}");
    toy.write("train.jsonl", manifest.lines().next().unwrap());
    assert!(matches!(run(&recipe, &folder, StartMode::Resume), Err(Error::DataChanged { .. })));
    toy.write("train.jsonl", &manifest.replace("\"text\": \"middle\"", "\"text\": \"low\""));

    // A changed comment is accepted; a changed value is an error with the key.
    let text = std::fs::read_to_string(&recipe).unwrap();
    toy.write("recipe.toml", &text.replace("width = 16", "width = 16.").replace("16.", "24"));
    let error = run(&recipe, &folder, StartMode::ResumeChanged).unwrap_err().to_string();
    assert!(error.contains("joint.width = 16 where this has 24"), "{error}");
    toy.write("recipe.toml", &format!("# A remark.\n{text}"));
    let outcome = run(&recipe, &folder, StartMode::ResumeChanged).unwrap();
    assert!(!outcome.stopped);
    assert!(std::fs::read_to_string(folder.join("recipe.toml")).unwrap().starts_with("# A remark."));
    // Now the checkpoint has the changed data.
    run(&recipe, &folder, StartMode::Resume).unwrap();
}

#[test]
fn suspicious_data_gives_warnings() {
    #[derive(Default)]
    struct WarningCollector(Vec<String>);
    impl Observer for WarningCollector {
        fn on_warning(&mut self, warning: &str) {
            self.0.push(warning.to_owned());
        }
    }
    let toy = Toy::new();
    let warnings = |changes: &[(&str, &str)]| {
        let recipe = toy.recipe(&[&[("epochs = 3", "epochs = 1")], changes].concat());
        let mut collector = WarningCollector::default();
        train(&recipe, None, &toy.path("run"), StartMode::Force, &mut collector, &AtomicBool::new(false))
            .unwrap();
        collector.0
    };
    assert_eq!(warnings(&[]), [""; 0]);
    let twice = warnings(&[("train = [\"train.jsonl\"]", "train = [\"train.jsonl\", \"train.jsonl\"]")]);
    assert_eq!(twice, ["data.train: 6 of 12 utterances are repetitions of others, the first of them toy-0"]);

    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let first = manifest.lines().next().unwrap();
    let with_seconds =
        |seconds: &str| first.replace("\"num_samples\": ", &format!("\"seconds\": {seconds}, \"nothing\": "));
    toy.write("test.jsonl", &with_seconds("7.5"));
    let change = ("test = [\"train.jsonl\"]", "test = [\"test.jsonl\"]");
    let long = warnings(&[change]);
    let expected = "data.test: 1 recordings differ in length from the manifest, the first toy-0: 0.36 s instead of 7.50 s";
    assert_eq!(long, [expected]);
    toy.write("test.jsonl", &first.replace("\"text\": \"low\"", "\"text\": \"completely else\""));
    let unknown = warnings(&[change]);
    let expected =
        "data.test: 1 texts contain only words that the tokens cannot spell, the first of them toy-0";
    assert_eq!(unknown, [expected]);
}

#[test]
fn the_run_folder_is_checked_before_the_data_are_read() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("train = [\"train.jsonl\"]", "train = [\"none.jsonl\"]")]);
    let file = toy.write("file", "");
    let error = run(&recipe, &file.join("run"), StartMode::Fresh).unwrap_err();
    assert!(
        matches!(&error, Error::Model(model::Error::Io { action: "make the run folder", .. })),
        "{error}"
    );
    // Folders of a run that does not start are removed again, and no others.
    std::fs::create_dir(toy.path("there")).unwrap();
    let error = run(&recipe, &toy.path("there/a/b"), StartMode::Fresh).unwrap_err();
    assert!(matches!(error, Error::Model(model::Error::Speech(_))), "{error}");
    assert!(toy.path("there").exists() && !toy.path("there/a").exists());
}

#[test]
fn a_run_that_diverges_is_an_error_with_step_and_utterances() {
    let toy = Toy::new();
    for loss in ["", "[loss]\nkind = \"tdt\"\ndurations = [0, 1, 2]", "[loss]\nkind = \"pruned\""] {
        expect_divergence(&toy, loss);
    }
}

fn expect_divergence(toy: &Toy, loss: &str) {
    let recipe = toy.recipe(&[
        ("learning_rate = 1e-2", "learning_rate = 1e38"),
        ("ctc_weight = 0.3", &format!("checkpoint_every = 1\n{loss}")),
    ]);
    let folder = toy.path("run");
    let error = run(&recipe, &folder, StartMode::Force).unwrap_err();
    let Error::Diverged { step, utterances, what, found, source } = &error else { panic!("{error}") };
    // Values that the training loop checks have no source; an error of the loss has its own.
    let is_checked_by_loop = ["loss", "gradient norm"].contains(&&**what) && source.is_none();
    assert_eq!(is_checked_by_loop, source.is_none(), "{error}");
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
fn bad_data_is_an_error_before_any_output() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("[data]\n", "[data]\nmax_bad = 0.0\n")]);
    let folder = toy.path("run");
    let good = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let check = |parts: &[&str]| {
        let error = run(&recipe, &folder, StartMode::Fresh).unwrap_err();
        assert!(
            matches!(
                error,
                Error::Model(model::Error::Speech(_))
                    | Error::Recognizer(recognizer::Error::TooManyBad { .. })
            ),
            "{error}"
        );
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
    let bytes = std::fs::read(toy.path("3.wav")).unwrap();
    std::fs::write(toy.path("3.wav"), &bytes[..bytes.len() / 2]).unwrap();
    check(&["toy-3", "truncated"]);
    std::fs::write(toy.path("3.wav"), "a letter").unwrap();
    check(&["toy-3", "3.wav"]);
    write_wav(&toy.path("3.wav"), RATE, &[1; 100]);
    check(&["toy-3", "found 100"]);
    write_wav(&toy.path("3.wav"), 2 * RATE, &[1; 7100]);
    check(&["toy-3", "expected 8000 Hz, found 16000 Hz"]);
}

#[test]
fn a_folder_that_cannot_be_created_is_an_error() {
    let toy = Toy::new();
    let (recipe, file) = (toy.recipe(&[]), toy.write("file", ""));
    let error = run(&recipe, &file.join("run"), StartMode::Fresh).unwrap_err();
    assert!(
        matches!(&error, Error::Model(model::Error::Io { action: "make the run folder", .. })),
        "{error}"
    );
}

#[test]
fn utterances_without_a_path_are_counted_and_harmless() {
    let toy = Toy::new();
    // Three words in one encoder row: no path in the modified topology, nor for CTC.
    let line = format!(
        "{{\"id\": \"short\", \"file\": \"short.wav\", \"text\": \"low low high\", \"seconds\": 0.04, \"sample_rate\": {RATE}}}\n"
    );
    write_wav(&toy.path("short.wav"), RATE, &[100; 320]);
    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.write("train.jsonl", &(manifest + &line));
    let recipe = toy.recipe(&[("epochs = 3", "epochs = 2\ntopology = \"modified\"")]);
    run(&recipe, &toy.path("run"), StartMode::Fresh).unwrap();
    let rows = read_metrics(&toy.path("run"));
    assert!(rows.iter().all(|row| row.skipped == 1 && row.loss.is_finite()), "{rows:?}");
}

/// Sets the flag at the end of the last epoch.
struct StopAtTheEnd<'a>(&'a AtomicBool);

impl Observer for StopAtTheEnd<'_> {
    fn on_epoch(&mut self, report: &EpochReport) {
        self.0.store(report.metrics.epoch == report.epochs, Ordering::Relaxed);
    }
}

#[test]
fn a_stop_ends_the_final_evaluation() {
    let toy = Toy::new();
    let (recipe, uninterrupted, parts) = (toy.recipe(&[]), toy.path("whole"), toy.path("parts"));
    let outcome = run(&recipe, &uninterrupted, StartMode::Fresh).unwrap();
    let stop = AtomicBool::new(false);
    let part = train(&recipe, None, &parts, StartMode::Fresh, &mut StopAtTheEnd(&stop), &stop).unwrap();
    assert!(part.stopped && part.test.is_none() && part.steps == outcome.steps, "{part:?}");
    assert!(!parts.join("evaluation.json").exists());
    let rest = run(&recipe, &parts, StartMode::Resume).unwrap();
    assert_eq!((rest.stopped, rest.test), (false, outcome.test));
    for name in ["last.safetensors", "evaluation.json", "test.hypotheses.jsonl"] {
        assert!(
            std::fs::read(uninterrupted.join(name)).unwrap() == std::fs::read(parts.join(name)).unwrap(),
            "{name}"
        );
    }
}
