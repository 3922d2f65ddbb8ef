//! Tests of feature perturbation: lengths, bins of tones, reproducibility from the seed.

use std::f32::consts::TAU;

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use speech::{Audio, Error, FeatureConfig, Features, FrontEnd, MelScale, Normalization, Perturbation};

fn front_end() -> FrontEnd {
    FrontEnd::new(&FeatureConfig { sample_rate: 8000, mels: 60, ..FeatureConfig::default() }).unwrap()
}

/// A tone that is on and off four times a second.
///
/// Its bin differs from the others over time.
fn beeping_tone(front_end: &FrontEnd, hz: f32) -> Features {
    let sample = |i: usize| if i % 2000 < 1000 { (TAU * hz * i as f32 / 8000.0).sin() } else { 0.0 };
    front_end.log_mel(&Audio { samples: (0..8000).map(sample).collect(), sample_rate: 8000 }).unwrap()
}

/// Features with a peak that changes its sign every ten frames.
fn alternating_peak(scale: &MelScale, hz: f64) -> Features {
    let (frames, dim) = (100, scale.bins());
    let center = scale.bin(hz);
    let value = |t: usize, m: usize| {
        let height = (-(m as f64 - center).powi(2) / 8.0).exp() as f32;
        if t % 20 < 10 { height } else { -height }
    };
    Features { frames, dim, data: (0..frames * dim).map(|i| value(i / dim, i % dim)).collect() }
}

/// Center of mass over bins of the power over time.
fn center_bin(features: &Features) -> f64 {
    let power = |m: usize| (0..features.frames).map(|t| f64::from(features.frame(t)[m]).powi(2)).sum::<f64>();
    let (mut moment, mut mass) = (0.0, 0.0);
    for m in 0..features.dim {
        moment += m as f64 * power(m);
        mass += power(m);
    }
    moment / mass
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn lengths_are_within_limits_and_a_seed_repeats(speed in 0f32..0.3, tempo in 0f32..0.3, warp in 0f32..0.3, noise in 0f32..0.3, frames in 1usize..80, seed: u64) {
        let perturb = Perturbation { speed, tempo, warp, noise };
        prop_assert!(perturb.check().is_ok());
        let scale = front_end().mel_scale();
        let data = (0..frames * 60).map(|i| (i as f32 * 0.7).sin()).collect();
        let features = Features { frames, dim: 60, data };
        let apply = || perturb.apply(&features, &scale, Normalization::Utterance, &mut ChaCha8Rng::seed_from_u64(seed));
        let perturbed = apply();
        prop_assert_eq!(&perturbed, &apply());
        let (speed, tempo) = (f64::from(speed), f64::from(tempo));
        let (min_frames, max_frames) = (frames as f64 / ((1.0 + speed) * (1.0 + tempo)), frames as f64 / ((1.0 - speed) * (1.0 - tempo)));
        prop_assert!(perturbed.frames as f64 >= (min_frames - 0.51).max(1.0) && perturbed.frames as f64 <= max_frames + 0.51);
        prop_assert_eq!((perturbed.dim, perturbed.data.len()), (60, perturbed.frames * 60));
        prop_assert!(perturbed.data.iter().all(|x| x.is_finite()));
    }

    #[test]
    fn the_mel_scale_is_invertible(bin in -1f64..60.0) {
        let scale = front_end().mel_scale();
        prop_assert!((scale.bin(scale.hz(bin)) - bin).abs() < 1e-9);
    }
}

#[test]
fn the_default_changes_nothing() {
    let front_end = front_end();
    let features = beeping_tone(&front_end, 900.0);
    let same = Perturbation::default().apply(
        &features,
        &front_end.mel_scale(),
        Normalization::Utterance,
        &mut ChaCha8Rng::seed_from_u64(1),
    );
    assert_eq!(same, features);
}

/// Compares a perturbed tone with the tone that a faster tape plays.
#[test]
fn speed_perturbation_resembles_a_faster_tape() {
    let front_end = front_end();
    let scale = front_end.mel_scale();
    let perturb = Perturbation { speed: 0.2, ..Perturbation::default() };
    for seed in 0..8 {
        let faster = perturb.apply(
            &beeping_tone(&front_end, 1000.0),
            &scale,
            Normalization::Utterance,
            &mut ChaCha8Rng::seed_from_u64(seed),
        );
        let rate = 98.0 / faster.frames as f64;
        // The same tape, played faster: tone and beeps.
        let hz = 1000.0 * rate as f32;
        let period = 2000.0 / rate;
        let n = (8000.0 / rate) as usize;
        let sample = |i: usize| {
            if (i as f64) % period < period / 2.0 { (TAU * hz * i as f32 / 8000.0).sin() } else { 0.0 }
        };
        let tape =
            front_end.log_mel(&Audio { samples: (0..n).map(sample).collect(), sample_rate: 8000 }).unwrap();
        let bin = scale.bin(f64::from(hz)).round() as usize;
        let frames = tape.frames.min(faster.frames);
        let product: f64 = (0..frames).map(|t| f64::from(tape.frame(t)[bin] * faster.frame(t)[bin])).sum();
        let correlation = product / frames as f64;
        assert!(correlation > 0.9, "seed {seed}, rate {rate:.3}: correlation {correlation:.3}");
    }
}

/// Peaks in otherwise empty features move from `f` to `r f`.
#[test]
fn pitch_and_warp_scale_hertz() {
    let front_end = front_end();
    let scale = front_end.mel_scale();
    let features = alternating_peak(&scale, 1000.0);
    let before = scale.hz(center_bin(&features));
    assert!((before - 1000.0).abs() < 20.0, "{before}");
    for perturb in [
        Perturbation { speed: 0.2, ..Perturbation::default() },
        Perturbation { warp: 0.2, ..Perturbation::default() },
    ] {
        let mut factors = Vec::new();
        for seed in 0..20 {
            let moved = perturb.apply(
                &features,
                &scale,
                Normalization::Utterance,
                &mut ChaCha8Rng::seed_from_u64(seed),
            );
            // Normalization amplifies the flanks, so use the middle of the clearly active bins.
            let active_bins: Vec<f64> = (0..60)
                .filter(|&m| moved.data.iter().skip(m).step_by(60).any(|x| x.abs() > 0.9))
                .map(|m| m as f64)
                .collect();
            let unperturbed_bins: Vec<f64> = (0..60)
                .filter(|&m| {
                    let mut normalized = features.clone();
                    normalized.normalize();
                    normalized.data.iter().skip(m).step_by(60).any(|x| x.abs() > 0.9)
                })
                .map(|m| m as f64)
                .collect();
            let middle = |bins: &[f64]| scale.hz((bins[0] + bins[bins.len() - 1]) / 2.0);
            let factor = middle(&active_bins) / middle(&unperturbed_bins);
            if perturb.speed > 0.0 {
                let rate = 100.0 / moved.frames as f64;
                assert!((factor - rate).abs() < 0.04, "seed {seed}: {factor:.3} for rate {rate:.3}");
            } else {
                assert_eq!(moved.frames, 100);
            }
            factors.push(factor);
        }
        let fold = |select: fn(f64, f64) -> f64, start| factors.iter().copied().fold(start, select);
        let (minimum, maximum) = (fold(f64::min, 9.0), fold(f64::max, 0.0));
        assert!((0.76..0.9).contains(&minimum) && (1.1..1.24).contains(&maximum), "{minimum} to {maximum}");
    }
}

#[test]
fn tempo_keeps_the_bins() {
    let scale = front_end().mel_scale();
    let features = alternating_peak(&scale, 1000.0);
    let mut normalized = features.clone();
    normalized.normalize();
    for seed in 0..10 {
        let perturb = Perturbation { tempo: 0.3, ..Perturbation::default() };
        let moved =
            perturb.apply(&features, &scale, Normalization::Utterance, &mut ChaCha8Rng::seed_from_u64(seed));
        assert_ne!(moved.frames, 100);
        let is_active = |p: &Features, m: usize| p.data.iter().skip(m).step_by(60).any(|x| x.abs() > 0.5);
        for m in 0..60 {
            assert_eq!(is_active(&moved, m), is_active(&normalized, m), "bin {m}");
        }
    }
}

#[test]
fn noise_has_its_standard_deviation() {
    let scale = front_end().mel_scale();
    let features = Features { frames: 500, dim: 60, data: vec![0.0; 30_000] };
    let noisy = Perturbation { noise: 0.5, ..Perturbation::default() }.apply(
        &features,
        &scale,
        Normalization::Utterance,
        &mut ChaCha8Rng::seed_from_u64(3),
    );
    let mean = noisy.data.iter().map(|&x| f64::from(x)).sum::<f64>() / 3e4;
    let variance = noisy.data.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 3e4;
    assert!(mean.abs() < 0.02 && (variance.sqrt() - 0.5).abs() < 0.01, "{mean} {variance}");
}

#[test]
fn settings_out_of_range_are_reported() {
    let none = Perturbation::default;
    let cases = [
        ("speed", Perturbation { speed: 0.6, ..none() }),
        ("tempo", Perturbation { tempo: -0.1, ..none() }),
        ("warp", Perturbation { warp: f32::NAN, ..none() }),
        ("noise", Perturbation { noise: -1.0, ..none() }),
    ];
    for (name, perturb) in cases {
        assert!(matches!(perturb.check(), Err(Error::Setting { field, .. }) if field == name), "{name}");
    }
    assert!(serde_json::from_str::<Perturbation>(r#"{"gain": 1}"#).is_err());
}
