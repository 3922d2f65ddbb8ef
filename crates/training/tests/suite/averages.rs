//! Checkpoints of epochs, and one out of several.
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

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = entries.map(|name| name.to_string_lossy().into_owned()).collect();
    names.retain(|name| name.starts_with("epoch-"));
    names.sort();
    names
}

#[test]
fn a_run_keeps_the_last_epochs_and_no_more() {
    let toy = Toy::new();
    let folder = run(&toy, "run", &[("epochs = 3", "epochs = 4\nkeep = 2")]);
    assert_eq!(names(&folder), ["epoch-3.safetensors", "epoch-4.safetensors"]);
    let read = |name: &str| std::fs::read(folder.join(name)).unwrap();
    assert!(read("epoch-4.safetensors") == read("last.safetensors"));
    // A run of fewer epochs in its place leaves none of the old ones.
    run(&toy, "run", &[("epochs = 3", "epochs = 1\nkeep = 2")]);
    assert_eq!(names(&folder), ["epoch-1.safetensors"]);
    assert_eq!(leftovers(&folder), [] as [PathBuf; 0]);
    run(&toy, "run", &[("epochs = 3", "epochs = 1")]);
    assert_eq!(names(&folder), [] as [&str; 0]);
}

#[test]
fn the_average_is_the_mean_and_can_be_evaluated() {
    let toy = Toy::new();
    let folder = run(&toy, "run", &[("epochs = 3", "epochs = 4\nkeep = 3")]);
    let out = toy.path("average.safetensors");
    let from = select_checkpoints(&folder, 3, false).unwrap();
    let averaged = average(&from, &out).unwrap();
    assert!(averaged.has_moving_average && averaged.inputs.len() == 3);
    let found = Checkpoint::read(&out).unwrap();
    let parts: Vec<Checkpoint> = from.iter().map(|path| Checkpoint::read(path).unwrap()).collect();
    let (mut compared, mut moved) = (0, 0);
    for (name, values) in &found.weights {
        for (at, &value) in values.iter().enumerate() {
            let sum: f64 = parts.iter().map(|part| f64::from(part.weights[name][at])).sum();
            assert_eq!(value, (sum / 3.0) as f32, "{name}[{at}]");
            let of = |part: &Checkpoint| f64::from(part.average.as_ref().unwrap()[name][at]);
            let mean = (parts.iter().map(of).sum::<f64>() / 3.0) as f32;
            assert_eq!(found.average.as_ref().unwrap()[name][at], mean, "{name}[{at}]");
            moved += usize::from(value != parts[0].weights[name][at]);
            compared += 1;
        }
    }
    assert!(compared == averaged.parameters && moved > compared / 2);
    assert!(found.optimizer_state.is_empty() && found.data == parts[0].data);
    assert_eq!((found.progress.epoch, found.progress.step), (4, parts[2].progress.step));
    let recogniser = Recognizer::load(&out).unwrap();
    let utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    assert_eq!(recognizer::evaluate(&recogniser, &utterances).unwrap().overall.utterances, 6);

    // One alone is itself, but for what a run needs to go on.
    average(&from[..1], &out).unwrap();
    assert_eq!(Checkpoint::read(&out).unwrap().weights, parts[0].weights);
    std::fs::copy(&out, folder.join("last.safetensors")).unwrap();
    let recipe = toy.path("recipe.toml");
    let error = train(&recipe, None, &folder, StartMode::Resume, &mut (), &AtomicBool::new(false));
    assert!(error.unwrap_err().to_string().contains("moments"));
}

#[test]
fn the_best_are_chosen_by_their_error_rates() {
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
    let chosen = |count, best| {
        select_checkpoints(&folder, count, best).map(|paths| {
            let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
            paths.iter().map(name).collect::<Vec<_>>()
        })
    };
    // Epoch 1 is the best of all, and gone. Of two as good the later one.
    assert_eq!(chosen(1, true).unwrap(), ["epoch-3"]);
    assert_eq!(chosen(2, true).unwrap(), ["epoch-3", "epoch-4"]);
    assert_eq!(chosen(2, false).unwrap(), ["epoch-4", "epoch-5"]);
    let error = chosen(5, false).unwrap_err();
    assert!(matches!(error, Error::TooFewCheckpoints { found: 4, .. }), "{error}");
    assert!(
        error.to_string().contains("expected 5 epochs with a checkpoint, found 4; training.keep"),
        "{error}"
    );
    assert!(matches!(chosen(0, false), Err(Error::NoCheckpoints)));
    write([Some(0.1), None, Some(0.3), None, None]);
    assert!(matches!(chosen(2, true), Err(Error::TooFewCheckpoints { found: 1, .. })));
    assert!(matches!(
        select_checkpoints(&toy.path("none"), 1, false),
        Err(Error::Model(model::Error::Io { .. }))
    ));
}

#[test]
fn what_does_not_belong_together_is_named() {
    let toy = Toy::new();
    let one = run(&toy, "one", &[("epochs = 3", "epochs = 1")]).join("last.safetensors");
    let wide =
        run(&toy, "wide", &[("epochs = 3", "epochs = 1"), ("[joint]\nwidth = 16", "[joint]\nwidth = 24")]);
    let still = run(&toy, "still", &[("epochs = 3", "epochs = 1"), ("ema = 0.9", "")]);
    let out = toy.path("out.safetensors");
    let fails = |paths: &[PathBuf], part: &str| {
        let error = average(paths, &out).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(!out.exists());
        error
    };
    assert!(matches!(fails(&[], "expected at least one checkpoint"), Error::NoCheckpoints));
    let wide = wide.join("last.safetensors");
    let error = fails(&[one.clone(), wide.clone()], "joint.width = 24");
    assert!(
        matches!(&error, Error::Model(model::Error::Checkpoint { path, .. }) if *path == wide),
        "{error}"
    );
    fails(&[one.clone(), still.join("last.safetensors")], "optimiser.ema");
    fails(&[one.clone(), toy.path("none.safetensors")], "none.safetensors");
    fails(&[one.clone(), toy.path("recipe.toml")], "recipe.toml");
    let before = std::fs::read(&one).unwrap();
    assert!(matches!(average(&[one.clone(), one.clone()], &one), Err(Error::OutputIsInput { .. })));
    assert!(std::fs::read(&one).unwrap() == before);
    assert_eq!(leftovers(&toy.path("")), [] as [PathBuf; 0]);

    // The same recipe says the same, and the file has something else.
    let mut odd = Checkpoint::read(&one).unwrap();
    odd.average = None;
    let path = toy.path("odd.safetensors");
    odd.write(&path).unwrap();
    fails(&[one.clone(), path.clone()], "expected a moving average, as the first checkpoint has");
    let mut odd = Checkpoint::read(&one).unwrap();
    odd.weights.remove("joint.weight").or_else(|| odd.weights.pop_first().map(|(_, values)| values)).unwrap();
    odd.write(&path).unwrap();
    fails(&[one.clone(), path.clone()], "expected weight/");
    fails(&[path, one], "weight/");
}
