//! A recurrent weight in strips of units, each of which a task multiplies a few rows by.
//!
//! ```text
//! W *4H x H*, a strip is 16 units u of H; rows lie as [steps][rows], what meets at one step together
//!   forth   out *n x 4 x 16* += h *n x H* · W[gate, u]ᵀ          panels [strip][gate][H][16]
//!   back    out *n x 16*     += da *n x 4H* · W[.., u]           panels [strip][4H][16], steps ordered as (strip, gate, unit)
//! ```
//! With few rows a step of a recurrent layer reads its weight from a far cache or from memory. The lanes of a register are
//! therefore units, however few rows there are, and several panels are read at once, so that enough sums are under way.
//! An element's sum is made of blocks of steps, in their order, that depend on the weight's shape alone.
use crate::{
    BufferPool, PooledBuffer, Real, View, acquire,
    packed::{Operand, OperandSource},
    par_for, parts_mut,
    simd::SimdLevel,
};

/// Units of a strip: the lanes of a register.
pub const UNITS: usize = 16;
/// Most rows of a product.
pub const ROWS: usize = 8;
/// Parts of a row of gates.
const GATES: usize = 4;
/// Steps of a block of the sum, at most.
const STEPS: usize = 512;

/// W of four gates, packed for one of the two ways it is multiplied.
#[derive(Debug)]
pub struct PackedGates<F> {
    panels: PooledBuffer<F>,
    /// Panels of a strip: 4 forth, 1 back.
    each: usize,
    /// Steps of a panel.
    steps: usize,
    /// Steps of a block of the sum.
    block: usize,
}

/// Panels that are multiplied at once: lanes from `right`, `right_apart` from panel to panel, by rows from `left`.
pub struct Streams<'a, F> {
    /// `[steps][width]`, `left_apart` from panel to panel; 0 where all panels meet the same rows.
    pub(crate) left: &'a [F],
    pub(crate) width: usize,
    pub(crate) left_apart: usize,
    pub(crate) right: &'a [F],
    pub(crate) right_apart: usize,
    pub(crate) steps: usize,
    /// LeftOperand of `stride`, and `out_apart` from panel to panel; 0 where all panels add to the same lanes, one after another.
    pub(crate) out: &'a mut [F],
    pub(crate) stride: usize,
    pub(crate) out_apart: usize,
}

impl<F: Real> PackedGates<F> {
    /// Packs `weight` *4H x H*, row-major, for [`Self::multiply`] with states, in memory from a pool if there is one.
    ///
    /// Cost of either: `O(H²)` time and memory.
    ///
    /// # Panics
    /// Here and below: if the shape is another one.
    pub fn forth(pool: Option<&BufferPool<F>>, weight: &[F], hidden: usize) -> Self {
        Self::packed(pool, weight, hidden, [GATES, hidden], hidden, |at, panel| {
            let (strip, gate) = (at / GATES, at % GATES);
            let rows = View::new(&weight[gate * hidden * hidden..], hidden, hidden);
            let source = OperandSource::new(rows, Operand::Left);
            F::pack_panel(SimdLevel::best(), &source, (strip * UNITS, 0), UNITS, panel);
        })
    }

    /// Packs it for [`Self::multiply`] with gradients of gates.
    pub fn back(pool: Option<&BufferPool<F>>, weight: &[F], hidden: usize) -> Self {
        let (strips, piece) = (hidden.div_ceil(UNITS), GATES * UNITS);
        Self::packed(pool, weight, hidden, [1, strips * piece], piece, |at, panel| {
            let (strip, first) = (at / strips, at % strips * UNITS);
            let count = UNITS.min(hidden - first);
            for (gate, steps) in panel.chunks_exact_mut(UNITS * UNITS).enumerate() {
                let rows = View::new(&weight[(gate * hidden + first) * hidden..], count, hidden);
                let (steps, rest) = steps.split_at_mut(count * UNITS);
                let source = OperandSource::new(rows, Operand::Right);
                F::pack_panel(SimdLevel::best(), &source, (strip * UNITS, 0), UNITS, steps);
                rest.fill(F::ZERO);
            }
        })
    }

    /// Packs so many steps a task.
    fn packed(
        pool: Option<&BufferPool<F>>,
        weight: &[F],
        hidden: usize,
        [each, steps]: [usize; 2],
        piece: usize,
        pack: impl Fn(usize, &mut [F]) + Sync,
    ) -> Self {
        assert_eq!(weight.len(), GATES * hidden * hidden, "gates: a weight of {GATES} x {hidden} x {hidden}");
        let mut panels = acquire(pool, "gates", hidden.div_ceil(UNITS) * each * steps * UNITS);
        par_for(parts_mut(&mut panels, (piece * UNITS).max(1)), pack);
        let block = steps.div_ceil(steps.div_ceil(STEPS).max(1)).next_multiple_of(UNITS);
        PackedGates { panels, each, steps, block: block.max(1) }
    }

    /// Into how many independent parts the packing is cut, forth and back, whatever the number of threads.
    pub fn tasks_for(hidden: usize) -> [usize; 2] {
        let strips = hidden.div_ceil(UNITS);
        [GATES * strips, strips * strips]
    }

    /// Steps of the sums: H, or 4H with H rounded up to whole strips.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Lanes of a row of a product: 4 x 16 forth, 16 back.
    pub fn lanes(&self) -> usize {
        self.each * UNITS
    }

    /// `out += rows · strip` for `rows` of at most [`ROWS`] that lie as `left` *steps x width*.
    ///
    /// # Shapes
    /// `out` *rows x [`Self::lanes`]*. Lanes of units that are not there get what is 0.
    ///
    /// # Panics
    /// If the shapes do not fit.
    pub fn multiply(&self, strip: usize, left: (&[F], usize), rows: usize, out: &mut [F]) {
        self.multiply_for(SimdLevel::best(), strip, left, rows, out);
    }

    fn multiply_for(
        &self,
        machine: SimdLevel,
        strip: usize,
        (left, width): (&[F], usize),
        rows: usize,
        out: &mut [F],
    ) {
        assert!(rows <= width.min(ROWS) && out.len() >= rows * self.lanes(), "gates: {rows} rows of {width}");
        if rows == 0 {
            return;
        }
        let (panel, stride) = (self.steps * UNITS, self.lanes());
        let panels = &self.panels[strip * self.each * panel..];
        let together = if rows <= 6 { GATES } else { GATES / 2 };
        if self.each > 1 {
            for first in (0..self.steps).step_by(self.block) {
                let steps = self.block.min(self.steps - first);
                for gate in (0..GATES).step_by(together) {
                    let streams = Streams {
                        left: &left[first * width..],
                        width,
                        left_apart: 0,
                        right: &panels[gate * panel + first * UNITS..],
                        right_apart: panel,
                        steps,
                        out: &mut out[gate * UNITS..],
                        stride,
                        out_apart: UNITS,
                    };
                    F::streams(machine, rows, together, streams);
                }
            }
            return;
        }
        let mut first = 0;
        while first < self.steps {
            // As many whole blocks at once as there is a kernel for, and what is left over for itself.
            let whole = together.min((self.steps - first) / self.block);
            let (blocks, steps) = match whole {
                0 => (1, self.steps - first),
                _ => (1 << whole.ilog2(), self.block),
            };
            let streams = Streams {
                left: &left[first * width..],
                width,
                left_apart: self.block * width,
                right: &panels[first * UNITS..],
                right_apart: self.block * UNITS,
                steps,
                out: &mut *out,
                stride,
                out_apart: 0,
            };
            F::streams(machine, rows, blocks, streams);
            first += blocks * steps;
        }
    }
}

/// For any machine and either type: plain loops, a row after another.
#[inline(always)]
pub(crate) fn streams<F: Real, const FUSED: bool>(rows: usize, panels: usize, streams: Streams<F>) {
    let Streams { left, width, left_apart, right, right_apart, steps, out, stride, out_apart } = streams;
    for panel in 0..panels {
        let right = right[panel * right_apart..][..steps * UNITS].as_chunks::<UNITS>().0;
        for row in 0..rows {
            let mut sums = [F::ZERO; UNITS];
            for (right, left) in right.iter().zip(left[panel * left_apart + row..].iter().step_by(width)) {
                for (sum, &right) in sums.iter_mut().zip(right) {
                    *sum = if FUSED { left.mul_add(right, *sum) } else { *left * right + *sum };
                }
            }
            let out = &mut out[row * stride + panel * out_apart..][..UNITS];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::made_up;

    /// Both ways against plain loops, for all numbers of rows beside others that stay as they are.
    fn equals_plain_loops<F: Real>(machine: SimdLevel, hidden: usize, bar: f64) {
        let weight: Vec<F> = made_up(4 * hidden * hidden, 3);
        let at = |gate: usize, out: usize, k: usize| weight[(gate * hidden + out) * hidden + k].to_f64();
        let units = hidden.next_multiple_of(UNITS);
        for (width, rows) in (1..=ROWS).flat_map(|width| (0..=width).map(move |rows| (width, rows))) {
            let (forth, back) =
                (PackedGates::forth(None, &weight, hidden), PackedGates::back(None, &weight, hidden));
            let mut left: Vec<F> = made_up(4 * units * width, 4);
            // Gradients of units that are not there may be anything that is finite.
            let check = |packed: &PackedGates<F>, left: &[F], exact: &dyn Fn(usize, usize, usize) -> f64| {
                for strip in 0..units / UNITS {
                    let old = F::from_f64(7.0);
                    let mut out = vec![old; (rows + 1) * packed.lanes()];
                    packed.multiply_for(machine, strip, (left, width), rows, &mut out);
                    for (j, row) in out.chunks_exact(packed.lanes()).enumerate() {
                        for (lane, found) in row.iter().enumerate() {
                            let unit = strip * UNITS + lane % UNITS;
                            let there = j < rows && unit < hidden;
                            let sum = if there { exact(j, lane / UNITS, unit) } else { 0.0 };
                            let error = (found.to_f64() - 7.0 - sum).abs();
                            assert!(error <= bar, "{machine:?}, H {hidden}, {rows} of {width}: {error}");
                        }
                    }
                }
            };
            check(&forth, &left, &|j, gate, unit| {
                (0..hidden).map(|k| left[k * width + j].to_f64() * at(gate, unit, k)).sum()
            });
            let place = |gate: usize, k: usize| ((k / UNITS * GATES + gate) * UNITS + k % UNITS) * width;
            left.iter_mut().skip(back.steps() * width).for_each(|value| *value = F::from_f64(f64::NAN));
            check(&back, &left, &|j, _, unit| {
                let all = (0..GATES).flat_map(|gate| (0..hidden).map(move |k| (gate, k)));
                all.map(|(gate, k)| left[place(gate, k) + j].to_f64() * at(gate, k, unit)).sum()
            });
        }
    }

    #[test]
    fn every_copy_of_either_type_equals_plain_loops() {
        for machine in SimdLevel::all() {
            for hidden in [1, 15, 16, 37, 150] {
                equals_plain_loops::<f32>(machine, hidden, 5e-3);
                equals_plain_loops::<f64>(machine, hidden, 1e-11);
            }
            equals_plain_loops::<f32>(machine, 528, 5e-3);
        }
    }

    #[test]
    fn rows_have_the_same_bits_together_and_apart() {
        let hidden = 600;
        let weight: Vec<f32> = made_up(4 * hidden * hidden, 3);
        for packed in [PackedGates::forth(None, &weight, hidden), PackedGates::back(None, &weight, hidden)] {
            let left: Vec<f32> = made_up(packed.steps() * ROWS, 4);
            let run = |width: usize, rows: usize, left: &[f32]| {
                let mut out = vec![1.0; rows * packed.lanes()];
                packed.multiply(20, (left, width), rows, &mut out);
                out
            };
            let all = run(ROWS, ROWS, &left);
            for rows in 1..ROWS {
                assert_eq!(run(ROWS, rows, &left), all[..rows * packed.lanes()], "{rows} rows");
            }
            let third: Vec<f32> = left.iter().skip(3).step_by(ROWS).copied().collect();
            assert_eq!(run(1, 1, &third), all[3 * packed.lanes()..][..packed.lanes()]);
        }
    }
}
