//! Operands in the type of the rows.
//!
//! ```text
//! micro-panel of the left   [k][MR]    MR rows, step by step
//! micro-panel of the right  [k][NR]    NR columns, step by step
//! ```
use super::{Operand, OperandFormat, panels};
use crate::{Accumulate, Real, View, ViewMut, simd::SimdLevel};

/// The type of the rows.
#[derive(Debug)]
pub struct Full;

impl<F: Real> OperandFormat<F> for Full {
    type Word = F;
    const ZERO: F = F::ZERO;
    const STEPWISE: bool = true;

    fn side(operand: Operand) -> usize {
        panels::side::<F>(SimdLevel::best(), operand)
    }

    fn strip() -> usize {
        2 * F::sides(SimdLevel::best())[0]
    }

    fn words(operand: Operand, side: usize, depth: usize) -> usize {
        panels::words::<F>(SimdLevel::best(), operand, side, depth)
    }

    fn pack(view: View<F>, operand: Operand, out: &mut [F], skip: usize, depth: usize) {
        panels::pack(SimdLevel::best(), (view, operand), out, (skip, depth));
    }

    fn multiply(out: ViewMut<F>, left: &[F], right: &[F], depth: usize, how: Accumulate) {
        panels::multiply(SimdLevel::best(), out, (left, right), depth, how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::equals_plain_loops;

    fn every_copy_is_right<F: Real>(bar: f64) {
        for machine in SimdLevel::all() {
            equals_plain_loops(
                F::sides(machine),
                |value: F| value.to_f64(),
                |view, operand, side, depth| {
                    let mut out = vec![F::ONE; panels::words::<F>(machine, operand, side, depth)];
                    panels::pack(machine, (view, operand), &mut out, (0, depth));
                    out
                },
                |out, left: &Vec<F>, right, depth, how| {
                    panels::multiply(machine, out, (left, right), depth, how)
                },
                bar,
            );
        }
    }

    #[test]
    fn every_copy_equals_plain_loops() {
        every_copy_is_right::<f32>(1e-4);
        every_copy_is_right::<f64>(1e-12);
    }
}
