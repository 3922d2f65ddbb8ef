//! Tests of batch planning: every index once, within limits, reproducibly.

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use speech::batching::{
    EpochSize, Padding, bucket_batches, bucket_for, filter_by_duration, packed_offsets, presort, split_batch,
    split_into_buckets, split_sequences, static_lengths,
};
use speech::{Error, plan_batches};

proptest! {
    #[test]
    fn every_index_once_within_the_limits(
        lengths in prop::collection::vec(0usize..500, 0..200),
        max_frames in 0usize..2000,
        max_utterances in 0usize..20,
        seed in prop::option::of(any::<u64>()),
    ) {
        let plan = |seed: Option<u64>| {
            let mut rng = seed.map(ChaCha8Rng::seed_from_u64);
            plan_batches(&lengths, max_frames, max_utterances, rng.as_mut())
        };
        let batches = plan(seed);
        prop_assert_eq!(&batches, &plan(seed));
        let mut all: Vec<usize> = batches.concat();
        all.sort_unstable();
        prop_assert_eq!(all, (0..lengths.len()).collect::<Vec<_>>());
        for batch in &batches {
            let longest = batch.iter().map(|&i| lengths[i]).max().unwrap();
            prop_assert!(batch.len() == 1 || (longest * batch.len() <= max_frames && batch.len() <= max_utterances));
        }
        if seed.is_none() {
            let order: Vec<_> = batches.concat().into_iter().map(|i| (lengths[i], i)).collect();
            prop_assert!(order.is_sorted());
        }
    }
}

#[test]
fn seeds_mix_neighbors_but_keep_padding_small() {
    let lengths: Vec<usize> = (0..1000).map(|i| 100 + (i * 37) % 300).collect();
    let plan = |seed| plan_batches(&lengths, 4000, 64, Some(&mut ChaCha8Rng::seed_from_u64(seed)));
    let (batches, other_batches) = (plan(1), plan(2));
    assert_ne!(batches, other_batches);
    let sorted = |mut batches: Vec<Vec<usize>>| {
        batches.iter_mut().for_each(|batch| batch.sort_unstable());
        batches.sort();
        batches
    };
    assert_ne!(
        sorted(batches.clone()),
        sorted(other_batches),
        "different batches, not only a different order"
    );
    let padded: usize =
        batches.iter().map(|batch| batch.len() * batch.iter().map(|&i| lengths[i]).max().unwrap()).sum();
    let unpadded: usize = lengths.iter().sum();
    assert!((padded as f64) < 1.25 * unpadded as f64, "{padded} padded frames for {unpadded}");
    let first_lengths: Vec<usize> = batches.iter().map(|batch| lengths[batch[0]]).collect();
    assert!(!first_lengths.is_sorted(), "batches are shuffled");
}

/// Unsorted durations.
fn durations(n: usize) -> Vec<f64> {
    (0..n).map(|i| 1.0 + ((i * 37) % 101) as f64 / 7.0).collect()
}

proptest! {
    #[test]
    fn buckets_are_equal_in_size_and_sorted(n in 1usize..200, count in 1usize..12) {
        let durations = durations(n);
        let Ok(buckets) = split_into_buckets(&durations, count) else {
            prop_assert!(n < count);
            return Ok(());
        };
        let sizes: Vec<usize> = buckets.iter().map(Vec::len).collect();
        prop_assert_eq!(sizes, (0..count).map(|k| n / count + usize::from(k < n % count)).collect::<Vec<_>>());
        let joined = buckets.concat();
        let order: Vec<_> = joined.iter().map(|&i| (durations[i], i)).collect();
        prop_assert!(order.is_sorted());
        prop_assert_eq!(joined.len(), n);
    }

    #[test]
    fn an_epoch_of_buckets_drops_less_than_a_batch(
        n in 1usize..300, count in 1usize..8, batch in 1usize..40, seed in any::<u64>(),
    ) {
        prop_assume!(n >= count && n >= batch);
        let buckets = split_into_buckets(&durations(n), count).unwrap();
        let epoch = |seed| bucket_batches(&buckets, batch, &mut ChaCha8Rng::seed_from_u64(seed)).unwrap();
        let batches = epoch(seed);
        prop_assert_eq!(&batches, &epoch(seed));
        prop_assert!(batches.len() == n / batch && batches.iter().all(|b| b.len() == batch));
        let mut all = batches.concat();
        all.sort_unstable();
        all.dedup();
        prop_assert_eq!(all.len(), n - n % batch);
        // Full batches of neighbors: in sorted order a batch, with the dropped utterances, spans
        // less than two batch lengths.
        let bucket_of = |i: usize| buckets.iter().position(|bucket| bucket.contains(&i)).unwrap();
        let smallest = buckets.iter().map(Vec::len).min().unwrap();
        if 2 * batch <= smallest {
            for batch in &batches {
                let batch_buckets: Vec<usize> = batch.iter().map(|&i| bucket_of(i)).collect();
                prop_assert!(batch_buckets.iter().max().unwrap() - batch_buckets.iter().min().unwrap() <= 1);
            }
        }
        let size = EpochSize::new(n, batch, 1, 1).unwrap();
        prop_assert_eq!((size.steps, size.trained), (batches.len(), n - n % batch));
    }

    #[test]
    fn splits_contain_every_sequence_once(lengths in prop::collection::vec(0usize..500, 1..40), stack in 1usize..4) {
        let split = split_sequences(&lengths, stack, 20).unwrap();
        let mut order = split.order.clone();
        order.sort_unstable();
        prop_assert_eq!(order, (0..lengths.len()).collect::<Vec<_>>());
        let (long, short) = split.order.split_at(split.rows_of_second_part);
        prop_assert!(short.iter().all(|&i| lengths[i] <= split.pivot));
        prop_assert!(long.iter().all(|&i| lengths[i] <= split.pivot + split.second_part_frames));
        prop_assert!(!split.is_split || split.pivot.is_multiple_of(stack) && split.second_part_frames >= 20);

        let durations: Vec<f64> = lengths.iter().map(|&n| n as f64).collect();
        let mut order = presort(&durations);
        let lengths_at = |odd: usize| order.iter().skip(odd).step_by(2).map(|&i| lengths[i]).collect::<Vec<_>>();
        let (even, odd) = (lengths_at(0), lengths_at(1));
        prop_assert!(even.is_sorted() && odd.iter().rev().is_sorted());
        prop_assert!(odd.iter().min().is_none_or(|minimum| even.iter().all(|n| n <= minimum)));
        order.sort_unstable();
        prop_assert_eq!(order, (0..lengths.len()).collect::<Vec<_>>());
    }

    #[test]
    fn static_lengths_cover_every_length(longest in 1usize..2000, count in 1usize..60, length in 0usize..2500) {
        let lengths = static_lengths(longest, count).unwrap();
        prop_assert!(lengths.len() == count && lengths[0] == longest && lengths.iter().rev().is_sorted());
        prop_assert!(lengths[count - 1] >= 1);
        let bucket = bucket_for(&lengths, length);
        prop_assert_eq!(bucket.is_some(), length <= longest);
        if let Some(frames) = bucket {
            prop_assert!(frames >= length && frames - length <= longest.div_ceil(count));
        }
    }

    #[test]
    fn padding_is_the_difference_from_the_real_frames(lengths in prop::collection::vec(0usize..500, 0..100), max in 1usize..3000) {
        let plan = plan_batches(&lengths, max, 8, None);
        let padding = Padding::new(&lengths, &plan);
        prop_assert_eq!(padding.utterance_rows, lengths.iter().sum::<usize>());
        prop_assert!(padding.padded_rows >= padding.utterance_rows && (0.0..1.0).contains(&padding.fraction()));
    }
}

#[test]
fn epochs_over_workers_by_hand() {
    let size = |micro, workers, accumulation| EpochSize::new(165, micro, workers, accumulation).unwrap();
    let expected = EpochSize { utterances: 160, dropped: 5, micro_batches: 16, steps: 5, trained: 150 };
    assert_eq!(size(5, 2, 3), expected);
    let expected = EpochSize { utterances: 128, dropped: 37, micro_batches: 1, steps: 0, trained: 0 };
    assert_eq!(size(16, 8, 2), expected);
}

#[test]
fn invalid_arguments_are_typed_errors() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let error = split_into_buckets(&[1.0, 2.0], 4).unwrap_err().to_string();
    assert_eq!(error, "bucket 3 of 4: expected at least one utterance, found none; there are 2 in all");
    assert!(matches!(split_into_buckets(&[], 1), Err(Error::EmptyBucket { .. })));
    for (error, field) in [
        (split_into_buckets(&[1.0], 0).unwrap_err(), "buckets"),
        (bucket_batches(&[vec![0, 1]], 3, &mut rng).unwrap_err(), "batch"),
        (bucket_batches(&[vec![0, 1]], 0, &mut rng).unwrap_err(), "batch"),
        (bucket_batches(&[], 1, &mut rng).unwrap_err(), "batch"),
        (EpochSize::new(9, 0, 1, 1).unwrap_err(), "micro_batch"),
        (EpochSize::new(9, 1, 0, 1).unwrap_err(), "workers"),
        (EpochSize::new(9, 1, 1, 0).unwrap_err(), "accumulation"),
        (EpochSize::new(9, usize::MAX, 2, 1).unwrap_err(), "micro_batch"),
        (split_batch(10, 4, 1).unwrap_err(), "batch_split"),
        (split_batch(10, 0, 1).unwrap_err(), "batch_split"),
        (split_batch(0, 1, 1).unwrap_err(), "batch_split"),
        (split_batch(10, 2, 0).unwrap_err(), "accumulation"),
        (split_batch(10, 2, usize::MAX).unwrap_err(), "accumulation"),
        (split_sequences(&[], 2, 1).unwrap_err(), "lengths"),
        (split_sequences(&[1], 0, 1).unwrap_err(), "stack"),
        (static_lengths(0, 3).unwrap_err(), "longest"),
        (static_lengths(3, 0).unwrap_err(), "count"),
        (static_lengths(usize::MAX, 3).unwrap_err(), "longest"),
        (packed_offsets(&[1], &[]).unwrap_err(), "labels"),
        (packed_offsets(&[1], &[usize::MAX]).unwrap_err(), "frames"),
        (packed_offsets(&[usize::MAX, 1], &[0, 0]).unwrap_err(), "frames"),
    ] {
        assert!(error.to_string().starts_with(&format!("setting `{field}`: expected ")), "{error}");
    }
}

#[test]
fn invalid_durations_are_removed() {
    let filter = filter_by_duration(&[1.0, f64::NAN, f64::INFINITY, -1.0], 2.0);
    assert_eq!((filter.kept_indices, filter.removed), (vec![0, 3], 2));
    assert!(!split_sequences(&[101, 101], 2, 0).unwrap().is_split);
    assert_eq!(split_sequences(&[usize::MAX, usize::MAX], 2, 0).unwrap().second_part_frames, 0);
}
