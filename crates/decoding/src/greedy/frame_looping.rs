//! Frame-looping: the conventional batched greedy search of transducers.
//!
//! It is a baseline for label-looping, which returns the same hypotheses.
use super::{GreedyOptions, decoded_token, frame_count};
use crate::best_class::{best_class, invalid_scores};
use crate::{DecodingModel, Error, Hypotheses, NetworkScratch, Result, SiteBatch, SiteIndex, States};

/// Decodes a batch greedily, frame by frame (frame-looping).
///
/// Bataev et al., arXiv 2406.06220, algorithm 2. Results equal those of
/// [`GreedySearch`](crate::GreedySearch), which is faster and supports fusion and confidences.
///
/// ```text
/// for frames t of the longest utterance:
///   at most max_symbols times, until no utterance emits a label at t:
///     predictor and joint, whole batch, after the last labels
/// ```
/// An utterance that a duration has advanced beyond t is still part of the computation.
///
/// # Shapes
/// As [`GreedySearch::decode`](crate::GreedySearch::decode).
///
/// # Cost
/// About `Σ_t (1 + max_b labels of utterance b on frame t)` steps of predictor and joint for the
/// whole batch.
///
/// # Errors
/// [`Error::Option`] for unsupported options; those of
/// [`GreedySearch::decode`](crate::GreedySearch::decode).
pub fn frame_looping(
    model: &DecodingModel,
    frames: &[&[f32]],
    options: &GreedyOptions,
) -> Result<Hypotheses> {
    options.check(model)?;
    let unsupported = options.fusion.len() as f64 + f64::from(options.internal_lm).abs();
    if unsupported > 0.0 || options.confidence.is_some() || options.record_steps {
        let expected = "no fusion, confidence or steps in frame-looping";
        return Err(Error::Option { option: "options", expected, found: unsupported });
    }
    let (token_table, batch, width) = (model.token_table(), frames.len(), model.start().1.len());
    // Sizes and state of each utterance.
    let mut frame_counts = Vec::with_capacity(batch);
    for (b, frames) in frames.iter().enumerate() {
        frame_counts.push(frame_count(frames, model).map_err(|error| error.in_utterance(b))?);
    }
    let mut hypotheses = Hypotheses::default();
    hypotheses.reset(batch, false);
    // States before and after the newest labels: the predictor starts from the former in every
    // iteration.
    let (mut states_before, mut states_after) = (States::new(model.start().0.shape()), States::default());
    states_before.extend(model.start().0, std::iter::repeat_n(0, batch));
    let mut newest_labels: Vec<Option<u32>> = vec![None; batch];
    let (mut next_frames, mut is_capped) = (vec![0; batch], vec![false; batch]);
    let (mut labels, mut label_rows) = (vec![token_table.blank(); batch], vec![0.0; batch * width]);
    let (mut predicted, mut scratch) = (Vec::new(), NetworkScratch::default());
    let mut scores = vec![0.0; batch * model.outputs()];
    // Only utterances with frames have sites.
    let longest = frame_counts.iter().copied().max().unwrap_or(0);
    let nonempty: Vec<usize> = (0..batch).filter(|&b| frame_counts[b] > 0).collect();
    kernels::run_in_pool(|| {
        for t in 0..longest {
            let mut symbols = 0;
            let mut active: Vec<usize> = nonempty
                .iter()
                .copied()
                .filter(|&b| next_frames[b] == t && t < frame_counts[b] && !is_capped[b])
                .collect();
            while !active.is_empty() {
                // Predictor of the whole batch, after the newest labels or at the start.
                states_after.clone_from(&states_before);
                for b in 0..batch {
                    labels[b] = newest_labels[b].unwrap_or(placeholder_label(model));
                }
                model.step(&labels, &mut states_after, &mut label_rows, &mut predicted, &mut scratch);
                for b in (0..batch).filter(|&b| newest_labels[b].is_none()) {
                    label_rows[b * width..][..width].copy_from_slice(model.start().1);
                    states_after.copy_row(b, model.start().0, 0);
                }
                // Joint of the whole batch.
                let site =
                    |&b: &usize| SiteIndex { utterance: b, frame: t.min(frame_counts[b] - 1), label_row: b };
                let sites: Vec<SiteIndex> = nonempty.iter().map(site).collect();
                let scores = &mut scores[..sites.len() * model.outputs()];
                model.joint().scores(
                    &SiteBatch { frames, label_rows: &label_rows, sites: &sites },
                    scores,
                    &mut scratch,
                );
                // Advance each active utterance by its best class.
                symbols += 1;
                let mut emitting = Vec::new();
                for (scores, &b) in scores.chunks_exact(model.outputs()).zip(&nonempty) {
                    if !active.contains(&b) {
                        continue;
                    }
                    let best = best_class(scores, token_table)
                        .ok_or_else(|| invalid_scores(scores, token_table, t).in_utterance(b))?;
                    let mut advance = token_table.frame_advance(best.class, best.duration);
                    if token_table.is_blank(best.class) {
                        next_frames[b] = t.saturating_add(advance.max(1));
                        continue;
                    }
                    if hypotheses.labels(b).len() >= options.label_limit(t) {
                        is_capped[b] = true;
                        continue;
                    }
                    hypotheses.push(b, decoded_token(&best, token_table, t));
                    states_before.copy_row(b, &states_after, b);
                    newest_labels[b] = Some(best.class);
                    advance = advance.max(usize::from(Some(symbols) == options.max_symbols));
                    if advance == 0 {
                        emitting.push(b);
                    } else {
                        next_frames[b] = t.saturating_add(advance);
                    }
                }
                active = emitting;
            }
        }
        Ok(())
    })?;
    (0..batch).for_each(|b| hypotheses.set_end(b, next_frames[b], is_capped[b]));
    Ok(hypotheses)
}

/// Any label, for rows whose result is discarded.
fn placeholder_label(model: &DecodingModel) -> u32 {
    (0..)
        .find(|&class| !model.token_table().is_blank(class))
        .unwrap_or(0)
        .min(model.predictor().label_ids() as u32 - 1)
}
