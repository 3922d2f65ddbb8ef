//! Checks the arguments of the reference losses: lengths, label ids and logits.

use crate::error::{Result, shape_error, value_error};

/// Lengths and labels of a padded batch of logits `[B, T, U + 1, C]`.
pub(crate) struct Batch<'a> {
    /// `[B, T, U + 1, C]` of the padded logits.
    pub dims: [usize; 4],
    /// `T_b` of each utterance.
    pub frames: &'a [usize],
    /// Label ids of each utterance.
    pub labels: &'a [Vec<u32>],
    /// Id of the blank.
    pub blank: u32,
}

impl<'a> Batch<'a> {
    /// Checks the lengths and ids against the logits' shape.
    pub(crate) fn new(
        dims: [usize; 4],
        frames: &'a [usize],
        labels: &'a [Vec<u32>],
        blank: u32,
    ) -> Result<Self> {
        let [batch, max_frames, positions, classes] = dims;
        if batch == 0 || positions == 0 {
            return Err(shape_error("logits", "at least one utterance and U + 1 >= 1", format!("{dims:?}")));
        }
        if frames.len() != batch {
            return Err(shape_error("frames", format!("{batch} lengths"), frames.len()));
        }
        if labels.len() != batch {
            return Err(shape_error("labels", format!("{batch} label sequences"), labels.len()));
        }
        if blank as usize >= classes {
            return Err(value_error("blank", 0, format!("an id below C = {classes}"), blank));
        }
        for (b, (&length, ids)) in frames.iter().zip(labels).enumerate() {
            if length == 0 || length > max_frames {
                return Err(value_error("frames", b, format!("1 to T = {max_frames}"), length));
            }
            if ids.len() >= positions {
                return Err(value_error(
                    "labels",
                    b,
                    format!("at most U = {} labels", positions - 1),
                    ids.len(),
                ));
            }
            if let Some(&id) = ids.iter().find(|&&id| id as usize >= classes || id == blank) {
                let expected = format!("ids below C = {classes} other than the blank {blank}");
                return Err(value_error("labels", b, expected, id));
            }
        }
        Ok(Self { dims, frames, labels, blank })
    }

    /// Whether site `(t, u)` belongs to the lattice of utterance `b`.
    pub(crate) fn is_site(&self, b: usize, t: usize, u: usize) -> bool {
        t < self.frames[b] && u <= self.labels[b].len()
    }

    /// Checks every row of `logits` at a real site.
    ///
    /// A row must have a finite maximum and no NaN.
    pub(crate) fn check_rows(&self, logits: &[f64]) -> Result<()> {
        let [batch, frames, positions, classes] = self.dims;
        if logits.len() != batch * frames * positions * classes {
            return Err(shape_error(
                "logits",
                format!("{:?} = B T (U + 1) C values", self.dims),
                logits.len(),
            ));
        }
        for (row, scores) in logits.chunks(classes).enumerate() {
            let (b, t, u) = (row / positions / frames, row / positions % frames, row % positions);
            let is_impossible = scores.iter().all(|&score| score == f64::NEG_INFINITY);
            if self.is_site(b, t, u)
                && (is_impossible || scores.iter().any(|&score| score.is_nan() || score == f64::INFINITY))
            {
                let expected = "no NaN, no +inf and at least one finite score in the row";
                return Err(value_error("logits", row, expected, format!("{scores:?}")));
            }
        }
        Ok(())
    }
}
