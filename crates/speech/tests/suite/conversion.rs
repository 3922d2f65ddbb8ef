//! Tests of audio conversion: channels, sample rates, and checks of files and utterances.

use std::f64::consts::TAU;
use std::fs;
use std::path::{Path, PathBuf};

use hound::{SampleFormat, WavSpec, WavWriter};
use speech::{
    Audio, AudioChange, Channel, Conversion, Error, read_audio, read_audio_as, read_manifest, resample,
};
use tempfile::{TempDir, tempdir};

use crate::common::digits;

/// Writes `a.wav`, with 16-bit integers or floats.
fn write_wav<S: hound::Sample + Copy>(
    folder: &TempDir,
    channels: u16,
    sample_rate: u32,
    samples: &[S],
) -> PathBuf {
    let path = folder.path().join("a.wav");
    let (bits_per_sample, sample_format) = match size_of::<S>() {
        2 => (16, SampleFormat::Int),
        _ => (32, SampleFormat::Float),
    };
    let spec = WavSpec { channels, sample_rate, bits_per_sample, sample_format };
    let mut writer = WavWriter::create(&path, spec).unwrap();
    samples.iter().for_each(|&s| writer.write_sample(s).unwrap());
    writer.finalize().unwrap();
    path
}

fn mix_and_resample() -> Conversion {
    Conversion { channel: Channel::Mix, resample: true }
}

fn check_message(path: &Path, error: &Error, part: &str) {
    let message = error.to_string();
    assert!(message.contains(path.to_str().unwrap()) && message.contains(part), "{message}");
}

#[test]
fn channels_are_mixed_or_selected() {
    let folder = tempdir().unwrap();
    let path = write_wav(&folder, 3, 8000, &[0.0f32, 0.25, 0.5, 0.75, -0.25, -0.5]);
    let read = |channel| read_audio_as(&path, 8000, &Conversion { channel, resample: false });
    let (audio, changes) = read(Channel::Mix).unwrap();
    assert_eq!((audio.samples, changes), (vec![0.25, 0.0], vec![AudioChange::Mixed { channels: 3 }]));
    for (number, samples) in [(1, [0.0, 0.75]), (2, [0.25, -0.25]), (3, [0.5, -0.5])] {
        let (audio, changes) = read(Channel::Number(number)).unwrap();
        assert_eq!(audio.samples, samples);
        assert_eq!(changes, [AudioChange::Selected { channel: number, channels: 3 }]);
        assert_eq!(changes[0].to_string(), format!("channel {number} of 3 selected"));
    }
    for number in [0, 4, u32::MAX] {
        let error = read(Channel::Number(number)).unwrap_err();
        assert!(matches!(error, Error::Channel { found: 3, .. }), "{error}");
        check_message(&path, &error, &format!("channel {number}, found 3 channels"));
    }
    assert!(matches!(read(Channel::Only), Err(Error::Channels { found: 3, .. })));
    // Audio in the expected format is not converted.
    let path = write_wav(&folder, 1, 8000, &[7i16]);
    for channel in [Channel::Mix, Channel::Only, Channel::Number(1)] {
        assert_eq!(read_audio_as(&path, 8000, &Conversion { channel, resample: true }).unwrap().1, []);
    }
    assert_eq!(["mix", "2"].map(|text| text.parse::<Channel>().unwrap()), [Channel::Mix, Channel::Number(2)]);
    assert!(["", "0", "-1", "left"].iter().all(|text| text.parse::<Channel>().is_err()));
}

#[test]
fn a_tone_keeps_its_samples_at_another_rate() {
    let tone = |rate: u32, seconds: f64| -> Vec<f32> {
        let count = (seconds * f64::from(rate)) as usize;
        (0..count).map(|n| (0.5 * (TAU * 440.0 * n as f64 / f64::from(rate)).sin()) as f32).collect()
    };
    for (from, to) in [(16_000, 8000), (8000, 16_000), (44_100, 16_000), (11_025, 8000), (8000, 48_000)] {
        let audio = Audio { samples: tone(from, 1.0), sample_rate: from };
        let resampled = resample(&audio, to).unwrap();
        assert_eq!((resampled.sample_rate, resampled.samples.len()), (to, to as usize));
        let edge = to as usize / 20;
        let difference = |(a, b): (&f32, &f32)| f64::from((a - b).abs());
        let expected = tone(to, 1.0);
        let inner = edge..to as usize - edge;
        let max_difference =
            resampled.samples[inner.clone()].iter().zip(&expected[inner]).map(difference).fold(0.0, f64::max);
        assert!(max_difference < 2e-3, "{from} to {to}: {max_difference}");
    }
    // Frequencies above half of the new rate are removed.
    let high: Vec<f32> = (0..16_000).map(|n| (TAU * 6000.0 / 16_000.0 * f64::from(n)).sin() as f32).collect();
    let resampled = resample(&Audio { samples: high, sample_rate: 16_000 }, 8000).unwrap();
    assert!(resampled.samples[400..7600].iter().all(|x| x.abs() < 1e-3));
    // One sample is enough, and lengths are rounded up.
    for (count, expected) in [(1, 1), (2, 1), (3, 2), (16_001, 8001)] {
        let audio = Audio { samples: vec![0.1; count], sample_rate: 16_000 };
        assert_eq!(resample(&audio, 8000).unwrap().samples.len(), expected);
    }
    let audio = |sample_rate, samples| Audio { samples, sample_rate };
    assert!(matches!(resample(&audio(u32::MAX, vec![0.0]), 8000), Err(Error::Setting { .. })));
    assert!(matches!(resample(&audio(8000, vec![0.0]), 999), Err(Error::Setting { .. })));
    assert!(matches!(resample(&audio(8000, vec![]), 16_000), Err(Error::EmptySignal)));
    assert!(matches!(resample(&audio(8000, vec![f32::NAN]), 16_000), Err(Error::NotFinite { .. })));
}

#[test]
fn rates_are_resampled_only_on_request() {
    let folder = tempdir().unwrap();
    let path = write_wav(&folder, 2, 16_000, &[100i16; 640]);
    let (audio, changes) = read_audio_as(&path, 8000, &mix_and_resample()).unwrap();
    assert_eq!((audio.sample_rate, audio.samples.len()), (8000, 160));
    assert_eq!(
        changes,
        [AudioChange::Mixed { channels: 2 }, AudioChange::Resampled { from: 16_000, to: 8000 }]
    );
    let error =
        read_audio_as(&path, 8000, &Conversion { channel: Channel::Mix, resample: false }).unwrap_err();
    assert!(matches!(error, Error::FileRate { expected: 8000, found: 16_000, .. }), "{error}");
    check_message(&path, &error, "expected audio at 8000 Hz, found 16000 Hz");
    // A header may contain a rate whose transform does not fit into memory.
    let path = write_wav(&folder, 1, 2_000_000_011, &[100i16; 10]);
    let error = read_audio_as(&path, 8000, &mix_and_resample()).unwrap_err();
    assert!(matches!(error, Error::Format { .. }), "{error}");
    check_message(&path, &error, "1000 to 768000");
}

#[test]
fn segments_are_resampled_to_the_rate_of_the_first() {
    let folder = tempdir().unwrap();
    write_wav(&folder, 1, 8000, &[100i16; 800]);
    fs::rename(folder.path().join("a.wav"), folder.path().join("b.wav")).unwrap();
    write_wav(&folder, 1, 16_000, &[200i16; 1600]);
    let path = folder.path().join("list.jsonl");
    let line = |name: &str, rate: u32| {
        format!(
            r#"{{"id": "{name}", "text": "t", "seconds": 0.1, "sample_rate": {rate}, "file": "{name}.wav"}}"#
        )
    };
    fs::write(&path, format!("{}\n{}", line("b", 8000), line("a", 16_000))).unwrap();
    let mut list = read_manifest(&path).unwrap();
    let second = list.pop().unwrap();
    let mut utterance = list.pop().unwrap();
    utterance.segments.extend(second.segments);
    utterance.sample_rate = None;
    let (audio, changes) = utterance.audio_as(8000, &mix_and_resample()).unwrap();
    assert_eq!((audio.sample_rate, audio.samples.len()), (8000, 1600));
    assert_eq!(changes, [AudioChange::Resampled { from: 16_000, to: 8000 }]);
    let level = |index: usize| (audio.samples[index] * 32_768.0).round();
    assert_eq!((level(400), level(1200)), (100.0, 200.0));
    // A sample count requires one rate.
    utterance.num_samples = Some(1600);
    assert!(matches!(
        utterance.audio_as(8000, &mix_and_resample()),
        Err(Error::SampleRate { expected: 8000, found: 16_000, .. })
    ));
    utterance.num_samples = None;
    assert!(matches!(utterance.audio(8000), Err(Error::SampleRate { .. })));
}

#[test]
fn utterances_are_checked_before_they_are_resampled() {
    let folder = tempdir().unwrap();
    write_wav(&folder, 1, 16_000, &(0..1600).collect::<Vec<i16>>());
    let utterance_of = |line: &str| {
        let path = folder.path().join("list.jsonl");
        fs::write(&path, format!(r#"{{"id": "x", "text": "t", "seconds": 0.1, {line}}}"#)).unwrap();
        read_manifest(&path).unwrap().remove(0)
    };
    let crc32 = utterance_of(r#""file": "a.wav""#).audio(16_000).unwrap().crc32();
    for fields in
        ["", r#", "sample_rate": 16000, "num_samples": 1600"#, &format!(r#", "crc32": "{crc32:08x}""#)]
    {
        let utterance = utterance_of(&format!(r#""file": "a.wav"{fields}"#));
        let (audio, changes) = utterance.audio_as(8000, &mix_and_resample()).unwrap();
        assert_eq!((audio.sample_rate, audio.samples.len()), (8000, 800));
        assert_eq!(changes, [AudioChange::Resampled { from: 16_000, to: 8000 }]);
        assert!(matches!(utterance.audio(8000), Err(Error::SampleRate { .. })));
    }
    // Segments and strings.
    let segment = utterance_of(r#""file": "a.wav", "offset_samples": 100, "num_samples": 200"#);
    assert_eq!(segment.audio_as(8000, &mix_and_resample()).unwrap().0.samples.len(), 100);
    let recording = r#"{"id": "r", "file": "a.wav", "offset_samples": 0, "num_samples": 160, "text": "r", "seconds": 0.01}"#;
    fs::write(folder.path().join("recordings.jsonl"), recording).unwrap();
    let string = utterance_of(r#""recordings": ["r", "r"], "gaps_ms": [10], "lead_ms": 10, "tail_ms": 0"#);
    assert_eq!(string.audio_as(8000, &mix_and_resample()).unwrap().0.samples.len(), 4 * 80);
    // A rate out of range is refused before hours of silence are created.
    let string = utterance_of(
        r#""recordings": ["r"], "gaps_ms": [], "lead_ms": 3000000, "tail_ms": 0, "sample_rate": 4000000000"#,
    );
    let message = string.audio_as(8000, &mix_and_resample()).unwrap_err().to_string();
    assert!(
        message.contains("`x`") && message.contains("1000 to 768000 Hz, found 4000000000 Hz"),
        "{message}"
    );
    // The file must have the rate of the manifest.
    let error = utterance_of(r#""file": "a.wav", "sample_rate": 11025"#)
        .audio_as(8000, &mix_and_resample())
        .unwrap_err();
    assert!(matches!(error, Error::SampleRate { expected: 11_025, found: 16_000, .. }), "{error}");
}

#[test]
fn every_audio_error_names_utterance_and_file() {
    let folder = tempdir().unwrap();
    write_wav(&folder, 2, 8000, &[1i16, 2, 3, 4]);
    fs::copy(folder.path().join("a.wav"), folder.path().join("stereo.wav")).unwrap();
    write_wav(&folder, 1, 8000, &[0.0f32, f32::NAN]);
    fs::copy(folder.path().join("a.wav"), folder.path().join("nan.wav")).unwrap();
    fs::write(folder.path().join("text.wav"), "text").unwrap();
    write_wav(&folder, 1, 8000, &[1i16, 2, 3, 4]);
    let cases = [
        ("stereo.wav", ""),
        ("nan.wav", ""),
        ("text.wav", ""),
        ("none.wav", ""),
        ("a.wav", r#", "num_samples": 5"#),
        ("a.wav", r#", "crc32": "00000000""#),
        ("a.wav", r#", "sample_rate": 16000"#),
        ("a.wav", r#", "offset_samples": 3, "num_samples": 5"#),
    ];
    for (file, fields) in cases {
        let line = format!(r#"{{"id": "utterance 1", "text": "t", "seconds": 1, "file": "{file}"{fields}}}"#);
        let path = folder.path().join("list.jsonl");
        fs::write(&path, line).unwrap();
        let error = read_manifest(&path).unwrap().remove(0).audio(8000).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("`utterance 1`") && message.contains(file), "{message}");
    }
}

#[test]
fn errors_for_invalid_samples_name_the_file() {
    let folder = tempdir().unwrap();
    for (bad, shown) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (-f32::INFINITY, "-inf"),
        (3e38, "3.0000e38"),
        (-1e10, "-10000000000"),
    ] {
        let path = write_wav(&folder, 1, 8000, &[0.5, 0.25, bad, 0.0]);
        let error = read_audio(&path).unwrap_err();
        check_message(&path, &error, &format!("found {shown} at sample 2"));
    }
    // Integers that are not scaled are loud but valid.
    let path = write_wav(&folder, 1, 8000, &[32767.0, -2_147_483_648.0f32]);
    assert_eq!(read_audio(&path).unwrap().samples, [32767.0, -2_147_483_648.0]);
}

#[test]
fn md5_of_flac_is_checked() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.flac");
    let good = fs::read(digits("audio/dev/digits-dev-0000.flac")).unwrap();
    // STREAMINFO ends with 16 bytes of MD5, at 26.
    assert_ne!(good[26..42], [0; 16]);
    let mut bytes = good.clone();
    bytes[30] ^= 4;
    fs::write(&path, &bytes).unwrap();
    let error = read_audio(&path).unwrap_err();
    assert!(matches!(error, Error::Md5 { .. }), "{error}");
    check_message(&path, &error, "MD5");
    // Zeros mean that the encoder did not compute an MD5.
    bytes[26..42].fill(0);
    fs::write(&path, &bytes).unwrap();
    assert_eq!(read_audio(&path).unwrap(), read_audio(&digits("audio/dev/digits-dev-0000.flac")).unwrap());
}

/// A FLAC file of one frame with verbatim channels.
///
/// Samples have 8, 16 or 24 bits.
fn flac_frame(channels: &[Vec<i32>], bits: u32, md5: [u8; 16]) -> Vec<u8> {
    let (count, length) = (channels.len() as u64, channels[0].len() as u64);
    let crc = |bytes: &[u8], polynomial: u32, width: u32| {
        bytes.iter().fold(0u32, |crc, &byte| {
            (0..8).fold(crc ^ (u32::from(byte) << (width - 8)), |crc, _| {
                let out = (crc >> (width - 1)) & 1;
                ((crc << 1) ^ (out * polynomial)) & ((1 << width) - 1)
            })
        })
    };
    let mut file = b"fLaC\x80\0\0\x22".to_vec();
    file.extend([(length as u16).to_be_bytes(), (length as u16).to_be_bytes()].concat());
    file.extend([0; 6]);
    // Rate, channels - 1, bits - 1 and number of samples in 20, 3, 5 and 36 bits.
    let packed = (8000 << 44) | ((count - 1) << 41) | (u64::from(bits - 1) << 36) | length;
    file.extend(packed.to_be_bytes());
    file.extend(md5);
    let depth_code = [1, 4, 6][bits as usize / 8 - 1];
    let mut frame = vec![0xff, 0xf8, 0x60, ((count as u8 - 1) << 4) | (depth_code << 1), 0, length as u8 - 1];
    frame.push(crc(&frame, 0x07, 8) as u8);
    for channel in channels {
        frame.push(2);
        frame.extend(channel.iter().flat_map(|x| x.to_be_bytes()[4 - bits as usize / 8..].to_vec()));
    }
    let checksum = crc(&frame, 0x8005, 16) as u16;
    frame.extend(checksum.to_be_bytes());
    [file, frame].concat()
}

#[test]
fn md5_is_computed_from_interleaved_channels() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.flac");
    let channels: Vec<Vec<i32>> = (0..2).map(|c| (0..20).map(|i| (i * 5 - 60) * (c + 1)).collect()).collect();
    for (bits, count) in [(8, 1), (8, 2), (16, 1), (16, 2), (24, 2)] {
        let channels = &channels[..count];
        let interleaved = (0..20).flat_map(|i| channels.iter().map(move |channel| channel[i]));
        let bytes: Vec<u8> =
            interleaved.flat_map(|x| x.to_le_bytes()[..bits as usize / 8].to_vec()).collect();
        let good = flac_frame(channels, bits, md5::compute(&bytes).0);
        fs::write(&path, &good).unwrap();
        let (audio, changes) = read_audio_as(&path, 8000, &mix_and_resample()).unwrap();
        let mean = |i: usize| channels.iter().map(|c| f64::from(c[i])).sum::<f64>() / count as f64;
        let expected: Vec<f32> = (0..20).map(|i| (mean(i) / f64::from(1 << (bits - 1))) as f32).collect();
        assert_eq!(audio.samples, expected, "{bits} bits, {count} channels");
        assert_eq!(changes.len(), count - 1);
        fs::write(&path, flac_frame(channels, bits, [1; 16])).unwrap();
        assert!(matches!(read_audio_as(&path, 8000, &mix_and_resample()), Err(Error::Md5 { .. })));
    }
}
