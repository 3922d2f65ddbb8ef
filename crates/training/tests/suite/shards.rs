//! Tests of tar shards with invalid samples and unused members.
use std::sync::atomic::AtomicBool;

use model::checkpoint::Checkpoint;
use training::run_folder::read_bad_items;
use training::{Error, Observer, Result, StartMode, train};

use crate::toy::Toy;

/// Collects warnings.
#[derive(Default)]
struct WarningCollector(Vec<String>);

impl Observer for WarningCollector {
    fn on_warning(&mut self, warning: &str) {
        self.0.push(warning.to_owned());
    }
}

/// The sentences of the toy as a shard, with additional members.
fn shard(toy: &Toy, name: &str, additional: &[(&str, &[u8])]) {
    let mut archive = tar::Builder::new(Vec::new());
    let mut append = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes).unwrap();
    };
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    for (index, line) in lines.lines().enumerate() {
        append(&format!("sp0.9-{index}.wav"), &std::fs::read(toy.path(&format!("{index}.wav"))).unwrap());
        append(&format!("sp0.9-{index}.json"), line.replace("\"file\"", "\"was\"").as_bytes());
    }
    additional.iter().for_each(|(name, bytes)| append(name, bytes));
    std::fs::write(toy.path(name), archive.into_inner().unwrap()).unwrap();
}

fn run(toy: &Toy, keys: &str, folder: &str) -> (Result<training::RunOutcome>, Vec<String>) {
    let sets = "train = [\"t.tar\"]\ndev = [\"t.tar\"]\ntest = [\"t.tar\"]\n";
    let old = "train = [\"train.jsonl\"]\ndev = [\"train.jsonl\"]\ntest = [\"train.jsonl\"]\n";
    let recipe = toy.recipe(&[(old, &format!("{sets}{keys}\n"))]);
    let mut collector = WarningCollector::default();
    let stop = AtomicBool::new(false);
    let outcome = train(&recipe, None, &toy.path(folder), StartMode::Force, &mut collector, &stop);
    (outcome, collector.0)
}

#[test]
fn unused_samples_and_members_give_warnings_in_memory_and_streamed() {
    let toy = Toy::new();
    let additional: [(&str, &[u8]); 4] =
        [("sp0.9-0.cls", b"1"), ("README", b"x"), ("bad.wav", b"noise"), ("bad.txt", b"low")];
    shard(&toy, "t.tar", &additional);
    let mut weights = Vec::new();
    let variants =
        ["stream = false", "stream = true", "stream = true\ncache = \"c\"", "stream = true\ncache = \"c\""];
    for keys in variants {
        let (outcome, warnings) = run(&toy, keys, "run");
        outcome.unwrap();
        for (part, count) in [("t.tar: 2 members are not used: sp0.9-0.cls, README", 3), (": bad: ", 3)] {
            let matching = warnings.iter().filter(|warning| warning.contains(part)).count();
            assert_eq!(matching, count, "{keys}: {part}: {warnings:?}");
        }
        for set in ["data.train", "data.dev", "data.test"] {
            let bad = &read_bad_items(&toy.path("run"))[set];
            let [item] = &bad.excluded[..] else { panic!("{bad:?}") };
            assert!(item.id == "bad" && item.reason.contains("t.tar: expected a WAV"), "{item:?}");
        }
        weights.push(Checkpoint::read(&toy.path("run/last.safetensors")).unwrap().weights);
    }
    assert!(weights.iter().all(|other| *other == weights[0]));
    for stream in [false, true] {
        let (outcome, _) = run(&toy, &format!("stream = {stream}\nmax_bad = 0.0"), "none");
        let error = outcome.unwrap_err();
        assert!(
            matches!(
                error,
                Error::Recognizer(recognizer::Error::TooManyBad { bad: 1, of: 7, allowed: 0, .. })
            ),
            "{error}"
        );
    }
}
