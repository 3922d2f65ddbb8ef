//! Masks: as many and as wide as asked for, from the generator alone.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use speech::{Error, Features, SpecAugment};

fn ones(frames: usize, dim: usize) -> Features {
    Features { frames, dim, data: vec![1.0; frames * dim] }
}

proptest! {
    #[test]
    fn masked_stretches_keep_their_limits(
        frames in 0usize..40, dim in 1usize..20,
        freq_masks in 0usize..3, freq_width in 0usize..30, time_masks in 0usize..3, time_width in 0f32..=1.0, seed: u64,
    ) {
        let masks = SpecAugment { freq_masks, freq_width, time_masks, time_width };
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
