//! Connectionist temporal classification by trying every labelling of the frames.

use crate::error::{Error, Result, shape, value};
use crate::paths::log_sum;

/// The most labellings `C^T` that are tried.
pub const MAX_LABELLINGS: usize = 2_000_000;

/// Sum over the labellings that collapse to the target.
#[derive(Clone, Debug)]
pub struct Labellings {
    /// How many labellings collapse to the target.
    pub count: usize,
    /// `log P(target)`; -inf where no labelling has a probability.
    pub log_likelihood: f64,
    /// `[T, C]`: posterior probability that a frame carries a class. All zero without a labelling.
    pub occupancies: Vec<f64>,
}

/// Adds up every labelling of the frames that collapses to `target`: runs of equal classes count once, then blanks go.
///
/// # Shapes
/// `log_probs` `[T, C]`, flat.
///
/// # Errors
/// A wrong length, ids outside the classes or a blank in the target, NaN or +inf, more than [`MAX_LABELLINGS`] labellings.
///
/// Cost: O(C^T · T).
pub fn sum_over_labellings(
    log_probs: &[f64],
    frames: usize,
    classes: usize,
    target: &[u32],
    blank: u32,
) -> Result<Labellings> {
    if frames == 0 || classes == 0 || log_probs.len() != frames * classes {
        let expected = format!("T C = {frames} x {classes} values, at least one");
        return Err(shape("log_probs", expected, log_probs.len()));
    }
    if blank as usize >= classes {
        return Err(value("blank", 0, format!("an id below {classes}"), blank));
    }
    if let Some(i) = target.iter().position(|&id| id as usize >= classes || id == blank) {
        return Err(value("target", i, format!("an id below {classes} other than {blank}"), target[i]));
    }
    if let Some(i) = log_probs.iter().position(|p| p.is_nan() || *p == f64::INFINITY) {
        return Err(value("log_probs", i, "a number below +inf", log_probs[i]));
    }
    let found = (classes as f64).powi(i32::try_from(frames).unwrap_or(i32::MAX));
    if found > MAX_LABELLINGS as f64 {
        return Err(Error::TooLarge { what: "labellings C^T", limit: MAX_LABELLINGS, found });
    }
    let score = |labelling: &[u32]| -> f64 {
        labelling.iter().enumerate().map(|(t, &c)| log_probs[t * classes + c as usize]).sum()
    };
    let mut kept = Vec::new();
    let mut labelling = vec![0_u32; frames];
    for number in 0..found as usize {
        // The frames' classes are the digits of a number in base C.
        let mut rest = number;
        for class in &mut labelling {
            *class = (rest % classes) as u32;
            rest /= classes;
        }
        if collapse(&labelling, blank) == target {
            kept.push(labelling.clone());
        }
    }
    let scores: Vec<f64> = kept.iter().map(|labelling| score(labelling)).collect();
    let log_likelihood = log_sum(&scores);
    let mut occupancies = vec![0.0; log_probs.len()];
    for (labelling, score) in kept.iter().zip(&scores).filter(|(_, score)| score.is_finite()) {
        for (t, &class) in labelling.iter().enumerate() {
            occupancies[t * classes + class as usize] += (score - log_likelihood).exp();
        }
    }
    Ok(Labellings { count: kept.len(), log_likelihood, occupancies })
}

/// What a labelling says: runs of equal classes count once, then blanks go.
pub fn collapse(labelling: &[u32], blank: u32) -> Vec<u32> {
    let mut runs = labelling.to_vec();
    runs.dedup();
    runs.retain(|&class| class != blank);
    runs
}
