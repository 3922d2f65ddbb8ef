//! Forced alignment with CTC: assigns each label of a known transcript to its first frame.
use rnnt_dp::ctc::{TieBreak, best_path, confidences, expected_emission_frames, log_prob};

use crate::{AlignedLabel, Error, LabelAlignment, Result, Targets, error::expect_len};

/// Aligns the labels of utterances with the log-probabilities of a CTC head.
///
/// The frame of a label is the first of its run on the best path; the confidence is the posterior
/// probability that the label begins at this frame. The result is `None` for an utterance without a
/// path.
///
/// ```
/// use rnnt_loss::{Targets, align_ctc};
/// // Class 0 is the blank; three frames.
/// let log_probs = [0.8f32, 0.2, 0.1, 0.9, 0.7, 0.3].map(f32::ln);
/// let targets = Targets::new(0, vec![3], vec![vec![1]])?;
/// let alignments = align_ctc(&[&log_probs], 2, &targets)?;
/// let label = alignments[0].as_ref().unwrap().labels[0];
/// assert_eq!(label.frame, 1);
/// // Paths 010 and 011, of 100, 110, 111, 010, 011 and 001.
/// let sum_of_all_paths = 0.2 * 0.1 * 0.7 + 0.2 * 0.9 + 0.72 + 0.8 * 0.1 * 0.3;
/// assert!((label.confidence - 0.72 / sum_of_all_paths).abs() < 1e-6);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
///
/// # Shapes
/// `log_probs`: `[T_b, C]` for each utterance, row-major; `T_b` frames of the targets, C classes.
///
/// # Errors
/// Labels or a blank that are no classes; a wrong number of values; a log-probability of a selected
/// class that is NaN or +inf.
///
/// Cost: `O(T U)` time and memory per utterance, one utterance after the other.
pub fn align_ctc(
    log_probs: &[&[f32]],
    classes: usize,
    targets: &Targets,
) -> Result<Vec<Option<LabelAlignment>>> {
    expect_len("log_probs", targets.batch(), log_probs.len())?;
    targets.check_classes(classes)?;
    let align = |(b, &rows): (usize, &&[f32])| {
        expect_len("log_probs", targets.frames(b) * classes, rows.len())?;
        align_utterance(rows, classes, targets.blank(), targets.labels(b))
            .map_err(|error| Error::from(error).in_group(b))
    };
    log_probs.iter().enumerate().map(align).collect()
}

/// Aligns an utterance.
fn align_utterance(
    rows: &[f32],
    classes: usize,
    blank: u32,
    labels: &[u32],
) -> rnnt_dp::Result<Option<LabelAlignment>> {
    if rows.is_empty() {
        return Ok(None);
    }
    // Emissions: the blank, then the labels.
    let columns: Vec<usize> = [blank].iter().chain(labels).map(|&class| class as usize).collect();
    let emissions: Vec<f64> = rows
        .chunks_exact(classes)
        .flat_map(|row| columns.iter().map(|&column| f64::from(row[column])))
        .collect();
    let path = best_path(labels, &emissions, TieBreak::Late)?;
    let loss = -log_prob(labels, &emissions)?;
    if !path.log_prob.is_finite() || !loss.is_finite() {
        return Ok(None);
    }
    let confidences = confidences(labels, &emissions, &path)?;
    let expected_frames = expected_emission_frames(labels, &emissions)?;
    let aligned_label = |(position, span): (usize, std::ops::RangeInclusive<usize>)| {
        let frame = *span.start();
        AlignedLabel {
            label: labels[position],
            frame,
            log_prob: emissions[frame * columns.len() + position + 1],
            confidence: confidences[position],
            expected_frame: expected_frames[position],
        }
    };
    let labels = path.spans().into_iter().enumerate().map(aligned_label).collect();
    Ok(Some(LabelAlignment { labels, log_prob: path.log_prob, loss }))
}
