//! CTC (connectionist temporal classification) loss by enumeration of all labelings.
//!
//! A labeling is one class per frame, so there are `C^T` of them: tiny problems only.

use crate::error::{Error, Result, shape_error, value_error};
use crate::paths::log_sum;

/// Largest number of labelings `C^T` that are enumerated.
const MAX_LABELINGS: usize = 2_000_000;

/// Sum over the labelings that collapse to the target.
#[derive(Clone, Debug)]
pub struct Labelings {
    /// Number of labelings that collapse to the target.
    pub count: usize,
    /// `log P(target)`; -inf where no labeling has a probability.
    pub log_likelihood: f64,
    /// `[T, C]`: posterior probability that a frame has a class; all zero without a labeling.
    pub occupancies: Vec<f64>,
}

/// Sums over every labeling of the frames that collapses to `target`.
///
/// A labeling collapses by merging runs of equal classes and then removing blanks.
///
/// # Shapes
/// `log_probs` `[T, C]`, flat.
///
/// # Errors
/// A wrong length, ids outside the classes, a blank in the target, NaN or +inf, or more than
/// 2,000,000 labelings.
///
/// Cost: O(C^T · T).
pub fn sum_over_labelings(
    log_probs: &[f64],
    frames: usize,
    classes: usize,
    target: &[u32],
    blank: u32,
) -> Result<Labelings> {
    if frames == 0 || classes == 0 || log_probs.len() != frames * classes {
        let expected = format!("T C = {frames} x {classes} values, at least one");
        return Err(shape_error("log_probs", expected, log_probs.len()));
    }
    if blank as usize >= classes {
        return Err(value_error("blank", 0, format!("an id below {classes}"), blank));
    }
    if let Some(i) = target.iter().position(|&id| id as usize >= classes || id == blank) {
        return Err(value_error("target", i, format!("an id below {classes} other than {blank}"), target[i]));
    }
    if let Some(i) = log_probs.iter().position(|value| value.is_nan() || *value == f64::INFINITY) {
        return Err(value_error("log_probs", i, "a number below +inf", log_probs[i]));
    }
    let count = (classes as f64).powi(i32::try_from(frames).unwrap_or(i32::MAX));
    if count > MAX_LABELINGS as f64 {
        return Err(Error::TooLarge { argument: "labelings C^T", limit: MAX_LABELINGS, found: count });
    }
    let score = |labeling: &[u32]| -> f64 {
        labeling.iter().enumerate().map(|(t, &c)| log_probs[t * classes + c as usize]).sum()
    };
    // Labelings that collapse to the target.
    let mut labelings = Vec::new();
    let mut labeling = vec![0_u32; frames];
    for number in 0..count as usize {
        // The frames' classes are the digits of a number in base C.
        let mut digits = number;
        for class in &mut labeling {
            *class = (digits % classes) as u32;
            digits /= classes;
        }
        if collapse(&labeling, blank) == target {
            labelings.push(labeling.clone());
        }
    }
    // Posterior probability of each labeling.
    let scores: Vec<f64> = labelings.iter().map(|labeling| score(labeling)).collect();
    let log_likelihood = log_sum(&scores);
    let mut occupancies = vec![0.0; log_probs.len()];
    for (labeling, score) in labelings.iter().zip(&scores).filter(|(_, score)| score.is_finite()) {
        for (t, &class) in labeling.iter().enumerate() {
            occupancies[t * classes + class as usize] += (score - log_likelihood).exp();
        }
    }
    Ok(Labelings { count: labelings.len(), log_likelihood, occupancies })
}

/// Returns the labels of a labeling: runs of equal classes are merged, then blanks removed.
pub fn collapse(labeling: &[u32], blank: u32) -> Vec<u32> {
    let mut labels = labeling.to_vec();
    labels.dedup();
    labels.retain(|&class| class != blank);
    labels
}
