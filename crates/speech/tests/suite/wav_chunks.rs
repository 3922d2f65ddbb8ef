//! Tests of the chunks of WAV files: odd lengths, missing lengths, extra fields.

use std::fs;
use std::path::PathBuf;

use speech::{AudioChunks, Conversion, Error, read_audio};
use tempfile::{TempDir, tempdir};

use crate::mutants::wav;

/// A `fmt ` chunk: one channel of 16 bits at 8 kHz.
const PCM_FORMAT: [u8; 16] = [1, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x80, 0x3e, 0, 0, 2, 0, 16, 0];
/// Samples 1, 2, 3.
const THREE_SAMPLES: [u8; 6] = [1, 0, 2, 0, 3, 0];

fn write_file(folder: &TempDir, bytes: &[u8]) -> PathBuf {
    let path = folder.path().join("a.wav");
    fs::write(&path, bytes).unwrap();
    path
}

/// Reads the samples as integers.
fn read_samples(bytes: &[u8]) -> Vec<i32> {
    let audio = read_audio(&write_file(&tempdir().unwrap(), bytes)).unwrap();
    assert_eq!(audio.sample_rate, 8000);
    audio.samples.iter().map(|x| (x * 32768.0) as i32).collect()
}

#[test]
fn chunks_of_odd_length_are_padded() {
    for content in [&b"x"[..], b"xyz", b"", b"xy"] {
        let chunks: &[(&[u8; 4], &[u8])] = &[
            (b"LIST", content),
            (b"fmt ", &PCM_FORMAT),
            (b"id3 ", content),
            (b"data", &THREE_SAMPLES),
            (b"LIST", content),
        ];
        assert_eq!(read_samples(&wav(chunks, None)), [1, 2, 3], "{content:?}");
        // Files without the pad byte are read, too.
        let padded = wav(chunks, None);
        let position = padded.windows(4).position(|w| w == b"fmt ").unwrap();
        let mut bytes = padded.clone();
        if content.len() % 2 == 1 {
            bytes.remove(position - 1);
        }
        assert_eq!(read_samples(&bytes), [1, 2, 3], "{content:?}");
    }
    // Samples of eight bits: the data has an odd length.
    let format_of_8_bits = [1, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x40, 0x1f, 0, 0, 1, 0, 8, 0];
    assert_eq!(
        read_samples(&wav(&[(b"fmt ", &format_of_8_bits), (b"data", &[128, 129, 127])], None)),
        [0, 256, -256]
    );
}

#[test]
fn unused_fields_can_have_any_content() {
    for more in [&[0, 0][..], &[9, 9], &[4, 0, 1, 2, 3, 4], &[0; 24]] {
        let format = [&PCM_FORMAT[..], more].concat();
        assert_eq!(
            read_samples(&wav(&[(b"fmt ", &format), (b"data", &THREE_SAMPLES)], None)),
            [1, 2, 3],
            "{more:?}"
        );
    }
    let chunks: &[(&[u8; 4], &[u8])] =
        &[(b"fmt ", &PCM_FORMAT), (b"fact", &[3, 0, 0, 0, 7, 7]), (b"data", &THREE_SAMPLES)];
    assert_eq!(read_samples(&wav(chunks, None)), [1, 2, 3]);
}

#[test]
fn files_of_unknown_length_are_read_to_the_end() {
    for stored_length in [0, u32::MAX, 0x7fff_f000] {
        for more in [&[][..], b"LIST\x02\0\0\0ab"] {
            let mut bytes = wav(&[(b"fmt ", &PCM_FORMAT), (b"data", &THREE_SAMPLES)], Some(stored_length));
            // Chunks before the data are skipped.
            bytes.splice(12..12, more.iter().copied());
            assert_eq!(read_samples(&bytes), [1, 2, 3], "{stored_length}");
            // The RIFF length may be that of the header only.
            let riff = u32::try_from(bytes.len() - 8 - THREE_SAMPLES.len()).unwrap();
            bytes[4..8].copy_from_slice(&riff.to_le_bytes());
            assert_eq!(read_samples(&bytes), [1, 2, 3], "{stored_length}");
            // An incomplete sample is discarded.
            bytes.pop();
            assert_eq!(read_samples(&bytes), [1, 2], "{stored_length}");
        }
    }
    // Streams can be longer than 4 GiB.
    let folder = tempdir().unwrap();
    let long_stream = write_file(&folder, &wav(&[(b"fmt ", &PCM_FORMAT), (b"data", &[])], Some(u32::MAX)));
    fs::File::options().write(true).open(&long_stream).unwrap().set_len(5 << 30).unwrap();
    let mut chunks = AudioChunks::open(&long_stream, 8000, &Conversion::default()).unwrap();
    assert!(chunks.next().unwrap().unwrap().iter().all(|&x| x == 0.0));
    let empty = write_file(&folder, &wav(&[(b"fmt ", &PCM_FORMAT), (b"data", &[])], Some(u32::MAX)));
    assert!(matches!(read_audio(&empty), Err(Error::EmptyAudio { .. })));
    // A complete file without samples is not a stream, even with chunks after the data.
    let empty =
        write_file(&folder, &wav(&[(b"fmt ", &PCM_FORMAT), (b"data", &[]), (b"LIST", b"INFOabcd")], None));
    assert!(matches!(read_audio(&empty), Err(Error::EmptyAudio { .. })));
}

#[test]
fn invalid_headers_are_format_errors() {
    let folder = tempdir().unwrap();
    let complete = wav(&[(b"fmt ", &PCM_FORMAT), (b"data", &THREE_SAMPLES)], None);
    let with_early_chunk = wav(&[(b"LIST", b"ab"), (b"fmt ", &PCM_FORMAT), (b"data", &THREE_SAMPLES)], None);
    let mut too_long_chunk = with_early_chunk.clone();
    too_long_chunk[16..20].fill(0xff);
    let mut without_wave_tag = complete.clone();
    without_wave_tag[8] = b'A';
    let mut too_long_format = complete.clone();
    too_long_format[16..20].fill(0xff);
    let cases = [
        (too_long_chunk, "the end of the file before any sample"),
        (complete[..30].to_vec(), "the end of the file before any sample"),
        (wav(&[(b"fmt ", &PCM_FORMAT)], None), "the end of the file before any sample"),
        (wav(&[(b"data", &THREE_SAMPLES), (b"fmt ", &PCM_FORMAT)], None), "no `fmt ` before the data"),
        (without_wave_tag, "AAVE"),
        (too_long_format, "the end of the file"),
    ];
    for (bytes, part) in cases {
        let path = write_file(&folder, &bytes);
        let error = read_audio(&path).unwrap_err();
        assert!(matches!(error, Error::Format { .. }), "{error}");
        assert!(error.to_string().contains(part) && error.to_string().contains("a.wav"), "{error}");
    }
}

/// The 24 valid bits of 32 are the upper bits.
#[test]
fn samples_of_fewer_bits_than_their_container_keep_their_scale() {
    let mut format =
        vec![0xfe, 0xff, 1, 0, 0x40, 0x1f, 0, 0, 0, 0x7d, 0, 0, 4, 0, 32, 0, 22, 0, 24, 0, 4, 0, 0, 0];
    format.extend([1, 0, 0, 0, 0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71]);
    let data: Vec<u8> = [1i32, -2, 300].iter().flat_map(|x| (x << 16).to_le_bytes()).collect();
    assert_eq!(read_samples(&wav(&[(b"fmt ", &format), (b"data", &data)], None)), [1, -2, 300]);
}
