//! Tests of `panda` on recordings: channels, sample rates, silence.
use std::path::Path;

use super::align::{CHECKPOINT, trained_corpus};
use super::toy::{RATE, Toy, write_wav};
use super::{panda, run_command};

/// Returns the samples of a file of the toy corpus.
fn read_samples(toy: &Toy, name: &str) -> Vec<i16> {
    hound::WavReader::open(toy.path(name)).unwrap().into_samples().map(|sample| sample.unwrap()).collect()
}

/// Writes a WAV file of two channels.
fn write_stereo(path: &Path, left: &[i16], right: &[i16]) {
    let spec = hound::WavSpec {
        channels: 2,
        sample_rate: RATE,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(path, spec).unwrap();
    left.iter().zip(right).for_each(|(&l, &r)| [l, r].iter().for_each(|&x| writer.write_sample(x).unwrap()));
    writer.finalize().unwrap();
}

#[test]
fn unfitting_audio_is_converted_or_an_error() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let run = |arguments: &[&str]| run_command(panda(&folder, arguments));
    let (left, right) = (read_samples(&toy, "2.wav"), read_samples(&toy, "5.wav"));
    let length = left.len().min(right.len());
    write_stereo(&toy.path("both.wav"), &left[..length], &right[..length]);
    let louder: Vec<i16> = left.iter().map(|x| 2 * x).collect();
    write_stereo(&toy.path("left.wav"), &louder, &vec![0; left.len()]);
    // Double the rate by linear interpolation.
    let next = left.iter().skip(1).chain(left.last());
    let upsampled: Vec<i16> =
        left.iter().zip(next).flat_map(|(&a, &b)| [a, ((i32::from(a) + i32::from(b)) / 2) as i16]).collect();
    write_wav(&toy.path("fast.wav"), 2 * RATE, &upsampled);

    // Channels.
    let (code, out, err) = run(&["transcribe", CHECKPOINT, "2.wav", "left.wav"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(out, "2.wav: middle high middle\nleft.wav: middle high middle\n");
    assert_eq!(err, "note: left.wav: 2 channels mixed down to one\n");
    let (code, out, err) = run(&["transcribe", CHECKPOINT, "--channel", "1", "both.wav"]);
    assert_eq!((code, out.as_str()), (Some(0), "both.wav: middle high middle\n"), "{err}");
    assert_eq!(err, "note: both.wav: channel 1 of 2 selected\n");
    let (code, _, err) = run(&["transcribe", CHECKPOINT, "--channel", "3", "both.wav"]);
    assert!(code == Some(2) && err.contains("both.wav: expected a file with a channel 3"), "{err}");
    let (code, _, err) = run(&["transcribe", CHECKPOINT, "--channel", "0", "both.wav"]);
    assert!(code == Some(2) && err.contains("--channel"), "{err}");

    // Sample rates.
    let (code, out, err) = run(&["transcribe", CHECKPOINT, "fast.wav"]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert_eq!(err, "error: fast.wav: expected audio at 8000 Hz, found 16000 Hz; --resample converts it\n");
    let (code, out, err) = run(&["transcribe", CHECKPOINT, "fast.wav", "--resample"]);
    assert_eq!((code, out.as_str()), (Some(0), "fast.wav: middle high middle\n"), "{err}");
    assert_eq!(err, "note: fast.wav: resampled from 16000 to 8000 Hz\n");

    // Manifests: one note per kind of conversion; a byte order mark is ignored.
    let line = |id: &str, file: &str| {
        format!(
            "{{\"id\": \"{id}\", \"file\": \"{file}\", \"text\": \"middle high middle\", \"seconds\": 0.89}}\n"
        )
    };
    let lines =
        format!("\u{feff}{}{}{}", line("a b", "fast.wav"), line("a_b", "left.wav"), line("", "fast.wav"));
    toy.write("list.jsonl", &lines);
    for command in ["evaluate", "align"] {
        let (code, _, err) = run(&[command, CHECKPOINT, "list.jsonl"]);
        let parts = ["a b: expected 8000 Hz, found 16000 Hz in fast.wav", "; --resample converts it"];
        assert!(code == Some(2) && parts.iter().all(|part| err.contains(part)), "{command}: {err}");
        let (code, out, err) = run(&[command, CHECKPOINT, "list.jsonl", "--resample"]);
        assert_eq!(code, Some(0), "{command}: {err}");
        let notes = "note: 2 channels mixed down to one: 1 recording\nnote: resampled from 16000 to 8000 Hz: 2 recordings\n";
        assert_eq!(err, notes, "{command}");
        if command == "evaluate" {
            assert!(out.contains("WER   0.00 %") && out.contains("of 9 words in 3"), "{out}");
        } else {
            let ids: Vec<&str> = out.lines().map(|line| line.split(' ').next().unwrap()).collect();
            assert_eq!(ids, ["a_b~2", "a_b~2", "a_b~2", "a_b", "a_b", "a_b", "_", "_", "_"], "{out}");
        }
    }

    // Errors of invalid samples name utterance and file in all commands.
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: RATE,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let mut writer = hound::WavWriter::create(toy.path("bad.wav"), spec).unwrap();
    [0.5f32, f32::NAN].iter().for_each(|&x| writer.write_sample(x).unwrap());
    writer.finalize().unwrap();
    toy.write("list.jsonl", &line("worse", "bad.wav"));
    for command in ["evaluate", "align"] {
        let (code, _, err) = run(&[command, CHECKPOINT, "list.jsonl"]);
        let parts = ["worse: bad.wav", "found NaN at sample 1"];
        assert!(code == Some(2) && parts.iter().all(|part| err.contains(part)), "{command}: {err}");
    }
}

#[test]
fn silence_has_an_empty_transcript() {
    let toy = trained_corpus();
    let folder = toy.path("");
    let files = ["second.wav", "long.wav", "sample.wav"];
    for (file, samples) in files.iter().zip([vec![0; 8000], vec![0; 80_000], vec![1234]]) {
        write_wav(&toy.path(file), RATE, &samples);
    }
    let line = |file: &str| {
        format!("{{\"id\": \"{file}\", \"file\": \"{file}\", \"text\": \"\", \"seconds\": 10}}\n")
    };
    toy.write("silent.jsonl", &files.map(line).concat());
    let transcribe = |more: &[&str]| {
        let (code, out, err) =
            run_command(panda(&folder, &[&["transcribe", CHECKPOINT][..], &files, more].concat()));
        assert_eq!(code, Some(0), "{err}");
        (out, err)
    };
    let (out, _) = transcribe(&[]);
    assert_eq!(out, "second.wav: \nlong.wav: \nsample.wav: \n");
    let evaluate = |more: &[&str]| {
        let (code, out, err) =
            run_command(panda(&folder, &[&["evaluate", CHECKPOINT, "silent.jsonl"], more].concat()));
        assert_eq!(code, Some(0), "{err}");
        out
    };
    assert!(evaluate(&[]).contains("WER   0.00 %"));
    // Without the filter the model emits words; otherwise this test would be void.
    let (out, err) = transcribe(&["--silence", "0"]);
    assert!(["low", "middle", "high"].iter().any(|word| out.contains(word)), "{out}");
    assert_eq!(err, "");
    let (_, err) = transcribe(&[]);
    assert!(err.contains("text was discarded as silence; --silence 0 keeps it"), "{err}");
    assert!(evaluate(&["--silence", "0"]).contains(" of 0 words in 3 utterances"));
    // Speech is still recognized.
    let (_, out, _) = run_command(panda(&folder, &["transcribe", CHECKPOINT, "0.wav", "5.wav"]));
    assert_eq!(out, "0.wav: low\n5.wav: high middle low low\n");
    for value in ["-0.1", "1.5", "NaN"] {
        let argument = format!("--silence={value}");
        let (code, _, err) = run_command(panda(&folder, &["transcribe", CHECKPOINT, "0.wav", &argument]));
        assert!(code == Some(2) && err.contains("silence: expected a posterior from 0 to 1"), "{err}");
    }
}

#[test]
fn bpe_without_a_size_is_an_error() {
    let toy = Toy::new();
    toy.recipe(&[("kind = \"words\"", "kind = \"bpe\"")]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["info", "recipe.toml"]));
    assert_eq!(code, Some(2));
    assert!(err.contains("kind `bpe` requires `size`") && err.contains("{ bpe = { size = 500 } }"), "{err}");
}

#[test]
fn training_resamples_with_features_resample() {
    let toy = Toy::new();
    toy.recipe(&[("sample_rate = 8000", "sample_rate = 4000"), ("epochs = 3", "epochs = 1")]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "run"]));
    assert!(code == Some(2) && err.contains("toy-0: expected 4000 Hz, found 8000 Hz"), "{err}");
    toy.recipe(&[
        ("sample_rate = 8000", "sample_rate = 4000\nresample = true"),
        ("epochs = 3", "epochs = 1"),
    ]);
    let (code, _, err) = run_command(panda(&toy.path(""), &["train", "recipe.toml", "--run", "run"]));
    assert_eq!(code, Some(0), "{err}");
    // The checkpoint contains the setting.
    let (code, _, err) = run_command(panda(&toy.path(""), &["transcribe", "run/last.safetensors", "0.wav"]));
    assert!(code == Some(0) && err.starts_with("note: 0.wav: resampled from 8000 to 4000 Hz\n"), "{err}");
}
