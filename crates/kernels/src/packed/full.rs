//! Operands in the type of the rows.
//!
//! ```text
//! strip of the left   [k][M]    M rows, step by step
//! strip of the right  [k][N]    N columns, step by step
//! ```
//!
//! The kernel keeps M x N sums in registers. 14 x 32 by hand for AVX-512; plain loops elsewhere, which the compiler
//! turns into registers: 6 x 16 for AVX2.
use super::{
    Numbers, Operand, Source,
    strips::{Kernel, Place},
};
#[cfg(target_arch = "x86_64")]
use crate::dispatch::{Machine, machine};
use crate::{Accumulate, Real, View, ViewMut};

/// The type of the rows.
#[derive(Debug)]
pub struct Full;

impl<F: Real> Numbers<F> for Full {
    type Word = F;
    const ZERO: F = F::ZERO;
    const STEPWISE: bool = true;

    fn side(operand: Operand) -> usize {
        F::kernel().side(operand)
    }

    fn strip() -> usize {
        2 * F::kernel().sides[0]
    }

    fn words(operand: Operand, side: usize, depth: usize) -> usize {
        F::kernel().words(operand, side, depth)
    }

    fn pack(view: View<F>, operand: Operand, out: &mut [F], skip: usize, depth: usize) {
        F::kernel().pack_view(view, operand, out, skip, depth);
    }

    fn multiply(out: ViewMut<F>, left: &[F], right: &[F], depth: usize, how: Accumulate) {
        F::kernel().multiply(out, left, right, depth, how);
    }
}

/// For any machine.
fn plain<F: Real>() -> Kernel<F> {
    // Every 64-bit ARM multiplies and adds at once, and has registers for twice as many sums.
    match cfg!(target_arch = "aarch64") {
        true => Kernel { sides: [8, 8], pack: pack_plain, block: block_plain::<F, 8, 8, true> },
        false => Kernel { sides: [4, 8], pack: pack_plain, block: block_plain::<F, 4, 8, false> },
    }
}

/// The best kernel of the machine.
pub(crate) fn for_f32() -> Kernel<f32> {
    #[cfg(target_arch = "x86_64")]
    match machine() {
        Machine::Avx512 => return super::full_avx512::KERNEL,
        Machine::Avx2 => return Kernel { sides: [6, 16], pack: pack_plain, block: block_avx2::<f32, 16> },
        Machine::Plain => {}
    }
    plain()
}

/// The best kernel of the machine.
pub(crate) fn for_f64() -> Kernel<f64> {
    #[cfg(target_arch = "x86_64")]
    if !matches!(machine(), Machine::Plain) {
        return Kernel { sides: [6, 8], pack: pack_plain, block: block_avx2::<f64, 8> };
    }
    plain()
}

fn pack_plain<F: Real>(source: &Source<F>, from: usize, side: usize, out: &mut [F]) {
    let Source { data, stride, across, .. } = *source;
    let count = side.min(source.sizes().0 - from);
    for (step, out) in out.chunks_exact_mut(side).enumerate() {
        match across {
            true => out[..count].copy_from_slice(&data[step * stride + from..][..count]),
            false => (0..count).for_each(|i| out[i] = data[(from + i) * stride + step]),
        }
        out[count..].fill(F::ZERO);
    }
}

/// 6 rows and two registers of columns.
#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
fn block_avx2<F: Real, const N: usize>(left: &[F], right: &[F], place: Place<F>, _ahead: &[F]) {
    #[target_feature(enable = "avx2,fma")]
    fn compiled<F: Real, const N: usize>(left: &[F], right: &[F], place: Place<F>) {
        block_plain::<F, 6, N, true>(left, right, place, &[]);
    }
    // SAFETY: only a machine that has these features is given this kernel.
    unsafe { compiled::<F, N>(left, right, place) }
}

#[inline(always)]
fn block_plain<F: Real, const M: usize, const N: usize, const FUSED: bool>(
    left: &[F],
    right: &[F],
    place: Place<F>,
    _ahead: &[F],
) {
    let Place { out, rows, cols, stride, how } = place;
    let mut sums = [[F::ZERO; N]; M];
    for (left, right) in left.as_chunks::<M>().0.iter().zip(right.as_chunks::<N>().0) {
        for (sums, &left) in sums.iter_mut().zip(left) {
            for (sum, &right) in sums.iter_mut().zip(right) {
                *sum = if FUSED { left.mul_add(right, *sum) } else { left * right + *sum };
            }
        }
    }
    for (row, sums) in sums.iter().enumerate().take(rows) {
        for (out, &sum) in out[row * stride..][..cols].iter_mut().zip(sums) {
            *out = if how == Accumulate::Add { *out + sum } else { sum };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::equals_plain_loops;

    fn is_right<F: Real>(kernel: Kernel<F>, bar: f64) {
        equals_plain_loops(
            |value: F| value.to_f64(),
            |view, operand, side, depth| {
                let mut out = vec![F::ONE; kernel.words(operand, side, depth)];
                kernel.pack_view(view, operand, &mut out, 0, depth);
                out
            },
            |out, left: &Vec<F>, right, depth, how| kernel.multiply(out, left, right, depth, how),
            bar,
        );
    }

    #[test]
    fn every_kernel_equals_plain_loops() {
        is_right(plain::<f32>(), 1e-4);
        is_right(plain::<f64>(), 1e-12);
        is_right(for_f32(), 1e-4);
        is_right(for_f64(), 1e-12);
        #[cfg(target_arch = "x86_64")]
        match machine() {
            Machine::Plain => println!("skipped: no AVX2 here, so that only the plain loops were tested"),
            _ => is_right(Kernel { sides: [6, 16], pack: pack_plain, block: block_avx2::<f32, 16> }, 1e-4),
        }
    }
}
