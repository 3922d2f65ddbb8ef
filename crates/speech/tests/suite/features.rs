//! Tests of the log-mel front end: tones, normalization, frame counts, settings, stacking.

use std::f32::consts::TAU;

use proptest::prelude::*;
use speech::{Audio, Error, FeatureConfig, Features, FrontEnd, Normalization};

fn config() -> FeatureConfig {
    FeatureConfig { sample_rate: 8000, mels: 40, ..FeatureConfig::default() }
}

fn front_end() -> FrontEnd {
    FrontEnd::new(&config()).unwrap()
}

fn audio(samples: Vec<f32>) -> Audio {
    Audio { samples, sample_rate: 8000 }
}

/// A chirp with some noise, silent in the middle.
fn chirp_with_pause(num_samples: usize) -> Audio {
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let sample = |i: usize| {
        let t = i as f32 / 8000.0;
        if (num_samples / 2..num_samples * 5 / 8).contains(&i) {
            0.0
        } else {
            0.3 * (TAU * (300.0 + 900.0 * t) * t).sin() + 0.1 * noise()
        }
    };
    audio((0..num_samples).map(sample).collect())
}

#[test]
fn each_tone_appears_in_its_bin() {
    // Two tones one after the other: each appears in its bin while it lasts.
    let front_end = front_end();
    let scale = front_end.mel_scale();
    for bin in [5usize, 20, 35] {
        let hz = scale.hz(bin as f64) as f32;
        let first_hz = scale.hz(bin as f64 - 4.0) as f32;
        let tone = |i: usize| if i < 4000 { first_hz } else { hz };
        let features = front_end
            .log_mel(&audio((0..8000).map(|i| (TAU * tone(i) * i as f32 / 8000.0).sin()).collect()))
            .unwrap();
        let (early, late) = (features.frame(20), features.frame(80));
        assert!(late[bin] > 0.5 && early[bin] < -0.5, "bin {bin}: {} then {}", early[bin], late[bin]);
        assert!(early[bin - 4] > 0.5 && late[bin - 4] < -0.5, "bin {bin}");
    }
}

#[test]
fn every_bin_has_mean_zero_and_variance_one() {
    let features = front_end().log_mel(&chirp_with_pause(16_000)).unwrap();
    assert_eq!((features.frames, features.dim, features.data.len()), (198, 40, 198 * 40));
    for m in 0..features.dim {
        let column: Vec<f64> = (0..features.frames).map(|t| f64::from(features.frame(t)[m])).collect();
        let mean = column.iter().sum::<f64>() / 198.0;
        let variance = column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 198.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-5, "bin {m}: {mean} {variance}");
    }
}

#[test]
fn frames_follow_the_formula() {
    let front_end = front_end();
    // Window 200, hop 80.
    for (samples, frames) in [(1, 1), (199, 1), (200, 1), (279, 1), (280, 2), (8000, 98)] {
        assert_eq!(front_end.frames(samples), frames);
        assert_eq!(front_end.log_mel(&chirp_with_pause(samples)).unwrap().frames, frames);
    }
}

#[test]
fn features_of_silence_are_zero() {
    for n in [1, 150, 8000] {
        let features = front_end().log_mel(&audio(vec![0.0; n])).unwrap();
        assert!(features.data.iter().all(|&x| x == 0.0));
    }
}

#[test]
fn defaults_and_narrow_filters_leave_no_bin_empty() {
    // 128 bins at 8 kHz would fall between the bins of the shortest FFT.
    for mels in [80, 128] {
        let front_end =
            FrontEnd::new(&FeatureConfig { sample_rate: 8000, mels, ..FeatureConfig::default() }).unwrap();
        let features = front_end.log_mel(&chirp_with_pause(8000)).unwrap();
        for m in 0..mels {
            assert!((0..features.frames).any(|t| features.frame(t)[m] != 0.0), "bin {m} of {mels}");
        }
    }
}

#[test]
fn invalid_audio_is_refused() {
    let front_end = front_end();
    assert!(matches!(front_end.log_mel(&audio(vec![])), Err(Error::EmptySignal)));
    let wrong = Audio { samples: vec![0.0; 9], sample_rate: 16_000 };
    assert!(matches!(front_end.log_mel(&wrong), Err(Error::FrontEndRate { expected: 8000, found: 16_000 })));
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut samples = vec![0.5; 500];
        samples[321] = bad;
        let error = front_end.log_mel(&audio(samples)).unwrap_err();
        assert!(matches!(error, Error::NotFinite { index: 321, .. }), "{error}");
    }
}

#[test]
fn settings_out_of_range_are_reported() {
    let cases = [
        ("sample_rate", FeatureConfig { sample_rate: 0, ..config() }),
        ("window_ms", FeatureConfig { window_ms: 0.0, ..config() }),
        ("window_ms", FeatureConfig { window_ms: f32::NAN, ..config() }),
        ("hop_ms", FeatureConfig { hop_ms: -1.0, ..config() }),
        ("mels", FeatureConfig { mels: 0, ..config() }),
        ("mels", FeatureConfig { mels: 2000, ..config() }),
        ("high_hz", FeatureConfig { high_hz: 4001.0, ..config() }),
        ("high_hz", FeatureConfig { high_hz: f32::NAN, ..config() }),
        ("low_hz", FeatureConfig { low_hz: 4000.0, ..config() }),
        ("low_hz", FeatureConfig { low_hz: -1.0, ..config() }),
        ("preemphasis", FeatureConfig { preemphasis: 1.5, ..config() }),
        ("floor_db", FeatureConfig { floor_db: 0.0, ..config() }),
        ("agc_ms", FeatureConfig { agc_ms: -1.0, ..config() }),
        ("agc_ms", FeatureConfig { agc_ms: f32::NAN, ..config() }),
        ("agc_ms", FeatureConfig { agc_ms: 200.0, normalize: Normalization::Running, ..config() }),
        ("agc_ms", FeatureConfig { agc_ms: 200.0, floor_power: 1e-9, ..config() }),
    ];
    for (name, config) in cases {
        let error = FrontEnd::new(&config).err().unwrap_or_else(|| panic!("{name} of {config:?}"));
        assert!(matches!(error, Error::Setting { field, .. } if field == name), "{error}");
    }
}

#[test]
fn unknown_settings_are_refused() {
    let error = serde_json::from_str::<FeatureConfig>(r#"{"mels": 40, "mells": 40}"#).unwrap_err();
    assert!(error.to_string().contains("mells"), "{error}");
    let parsed: FeatureConfig = serde_json::from_str(r#"{"mels": 40, "sample_rate": 8000}"#).unwrap();
    assert_eq!(parsed, config());
}

#[test]
fn gain_control_makes_quiet_words_as_loud_as_the_first() {
    // Two bursts with a pause longer than the range of the gain control; the second is 20 dB
    // below the first.
    let word = |n: usize, gain: f32| gain * (n as f32 * (0.3 + 1e-5 * (n % 1600) as f32)).sin();
    let two_bursts = |second_gain: f32| {
        let burst = |n: usize| match n % 4800 {
            position @ 0..1600 => word(position, if n < 4800 { 0.5 } else { second_gain }),
            _ => 0.0,
        };
        (0..9600).map(burst).collect::<Vec<f32>>()
    };
    let difference = |config: FeatureConfig, second_gain: f32| {
        let front_end = FrontEnd::new(&config).unwrap();
        let [even, uneven] =
            [0.5, second_gain].map(|gain| front_end.log_mel(&audio(two_bursts(gain))).unwrap().data);
        even.iter().zip(uneven).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    };
    let config = FeatureConfig { floor_db: 30.0, preemphasis: 0.0, ..config() };
    let controlled = FeatureConfig { agc_ms: 100.0, ..config.clone() };
    assert!(difference(config, 0.05) > 0.5);
    assert!(difference(controlled.clone(), 0.05) < 1e-3, "{}", difference(controlled.clone(), 0.05));
    // More than 30 dB below the first, the second burst remains quiet.
    assert!(difference(controlled, 0.001) > 0.5);
}

#[test]
fn stacked_rows_are_as_expected() {
    let features = Features { frames: 5, dim: 2, data: (0..10).map(|x| x as f32).collect() };
    let stacked = features.stack(3, 2);
    assert_eq!((stacked.frames, stacked.dim), (3, 6));
    assert_eq!(stacked.frame(0), [0., 1., 2., 3., 4., 5.]);
    assert_eq!(stacked.frame(1), [4., 5., 6., 7., 8., 9.]);
    assert_eq!(stacked.frame(2), [8., 9., 0., 0., 0., 0.]);
    assert_eq!(features.stack(1, 1), features);
    assert_eq!(features.stack(0, 0), features);
    assert_eq!(features.stack(1, 3).data, [0., 1., 6., 7.]);
    let empty = Features { frames: 0, dim: 2, data: vec![] };
    assert_eq!(empty.stack(3, 3).frames, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn features_do_not_depend_on_the_level(gain in 1e-4f32..2.0, n in 400usize..6000) {
        let front_end = front_end();
        let loud = chirp_with_pause(n);
        let quiet = audio(loud.samples.iter().map(|x| x * gain).collect());
        let (a, b) = (front_end.log_mel(&loud).unwrap(), front_end.log_mel(&quiet).unwrap());
        for (x, y) in a.data.iter().zip(&b.data) {
            prop_assert!((x - y).abs() < 1e-3, "{} and {}", x, y);
        }
    }

    #[test]
    fn stacks_have_the_documented_length(frames in 0usize..30, stack in 1usize..6, stride in 1usize..6) {
        let features = Features { frames, dim: 3, data: (0..frames * 3).map(|x| 1.0 + x as f32).collect() };
        let stacked = features.stack(stack, stride);
        prop_assert_eq!(stacked.frames, frames.div_ceil(stride));
        prop_assert_eq!(stacked.data.len(), stacked.frames * stack * 3);
        for (t, row) in stacked.data.chunks_exact(3 * stack).enumerate() {
            for (k, part) in row.chunks_exact(3).enumerate() {
                let source = t * stride + k;
                let expected = if source < frames { features.frame(source) } else { &[0.0; 3] };
                prop_assert_eq!(part, expected);
            }
        }
    }
}

#[test]
fn messages_print_numbers_short() {
    let config = FeatureConfig { low_hz: 3e38, ..FeatureConfig::default() };
    let message = FrontEnd::new(&config).err().unwrap().to_string();
    assert!(message.ends_with("found 3.0000e38"), "{message}");
    // Differences of such samples are no numbers.
    let audio = Audio { samples: vec![3e38, -3e38], sample_rate: 16_000 };
    let message = FrontEnd::new(&FeatureConfig::default()).unwrap().log_mel(&audio).unwrap_err().to_string();
    assert!(message.ends_with("found 3.0000e38 at sample 0"), "{message}");
}
