//! Fuzz tests: the parsers of audio, manifests and tokenizers read damaged files.
//!
//! The result must be a value or an error that names the file, without a panic or a hang.
//! `tests/memory` of the workspace tests the memory of the same parsers.

use std::fs;
use std::path::Path;

use base64::Engine;
use speech::TokenizerKind::{Bpe, Characters, HuggingFace, InnerCharacters, Unigram, Words};
use speech::{
    AudioChunks, Channel, Conversion, PcmDecoder, Tokenizer, read_audio, read_audio_as, read_manifest,
};
use tempfile::tempdir;

use crate::common::digits;
use crate::hugging_face::{bpe_json, unigram_json};
use crate::mutants::{WAV_WORDS, fuzz, wav_files};
use crate::sentencepiece_bytes::{BPE, CHAR, ModelBytes, NORMAL, UNIGRAM, UNUSED, USER_DEFINED};

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
        check_tokenizer(Tokenizer::from_json(&String::from_utf8_lossy(bytes)));
    });
}

/// Uses a tokenizer, if its file was valid.
fn check_tokenizer(tokenizer: speech::Result<Tokenizer>) {
    let tokenizer = match tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(error.to_string().starts_with("tokenizer"), "{error}"),
    };
    let all: Vec<u32> = (0..tokenizer.size() as u32).collect();
    let decoded = tokenizer.decode(&all);
    // A damaged regular expression can make the library fail later.
    assert!(decoded.is_ok() || tokenizer.kind() == HuggingFace);
    for text in ["the cat sat", "", "zoo \u{2581}", "<pad> \u{feff}ab\t\0cABÉ\u{1f642}", "  a<x>b  "] {
        tokenizer.without_special(&tokenizer.normalize(text));
        if let Ok(ids) = tokenizer.encode(text) {
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.size()));
            assert!(tokenizer.decode(&ids).is_ok() || tokenizer.kind() == HuggingFace);
        }
    }
}

/// Returns a charsmap with rules for three characters.
pub(crate) fn charsmap() -> Vec<u8> {
    let rules = [(b'A', "a"), (b'B', "bb"), (b'\t', " ")];
    let mut units = vec![1u32 << 31; 256 * (2 + rules.len())];
    // The children of the root are in block 1.
    units[0] = 256 << 10;
    let mut texts = String::new();
    for (block, (byte, replacement)) in (2u32..).zip(rules) {
        let node = 256 + u32::from(byte);
        units[node as usize] = u32::from(byte) | 1 << 8 | (node ^ (256 * block)) << 10;
        units[256 * block as usize] = 1 << 31 | texts.len() as u32;
        texts += replacement;
        texts.push('\0');
    }
    let array: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    [&(array.len() as u32).to_le_bytes()[..], &array, texts.as_bytes()].concat()
}

#[test]
fn damaged_sentencepiece_models_are_errors_or_encode() {
    let pieces = [
        ("\u{2581}", -1.5, NORMAL),
        ("a", -2.0, NORMAL),
        ("b", -2.5, NORMAL),
        ("ab", -3.0, NORMAL),
        ("\u{2581}a", -3.25, UNUSED),
        ("<x>", 0.0, USER_DEFINED),
    ];
    let models = [
        ModelBytes::new(UNIGRAM, &pieces),
        ModelBytes::new(BPE, &pieces),
        ModelBytes { charsmap: charsmap(), removes_extra_spaces: false, ..ModelBytes::new(CHAR, &pieces) },
        ModelBytes { charsmap: charsmap(), ..ModelBytes::new(BPE, &pieces).with_bytes() },
    ];
    let tokenizer = Tokenizer::from_sentencepiece(&models[2].to_bytes()).unwrap();
    assert_eq!(tokenizer.normalize("A\tB"), "a bb");
    let valid_files = models.iter().map(ModelBytes::to_bytes).collect();
    let words: &[&[u8]] = &[b"\xe2\x96\x81", b"\x0a\x00", b"\x1a\x02", b"<0x41>", b"\xff\xff\xff\xff\x0f"];
    fuzz("sentencepiece", valid_files, words, 2000, |bytes| {
        check_tokenizer(Tokenizer::from_sentencepiece(bytes));
    });
}

#[test]
fn damaged_hugging_face_tokenizers_are_errors_or_encode() {
    let blob = base64::prelude::BASE64_STANDARD.encode(charsmap());
    let charsmap = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{blob}"}}"#);
    let with_charsmap = unigram_json().replace(r#"{"type": "NFKC"}"#, &charsmap);
    let tokenizer = Tokenizer::from_huggingface(&with_charsmap).unwrap();
    assert_eq!(tokenizer.normalize("A\tB"), "a bb");
    let valid_files = vec![unigram_json().into_bytes(), bpe_json().into_bytes(), with_charsmap.into_bytes()];
    let words: &[&[u8]] = &[
        b"null",
        b"\"\"",
        b"[]",
        b"{}",
        b"-1",
        b"1e300",
        b"4294967295",
        b"true",
        b"{2,}",
        b"(a*)*",
        b"AAAA",
    ];
    fuzz("hugging-face", valid_files, words, 2000, |bytes| {
        check_tokenizer(Tokenizer::from_huggingface(&String::from_utf8_lossy(bytes)));
    });
}
