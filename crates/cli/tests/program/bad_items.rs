//! Tests of commands on unusable utterances and empty shards.
use super::align::{CHECKPOINT, trained_corpus};
use super::toy::Toy;
use super::{panda, run_command};

#[test]
fn a_bad_utterance_is_left_out() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| run_command(panda(&folder, arguments));
    let read = |name: &str| std::fs::read_to_string(toy.path(name)).unwrap();
    let lines = read("train.jsonl");
    toy.write("missing.jsonl", &lines.replace("4.wav", "gone.wav"));
    toy.write("unknown.jsonl", &lines.replace("\"low low high\"", "\"low tide high\""));

    // `evaluate` and `merge`: a missing recording.
    let (code, out, err) =
        run(&["evaluate", CHECKPOINT, "missing.jsonl", "--hypotheses", "hypotheses.jsonl"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        err.starts_with("warning: missing: toy-4: ") && err.contains("gone.wav") && err.lines().count() == 1
    );
    assert!(out.contains("in 5 utterances"), "{out}");
    let hypotheses = read("hypotheses.jsonl");
    let last = hypotheses.lines().last().unwrap();
    assert!(last.starts_with("{\"id\":\"toy-4\",\"left_out\":"), "{hypotheses}");
    let merge = ["merge", "all.jsonl", "hypotheses.jsonl", "--manifest", "missing.jsonl"];
    assert_eq!(run(&merge), (Some(0), out, String::new()));
    assert_eq!(read("all.jsonl"), hypotheses);

    // `align` and `merge`: an unknown word.
    let arguments = ["align", CHECKPOINT, "unknown.jsonl", "--json", "a.json", "--ctm", "a.ctm"];
    let (code, out, err) = run(&arguments);
    assert_eq!(code, Some(0), "{err}");
    assert!(err.starts_with("warning: unknown: toy-3: ") && err.contains("tide"), "{err}");
    assert!(out.starts_with("5 utterances aligned, 0 without a path, 1 left out; "), "{out}");
    let aligned: serde_json::Value = serde_json::from_str(&read("a.json")).unwrap();
    assert_eq!(
        (&aligned["left_out"][0]["id"], aligned["utterances"].as_array().unwrap().len()),
        (&"toy-3".into(), 5)
    );
    assert!(read("a.ctm").contains("toy-5 ") && !read("a.ctm").contains("toy-3 "));
    assert_eq!(run(&["merge", "all.json", "a.json", "--manifest", "unknown.jsonl"]).0, Some(0));
    assert_eq!(read("all.json"), read("a.json"));

    // Too many unusable utterances: `evaluate` writes nothing, `align` writes the alignments first.
    for (command, list, part) in [("evaluate", "missing.jsonl", "toy-4"), ("align", "unknown.jsonl", "toy-3")]
    {
        std::fs::remove_file(toy.path("a.json")).unwrap_or_default();
        let output = if command == "align" { "--json" } else { "--hypotheses" };
        let (code, _, err) = run(&[command, CHECKPOINT, list, "--max-bad", "0", output, "a.json"]);
        assert_eq!(code, Some(2), "{err}");
        let error = err.lines().last().unwrap();
        assert!(error.starts_with("error: ") && error.contains(part) && error.contains("--max-bad"), "{err}");
        assert_eq!(toy.path("a.json").exists(), command == "align");
        let (code, _, err) = run(&[command, CHECKPOINT, list, "--max-bad", "1.5"]);
        assert!(code == Some(2) && err.contains("from 0 to 1"), "{err}");
    }
    // `transcribe`: a missing file.
    let arguments = ["transcribe", CHECKPOINT, "0.wav", "gone.wav", "3.wav", "--format", "json"];
    for (more, expected) in [(&[][..], 2), (&["--max-bad", "0.01"], 0)] {
        let (code, out, err) = run(&[&arguments, more].concat());
        assert_eq!((code, out.lines().count()), (Some(expected), 3), "{err}");
        assert!(out.lines().nth(1).unwrap().starts_with("{\"id\":\"gone.wav\",\"left_out\":"), "{out}");
    }
}

#[test]
fn max_bad_of_train_overrides_the_recipe() {
    let toy = Toy::new();
    let run = |arguments: &[&str]| run_command(panda(&toy.path(""), arguments));
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.write("train.jsonl", &lines.replace("4.wav", "gone.wav"));
    toy.recipe(&[("[data]\n", "[data]\nmax_bad = 0.0\n")]);

    let (code, _, err) = run(&["train", "recipe.toml", "--run", "run"]);
    assert!(code == Some(2) && err.contains("at most 0 of 6 utterances"), "{err}");
    let (code, _, err) = run(&["train", "recipe.toml", "--run", "run", "--max-bad", "0.1"]);
    assert!(code == Some(0) && err.contains("toy-4"), "{err}");
    assert!(std::fs::read_to_string(toy.path("run/recipe.toml")).unwrap().contains("max_bad = 0.1"));
    for share in ["nan", "1.5", "-1"] {
        let (code, _, err) =
            run(&["train", "recipe.toml", "--run", "run", "--force", &format!("--max-bad={share}")]);
        assert!(code == Some(2) && err.contains("max_bad") | err.contains("--max-bad"), "{err}");
    }
    // At least one usable utterance is required.
    let (code, _, err) = run(&["train", "recipe.toml", "--run", "run", "--force", "--max-bad", "1"]);
    assert_eq!(code, Some(0), "{err}");
    toy.write("train.jsonl", &lines.replace(".wav", ".gone.wav"));
    let (code, _, err) = run(&["train", "recipe.toml", "--run", "run", "--force", "--max-bad", "1"]);
    assert!(code == Some(2) && err.contains("at most 5 of 6 utterances"), "{err}");
}

#[test]
fn shards_without_an_utterance_are_valid() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        let (code, out, err) = run_command(panda(&folder, arguments));
        assert_eq!((code, err.as_str()), (Some(0), ""), "{arguments:?}");
        out
    };
    let unsharded = run(&["evaluate", CHECKPOINT, "train.jsonl"]);
    run(&["align", CHECKPOINT, "train.jsonl", "--json", "unsharded.json", "--ctm", "unsharded.ctm"]);
    let count = 8;
    let names =
        |extension: &str| -> Vec<String> { (1..=count).map(|n| format!("{n}.{extension}")).collect() };
    for n in 1..=count {
        let (shard, [hypotheses, json, ctm]) =
            (format!("{n}/{count}"), ["jsonl", "json", "ctm"].map(|extension| format!("{n}.{extension}")));
        run(&["evaluate", CHECKPOINT, "train.jsonl", "--shard", &shard, "--hypotheses", &hypotheses]);
        run(&["align", CHECKPOINT, "train.jsonl", "--shard", &shard, "--json", &json, "--ctm", &ctm]);
    }
    let merge = |to: &str, extension: &str, more: &[&str]| {
        let parts = names(extension);
        run(&[&["merge", to][..], &parts.iter().map(String::as_str).collect::<Vec<_>>(), more].concat())
    };
    assert_eq!(merge("all.jsonl", "jsonl", &["--manifest", "train.jsonl"]), unsharded);
    merge("all.json", "json", &["--manifest", "train.jsonl"]);
    merge("all.ctm", "ctm", &[]);
    for extension in ["json", "ctm"] {
        let read = |name: &str| std::fs::read_to_string(toy.path(&format!("{name}.{extension}"))).unwrap();
        assert_eq!(read("all"), read("unsharded"));
    }
    // An empty part fits alignments too.
    toy.write("1.json", "");
    merge("all.json", "json", &[]);
    // The whole manifest must have an utterance.
    toy.write("none.jsonl", "\n");
    let (code, _, err) = run_command(panda(&folder, &["evaluate", CHECKPOINT, "none.jsonl"]));
    assert!(code == Some(2) && err.contains("none.jsonl: expected at least one utterance"), "{err}");
}
