//! Fuzz tests: the parsers of audio, manifests and tokenizers read damaged files.
//!
//! The result must be a value or an error that names the file, without a panic or a hang.
//! `tests/memory` of the workspace tests the memory of the same parsers.

use std::fs;
use std::path::Path;

use speech::TokenizerKind::{Bpe, Characters, InnerCharacters, Unigram, Words};
use speech::{
    AudioChunks, Channel, Conversion, PcmDecoder, Tokenizer, read_audio, read_audio_as, read_manifest,
};
use tempfile::tempdir;

use crate::common::digits;
use crate::mutants::{WAV_WORDS, fuzz, wav_files};

/// Reads a file with every function.
pub(crate) fn read_all_ways(path: &Path) {
    let name = path.to_str().unwrap();
    match read_audio(path) {
        Ok(audio) => assert!(!audio.samples.is_empty() && audio.samples.iter().all(|x| x.is_finite())),
        Err(error) => assert!(error.to_string().contains(name), "{error}"),
    }
    let conversion = Conversion { channel: Channel::Mix, resample: true };
    // A rate with large common divisors with most rates: transforms of a second are slow.
    let complete = read_audio_as(path, 8000, &conversion);
    match &complete {
        Ok((audio, _)) => assert!(audio.sample_rate == 8000 && audio.samples.iter().all(|x| x.is_finite())),
        Err(error) => assert!(error.to_string().contains(name), "{error}"),
    }
    let chunks = AudioChunks::open(path, 8000, &conversion).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match (complete, chunks) {
        (Ok((audio, _)), Ok(chunks)) => assert!(audio.samples == chunks.concat()),
        (Err(error), Err(chunk_error)) => assert_eq!(error.to_string(), chunk_error.to_string()),
        (complete, chunks) => panic!("complete {:?}, in chunks {:?}", complete.err(), chunks.err()),
    }
}

/// Reads damaged copies of valid audio files.
pub(crate) fn fuzz_audio(
    target: &'static str,
    valid_files: Vec<Vec<u8>>,
    words: &'static [&'static [u8]],
    cases: u64,
) {
    let folder = tempdir().unwrap();
    let path = folder.path().join("mutant");
    for file in &valid_files {
        fs::write(&path, file).unwrap();
        read_audio_as(&path, 8000, &Conversion { channel: Channel::Mix, resample: true }).unwrap();
    }
    fuzz(target, valid_files, words, cases, move |bytes| {
        fs::write(&path, bytes).unwrap();
        read_all_ways(&path);
    });
}

#[test]
fn damaged_wav_files_are_errors_or_audio() {
    fuzz_audio("wav", wav_files(), WAV_WORDS, 3000);
}

#[test]
fn damaged_flac_files_are_errors_or_audio() {
    let valid_files = ["audio/dev/digits-dev-0000.flac", "audio/test/digits-test-0001.flac"];
    let valid_files = valid_files.map(|file| fs::read(digits(file)).unwrap()).to_vec();
    fuzz_audio("flac", valid_files, &[b"fLaC", b"\xff\xf8", b"\xff\xf9"], 1000);
}

#[test]
fn any_bytes_are_raw_audio() {
    let valid_files = vec![(0..100).collect(), vec![0, 128, 255, 127]];
    fuzz("raw-sound", valid_files, &[b"RIFF"], 1000, |bytes| {
        let (mut pcm, mut samples) = (PcmDecoder::default(), Vec::new());
        bytes.chunks(7).for_each(|chunk| pcm.push(chunk, &mut samples));
        assert_eq!(samples.len(), bytes.len() / 2);
        assert!(samples.iter().all(|x| (-1.0..1.0).contains(x)));
        assert_eq!(pcm.finish().is_err(), bytes.len() % 2 == 1);
    });
}

/// Valid lines of a manifest.
const MANIFEST_LINES: [&str; 4] = [
    r#"{"id": "x", "file": "a.wav", "num_samples": 200, "sample_rate": 8000, "seconds": 0.025, "text": "one", "subset": "s"}"#,
    r#"{"id": "y", "file": "a.wav", "offset_samples": 10, "num_samples": 20, "sample_rate": 8000, "text": "two", "crc32": "00000000"}"#,
    r#"{"audio_filepath": "a.wav", "duration": 0.01, "offset": 0.005, "text": "three"}"#,
    r#"{"id": "z", "recordings": ["r", "r"], "gaps_ms": [5], "lead_ms": 1, "tail_ms": 2, "seconds": 1.5, "text": "four"}"#,
];

#[test]
fn damaged_manifests_are_errors_or_utterances() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("list.jsonl");
    fs::write(folder.path().join("a.wav"), &wav_files()[0]).unwrap();
    let recording = r#"{"id": "r", "file": "a.wav", "offset_samples": 1, "num_samples": 9, "sample_rate": 8000, "text": "r"}"#;
    fs::write(folder.path().join("recordings.jsonl"), recording).unwrap();
    let valid_files =
        [MANIFEST_LINES.join("\n"), format!("\u{feff}{}\r\n\r\n{}", MANIFEST_LINES[2], MANIFEST_LINES[3])];
    let valid_files = valid_files.map(String::into_bytes).to_vec();
    let words: &[&[u8]] =
        &[b"\n", b"null", b"1e300", b"-1", b"\"offset\": 1e9,", b"\"gaps_ms\": [4294967295],", b"[", b"{"];
    fuzz("manifest", valid_files, words, 3000, move |bytes| {
        fs::write(&path, bytes).unwrap();
        match read_manifest(&path) {
            Ok(utterances) => {
                assert!(!utterances.is_empty());
                for utterance in utterances {
                    if let Err(error) = utterance.audio(8000) {
                        assert!(error.to_string().contains(&format!("`{}`", utterance.id)), "{error}");
                    }
                }
            }
            Err(error) => assert!(error.to_string().contains(folder.path().to_str().unwrap()), "{error}"),
        }
    });
}

#[test]
fn damaged_tokenizers_are_errors_or_encode() {
    let texts = ["the cat sat", "a cat's hat", "that bat"];
    let kinds =
        [Words, Characters, InnerCharacters, Bpe { size: 16 }, Bpe { size: 40 }, Unigram { size: 30 }];
    let valid_files =
        kinds.map(|kind| Tokenizer::train(kind, &texts).unwrap().to_json().unwrap().into_bytes()).to_vec();
    let words: &[&[u8]] =
        &[b"\xe2\x96\x81", b"\"\",", b"\"bpe\"", b"{\"bpe\":{\"size\":0}}", b"\"words\"", b"[]"];
    fuzz("tokenizer", valid_files, words, 3000, move |bytes| {
        match Tokenizer::from_json(&String::from_utf8_lossy(bytes)) {
            Ok(tokenizer) => {
                let all: Vec<u32> = (0..tokenizer.size() as u32).collect();
                tokenizer.decode(&all).unwrap();
                for text in ["the cat sat", "", "zoo \u{2581}"] {
                    if let Ok(ids) = tokenizer.encode(text) {
                        assert!(ids.iter().all(|&id| (id as usize) < tokenizer.size()));
                    }
                }
            }
            Err(error) => assert!(error.to_string().starts_with("tokenizer"), "{error}"),
        }
    });
}
