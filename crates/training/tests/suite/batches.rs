//! Tests of training batches: buckets, long utterances, skipped steps.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use model::Checkpoint;
use training::{EpochReport, Error, Observer, Result, RunOutcome, RunReport, StartMode, StepReport, train};

use super::toy::Toy;

/// Records all notes, warnings and reports of a run.
#[derive(Default)]
struct EventCollector {
    notes: Vec<String>,
    warnings: Vec<String>,
    started: Option<RunReport>,
    steps: Vec<StepReport>,
    epochs: Vec<EpochReport>,
}

impl Observer for EventCollector {
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

fn train_and_record(recipe: &Path, folder: &Path) -> (Result<RunOutcome>, EventCollector) {
    let mut events = EventCollector::default();
    let outcome = train(recipe, None, folder, StartMode::Force, &mut events, &AtomicBool::new(false));
    (outcome, events)
}

#[test]
fn long_utterances_are_left_out_and_counted() {
    let toy = Toy::new();
    let folder = toy.path("run");
    // One to four words of 2100 samples, and a pause of 800.
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 1"),
        ("max_frames = 200", "max_frames = 200\nmax_seconds = 0.8875"),
    ]);
    let (outcome, events) = train_and_record(&recipe, &folder);
    outcome.unwrap();
    assert_eq!(events.started.unwrap().utterances, 5);
    let [note] = &events.notes[..] else { panic!("{:?}", events.notes) };
    assert!(note.starts_with("data.train: 1 of 6 utterances, 0.00 of 0.00 hours"), "{note}");
    assert!(note.contains("batch.max_seconds = 0.8875"), "{note}");

    let recipe = toy.recipe(&[("max_frames = 200", "max_frames = 200\nmax_seconds = 0.01")]);
    let error = train_and_record(&recipe, &toy.path("none")).0.unwrap_err();
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
    let (outcome, events) = train_and_record(&recipe, &toy.path("run"));
    // Six utterances are one batch of four an epoch.
    assert_eq!((outcome.unwrap().steps, events.steps.len()), (2, 2));
    assert_eq!([events.steps[0].learning_rate, events.steps[1].learning_rate], [1e-2, 1e-2]);
    let padding: Vec<f64> = events.epochs.iter().map(|epoch| epoch.metrics.padding).collect();
    assert!(padding.iter().all(|&fraction| fraction > 0.0 && fraction < 0.8), "{padding:?}");
}

#[test]
fn empty_buckets_are_errors_before_any_output() {
    let toy = Toy::new();
    for (keys, part) in [
        ("max_utterances = 1\nbuckets = 7", "bucket 7 of 7: expected at least one utterance, found none"),
        ("max_utterances = 7\nbuckets = 1", "setting `batch`: expected 1 to 6 utterances"),
    ] {
        let folder = toy.path("run");
        let error = train_and_record(&toy.recipe(&[("max_utterances = 2", keys)]), &folder).0.unwrap_err();
        assert!(
            matches!(error, Error::Model(model::Error::Speech(_))) && error.to_string().contains(part),
            "{error}"
        );
        assert!(!folder.exists());
    }
}

#[test]
fn a_limited_number_of_nonfinite_steps_is_skipped() {
    let toy = Toy::new();
    // The first step of 1e38 leaves finite weights, and scores that are infinite. With a bias
    // correction of the first moment, which divides by 0.1, the weights are infinite too.
    let recipe_with = |limit: &str, betas: &str| {
        toy.recipe(&[
            ("learning_rate = 1e-2", "learning_rate = 1e38"),
            ("weight_decay = 0.01", &format!("betas = {betas}")),
            ("[joint]\nwidth = 16", "[joint]\nwidth = 64"),
            ("max_utterances = 2", "max_utterances = 1"),
            ("ctc_weight = 0.3", &format!("checkpoint_every = 1\nskip_nonfinite = {limit}")),
        ])
    };
    let (without_skips, events) = train_and_record(&recipe_with("0", "[0.0, 0.9]"), &toy.path("none"));
    let Err(Error::Diverged { step: first_step, .. }) = without_skips else { panic!("{without_skips:?}") };
    assert!(events.warnings.is_empty());
    let (two_skips, events) = train_and_record(&recipe_with("2", "[0.0, 0.9]"), &toy.path("two"));
    let Err(Error::Diverged { step, .. }) = two_skips else { panic!("{two_skips:?}") };
    // Skipped steps are not counted: the third one in a row has the number of the first.
    assert_eq!((step, events.warnings.len()), (first_step, 2), "{:?}", events.warnings);
    for (i, warning) in events.warnings.iter().enumerate() {
        let start = format!("skipped, {} in a row of at most 2: step {first_step}: expected a finite", i + 1);
        assert!(warning.starts_with(&start) && warning.contains("toy-"), "{warning}");
    }
    assert_eq!(events.steps.len() as u64, first_step);

    // Weights that are not numbers cannot be repaired by a step.
    let (infinite_weights, events) = train_and_record(&recipe_with("2", "[0.9, 0.999]"), &toy.path("lost"));
    assert!(
        matches!(infinite_weights, Err(Error::Diverged { .. })) && events.warnings.is_empty(),
        "{infinite_weights:?}"
    );
    // They do not replace a good checkpoint.
    let last = toy.path("lost").join("last.safetensors");
    assert!(!last.exists() || Checkpoint::read(&last).is_ok());
}

#[test]
fn steps_of_buckets_have_equally_many_utterances() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 2"),
        ("max_utterances = 2", "max_utterances = 2\naccumulate = 2\nbuckets = 1"),
    ]);
    let (outcome, events) = train_and_record(&recipe, &toy.path("run"));
    // Six utterances are one step of two batches of two; the epoch leaves out the other two.
    assert_eq!((outcome.unwrap().steps, events.steps.len()), (2, 2));
    assert!(events.steps.iter().all(|step| step.batches == 2), "{:?}", events.steps);
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
fn lamb_in_buckets_resumes_to_the_same_bits() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[
        ("epochs = 3", "epochs = 4\nkeep = 2"),
        ("max_utterances = 2", "max_utterances = 2\nbuckets = 2"),
        ("learning_rate = 1e-2", "kind = \"lamb\"\nclip = \"distributed\"\nlearning_rate = 1e-2\ndecay = \"noam\"\nwarmup_steps = 3\nmodel_width = 2"),
    ]);
    let (uninterrupted, parts) = (toy.path("whole"), toy.path("parts"));
    train(&recipe, None, &uninterrupted, StartMode::Fresh, &mut (), &AtomicBool::new(false)).unwrap();
    for steps in [2, 2, 1] {
        let stop = AtomicBool::new(false);
        let part = train(
            &recipe,
            None,
            &parts,
            StartMode::Resume,
            &mut StopAfter { remaining_steps: steps, stop: &stop },
            &stop,
        )
        .unwrap();
        assert!(part.stopped);
    }
    train(&recipe, None, &parts, StartMode::Resume, &mut (), &AtomicBool::new(false)).unwrap();
    for name in ["last.safetensors", "epoch-3.safetensors", "epoch-4.safetensors", "evaluation.json"] {
        assert!(
            std::fs::read(uninterrupted.join(name)).unwrap() == std::fs::read(parts.join(name)).unwrap(),
            "{name}"
        );
    }
    assert!(!parts.join("epoch-2.safetensors").exists());
}
