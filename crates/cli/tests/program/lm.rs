//! Tests of `panda lm`: n-grams of texts and manifests.
use std::fs;

use super::toy::{Toy, leftovers};
use super::{panda, run_command, shared};

#[test]
fn an_n_gram_of_words() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.write("more.txt", "low high\n\n  high \r\n");
    toy.write("test.txt", "low high\nlow noise\n");
    let arguments = ["lm", "train.jsonl", "more.txt", "-o", "lm.arpa", "--order", "2", "--test", "test.txt"];
    let (code, out, err) = run_command(panda(&folder, &arguments));
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 4, "{out}");
    // low, middle, high, and <s>, </s>, <unk>.
    assert!(lines[0].starts_with("1-grams         6  discounts "), "{out}");
    assert!(lines[1].starts_with("2-grams "), "{out}");
    assert!(lines[2].starts_with("training text: perplexity "), "{out}");
    assert!(lines[2].ends_with(" of 17 words and 8 ends; 0.00 % unknown (0 of 17)"), "{out}");
    assert!(lines[3].ends_with(" of 3 words and 2 ends; 25.00 % unknown (1 of 4)"), "{out}");
    let arpa = fs::read_to_string(toy.path("lm.arpa")).unwrap();
    assert!(arpa.starts_with("\\data\\\nngram 1=6\nngram 2=") && arpa.contains("\t<s> high\n"), "{arpa}");

    // Standard output receives the file and nothing else.
    let arguments = ["lm", "train.jsonl", "more.txt", "-o", "/dev/stdout", "--order", "2"];
    if cfg!(unix) {
        assert_eq!(run_command(panda(&folder, &arguments)), (Some(0), arpa, String::new()));
    }
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}

#[test]
fn an_n_gram_of_a_model_s_tokens() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.recipe(&[("epochs = 3", "epochs = 1"), ("kind = \"words\"", "kind = \"characters\"")]);
    let (code, _, err) = run_command(panda(&folder, &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    toy.write("test.txt", "low zig\n");
    let checkpoint = "run/last.safetensors";
    let arguments = ["lm", "train.jsonl", "-o", "lm.arpa", "--tokens", checkpoint, "--test", "test.txt"];
    let (code, out, err) = run_command(panda(&folder, &arguments));
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.lines().last().unwrap().ends_with(" of 6 tokens and 1 ends; 14.29 % unknown (1 of 7)"),
        "{out}"
    );
    let arpa = fs::read_to_string(toy.path("lm.arpa")).unwrap();
    assert!(arpa.contains("\tw <space> "), "{arpa}");
    let before = fs::read(toy.path(checkpoint)).unwrap();
    let (code, _, err) =
        run_command(panda(&folder, &["lm", "train.jsonl", "-o", checkpoint, "--tokens", checkpoint]));
    assert!(code == Some(2) && err.contains("expected an output other than the inputs"), "{err}");
    assert_eq!(fs::read(toy.path(checkpoint)).unwrap(), before);
}

#[test]
fn invalid_inputs_are_errors() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.write("empty.txt", " \n\n");
    toy.write("mark.txt", "a <s> b\n");
    fs::write(toy.path("latin.txt"), b"a\nb\xe9\n").unwrap();
    for (arguments, part) in [
        (&["empty.txt"][..], "text: expected at least one token, found none"),
        (
            &["mark.txt"],
            "mark.txt:1: expected sentence marks (<s>, </s>) at the ends of a text only, found \"<s>\" within it",
        ),
        (&["latin.txt"], "latin.txt: expected text in UTF-8, found other bytes in line 2"),
        (&["none.txt"], "none.txt: cannot be read"),
        (&["none.jsonl"], "none.jsonl"),
        (&["train.jsonl", "--order", "0"], "order: expected 1 to 16, found 0"),
        (&["train.jsonl", "--tokens", "none.safetensors"], "none.safetensors"),
        (&["train.jsonl", "--tokens", "train.jsonl"], "a whole safetensors file"),
    ] {
        let arguments: Vec<&str> = ["lm", "-o", "lm.arpa"].iter().chain(arguments).copied().collect();
        let (code, _, err) = run_command(panda(&folder, &arguments));
        assert_eq!(code, Some(2), "{arguments:?}");
        assert!(err.starts_with("error: ") && err.contains(part), "{arguments:?}: {err}");
    }
    assert!(!toy.path("lm.arpa").exists());
    let (code, _, err) = run_command(panda(&folder, &["lm", "train.jsonl", "-o", "./train.jsonl"]));
    assert!(code == Some(2) && err.contains("expected an output other than the inputs"), "{err}");
}

/// Compares with reference values of independent programs.
///
/// Discounts, counts and perplexities are those of a pure Python program in `f64` that follows the
/// definition; kenlm 0.3.0 reports the same perplexities for the file.
#[test]
fn matches_kenlm_and_a_python_reference() {
    let Some(an4) = shared("data/an4") else { return };
    let folder = tempfile::tempdir().unwrap();
    let [train, test] = ["train.jsonl", "test.jsonl"].map(|name| an4.join(name).display().to_string());
    let (code, out, err) =
        run_command(panda(folder.path(), &["lm", &train, "-o", "lm.arpa", "--test", &test]));
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "1-grams       102  discounts 0.647 0.922 1.447");
    assert_eq!(lines[1], "2-grams      1174  discounts 0.599 0.988 1.382");
    assert_eq!(lines[2], "3-grams      2728  discounts 0.745 1.227 1.352");
    assert!(lines[3].contains("perplexity 7.418 of 4544 words and 796 ends; 0.00 %"), "{out}");
    assert!(lines[4].contains("perplexity 17.083 of 771 words and 130 ends; 0.26 %"), "{out}");
}

/// Texts of unknown words only are errors that write no file.
#[test]
fn errors_come_before_the_file_is_written() {
    let toy = Toy::new();
    let folder = toy.path("");
    toy.write("unknown.txt", "<unk>\n");
    toy.write("upper.txt", "<UNK> <UNK>\n<unk>\n");
    toy.write("good.txt", "low high\n");
    toy.write("old.arpa", "old\n");
    for arguments in [&["unknown.txt"][..], &["upper.txt"], &["unknown.txt", "--test", "good.txt"]] {
        for output in ["new.arpa", "old.arpa", "/dev/stdout"] {
            if output == "/dev/stdout" && !cfg!(unix) {
                continue;
            }
            let arguments: Vec<&str> = ["lm", "-o", output].iter().chain(arguments).copied().collect();
            let (code, out, err) = run_command(panda(&folder, &arguments));
            assert!(code == Some(2) && err.contains("found none among its 3 words"), "{err}");
            assert_eq!(out, "", "{arguments:?}");
            assert!(!toy.path("new.arpa").exists(), "{arguments:?}");
            assert_eq!(fs::read_to_string(toy.path("old.arpa")).unwrap(), "old\n");
        }
    }
    assert_eq!(leftovers(&folder), [] as [std::path::PathBuf; 0]);
}

#[test]
fn sentence_marks_around_texts_are_removed() {
    let toy = Toy::new();
    let folder = toy.path("");
    let plain = "low high\nhigh\nlow\n";
    toy.write("plain.txt", plain);
    toy.write("plain.jsonl", &manifest_of_texts(&["low high", "high", "low"]));
    let arpa = |text: &str| {
        let (code, _, err) = run_command(panda(&folder, &["lm", text, "-o", "out.arpa", "--order", "2"]));
        assert_eq!(code, Some(0), "{text}: {err}");
        (fs::read_to_string(toy.path("out.arpa")).unwrap(), err)
    };
    let (expected, err) = arpa("plain.txt");
    assert_eq!((arpa("plain.jsonl"), err.as_str()), ((expected.clone(), String::new()), ""));
    // Marks at the ends are removed with a warning.
    for (lines, warning) in [
        (["<s> low high </s>", "<s> high </s>", "<s> low </s>"], "3 lines, the first is line 1"),
        (["low high", "<s>high</s>\r", "  <S> low"], "2 lines, the first is line 2"),
        (["low high", "high", "low </s>"], "1 line, the first is line 3"),
    ] {
        toy.write("marked.txt", &(lines.join("\n") + "\n<s> </s>\n"));
        toy.write("marked.jsonl", &manifest_of_texts(&lines.map(str::trim_end)));
        for file in ["marked.txt", "marked.jsonl"] {
            let (actual, err) = arpa(file);
            assert_eq!(actual, expected, "{lines:?}");
            let warning = match file {
                "marked.jsonl" => warning.to_owned(),
                // Plus the line without a word.
                _ => warning
                    .replace("3 lines", "4 lines")
                    .replace("2 lines", "3 lines")
                    .replace("1 line,", "2 lines,"),
            };
            let warning = format!("warning: {file}: <s> and </s> are removed from the ends of {warning}\n");
            assert_eq!(err, warning, "{lines:?}");
        }
    }
    // Marks within a text are errors.
    let check = |arguments: &[&str], part: &str| {
        let (code, _, err) = run_command(panda(&folder, &[&["lm", "-o", "none.arpa"], arguments].concat()));
        assert!(code == Some(2) && err.contains(part), "{arguments:?}: {err}");
        assert!(!toy.path("none.arpa").exists());
    };
    for (line, mark) in
        [("low </s> <s> high", "</s>"), ("<s> low</s> high </s>", "low</s>"), ("a <S> b", "<S>")]
    {
        toy.write("inner.txt", &format!("{plain}\n{line}\n"));
        check(&["inner.txt"], "inner.txt:5: expected sentence marks");
        check(&["plain.txt", "--test", "inner.txt"], &format!("found {mark:?} within it"));
        toy.write("inner.jsonl", &format!("\n{}", manifest_of_texts(&["low", line])));
        check(&["plain.txt", "inner.jsonl"], "inner.jsonl:3: expected sentence marks");
    }
}

/// Returns a manifest with an utterance for each text.
fn manifest_of_texts(texts: &[&str]) -> String {
    let line = |(id, text): (usize, &&str)| {
        format!("{{\"id\": {id}, \"file\": \"0.wav\", \"seconds\": 1, \"text\": \"{text}\"}}\n")
    };
    texts.iter().enumerate().map(line).collect()
}
