//! Tests of bad items: unusable utterances are left out; too many end a run.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use model::checkpoint::Checkpoint;
use recognizer::{BadItems, Recognizer, evaluate};
use training::run_folder::read_bad_items;
use training::{Error, Observer, Result, RunReport, StartMode, StepReport, train};

use crate::toy::{RATE, Toy, write_wav};

/// Collects warnings, counts steps, and sets the flag after some steps.
#[derive(Default)]
struct RunObserver {
    warnings: Vec<String>,
    steps: u64,
    started: bool,
    stop_after: Option<u64>,
    stop: AtomicBool,
}

impl Observer for &mut RunObserver {
    fn on_warning(&mut self, warning: &str) {
        self.warnings.push(warning.to_owned());
    }
    fn on_start(&mut self, _: &RunReport) {
        self.started = true;
    }
    fn on_step(&mut self, _: &StepReport) {
        self.steps += 1;
        self.stop.store(self.stop_after == Some(self.steps), Ordering::Relaxed);
    }
}

fn run(
    toy: &Toy,
    data: &str,
    changes: &[(&str, &str)],
    folder: &str,
    observer: &mut RunObserver,
) -> Result<Checkpoint> {
    let data = format!("[data]\n{data}\ntrain = [\"train.jsonl\"]");
    let first = ("[data]\ntrain = [\"train.jsonl\"]", data.as_str());
    let recipe = toy.recipe(&[&[first], changes].concat());
    let folder = toy.path(folder);
    let stop = AtomicBool::new(false);
    let mut observer = ForwardStop { observer, stop: &stop };
    train(&recipe, None, &folder, StartMode::Resume, &mut observer, &stop)?;
    Ok(Checkpoint::read(&folder.join("last.safetensors"))?)
}

/// Passes all events to another observer, and copies its flag.
struct ForwardStop<'a> {
    observer: &'a mut RunObserver,
    stop: &'a AtomicBool,
}

impl Observer for ForwardStop<'_> {
    fn on_warning(&mut self, warning: &str) {
        (&mut *self.observer).on_warning(warning);
    }
    fn on_start(&mut self, report: &RunReport) {
        (&mut *self.observer).on_start(report);
    }
    fn on_step(&mut self, report: &StepReport) {
        (&mut *self.observer).on_step(report);
        self.stop.store(self.observer.stop.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Damages the recording of the second utterance; returns a part of the expected reason.
fn damage(toy: &Toy, kind: &str) -> &'static str {
    let (file, manifest) = (toy.path("1.wav"), toy.path("train.jsonl"));
    let bytes = std::fs::read(&file).unwrap();
    let change = |old: &str, new: &str| {
        let text = std::fs::read_to_string(&manifest).unwrap();
        let lines = text.lines().map(|line| match line.contains("toy-1") {
            true => line.replace(old, new) + "\n",
            false => line.to_owned() + "\n",
        });
        std::fs::write(&manifest, lines.collect::<String>()).unwrap();
    };
    match kind {
        "missing" => {
            std::fs::remove_file(&file).unwrap();
            "No such file"
        }
        "folder" => {
            std::fs::remove_file(&file).unwrap();
            std::fs::create_dir(&file).unwrap();
            "1.wav"
        }
        "truncated" => {
            std::fs::write(&file, &bytes[..bytes.len() * 2 / 3]).unwrap();
            "5000 samples"
        }
        "noise" => {
            std::fs::write(&file, [7; 999]).unwrap();
            "1.wav"
        }
        "no sample" => {
            write_wav(&file, RATE, &[]);
            "at least one sample"
        }
        "other rate" => {
            write_wav(&file, 2 * RATE, &[5; 5000]);
            "16000 Hz"
        }
        "other samples" => {
            change("\"num_samples\"", "\"crc32\": \"00000000\", \"num_samples\"");
            "CRC-32"
        }
        "beyond the end" => {
            change("\"num_samples\"", "\"offset_samples\": 999999, \"num_samples\"");
            "segment"
        }
        _ => unreachable!(),
    }
}

const DAMAGES: [&str; 8] =
    ["missing", "folder", "truncated", "noise", "no sample", "other rate", "other samples", "beyond the end"];

/// Asserts that only this utterance is left out, for this reason.
fn expect_excluded(items: &BadItems, id: &str, reason: &str) {
    assert_eq!(items.excluded.len(), 1, "{items:?}");
    let item = &items.excluded[0];
    assert!(item.id == id && item.reason.contains(reason), "{item:?}: {reason}");
}

#[test]
fn a_run_leaves_out_one_bad_recording_and_names_it() {
    for kind in DAMAGES {
        for data in ["stream = false", "stream = true\nworkers = 2", "stream = true\ncache = \"cache\""] {
            let toy = Toy::new();
            let reason = damage(&toy, kind);
            let mut observer = RunObserver::default();
            // One utterance a batch, so that one batch is empty; and pairs of utterances.
            let changes =
                [("max_utterances = 2", "max_utterances = 1"), ("[augment]", "[augment]\njoin = 2")];
            run(&toy, data, &changes, "run", &mut observer).unwrap();
            let warnings = observer.warnings.iter().filter(|warning| warning.contains("toy-1: "));
            let warnings: Vec<&String> = warnings.collect();
            let first = warnings[0];
            assert!(first.contains(reason) && first.contains("left out"), "{kind} {data}: {warnings:?}");
            // One for each of the three sets that it is in.
            assert_eq!(warnings.len(), 3, "{kind} {data}: {warnings:?}");
            let bad = read_bad_items(&toy.path("run"));
            for set in ["data.train", "data.dev", "data.test"] {
                expect_excluded(&bad[set], "toy-1", reason);
            }
            let report = std::fs::read_to_string(toy.path("run/evaluation.json")).unwrap();
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            for set in ["train", "dev", "test"] {
                assert_eq!(report[set]["left_out"][0]["id"], "toy-1", "{kind} {data}");
            }
            assert_eq!(report["test"]["overall"]["utterances"], 5);
            let lines = std::fs::read_to_string(toy.path("run/test.hypotheses.jsonl")).unwrap();
            assert!(lines.lines().count() == 6 && lines.lines().last().unwrap().contains("left_out"));
        }
    }
}

#[test]
fn a_recording_with_another_length_than_in_the_manifest_is_used() {
    let mut steps = Vec::new();
    for data in [
        "stream = false",
        "stream = true",
        "stream = true\ncache = \"cache\"",
        "stream = true\ncache = \"cache\"",
    ] {
        let toy = Toy::new();
        let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
        let lines = lines.lines().map(|line| match line.split_once("\"num_samples\"") {
            Some((before, _)) if line.contains("toy-1") => format!("{before}\"seconds\": 0.8}}\n"),
            _ => line.to_owned() + "\n",
        });
        toy.write("train.jsonl", &lines.collect::<String>());
        let mut observer = RunObserver::default();
        run(&toy, data, &[("max_frames = 200", "max_frames = 2000")], "run", &mut observer).unwrap();
        let warnings = observer.warnings.iter().filter(|warning| warning.starts_with("data.train"));
        let warnings: Vec<&String> = warnings.collect();
        assert!(
            warnings.len() == 1 && warnings[0].contains("toy-1: 0.62 s instead of 0.80 s"),
            "{warnings:?}"
        );
        let items = &read_bad_items(&toy.path("run"))["data.train"];
        assert_eq!((items.excluded.len(), items.other_length.len()), (0, 1));
        assert_eq!(
            (items.other_length[0].expected_seconds, items.other_length[0].id.as_str()),
            (0.8, "toy-1")
        );
        steps.push(observer.steps);
    }
    assert_eq!(steps, [steps[0]; 4]);
}

#[test]
fn too_many_bad_items_end_a_run_before_its_first_step_or_after_a_checkpoint() {
    for (kind, at_start) in [("missing", true), ("noise", false)] {
        for stream in [false, true] {
            let toy = Toy::new();
            damage(&toy, kind);
            let no_evaluation = [("dev = [\"train.jsonl\"]\ntest = [\"train.jsonl\"]\n", "")];
            let keys = format!("max_bad = 0.0\nstream = {stream}");
            let mut observer = RunObserver::default();
            let error = run(&toy, &keys, &no_evaluation, "run", &mut observer).unwrap_err();
            assert!(
                matches!(
                    &error,
                    Error::Recognizer(recognizer::Error::TooManyBad { bad: 1, of: 6, allowed: 0, .. })
                ),
                "{error}"
            );
            let text = error.to_string();
            assert!(text.contains("toy-1") && text.contains("max_bad"), "{text}");
            let last = toy.path("run/last.safetensors");
            if at_start || !stream {
                assert!(!observer.started && !last.exists(), "{kind} {stream}");
                continue;
            }
            assert!(last.exists() && read_bad_items(&toy.path("run"))["data.train"].excluded.len() == 1);
            // With a larger limit the run continues, to the result of a run without the stop.
            let keys = "max_bad = 0.1\nstream = true";
            let resumed = run(&toy, keys, &no_evaluation, "run", &mut RunObserver::default()).unwrap();
            let uninterrupted =
                run(&toy, keys, &no_evaluation, "whole", &mut RunObserver::default()).unwrap();
            assert!(
                resumed.weights == uninterrupted.weights
                    && resumed.optimizer_state == uninterrupted.optimizer_state
            );
        }
    }
}

#[test]
fn a_run_with_bad_items_resumes_to_the_same_bits() {
    for stream in ["false", "true"] {
        let toy = Toy::new();
        damage(&toy, "noise");
        let keys = format!("stream = {stream}\nworkers = 2");
        let uninterrupted = run(&toy, &keys, &[], "whole", &mut RunObserver::default()).unwrap();
        for steps in [1, 2, 1, 3] {
            let mut observer = RunObserver { stop_after: Some(steps), ..RunObserver::default() };
            run(&toy, &keys, &[], "parts", &mut observer).unwrap();
            assert_eq!(observer.steps, steps);
        }
        let parts = run(&toy, &keys, &[], "parts", &mut RunObserver::default()).unwrap();
        assert!(
            parts.weights == uninterrupted.weights && parts.optimizer_state == uninterrupted.optimizer_state,
            "{stream}"
        );
        assert_eq!(read_bad_items(&toy.path("parts"))["data.train"].excluded.len(), 1);
    }
}

#[test]
fn an_evaluation_and_an_alignment_leave_out_unusable_utterances() {
    let toy = Toy::new();
    let keys = "stream = false";
    run(&toy, keys, &[], "run", &mut RunObserver::default()).unwrap();
    let recognizer = |max_bad: f64| {
        let path = toy.path("run/last.safetensors");
        Recognizer::load(Path::new(&path)).unwrap().with_max_bad(max_bad).unwrap()
    };
    let mut utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let all = evaluate(&recognizer(0.01), &utterances).unwrap();
    let reason = damage(&toy, "truncated");
    let evaluation = evaluate(&recognizer(0.01), &utterances).unwrap();
    expect_excluded(&evaluation.bad, "toy-1", reason);
    let without_item = |list: &[recognizer::Transcript]| -> Vec<_> {
        list.iter().filter(|transcript| transcript.id != "toy-1").cloned().collect()
    };
    assert!(without_item(&all.transcripts) == evaluation.transcripts && evaluation.overall.utterances == 5);
    let read = recognizer::Evaluation::read(&evaluation.hypotheses()).unwrap();
    assert_eq!((&read.bad, read.overall.utterances), (&evaluation.bad, 5));
    let error = evaluate(&recognizer(0.0), &utterances).unwrap_err();
    assert!(matches!(error, recognizer::Error::TooManyBad { bad: 1, .. }), "{error}");
    assert!(Recognizer::load(&toy.path("run/last.safetensors")).unwrap().with_max_bad(f64::NAN).is_err());

    // An alignment leaves out a text that the tokens cannot spell; an evaluation uses it.
    utterances[2].text = "low tide".into();
    let aligned = recognizer(0.01).align(&utterances).unwrap();
    let ids: Vec<&str> = aligned.bad.excluded.iter().map(|item| item.id.as_str()).collect();
    assert_eq!((ids, aligned.utterances.len()), (vec!["toy-1", "toy-2"], 4));
    assert!(aligned.bad.excluded[1].reason.contains("tide"));
    assert!(
        aligned.bad.check("alignment", 6, 0.01).is_err() && aligned.bad.check("alignment", 6, 0.3).is_ok()
    );
    assert_eq!(evaluate(&recognizer(0.01), &utterances).unwrap().overall.utterances, 5);
    assert!(recognizer(0.01).align(&[]).unwrap().utterances.is_empty());
}
