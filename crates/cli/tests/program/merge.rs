//! Tests of `panda merge` on edited, repeated and corrupted parts.
use std::fs;
use std::path::Path;

use super::{panda, run_command};

/// Merges parts; returns exit status, standard error and the written file.
fn merge(folder: &Path, out: &str, parts: &[&str]) -> (Option<i32>, String, Option<String>) {
    let (code, _, err) = run_command(panda(folder, &[&["merge", out][..], parts].concat()));
    (code, err, fs::read_to_string(folder.join(out)).ok())
}

#[test]
fn parts_without_a_final_newline_are_separated() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let word = |id: &str| format!("{id} 1 0.100 0.200 one 0.8265");
    let object = |id: &str| format!("{{\"id\":\"{id}\",\"text\":\"one\"}}");
    for (extension, lines) in [
        ("ctm", [word("u1"), word("u2"), word("u3")]),
        ("json", ["u1", "u2", "u3"].map(object)),
        ("txt", ["one two".to_owned(), String::new(), "{noise}".to_owned()]),
    ] {
        let [first_line, second_line, third_line] = &lines;
        let expected = format!("{first_line}\n{second_line}\n{third_line}\n");
        for first in [
            format!("{first_line}\n{second_line}\n"),
            format!("\u{feff}{first_line}\r\n{second_line}\r\n"),
            format!("{first_line}\r\n{second_line}\n"),
        ] {
            for second in [third_line.clone(), format!("{third_line}\n"), format!("\u{feff}{third_line}\r\n")]
            {
                let name = |part: &str| format!("{part}.{extension}");
                // An empty last line of a text is a transcript.
                let first = if extension == "txt" { &first } else { first.trim_end_matches('\n') };
                fs::write(folder.join(name("1")), first).unwrap();
                fs::write(folder.join(name("2")), "").unwrap();
                fs::write(folder.join(name("3")), &second).unwrap();
                let parts = ["1", "2", "3"].map(name);
                let (code, err, out) = merge(folder, &name("out"), &parts.each_ref().map(String::as_str));
                assert_eq!((code, err.as_str()), (Some(0), ""), "{first:?} {second:?}");
                assert_eq!(out.as_deref(), Some(&*expected), "{first:?} {second:?}");
            }
        }
    }
}

#[test]
fn an_utterance_in_two_ctm_parts_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("1.ctm", "u1 1 0.100 0.200 one 0.9\nu1 1 0.400 0.200 two 0.9\n");
    write("2.ctm", "u2 1 0.100 0.200 one 0.9");
    write("copy.ctm", "u3 1 0.100 0.200 one 0.9\nu1 1 0.100 0.200 one 0.9\n");
    write("1.txt", "one\n");
    let mut parts = vec![
        (["1.ctm", "2.ctm", "copy.ctm"], "copy.ctm: expected every utterance once, found u1 also in 1.ctm"),
        (["1.ctm", "2.ctm", "./1.ctm"], "./1.ctm: expected every part once, found the same file as 1.ctm"),
        (["1.ctm", "2.ctm", "1.ctm"], "1.ctm: expected every part once, found it twice"),
        (["1.txt", "1.txt", "./1.txt"], "1.txt: expected every part once, found it twice"),
    ];
    if cfg!(unix) {
        fs::hard_link(folder.join("1.txt"), folder.join("hard.txt")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink("1.ctm", folder.join("link.ctm")).unwrap();
        parts.push((["1.ctm", "2.ctm", "link.ctm"], "link.ctm: expected every part once"));
        parts.push((["1.txt", "hard.txt", "2.ctm"], "2.ctm: expected other lines, as in 1.txt"));
    }
    for (parts, message) in parts {
        let (code, err, out) = merge(folder, "out.ctm", &parts);
        assert!(code == Some(2) && err.contains(message), "{parts:?}: {err}");
        assert_eq!(out, None);
    }
    if cfg!(unix) {
        let (code, err, _) = merge(folder, "out.txt", &["1.txt", "hard.txt"]);
        assert!(code == Some(2) && err.contains("hard.txt: expected every part once"), "{err}");
    }
    // The channels of one recording have different ids.
    write("A.ctm", "call A 0.100 0.200 one 0.9\n");
    write("B.ctm", "call B 0.100 0.200 one 0.9\n");
    assert_eq!(merge(folder, "out.ctm", &["A.ctm", "B.ctm"]).0, Some(0));
}

#[test]
fn an_unreadable_line_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let good = "u1 1 0.100 0.200 one 0.9\n";
    fs::write(folder.join("1.ctm"), good).unwrap();
    fs::write(folder.join("1.json"), "{\"id\": 1}\n").unwrap();
    let hypothesis = |id| format!("{{\"id\": {id}, \"reference\": \"a\", \"hypothesis\": \"a\"}}");
    fs::write(folder.join("1.jsonl"), hypothesis("\"a\"")).unwrap();
    for (name, text, line) in [
        ("2.ctm", format!("{}u2 1 0.1", good.replace("u1", "u2")), 2),
        ("2.ctm", "u2 1 0.1 0.2 one 0.8265u3 1 0.1 0.2 one 0.9\n".to_owned(), 1),
        ("2.ctm", "u2 1 0.1 zero one\n".to_owned(), 1),
        ("2.json", "{\"id\": 2}{\"id\": 3}\n".to_owned(), 1),
        ("2.json", "\u{feff}\n{\"id\": 2}\n{\"id\": true}".to_owned(), 3),
        ("2.jsonl", format!("{}\n\n{}", hypothesis("2"), &hypothesis("3")[..20]), 3),
    ] {
        fs::write(folder.join(name), text).unwrap();
        let (code, err, out) = merge(folder, "out", &[&name.replace('2', "1"), name]);
        assert!(code == Some(2) && err.contains(&format!("{name}:{line}: expected ")), "{err}");
        assert_eq!(out, None);
    }
    // Numbers are valid ids, as in manifests.
    fs::write(folder.join("2.jsonl"), hypothesis("17")).unwrap();
    let (code, err, out) = merge(folder, "out", &["1.jsonl", "2.jsonl"]);
    assert!(code == Some(0) && out.unwrap().contains("\"id\":\"17\""), "{err}");
    fs::write(folder.join("2.jsonl"), "{\"id\": \"a\", \"left_out\": \"gone\"}\n").unwrap();
    let (code, err, _) = merge(folder, "none", &["1.jsonl", "2.jsonl"]);
    assert!(code == Some(2) && err.contains("every utterance once, found a also in 1.jsonl"), "{err}");
}
