//! Batches: every index once, limits kept, seeds obeyed.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use speech::batches;

proptest! {
    #[test]
    fn every_index_once_within_the_limits(
        lengths in prop::collection::vec(0usize..500, 0..200),
        max_frames in 0usize..2000,
        max_utterances in 0usize..20,
        seed in prop::option::of(any::<u64>()),
    ) {
        let cut = |seed: Option<u64>| {
            let mut rng = seed.map(ChaCha8Rng::seed_from_u64);
            batches(&lengths, max_frames, max_utterances, rng.as_mut())
        };
        let found = cut(seed);
        prop_assert_eq!(&found, &cut(seed));
        let mut all: Vec<usize> = found.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
        for batch in &found {
            let longest = batch.iter().map(|&i| lengths[i]).max().unwrap();
            prop_assert!(batch.len() == 1 || (longest * batch.len() <= max_frames && batch.len() <= max_utterances));
        }
        if seed.is_none() {
            let order: Vec<_> = found.concat().into_iter().map(|i| (lengths[i], i)).collect();
            prop_assert!(order.is_sorted());
        }
    }
}

#[test]
fn seeds_mix_neighbours_but_keep_padding_small() {
    let lengths: Vec<usize> = (0..1000).map(|i| 100 + (i * 37) % 300).collect();
    let cut = |seed| batches(&lengths, 4000, 64, Some(&mut ChaCha8Rng::seed_from_u64(seed)));
    let (a, b) = (cut(1), cut(2));
    assert_ne!(a, b);
    let sorted = |mut batches: Vec<Vec<usize>>| {
        batches.iter_mut().for_each(|b| b.sort_unstable());
        batches.sort();
        batches
    };
    assert_ne!(sorted(a.clone()), sorted(b), "other batches, not just another order of them");
    let padded: usize = a.iter().map(|b| b.len() * b.iter().map(|&i| lengths[i]).max().unwrap()).sum();
    let real: usize = lengths.iter().sum();
    assert!((padded as f64) < 1.25 * real as f64, "{padded} padded frames for {real}");
    let firsts: Vec<usize> = a.iter().map(|b| lengths[b[0]]).collect();
    assert!(!firsts.is_sorted(), "batches are shuffled");
}
