//! Reusable buffer for lattice diagonals of scaled numbers (mantissa and exponent).
//!
//! The recursions of the transducer loss store α and β in it.
use kernels::{
    AlignedVec, ScratchReq,
    scaled::{Scaled, ScaledRow, ScaledRowMut},
};

/// A buffer of rows of scaled numbers.
#[derive(Debug, Default)]
pub(crate) struct ScaledRows {
    mantissa: AlignedVec<f64>,
    exponent: AlignedVec<f64>,
}

impl ScaledRows {
    /// Reserves memory for at least `count` numbers; all stay finite.
    pub(crate) fn reserve(&mut self, count: usize) {
        self.mantissa.ensure_len(count, 0.0);
        self.exponent.ensure_len(count, 0.0);
    }

    /// Scratch memory of [`Self::reserve`].
    pub(crate) fn scratch(count: usize) -> ScratchReq {
        ScratchReq::aligned::<f64>(count).times(2)
    }

    /// Sets all numbers to zero.
    pub(crate) fn clear(&mut self) {
        self.all_mut().fill(Scaled::ZERO);
    }

    /// Returns `width` numbers from index `start` on.
    pub(crate) fn row(&self, start: usize, width: usize) -> ScaledRow<'_> {
        ScaledRow {
            mantissa: &self.mantissa[start..start + width],
            exponent: &self.exponent[start..start + width],
        }
    }

    /// Returns `width` mutable numbers from index `start` on.
    pub(crate) fn row_mut(&mut self, start: usize, width: usize) -> ScaledRowMut<'_> {
        ScaledRowMut {
            mantissa: &mut self.mantissa[start..start + width],
            exponent: &mut self.exponent[start..start + width],
        }
    }

    /// Returns two rows by their first indices.
    ///
    /// The second must begin after the end of the first.
    pub(crate) fn two_rows_mut(
        &mut self,
        [first, second]: [usize; 2],
        width: usize,
    ) -> [ScaledRowMut<'_>; 2] {
        let (left_mantissa, right_mantissa) = self.mantissa.split_at_mut(second);
        let (left_exponent, right_exponent) = self.exponent.split_at_mut(second);
        [
            ScaledRowMut {
                mantissa: &mut left_mantissa[first..first + width],
                exponent: &mut left_exponent[first..first + width],
            },
            ScaledRowMut { mantissa: &mut right_mantissa[..width], exponent: &mut right_exponent[..width] },
        ]
    }

    /// Returns all numbers.
    pub(crate) fn all_mut(&mut self) -> ScaledRowMut<'_> {
        ScaledRowMut { mantissa: &mut self.mantissa, exponent: &mut self.exponent }
    }
}
