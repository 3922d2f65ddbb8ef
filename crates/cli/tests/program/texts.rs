//! Tests of Unicode forms, special words and blank lines of texts.
use super::toy::Toy;
use super::{panda, run_command};

#[test]
fn texts_are_normalized_and_special_words_are_single_labels() {
    let toy = Toy::new();
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    // A word in NFC and the same word in NFD; a special word that is listed and one that is not.
    let lines = lines.replacen("\"high low\"", "\"hi\u{e9}gh [noise] low\"", 1);
    let lines = lines.replacen("\"low low high\"", "\"low {x} hie\u{301}gh\"", 1);
    toy.write("train.jsonl", &lines);
    let special = |list: &str| format!("kind = \"characters\"\nspecial = {list}");
    toy.recipe(&[("kind = \"words\"", &special("[\"[noise]\"]")), ("epochs = 3", "epochs = 1")]);
    let folder = toy.path("");
    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    assert!(err.contains("data.train: 1 text is normalized (tokens.normalize = \"nfc\")"), "{err}");
    assert!(err.contains("data.train: 1 text contains `{x}`, which is spelled letter by letter"), "{err}");
    let (code, out, _) = run_command(panda(&folder, &["info", "run/last.safetensors"]));
    assert_eq!(code, Some(0));
    assert!(out.contains("normalize = \"nfc\"") && out.contains("one token each: [noise]"), "{out}");

    let evaluate = ["evaluate", "run/last.safetensors", "train.jsonl", "--hypotheses", "h.jsonl"];
    for (more, reference) in [(&[][..], "hi\u{e9}gh [noise] low"), (&["--ignore-special"], "hi\u{e9}gh low")]
    {
        let (code, _, err) = run_command(panda(&folder, &[&evaluate, more].concat()));
        assert_eq!(code, Some(0), "{err}");
        assert!(err.contains("train: 1 text is normalized"), "{err}");
        let hypotheses = std::fs::read_to_string(toy.path("h.jsonl")).unwrap();
        assert!(hypotheses.contains(&format!("\"reference\":\"{reference}\"")), "{hypotheses}");
        assert!(hypotheses.contains("\"reference\":\"low {x} hi\u{e9}gh\""), "{hypotheses}");
    }
    for (list, part) in [
        ("[\"<unk>\", \"<unk>\"]", "twice"),
        ("[\"\"]", "\"\""),
        ("[\"a b\"]", "white space"),
        ("[\"h\"]", "\"h\", which is an ordinary token"),
    ] {
        toy.recipe(&[("kind = \"words\"", &special(list))]);
        let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "other"]));
        assert!(code == Some(2) && err.contains("tokens.special") && err.contains(part), "{list}: {err}");
    }
}

#[test]
fn features_at_the_floor_are_reported_before_the_first_step() {
    let toy = Toy::new();
    let folder = toy.path("");
    for (keys, warns) in [
        ("normalize = \"running\"", true),
        ("normalize = \"none\"", true),
        ("normalize = \"running\"\nfloor_db = 120", false),
        ("normalize = \"none\"\nfloor_power = 1e-20", false),
        ("normalize = \"utterance\"", false),
    ] {
        toy.recipe(&[("mels = 12", &format!("mels = 12\n{keys}")), ("epochs = 3", "epochs = 1")]);
        let (code, _, err) =
            run_command(panda(&folder, &["train", "recipe.toml", "--run", "run", "--force"]));
        assert_eq!(code, Some(0), "{err}");
        assert_eq!(err.contains("features.floor_db = 100"), warns, "{keys}: {err}");
    }
}

#[test]
fn info_reports_texts_as_training_does() {
    let toy = Toy::new();
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    let lines = lines.replacen("\"high low\"", "\"high </s> <s> low\"", 1);
    toy.write("train.jsonl", &lines.replacen("\"low\"", "\"<s> low </s>\"", 1));
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let folder = toy.path("");
    let (code, out, info) = run_command(panda(&folder, &["info", "recipe.toml"]));
    assert!(code == Some(0) && out.contains("tokens: 3 and the blank"), "{info}");
    let (code, _, train) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{train}");
    let data_warnings = |err: &str| -> Vec<String> {
        let lines = err.lines().filter(|line| line.starts_with("warning: data.train: "));
        lines.map(str::to_owned).collect()
    };
    let warnings = data_warnings(&info);
    assert_eq!(warnings, data_warnings(&train));
    assert!(
        warnings.len() == 2 && warnings[0].contains("<s> and </s> are removed from the ends of 1 text"),
        "{info}"
    );
    let second = &warnings[1];
    assert!(second.starts_with("warning: data.train: toy-1: ") && second.ends_with("left out"), "{info}");
}

#[test]
fn blank_lines_of_manifests_are_counted() {
    let toy = Toy::new();
    let lines = std::fs::read_to_string(toy.path("train.jsonl")).unwrap();
    toy.recipe(&[("epochs = 3", "epochs = 1"), ("dev = [\"train.jsonl\"]", "dev = [\"blank.jsonl\"]")]);
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        let (code, _, err) = run_command(panda(&folder, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        err
    };
    let evaluate = ["evaluate", "run/last.safetensors", "blank.jsonl", "--hypotheses", "h.jsonl"];
    for (text, warning) in [
        (lines.replacen('\n', "\n\n \t\r\n", 2) + "\n", "5 blank lines are skipped, the first is line 2"),
        (format!("\u{feff}\n{lines}"), "1 blank line is skipped, line 1"),
    ] {
        toy.write("blank.jsonl", &text);
        let warning = format!("warning: blank.jsonl: {warning}\n");
        assert_eq!(run(&["train", "recipe.toml", "--run", "run", "--force"]).matches(&warning).count(), 1);
        for arguments in [
            &evaluate[..],
            &["align", "run/last.safetensors", "blank.jsonl", "--ctm", "out.ctm"],
            &["merge", "all.jsonl", "h.jsonl", "--manifest", "blank.jsonl"],
            &["lm", "blank.jsonl", "-o", "out.arpa"],
        ] {
            assert_eq!(run(arguments).matches(&warning).count(), 1, "{arguments:?}");
        }
    }
}
