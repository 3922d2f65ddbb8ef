//! Utterances that cannot be used: they are left out by name, and too many of them end a run that can go on.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use model::checkpoint::Checkpoint;
use recognizer::{BadItems, Recognizer, evaluate};
use training::run_folder::read_bad_items;
use training::{Error, Observer, Result, RunReport, StartMode, StepReport, train};

use crate::toy::{RATE, Toy, write_wav};

/// Collects warnings, counts steps, and sets the flag after some of them.
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
    watch: &mut RunObserver,
) -> Result<Checkpoint> {
    let data = format!("[data]\n{data}\ntrain = [\"train.jsonl\"]");
    let first = ("[data]\ntrain = [\"train.jsonl\"]", data.as_str());
    let recipe = toy.recipe(&[&[first], changes].concat());
    let folder = toy.path(folder);
    let stop = AtomicBool::new(false);
    let mut outer = StopWith { watch, stop: &stop };
    train(&recipe, None, &folder, StartMode::Resume, &mut outer, &stop)?;
    Ok(Checkpoint::read(&folder.join("last.safetensors"))?)
}

struct StopWith<'a> {
    watch: &'a mut RunObserver,
    stop: &'a AtomicBool,
}

impl Observer for StopWith<'_> {
    fn on_warning(&mut self, warning: &str) {
        (&mut *self.watch).on_warning(warning);
    }
    fn on_start(&mut self, report: &RunReport) {
        (&mut *self.watch).on_start(report);
    }
    fn on_step(&mut self, report: &StepReport) {
        (&mut *self.watch).on_step(report);
        self.stop.store(self.watch.stop.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// Takes the recording of the second utterance apart, in one of many ways; returns a part of the reason.
fn spoil(toy: &Toy, way: &str) -> &'static str {
    let (file, manifest) = (toy.path("1.wav"), toy.path("train.jsonl"));
    let whole = std::fs::read(&file).unwrap();
    let change = |old: &str, new: &str| {
        let text = std::fs::read_to_string(&manifest).unwrap();
        let lines = text.lines().map(|line| match line.contains("toy-1") {
            true => line.replace(old, new) + "\n",
            false => line.to_owned() + "\n",
        });
        std::fs::write(&manifest, lines.collect::<String>()).unwrap();
    };
    match way {
        "missing" => {
            std::fs::remove_file(&file).unwrap();
            "No such file"
        }
        "folder" => {
            std::fs::remove_file(&file).unwrap();
            std::fs::create_dir(&file).unwrap();
            "1.wav"
        }
        "cut" => {
            std::fs::write(&file, &whole[..whole.len() * 2 / 3]).unwrap();
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

const WAYS: [&str; 8] =
    ["missing", "folder", "cut", "noise", "no sample", "other rate", "other samples", "beyond the end"];

fn only(items: &BadItems, id: &str, part: &str) {
    assert_eq!(items.left_out.len(), 1, "{items:?}");
    let one = &items.left_out[0];
    assert!(one.id == id && one.reason.contains(part), "{one:?}: {part}");
}

#[test]
fn one_bad_recording_is_left_out_by_name_and_the_run_goes_on() {
    for way in WAYS {
        for data in ["stream = false", "stream = true\nworkers = 2", "stream = true\ncache = \"cache\""] {
            let toy = Toy::new();
            let part = spoil(&toy, way);
            let mut watch = RunObserver::default();
            // A batch each, so that one of them has nothing in it; and strings of two.
            let changes =
                [("max_utterances = 2", "max_utterances = 1"), ("[augment]", "[augment]\njoin = 2")];
            run(&toy, data, &changes, "run", &mut watch).unwrap();
            let found = watch.warnings.iter().filter(|warning| warning.contains("toy-1: "));
            let found: Vec<&String> = found.collect();
            assert!(found[0].contains(part) && found[0].contains("left out"), "{way} {data}: {found:?}");
            // One for each of the three sets that it is in.
            assert_eq!(found.len(), 3, "{way} {data}: {found:?}");
            let bad = read_bad_items(&toy.path("run"));
            for set in ["data.train", "data.dev", "data.test"] {
                only(&bad[set], "toy-1", part);
            }
            let report = std::fs::read_to_string(toy.path("run/evaluation.json")).unwrap();
            let report: serde_json::Value = serde_json::from_str(&report).unwrap();
            for set in ["train", "dev", "test"] {
                assert_eq!(report[set]["left_out"][0]["id"], "toy-1", "{way} {data}");
            }
            assert_eq!(report["test"]["overall"]["utterances"], 5);
            let lines = std::fs::read_to_string(toy.path("run/test.hypotheses.jsonl")).unwrap();
            assert!(lines.lines().count() == 6 && lines.lines().last().unwrap().contains("left_out"));
        }
    }
}

#[test]
fn a_recording_of_another_length_is_used_as_it_is() {
    let mut outcomes = Vec::new();
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
        let mut watch = RunObserver::default();
        run(&toy, data, &[("max_frames = 200", "max_frames = 2000")], "run", &mut watch).unwrap();
        let of_train = watch.warnings.iter().filter(|warning| warning.starts_with("data.train"));
        let of_train: Vec<&String> = of_train.collect();
        assert!(
            of_train.len() == 1 && of_train[0].contains("toy-1: 0.62 s instead of 0.80 s"),
            "{of_train:?}"
        );
        let found = &read_bad_items(&toy.path("run"))["data.train"];
        assert_eq!((found.left_out.len(), found.other_length.len()), (0, 1));
        assert_eq!(
            (found.other_length[0].expected_seconds, found.other_length[0].id.as_str()),
            (0.8, "toy-1")
        );
        outcomes.push(watch.steps);
    }
    assert_eq!(outcomes, [outcomes[0]; 4]);
}

#[test]
fn too_many_end_a_run_before_its_first_step_or_behind_a_checkpoint() {
    for (way, early) in [("missing", true), ("noise", false)] {
        for stream in [false, true] {
            let toy = Toy::new();
            spoil(&toy, way);
            let without = [("dev = [\"train.jsonl\"]\ntest = [\"train.jsonl\"]\n", "")];
            let keys = format!("max_bad = 0.0\nstream = {stream}");
            let mut watch = RunObserver::default();
            let error = run(&toy, &keys, &without, "run", &mut watch).unwrap_err();
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
            if early || !stream {
                assert!(!watch.started && !last.exists(), "{way} {stream}");
                continue;
            }
            assert!(last.exists() && read_bad_items(&toy.path("run"))["data.train"].left_out.len() == 1);
            // A larger share goes on from there, to what would have come out of it at once.
            let keys = "max_bad = 0.1\nstream = true";
            let resumed = run(&toy, keys, &without, "run", &mut RunObserver::default()).unwrap();
            let whole = run(&toy, keys, &without, "whole", &mut RunObserver::default()).unwrap();
            assert!(resumed.weights == whole.weights && resumed.optimizer_state == whole.optimizer_state);
        }
    }
}

#[test]
fn a_run_with_bad_items_goes_on_bit_for_bit() {
    for stream in ["false", "true"] {
        let toy = Toy::new();
        spoil(&toy, "noise");
        let keys = format!("stream = {stream}\nworkers = 2");
        let whole = run(&toy, &keys, &[], "whole", &mut RunObserver::default()).unwrap();
        for steps in [1, 2, 1, 3] {
            let mut watch = RunObserver { stop_after: Some(steps), ..RunObserver::default() };
            run(&toy, &keys, &[], "parts", &mut watch).unwrap();
            assert_eq!(watch.steps, steps);
        }
        let parts = run(&toy, &keys, &[], "parts", &mut RunObserver::default()).unwrap();
        assert!(parts.weights == whole.weights && parts.optimizer_state == whole.optimizer_state, "{stream}");
        assert_eq!(read_bad_items(&toy.path("parts"))["data.train"].left_out.len(), 1);
    }
}

#[test]
fn an_evaluation_and_an_alignment_leave_out_what_cannot_be_used() {
    let toy = Toy::new();
    let keys = "stream = false";
    run(&toy, keys, &[], "run", &mut RunObserver::default()).unwrap();
    let recogniser = |share: f64| {
        Recognizer::load(Path::new(&toy.path("run/last.safetensors"))).unwrap().with_max_bad(share).unwrap()
    };
    let mut utterances = speech::read_manifest(&toy.path("train.jsonl")).unwrap();
    let all = evaluate(&recogniser(0.01), &utterances).unwrap();
    let part = spoil(&toy, "cut");
    let found = evaluate(&recogniser(0.01), &utterances).unwrap();
    only(&found.bad, "toy-1", part);
    let others = |list: &[recognizer::Transcript]| -> Vec<_> {
        list.iter().filter(|one| one.id != "toy-1").cloned().collect()
    };
    assert!(others(&all.transcripts) == found.transcripts && found.overall.utterances == 5);
    let read = recognizer::Evaluation::read(&found.hypotheses()).unwrap();
    assert_eq!((&read.bad, read.overall.utterances), (&found.bad, 5));
    let error = evaluate(&recogniser(0.0), &utterances).unwrap_err();
    assert!(matches!(error, recognizer::Error::TooManyBad { bad: 1, .. }), "{error}");
    assert!(Recognizer::load(&toy.path("run/last.safetensors")).unwrap().with_max_bad(f64::NAN).is_err());

    // A text that the model cannot write keeps an alignment from it, and no evaluation.
    utterances[2].text = "low tide".into();
    let aligned = recogniser(0.01).align(&utterances).unwrap();
    let ids: Vec<&str> = aligned.bad.left_out.iter().map(|one| one.id.as_str()).collect();
    assert_eq!((ids, aligned.utterances.len()), (vec!["toy-1", "toy-2"], 4));
    assert!(aligned.bad.left_out[1].reason.contains("tide"));
    assert!(
        aligned.bad.check("alignment", 6, 0.01).is_err() && aligned.bad.check("alignment", 6, 0.3).is_ok()
    );
    assert_eq!(evaluate(&recogniser(0.01), &utterances).unwrap().overall.utterances, 5);
    assert!(recogniser(0.01).align(&[]).unwrap().utterances.is_empty());
}
