//! Tests of manifests: three kinds of lines, and their errors.

use std::fs;
use std::path::Path;

use hound::{SampleFormat, WavSpec, WavWriter};
use speech::{Error, Result, Utterance, read_manifest};
use tempfile::{TempDir, tempdir};

/// A folder with `pack.wav`: 1000 samples 0, 1, ..., 999 at 8 kHz.
fn create_folder() -> TempDir {
    let folder = tempdir().unwrap();
    let spec =
        WavSpec { channels: 1, sample_rate: 8000, bits_per_sample: 16, sample_format: SampleFormat::Int };
    let mut writer = WavWriter::create(folder.path().join("pack.wav"), spec).unwrap();
    (0..1000i16).for_each(|i| writer.write_sample(i).unwrap());
    writer.finalize().unwrap();
    let recordings = r#"{"id": "a", "file": "pack.wav", "offset_samples": 10, "num_samples": 2, "sample_rate": 8000, "text": "ay"}
{"id": "b", "file": "pack.wav", "offset_samples": 500, "num_samples": 3, "sample_rate": 8000, "text": "bee"}
"#;
    fs::write(folder.path().join("recordings.jsonl"), recordings).unwrap();
    folder
}

/// Writes and reads a manifest.
fn read_list(folder: &TempDir, lines: &str) -> Result<Vec<Utterance>> {
    let path = folder.path().join("list.jsonl");
    fs::write(&path, lines).unwrap();
    read_manifest(&path)
}

fn i16_samples(utterance: &Utterance) -> Vec<i16> {
    utterance.audio(8000).unwrap().samples.iter().map(|x| (x * 32768.0) as i16).collect()
}

#[test]
fn fields_of_this_format_are_read() {
    let folder = create_folder();
    let line = r#"{"id": "x", "file": "pack.wav", "num_samples": 1000, "sample_rate": 8000, "seconds": 0.125, "speaker": "s",
        "text": "one two", "split": "dev", "subset": "seen", "mood": {"un": "known"}}"#
        .replace('\n', " ");
    let list = read_list(&folder, &format!("\n{line}\n\n")).unwrap();
    let [utterance] = &list[..] else { panic!("one utterance") };
    assert_eq!((utterance.id.as_str(), utterance.text.as_str(), utterance.seconds), ("x", "one two", 0.125));
    assert_eq!(
        (utterance.speaker.as_deref(), utterance.split.as_deref(), utterance.subset.as_deref()),
        (Some("s"), Some("dev"), Some("seen"))
    );
    assert_eq!(i16_samples(utterance), (0..1000).collect::<Vec<i16>>());
}

#[test]
fn strings_are_joined_from_recordings_with_exact_silence() {
    let folder = create_folder();
    let line = r#"{"id": "s", "text": "ay bee ay", "recordings": ["a", "b", "a"], "gaps_ms": [0, 1], "lead_ms": 1, "tail_ms": 2,
        "sample_rate": 8000, "num_samples": 39}"#
        .replace('\n', " ");
    let list = read_list(&folder, &line).unwrap();
    let mut expected = vec![0; 8];
    expected.extend([10, 11, 500, 501, 502]);
    expected.extend([0; 8]);
    expected.extend([10, 11]);
    expected.extend([0; 16]);
    assert_eq!(i16_samples(&list[0]), expected);
    assert_eq!(list[0].seconds, 39.0 / 8000.0);
}

#[test]
fn fields_of_nemo_are_read() {
    let folder = create_folder();
    let list = read_list(
        &folder,
        r#"{"audio_filepath": "pack.wav", "duration": 0.125, "text": "one"}
{"audio_filepath": "pack.wav", "duration": 0.001, "offset": 0.01, "text": "two", "lang": "en"}
{"audio_filepath": "pack.wav", "duration": 0.06, "offset": 0.1, "text": "the end, rounded up"}
{"audio_filepath": "pack.wav", "duration": 0.2, "offset": 0.1, "id": "far", "text": "far over the end"}"#,
    )
    .unwrap();
    assert_eq!(list[0].id, "pack.wav");
    assert_eq!(list[1].id, "pack.wav@0.01");
    assert_eq!(i16_samples(&list[0]).len(), 1000);
    assert_eq!(i16_samples(&list[1]), (80..88).collect::<Vec<i16>>());
    assert_eq!(i16_samples(&list[2]), (800..1000).collect::<Vec<i16>>());
    let error = list[3].audio(8000).unwrap_err();
    let Error::Utterance { utterance, source } = error else { panic!("{error}") };
    assert_eq!(utterance, "far");
    assert!(matches!(*source, Error::Segment { start: 800, count: 1600, found: 1000, .. }), "{source}");
}

/// Reads a second line after a valid one and returns its error.
///
/// The error must contain the file and the line.
fn check_second_line(line: &str, is_expected: impl Fn(&Error) -> bool) -> String {
    let folder = create_folder();
    let first = r#"{"id": "first", "file": "pack.wav", "text": "one", "seconds": 0.125}"#;
    let error = read_list(&folder, &format!("{first}\n{line}\n")).unwrap_err();
    let message = error.to_string();
    assert!(is_expected(&error), "{message}");
    assert!(message.contains("list.jsonl:2"), "{message}");
    message
}

#[test]
fn errors_for_invalid_json_name_the_line() {
    let syntax = |e: &Error| matches!(e, Error::ManifestSyntax { line: 2, .. });
    check_second_line("{\"id\": ", syntax);
    check_second_line("[1, 2]", syntax);
    check_second_line(r#"{"id": true}"#, syntax);
    check_second_line(r#"{"id": "x", "num_samples": -1}"#, syntax);
}

#[test]
fn missing_fields_are_reported() {
    let cases = [
        ("id", r#"{"file": "pack.wav", "text": "one", "seconds": 1}"#),
        ("file", r#"{"id": "x", "text": "one", "seconds": 1}"#),
        ("text", r#"{"id": "x", "file": "pack.wav", "seconds": 1}"#),
        ("seconds", r#"{"id": "x", "file": "pack.wav", "text": "one", "num_samples": 5}"#),
        (
            "num_samples",
            r#"{"id": "x", "file": "pack.wav", "text": "one", "seconds": 1, "offset_samples": 5}"#,
        ),
        ("duration", r#"{"audio_filepath": "pack.wav", "text": "one", "seconds": 1}"#),
        (
            "gaps_ms",
            r#"{"id": "x", "recordings": ["a"], "lead_ms": 0, "tail_ms": 0, "text": "one", "seconds": 1}"#,
        ),
        (
            "lead_ms",
            r#"{"id": "x", "recordings": ["a"], "gaps_ms": [], "tail_ms": 0, "text": "one", "seconds": 1}"#,
        ),
        (
            "tail_ms",
            r#"{"id": "x", "recordings": ["a"], "gaps_ms": [], "lead_ms": 0, "text": "one", "seconds": 1}"#,
        ),
    ];
    for (name, line) in cases {
        let message = check_second_line(
            line,
            |e| matches!(e, Error::ManifestField { field, line: 2, .. } if *field == name),
        );
        assert!(message.contains(&format!("`{name}`")), "{message}");
    }
}

#[test]
fn invalid_values_are_reported() {
    let rest = r#""id": "x", "text": "one""#;
    let cases = [
        ("seconds", r#""file": "pack.wav", "seconds": 0"#),
        ("num_samples", r#""file": "pack.wav", "num_samples": 0, "sample_rate": 8000"#),
        ("sample_rate", r#""file": "pack.wav", "num_samples": 5, "sample_rate": 0"#),
        ("duration", r#""audio_filepath": "pack.wav", "duration": -1"#),
        ("offset", r#""audio_filepath": "pack.wav", "duration": 1, "offset": -1"#),
        ("crc32", r#""file": "pack.wav", "seconds": 1, "crc32": "12345""#),
        ("crc32", r#""file": "pack.wav", "seconds": 1, "crc32": "+1234567""#),
        ("gaps_ms", r#""recordings": ["a", "b"], "gaps_ms": [], "lead_ms": 0, "tail_ms": 0, "seconds": 1"#),
        ("recordings", r#""recordings": [], "gaps_ms": [], "lead_ms": 0, "tail_ms": 0, "seconds": 1"#),
    ];
    for (name, fields) in cases {
        check_second_line(
            &format!("{{{rest}, {fields}}}"),
            |e| matches!(e, Error::ManifestValue { field, line: 2, .. } if *field == name),
        );
    }
}

#[test]
fn unknown_recordings_and_duplicate_ids_are_errors() {
    let string = r#"{"id": "x", "recordings": ["a", "c"], "gaps_ms": [5], "lead_ms": 0, "tail_ms": 0, "text": "one", "seconds": 1}"#;
    let message = check_second_line(string, |e| matches!(e, Error::UnknownRecording { id, .. } if id == "c"));
    assert!(message.contains("recordings.jsonl"), "{message}");
    let again = r#"{"id": "first", "file": "pack.wav", "text": "one", "seconds": 1}"#;
    check_second_line(again, |e| matches!(e, Error::DuplicateId { id, first: 1, .. } if id == "first"));
}

#[test]
fn empty_and_missing_manifests_are_errors() {
    let folder = create_folder();
    assert!(matches!(read_list(&folder, " \n\n"), Err(Error::EmptyManifest { .. })));
    assert!(matches!(read_manifest(Path::new("no/such.jsonl")), Err(Error::Io { .. })));
    fs::remove_file(folder.path().join("recordings.jsonl")).unwrap();
    let string = r#"{"id": "x", "recordings": ["a"], "gaps_ms": [], "lead_ms": 0, "tail_ms": 0, "text": "one", "seconds": 1}"#;
    let error = read_list(&folder, string).unwrap_err();
    assert!(matches!(error, Error::Io { .. }) && error.to_string().contains("recordings.jsonl"), "{error}");
}

#[test]
fn audio_is_checked_against_the_manifest() {
    let folder = create_folder();
    let line =
        |fields: &str| format!(r#"{{"id": "x", "file": "pack.wav", "text": "one", "seconds": 1, {fields}}}"#);
    let utterance = |fields: &str| read_list(&folder, &line(fields)).unwrap().remove(0);

    let error = utterance(r#""split": "dev""#).audio(16_000).unwrap_err();
    assert!(matches!(error, Error::SampleRate { expected: 16_000, found: 8000, .. }), "{error}");
    assert!(error.to_string().contains("`x`") && error.to_string().contains("pack.wav"), "{error}");
    let error = utterance(r#""sample_rate": 16000"#).audio(8000).unwrap_err();
    assert!(matches!(error, Error::SampleRate { expected: 8000, found: 16_000, .. }), "{error}");
    // The manifest agrees with the request, but the file does not.
    let error = utterance(r#""sample_rate": 16000"#).audio(16_000).unwrap_err();
    assert!(matches!(error, Error::SampleRate { expected: 16_000, found: 8000, .. }), "{error}");

    let error = utterance(r#""num_samples": 999"#).audio(8000).unwrap_err();
    assert!(matches!(error, Error::Length { expected: 999, found: 1000, .. }), "{error}");

    let correct = utterance(r#""split": "dev""#).audio(8000).unwrap().crc32();
    assert!(utterance(&format!(r#""crc32": "{correct:08x}""#)).audio(8000).is_ok());
    let error = utterance(&format!(r#""crc32": "{:08x}""#, correct ^ 1)).audio(8000).unwrap_err();
    assert!(
        matches!(error, Error::Checksum { expected, found, .. } if expected == correct ^ 1 && found == correct),
        "{error}"
    );

    let missing = read_list(&folder, r#"{"id": "y", "file": "gone.wav", "text": "one", "seconds": 1}"#)
        .unwrap()
        .remove(0);
    let error = missing.audio(8000).unwrap_err();
    assert!(error.to_string().contains("`y`") && error.to_string().contains("gone.wav"), "{error}");
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let folder = create_folder();
    let list = read_list(
        &folder,
        "\u{feff}{\"id\": \"x\", \"file\": \"pack.wav\", \"text\": \"one\", \"seconds\": 1}\r\n",
    );
    assert_eq!(list.unwrap()[0].id, "x");
    // In the middle of the file it is an error.
    check_second_line("\u{feff}{}", |e| matches!(e, Error::ManifestSyntax { line: 2, .. }));
}

#[test]
fn numbers_out_of_range_are_refused_and_printed_briefly() {
    let rest = r#""id": "x", "text": "one""#;
    let string = r#""recordings": ["a", "b"], "seconds": 1"#;
    let cases = [
        ("seconds", r#""file": "pack.wav", "seconds": 1e300"#.to_owned()),
        ("seconds", r#""file": "pack.wav", "seconds": -1.23456789012345e-300"#.into()),
        ("duration", r#""audio_filepath": "pack.wav", "duration": 1e300"#.into()),
        ("duration", r#""audio_filepath": "pack.wav", "duration": -1, "seconds": 1, "offset": 0"#.into()),
        ("offset", r#""audio_filepath": "pack.wav", "duration": 1, "offset": 1e300"#.into()),
        ("num_samples", format!(r#""file": "pack.wav", "seconds": 1, "num_samples": {}"#, u64::MAX)),
        (
            "offset_samples",
            format!(r#""file": "pack.wav", "seconds": 1, "num_samples": 1, "offset_samples": {}"#, u64::MAX),
        ),
        // Silence that exceeds the memory of the machine.
        ("gaps_ms", format!(r#"{string}, "gaps_ms": [{}], "lead_ms": 0, "tail_ms": 0"#, u32::MAX)),
        ("gaps_ms", format!(r#"{string}, "gaps_ms": [0], "lead_ms": 3000000, "tail_ms": 600001"#)),
    ];
    for (name, fields) in cases {
        let message = check_second_line(
            &format!("{{{rest}, {fields}}}"),
            |e| matches!(e, Error::ManifestValue { field, line: 2, .. } if *field == name),
        );
        let number = message.rsplit("found ").next().unwrap().trim_end_matches(" ms");
        assert!(number.len() <= 12, "{message}");
    }
}

#[test]
fn numbers_are_allowed_as_names() {
    let folder = create_folder();
    let line = |id: &str, more: &str| {
        format!(r#"{{"id": {id}, "file": "pack.wav", "seconds": 1, "text": "a"{more}}}"#)
    };
    for (value, name) in [
        ("17", "17"),
        ("-3", "-3"),
        ("0", "0"),
        ("1034.50", "1034.50"),
        ("18446744073709551616", "18446744073709551616"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        (r#""a\u00e9 b""#, "a\u{e9} b"),
        (r#""017""#, "017"),
    ] {
        let list = read_list(
            &folder,
            &line(value, &format!(r#", "speaker": {value}, "subset": {value}, "split": {value}"#)),
        );
        let list = list.unwrap();
        assert_eq!(list[0].id, name);
        let names = [&list[0].speaker, &list[0].subset, &list[0].split].map(|name| name.as_deref());
        assert_eq!(names, [Some(name); 3]);
    }
    // Fields that are only for reports accept any value.
    for (value, name) in [("true", Some("true")), ("[1, \"b\"]", Some("[1, \"b\"]")), ("null", None)] {
        let list = read_list(&folder, &line("1", &format!(r#", "speaker": {value}"#))).unwrap();
        assert_eq!(list[0].speaker.as_deref(), name);
    }
    for value in ["true", "[1]", "{}"] {
        let error = read_list(&folder, &line(value, "")).unwrap_err().to_string();
        assert!(error.contains("list.jsonl:1") && error.contains("`id`") && error.contains(value), "{error}");
    }
    let error = read_list(&folder, &line("null", "")).unwrap_err();
    assert!(matches!(error, Error::ManifestField { field: "id", .. }), "{error}");
    // A number and a string of its digits are the same id.
    let twice = format!("{}\n{}", line("17", ""), line("\"17\"", ""));
    assert!(matches!(read_list(&folder, &twice), Err(Error::DuplicateId { .. })));
    // Ids of recordings can be numbers, too.
    let recordings = r#"{"id": 1, "file": "pack.wav", "offset_samples": 0, "num_samples": 2, "sample_rate": 8000, "text": ""}"#;
    fs::write(folder.path().join("recordings.jsonl"), recordings).unwrap();
    let string = r#"{"id": 5, "text": "a", "recordings": [1, "1"], "gaps_ms": [0], "lead_ms": 0, "tail_ms": 0, "sample_rate": 8000, "num_samples": 4}"#;
    assert_eq!(i16_samples(&read_list(&folder, string).unwrap()[0]), [0, 1, 0, 1]);
}
