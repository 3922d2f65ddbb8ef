//! Tests of `panda align`: times of words and tokens.
use serde_json::Value;

use super::toy::{Toy, leftovers};
use super::{panda, run_command};

/// Trains a model (modified topology) until it recognizes the toy words.
pub(crate) fn trained_corpus() -> Toy {
    let toy = Toy::new();
    let repeated = format!("train = {:?}", ["train.jsonl"; 40]);
    toy.recipe(&[
        ("train = [\"train.jsonl\"]", repeated.as_str()),
        ("perturb = { speed = 0.1 }", ""),
        ("max_utterances = 2", "max_utterances = 6"),
        ("max_frames = 200", "max_frames = 400"),
        ("epochs = 3", "epochs = 12\ntopology = \"modified\""),
    ]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    toy
}

/// Checkpoint of [`trained_corpus`].
pub(crate) const CHECKPOINT: &str = "run/best.safetensors";

#[test]
fn words_have_times_in_ctm_and_json() {
    let toy = trained_corpus();
    let folder = toy.path("");
    // One second has too few frames to emit a hundred words, at most one per frame.
    let manifest = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let last = manifest.lines().last().unwrap();
    let text = last.split("\"text\": \"").nth(1).unwrap().split('"').next().unwrap();
    let long = last.replace(text, &["low"; 100].join(" ")).replace("toy-5", "too long");
    toy.write("more.jsonl", &format!("{long}\n{manifest}"));

    let arguments = ["align", CHECKPOINT, "more.jsonl", "--ctm", "out.ctm", "--json", "out.json"];
    let outcomes = ["1", "2", "3"].map(|threads| {
        let mut command = panda(&folder, &arguments);
        command.env("RAYON_NUM_THREADS", threads);
        let (code, out, err) = run_command(command);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.starts_with("6 utterances aligned, 1 without a path; a token is expected "), "{out}");
        assert!(err.starts_with("warning: too long: no path"), "{err}");
        ["out.ctm", "out.json"].map(|name| std::fs::read_to_string(toy.path(name)).unwrap())
    });
    assert!(outcomes.iter().all(|outcome| outcome == &outcomes[0]), "threads");
    let [ctm, json] = &outcomes[0];

    // The times of both files agree, and are in order.
    let json: Value = serde_json::from_str(json).unwrap();
    assert_eq!((&json["frame_seconds"], &json["without_path"][0]), (&0.04.into(), &"too long".into()));
    let mut lines = ctm.lines();
    let (mut expected_time_sum, mut token_count) = (0.0, 0.0);
    for (index, utterance) in json["utterances"].as_array().unwrap().iter().enumerate() {
        assert_eq!(utterance["id"], format!("toy-{index}"));
        let words = utterance["words"].as_array().unwrap();
        let texts: Vec<&str> = words.iter().map(|word| word["text"].as_str().unwrap()).collect();
        assert_eq!(texts.join(" "), utterance["text"].as_str().unwrap());
        assert!(utterance["best_path"].as_f64() <= utterance["log_likelihood"].as_f64());
        assert!(utterance["log_likelihood"].as_f64() < Some(0.0));
        // Length of a recording of the toy corpus.
        let (mut end, seconds) = (0.0, 0.1 + 0.2625 * words.len() as f64);
        for (word_index, word) in words.iter().enumerate() {
            let number = |name: &str| word[name].as_f64().unwrap();
            let (start, duration) = (number("start"), number("duration"));
            let confidence = number("confidence");
            assert!(start >= end - 1e-9 && duration >= 0.04 - 1e-9, "{word}");
            assert!(confidence > 0.0 && confidence <= 1.0, "{word}");
            end = start + duration;
            let line = lines.next().unwrap();
            let text = texts[word_index];
            assert_eq!(line, format!("toy-{index} 1 {start:.3} {duration:.3} {text} {confidence:.4}"));
            assert_eq!(word["tokens"], serde_json::json!([word_index, word_index + 1]));
        }
        assert!(end <= seconds + 0.04, "{end} of {seconds}");
        for token in utterance["tokens"].as_array().unwrap() {
            let time = token["expected"].as_f64().unwrap();
            assert!(time >= 0.0 && time <= seconds && token["log_prob"].as_f64() <= Some(0.0), "{token}");
            (expected_time_sum, token_count) = (expected_time_sum + time, token_count + 1.0);
        }
    }
    assert_eq!(lines.next(), None);
    assert!((json["expected_latency"].as_f64().unwrap() - expected_time_sum / token_count).abs() < 1e-12);

    // The alignment of an utterance does not depend on the batch.
    toy.write("last.jsonl", last);
    let (code, out, _) = run_command(panda(&folder, &["align", CHECKPOINT, "last.jsonl"]));
    assert!(code == Some(0) && ctm.ends_with(&out) && out.lines().count() == 4, "{out}");
    // The default is standard output; tokens are words in this model.
    for more in [&[][..], &["--tokens"]] {
        let (code, out, _) = run_command(panda(&folder, &[&arguments[..3], more].concat()));
        assert_eq!((code, &out), (Some(0), ctm));
    }
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);

    // Invalid arguments.
    let check = |arguments: &[&str], part: &str| {
        let (code, out, err) = run_command(panda(&folder, arguments));
        assert_eq!((code, out.as_str()), (Some(2), ""), "{arguments:?}: {err}");
        assert!(err.starts_with("error: ") && err.contains(part), "{arguments:?}: {err}");
    };
    toy.write("unknown.jsonl", &last.replace(text, "low tide"));
    check(&["align", CHECKPOINT, "unknown.jsonl"], "tide");
    check(&["align", CHECKPOINT, "none.jsonl"], "none.jsonl");
    check(&["align", "recipe.toml", "train.jsonl"], "checkpoint recipe.toml");
    check(&["align", CHECKPOINT, "train.jsonl", "--ctm", "no/such.ctm"], "no/such.ctm: could not write");
}
