//! Tests of `read_audio` and `read_segment`: WAV and FLAC files, and damaged ones.

use std::fs;
use std::path::{Path, PathBuf};

use hound::{SampleFormat, WavSpec, WavWriter};
use proptest::prelude::*;
use speech::{Error, read_audio, read_segment};
use tempfile::{TempDir, tempdir};

use crate::common::digits;

fn spec(channels: u16, bits_per_sample: u16, sample_format: SampleFormat) -> WavSpec {
    WavSpec { channels, sample_rate: 8000, bits_per_sample, sample_format }
}

/// Writes `a.wav`.
fn write_wav<S: hound::Sample + Copy>(folder: &TempDir, spec: WavSpec, samples: &[S]) -> PathBuf {
    let path = folder.path().join("a.wav");
    let mut writer = WavWriter::create(&path, spec).unwrap();
    samples.iter().for_each(|&s| writer.write_sample(s).unwrap());
    writer.finalize().unwrap();
    path
}

/// Writes a changed copy of a FLAC file of the repository.
fn write_flac(folder: &TempDir, change: impl Fn(&mut Vec<u8>)) -> PathBuf {
    let mut bytes = fs::read(digits("audio/dev/digits-dev-0000.flac")).unwrap();
    change(&mut bytes);
    let path = folder.path().join("a.flac");
    fs::write(&path, bytes).unwrap();
    path
}

/// Checks that an error names the file.
fn check_names_file(error: &Error, path: &Path) {
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[test]
fn every_wav_sample_width_has_the_same_amplitudes() {
    let folder = tempdir().unwrap();
    for bits in [8u16, 16, 24, 32] {
        let half = 1i32 << (bits - 2);
        let path =
            write_wav(&folder, spec(1, bits, SampleFormat::Int), &[0, half, -half, -half - (half - 1) - 1]);
        let audio = read_audio(&path).unwrap();
        assert_eq!((audio.samples, audio.sample_rate), (vec![0.0, 0.5, -0.5, -1.0], 8000), "{bits} bits");
    }
    let path = write_wav(&folder, spec(1, 32, SampleFormat::Float), &[0.25f32, -1.5]);
    assert_eq!(read_audio(&path).unwrap().samples, [0.25, -1.5]);
}

#[test]
fn checksum_is_that_of_the_16_bit_samples() {
    let folder = tempdir().unwrap();
    let samples: Vec<i16> = (i16::MIN..=i16::MAX).collect();
    let audio = read_audio(&write_wav(&folder, spec(1, 16, SampleFormat::Int), &samples)).unwrap();
    let bytes: Vec<u8> = samples.iter().flat_map(|s| s.to_le_bytes()).collect();
    assert_eq!(audio.crc32(), crc32fast::hash(&bytes));
}

#[test]
fn chunks_before_the_data_are_skipped() {
    let folder = tempdir().unwrap();
    let path = write_wav(&folder, spec(1, 16, SampleFormat::Int), &[1i16, 2, 3]);
    let mut bytes = fs::read(&path).unwrap();
    let data = bytes.windows(4).position(|w| w == b"data").unwrap();
    bytes.splice(data..data, *b"LIST\x06\0\0\0INFOxy");
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read_audio(&path).unwrap().samples, [1, 2, 3].map(|i| i as f32 / 32768.0));
}

#[test]
fn the_error_names_a_missing_file() {
    let path = Path::new("no/such/file.wav");
    let error = read_audio(path).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error}");
    check_names_file(&error, path);
    assert!(matches!(read_segment(path, 0, 1), Err(Error::Io { .. })));
}

#[test]
fn several_channels_are_refused() {
    let folder = tempdir().unwrap();
    let path = write_wav(&folder, spec(2, 16, SampleFormat::Int), &[1i16, 2]);
    let error = read_audio(&path).unwrap_err();
    assert!(matches!(error, Error::Channels { found: 2, .. }), "{error}");
    check_names_file(&error, &path);
    // STREAMINFO: 20 bits of sample rate, then three bits of channels - 1.
    let path = write_flac(&folder, |bytes| bytes[20] |= 1 << 1);
    assert!(matches!(read_audio(&path), Err(Error::Channels { found: 2, .. })));
}

#[test]
fn errors_for_truncated_files_report_the_lengths() {
    let folder = tempdir().unwrap();
    let path = write_wav(&folder, spec(1, 16, SampleFormat::Int), &[7i16; 100]);
    let bytes = fs::read(&path).unwrap();
    for cut in [1, 2, 51, 200] {
        fs::write(&path, &bytes[..bytes.len() - cut]).unwrap();
        let error = read_audio(&path).unwrap_err();
        let remaining = (200 - cut as u64) / 2;
        assert!(
            matches!(error, Error::Truncated { expected: 100, found, .. } if found == remaining),
            "{error}"
        );
        assert!(error.to_string().contains("its WAV header"), "{error}");
        check_names_file(&error, &path);
    }
    let expected_samples = read_audio(&write_flac(&folder, |_| {})).unwrap().samples.len() as u64;
    for cut in [1, 10, 3000] {
        let path = write_flac(&folder, |bytes| bytes.truncate(bytes.len() - cut));
        let error = read_audio(&path).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { expected, found, .. } if expected == expected_samples && found < expected_samples),
            "{error}"
        );
        assert!(error.to_string().contains("its FLAC header"), "{error}");
        check_names_file(&error, &path);
    }
}

#[test]
fn damaged_files_are_format_errors() {
    let folder = tempdir().unwrap();
    let changes: [fn(&mut Vec<u8>); 6] = [
        |bytes| bytes[0] = b'g',
        |bytes| bytes.truncate(20),
        Vec::clear,
        // A header that declares fewer samples than the file contains.
        |bytes| bytes[25] -= 1,
        |bytes| bytes.truncate(3),
        // A flipped bit in the samples: FLAC has checksums.
        |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        },
    ];
    for change in changes {
        let path = write_flac(&folder, change);
        let error = read_audio(&path).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        check_names_file(&error, &path);
    }
    let path = folder.path().join("b.wav");
    fs::write(&path, b"RIFF\x04\0\0\0WAVE").unwrap();
    assert!(matches!(read_audio(&path), Err(Error::Format { .. })));
}

#[test]
fn files_without_samples_are_errors() {
    let folder = tempdir().unwrap();
    let path = write_wav::<i16>(&folder, spec(1, 16, SampleFormat::Int), &[]);
    let error = read_audio(&path).unwrap_err();
    assert!(matches!(error, Error::EmptyAudio { .. }), "{error}");
    check_names_file(&error, &path);
    // STREAMINFO only (marked as the last block), with a length of 0 for unknown.
    let path = write_flac(&folder, |bytes| {
        bytes.truncate(42);
        bytes[4] |= 0x80;
        bytes[21] &= 0xf0;
        bytes[22..26].fill(0);
    });
    assert!(matches!(read_audio(&path), Err(Error::EmptyAudio { .. })));
}

#[test]
fn segments_are_read_from_a_file_that_can_change() {
    let folder = tempdir().unwrap();
    let path = write_wav(&folder, spec(1, 16, SampleFormat::Int), &[0i16, 1, 2, 3]);
    let value = |i: i16| f32::from(i) / 32768.0;
    assert_eq!(read_segment(&path, 1, 2).unwrap().samples, [1, 2].map(value));
    for (start, count) in [(0, 5), (4, 1), (2, 0), (u64::MAX, 2)] {
        let error = read_segment(&path, start, count).unwrap_err();
        assert!(matches!(error, Error::Segment { found: 4, .. }), "{error}");
        assert!(!error.to_string().contains("1844674407370"), "{error}");
        check_names_file(&error, &path);
    }
    write_wav(&folder, spec(1, 16, SampleFormat::Int), &[9i16, 8]);
    assert_eq!(read_segment(&path, 0, 2).unwrap().samples, [9, 8].map(value));
}

proptest! {
    #[test]
    fn damaged_files_never_panic(position in 0usize..2000, value: u8, is_flac: bool) {
        let folder = tempdir().unwrap();
        let path = if is_flac {
            write_flac(&folder, |bytes| bytes[position] = value)
        } else {
            let path = write_wav(&folder, spec(1, 16, SampleFormat::Int), &[3i16; 978]);
            let mut bytes = fs::read(&path).unwrap();
            // Mostly in the header, where damage has the largest effect.
            let position = if position < 1500 { position % 44 } else { position };
            bytes[position] = value;
            fs::write(&path, bytes).unwrap();
            path
        };
        match read_audio(&path) {
            Ok(audio) => prop_assert!(!audio.samples.is_empty()),
            Err(error) => check_names_file(&error, &path),
        }
    }
}

#[test]
fn flac_is_decoded_only_to_the_length_in_its_header() {
    let folder = tempdir().unwrap();
    let mut bytes = crate::flac_bytes::flac(16_000, &[1; 20_000], true);
    // The lower 32 of the 36 bits of its number of samples.
    bytes[22..26].copy_from_slice(&10u32.to_be_bytes());
    let path = folder.path().join("a.flac");
    fs::write(&path, bytes).unwrap();
    let error = read_audio(&path).unwrap_err().to_string();
    assert!(error.contains("at least 4096 instead of 10"), "{error}");
}
