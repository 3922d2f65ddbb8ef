//! Memory that is kept from one lattice to the next.
use std::ops::{Deref, DerefMut};

use kernels::scaled::{Scaled, ScaledRow, ScaledRowMut};

/// Bytes of a cache line, and of the largest vector register.
const LINE: usize = 64;
const SLACK: usize = LINE / size_of::<f64>();

/// Numbers of which the first begins a cache line, so that registers do not straddle two.
#[derive(Debug, Default)]
pub(crate) struct Aligned {
    values: Vec<f64>,
    start: usize,
}

impl Aligned {
    /// Makes room for at least `count` numbers. All there are stay finite.
    pub fn reserve(&mut self, count: usize) {
        if self.values.len() < count + SLACK {
            self.values = Vec::new();
            self.values = vec![0.0; count + SLACK];
            self.start = self.values.as_ptr().align_offset(LINE).min(SLACK);
        }
    }

    /// Bytes of room for `count` numbers.
    pub fn bytes(count: usize) -> usize {
        (count + SLACK) * size_of::<f64>()
    }
}

impl Deref for Aligned {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.values[self.start..]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f64] {
        &mut self.values[self.start..]
    }
}

/// Scaled numbers, row after row.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    mantissa: Aligned,
    exponent: Aligned,
}

impl Rows {
    /// Makes room for at least `count` numbers.
    pub fn reserve(&mut self, count: usize) {
        self.mantissa.reserve(count);
        self.exponent.reserve(count);
    }

    /// Bytes of room for `count` numbers.
    pub fn bytes(count: usize) -> usize {
        2 * Aligned::bytes(count)
    }

    pub fn clear(&mut self) {
        self.all_mut().fill(Scaled::ZERO);
    }

    pub fn row(&self, from: usize, width: usize) -> ScaledRow<'_> {
        ScaledRow {
            mantissa: &self.mantissa[from..from + width],
            exponent: &self.exponent[from..from + width],
        }
    }

    pub fn row_mut(&mut self, from: usize, width: usize) -> ScaledRowMut<'_> {
        ScaledRowMut {
            mantissa: &mut self.mantissa[from..from + width],
            exponent: &mut self.exponent[from..from + width],
        }
    }

    /// Two rows, the second not before the end of the first.
    pub fn two_mut(&mut self, [first, second]: [usize; 2], width: usize) -> [ScaledRowMut<'_>; 2] {
        let (left_x, right_x) = self.mantissa.split_at_mut(second);
        let (left_k, right_k) = self.exponent.split_at_mut(second);
        [
            ScaledRowMut {
                mantissa: &mut left_x[first..first + width],
                exponent: &mut left_k[first..first + width],
            },
            ScaledRowMut { mantissa: &mut right_x[..width], exponent: &mut right_k[..width] },
        ]
    }

    pub fn all_mut(&mut self) -> ScaledRowMut<'_> {
        ScaledRowMut { mantissa: &mut self.mantissa, exponent: &mut self.exponent }
    }
}
