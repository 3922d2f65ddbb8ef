//! Masks: as many and as wide as asked for, from the generator alone.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use speech::{Error, Features, MaskFill, MaskForm, SpecAugment};

fn ones(frames: usize, dim: usize) -> Features {
    Features { frames, dim, data: vec![1.0; frames * dim] }
}

proptest! {
    #[test]
    fn masked_stretches_keep_their_limits(
        frames in 0usize..40, dim in 1usize..20,
        freq_masks in 0usize..3, freq_width in 0usize..30, time_masks in 0usize..3, time_width in 0f32..=1.0, seed: u64,
    ) {
        let masks = SpecAugment { freq_masks, freq_width, time_masks, time_width, ..SpecAugment::default() };
        prop_assert!(masks.check().is_ok());
        let apply = || {
            let mut plane = ones(frames, dim);
            masks.apply(&mut plane, &mut ChaCha8Rng::seed_from_u64(seed));
            plane
        };
        let plane = apply();
        prop_assert_eq!(&plane, &apply());
        prop_assert!(plane.data.iter().all(|&x| x == 0.0 || x == 1.0));
        let dead_rows = (0..frames).filter(|&t| plane.frame(t).iter().all(|&x| x == 0.0)).count();
        let dead_bins = (0..dim).filter(|&m| (0..frames).all(|t| plane.frame(t)[m] == 0.0)).count();
        let widest = (f64::from(time_width) * frames as f64) as usize;
        if dead_bins < dim {
            prop_assert!(dead_rows <= time_masks * widest);
        }
        if dead_rows < frames {
            prop_assert!(dead_bins <= freq_masks * freq_width);
        }
        // What is masked is masked in whole rows or bins.
        let hit = plane.data.iter().filter(|&&x| x == 0.0).count();
        prop_assert_eq!(hit, frames * dim - (frames - dead_rows) * (dim - dead_bins));
    }
}

#[test]
fn every_width_and_place_occurs() {
    let masks = SpecAugment { freq_masks: 1, freq_width: 2, ..SpecAugment::default() };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..300 {
        let mut plane = ones(1, 4);
        masks.apply(&mut plane, &mut rng);
        seen.insert(plane.data.iter().map(|&x| if x == 0.0 { 'x' } else { '-' }).collect::<String>());
    }
    let all = ["----", "x---", "-x--", "--x-", "---x", "xx--", "-xx-", "--xx"];
    assert_eq!(seen, all.map(String::from).into());
}

#[test]
fn the_default_masks_nothing_and_bad_settings_are_named() {
    let mut plane = ones(9, 9);
    SpecAugment::default().apply(&mut plane, &mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(plane, ones(9, 9));
    for time_width in [-0.1, 1.1, f32::NAN] {
        let error = SpecAugment { time_width, ..SpecAugment::default() }.check().unwrap_err();
        assert!(matches!(error, Error::Setting { field: "time_width", .. }), "{error}");
    }
    assert!(serde_json::from_str::<SpecAugment>(r#"{"masks": 1}"#).is_err());
}

/// Draws with every form: masks lie inside, and as wide as they may be.
#[test]
fn masks_of_every_form_lie_inside() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for form in [MaskForm::Floor, MaskForm::Reference, MaskForm::Nvidia] {
        let masks = SpecAugment {
            freq_masks: 2,
            freq_width: 20,
            time_masks: 10,
            time_width: 0.03,
            form,
            ..SpecAugment::default()
        };
        let beyond = usize::from(form == MaskForm::Nvidia);
        for (frames, bins, padded) in
            [(0, 1, 0), (1, 1, 1), (50, 80, 50), (500, 80, 500), (301, 80, 620), (9, 5, 9)]
        {
            let mut widest = 0;
            for _ in 0..200 {
                let drawn = masks.masks((frames, bins), padded, &mut rng);
                assert_eq!((drawn.bins.len(), drawn.frames.len()), (2, 10));
                for mask in &drawn.bins {
                    assert!(mask.start <= mask.end && mask.end <= bins && mask.len() <= 20 + beyond);
                }
                for mask in &drawn.frames {
                    assert!(mask.start <= mask.end && mask.end <= padded);
                    widest = widest.max(mask.len());
                }
            }
            assert!(widest <= masks.max_time_width(frames) + beyond, "{form:?} {frames}");
            assert!(
                padded < 300 || widest == masks.max_time_width(frames) + beyond,
                "{form:?} {frames}: {widest}"
            );
        }
    }
}

#[test]
fn a_share_is_the_decimal_that_was_written() {
    let widest = |form, time_width, frames| {
        SpecAugment { form, time_width, ..SpecAugment::default() }.max_time_width(frames)
    };
    // 0.03 in f32 is a little less, and half of a frame would be lost to it.
    assert_eq!([50, 150, 350].map(|n| max_time_width(MaskForm::Reference, 0.03, n)), [2, 4, 10]);
    assert_eq!(max_time_width(MaskForm::Nvidia, 0.03, 100), 3);
    assert_eq!(max_time_width(MaskForm::Floor, 0.03, 100), 2);
}

#[test]
fn masks_may_be_filled_with_the_mean() {
    let masks =
        SpecAugment { time_masks: 1, time_width: 1.0, fill: MaskFill::Mean, ..SpecAugment::default() };
    let plane = Features { frames: 40, dim: 2, data: (0..80).map(|x| x as f32).collect() };
    let mut masked = plane.clone();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    while masked == plane {
        masks.apply(&mut masked, &mut rng);
    }
    let changed: Vec<f32> =
        (0..80).filter(|&i| masked.data[i] != plane.data[i]).map(|i| masked.data[i]).collect();
    assert!(!changed.is_empty() && changed.iter().all(|&x| x == 39.5), "{changed:?}");
}

#[test]
fn old_tables_are_written_as_they_were() {
    let text = r#"{"freq_masks":2,"freq_width":12,"time_masks":2,"time_width":0.05}"#;
    let read: SpecAugment = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    assert_eq!((read.form, read.fill), (MaskForm::Floor, MaskFill::Zero));
    let new: SpecAugment = serde_json::from_str(r#"{"form": "nvidia", "fill": "mean"}"#).unwrap();
    assert_eq!(serde_json::from_str::<SpecAugment>(&serde_json::to_string(&new).unwrap()).unwrap(), new);
}

/// The masks of older versions, drawn as they drew them.
#[test]
fn the_bits_of_old_masks_stay() {
    let masks = SpecAugment {
        freq_masks: 2,
        freq_width: 12,
        time_masks: 2,
        time_width: 0.3,
        ..SpecAugment::default()
    };
    for seed in 0..50 {
        let mut plane = ones(37, 20);
        masks.apply(&mut plane, &mut ChaCha8Rng::seed_from_u64(seed));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut stretch = |length: usize, widest: usize| {
            let width = rng.random_range(0..=widest.min(length));
            let first = rng.random_range(0..=length - width);
            first..first + width
        };
        let mut expected = ones(37, 20);
        for bins in [stretch(20, 12), stretch(20, 12)] {
            expected.data.chunks_exact_mut(20).for_each(|row| row[bins.clone()].fill(0.0));
        }
        for frames in [stretch(37, 11), stretch(37, 11)] {
            expected.data[frames.start * 20..frames.end * 20].fill(0.0);
        }
        assert_eq!(plane, expected, "{seed}");
    }
}
