//! Golden test of batching in MLPerf's RNN-T; all results must be equal.
//!
//! It covers the filter by duration, buckets of similar length, splits of a batch, and packed
//! offsets.
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use speech::batching::{
    BatchSplit, EpochSize, FrameCounts, bucket_for, filter_by_duration, packed_offsets, presort, split_batch,
    split_into_buckets, split_sequences, static_lengths,
};

use super::check::MlPerfCheck;
use crate::error::RunError;

/// Samples from one frame to the next.
const HOP_SAMPLES: usize = 160;
/// Adjacent frames that are joined into one encoder input row.
const SPLICE: usize = 3;
/// Input rows that the encoder joins between two layers.
const ENCODER_STACK: usize = 2;

/// Compares one of two kinds of cases, by its tensors.
pub(super) fn compare(check: &mut MlPerfCheck) -> Result<(), RunError> {
    if check.file.tensors.contains_key("durations") {
        compare_filter_and_buckets(check)
    } else {
        compare_splits_and_lengths(check)
    }
}

/// Settings of a case about the filter and the buckets.
#[derive(Deserialize)]
struct Options {
    max_duration: f64,
    buckets: Vec<usize>,
    plans: Vec<EpochSizeCase>,
    /// Fields `bucket_sizes.kK`.
    #[serde(flatten)]
    sizes: BTreeMap<String, Value>,
}

/// Expected number of steps and utterances of an epoch.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EpochSizeCase {
    micro_batch_per_worker: usize,
    workers: usize,
    accumulation: usize,
    samples_after_drop: usize,
    dropped: usize,
    micro_batches_per_worker: usize,
    steps_per_epoch: usize,
    samples_trained_per_epoch: usize,
}

/// Checks the filter by duration, the buckets, and epoch sizes.
fn compare_filter_and_buckets(check: &mut MlPerfCheck) -> Result<(), RunError> {
    let mut options: Options = check.file.field("options")?;
    let durations = check.input::<f64>("durations")?;
    let actual = filter_by_duration(&durations, options.max_duration);
    check.compare_integers("kept", &actual.kept_indices)?;
    check.expect_equal("left out", &actual.removed, &(durations.len() - actual.kept_indices.len()));
    let kept_durations: Vec<f64> = actual.kept_indices.iter().map(|&i| durations[i]).collect();
    let original_indices =
        |bucket: &[usize]| bucket.iter().map(|&i| actual.kept_indices[i]).collect::<Vec<_>>();
    check.compare_integers(
        "kept_sorted",
        &original_indices(&split_into_buckets(&kept_durations, 1)?.concat()),
    )?;
    for bucket_count in options.buckets {
        let buckets = split_into_buckets(&kept_durations, bucket_count)?;
        let sizes: Vec<usize> = buckets.iter().map(Vec::len).collect();
        let name = format!("bucket_sizes.k{bucket_count}");
        let stored = options.sizes.remove(&name).unwrap_or_default();
        check.expect_equal(&name, &serde_json::json!(sizes), &stored);
        // Bucket of each utterance; -1 for those that the filter removed.
        let mut bucket_of = vec![-1.0; durations.len()];
        for (bucket_index, bucket) in buckets.iter().enumerate() {
            original_indices(bucket).into_iter().for_each(|i| bucket_of[i] = bucket_index as f64);
        }
        check.compare(&format!("bucket_of.k{bucket_count}"), &bucket_of, super::check::Tolerance::Exact)?;
    }
    check.expect_equal("unknown options", &options.sizes, &BTreeMap::new());
    for plan in options.plans {
        let stored = EpochSize {
            utterances: plan.samples_after_drop,
            dropped: plan.dropped,
            micro_batches: plan.micro_batches_per_worker,
            steps: plan.steps_per_epoch,
            trained: plan.samples_trained_per_epoch,
        };
        let EpochSizeCase { micro_batch_per_worker, workers, accumulation, .. } = plan;
        let actual = EpochSize::new(kept_durations.len(), micro_batch_per_worker, workers, accumulation)?;
        check.expect_equal(
            &format!("plan {micro_batch_per_worker} x {workers} x {accumulation}"),
            &actual,
            &stored,
        );
    }
    Ok(())
}

/// Expected split of a padded batch by time, for recurrent layers.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SequenceSplitCase {
    lens: Vec<usize>,
    stack: usize,
    min_second_part: usize,
    lens_sorted: Vec<usize>,
    rows_of_second_part: usize,
    pivot: usize,
    second_part_frames: usize,
    is_split: bool,
}

/// Expected static lengths, and the one used for each length.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StaticLengthCase {
    longest: usize,
    count: usize,
    lengths: Vec<usize>,
    lookup: Vec<(usize, usize)>,
}

/// Expected split of a batch by utterances; `error` requires a failure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BatchSplitCase {
    batch: usize,
    factor: usize,
    accumulation: usize,
    #[serde(default)]
    ranges: Vec<(usize, usize)>,
    loss_divisor: Option<usize>,
    #[serde(default)]
    error: bool,
}

/// Expected number of rows after framing, splicing and stacking of a signal.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameCountCase {
    samples: usize,
    frames: usize,
    spliced: usize,
    encoder: usize,
}

/// Checks splits of a batch, static lengths, frame counts, and offsets.
fn compare_splits_and_lengths(check: &mut MlPerfCheck) -> Result<(), RunError> {
    for case in check.file.field::<Vec<SequenceSplitCase>>("sequence_split")? {
        let actual = split_sequences(&case.lens, case.stack, case.min_second_part)?;
        let name = format!("sequence_split of {:?}", case.lens);
        check.expect_equal(&name, &actual.order.iter().map(|&i| case.lens[i]).collect(), &case.lens_sorted);
        check.expect_equal(
            &name,
            &(actual.rows_of_second_part, actual.pivot, actual.second_part_frames, actual.is_split),
            &(case.rows_of_second_part, case.pivot, case.second_part_frames, case.is_split),
        );
    }
    for case in check.file.field::<Vec<StaticLengthCase>>("captured_lengths")? {
        let actual = static_lengths(case.longest, case.count)?;
        let name = format!("captured_lengths of {} in {}", case.longest, case.count);
        check.expect_equal(&name, &actual, &case.lengths);
        for (length, captured) in case.lookup {
            check.expect_equal(&format!("{name}: {length}"), &bucket_for(&actual, length), &Some(captured));
        }
    }
    for case in check.file.field::<Vec<BatchSplitCase>>("batch_split")? {
        let actual = split_batch(case.batch, case.factor, case.accumulation);
        let stored = (!case.error).then(|| BatchSplit {
            ranges: case.ranges.iter().map(|&(from, to)| from..to).collect(),
            loss_divisor: case.loss_divisor.unwrap_or_default(),
        });
        check.expect_equal(
            &format!("batch_split of {} by {}", case.batch, case.factor),
            &actual.ok(),
            &stored,
        );
    }
    for case in check.file.field::<Vec<FrameCountCase>>("lengths")? {
        let actual = FrameCounts::new(case.samples, HOP_SAMPLES, SPLICE, ENCODER_STACK);
        let stored = FrameCounts { frames: case.frames, spliced: case.spliced, encoder: case.encoder };
        check.expect_equal(&format!("lengths of {} samples", case.samples), &actual, &stored);
    }
    let durations = check.input::<f64>("presort.duration_after_perturbation")?;
    check.compare_integers("presort.order", &presort(&durations))?;
    let frames: Vec<usize> =
        check.input_integers("packed.feature_lens")?.iter().map(|n| n.div_ceil(ENCODER_STACK)).collect();
    let labels = check.input_integers("packed.target_lens")?;
    check.compare_integers("packed.batch_offset", &packed_offsets(&frames, &labels)?)?;
    Ok(())
}
