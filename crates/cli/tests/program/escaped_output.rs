//! Tests that the output of `panda` escapes untrusted names and texts.
//!
//! They neither start a new line nor reach the terminal as control characters.
use std::fs;

use super::toy::Toy;
use super::{panda, run_command};

/// Forged lines, escape sequences and control characters.
///
/// Line breaks of ASCII and Unicode, an escape sequence in C0 and one in C1, DEL, and overrides of
/// the writing direction.
const MALICIOUS_TEXT: &str = "x\nfake 0.00 %\r\nfake\u{1b}[2J\u{9b}31m\u{7f}\u{85}fake\u{2028}fake\u{2029}fake\u{202e}\u{2066}\u{b}\u{c}";

/// Limit of the length of a message.
const MAX_MESSAGE_BYTES: usize = 2500;

/// Asserts that the output has no control characters and no forged lines.
fn assert_output_is_escaped(command: &str, (code, out, err): (Option<i32>, String, String)) {
    for text in [&out, &err] {
        let is_unescaped = |c: char| {
            c != '\n' && c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!text.contains(is_unescaped), "{command}: {text:?}");
        assert!(!text.lines().any(|line| line.starts_with("fake")), "{command}: {text}");
    }
    assert!(code.is_some_and(|code| code <= 2), "{command}: {code:?}");
    assert!(!err.contains("panicked"), "{command}: {err}");
}

#[test]
fn malicious_names_and_texts_are_escaped() {
    let toy = Toy::new();
    let folder = toy.path("");
    let json = |text: &str| serde_json::to_string(text).unwrap();
    let quoted = json(MALICIOUS_TEXT);
    // File names cannot contain a slash; this text has none.
    let audio = format!("{MALICIOUS_TEXT}.wav");
    fs::copy(toy.path("1.wav"), toy.path(&audio)).unwrap();
    let line = |id: &str, file: &str, text: &str| {
        format!(
            "{{\"id\": {}, \"file\": {}, \"text\": {}, \"subset\": {quoted}, \"speaker\": {quoted}, \"seconds\": 1.0}}\n",
            json(id),
            json(file),
            json(text)
        )
    };
    // Manifests, valid and invalid.
    let second_id = format!("2{MALICIOUS_TEXT}");
    let manifest = line(MALICIOUS_TEXT, &audio, "high low") + &line(&second_id, "2.wav", MALICIOUS_TEXT);
    let name = format!("list{MALICIOUS_TEXT}.jsonl");
    toy.write(&name, &manifest);
    toy.write("twice.jsonl", &(line(MALICIOUS_TEXT, &audio, "low") + &line(MALICIOUS_TEXT, &audio, "low")));
    toy.write("missing.jsonl", &(manifest.clone() + &line("c", &format!("none{MALICIOUS_TEXT}"), "low")));
    toy.write("field.jsonl", &manifest.replace("\"seconds\": 1.0", &format!("\"seconds\": {quoted}")));
    toy.write("broken.jsonl", &format!("{{\"id\": {}\n", MALICIOUS_TEXT.replace('\n', " ")));

    // The training texts, and thus the tokens, and the run folder have malicious names.
    let toml = |text: &str| {
        let escaped = |c: char| if c.is_control() { format!("\\u{:04x}", c as u32) } else { c.to_string() };
        format!("\"{}\"", text.chars().map(escaped).collect::<String>())
    };
    let listed = [toml(&name), toml(&name), toml(&name), toml(&name)].join(", ");
    let quoted_key = toml(MALICIOUS_TEXT);
    let recipe = toy.recipe(&[
        ("train = [\"train.jsonl\"]", &format!("train = [{listed}]")),
        ("kind = \"words\"", "kind = \"characters\""),
        ("epochs = 3", "epochs = 1"),
    ]);
    let run = format!("run{MALICIOUS_TEXT}");
    let recipe_name = format!("recipe{MALICIOUS_TEXT}.toml");
    fs::copy(&recipe, toy.path(&recipe_name)).unwrap();
    let done = run_command(panda(&folder, &["train", &recipe_name, "--run", &run]));
    assert_eq!(done.0, Some(0), "{}", done.2);
    assert_output_is_escaped("train", done);
    let best = format!("{run}/best.safetensors");
    let best = best.as_str();

    // Invalid recipes, texts, phrases and language models.
    let text = fs::read_to_string(&recipe).unwrap();
    toy.write("key.toml", &format!("{quoted_key} = 1\n{text}"));
    toy.write("value.toml", &text.replace("\"characters\"", &quoted_key));
    toy.write("syntax.toml", &format!("{text}\nx{} = ", MALICIOUS_TEXT.replace('\n', "")));
    toy.write("texts.txt", &format!("{}\n", MALICIOUS_TEXT.replace('\n', " ")));
    toy.write("phrases.txt", &format!("low{}\n", MALICIOUS_TEXT.replace('\n', "")));
    toy.write(
        "lm.arpa",
        &format!("\\data\\\nngram 1=1\n\n\\1-grams:\n-0.3 {}\n", MALICIOUS_TEXT.replace('\n', "")),
    );

    // All commands escape the text.
    for arguments in [
        &["evaluate", best, &name, "--speakers", "--hypotheses", "hypotheses.jsonl", "--silence", "0"][..],
        &["evaluate", best, "twice.jsonl"],
        &["evaluate", best, "missing.jsonl", "--max-bad", "1"],
        &["evaluate", best, "missing.jsonl", "--max-bad", "0"],
        &["evaluate", best, "field.jsonl"],
        &["evaluate", best, "broken.jsonl"],
        &["evaluate", best, &name, "--shard", MALICIOUS_TEXT],
        &["evaluate", best, &name, "--phrases", "phrases.txt", "--beam", "2"],
        &["evaluate", best, &name, "--lm", "lm.arpa"],
        &["evaluate", MALICIOUS_TEXT, &name],
        &["merge", "all.jsonl", "hypotheses.jsonl", "--speakers"],
        &["merge", "all.jsonl", "hypotheses.jsonl", "hypotheses.jsonl"],
        &["align", best, &name, "--json", "aligned.json"],
        &["align", best, "missing.jsonl", "--json", "aligned.json"],
        &["transcribe", best, &audio, "--silence", "0", "--times"],
        &["transcribe", best, &audio, "--stream", "--pace", "0"],
        &["transcribe", best, &format!("none{MALICIOUS_TEXT}"), &audio],
        &["info", best],
        &["info", "key.toml"],
        &["info", "value.toml"],
        &["info", "syntax.toml"],
        &["train", "key.toml"],
        &["train", &recipe_name, "--run", &run],
        &["train", &recipe_name, "--run", &run, "--resume"],
        &["lm", "texts.txt", "-o", "x.arpa", "--test", &name],
        &["lm", "lm.arpa", "-o", "x.arpa", "--tokens", &format!("none{MALICIOUS_TEXT}")],
        &["average", &format!("mean{MALICIOUS_TEXT}"), best],
        &["average", "mean.safetensors", &format!("none{MALICIOUS_TEXT}")],
        &["report", &run],
        &["report", MALICIOUS_TEXT],
        &["prepare", "fsdd", MALICIOUS_TEXT],
        &[MALICIOUS_TEXT],
        &["train", &format!("--{MALICIOUS_TEXT}"), "x.toml"],
        &["train", "x.toml", MALICIOUS_TEXT],
    ] {
        assert_output_is_escaped(&format!("{arguments:?}"), run_command(panda(&folder, arguments)));
    }
    let page = fs::read_to_string(toy.path(&format!("{run}/report.html"))).unwrap();
    let is_unescaped =
        |c: char| c.is_control() && !matches!(c, '\n' | '\t') || matches!(c, '\u{2028}' | '\u{202e}');
    assert!(page.contains(r"fake\u{1b}[2J") && !page.contains(is_unescaped), "{page}");

    // Machine-readable files contain the unescaped values.
    let hypotheses = fs::read_to_string(toy.path("hypotheses.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(hypotheses.lines().next().unwrap()).unwrap();
    assert_eq!((&first["id"], &first["speaker"]), (&MALICIOUS_TEXT.into(), &MALICIOUS_TEXT.into()));
}

#[test]
fn long_lines_and_keys_are_shortened_in_messages() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 1")]);
    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    let best = "run/best.safetensors";
    let long = "long ".repeat(20_000);
    let word = "w".repeat(100_000);
    let line = fs::read_to_string(toy.path("train.jsonl")).unwrap().lines().next().unwrap().to_owned();
    let text = fs::read_to_string(toy.path("recipe.toml")).unwrap();
    for (name, content) in [
        ("syntax.jsonl", long.clone()),
        ("type.jsonl", line.replace("\"low\"", &format!("{{\"{word}\": 1}}"))),
        ("value.jsonl", line.replace(&line[line.find("8000").unwrap()..], &format!("\"{word}\"}}"))),
        ("id.jsonl", format!("{0}\n{0}", line.replace("toy-0", &word))),
        ("file.jsonl", line.replace("0.wav", &word)),
        ("bad.jsonl", line.replace("toy-0", &long).replace("0.wav", "none.wav")),
        (
            "recording.jsonl",
            format!(
                "{{\"id\": \"a\", \"text\": \"b\", \"recordings\": [\"{word}\"], \"gaps_ms\": [], \"seconds\": 1}}"
            ),
        ),
        ("key.toml", format!("{word} = 1\n{text}")),
        ("value.toml", text.replace("\"words\"", &format!("\"{word}\""))),
        ("number.toml", text.replace("seed = 7", &format!("seed = {}", "7".repeat(100_000)))),
        ("line.toml", format!("{long}\n{text}")),
        ("phrases.txt", word.clone()),
        ("scores.txt", format!("low\t{word}")),
        ("lm.arpa", format!("\\data\\\nngram 1=1\n\n\\1-grams:\n{long}\n")),
        ("head.arpa", format!("\\data\\\n{word}\n")),
        ("word.arpa", format!("\\data\\\nngram 1=1\n\n\\1-grams:\n-0.3 {word}\n\\end\\\n")),
        ("marks.txt", format!("a <s> {long}\n")),
    ] {
        toy.write(name, &content);
    }
    for arguments in [
        &["evaluate", best, "syntax.jsonl"][..],
        &["evaluate", best, "type.jsonl"],
        &["evaluate", best, "value.jsonl"],
        &["evaluate", best, "id.jsonl"],
        &["evaluate", best, "bad.jsonl"],
        &["evaluate", best, "recording.jsonl"],
        &["align", best, "bad.jsonl", "--json", "x.json"],
        &["info", "key.toml"],
        &["info", "value.toml"],
        &["info", "number.toml"],
        &["info", "line.toml"],
        &["evaluate", best, "train.jsonl", "--beam", "2", "--phrases", "scores.txt"],
        &["evaluate", best, "train.jsonl", "--lm", "lm.arpa"],
        &["evaluate", best, "train.jsonl", "--lm", "head.arpa"],
        &["evaluate", best, "train.jsonl", "--lm", "word.arpa"],
        &["evaluate", best, "train.jsonl", "--beam", &word],
        &["evaluate", best, "train.jsonl", "--shard", &word],
        &["evaluate", best, "train.jsonl", "--format", &word, "--output", "x"],
        &["lm", "marks.txt", "-o", "x.arpa", "--tokens", best],
    ] {
        let (code, out, err) = run_command(panda(&folder, arguments));
        let shortened: Vec<&str> = arguments.iter().map(|text| &text[..text.len().min(40)]).collect();
        let start = &err[..err.len().min(MAX_MESSAGE_BYTES)];
        assert_eq!((code, out.as_str()), (Some(2), ""), "{shortened:?}: {start}");
        // The longest message lists all keys of a recipe.
        assert!(err.len() < MAX_MESSAGE_BYTES, "{shortened:?}: {start}");
    }
    // A phrase that cannot be encoded is a warning.
    let phrases = ["evaluate", best, "train.jsonl", "--beam", "2", "--phrases", "phrases.txt"];
    let (code, _, err) = run_command(panda(&folder, &phrases));
    assert!(
        code == Some(0) && err.starts_with("warning: phrases.txt: "),
        "{}",
        &err[..err.len().min(MAX_MESSAGE_BYTES)]
    );
    assert!(err.len() < MAX_MESSAGE_BYTES, "{}", err.len());
    // A file name that is too long: the message of the system with a shortened name.
    let (code, _, err) = run_command(panda(&folder, &["evaluate", best, "file.jsonl"]));
    assert!(
        code == Some(2) && err.contains("File name too long"),
        "{}",
        &err[..err.len().min(MAX_MESSAGE_BYTES)]
    );
    assert!(err.len() < MAX_MESSAGE_BYTES, "{}", err.len());
}
