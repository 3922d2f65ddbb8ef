//! `ClassMask`: restricts a search to some classes, with exact renormalization.
//!
//! A language lock forbids the labels of other scripts. The model then has the distribution of its
//! classes under the condition that the class is allowed:
//!
//! ```text
//! p'(c) = p(c) / Σ_{k allowed} p(k)        z'(c) = z(c) if c is allowed, otherwise -inf
//! ```
//! Both are the same under the softmax that every search applies to its scores. Durations have a
//! separate softmax and are unchanged.
use std::sync::Arc;

use kernels::Real;

use crate::{Error, JointScorer, NetworkScratch, Result, SiteBatch, TokenTable};

/// The classes that a search may emit.
///
/// ```
/// use decoding::{ClassMask, CtcGreedySearch};
///
/// // Class 1 is the best of the frame, but forbidden; class 0 is the blank.
/// let mask = ClassMask::new(&[true, false, true]);
/// let search = CtcGreedySearch::new(3, 0)?.with_mask(mask)?;
/// let log_probs = [0.1f32, 0.6, 0.3].map(f32::ln);
/// let label = search.decode(&[&log_probs])?[0].labels[0];
/// assert_eq!(label.label, 2);
/// assert!((label.log_prob.exp() - 0.3 / 0.4).abs() < 1e-6);
/// # Ok::<(), decoding::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMask {
    classes: usize,
    /// Forbidden classes in order.
    forbidden: Vec<u32>,
}

impl ClassMask {
    /// Creates a mask from a flag for each class.
    pub fn new(is_allowed: &[bool]) -> Self {
        let forbidden = (0..).zip(is_allowed).filter(|(_, is_allowed)| !**is_allowed);
        Self { classes: is_allowed.len(), forbidden: forbidden.map(|(class, _)| class).collect() }
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Forbidden classes in order.
    pub fn forbidden(&self) -> &[u32] {
        &self.forbidden
    }

    /// Returns whether a class may be emitted.
    pub fn allows(&self, class: u32) -> bool {
        (class as usize) < self.classes && self.forbidden.binary_search(&class).is_err()
    }

    /// Checks that the mask fits a model.
    ///
    /// # Errors
    /// [`Error::Shape`] for another number of classes, a forbidden blank, or no allowed label.
    pub fn check(&self, classes: usize, blanks: &[u32]) -> Result<()> {
        if self.classes != classes {
            return Err(Error::shape("mask", format!("a flag for each of {classes} classes"), self.classes));
        }
        if let Some(blank) = blanks.iter().find(|&&blank| !self.allows(blank)) {
            return Err(Error::shape("mask", "all blanks to be allowed".into(), format!("class {blank}")));
        }
        if classes <= self.forbidden.len() + blanks.len() {
            return Err(Error::shape("mask", "at least one allowed label".into(), "none"));
        }
        Ok(())
    }

    /// Sets the scores of forbidden classes to -inf; NaN and +inf are unchanged.
    pub(crate) fn apply(&self, scores: &mut [f32]) {
        for &class in &self.forbidden {
            let score = &mut scores[class as usize];
            if *score < f32::INFINITY {
                *score = f32::NEG_INFINITY;
            }
        }
    }

    /// Renormalizes rows of log-probabilities over the allowed classes.
    ///
    /// Rows are unchanged if all classes are allowed; a row that is not a distribution becomes NaN.
    ///
    /// # Shapes
    /// `log_probs [n, C]`
    pub fn renormalize(&self, log_probs: &mut [f32]) {
        if self.forbidden.is_empty() {
            return;
        }
        for row in log_probs.chunks_exact_mut(self.classes) {
            self.apply(row);
            let (max, sum) = f32::row_statistics(row);
            let log_sum = (f64::from(max) + sum.ln()) as f32;
            row.iter_mut().for_each(|log_prob| *log_prob -= log_sum);
        }
    }
}

/// A joint network whose forbidden classes have the score -inf.
pub(crate) struct MaskedJoint {
    joint: Arc<dyn JointScorer>,
    mask: ClassMask,
    blanks: Vec<u32>,
}

impl MaskedJoint {
    /// Masks the classes of a joint network.
    ///
    /// # Errors
    /// Those of [`ClassMask::check`].
    pub(crate) fn new(
        joint: Arc<dyn JointScorer>,
        token_table: &TokenTable,
        mask: &ClassMask,
    ) -> Result<Self> {
        let blanks: Vec<u32> = token_table.blanks().collect();
        mask.check(joint.classes(), &blanks)?;
        Ok(Self { joint, mask: mask.clone(), blanks })
    }
}

impl JointScorer for MaskedJoint {
    fn frame_width(&self) -> usize {
        self.joint.frame_width()
    }

    fn prediction_width(&self) -> usize {
        self.joint.prediction_width()
    }

    fn label_row_width(&self) -> usize {
        self.joint.label_row_width()
    }

    fn classes(&self) -> usize {
        self.joint.classes()
    }

    fn durations(&self) -> usize {
        self.joint.durations()
    }

    fn project(&self, predicted: &[f32], rows: &mut [f32], scratch: &mut NetworkScratch) {
        self.joint.project(predicted, rows, scratch);
    }

    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch) {
        self.joint.scores(sites, out, scratch);
        out.chunks_exact_mut(self.classes() + self.durations()).for_each(|row| self.mask.apply(row));
    }

    fn has_internal_lm(&self) -> bool {
        self.joint.has_internal_lm()
    }

    /// Writes the internal language model, renormalized over the allowed labels.
    ///
    /// Forbidden labels have 0, as their scores are -inf anyway.
    fn internal_lm(&self, rows: &[f32], out: &mut [f32], scratch: &mut NetworkScratch) {
        self.joint.internal_lm(rows, out, scratch);
        if self.mask.forbidden.is_empty() {
            return;
        }
        for row in out.chunks_exact_mut(self.classes()) {
            // Without the blanks, whose 0 is no log-probability.
            let is_skipped = |class: usize| {
                let class = class as u32;
                self.blanks.contains(&class) || !self.mask.allows(class)
            };
            let allowed = row.iter().enumerate().filter(|&(class, _)| !is_skipped(class));
            let log_sum = allowed.map(|(_, &log_prob)| f64::from(log_prob).exp()).sum::<f64>().ln() as f32;
            for (class, log_prob) in row.iter_mut().enumerate() {
                *log_prob = if is_skipped(class) { 0.0 } else { *log_prob - log_sum };
            }
        }
    }
}
