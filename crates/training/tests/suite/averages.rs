//! Tests of epoch checkpoints (`training.keep`) and of checkpoint averaging.
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use model::Checkpoint;
use recognizer::Recognizer;
use training::{Error, StartMode, average, select_checkpoints, train};

use super::toy::{Toy, leftovers};

fn run(toy: &Toy, name: &str, changes: &[(&str, &str)]) -> PathBuf {
    let folder = toy.path(name);
    train(&toy.recipe(changes), None, &folder, StartMode::Force, &mut (), &AtomicBool::new(false)).unwrap();
    folder
}

fn epoch_files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("epoch-"));
    names.sort();
    names
}

#[test]
fn a_run_keeps_only_the_last_epochs() {
    let toy = Toy::new();
    let folder = run(&toy, "run", &[("epochs = 3", "epochs = 4\nkeep = 2")]);
    assert_eq!(epoch_files(&folder), ["epoch-3.safetensors", "epoch-4.safetensors"]);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(read("epoch-4.safetensors") == read("last.safetensors"));
    // A new run of fewer epochs in the same folder deletes the old epochs' files.
    run(&toy, "run", &[("epochs = 3", "epochs = 1\nkeep = 2")]);
    assert_eq!(epoch_files(&folder), ["epoch-1.safetensors"]);
    assert_eq!(leftovers(&folder), [] as [PathBuf; 0]);
    run(&toy, "run", &[("epochs = 3", "epochs = 1")]);
    assert_eq!(epoch_files(&folder), [] as [&str; 0]);
}

#[test]
fn the_average_is_the_mean_and_can_be_evaluated() {
    let toy = Toy::new();
    let folder = run(&toy, "run", &[("epochs = 3", "epochs = 4\nkeep = 3")]);
    let output_path = toy.path("average.safetensors");
    let input_paths = select_checkpoints(&folder, 3, false).unwrap();
    let report = average(&input_paths, &output_path).unwrap();
    assert!(report.has_moving_average && report.inputs.len() == 3);
    let output = Checkpoint::read(&output_path).unwrap();
    let inputs: Vec<Checkpoint> = input_paths.iter().map(|path| Checkpoint::read(path).unwrap()).collect();
    let (mut num_compared, mut num_changed) = (0, 0);
    for (name, values) in &output.weights {
        for (index, &value) in values.iter().enumerate() {
            let sum: f64 = inputs.iter().map(|input| f64::from(input.weights[name][index])).sum();
            assert_eq!(value, (sum / 3.0) as f32, "{name}[{index}]");
            let moving_average = |input: &Checkpoint| f64::from(input.average.as_ref().unwrap()[name][index]);
            let mean = (inputs.iter().map(moving_average).sum::<f64>() / 3.0) as f32;
            assert_eq!(output.average.as_ref().unwrap()[name][index], mean, "{name}[{index}]");
            num_changed += usize::from(value != inputs[0].weights[name][index]);
            num_compared += 1;
        }
    }
    assert!(num_compared == report.parameters && num_changed > num_compared / 2);
    assert!(output.optimizer_state.is_empty() && output.data == inputs[0].data);
    assert_eq!((output.progress.epoch, output.progress.step), (4, inputs[2].progress.step));
    let recognizer = Recognizer::load(&output_path).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    assert_eq!(recognizer::evaluate(&recognizer, &utterances).unwrap().overall.utterances, 6);

    // The average of one checkpoint has its weights, and no state of the optimizer.
    average(&input_paths[..1], &output_path).unwrap();
    assert_eq!(Checkpoint::read(&output_path).unwrap().weights, inputs[0].weights);
    std::fs::copy(&output_path, folder.join("last.safetensors")).unwrap();
    let recipe = toy.path("recipe.toml");
    let error = train(&recipe, None, &folder, StartMode::Resume, &mut (), &AtomicBool::new(false));
    assert!(error.unwrap_err().to_string().contains("moments"));
}

#[test]
fn the_best_epochs_are_selected_by_error_rate() {
    let toy = Toy::new();
    let folder = run(&toy, "run", &[("epochs = 3", "epochs = 5\nkeep = 4")]);
    let path = folder.join("metrics.csv");
    let rates = [0.1, 0.5, 0.3, 0.5, 0.7];
    let mut reader = csv::Reader::from_path(&path).unwrap();
    let rows: Vec<training::Metrics> = reader.deserialize().map(|row| row.unwrap()).collect();
    let write = |rates: [Option<f64>; 5]| {
        let mut writer = csv::Writer::from_path(&path).unwrap();
        for (row, dev_wer) in rows.iter().zip(rates) {
            writer.serialize(training::Metrics { dev_wer, ..row.clone() }).unwrap();
        }
        writer.flush().unwrap();
    };
    write(rates.map(Some));
    let select = |count, best| {
        select_checkpoints(&folder, count, best).map(|paths| {
            let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
            paths.iter().map(name).collect::<Vec<_>>()
        })
    };
    // Epoch 1 is the best, but its file is deleted. Of two equal epochs the later one is taken.
    assert_eq!(select(1, true).unwrap(), ["epoch-3"]);
    assert_eq!(select(2, true).unwrap(), ["epoch-3", "epoch-4"]);
    assert_eq!(select(2, false).unwrap(), ["epoch-4", "epoch-5"]);
    let error = select(5, false).unwrap_err();
    assert!(matches!(error, Error::TooFewCheckpoints { found: 4, .. }), "{error}");
    assert!(
        error.to_string().contains("expected 5 epochs with a checkpoint, found 4; training.keep"),
        "{error}"
    );
    assert!(matches!(select(0, false), Err(Error::NoCheckpoints)));
    write([Some(0.1), None, Some(0.3), None, None]);
    assert!(matches!(select(2, true), Err(Error::TooFewCheckpoints { found: 1, .. })));
    assert!(matches!(
        select_checkpoints(&toy.path("none"), 1, false),
        Err(Error::Model(model::Error::Io { .. }))
    ));
}

#[test]
fn checkpoints_that_do_not_match_are_errors() {
    let toy = Toy::new();
    let first = run(&toy, "one", &[("epochs = 3", "epochs = 1")]).join("last.safetensors");
    let wide =
        run(&toy, "wide", &[("epochs = 3", "epochs = 1"), ("[joint]\nwidth = 16", "[joint]\nwidth = 24")]);
    let without_average = run(&toy, "without_average", &[("epochs = 3", "epochs = 1"), ("ema = 0.9", "")]);
    let out = toy.path("out.safetensors");
    let expect_error = |paths: &[PathBuf], expected: &str| {
        let error = average(paths, &out).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
        assert!(!out.exists());
        error
    };
    assert!(matches!(expect_error(&[], "expected at least one checkpoint"), Error::NoCheckpoints));
    let wide = wide.join("last.safetensors");
    let error = expect_error(&[first.clone(), wide.clone()], "joint.width = 24");
    assert!(
        matches!(&error, Error::Model(model::Error::Checkpoint { path, .. }) if *path == wide),
        "{error}"
    );
    expect_error(&[first.clone(), without_average.join("last.safetensors")], "optimizer.ema");
    expect_error(&[first.clone(), toy.path("none.safetensors")], "none.safetensors");
    expect_error(&[first.clone(), toy.path("recipe.toml")], "recipe.toml");
    let before = std::fs::read(&first).unwrap();
    assert!(matches!(average(&[first.clone(), first.clone()], &first), Err(Error::OutputIsInput { .. })));
    assert!(std::fs::read(&first).unwrap() == before);
    assert_eq!(leftovers(&toy.path("")), [] as [PathBuf; 0]);

    // The recipes are equal, and the second file lacks something.
    let mut changed = Checkpoint::read(&first).unwrap();
    changed.average = None;
    let path = toy.path("other.safetensors");
    changed.write(&path).unwrap();
    expect_error(&[first.clone(), path.clone()], "expected a moving average, as the first checkpoint has");
    let mut changed = Checkpoint::read(&first).unwrap();
    changed
        .weights
        .remove("joint.weight")
        .or_else(|| changed.weights.pop_first().map(|(_, values)| values))
        .unwrap();
    changed.write(&path).unwrap();
    expect_error(&[first.clone(), path.clone()], "expected weight/");
    expect_error(&[path, first], "weight/");
}
