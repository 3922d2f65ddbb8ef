//! Packed recurrent LSTM weights, multiplied with up to 8 rows per frame.
//!
//! A row is an utterance's state (forward) or gate gradient (backward). A strip is 16 units u of H,
//! with all four gates. A task multiplies one strip with some rows.
//!
//! ```text
//! W *4H x H*; rows are stored as [steps][rows]; h: states; da: gradients of the gates' inputs
//!   forward   out *n x 4 x 16* += h *n x H* · W[gate, u]ᵀ     panels [strip][gate][H][16]
//!   backward  out *n x 16*     += da *n x 4H* · W[.., u]      panels [strip][4H][16]
//!             with steps in the order (strip, gate, unit)
//! ```
//! With few rows, a step of a recurrent layer reads its weight from a distant cache or from memory.
//! The lanes of a register are therefore units, even for a single row, and several panels are
//! read at once for enough independent sums. A sum is split into blocks of steps, in order, which
//! depend only on the shape of the weight.
use crate::{
    BufferPool, PooledBuffer, Real, View, acquire,
    packed::{Operand, OperandSource},
    par_for, parts_mut,
    simd::SimdLevel,
};

/// Units of a strip: the lanes of a register.
pub const UNITS_PER_STRIP: usize = 16;
/// Maximum rows of a product with [`PackedRecurrentWeight`].
pub const MAX_GATE_ROWS: usize = 8;
/// Gates of a unit.
const GATES: usize = 4;
/// Maximum rows of a kernel that multiplies all four gates at once.
const MAX_ROWS_OF_ALL_GATES: usize = 6;
/// Maximum steps of a block of the sum.
const MAX_STEPS: usize = 512;

/// The weight W of four gates, packed for forward or for backward.
#[derive(Debug)]
pub struct PackedRecurrentWeight<F> {
    panels: PooledBuffer<F>,
    /// Panels of a strip: 4 forward, 1 backward.
    panels_per_strip: usize,
    /// Steps of a panel.
    steps: usize,
    /// Steps of a block of the sum.
    steps_per_block: usize,
}

/// The arguments of a kernel: rows, and the panels that are multiplied with them at once.
pub struct GateProduct<'a, F> {
    pub(crate) left: GateRows<'a, F>,
    pub(crate) right: GatePanels<'a, F>,
    /// Steps of the sums.
    pub(crate) steps: usize,
    pub(crate) out: GateOutput<'a, F>,
}

/// Rows of a [`GateProduct`], stored as `[steps][width]`.
#[derive(Clone, Copy)]
pub(crate) struct GateRows<'a, F> {
    pub data: &'a [F],
    pub width: usize,
    /// Elements between the rows of two panels; 0 if panels share them.
    pub panel_stride: usize,
}

/// Panels of a [`GateProduct`], each stored as `[steps][16]`.
#[derive(Clone, Copy)]
pub(crate) struct GatePanels<'a, F> {
    pub data: &'a [F],
    /// Elements from a panel to the next one.
    pub panel_stride: usize,
}

/// Sums of a [`GateProduct`]: 16 lanes for each row and panel.
pub(crate) struct GateOutput<'a, F> {
    pub data: &'a mut [F],
    /// Elements from a row to the next one.
    pub row_stride: usize,
    /// Elements from a panel to the next one; 0 if panels add to the same lanes.
    pub panel_stride: usize,
}

impl<F: Real> PackedRecurrentWeight<F> {
    /// Packs `weight` *4H x H*, row-major, for [`Self::multiply`] with states.
    ///
    /// Uses memory of a pool, if there is one.
    ///
    /// # Panics
    /// If the weight has another length.
    ///
    /// Cost: `O(H²)` time and memory.
    pub fn for_forward(pool: Option<&BufferPool<F>>, weight: &[F], hidden: usize) -> Self {
        Self::packed(pool, weight, hidden, [GATES, hidden], hidden, |task, panel| {
            let (strip, gate) = (task / GATES, task % GATES);
            let rows = View::new(&weight[gate * hidden * hidden..], hidden, hidden);
            let source = OperandSource::new(rows, Operand::Left);
            F::pack_panel(SimdLevel::best(), &source, (strip * UNITS_PER_STRIP, 0), UNITS_PER_STRIP, panel);
        })
    }

    /// Packs the weight for [`Self::multiply`] with gradients of the gates' inputs.
    ///
    /// # Panics
    /// As [`Self::for_forward`].
    pub fn for_backward(pool: Option<&BufferPool<F>>, weight: &[F], hidden: usize) -> Self {
        let (strips, steps_per_task) = (hidden.div_ceil(UNITS_PER_STRIP), GATES * UNITS_PER_STRIP);
        Self::packed(pool, weight, hidden, [1, strips * steps_per_task], steps_per_task, |task, panel| {
            let (strip, first_unit) = (task / strips, task % strips * UNITS_PER_STRIP);
            let count = UNITS_PER_STRIP.min(hidden - first_unit);
            for (gate, steps) in panel.chunks_exact_mut(UNITS_PER_STRIP * UNITS_PER_STRIP).enumerate() {
                let rows = View::new(&weight[(gate * hidden + first_unit) * hidden..], count, hidden);
                let (steps, padding) = steps.split_at_mut(count * UNITS_PER_STRIP);
                let source = OperandSource::new(rows, Operand::Right);
                F::pack_panel(
                    SimdLevel::best(),
                    &source,
                    (strip * UNITS_PER_STRIP, 0),
                    UNITS_PER_STRIP,
                    steps,
                );
                padding.fill(F::ZERO);
            }
        })
    }

    /// Packs the panels in tasks of `steps_per_task` steps; calls `pack(task, panel)`.
    fn packed(
        pool: Option<&BufferPool<F>>,
        weight: &[F],
        hidden: usize,
        [panels_per_strip, steps]: [usize; 2],
        steps_per_task: usize,
        pack: impl Fn(usize, &mut [F]) + Sync,
    ) -> Self {
        assert_eq!(
            weight.len(),
            GATES * hidden * hidden,
            "gates: expected a weight of {GATES} x {hidden} x {hidden}"
        );
        let mut panels = acquire(
            pool,
            "gates",
            hidden.div_ceil(UNITS_PER_STRIP) * panels_per_strip * steps * UNITS_PER_STRIP,
        );
        par_for(parts_mut(&mut panels, (steps_per_task * UNITS_PER_STRIP).max(1)), pack);
        let steps_per_block =
            steps.div_ceil(steps.div_ceil(MAX_STEPS).max(1)).next_multiple_of(UNITS_PER_STRIP);
        PackedRecurrentWeight { panels, panels_per_strip, steps, steps_per_block: steps_per_block.max(1) }
    }

    /// Returns the number of packing tasks, forward and backward.
    pub fn tasks_for(hidden: usize) -> [usize; 2] {
        let strips = hidden.div_ceil(UNITS_PER_STRIP);
        [GATES * strips, strips * strips]
    }

    /// Returns the steps of the sums: H, or 4H with H rounded up to whole strips.
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Returns the lanes of a row of a product: 4 x 16 forward, 16 backward.
    pub fn lanes(&self) -> usize {
        self.panels_per_strip * UNITS_PER_STRIP
    }

    /// Computes `out += rows · strip`, for up to [`MAX_GATE_ROWS`] rows.
    ///
    /// # Shapes
    /// `left` rows as *steps x width*, `out` *rows x [`Self::lanes`]*. Lanes beyond the last unit
    /// receive 0.
    ///
    /// # Panics
    /// If the shapes do not match.
    pub fn multiply(&self, strip: usize, left: (&[F], usize), rows: usize, out: &mut [F]) {
        self.multiply_for(SimdLevel::best(), strip, left, rows, out);
    }

    /// Computes [`Self::multiply`] at a SIMD level.
    fn multiply_for(
        &self,
        level: SimdLevel,
        strip: usize,
        (left, width): (&[F], usize),
        rows: usize,
        out: &mut [F],
    ) {
        assert!(
            rows <= width.min(MAX_GATE_ROWS) && out.len() >= rows * self.lanes(),
            "gates: {rows} rows of {width}"
        );
        if rows == 0 {
            return;
        }
        let (panel_len, row_stride) = (self.steps * UNITS_PER_STRIP, self.lanes());
        let panels = &self.panels[strip * self.panels_per_strip * panel_len..];
        // Each row and panel takes a register of sums, of which a kernel has at most 24.
        let max_panels = if rows <= MAX_ROWS_OF_ALL_GATES { GATES } else { GATES / 2 };
        if self.panels_per_strip > 1 {
            // Forward: the panels are gates, which share the rows.
            for first_step in (0..self.steps).step_by(self.steps_per_block) {
                let steps = self.steps_per_block.min(self.steps - first_step);
                for gate in (0..GATES).step_by(max_panels) {
                    let product = GateProduct {
                        left: GateRows { data: &left[first_step * width..], width, panel_stride: 0 },
                        right: GatePanels {
                            data: &panels[gate * panel_len + first_step * UNITS_PER_STRIP..],
                            panel_stride: panel_len,
                        },
                        steps,
                        out: GateOutput {
                            data: &mut out[gate * UNITS_PER_STRIP..],
                            row_stride,
                            panel_stride: UNITS_PER_STRIP,
                        },
                    };
                    F::multiply_panels(level, rows, max_panels, product);
                }
            }
            return;
        }
        // Backward: the panels are blocks of steps, which add to the same lanes.
        let mut first_step = 0;
        while first_step < self.steps {
            // As many whole blocks at once as there is a kernel for; the remainder separately.
            let whole_blocks = max_panels.min((self.steps - first_step) / self.steps_per_block);
            let (blocks, steps) = match whole_blocks {
                0 => (1, self.steps - first_step),
                _ => (1 << whole_blocks.ilog2(), self.steps_per_block),
            };
            let product = GateProduct {
                left: GateRows {
                    data: &left[first_step * width..],
                    width,
                    panel_stride: self.steps_per_block * width,
                },
                right: GatePanels {
                    data: &panels[first_step * UNITS_PER_STRIP..],
                    panel_stride: self.steps_per_block * UNITS_PER_STRIP,
                },
                steps,
                out: GateOutput { data: &mut *out, row_stride, panel_stride: 0 },
            };
            F::multiply_panels(level, rows, blocks, product);
            first_step += blocks * steps;
        }
    }
}

/// Adds the product of rows and panels to `out`: portable version, row by row.
#[inline(always)]
pub(crate) fn multiply_panels<F: Real, const FUSED: bool>(
    rows: usize,
    panels: usize,
    product: GateProduct<F>,
) {
    let GateProduct { left, right, steps, out } = product;
    for panel in 0..panels {
        let panel_data = &right.data[panel * right.panel_stride..][..steps * UNITS_PER_STRIP];
        let panel_steps = panel_data.as_chunks::<UNITS_PER_STRIP>().0;
        for row in 0..rows {
            let mut sums = [F::ZERO; UNITS_PER_STRIP];
            let row_steps = left.data[panel * left.panel_stride + row..].iter().step_by(left.width);
            for (right, left) in panel_steps.iter().zip(row_steps) {
                for (sum, &right) in sums.iter_mut().zip(right) {
                    *sum = if FUSED { left.mul_add(right, *sum) } else { *left * right + *sum };
                }
            }
            let lanes = &mut out.data[row * out.row_stride + panel * out.panel_stride..][..UNITS_PER_STRIP];
            lanes.iter_mut().zip(sums).for_each(|(lane, sum)| *lane += sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::check::synthetic;

    /// Compares both directions with plain loops, for all numbers of rows.
    fn equals_plain_loops<F: Real>(level: SimdLevel, hidden: usize, tolerance: f64) {
        let weight: Vec<F> = synthetic(4 * hidden * hidden, 3);
        let weight_at =
            |gate: usize, out: usize, k: usize| weight[(gate * hidden + out) * hidden + k].to_f64();
        let units = hidden.next_multiple_of(UNITS_PER_STRIP);
        for (width, rows) in (1..=MAX_GATE_ROWS).flat_map(|width| (0..=width).map(move |rows| (width, rows)))
        {
            let (forward, backward) = (
                PackedRecurrentWeight::for_forward(None, &weight, hidden),
                PackedRecurrentWeight::for_backward(None, &weight, hidden),
            );
            let mut left: Vec<F> = synthetic(4 * units * width, 4);
            // Gradients of padded units may be any finite number.
            let check = |packed: &PackedRecurrentWeight<F>,
                         left: &[F],
                         exact: &dyn Fn(usize, usize, usize) -> f64| {
                for strip in 0..units / UNITS_PER_STRIP {
                    let old = F::from_f64(7.0);
                    let mut out = vec![old; (rows + 1) * packed.lanes()];
                    packed.multiply_for(level, strip, (left, width), rows, &mut out);
                    for (j, row) in out.chunks_exact(packed.lanes()).enumerate() {
                        for (lane, actual) in row.iter().enumerate() {
                            let unit = strip * UNITS_PER_STRIP + lane % UNITS_PER_STRIP;
                            let is_written = j < rows && unit < hidden;
                            let sum = if is_written { exact(j, lane / UNITS_PER_STRIP, unit) } else { 0.0 };
                            let error = (actual.to_f64() - 7.0 - sum).abs();
                            assert!(error <= tolerance, "{level:?}, H {hidden}, {rows} of {width}: {error}");
                        }
                    }
                }
            };
            check(&forward, &left, &|j, gate, unit| {
                (0..hidden).map(|k| left[k * width + j].to_f64() * weight_at(gate, unit, k)).sum()
            });
            let step_start = |gate: usize, k: usize| {
                ((k / UNITS_PER_STRIP * GATES + gate) * UNITS_PER_STRIP + k % UNITS_PER_STRIP) * width
            };
            left.iter_mut().skip(backward.steps() * width).for_each(|value| *value = F::from_f64(f64::NAN));
            check(&backward, &left, &|j, _, unit| {
                let steps = (0..GATES).flat_map(|gate| (0..hidden).map(move |k| (gate, k)));
                steps.map(|(gate, k)| left[step_start(gate, k) + j].to_f64() * weight_at(gate, k, unit)).sum()
            });
        }
    }

    #[test]
    fn every_level_of_either_type_equals_plain_loops() {
        for level in SimdLevel::all() {
            for hidden in [1, 15, 16, 37, 150] {
                equals_plain_loops::<f32>(level, hidden, 5e-3);
                equals_plain_loops::<f64>(level, hidden, 1e-11);
            }
            equals_plain_loops::<f32>(level, 528, 5e-3);
        }
    }

    #[test]
    fn rows_have_the_same_bits_together_and_separately() {
        let hidden = 600;
        let weight: Vec<f32> = synthetic(4 * hidden * hidden, 3);
        for packed in [
            PackedRecurrentWeight::for_forward(None, &weight, hidden),
            PackedRecurrentWeight::for_backward(None, &weight, hidden),
        ] {
            let left: Vec<f32> = synthetic(packed.steps() * MAX_GATE_ROWS, 4);
            let run = |width: usize, rows: usize, left: &[f32]| {
                let mut out = vec![1.0; rows * packed.lanes()];
                packed.multiply(20, (left, width), rows, &mut out);
                out
            };
            let all = run(MAX_GATE_ROWS, MAX_GATE_ROWS, &left);
            for rows in 1..MAX_GATE_ROWS {
                assert_eq!(run(MAX_GATE_ROWS, rows, &left), all[..rows * packed.lanes()], "{rows} rows");
            }
            let third: Vec<f32> = left.iter().skip(3).step_by(MAX_GATE_ROWS).copied().collect();
            assert_eq!(run(1, 1, &third), all[3 * packed.lanes()..][..packed.lanes()]);
        }
    }
}
