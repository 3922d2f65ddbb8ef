//! Tests of SpecAugment: limits of masks, and reproducibility from the generator.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use speech::{Error, Features, MaskFill, MaskForm, SpecAugment};

fn features_of_ones(frames: usize, dim: usize) -> Features {
    Features { frames, dim, data: vec![1.0; frames * dim] }
}

proptest! {
    #[test]
    fn masks_keep_their_limits(
        frames in 0usize..40, dim in 1usize..20,
        freq_masks in 0usize..3, freq_width in 0usize..30, time_masks in 0usize..3, time_width in 0f32..=1.0, seed: u64,
    ) {
        let masks = SpecAugment { freq_masks, freq_width, time_masks, time_width, ..SpecAugment::default() };
        prop_assert!(masks.check().is_ok());
        let apply = || {
            let mut features = features_of_ones(frames, dim);
            masks.apply(&mut features, &mut ChaCha8Rng::seed_from_u64(seed));
            features
        };
        let features = apply();
        prop_assert_eq!(&features, &apply());
        prop_assert!(features.data.iter().all(|&x| x == 0.0 || x == 1.0));
        let masked_rows = (0..frames).filter(|&t| features.frame(t).iter().all(|&x| x == 0.0)).count();
        let masked_bins = (0..dim).filter(|&m| (0..frames).all(|t| features.frame(t)[m] == 0.0)).count();
        let widest = (f64::from(time_width) * frames as f64) as usize;
        if masked_bins < dim {
            prop_assert!(masked_rows <= time_masks * widest);
        }
        if masked_rows < frames {
            prop_assert!(masked_bins <= freq_masks * freq_width);
        }
        // Only complete rows and complete bins are masked.
        let masked = features.data.iter().filter(|&&x| x == 0.0).count();
        prop_assert_eq!(masked, frames * dim - (frames - masked_rows) * (dim - masked_bins));
    }
}

#[test]
fn every_width_and_position_occurs() {
    let masks = SpecAugment { freq_masks: 1, freq_width: 2, ..SpecAugment::default() };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mut seen = BTreeSet::new();
    for _ in 0..300 {
        let mut features = features_of_ones(1, 4);
        masks.apply(&mut features, &mut rng);
        seen.insert(features.data.iter().map(|&x| if x == 0.0 { 'x' } else { '-' }).collect::<String>());
    }
    let all = ["----", "x---", "-x--", "--x-", "---x", "xx--", "-xx-", "--xx"];
    assert_eq!(seen, all.map(String::from).into());
}

/// NeMo draws the first element without regard to the width.
#[test]
fn masks_of_nemo_begin_at_most_the_largest_width_before_the_end() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut drawn_masks = |masks: &SpecAugment, frames: usize, bins: usize| {
        let drawn = (0..2000).map(|_| masks.draw_masks((frames, bins), frames + 3, &mut rng));
        let ranges = drawn.flat_map(|masks| [masks.bins, masks.frames].concat());
        ranges
            .filter(|range| !range.is_empty())
            .map(|range| (range.start, range.end))
            .collect::<BTreeSet<_>>()
    };
    let form = MaskForm::Nemo;
    let bins = SpecAugment { freq_masks: 1, freq_width: 2, form, ..SpecAugment::default() };
    let expected = [(0, 1), (1, 2), (2, 3), (0, 2), (1, 3), (2, 4)];
    assert_eq!(drawn_masks(&bins, 1, 4), expected.into());
    // All start at 0 if the largest width is that of the features.
    assert_eq!(drawn_masks(&bins, 1, 2), [(0, 1), (0, 2)].into());
    let frames = SpecAugment { time_masks: 1, time_width: 0.5, form, ..SpecAugment::default() };
    assert_eq!(drawn_masks(&frames, 4, 1), expected.into());
    // 0.05 of 19 frames is less than one frame.
    let short = SpecAugment { time_width: 0.05, ..frames };
    assert_eq!(drawn_masks(&short, 19, 1), (0..19).map(|start| (start, start + 1)).collect());
    assert_eq!([19, 20, 40, 100].map(|frames| short.max_time_width(frames)), [1, 1, 2, 5]);
}

#[test]
fn default_masks_nothing_and_invalid_settings_are_reported() {
    let mut features = features_of_ones(9, 9);
    SpecAugment::default().apply(&mut features, &mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(features, features_of_ones(9, 9));
    for time_width in [-0.1, 1.1, f32::NAN] {
        let error = SpecAugment { time_width, ..SpecAugment::default() }.check().unwrap_err();
        assert!(matches!(error, Error::Setting { field: "time_width", .. }), "{error}");
    }
    assert!(serde_json::from_str::<SpecAugment>(r#"{"masks": 1}"#).is_err());
}

/// Draws masks of every form: masks lie inside the features and reach the maximum width.
#[test]
fn masks_of_every_form_are_within_bounds() {
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for form in [MaskForm::Floor, MaskForm::Reference, MaskForm::Nvidia, MaskForm::Nemo] {
        let masks = SpecAugment {
            freq_masks: 2,
            freq_width: 20,
            time_masks: 10,
            time_width: 0.03,
            form,
            ..SpecAugment::default()
        };
        let extra = usize::from(form == MaskForm::Nvidia);
        for (frames, bins, padded) in
            [(0, 1, 0), (1, 1, 1), (50, 80, 50), (500, 80, 500), (301, 80, 620), (9, 5, 9)]
        {
            let mut widest = 0;
            for _ in 0..200 {
                let drawn = masks.draw_masks((frames, bins), padded, &mut rng);
                assert_eq!((drawn.bins.len(), drawn.frames.len()), (2, 10));
                for mask in &drawn.bins {
                    assert!(mask.start <= mask.end && mask.end <= bins && mask.len() <= 20 + extra);
                }
                for mask in &drawn.frames {
                    assert!(mask.start <= mask.end && mask.end <= padded);
                    widest = widest.max(mask.len());
                }
            }
            assert!(widest <= masks.max_time_width(frames) + extra, "{form:?} {frames}");
            assert!(
                padded < 300 || widest == masks.max_time_width(frames) + extra,
                "{form:?} {frames}: {widest}"
            );
        }
    }
}

#[test]
fn time_width_is_the_decimal_number_of_the_recipe() {
    let width = |form, time_width, frames| {
        SpecAugment { form, time_width, ..SpecAugment::default() }.max_time_width(frames)
    };
    // As f32, 0.03 is slightly smaller, which would lose half of a frame.
    assert_eq!([50, 150, 350].map(|n| width(MaskForm::Reference, 0.03, n)), [2, 4, 10]);
    assert_eq!(width(MaskForm::Nvidia, 0.03, 100), 3);
    assert_eq!(width(MaskForm::Floor, 0.03, 100), 2);
}

#[test]
fn masks_can_be_filled_with_the_mean() {
    let masks =
        SpecAugment { time_masks: 1, time_width: 1.0, fill: MaskFill::Mean, ..SpecAugment::default() };
    let features = Features { frames: 40, dim: 2, data: (0..80).map(|x| x as f32).collect() };
    let mut masked = features.clone();
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    while masked == features {
        masks.apply(&mut masked, &mut rng);
    }
    let changed: Vec<f32> =
        (0..80).filter(|&i| masked.data[i] != features.data[i]).map(|i| masked.data[i]).collect();
    assert!(!changed.is_empty() && changed.iter().all(|&x| x == 39.5), "{changed:?}");
}

#[test]
fn settings_of_older_versions_are_unchanged() {
    let text = r#"{"freq_masks":2,"freq_width":12,"time_masks":2,"time_width":0.05}"#;
    let read: SpecAugment = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&read).unwrap(), text);
    assert_eq!((read.form, read.fill), (MaskForm::Floor, MaskFill::Zero));
    let new: SpecAugment = serde_json::from_str(r#"{"form": "nvidia", "fill": "mean"}"#).unwrap();
    assert_eq!(serde_json::from_str::<SpecAugment>(&serde_json::to_string(&new).unwrap()).unwrap(), new);
}

/// The masks of older versions, drawn by their procedure.
#[test]
fn masks_equal_those_of_older_versions() {
    let masks = SpecAugment {
        freq_masks: 2,
        freq_width: 12,
        time_masks: 2,
        time_width: 0.3,
        ..SpecAugment::default()
    };
    for seed in 0..50 {
        let mut features = features_of_ones(37, 20);
        masks.apply(&mut features, &mut ChaCha8Rng::seed_from_u64(seed));
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut interval = |length: usize, widest: usize| {
            let width = rng.random_range(0..=widest.min(length));
            let first = rng.random_range(0..=length - width);
            first..first + width
        };
        let mut expected = features_of_ones(37, 20);
        for bins in [interval(20, 12), interval(20, 12)] {
            expected.data.chunks_exact_mut(20).for_each(|row| row[bins.clone()].fill(0.0));
        }
        for frames in [interval(37, 11), interval(37, 11)] {
            expected.data[frames.start * 20..frames.end * 20].fill(0.0);
        }
        assert_eq!(features, expected, "{seed}");
    }
}
