//! Tests of waveform augmentation: formulas, reproducible random choices, errors.

use std::path::{Path, PathBuf};

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use speech::wave::{NoiseConfig, ReverbConfig, SpeedConfig, add_noise, change_speed, reverberate};
use speech::{Error, WaveAugment, WaveConfig};

fn noise(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

fn energy(samples: &[f32]) -> f64 {
    samples.iter().map(|&x| f64::from(x).powi(2)).sum()
}

fn write_wav(folder: &Path, name: &str, rate: u32, samples: &[f32]) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: rate,
        bits_per_sample: 32,
        sample_format: hound::SampleFormat::Float,
    };
    let mut writer = hound::WavWriter::create(folder.join(name), spec).unwrap();
    samples.iter().for_each(|&x| writer.write_sample(x).unwrap());
    writer.finalize().unwrap();
}

/// Writes a manifest of audio files without other fields.
fn write_manifest(folder: &Path, name: &str, files: &[&str]) -> PathBuf {
    let lines: Vec<String> = files.iter().map(|file| format!(r#"{{"file": "{file}"}}"#)).collect();
    let path = folder.join(name);
    std::fs::write(&path, lines.join("\n")).unwrap();
    path
}

fn seeded_rng(seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(seed)
}

#[test]
fn speed_change_equals_its_formula() {
    let samples = noise(200, 1);
    for rate in [0.85, 0.9371, 1.05, 1.15, 2.0, 0.5] {
        let changed = change_speed(&samples, rate).unwrap();
        assert_eq!(changed.len(), (200.0 * rate).ceil() as usize);
        for (i, &y) in changed.iter().enumerate() {
            let position = i as f64 / rate;
            let term = |k: usize| {
                let distance = k as f64 - position;
                let angle = std::f64::consts::PI * distance;
                let sinc = if distance == 0.0 { 1.0 } else { angle.sin() / angle };
                let window = if distance.abs() <= 16.0 { (1.0 + (angle / 16.0).cos()) / 2.0 } else { 0.0 };
                f64::from(samples[k]) * sinc * window
            };
            let exact: f64 = (0..200).map(term).sum();
            assert!((f64::from(y) - exact).abs() < 1e-7, "{rate}, {i}: expected {exact}, found {y}");
        }
    }
    assert_eq!(change_speed(&samples, 1.0).unwrap(), samples);
    assert!(change_speed(&[], 0.9).unwrap().is_empty());
    for bad in [0.0, 0.49, 2.1, f64::NAN, f64::INFINITY] {
        assert!(matches!(change_speed(&samples, bad), Err(Error::Setting { field: "rate", .. })));
    }
}

#[test]
fn noise_has_the_requested_ratio() {
    let (clean, noise_samples) = (noise(5000, 2), noise(777, 3));
    for snr_db in [-10.0, 0.0, 12.5, 40.0] {
        let mut noisy = clean.clone();
        add_noise(&mut noisy, &noise_samples, 700, snr_db);
        let added: Vec<f32> = noisy.iter().zip(&clean).map(|(a, b)| a - b).collect();
        let ratio = 10.0 * (energy(&clean) / energy(&added)).log10();
        assert!((ratio - snr_db).abs() < 1e-2, "{ratio} for {snr_db}");
        // It starts at the given position and repeats.
        let gain = added[0] / noise_samples[700];
        for (n, x) in added.iter().enumerate() {
            assert!((x - gain * noise_samples[(700 + n) % 777]).abs() < 1e-5, "{n}");
        }
    }
    for (signal, noise_samples) in
        [(vec![0.0; 9], noise(5, 1)), (noise(9, 1), vec![0.0; 5]), (noise(9, 1), vec![])]
    {
        let mut same = signal.clone();
        add_noise(&mut same, &noise_samples, 3, 5.0);
        assert_eq!(same, signal);
    }
}

#[test]
fn reverberation_equals_its_formula() {
    let samples = noise(9000, 4);
    for (taps, direct) in [(1, 0), (5, 3), (600, 100), (5000, 2500)] {
        let mut response: Vec<f32> = noise(taps, 5).iter().map(|x| 0.1 * x).collect();
        response[direct] = -1.0;
        let reverberated = reverberate(&samples, &response).unwrap();
        assert_eq!(reverberated.len(), samples.len());
        assert!((energy(&reverberated) / energy(&samples) - 1.0).abs() < 1e-6);
        let tap = |n: usize, k: usize| {
            let x = (n + direct).checked_sub(k).and_then(|i| samples.get(i));
            x.map_or(0.0, |&x| f64::from(response[k]) * f64::from(x))
        };
        let exact: Vec<f64> = (0..9000).step_by(91).map(|n| (0..taps).map(|k| tap(n, k)).sum()).collect();
        let reverberant_energy: f64 =
            (0..9000).map(|n| (0..taps).map(|k| tap(n, k)).sum::<f64>().powi(2)).sum();
        let gain = (energy(&samples) / reverberant_energy).sqrt();
        for (index, exact) in exact.iter().enumerate() {
            let y = f64::from(reverberated[91 * index]);
            assert!((y - gain * exact).abs() < 1e-6, "{taps} taps, {}: {y} for {}", 91 * index, gain * exact);
        }
    }
    // An impulse at any position changes nothing, and silence remains silent.
    let mut impulse = vec![0.0; 50];
    impulse[33] = 0.5;
    for (x, y) in samples.iter().zip(reverberate(&samples, &impulse).unwrap()) {
        assert!((x - y).abs() < 1e-6);
    }
    assert_eq!(reverberate(&[0.0; 20], &impulse).unwrap(), [0.0; 20]);
    assert_eq!(reverberate(&samples, &[0.0; 3]), None);
    assert_eq!(reverberate(&samples, &[]), None);
}

#[test]
fn changes_depend_only_on_the_generator() {
    let folder = tempfile::tempdir().unwrap();
    write_wav(folder.path(), "a.wav", 16_000, &noise(3000, 6));
    write_wav(folder.path(), "b.wav", 16_000, &noise(500, 7));
    write_wav(folder.path(), "response.wav", 16_000, &[0.1, 1.0, 0.3, -0.2]);
    let config = WaveConfig {
        speed: Some(SpeedConfig::default()),
        reverb: Some(ReverbConfig {
            manifest: write_manifest(folder.path(), "responses.jsonl", &["response.wav"]),
            probability: 0.5,
        }),
        noise: Some(NoiseConfig {
            manifest: write_manifest(folder.path(), "noise.jsonl", &["a.wav", "b.wav"]),
            snr_db: [0.0, 20.0],
            probability: 0.7,
        }),
    };
    let augment = WaveAugment::new(&config, 16_000, false).unwrap();
    assert!(!augment.is_identity());
    let clean = noise(2000, 8);
    let apply = |seed| augment.apply(clean.clone(), &mut seeded_rng(seed)).unwrap();
    let all: Vec<Vec<f32>> = (0..20).map(apply).collect();
    for (seed, samples) in all.iter().enumerate() {
        assert_eq!(samples, &apply(seed as u64));
        assert!((1700..=2300).contains(&samples.len()) && samples.iter().all(|x| x.is_finite()));
        assert!(all[..seed].iter().all(|earlier| earlier != samples), "{seed}");
    }
    assert!(matches!(augment.apply(vec![], &mut seeded_rng(1)), Err(Error::EmptySignal)));
    let error = augment.apply(vec![0.0, f32::NAN], &mut seeded_rng(1)).unwrap_err();
    assert!(matches!(error, Error::NotFinite { index: 1, .. }), "{error}");
    for seed in 0..20 {
        let samples = augment.apply(vec![0.5], &mut seeded_rng(seed)).unwrap();
        assert!((1..=2).contains(&samples.len()) && samples.iter().all(|x| x.is_finite()), "{samples:?}");
    }

    let none = WaveAugment::new(&WaveConfig::default(), 16_000, false).unwrap();
    assert!(none.is_identity());
    assert_eq!(none.apply(clean.clone(), &mut seeded_rng(1)).unwrap(), clean);
}

#[test]
fn utterances_are_changed_with_the_configured_probability() {
    let config = WaveConfig {
        speed: Some(SpeedConfig { rates: [1.5, 1.5], probability: 0.25 }),
        ..WaveConfig::default()
    };
    let augment = WaveAugment::new(&config, 16_000, false).unwrap();
    let mut rng = seeded_rng(9);
    let changed = (0..4000).filter(|_| augment.apply(vec![0.5; 8], &mut rng).unwrap().len() == 12).count();
    // Five standard deviations of a binomial distribution.
    assert!((863..=1137).contains(&changed), "{changed}");
}

#[test]
fn errors_name_unusable_files() {
    let folder = tempfile::tempdir().unwrap();
    let reverb_config = |name: &str| {
        let manifest = write_manifest(folder.path(), &format!("{name}.jsonl"), &[name]);
        WaveConfig { reverb: Some(ReverbConfig { manifest, probability: 1.0 }), ..WaveConfig::default() }
    };
    write_wav(folder.path(), "different.wav", 8000, &noise(80, 1));
    let error = WaveAugment::new(&reverb_config("different.wav"), 16_000, false).unwrap_err();
    assert!(
        matches!(&error, Error::FileRate { path, expected: 16_000, found: 8000 } if path.ends_with("different.wav")),
        "{error}"
    );
    let resampled = WaveAugment::new(&reverb_config("different.wav"), 16_000, true).unwrap();
    assert_eq!(resampled.apply(noise(300, 2), &mut seeded_rng(1)).unwrap().len(), 300);

    assert!(matches!(WaveAugment::new(&reverb_config("gone.wav"), 16_000, false), Err(Error::Io { .. })));
    std::fs::write(folder.path().join("text.wav"), "no audio").unwrap();
    assert!(matches!(WaveAugment::new(&reverb_config("text.wav"), 16_000, false), Err(Error::Format { .. })));
    let empty = write_manifest(folder.path(), "empty.jsonl", &[]);
    let noise_of = |manifest| NoiseConfig { manifest, snr_db: [0.0, 10.0], probability: 1.0 };
    let config = WaveConfig { noise: Some(noise_of(empty)), ..WaveConfig::default() };
    assert!(matches!(WaveAugment::new(&config, 16_000, false), Err(Error::EmptyManifest { .. })));

    write_wav(folder.path(), "silent.wav", 16_000, &[0.0; 40]);
    // Zeros, empty files and spans beyond the end of a file are detected at the start.
    let error = WaveAugment::new(&reverb_config("silent.wav"), 16_000, false).unwrap_err();
    assert!(matches!(&error, Error::Sound { path, .. } if path.ends_with("silent.wav")), "{error}");
    assert!(error.to_string().contains("not all zeros"), "{error}");

    write_wav(folder.path(), "good.wav", 16_000, &[0.5; 40]);
    write_wav(folder.path(), "none.wav", 16_000, &[]);
    for (line, part) in [
        (r#"{"file": "none.wav"}"#, "at least one sample"),
        (r#"{"file": "good.wav", "offset_samples": 4000, "num_samples": 10}"#, "from sample 4000"),
        (r#"{"file": "good.wav", "offset_samples": 35, "num_samples": 10}"#, "from sample 35"),
        (r#"{"audio_filepath": "good.wav", "offset": 1.0, "duration": 0.5}"#, "from sample 16000"),
    ] {
        let manifest = folder.path().join("late.jsonl");
        std::fs::write(&manifest, format!("{{\"file\": \"good.wav\"}}\n{line}\n")).unwrap();
        let config = WaveConfig { noise: Some(noise_of(manifest)), ..WaveConfig::default() };
        let error = WaveAugment::new(&config, 16_000, false).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(".wav"), "{error}");
        assert!(error.contains("late.jsonl:2"), "{error}");
    }
    // The lengths in headers are checked at the start.
    write_wav(folder.path(), "long.wav", 1000, &noise(10_001, 3));
    let error = WaveAugment::new(&reverb_config("long.wav"), 1000, false).unwrap_err();
    assert!(matches!(&error, Error::Sound { path, .. } if path.ends_with("long.wav")), "{error}");
    assert!(error.to_string().contains("at most 10 s"), "{error}");
    let stereo = hound::WavSpec {
        channels: 2,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(folder.path().join("two.wav"), stereo).unwrap();
    (0..20i16).for_each(|x| writer.write_sample(x).unwrap());
    writer.finalize().unwrap();
    let error = WaveAugment::new(&reverb_config("two.wav"), 8000, false).unwrap_err();
    assert!(matches!(&error, Error::Channels { path, found: 2 } if path.ends_with("two.wav")), "{error}");
    // A header that declares ten hours requires no memory.
    let mut bytes = std::fs::read(folder.path().join("silent.wav")).unwrap();
    let length_offset = bytes.windows(4).position(|window| window == b"data").unwrap() + 4;
    bytes[length_offset..length_offset + 4].copy_from_slice(&(36_000u32 * 16_000 * 4).to_le_bytes());
    std::fs::write(folder.path().join("declared.wav"), bytes).unwrap();
    let error = WaveAugment::new(&reverb_config("declared.wav"), 16_000, false).unwrap_err();
    assert!(error.to_string().contains("declared.wav"), "{error}");
}

#[test]
fn settings_are_checked() {
    let speed = |rates, probability| WaveConfig {
        speed: Some(SpeedConfig { rates, probability }),
        ..WaveConfig::default()
    };
    let noise = |snr_db| {
        let noise = NoiseConfig { manifest: "noise.jsonl".into(), snr_db, probability: 1.0 };
        WaveConfig { noise: Some(noise), ..WaveConfig::default() }
    };
    let cases = [
        ("speed.rates", speed([0.4, 1.0], 1.0)),
        ("speed.rates", speed([1.1, 1.0], 1.0)),
        ("speed.rates", speed([1.0, 2.5], 1.0)),
        ("speed.rates", speed([f64::NAN, 1.0], 1.0)),
        ("speed.rates", speed([1.0, f64::NAN], 1.0)),
        ("speed.probability", speed([0.9, 1.1], 1.5)),
        ("speed.probability", speed([0.9, 1.1], f64::NAN)),
        ("noise.snr_db", noise([10.0, 5.0])),
        ("noise.snr_db", noise([f64::NAN, 5.0])),
        ("noise.snr_db", noise([0.0, f64::INFINITY])),
    ];
    for (name, config) in cases {
        let error = WaveAugment::new(&config, 16_000, false).unwrap_err();
        assert!(matches!(error, Error::Setting { field, .. } if field == name), "{error}");
    }
    assert!(serde_json::from_str::<WaveConfig>(r#"{"pitch": {}}"#).is_err());
    let read: WaveConfig = serde_json::from_str(r#"{"speed": {}}"#).unwrap();
    assert_eq!(read.speed, Some(SpeedConfig::default()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_constant_remains_constant_at_any_speed(rate in 0.5f64..2.0, level in -1f32..1.0, n in 40usize..400) {
        let changed = change_speed(&vec![level; n], rate).unwrap();
        // Far from the ends, where the kernel extends beyond the signal.
        for (i, x) in changed.iter().enumerate() {
            let position = i as f64 / rate;
            if position > 17.0 && position < n as f64 - 18.0 {
                prop_assert!((x - level).abs() < 2e-3 * level.abs(), "{} for {}", x, level);
            }
        }
    }
}
