//! The packed format without rounding: `f32` or `f64` micro-panels.
//!
//! ```text
//! micro-panel of the left   [k][MR]    MR rows, step by step
//! micro-panel of the right  [k][NR]    NR columns, step by step
//! ```
//! k: steps of the sum; MR and NR: rows and columns of a micro-kernel's tile.
use super::{Operand, OperandFormat, panels};
use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// Operands without rounding.
#[derive(Debug)]
pub struct FullFormat;

impl<F: Real> OperandFormat<F> for FullFormat {
    type Word = F;
    const ZERO: F = F::ZERO;
    const STEPWISE: bool = true;

    fn panel_width(operand: Operand) -> usize {
        panels::panel_width::<F>(SimdLevel::best(), operand)
    }

    fn preferred_rows() -> usize {
        2 * F::tile_shape(SimdLevel::best())[0]
    }

    fn words(operand: Operand, len: usize, depth: usize) -> usize {
        panels::words::<F>(SimdLevel::best(), operand, len, depth)
    }

    fn pack(view: View<F>, operand: Operand, out: &mut [F], skip: usize, depth: usize) {
        panels::pack(SimdLevel::best(), view, operand, out, skip, depth);
    }

    fn multiply(out: ViewMut<F>, left: &[F], right: &[F], depth: usize, accumulate: Accumulate) {
        panels::multiply(SimdLevel::best(), out, left, right, depth, accumulate);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::equals_plain_loops;

    fn equals_plain_loops_at_every_level<F: Real>(tolerance: f64) {
        for level in SimdLevel::all() {
            equals_plain_loops(
                F::tile_shape(level),
                |value: F| value.to_f64(),
                |view, operand, len, depth| {
                    let mut out = vec![F::ONE; panels::words::<F>(level, operand, len, depth)];
                    panels::pack(level, view, operand, &mut out, 0, depth);
                    out
                },
                |out, left: &Vec<F>, right, depth, accumulate| {
                    panels::multiply(level, out, left, right, depth, accumulate)
                },
                tolerance,
            );
        }
    }

    #[test]
    fn every_level_equals_plain_loops() {
        equals_plain_loops_at_every_level::<f32>(1e-4);
        equals_plain_loops_at_every_level::<f64>(1e-12);
    }
}
