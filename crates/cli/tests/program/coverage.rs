//! Tests of `panda transcribe --coverage`: recovered words, gaps, formats, invalid arguments.
use serde_json::Value;

use super::align::{CHECKPOINT, trained_corpus};
use super::toy::{RATE, Toy, write_wav};
use super::{panda, run_command};

/// Returns the samples of a file, divided by `divisor`.
fn read_samples(toy: &Toy, name: &str, divisor: i16) -> Vec<i16> {
    let mut reader = hound::WavReader::open(toy.path(name)).unwrap();
    reader.samples::<i16>().map(|sample| sample.unwrap() / divisor).collect()
}

/// Checks that the segments tile the recording; returns the seconds of a kind.
fn seconds_of(coverage: &Value, kind: &str) -> f64 {
    let number = |value: &Value| value.as_f64().unwrap();
    let segments = coverage["segments"].as_array().unwrap();
    let duration = number(&coverage["duration"]);
    assert_eq!(
        (number(&segments[0]["start"]), number(&segments[segments.len() - 1]["end"])),
        (0.0, duration)
    );
    assert!(segments.windows(2).all(|pair| pair[0]["end"] == pair[1]["start"]), "{coverage}");
    let kinds = ["words", "recovered", "silence", "gap"];
    for (totals, expected) in [("seconds", duration), ("fractions", 1.0)] {
        let sum: f64 = kinds.iter().map(|kind| number(&coverage[totals][*kind])).sum();
        assert!((sum - expected).abs() < 1e-9, "{totals}: {coverage}");
    }
    number(&coverage["seconds"][kind])
}

#[test]
fn lost_words_are_recovered_in_all_formats() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let loud = || read_samples(&toy, "2.wav", 1);
    let pause = vec![0; RATE as usize / 2];
    // 42 dB below the other words.
    let quiet = read_samples(&toy, "1.wav", 128);
    let samples = [pause.clone(), loud(), pause.clone(), quiet, pause, loud()].concat();
    write_wav(&toy.path("call.wav"), RATE, &samples);
    let expected = "middle high middle high low middle high middle";
    let run = |arguments: &[&str]| {
        let all = [&["transcribe", CHECKPOINT, "call.wav"][..], arguments].concat();
        run_command(panda(&folder, &all))
    };
    let (code, out, err) = run(&[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert_ne!(out, format!("call.wav: {expected}\n"), "the ordinary search loses no words");

    let covered = ["--coverage", "--coverage-gap", "0.15", "--coverage-tolerance", "0.15"];
    let (code, out, err) = run(&covered);
    assert_eq!((code, out), (Some(0), format!("call.wav: {expected}\n")), "{err}");
    assert!(err.starts_with("note: call.wav: the second search recovered "), "{err}");

    // Whole, and in chunks of a long recording.
    for long in [&[][..], &["--long", "1"]] {
        let (code, out, err) = run(&[&covered[..], &["--format", "json"], long].concat());
        assert_eq!(code, Some(0), "{err}");
        let line: Value = serde_json::from_str(&out).unwrap();
        let coverage = &line["coverage"];
        assert!(
            (coverage["duration"].as_f64().unwrap() - samples.len() as f64 / f64::from(RATE)).abs() < 1e-9
        );
        assert!(seconds_of(coverage, "words") > 0.1 && seconds_of(coverage, "silence") > 1.0, "{coverage}");
        assert_eq!(line["text"], expected, "{long:?}");
        assert!(seconds_of(coverage, "recovered") > 0.1, "{long:?} {coverage}");
        let words = line["words"].as_array().unwrap().iter();
        let recovered: Vec<&Value> =
            words.filter(|word| word["recovered"] == true).map(|word| &word["text"]).collect();
        let listed: Vec<&Value> =
            coverage["recovered"].as_array().unwrap().iter().map(|word| &word["text"]).collect();
        assert!(!listed.is_empty() && recovered == listed, "{line}");
    }
    let (_, out, _) = run(&[&covered[..], &["--format", "ctm"]].concat());
    let words: Vec<&str> = out.lines().map(|line| line.split(' ').nth(4).unwrap()).collect();
    assert_eq!(words.join(" "), expected);
    let (_, out, _) = run(&[&covered[..], &["--format", "srt", "--caption-width", "100"]].concat());
    let captions: Vec<&str> = out.lines().filter(|line| line.starts_with(char::is_alphabetic)).collect();
    assert_eq!(captions.join(" "), expected);
}

#[test]
fn remaining_gaps_are_notes_and_invalid_arguments_errors() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run =
        |arguments: &[&str]| run_command(panda(&folder, &[&["transcribe", CHECKPOINT], arguments].concat()));
    // The silence filter discards every word.
    let (code, out, err) = run(&["0.wav", "5.wav", "--coverage", "--coverage-gap", "0.15", "--silence", "1"]);
    assert_eq!((code, out.as_str()), (Some(0), "0.wav: \n5.wav: \n"));
    for name in ["0.wav", "5.wav"] {
        assert!(err.contains(&format!("note: {name}: no words from 0.")), "{err}");
    }
    assert!(
        err.contains(" dB over the noise floor, label posterior 0.") && !err.contains("too short"),
        "{err}"
    );
    let (_, _, err) = run(&["0.wav", "--coverage", "--coverage-gap", "9", "--silence", "1"]);
    assert!(err.contains(", too short to search again\n"), "{err}");
    for (arguments, part) in [
        (
            &["0.wav", "--coverage", "--stream"][..],
            "--coverage: expected whole recordings, found streaming audio",
        ),
        (&["-", "--coverage"], "--coverage: expected whole recordings, found streaming audio"),
        (&["0.wav", "--coverage-tolerance", "1"], "--coverage-tolerance: expected --coverage, found none"),
        (&["0.wav", "--coverage-gap", "1"], "--coverage-gap: expected --coverage, found none"),
        (&["0.wav", "--coverage", "--coverage-gap", "-1"], "expected a number of seconds from 0 to 3600"),
        (&["0.wav", "--coverage", "--coverage-gap", "NaN"], "expected a number of seconds from 0 to 3600"),
    ] {
        let (code, out, err) = run(arguments);
        assert!(code == Some(2) && out.is_empty() && err.contains(part), "{arguments:?}: {code:?} {err}");
    }
}
