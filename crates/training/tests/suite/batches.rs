//! What a run leaves out, how it is cut into batches, and which steps it forgives.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use model::Checkpoint;
use training::{EpochReport, Error, Observer, Result, RunOutcome, RunReport, StartMode, StepReport, train};

use super::toy::Toy;

#[derive(Default)]
struct Diary {
    notes: Vec<String>,
    warnings: Vec<String>,
    started: Option<RunReport>,
    steps: Vec<StepReport>,
    epochs: Vec<EpochReport>,
}

impl Observer for Diary {
    fn on_note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }
    fn on_warning(&mut self, warning: &str) {
        self.warnings.push(warning.to_owned());
    }
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

fn run(recipe: &Path, folder: &Path) -> (Result<RunOutcome>, Diary) {
    let mut diary = Diary::default();
    let outcome = train(recipe, None, folder, StartMode::Force, &mut diary, &AtomicBool::new(false));
    (outcome, diary)
}

#[test]
fn long_utterances_are_left_out_and_counted() {
    let toy = Toy::new();
    let folder = toy.path("run");
    // Of one to four words of 2100 samples and a pause of 800.
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 1"),
        ("max_frames = 200", "max_frames = 200\nmax_seconds = 0.8875"),
    ]);
    let (outcome, diary) = run(&recipe, &folder);
    outcome.unwrap();
    assert_eq!(diary.started.unwrap().utterances, 5);
    let [note] = &diary.notes[..] else { panic!("{:?}", diary.notes) };
    assert!(note.starts_with("data.train: 1 of 6 utterances, 0.00 of 0.00 hours"), "{note}");
    assert!(note.contains("batch.max_seconds = 0.8875"), "{note}");

    let recipe = toy.recipe(&[("max_frames = 200", "max_frames = 200\nmax_seconds = 0.01")]);
    let error = run(&recipe, &toy.path("none")).0.unwrap_err();
    assert!(
        matches!(&error, Error::Recognizer(recognizer::Error::Empty { what }) if what.contains("batch.max_seconds")),
        "{error}"
    );
    assert!(!toy.path("none").exists());
}

#[test]
fn batches_of_buckets_have_one_size() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 2"),
        ("max_utterances = 2", "max_utterances = 4\nbuckets = 2"),
        ("learning_rate = 1e-2", "kind = \"lamb\"\nlearning_rate = 1e-2\nclip_norm = 1.0\ndecay = \"mlperf\"\nwarmup_epochs = 1\nhold_epochs = 1\ngamma = 0.5"),
        ("ema = 0.9", "ema = 0.9\nema_warmup = false"),
    ]);
    let (outcome, diary) = run(&recipe, &toy.path("run"));
    // Six utterances are one batch of four an epoch.
    assert_eq!((outcome.unwrap().steps, diary.steps.len()), (2, 2));
    assert_eq!([diary.steps[0].learning_rate, diary.steps[1].learning_rate], [1e-2, 1e-2]);
    let padding: Vec<f64> = diary.epochs.iter().map(|epoch| epoch.metrics.padding).collect();
    assert!(padding.iter().all(|&share| share > 0.0 && share < 0.8), "{padding:?}");
}

#[test]
fn buckets_without_utterances_are_named_before_anything_is_written() {
    let toy = Toy::new();
    for (keys, part) in [
        ("max_utterances = 1\nbuckets = 7", "bucket 7 of 7: expected at least one utterance, found none"),
        ("max_utterances = 7\nbuckets = 1", "setting `batch`: expected 1 to 6 utterances"),
    ] {
        let folder = toy.path("run");
        let error = run(&toy.recipe(&[("max_utterances = 2", keys)]), &folder).0.unwrap_err();
        assert!(
            matches!(error, Error::Model(model::Error::Speech(_))) && error.to_string().contains(part),
            "{error}"
        );
        assert!(!folder.exists());
    }
}

#[test]
fn steps_that_go_wrong_are_forgiven_so_often_and_no_more() {
    let toy = Toy::new();
    // A first step of 1e38 leaves weights that are numbers, and scores that are not; with a correction of the first moment, which
    // divides by 0.1, it is infinite itself.
    let changes = |most: &str, betas: &str| {
        toy.recipe(&[
            ("learning_rate = 1e-2", "learning_rate = 1e38"),
            ("weight_decay = 0.01", &format!("betas = {betas}")),
            ("[joint]\nwidth = 16", "[joint]\nwidth = 64"),
            ("max_utterances = 2", "max_utterances = 1"),
            ("ctc_weight = 0.3", &format!("checkpoint_every = 1\nskip_nonfinite = {most}")),
        ])
    };
    let (none, diary) = run(&changes("0", "[0.0, 0.9]"), &toy.path("none"));
    let Err(Error::Diverged { step: first, .. }) = none else { panic!("{none:?}") };
    assert!(diary.warnings.is_empty());
    let (two, diary) = run(&changes("2", "[0.0, 0.9]"), &toy.path("two"));
    let Err(Error::Diverged { step, .. }) = two else { panic!("{two:?}") };
    // Skipped steps are not counted: the third one in a row has the number of the first.
    assert_eq!((step, diary.warnings.len()), (first, 2), "{:?}", diary.warnings);
    for (at, warning) in diary.warnings.iter().enumerate() {
        let start = format!("skipped, {} in a row of at most 2: step {first}: expected a finite", at + 1);
        assert!(warning.starts_with(&start) && warning.contains("toy-"), "{warning}");
    }
    assert_eq!(diary.steps.len() as u64, first);

    // No step mends weights that are no numbers.
    let (lost, diary) = run(&changes("2", "[0.9, 0.999]"), &toy.path("lost"));
    assert!(matches!(lost, Err(Error::Diverged { .. })) && diary.warnings.is_empty(), "{lost:?}");
    // Nor are they written over a checkpoint that is good.
    let last = toy.path("lost").join("last.safetensors");
    assert!(!last.exists() || Checkpoint::read(&last).is_ok());
}

#[test]
fn steps_of_buckets_have_as_many_utterances_each() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 2"),
        ("max_utterances = 2", "max_utterances = 2\naccumulate = 2\nbuckets = 1"),
    ]);
    let (outcome, diary) = run(&recipe, &toy.path("run"));
    // Six utterances are one step of two batches of two, and two that an epoch leaves out.
    assert_eq!((outcome.unwrap().steps, diary.steps.len()), (2, 2));
    assert!(diary.steps.iter().all(|step| step.batches == 2), "{:?}", diary.steps);
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
fn lamb_in_buckets_goes_on_bit_for_bit() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 4\nkeep = 2"),
        ("max_utterances = 2", "max_utterances = 2\nbuckets = 2"),
        ("learning_rate = 1e-2", "kind = \"lamb\"\nclip = \"distributed\"\nlearning_rate = 1e-2\ndecay = \"noam\"\nwarmup_steps = 3\nmodel_width = 2"),
    ]);
    let (whole, parts) = (toy.path("whole"), toy.path("parts"));
    train(&recipe, None, &whole, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    for steps in [2, 2, 1] {
        let stop = AtomicBool::new(false);
        let part =
            train(&recipe, None, &parts, StartMode::Resume, &mut StopAfter(steps, &stop), &stop).unwrap();
        assert!(part.stopped);
    }
    train(&recipe, None, &parts, StartMode::Resume, &mut (), &AtomicBool::new(false)).unwrap();
    for name in ["last.safetensors", "epoch-3.safetensors", "epoch-4.safetensors", "evaluation.json"] {
        assert!(
            std::fs::read(whole.join(name)).unwrap() == std::fs::read(parts.join(name)).unwrap(),
            "{name}"
        );
    }
    assert!(!parts.join("epoch-2.safetensors").exists());
}
