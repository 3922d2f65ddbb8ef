//! Tests of reading unusual audio files: missing lengths, rare encodings, tags.

use std::f64::consts::TAU;
use std::fs;

use speech::{Error, read_audio, read_manifest};
use tempfile::tempdir;

use crate::common::digits;
use crate::flac_bytes::flac;
use crate::mutants::wav;

/// A `fmt ` chunk: one channel of 16 bits at 8 kHz.
const PCM_FORMAT: [u8; 16] = [1, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x80, 0x3e, 0, 0, 2, 0, 16, 0];

/// Reads the samples of a file of these bytes.
fn read_samples(name: &str, bytes: &[u8]) -> Vec<f32> {
    let folder = tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    read_audio(&path).unwrap().samples
}

#[test]
fn files_without_lengths_are_read_to_the_end() {
    let data: Vec<u8> = (0..2000i16).flat_map(i16::to_le_bytes).collect();
    for length in [0x7fff_ffff, 0x8000_0000, 0x7fff_ffdb, 0xffff_ffdb, 0xffff_ffff, 0x7fff_f000, 0xffff_ff00]
    {
        let bytes = wav(&[(b"fmt ", &PCM_FORMAT), (b"data", &data)], Some(length));
        assert_eq!(read_samples("a.wav", &bytes).len(), 2000, "{length:x}");
    }
}

/// Programs that write to a pipe store 0, -1, or almost 2 GiB.
#[test]
fn aiff_and_caf_of_unknown_length_are_read_to_the_end() {
    let data: Vec<u8> = (0..2000i16).flat_map(i16::to_be_bytes).collect();
    // 8000 Hz as an 80-bit float.
    let rate = [0x40, 0x0b, 0xfa, 0, 0, 0, 0, 0, 0, 0];
    for (length, frames) in
        [(0u32, 0u32), (0x7f00_0008, 0x3f80_0000), (u32::MAX, 0), (4008, 2000), (9000, 2000)]
    {
        let form_length = if length == 4008 { 4054 } else { length };
        let mut file = [&b"FORM"[..], &form_length.to_be_bytes(), b"AIFFCOMM\0\0\0\x12\0\x01"].concat();
        file.extend([&frames.to_be_bytes()[..], &[0, 16], &rate].concat());
        file.extend([&b"SSND"[..], &length.to_be_bytes(), &[0; 8], &data].concat());
        if length == 9000 {
            // The two lengths contradict each other.
            file[4..8].copy_from_slice(&4054u32.to_be_bytes());
        }
        let read = read_samples("a.aiff", &file);
        assert!(read.len() == 2000 && read[1999] == 1999.0 / 32768.0, "{length:x}");
    }
    for (length, junk) in [(-1i64, 0), (4004, 0), (4004, 1), (4004, 11)] {
        let mut file = b"caff\0\x01\0\0desc\0\0\0\0\0\0\0\x20".to_vec();
        file.extend([&8000f64.to_be_bytes()[..], b"lpcm", &[0; 4]].concat());
        file.extend([2u32, 1, 1, 16].map(u32::to_be_bytes).concat());
        file.extend([&b"data"[..], &length.to_be_bytes(), &[0; 4], &data, &vec![0; junk]].concat());
        let read = read_samples("a.caf", &file);
        assert!(read.len() == 2000 && read[1999] == 1999.0 / 32768.0, "{length:x}");
    }
}

/// A tone in the encodings of telephony, studios and long recordings.
#[test]
fn encodings_of_wav_have_their_values() {
    let tone: Vec<f64> = (0..1600).map(|n| 0.4 * (TAU * 500.0 * f64::from(n) / 8000.0).sin()).collect();
    let format = |tag: u16, bits: u16| {
        let bytes = bits / 8;
        let rate = 8000u32;
        let mut chunk = [tag.to_le_bytes(), 1u16.to_le_bytes()].concat();
        chunk.extend([rate.to_le_bytes(), (rate * u32::from(bytes)).to_le_bytes()].concat());
        chunk.extend([bytes.to_le_bytes(), bits.to_le_bytes()].concat());
        chunk
    };
    let doubles: Vec<u8> = tone.iter().flat_map(|x| x.to_le_bytes()).collect();
    let read = read_samples("a.wav", &wav(&[(b"fmt ", &format(3, 64)), (b"data", &doubles)], None));
    assert!(read.iter().zip(&tone).all(|(&x, &y)| x == y as f32));
    // Silence, and the largest value of either law.
    for (tag, codes, values) in [(7, [0xff, 0x80], [0.0, 32124.0]), (6, [0xd5, 0xaa], [8.0, 32256.0])] {
        let read = read_samples("a.wav", &wav(&[(b"fmt ", &format(tag, 8)), (b"data", &codes)], None));
        assert_eq!(read, values.map(|x: f32| x / 32768.0), "{tag}");
    }
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.wav");
    fs::write(&path, wav(&[(b"fmt ", &format(0x55, 0)), (b"data", &[0; 8])], None)).unwrap();
    let error = read_audio(&path).unwrap_err().to_string();
    assert!(error.contains("found format tag 0x0055 (MP3)") && error.contains("a.wav"), "{error}");
}

#[test]
fn tags_around_flac_are_skipped() {
    let plain = fs::read(digits("audio/dev/digits-dev-0000.flac")).unwrap();
    let expected = read_samples("a.flac", &plain);
    let front = [&b"ID3\x04\0\0\0\0\0\x05hello"[..], &plain].concat();
    let id3v1 = [&plain[..], b"TAG", &[b' '; 125]].concat();
    let ape = [&plain[..], b"APETAGEX\xd0\x07\0\0\x20\0\0\0\0\0\0\0\0\0\0\0", &[0; 8]].concat();
    let with_other_bytes = [&plain[..], b"other bytes"].concat();
    let all = [&front[..], b"TAG", &[0; 125]].concat();
    for bytes in [front, id3v1, ape, with_other_bytes, all] {
        assert_eq!(read_samples("a.flac", &bytes), expected);
    }
}

#[test]
fn files_are_decoded_only_to_the_length_in_the_manifest() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("list.jsonl");
    for known in [true, false] {
        fs::write(folder.path().join("a.flac"), flac(8000, &[1; 160_000], known)).unwrap();
        let line = r#"{"id": "x", "file": "a.flac", "sample_rate": 8000, "text": "t", "#;
        for length in [r#""num_samples": 8000}"#, r#""seconds": 1.0}"#] {
            fs::write(&path, format!("{line}{length}")).unwrap();
            let error = read_manifest(&path).unwrap()[0].audio(8000).unwrap_err();
            let Error::Utterance { utterance, source } = &error else { panic!("{error}") };
            let Error::TooLong { found, is_exact, .. } = **source else { panic!("{error}") };
            assert_eq!((utterance.as_str(), is_exact), ("x", known), "{error}");
            // The length in the header, or at most one block above the limit.
            assert!(if known { found == 20.0 } else { found < 8.0 }, "{error}");
        }
    }
}
