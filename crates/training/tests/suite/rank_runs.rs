//! Tests of data-parallel training: the same run on one, two and four ranks.
//!
//! Weights and losses agree up to rounding; with the same number of ranks, they have the same bits.
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use distributed::{ProcessGroup, ThreadCommunicator, TransferFormat};
use model::Checkpoint;
use training::recipe::RecipeOverrides;
use training::{Error, Observer, Result, RunOutcome, StartMode, StepReport, train_with};

fn recipe_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes").join(name)
}

/// The recipe of the digits with this change of its text.
fn write_digits_recipe(folder: &Path, change: impl Fn(String) -> String) -> PathBuf {
    let data = recipe_path("../data/digits").canonicalize().unwrap();
    let text = std::fs::read_to_string(recipe_path("digits.toml")).unwrap();
    let text = text.replace("../data/digits", data.to_str().unwrap());
    let path = folder.join("short.toml");
    std::fs::write(&path, change(text)).unwrap();
    path
}

/// Sets the flag at this step.
struct StopAt<'a> {
    step: u64,
    stop: &'a AtomicBool,
}

impl Observer for StopAt<'_> {
    fn on_step(&mut self, report: &StepReport) {
        if report.step + 1 == self.step {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

/// Trains on `ranks` ranks; the first stops after `steps` steps, if there are that many.
fn train_on_ranks(
    recipe: &Path,
    run: &Path,
    ranks: usize,
    start: StartMode,
    steps: u64,
) -> Vec<Result<RunOutcome>> {
    ThreadCommunicator::run(ranks, |communicator| {
        let stop = AtomicBool::new(false);
        let mut group = ProcessGroup::new(communicator, TransferFormat::F32).with_bucket_values(10_000);
        let overrides = RecipeOverrides { epochs: Some(2), ..RecipeOverrides::default() };
        train_with(recipe, overrides, run, start, &mut group, &mut StopAt { step: steps, stop: &stop }, &stop)
    })
}

fn read_weights(run: &Path) -> Vec<f32> {
    let last = Checkpoint::read(&run.join("last.safetensors")).unwrap();
    last.weights.into_values().flatten().collect()
}

/// Losses and dev error rates of each epoch.
fn read_metrics(run: &Path) -> Vec<[f64; 3]> {
    let text = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    let (names, rows) = text.split_once('\n').unwrap();
    let column = |name: &str| names.split(',').position(|second| second == name).unwrap();
    let columns = ["loss", "ctc_loss", "dev_wer"].map(column);
    let row = |row: &str| columns.map(|index| row.split(',').nth(index).unwrap().parse().unwrap_or(f64::NAN));
    rows.lines().map(row).collect()
}

/// Returns ‖a - b‖ / ‖b‖.
fn relative_distance(a: &[f32], b: &[f32]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied())
}

#[test]
fn losses_and_weights_are_those_of_one_rank_to_rounding_and_reproducible_to_the_bit() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = write_digits_recipe(folder.path(), |text| text);
    let train_in = |name: &str, ranks| {
        let run = folder.path().join(name);
        for outcome in train_on_ranks(&recipe, &run, ranks, StartMode::Fresh, u64::MAX) {
            let outcome = outcome.unwrap();
            assert!(!outcome.stopped && outcome.steps > 10 && outcome.dev.is_some());
        }
        run
    };
    let single = train_in("single", 1);
    let (expected_weights, expected_metrics) = (read_weights(&single), read_metrics(&single));
    assert_eq!(expected_metrics.len(), 2);
    for ranks in [2, 4] {
        let run = train_in(&format!("{ranks}"), ranks);
        let difference = relative_distance(&read_weights(&run), &expected_weights);
        assert!(difference < 1e-3, "{ranks} ranks: weights {difference}");
        for ([loss, ctc, wer], [expected, expected_ctc, expected_wer]) in
            read_metrics(&run).into_iter().zip(&expected_metrics)
        {
            assert!((loss / expected - 1.0).abs() < 1e-4, "{ranks} ranks: {loss} instead of {expected}");
            assert!((ctc / expected_ctc - 1.0).abs() < 1e-4, "{ranks} ranks: {ctc}");
            assert!((wer - expected_wer).abs() < 0.05 || wer.is_nan() && expected_wer.is_nan());
        }
        let repeated = train_in(&format!("{ranks} repeated"), ranks);
        assert!(read_weights(&repeated) == read_weights(&run));
        for file in ["evaluation.json", "dev.hypotheses.jsonl", "test.hypotheses.jsonl"] {
            let [a, b] = [&repeated, &run].map(|run| std::fs::read(run.join(file)).unwrap());
            assert!(a == b, "{file}");
        }
    }
}

#[test]
fn a_run_resumes_with_another_number_of_ranks_and_with_the_same_number_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = write_digits_recipe(folder.path(), |text| text);
    let uninterrupted = folder.path().join("whole");
    train_on_ranks(&recipe, &uninterrupted, 2, StartMode::Fresh, u64::MAX)
        .into_iter()
        .for_each(|outcome| assert!(!outcome.unwrap().stopped));
    for (ranks, max_difference) in [(2, 0.0), (4, 1e-3), (1, 1e-3)] {
        let run = folder.path().join(format!("to {ranks}"));
        for outcome in train_on_ranks(&recipe, &run, 2, StartMode::Fresh, 17) {
            let outcome = outcome.unwrap();
            assert!(outcome.stopped && outcome.steps == 17, "{outcome:?}");
        }
        train_on_ranks(&recipe, &run, ranks, StartMode::Resume, u64::MAX)
            .into_iter()
            .for_each(|outcome| assert!(!outcome.unwrap().stopped));
        let difference = relative_distance(&read_weights(&run), &read_weights(&uninterrupted));
        assert!(difference <= max_difference, "{ranks} ranks: {difference}");
    }
}

#[test]
fn accumulated_batches_are_not_split_between_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let recipe =
        write_digits_recipe(folder.path(), |text| text.replace("[batch]", "[batch]\naccumulate = 2"));
    let [one, two] = [1, 2].map(|ranks| {
        let run = folder.path().join(format!("{ranks}"));
        train_on_ranks(&recipe, &run, ranks, StartMode::Fresh, u64::MAX)
            .into_iter()
            .for_each(|outcome| drop(outcome.unwrap()));
        read_weights(&run)
    });
    assert!(relative_distance(&two, &one) < 1e-3, "{}", relative_distance(&two, &one));
}

#[test]
fn an_error_of_one_rank_ends_all_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let recipe = write_digits_recipe(folder.path(), |text| text);
    let other_folder = folder.path().join("other");
    std::fs::create_dir(&other_folder).unwrap();
    let other_recipe = write_digits_recipe(&other_folder, |text| text.replace("seed = 1", "seed = 2"));
    let run = folder.path().join("run");
    let train_both = |recipes: [&Path; 2]| {
        ThreadCommunicator::run(2, |communicator| {
            let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
            let recipe = recipes[group.rank()];
            let stop = AtomicBool::new(false);
            train_with(recipe, RecipeOverrides::default(), &run, StartMode::Fresh, &mut group, &mut (), &stop)
                .unwrap_err()
        })
    };
    for error in train_both([&recipe, &other_recipe]) {
        assert!(
            matches!(&error, Error::Rank { rank: 1, message } if message.contains("recipe: expected seed = 1")),
            "{error}"
        );
    }
    let missing_recipe = folder.path().join("none.toml");
    let errors = train_both([&recipe, &missing_recipe]);
    assert!(
        matches!(&errors[0], Error::Rank { rank: 1, message } if message.contains("none.toml")),
        "{}",
        errors[0]
    );
    assert!(!matches!(errors[1], Error::Rank { .. }));
    assert!(!run.exists());
}
