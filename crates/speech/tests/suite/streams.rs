//! Tests that streamed audio gives the same bits as complete audio.
//!
//! Streams of feature frames, stacked rows, resampled audio, raw PCM and chunks of files.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use proptest::prelude::*;
use speech::features::Framing;
use speech::{
    Audio, AudioChange, AudioChunks, Conversion, Error, FeatureConfig, FeatureStream, Features, FrontEnd,
    Normalization, PcmDecoder, PcmReader, Preset, ResampleStream, StackStream, read_audio, read_audio_as,
    resample,
};
use tempfile::tempdir;

use crate::common::digits;

fn config() -> FeatureConfig {
    FeatureConfig {
        sample_rate: 8000,
        mels: 12,
        normalize: Normalization::Running,
        floor_db: 90.0,
        ..FeatureConfig::default()
    }
}

/// Noise with a varying level and a silent middle.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let level =
        |i: usize| if (n / 3..n / 2).contains(&i) { 0.0 } else { 0.4 + 0.4 * (i as f32 * 0.003).sin() };
    (0..n).map(|i| level(i) * next()).collect()
}

/// Splits a signal at the given positions; chunks may be empty.
fn split_at_cuts<'a>(samples: &'a [f32], cuts: &[usize]) -> Vec<&'a [f32]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (samples.len() + 1)).collect();
    cuts.extend([0, samples.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|ends| &samples[ends[0]..ends[1]]).collect()
}

fn stream_features(front_end: &FrontEnd, samples: &[f32], cuts: &[usize]) -> Vec<f32> {
    let (mut stream, mut out) = (front_end.stream().unwrap(), Vec::new());
    for chunk in split_at_cuts(samples, cuts) {
        let before = out.len();
        let count = front_end.push(&mut stream, chunk, &mut out).unwrap();
        assert_eq!(out.len() - before, count * 12);
    }
    front_end.finish(&mut stream, &mut out).unwrap();
    assert_eq!(stream, front_end.stream().unwrap(), "a finished stream is a new one");
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn streamed_frames_equal_those_of_complete_audio(
        n in 1usize..6000,
        cuts in prop::collection::vec(0usize..6000, 0..12),
        // Hops shorter and longer than the window of 25 ms.
        hop_ms in prop::sample::select(vec![3.0f32, 10.0, 24.875, 25.0, 25.125, 25.25, 60.0]),
        seed in any::<u32>(),
    ) {
        let front_end = FrontEnd::new(&FeatureConfig { hop_ms, ..config() }).unwrap();
        let samples = noise(n, seed);
        let complete = front_end.log_mel(&Audio { samples: samples.clone(), sample_rate: 8000 }).unwrap();
        prop_assert!(complete.data.iter().all(|x| x.is_finite()));
        prop_assert_eq!(bits(&stream_features(&front_end, &samples, &cuts)), bits(&complete.data));
    }

    #[test]
    fn streamed_zero_padded_frames_equal_those_of_complete_audio(
        n in 0usize..6000,
        cuts in prop::collection::vec(0usize..6000, 0..12),
        hop_ms in prop::sample::select(vec![3.0f32, 10.0, 12.5, 12.625, 25.0, 25.25, 60.0]),
        normalize in prop::sample::select(vec![Normalization::None, Normalization::Running]),
        seed in any::<u32>(),
    ) {
        let log_guard = if normalize == Normalization::None { Preset::Nemo.config().log_guard } else { 0.0 };
        let config = FeatureConfig { hop_ms, normalize, log_guard, ..config() };
        let front_end =
            FrontEnd::new(&FeatureConfig { framing: Framing::ZeroPadded, ..config }).unwrap();
        let samples = noise(n, seed);
        let complete = match front_end.log_mel(&Audio { samples: samples.clone(), sample_rate: 8000 }) {
            Ok(features) => features.data,
            Err(error) => {
                prop_assert!(n == 0 || matches!(error, Error::ShortSignal { .. }), "{}", error);
                Vec::new()
            }
        };
        prop_assert_eq!(complete.len() / 12, n / front_end.hop());
        prop_assert_eq!(bits(&stream_features(&front_end, &samples, &cuts)), bits(&complete));
        // A frame is there with its last sample.
        let (mut stream, mut out) = (front_end.stream().unwrap(), Vec::new());
        front_end.push(&mut stream, &samples, &mut out).unwrap();
        let complete_frames = (n + front_end.window() / 2).checked_sub(front_end.window());
        let complete_frames = complete_frames.map_or(0, |n| n / front_end.hop() + 1).min(n / front_end.hop());
        prop_assert_eq!(out.len(), complete_frames * 12);
    }

    #[test]
    fn streamed_stacked_rows_equal_those_of_complete_audio(
        frames in 0usize..40,
        stack in 0usize..7,
        stride in 0usize..7,
        dim in 1usize..4,
        cuts in prop::collection::vec(0usize..41, 0..6),
    ) {
        let data: Vec<f32> = (0..frames * dim).map(|i| 1.0 + i as f32).collect();
        let (mut stream, mut rows) = (StackStream::new(stack, stride, dim), Vec::new());
        let fresh = stream.clone();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (frames + 1)).chain([0, frames]).collect();
        cuts.sort_unstable();
        for ends in cuts.windows(2) {
            stream.push(&data[ends[0] * dim..ends[1] * dim], &mut rows);
            prop_assert!(stream.is_compatible(&fresh));
        }
        stream.finish(&mut rows);
        prop_assert_eq!(&stream, &fresh);
        prop_assert_eq!(rows, Features { frames, dim, data }.stack(stack, stride).data);
    }

    #[test]
    fn streamed_resampling_equals_that_of_complete_audio(
        n in 1usize..5000,
        cuts in prop::collection::vec(0usize..5000, 0..8),
        rates in prop::sample::select(vec![(8000u32, 16_000u32), (44_100, 8000), (8000, 8000), (768_000, 1001), (1000, 44_100)]),
    ) {
        let samples = noise(n, 9);
        let complete = resample(&Audio { samples: samples.clone(), sample_rate: rates.0 }, rates.1).unwrap();
        let (mut stream, mut out) = (ResampleStream::new(rates.0, rates.1).unwrap(), Vec::new());
        for chunk in split_at_cuts(&samples, &cuts) {
            stream.push(chunk, &mut out).unwrap();
        }
        stream.finish(&mut out).unwrap();
        prop_assert_eq!(out.len(), (n * rates.1 as usize).div_ceil(rates.0 as usize));
        prop_assert_eq!(bits(&out), bits(&complete.samples));
    }

    #[test]
    fn raw_audio_does_not_depend_on_chunk_boundaries(
        bytes in prop::collection::vec(any::<u8>(), 0..60),
        cuts in prop::collection::vec(0usize..61, 0..8),
    ) {
        let expected: Vec<f32> =
            bytes.chunks_exact(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect();
        let (mut pcm, mut samples) = (PcmDecoder::default(), Vec::new());
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).chain([0, bytes.len()]).collect();
        cuts.sort_unstable();
        for ends in cuts.windows(2) {
            pcm.push(&bytes[ends[0]..ends[1]], &mut samples);
        }
        prop_assert_eq!(samples, expected);
        prop_assert_eq!(pcm.finish().is_ok(), bytes.len() % 2 == 0);
    }

    #[test]
    fn later_samples_do_not_change_earlier_frames(n in 400usize..4000, more in 1usize..2000) {
        let front_end = FrontEnd::new(&config()).unwrap();
        let samples = noise(n + more, 3);
        let features = |samples: &[f32]| {
            front_end.log_mel(&Audio { samples: samples.to_vec(), sample_rate: 8000 }).unwrap().data
        };
        let (prefix, complete) = (features(&samples[..n]), features(&samples));
        prop_assert_eq!(bits(&prefix), bits(&complete[..prefix.len()]));
    }
}

#[test]
fn running_normalization_equals_its_formula() {
    let samples = noise(8000, 1);
    let audio = Audio { samples, sample_rate: 8000 };
    let normalized = FrontEnd::new(&config()).unwrap().log_mel(&audio).unwrap();
    // Inverse computation: from features to the powers that produce them.
    let (hop, mean, deviation) = (0.01f64, -14.0f64, 3.5f64);
    let (n, decay) = (2.0 / hop, (-hop / 4.0f64).exp());
    for m in 0..normalized.dim {
        let (mut s, mut q, mut w) = (0.0, 0.0, 0.0);
        for t in 0..normalized.frames {
            let z = f64::from(normalized.frame(t)[m]);
            // z = (y - m) / √v, where m and v depend on y; solved by bisection, because z increases
            // with y.
            let value = |y: f64| {
                let (s, q, w) = (decay * s + y, decay * q + y * y, decay * w + 1.0);
                let m = s / (n + w);
                ((y - m) / ((n * deviation * deviation + q) / (n + w) - m * m).sqrt(), s, q, w)
            };
            let (mut low, mut high) = (-60.0, 60.0);
            for _ in 0..80 {
                let middle = (low + high) / 2.0;
                if value(middle).0 < z { low = middle } else { high = middle }
            }
            (_, s, q, w) = value(low);
            let x = low + mean;
            // Powers are between the floor and that of a sine with full amplitude.
            assert!((-20.8..0.0).contains(&x), "bin {m}, frame {t}: {x}");
            let silent = (34..48).contains(&t);
            assert_eq!(silent, (x + 9.0 * 10f64.ln()).abs() < 0.01, "bin {m}, frame {t}: {x}");
        }
    }
}

#[test]
fn a_stream_of_a_different_front_end_is_refused() {
    let front_end = FrontEnd::new(&config()).unwrap();
    let (mut stream, mut out) = (front_end.stream().unwrap(), Vec::new());
    front_end.push(&mut stream, &noise(700, 1), &mut out).unwrap();
    let good = serde_json::to_value(&stream).unwrap();
    assert_eq!(serde_json::from_value::<FeatureStream>(good.clone()).unwrap(), stream);
    let changes: [(&str, serde_json::Value); 7] = [
        ("/heard", 1_000_000.into()),
        ("/heard", u64::MAX.into()),
        ("/frames", 0.into()),
        ("/frames", u64::MAX.into()),
        ("/kept", vec![0.0; 3].into()),
        ("/running/sums", vec![0.0; 11].into()),
        ("/running/squares", vec![-1.0; 12].into()),
    ];
    for (pointer, value) in changes {
        let mut damaged = good.clone();
        *damaged.pointer_mut(pointer).unwrap() = value;
        let mut damaged: FeatureStream = serde_json::from_value(damaged).unwrap();
        let before = damaged.clone();
        let error = front_end.push(&mut damaged, &[0.0; 500], &mut out).unwrap_err();
        assert!(matches!(error, Error::Stream { .. }), "{pointer}: {error}");
        assert!(front_end.finish(&mut damaged, &mut out).is_err());
        assert_eq!(damaged, before);
    }
    let different = FrontEnd::new(&FeatureConfig { mels: 13, ..config() }).unwrap();
    assert!(matches!(different.push(&mut stream, &[], &mut out), Err(Error::Stream { .. })));
}

#[test]
fn invalid_samples_are_reported_and_change_nothing() {
    let front_end = FrontEnd::new(&config()).unwrap();
    let (mut stream, mut out) = (front_end.stream().unwrap(), Vec::new());
    front_end.push(&mut stream, &noise(700, 1), &mut out).unwrap();
    let (before, frames) = (stream.clone(), out.clone());
    for bad in [f32::NAN, f32::INFINITY, 3e9] {
        let error = front_end.push(&mut stream, &[0.0, 0.1, bad], &mut out).unwrap_err();
        assert!(matches!(error, Error::NotFinite { index: 702, .. }), "{error}");
        assert_eq!((&stream, &out), (&before, &frames));
    }
}

#[test]
fn normalization_by_utterance_cannot_be_streamed() {
    let error = FrontEnd::new(&FeatureConfig::default()).unwrap().stream().unwrap_err();
    assert_eq!(
        error.to_string(),
        "setting `normalize`: expected \"running\", for streaming, found \"utterance\""
    );
}

#[test]
fn an_empty_stream_has_no_frame_and_a_short_stream_has_one_frame() {
    let front_end = FrontEnd::new(&config()).unwrap();
    let (mut stream, mut out) = (front_end.stream().unwrap(), Vec::new());
    assert_eq!(front_end.push(&mut stream, &[], &mut out).unwrap(), 0);
    assert_eq!(front_end.finish(&mut stream, &mut out).unwrap(), 0);
    assert_eq!(front_end.push(&mut stream, &[0.1], &mut out).unwrap(), 0);
    assert_eq!(front_end.finish(&mut stream, &mut out).unwrap(), 1);
    assert_eq!(out.len(), 12);
}

#[test]
fn a_long_pause_neither_amplifies_noise_nor_removes_the_prior() {
    let front_end = FrontEnd::new(&config()).unwrap();
    let mut samples = vec![0.0; 8000 * 60];
    samples.extend(noise(1600, 5));
    let features = front_end.log_mel(&Audio { samples, sample_rate: 8000 }).unwrap();
    assert!(features.data.iter().all(|x| x.abs() < 8.0));
    // Silence remains silence: the mean moves at most two thirds of the distance.
    let silence = features.frame(5900)[3];
    assert!(silence < -0.5, "{silence}");
}

#[test]
fn settings_of_older_versions_are_unchanged() {
    let text = serde_json::to_string(&FeatureConfig::default()).unwrap();
    assert!(!text.contains("normalize"), "{text}");
    assert_eq!(serde_json::from_str::<FeatureConfig>(&text).unwrap().normalize, Normalization::Utterance);
    let text = serde_json::to_string(&config()).unwrap();
    assert!(text.contains("\"normalize\":\"running\""), "{text}");
    assert_eq!(serde_json::from_str::<FeatureConfig>(&text).unwrap(), config());
}

/// A reader that returns one or three bytes at a time.
///
/// Every third call is interrupted.
struct SlowReader<'a> {
    bytes: &'a [u8],
    calls: usize,
}

impl Read for SlowReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.calls += 1;
        match self.calls % 3 {
            0 => Err(io::ErrorKind::Interrupted.into()),
            1 => self.bytes.read(&mut buffer[..1]),
            _ => self.bytes.read(&mut buffer[..3]),
        }
    }
}

#[test]
fn raw_audio_is_read_as_it_arrives() {
    let bytes = [0, 64, 0, 192, 1, 0, 0, 128];
    let samples = |source| {
        let (mut reader, mut samples) = (PcmReader::new(SlowReader { bytes: source, calls: 0 }), Vec::new());
        while let Some(chunk) = reader.read_chunk()? {
            assert!(!chunk.is_empty());
            samples.extend(chunk);
        }
        Ok::<_, Error>(samples)
    };
    assert_eq!(samples(&bytes).unwrap(), [0.5, -0.5, 1.0 / 32768.0, -1.0]);
    assert!(samples(&[]).unwrap().is_empty());
    let error = samples(&bytes[..5]).unwrap_err();
    assert!(matches!(error, Error::HalfSample { bytes: 5 }), "{error}");

    struct BrokenReader;
    impl Read for BrokenReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("gone"))
        }
    }
    let error = PcmReader::new(BrokenReader).read_chunk().unwrap_err();
    assert_eq!(error.to_string(), "raw audio: cannot be read: gone");
}

fn read_complete(path: &Path, conversion: &Conversion) -> (Vec<f32>, Vec<AudioChange>) {
    let (audio, changes) = read_audio_as(path, 8000, conversion).unwrap();
    (audio.samples, changes)
}

#[test]
fn chunked_files_equal_complete_files() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.wav");
    let spec = hound::WavSpec {
        channels: 2,
        sample_rate: 11_025,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(&path, spec).unwrap();
    noise(100_000, 2).iter().for_each(|x| writer.write_sample((x * 30_000.0) as i16).unwrap());
    writer.finalize().unwrap();
    let conversion = Conversion { channel: speech::Channel::Mix, resample: true };
    for path in [path, digits("audio/dev/digits-dev-0000.flac")] {
        let chunks = AudioChunks::open(&path, 8000, &conversion).unwrap();
        let changes = chunks.changes().to_vec();
        let chunks: Vec<Vec<f32>> = chunks.map(Result::unwrap).collect();
        assert!(chunks.len() > 1 && chunks.iter().all(|chunk| (1..40_000).contains(&chunk.len())));
        assert_eq!((chunks.concat(), changes), read_complete(&path, &conversion));
    }
}

#[test]
fn a_truncated_file_is_an_error_after_its_last_valid_chunk() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("a.flac");
    let bytes = fs::read(digits("audio/dev/digits-dev-0000.flac")).unwrap();
    fs::write(&path, &bytes[..bytes.len() - 9]).unwrap();
    let mut chunks = AudioChunks::open(&path, 8000, &Conversion::default()).unwrap();
    let good = chunks.by_ref().take_while(Result::is_ok).count();
    assert!(good > 0, "{good}");
    assert!(chunks.next().is_none());
    assert!(matches!(read_audio(&path), Err(Error::Truncated { .. })));
    let error = AudioChunks::open(&path, 16_000, &Conversion::default()).err().unwrap();
    assert!(matches!(error, Error::FileRate { expected: 16_000, found: 8000, .. }), "{error}");
}
