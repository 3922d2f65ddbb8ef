//! Tests of training sets that are streamed from disk (`data.stream`).
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use model::checkpoint::Checkpoint;
use training::{Error, Observer, Result, StartMode, StepReport, train};

use crate::toy::Toy;

fn run(recipe: &Path, folder: &Path) -> Result<Checkpoint> {
    train(recipe, None, folder, StartMode::Resume, &mut (), &AtomicBool::new(false))?;
    Ok(Checkpoint::read(&folder.join("last.safetensors"))?)
}

/// The recipe with other data.
fn recipe(toy: &Toy, data: &str, changes: &[(&str, &str)]) -> std::path::PathBuf {
    let all: Vec<(&str, &str)> =
        std::iter::once(("[data]\ntrain = [\"train.jsonl\"]", data)).chain(changes.iter().copied()).collect();
    toy.recipe(&all)
}

#[test]
fn streamed_sets_give_the_same_bits_as_sets_in_memory() {
    let toy = Toy::new();
    for (name, changes) in [
        ("single", &[][..]),
        ("joined", &[("[augment]", "[augment]\njoin = 2")]),
        ("steps", &[("max_utterances = 2", "max_utterances = 2\naccumulate = 2")]),
    ] {
        let memory = run(
            &recipe(&toy, "[data]\ntrain = [\"train.jsonl\"]", changes),
            &toy.path(&format!("{name}-memory")),
        )
        .unwrap();
        for (variant, keys) in [
            ("plain", "stream = true"),
            ("workers", "stream = true\nworkers = 3"),
            ("cache", "stream = true\nworkers = 2\ncache = \"cache\""),
            ("cached", "stream = true\ncache = \"cache\""),
        ] {
            let data = format!("[data]\n{keys}\ntrain = [\"train.jsonl\"]");
            let streamed =
                run(&recipe(&toy, &data, changes), &toy.path(&format!("{name}-{variant}"))).unwrap();
            assert!(
                streamed.weights == memory.weights && streamed.average == memory.average,
                "{name} {variant}"
            );
            assert_eq!((streamed.progress, streamed.data), (memory.progress.clone(), memory.data.clone()));
        }
    }
    assert!(toy.path("cache/index").exists() && toy.path("cache/planes").exists());
}

#[test]
fn shards_give_the_same_weights_as_their_files() {
    let toy = Toy::new();
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    for (shard, range) in [("t-0.tar", 0..4), ("t-1.tar", 4..6)] {
        let mut archive = tar::Builder::new(std::fs::File::create(toy.path(shard)).unwrap());
        for index in range {
            archive.append_path_with_name(toy.path(&format!("{index}.wav")), format!("{index}.wav")).unwrap();
            let entry = lines.lines().nth(index).unwrap();
            let mut header = tar::Header::new_ustar();
            header.set_size(entry.len() as u64);
            header.set_mode(0o644);
            archive.append_data(&mut header, format!("{index}.json"), entry.as_bytes()).unwrap();
        }
        archive.finish().unwrap();
    }
    let files =
        run(&recipe(&toy, "[data]\nstream = true\ntrain = [\"train.jsonl\"]", &[]), &toy.path("files"))
            .unwrap();
    for stream in ["true", "false"] {
        let data = format!("[data]\nstream = {stream}\ntrain = [\"t-{{0..1}}.tar\"]");
        let shards = run(&recipe(&toy, &data, &[]), &toy.path(&format!("shards-{stream}"))).unwrap();
        assert!(shards.weights == files.weights, "stream = {stream}");
    }
    // A shard that ends within a sample.
    let bytes = std::fs::read(toy.path("t-1.tar")).unwrap();
    std::fs::write(toy.path("t-1.tar"), &bytes[..700]).unwrap();
    let error = run(&toy.path("recipe.toml"), &toy.path("none")).unwrap_err();
    assert!(matches!(error, Error::Model(model::Error::Speech(speech::Error::Shard { .. }))), "{error}");
    assert!(error.to_string().contains("t-1.tar"), "{error}");
}

const SPEED: (&str, &str) = ("[augment]", "[augment]\nspeed = { rates = [0.9, 1.1] }");

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
fn speed_changes_resume_to_the_same_bits_within_an_epoch() {
    let toy = Toy::new();
    let data = "[data]\nstream = true\nworkers = 2\ntrain = [\"train.jsonl\"]";
    let recipe = recipe(&toy, data, &[SPEED]);
    let uninterrupted = run(&recipe, &toy.path("whole")).unwrap();
    for steps in [1, 2, 1, 3] {
        let stop = AtomicBool::new(false);
        let mut observer = StopAfter { remaining_steps: steps, stop: &stop };
        assert!(
            train(&recipe, None, &toy.path("parts"), StartMode::Resume, &mut observer, &stop)
                .unwrap()
                .stopped
        );
    }
    let parts = run(&recipe, &toy.path("parts")).unwrap();
    assert!(parts.weights == uninterrupted.weights && parts.optimizer_state == uninterrupted.optimizer_state);
    let plain = run(&self::recipe(&toy, data, &[]), &toy.path("plain")).unwrap();
    assert!(plain.weights != uninterrupted.weights);
}

#[test]
fn invalid_settings_of_streamed_data_are_errors() {
    let toy = Toy::new();
    for (data, changes, key) in [
        (
            "[data]\ntrain = [\"train.jsonl\"]",
            &[SPEED][..],
            "augment: expected no speed, reverb or noise without data.stream",
        ),
        ("[data]\ncache = \"x\"\ntrain = [\"train.jsonl\"]", &[], "data.cache"),
        ("[data]\nworkers = 0\ntrain = [\"train.jsonl\"]", &[], "data.workers"),
    ] {
        let error = run(&recipe(&toy, data, changes), &toy.path("none")).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}
