//! Recurrent steps of a layer whose recurrent weight is in 8-bit blocks; inference only.
//!
//! ```text
//! frame t:  quantize h[t-1] in 16 bits
//!   a task for 64 units (4 strips of 16) and up to 12 utterances:
//!   a[t] + h[t-1] W_hhᵀ      then the cell      on entry, a[t] = x[t] W_ihᵀ + b
//! ```
//! Names are those of `steps.rs`; a[t] does not change. Columns of the packed weight are in the
//! order of strips of 16 units, each with its gates i, f, g, o, as the cell needs them.
use kernels::packed::{
    NumberFormat, Operand, PackedOperand, QuantizedMatrix, RightPart, RowBits, SumOrder, multiply,
};
use kernels::{Accumulate, Tiling, UNITS_PER_STRIP, View, ViewMut, lstm_cell_forward, tiles_mut};

use super::layout::RowGroup;
use super::steps::{GATES, InitialStates, StepRows, for_each_task};
use crate::{Error, Result};

/// Units of a task.
const UNITS_PER_TASK: usize = 4 * UNITS_PER_STRIP;
/// Columns of a task.
const COLUMNS_PER_TASK: usize = GATES * UNITS_PER_TASK;
/// Utterances of a task, at most: a multiple of the rows of micro-kernels with vectors.
const ROWS_PER_TASK: usize = 12;

/// A recurrent weight in 8-bit blocks.
#[derive(Debug)]
pub(super) struct QuantizedRecurrentWeight {
    /// `[4H', H]`: H' is H, rounded up to whole strips.
    weight: PackedOperand,
    hidden: usize,
}

impl QuantizedRecurrentWeight {
    /// Quantizes a weight `[4H, H]`.
    ///
    /// # Errors
    /// [`Error::Shape`] for numbers that are not finite or above 8e6.
    pub(super) fn new(weight: &[f32], hidden: usize) -> Result<Self> {
        let mut matrix = QuantizedMatrix::quantize(weight, hidden)
            .ok_or_else(|| Error::shape("weight_hh", "numbers of at most 8e6", "other values"))?;
        // Rows of zeros pad the last strip.
        let padding_row = matrix.rows();
        matrix.append(&QuantizedMatrix::quantize(&vec![0.0; hidden], hidden).expect("zeros"));
        let columns = (0..hidden.next_multiple_of(UNITS_PER_STRIP) * GATES).map(|column| {
            let (strip, gate) = (column / (GATES * UNITS_PER_STRIP), column / UNITS_PER_STRIP % GATES);
            let unit = strip * UNITS_PER_STRIP + column % UNITS_PER_STRIP;
            if unit < hidden { gate * hidden + unit } else { padding_row }
        });
        Ok(Self { weight: PackedOperand::from_quantized_rows(&matrix.select_rows(columns)), hidden })
    }

    /// Runs the steps of a group; overwrites cells and states in `rows`.
    ///
    /// `is_shared` is true if threads share a frame.
    pub(super) fn forward(
        &self,
        group: &RowGroup,
        initial: InitialStates<f32>,
        rows: &mut StepRows<f32>,
        is_shared: bool,
    ) {
        let hidden = self.hidden;
        let StepRows { gates, cell, state } = rows;
        let row_tiles =
            |planes| Tiling { rows: ROWS_PER_TASK, planes, columns: hidden, width: UNITS_PER_TASK };
        let mut quantized_h = PackedOperand::new(NumberFormat::Q8, Operand::Left);
        quantized_h.set_row_bits(RowBits::Sixteen);
        for t in 0..group.steps() {
            let frame = group.frame_rows(t);
            let utterances = frame.len();
            let values = frame.start * hidden..frame.end * hidden;
            let previous = group.previous_rows(t).start * hidden;
            let (earlier_cells, new_cells) = cell.split_at_mut(values.start);
            let (earlier_states, new_states) = state.split_at_mut(values.start);
            let (h, c) = match t {
                0 => (initial.h, initial.c),
                _ => (&earlier_states[previous..], &earlier_cells[previous..]),
            };
            quantized_h.fill(View::new(h, utterances, hidden));
            let bands = utterances.div_ceil(ROWS_PER_TASK);
            let tiles = (
                tiles_mut(&mut gates[GATES * values.start..GATES * values.end], row_tiles(GATES)),
                tiles_mut(&mut new_cells[..values.len()], row_tiles(1)),
                tiles_mut(&mut new_states[..values.len()], row_tiles(1)),
            );
            for_each_task(is_shared, tiles, |task, (mut gates, mut cell, mut state)| {
                let (unit_tile, first_row) = (task / bands, task % bands * ROWS_PER_TASK);
                let units = gates.row(0, 0).len();
                let padded_units = units.next_multiple_of(UNITS_PER_STRIP);
                let columns = GATES * padded_units;

                // h[t-1] W_hhᵀ
                let mut a = [0.0; ROWS_PER_TASK * COLUMNS_PER_TASK];
                let a = &mut a[..gates.rows() * columns];
                let right = RightPart {
                    operand: &self.weight,
                    first_column: unit_tile * COLUMNS_PER_TASK,
                    first_step: 0,
                };
                let out = ViewMut::new(a, gates.rows(), columns);
                multiply(out, (&quantized_h, first_row), right, SumOrder::Sequential, Accumulate::Replace);

                for (row, a) in a.chunks_exact_mut(columns).enumerate() {
                    // a[t] + h[t-1] W_hhᵀ
                    for gate in 0..GATES {
                        let strips = a.chunks_exact_mut(GATES * UNITS_PER_STRIP);
                        for (values, strip) in gates.row(row, gate).chunks(UNITS_PER_STRIP).zip(strips) {
                            kernels::add(&mut strip[gate * UNITS_PER_STRIP..][..values.len()], values);
                        }
                    }
                    // The cell, from c[t-1].
                    let (mut new_c, mut new_h) = ([0.0; UNITS_PER_TASK], [0.0; UNITS_PER_TASK]);
                    let previous_c = &c[(first_row + row) * hidden + unit_tile * UNITS_PER_TASK..][..units];
                    new_c[..units].copy_from_slice(previous_c);
                    lstm_cell_forward(a, &mut new_c[..padded_units], &mut new_h[..padded_units]);
                    cell.row(row, 0).copy_from_slice(&new_c[..units]);
                    state.row(row, 0).copy_from_slice(&new_h[..units]);
                }
            });
        }
    }
}
