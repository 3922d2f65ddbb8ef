//! Tests of runs that resume with another number of epochs.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use model::Checkpoint;
use training::{Error, Observer, Result, RunOutcome, StartMode, StepReport, train};

use super::toy::Toy;

/// Stops after a number of steps, and collects notes.
struct RunObserver<'a> {
    remaining_steps: u64,
    stop: &'a AtomicBool,
    notes: Vec<String>,
}

impl Observer for RunObserver<'_> {
    fn on_note(&mut self, note: &str) {
        self.notes.push(note.to_owned());
    }

    fn on_step(&mut self, _: &StepReport) {
        self.remaining_steps -= 1;
        self.stop.store(self.remaining_steps == 0, Ordering::Relaxed);
    }
}

/// Trains for at most this many steps; returns the outcome and the notes.
fn train_steps(
    steps: u64,
    recipe: &Path,
    epochs: Option<u64>,
    folder: &Path,
) -> (Result<RunOutcome>, Vec<String>) {
    let stop = AtomicBool::new(false);
    let mut observer = RunObserver { remaining_steps: steps, stop: &stop, notes: Vec::new() };
    let outcome = train(recipe, epochs, folder, StartMode::Resume, &mut observer, &stop);
    (outcome, observer.notes)
}

fn run(recipe: &Path, epochs: Option<u64>, folder: &Path) -> (Result<RunOutcome>, Vec<String>) {
    train_steps(u64::MAX, recipe, epochs, folder)
}

fn read_learning_rates(folder: &Path) -> Vec<f64> {
    let mut reader = csv::Reader::from_path(folder.join("metrics.csv")).unwrap();
    reader
        .deserialize()
        .map(|row: std::result::Result<training::Metrics, _>| row.unwrap().learning_rate)
        .collect()
}

/// Files that do not depend on when a run was extended.
const RESULT_FILES: [&str; 4] =
    ["recipe.toml", "last.safetensors", "evaluation.json", "test.hypotheses.jsonl"];

/// Expects the same results in two run folders.
fn expect_equal_results(a: &Path, b: &Path) {
    for name in RESULT_FILES {
        assert!(std::fs::read(a.join(name)).unwrap() == std::fs::read(b.join(name)).unwrap(), "{name}");
    }
    // The best epoch may precede the change: its checkpoint has the recipe before it.
    let [a, b] = [a, b].map(|folder| Checkpoint::read(&folder.join("best.safetensors")).unwrap());
    assert!(a.weights == b.weights && a.average == b.average && a.progress == b.progress);
}

#[test]
fn an_extended_run_equals_the_longer_run_if_the_schedule_does_not_depend_on_its_length() {
    let toy = Toy::new();
    let recipe = toy.recipe(&[("weight_decay = 0.01", "decay = \"hold\"")]);
    let (uninterrupted, parts) = (toy.path("whole"), toy.path("parts"));
    run(&recipe, Some(4), &uninterrupted).0.unwrap();
    // Extended after the second epoch, and in the middle of the third one with the same number.
    assert!(!run(&recipe, Some(2), &parts).0.unwrap().stopped);
    let (outcome, notes) = train_steps(2, &recipe, Some(4), &parts);
    assert!(outcome.unwrap().stopped);
    let note = &notes[0];
    assert!(note.starts_with("training.epochs: 4 instead of 2") && note.contains("\"hold\""), "{note}");
    let (outcome, notes) = run(&recipe, Some(4), &parts);
    assert!(!outcome.unwrap().stopped && notes.is_empty(), "{notes:?}");
    expect_equal_results(&uninterrupted, &parts);
    // The same number changes nothing, in repeated calls too.
    assert!(run(&recipe, Some(4), &parts).1.is_empty());
    expect_equal_results(&uninterrupted, &parts);
}

#[test]
fn the_schedule_of_an_extended_run_is_that_of_all_epochs() {
    let toy = Toy::new();
    for decay in ["cosine", "exponential"] {
        let recipe = toy.recipe(&[("weight_decay = 0.01", &format!("decay = \"{decay}\""))]);
        let (uninterrupted, parts) =
            (toy.path(&format!("{decay}-whole")), toy.path(&format!("{decay}-parts")));
        run(&recipe, Some(4), &uninterrupted).0.unwrap();
        run(&recipe, Some(2), &parts).0.unwrap();
        run(&recipe, Some(4), &parts).0.unwrap();
        let [uninterrupted, parts] = [uninterrupted, parts].map(|folder| read_learning_rates(&folder));
        assert_eq!((uninterrupted.len(), parts.len()), (4, 4));
        assert_eq!(uninterrupted[2..], parts[2..]);
        assert!(uninterrupted[1] > parts[1] && parts[2] > parts[1], "{uninterrupted:?} {parts:?}");
    }
}

#[test]
fn a_run_may_be_shortened_but_not_below_its_finished_epochs() {
    let toy = Toy::new();
    let (recipe, folder) = (toy.recipe(&[("epochs = 3", "epochs = 9")]), toy.path("run"));
    let epoch_steps = run(&recipe, Some(1), &toy.path("one")).0.unwrap().steps;
    // One step into the third epoch.
    assert!(train_steps(2 * epoch_steps + 1, &recipe, None, &folder).0.unwrap().stopped);
    for epochs in [1, 2] {
        let error = run(&recipe, Some(epochs), &folder).0.unwrap_err();
        assert!(matches!(error, Error::EpochsDone { begun: 3, epochs: found } if found == epochs), "{error}");
    }
    assert!(matches!(run(&recipe, Some(0), &folder).0, Err(Error::Model(model::Error::RecipeValue { .. }))));
    let outcome = run(&recipe, Some(3), &folder).0.unwrap();
    assert!(!outcome.stopped && outcome.test.is_some());
    assert_eq!(read_learning_rates(&folder).len(), 3);
}

#[test]
fn only_the_number_of_epochs_may_differ() {
    let toy = Toy::new();
    let folder = toy.path("run");
    run(&toy.recipe(&[("epochs = 3", "epochs = 1")]), None, &folder).0.unwrap();
    let before = std::fs::read(folder.join("last.safetensors")).unwrap();
    let error = run(&toy.recipe(&[]), None, &folder).0.unwrap_err();
    assert!(matches!(error, Error::Epochs { old: 1, epochs: 3 }), "{error}");
    for change in
        [("seed = 7", "seed = 8"), ("ctc_weight = 0.3", "ctc_weight = 0.2"), ("width = 16", "width = 17")]
    {
        let error = run(&toy.recipe(&[change]), Some(2), &folder).0.unwrap_err().to_string();
        assert!(error.contains("expected a run with the same recipe"), "{error}");
    }
    assert!(std::fs::read(folder.join("last.safetensors")).unwrap() == before);
}
