//! Tests of front-end presets (MLPerf, Kaldi, NeMo) and combinations of feature settings.
//!
//! The default front end equals its formula bit by bit.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use realfft::RealFftPlanner;
use speech::features::{Framing, InitialSample, Window, trim};
use speech::{Audio, Error, FeatureConfig, Features, FrontEnd, MelKind, Normalization, Preset};

fn parse(text: &str) -> FeatureConfig {
    serde_json::from_str(text).unwrap()
}

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

fn audio(samples: Vec<f32>) -> Audio {
    Audio { samples, sample_rate: 16_000 }
}

#[test]
fn settings_of_older_versions_are_unchanged() {
    let text = concat!(
        r#"{"sample_rate":16000,"window_ms":25.0,"hop_ms":10.0,"mels":80,"low_hz":0.0,"high_hz":0.0,"#,
        r#""preemphasis":0.97,"floor_db":60.0}"#
    );
    assert_eq!(serde_json::to_string(&FeatureConfig::default()).unwrap(), text);
    assert_eq!(parse(text), FeatureConfig::default());
    assert_eq!(parse("{}"), FeatureConfig::default());
}

#[test]
fn keys_override_the_preset() {
    assert_eq!(parse(r#"{"preset": "mlperf"}"#), Preset::Mlperf.config());
    assert_eq!(parse(r#"{"preset": "kaldi"}"#), Preset::Kaldi.config());
    assert_eq!(parse(r#"{"preset": "nemo"}"#), Preset::Nemo.config());
    let changed = parse(r#"{"mels": 64, "preset": "mlperf", "normalize": "utterance", "trim_db": 0.0}"#);
    let expected = FeatureConfig {
        mels: 64,
        normalize: Normalization::Utterance,
        trim_db: 0.0,
        ..Preset::Mlperf.config()
    };
    assert_eq!(changed, expected);
    // Settings are written without the preset, including those equal to the defaults.
    for config in [Preset::Mlperf.config(), Preset::Kaldi.config(), Preset::Nemo.config(), changed] {
        let text = serde_json::to_string(&config).unwrap();
        assert!(!text.contains("preset"), "{text}");
        assert_eq!(parse(&text), config);
    }
    for text in [r#"{"preset": "espnet"}"#, r#"{"preset": "kaldi", "melz": 3}"#] {
        assert!(serde_json::from_str::<FeatureConfig>(text).is_err(), "{text}");
    }
}

#[test]
fn new_settings_out_of_range_are_reported() {
    let (mlperf, nemo) = (|| Preset::Mlperf.config(), || Preset::Nemo.config());
    let cases = [
        ("floor_power", FeatureConfig { floor_power: -1.0, ..mlperf() }),
        ("floor_power", FeatureConfig { floor_power: f64::NAN, ..mlperf() }),
        ("floor_power", FeatureConfig { floor_power: 2.0, ..mlperf() }),
        ("floor_power", FeatureConfig { normalize: Normalization::Running, ..mlperf() }),
        ("log_guard", FeatureConfig { log_guard: 1e-9, ..mlperf() }),
        ("log_guard", FeatureConfig { log_guard: -1e-9, ..nemo() }),
        ("log_guard", FeatureConfig { log_guard: f64::NAN, ..nemo() }),
        ("log_guard", FeatureConfig { normalize: Normalization::Running, ..nemo() }),
        ("agc_ms", FeatureConfig { agc_ms: 100.0, ..nemo() }),
        ("trim_db", FeatureConfig { trim_db: 5.0, ..mlperf() }),
        ("trim_db", FeatureConfig { trim_db: f32::NAN, ..mlperf() }),
        ("dither", FeatureConfig { dither: -1e-5, ..mlperf() }),
        ("dither", FeatureConfig { dither: f32::INFINITY, ..mlperf() }),
        ("high_hz", FeatureConfig { high_hz: -8000.0, ..mlperf() }),
        ("high_hz", FeatureConfig { high_hz: 8000.1, ..mlperf() }),
        ("high_hz", FeatureConfig { high_hz: f32::NEG_INFINITY, ..mlperf() }),
    ];
    for (name, config) in cases {
        let error = FrontEnd::new(&config).err().unwrap_or_else(|| panic!("{name} of {config:?}"));
        assert!(matches!(error, Error::Setting { field, .. } if field == name), "{error}");
    }
}

/// The default front end, computed directly by its formula.
fn reference_features(samples: &[f32], front_end: &FrontEnd) -> Features {
    let (length, hop, dim) = (400, 160, 80);
    let window: Vec<f32> = (0..length)
        .map(|n| (0.5 - 0.5 * (std::f64::consts::TAU * n as f64 / length as f64).cos()) as f32)
        .collect();
    let filters = front_end.mel_matrix();
    let fft = RealFftPlanner::<f32>::new().plan_fft_forward(512);
    let (mut block, mut spectrum) = (fft.make_input_vec(), fft.make_output_vec());
    let gain = 1.0 / f64::from(samples.iter().fold(0f32, |a, x| a.max(x.abs())));
    let mut data: Vec<f32> = Vec::new();
    for start in (0..=samples.len() - length).step_by(hop) {
        block.fill(0.0);
        for n in 0..length {
            let before = if start + n > 0 { samples[start + n - 1] } else { 0.0 };
            block[n] = (f64::from(samples[start + n] - 0.97 * before) * gain) as f32 * window[n];
        }
        fft.process(&mut block, &mut spectrum).unwrap();
        for row in filters.chunks_exact(257) {
            let products = row.iter().zip(&spectrum).filter(|(w, _)| **w > 0.0);
            data.push(products.map(|(&w, c)| c.norm_sqr() * w as f32).sum());
        }
    }
    let peak = data.iter().fold(0f32, |a, &p| a.max(p));
    data.iter_mut().for_each(|p| *p = (*p / peak + 10f32.powf(-6.0)).ln());
    let mut features = Features { frames: data.len() / dim, dim, data };
    features.normalize();
    features
}

#[test]
fn the_default_front_end_equals_its_formula() {
    let front_end = FrontEnd::new(&FeatureConfig::default()).unwrap();
    for (n, seed) in [(400, 1), (8000, 2), (16_001, 3)] {
        let samples = noise(n, seed);
        let actual = front_end.log_mel(&audio(samples.clone())).unwrap();
        assert_eq!(actual, reference_features(&samples, &front_end), "{n} samples");
    }
}

#[test]
fn stages_end_with_the_features() {
    let presets = [Preset::Mlperf, Preset::Kaldi, Preset::Nemo].map(Preset::config);
    for config in [FeatureConfig::default()].into_iter().chain(presets) {
        let front_end = FrontEnd::new(&config).unwrap();
        let audio_input = audio(noise(5000, 4));
        let (stages, features) =
            (front_end.stages(&audio_input).unwrap(), front_end.log_mel(&audio_input).unwrap());
        assert_eq!((stages.frames, stages.bins), (features.frames, 257));
        let rounded: Vec<f32> = stages.features.iter().map(|&x| x as f32).collect();
        assert_eq!(rounded, features.data);
        assert_eq!(front_end.frames(stages.range.len()), features.frames);
        let min_samples = front_end.samples(features.frames);
        assert_eq!(front_end.frames(min_samples), features.frames);
    }
}

#[test]
fn mlperf_normalizes_every_bin_and_maps_constants_to_zero() {
    let front_end = FrontEnd::new(&Preset::Mlperf.config()).unwrap();
    let features = front_end.log_mel(&audio(noise(16_000, 5))).unwrap();
    assert_eq!((features.frames, features.dim), (101, 80));
    for m in 0..80 {
        let column: Vec<f64> = (0..101).map(|t| f64::from(features.frame(t)[m])).collect();
        let mean = column.iter().sum::<f64>() / 101.0;
        let variance = column.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 101.0;
        assert!(mean.abs() < 1e-6 && (variance - 1.0).abs() < 1e-5, "bin {m}: {mean} {variance}");
    }
    let silent = FeatureConfig { dither: 0.0, ..Preset::Mlperf.config() };
    for n in [1, 2, 159, 160, 3000] {
        let features = FrontEnd::new(&silent).unwrap().log_mel(&audio(vec![0.0; n])).unwrap();
        assert_eq!(features.frames, n / 160 + 1);
        assert!(features.data.iter().all(|&x| x == 0.0), "{n}");
    }
}

#[test]
fn dither_is_reproducible() {
    let front_end = FrontEnd::new(&FeatureConfig { dither: 1e-2, ..Preset::Mlperf.config() }).unwrap();
    let audio_input = audio(noise(3001, 6));
    let features_with =
        |seed| front_end.log_mel_with(&audio_input, &mut ChaCha8Rng::seed_from_u64(seed)).unwrap();
    assert_eq!(features_with(1), features_with(1));
    assert_ne!(features_with(1), features_with(2));
    assert_eq!(front_end.log_mel(&audio_input).unwrap(), front_end.log_mel(&audio_input).unwrap());
    // Its standard deviation is that of the setting.
    let silent = FeatureConfig { trim_db: 0.0, preemphasis: 0.0, ..front_end.config().clone() };
    let stages = FrontEnd::new(&silent).unwrap().stages(&audio(vec![0.0; 20_000])).unwrap();
    let variance = stages.emphasized.iter().map(|x| x * x).sum::<f64>() / 20_000.0;
    assert!((variance.sqrt() / 1e-2 - 1.0).abs() < 0.03, "{variance}");
    // Without dither, no random number is drawn.
    let plain = FrontEnd::new(&FeatureConfig::default()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    plain.log_mel_with(&audio_input, &mut rng).unwrap();
    assert_eq!(rng, ChaCha8Rng::seed_from_u64(1));
}

#[test]
fn settings_that_require_complete_utterances_are_not_streamed() {
    let streaming =
        || FeatureConfig { normalize: Normalization::Running, floor_db: 90.0, ..FeatureConfig::default() };
    let cases = [
        ("normalize", Preset::Mlperf.config()),
        ("normalize", Preset::Nemo.config()),
        ("framing", Preset::Kaldi.config()),
        ("framing", FeatureConfig { framing: Framing::Centered, ..streaming() }),
        ("trim_db", FeatureConfig { trim_db: 60.0, ..streaming() }),
        ("dither", FeatureConfig { dither: 1e-5, ..streaming() }),
    ];
    for (name, config) in cases {
        let error = FrontEnd::new(&config).unwrap().stream().unwrap_err();
        assert!(matches!(error, Error::Setting { field, .. } if field == name), "{error}");
    }
    assert!(FrontEnd::new(&streaming()).unwrap().stream().is_ok());
}

#[test]
fn extreme_audio_is_refused_or_has_finite_features() {
    for preset in [Preset::Mlperf, Preset::Kaldi] {
        let front_end = FrontEnd::new(&preset.config()).unwrap();
        assert!(matches!(front_end.log_mel(&audio(vec![])), Err(Error::EmptySignal)));
        for bad in [f32::NAN, f32::INFINITY, -3e9] {
            let mut samples = noise(700, 7);
            samples[444] = bad;
            let error = front_end.log_mel(&audio(samples)).unwrap_err();
            assert!(matches!(error, Error::NotFinite { index: 444, .. }), "{error}");
        }
        for samples in [vec![0.0], vec![1.0], vec![2e9, -2e9], vec![1e-38; 1000], vec![0.0; 5000]] {
            let features = front_end.log_mel(&audio(samples)).unwrap();
            assert!(features.data.iter().all(|x| x.is_finite()));
        }
    }
}

/// NeMo's front end, computed directly by its formula in f64.
fn reference_nemo_features(samples: &[f32], front_end: &FrontEnd, normalizes: bool) -> Vec<f64> {
    let frames = samples.len() / 160;
    let filters = front_end.mel_matrix();
    let mels = filters.len() / 257;
    let emphasized = |i: i64| match usize::try_from(i) {
        Ok(0) => f64::from(samples[0]),
        Ok(i) if i < samples.len() => f64::from(samples[i]) - 0.97 * f64::from(samples[i - 1]),
        _ => 0.0,
    };
    let mut data = Vec::new();
    for t in 0..frames {
        let windowed: Vec<f64> = (0..400)
            .map(|n| {
                let weight = 0.5 - 0.5 * (std::f64::consts::TAU * n as f64 / 399.0).cos();
                weight * emphasized(160 * t as i64 - 200 + n)
            })
            .collect();
        let power: Vec<f64> = (0..257)
            .map(|k| {
                let (mut re, mut im) = (0.0, 0.0);
                for (n, x) in windowed.iter().enumerate() {
                    let phase = std::f64::consts::TAU * ((k * n) % 512) as f64 / 512.0;
                    (re, im) = (re + x * phase.cos(), im - x * phase.sin());
                }
                re * re + im * im
            })
            .collect();
        for filter in filters.chunks_exact(257) {
            let p: f64 = filter.iter().zip(&power).map(|(w, p)| w * p).sum();
            data.push((p + 1.0 / f64::from(1 << 24)).ln());
        }
    }
    for m in (0..mels).filter(|_| normalizes) {
        let column: Vec<f64> = (0..frames).map(|t| data[t * mels + m]).collect();
        let mean = column.iter().sum::<f64>() / frames as f64;
        let sum = column.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let deviation = if frames == 1 { 0.0 } else { (sum / (frames as f64 - 1.0)).sqrt() };
        (0..frames).for_each(|t| data[t * mels + m] = (column[t] - mean) / (deviation + 1e-5));
    }
    data
}

#[test]
fn nemo_features_equal_their_formula() {
    for (mels, normalize) in
        [(80, Normalization::Sample), (128, Normalization::Sample), (80, Normalization::None)]
    {
        let front_end = FrontEnd::new(&FeatureConfig { mels, normalize, ..Preset::Nemo.config() }).unwrap();
        for n in [160, 319, 320, 1000, 2000] {
            let samples: Vec<f32> = noise(n, n as u32).iter().map(|x| x * 0.1).collect();
            let stages = front_end.stages(&audio(samples.clone())).unwrap();
            let expected = reference_nemo_features(&samples, &front_end, normalize != Normalization::None);
            assert_eq!(stages.features.len(), expected.len());
            for (actual, expected) in stages.features.iter().zip(&expected) {
                assert!((actual - expected).abs() < 1e-9, "{n} {mels}: {actual} {expected}");
            }
        }
    }
}

#[test]
fn less_than_a_hop_has_no_nemo_features() {
    let front_end = FrontEnd::new(&Preset::Nemo.config()).unwrap();
    assert_eq!([1, 159, 160, 400].map(|n| front_end.frames(n)), [0, 0, 1, 2]);
    for result in [
        front_end.log_mel(&audio(noise(159, 1))).map(drop),
        front_end.stages(&audio(noise(159, 1))).map(drop),
    ] {
        assert!(matches!(result, Err(Error::ShortSignal { expected: 160, found: 159 })), "{result:?}");
    }
    // The deviation of one frame counts as 0.
    assert!(front_end.log_mel(&audio(noise(160, 1))).unwrap().data.iter().all(|&x| x == 0.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn trimming_keeps_loud_samples(
        lead in 0usize..6000, body in 1usize..5000, tail in 0usize..6000, level in -120f32..0.0, seed: u32,
    ) {
        let quiet = 10f32.powf(level / 20.0);
        let mut samples = noise(lead + body + tail, seed);
        for (i, x) in samples.iter_mut().enumerate() {
            if !(lead..lead + body).contains(&i) {
                *x *= quiet;
            }
        }
        let range = trim(&samples, 60.0);
        let window = samples.len().min(2048);
        // Sum of squares of the window that ends at sample j.
        let power = |j: usize| {
            let start = (j + 1).saturating_sub(window);
            samples[start..=j].iter().map(|&x| f64::from(x).powi(2)).sum::<f64>()
        };
        let loudest = (0..samples.len()).map(power).fold(0.0, f64::max);
        // A loud sample is kept, with as many samples before it as the window that contains it.
        for (i, &x) in samples.iter().enumerate() {
            if f64::from(x).powi(2) >= 1.0001e-6 * loudest {
                prop_assert!(range.contains(&i), "{} of {:?}", i, range);
            }
        }
        prop_assert!(range.end <= samples.len() && !range.is_empty());
        if range.end < samples.len() {
            prop_assert!(power(range.end) < 1.0001e-6 * loudest && power(range.end - 1) >= 0.9999e-6 * loudest);
        }
        if range.start > 0 {
            prop_assert!(power(range.start + window - 2) < 1.0001e-6 * loudest);
        }
    }

    #[test]
    fn all_combinations_of_settings_are_valid(
        framing in 0usize..4, window in 0usize..4, before in 0usize..3, slaney: bool, normalize in 0usize..4,
        floor in 0usize..3, remove_mean: bool, trims: bool, n in 1usize..3000, hop_ms in 1f32..30.0, window_ms in 10f32..40.0,
    ) {
        let config = FeatureConfig {
            mels: 20,
            hop_ms,
            window_ms,
            framing: [Framing::Inside, Framing::Centered, Framing::Middle, Framing::ZeroPadded][framing],
            window: [Window::Hann, Window::HannMidpoint, Window::HannSymmetric, Window::Povey][window],
            preemphasis_before: [InitialSample::Silence, InitialSample::First, InitialSample::Frame][before],
            mel_scale: if slaney { MelKind::Slaney } else { MelKind::Htk },
            normalize: [Normalization::Utterance, Normalization::Standard, Normalization::Sample, Normalization::None][normalize],
            floor_power: if floor == 1 { 1e-12 } else { 0.0 },
            log_guard: if floor == 2 { 1e-12 } else { 0.0 },
            trim_db: if trims { 40.0 } else { 0.0 },
            remove_mean,
            ..FeatureConfig::default()
        };
        let front_end = FrontEnd::new(&config).unwrap();
        let audio_input = audio(noise(n, n as u32));
        let features = match front_end.log_mel(&audio_input) {
            Ok(features) => features,
            Err(Error::ShortSignal { expected, found }) => {
                prop_assert!(found < expected && framing == 3 && front_end.frames(found) == 0);
                return Ok(());
            }
            Err(error) => panic!("{error}"),
        };
        prop_assert!(features.frames > 0 && features.data.iter().all(|x| x.is_finite()));
        prop_assert_eq!(features.frames, front_end.frames(front_end.stages(&audio_input).unwrap().range.len()));
        let text = serde_json::to_string(&config).unwrap();
        prop_assert_eq!(parse(&text), config);
    }
}
