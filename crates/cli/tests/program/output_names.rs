//! Tests of names of recordings in outputs, and of caption options.
use std::collections::BTreeSet;
use std::fs;

use super::align::{CHECKPOINT, trained_corpus};
use super::{panda, run_command};

#[test]
fn recordings_have_unique_names_in_all_outputs() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        let (code, out, err) = run_command(panda(&folder, arguments));
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    };
    let read = |name: &str| fs::read_to_string(toy.path(name)).unwrap();
    let ids = |ctm: &str| -> Vec<String> {
        let mut ids: Vec<_> = ctm.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
        ids.dedup();
        ids
    };

    // Ids that differ in white space only, and an id that is the replacement of another one.
    let line = |(id, file): (&str, usize)| {
        let text = ["low", "high low", "middle high middle", "low low high"][file];
        format!("{{\"id\": \"{id}\", \"file\": \"{file}.wav\", \"text\": \"{text}\", \"seconds\": 0.9}}\n")
    };
    let list = [("call 7", 0), ("call\\t7", 1), ("call_7~2", 2), ("call_7", 3)];
    toy.write("ids.jsonl", &list.map(line).concat());
    let expected = ["call_7~4", "call_7~3", "call_7~2", "call_7"];
    run(&["align", CHECKPOINT, "ids.jsonl", "--ctm", "align.ctm"]);
    run(&["evaluate", CHECKPOINT, "ids.jsonl", "--format", "ctm", "--output", "evaluate.ctm"]);
    for command in ["align", "evaluate"] {
        assert_eq!(ids(&read(&format!("{command}.ctm"))), expected, "{command}");
        let mut parts = Vec::new();
        for shard in 1..=4 {
            let (shard, part) = (format!("{shard}/4"), format!("{command}.{shard}.ctm"));
            let output: &[&str] = match command {
                "align" => &["--ctm", &part],
                _ => &["--format", "ctm", "--output", &part],
            };
            run(&[&[command, CHECKPOINT, "ids.jsonl", "--shard", &shard], output].concat());
            parts.push(part);
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        run(&[&["merge", "merged.ctm"], &parts[..]].concat());
        assert_eq!(read("merged.ctm"), read(&format!("{command}.ctm")));
    }

    // The id of a file is its path.
    let files = ["call 7.wav", "call_7.wav", "call\u{b}7.wav"];
    for (file, from) in files.iter().zip(["2.wav", "5.wav", "1.wav"]) {
        fs::copy(toy.path(from), toy.path(file)).unwrap();
    }
    let transcribe = |more: &[&str]| run(&[&["transcribe", CHECKPOINT][..], &files, more].concat());
    let offline = transcribe(&["--format", "ctm"]);
    assert_eq!(ids(&offline), ["call_7.wav~3", "call_7.wav", "call_7.wav~2"]);
    let shard = |shard| transcribe(&["--format", "ctm", "--shard", shard]);
    assert_eq!(["1/3", "2/3", "3/3"].map(shard).concat(), offline);
    let streamed = transcribe(&["--format", "ctm", "--stream", "--pace", "0"]);
    let names = |ctm| ids(ctm).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(names(&streamed), names(&offline));

    // Each shard detects two recordings with the same output file.
    fs::create_dir(toy.path("more")).unwrap();
    fs::copy(toy.path("1.wav"), toy.path("more/2.wav")).unwrap();
    for shard in ["1/2", "2/2"] {
        let arguments =
            ["transcribe", CHECKPOINT, "2.wav", "more/2.wav", "--shard", shard, "--output", "texts"];
        let (code, _, err) = run_command(panda(&folder, &arguments));
        assert!(code == Some(2) && err.contains("2.txt: expected one recording of this name"), "{err}");
    }
    toy.write("ids.jsonl", &[("a/b", 0), ("a_b", 1), ("a\\nb", 2)].map(line).concat());
    run(&["evaluate", CHECKPOINT, "ids.jsonl", "--format", "vtt", "--output", "captions"]);
    for name in ["a_b", "a_b~2", "a_b~3"] {
        assert!(toy.path(&format!("captions/{name}.vtt")).exists(), "{name}");
    }
}

#[test]
fn captions_follow_their_options() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| {
        run_command(panda(&folder, &[&["transcribe", CHECKPOINT, "5.wav"], arguments].concat()))
    };
    let (code, out, err) = run(&["--format", "srt"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out.lines().nth(2), Some("high middle low low"), "{out}");
    let options = ["--caption-width", "7", "--caption-lines", "1", "--caption-min", "0.3"];
    let (_, out, _) = run(&[&["--format", "srt"], &options[..]].concat());
    let texts: Vec<&str> = out.lines().skip(2).step_by(4).collect();
    assert_eq!(texts, ["high", "middle", "low low"], "{out}");
    let (_, out, _) = run(&["--format", "vtt", "--caption-pause", "0.01"]);
    assert_eq!(out.matches("-->").count(), 4, "{out}");
    let (_, out, _) = run(&["--format", "vtt", "--caption-max", "0.2"]);
    let end =
        |line: &str| line[line.len() - 6..].parse::<f64>().unwrap() - line[6..12].parse::<f64>().unwrap();
    let shown: Vec<f64> = out.lines().filter(|line| line.contains("-->")).map(end).collect();
    assert!(shown.len() >= 2 && shown.iter().all(|seconds| *seconds < 0.2001), "{out}");

    for argument in ["min", "max", "pause"] {
        let argument = format!("--caption-{argument}");
        for value in ["nan", "0", "-1", "inf", "1e9"] {
            let (code, _, err) = run(&["--format", "srt", &argument, value]);
            let expected = format!("{argument}: expected a number of seconds above 0, at most 3600, found");
            assert!(code == Some(2) && err.contains(&expected), "{value}: {err}");
        }
    }
    for (arguments, part) in [
        (
            ["--caption-width", "0"],
            "--caption-width: expected a number of characters from 1 to 1000, found 0",
        ),
        (["--caption-lines", "0"], "--caption-lines: expected a number of lines from 1 to 100, found 0"),
        (["--caption-lines", "-1"], "--caption-lines"),
        (["--caption-min", "7"], "--caption-min: expected a number of seconds, at most --caption-max"),
    ] {
        let (code, _, err) = run(&[&["--format", "srt"], &arguments[..]].concat());
        assert!(code == Some(2) && err.contains(part), "{arguments:?}: {err}");
    }
    for command in [["transcribe", CHECKPOINT, "5.wav"], ["evaluate", CHECKPOINT, "train.jsonl"]] {
        let (code, _, err) = run_command(panda(&folder, &[&command[..], &["--caption-lines", "1"]].concat()));
        assert!(code == Some(2) && err.contains("--caption-lines: expected captions (--format srt"), "{err}");
    }
}
