//! A right operand that is packed once and multiplied many times.
use super::blocked::RightOperand;
use crate::{
    BufferPool, PooledBuffer, Real, View, acquire,
    packed::{Operand, OperandSource},
    par_for, parts_mut,
    simd::SimdLevel,
};

/// What columns may be taken apart at a multiple of, whatever the machine.
pub const COLUMNS: usize = 32;

/// LeftOperand of micro-panels up to which packing is one task.
const FEW: usize = 256;
/// Tasks that are aimed for where micro-panels are longer, two for each of 64 threads.
const TASKS: usize = 128;

/// A matrix *k x n*, packed to stand on the right side of products: a recurrent weight, or that of a head which rows come to
/// one at a time.
///
/// ```
/// use kernels::{Accumulate, PackedRight, View, ViewMut, product_packed};
///
/// let weight = PackedRight::new(View::new(&[1.0f32, 2.0, 3.0, 4.0], 2, 2));
/// let mut y = [10.0f32, 10.0];
/// product_packed(ViewMut::new(&mut y, 1, 2), View::new(&[1.0, 1.0], 1, 2), &weight, Accumulate::Add);
/// assert_eq!(y, [14.0, 16.0]);
/// ```
#[derive(Debug)]
pub struct PackedRight<F> {
    /// Micro-panels of NR columns, each with all k steps.
    pub(super) panels: PooledBuffer<F>,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl<F: Real> Default for PackedRight<F> {
    /// An empty matrix, to be [packed](PackedRight::pack) into.
    fn default() -> Self {
        Self { panels: PooledBuffer::default(), rows: 0, cols: 0 }
    }
}

impl<F: Real> PackedRight<F> {
    /// Packs a matrix, transposed or not.
    ///
    /// Cost: `O(k n)` time; [`Self::bytes_for`] of memory.
    pub fn new(view: View<F>) -> Self {
        Self::with_pool(None, view)
    }

    /// The same in memory from a pool, if there is one.
    pub fn with_pool(pool: Option<&BufferPool<F>>, view: View<F>) -> Self {
        let (rows, cols) = view.shape();
        let [_, nr] = F::sides(SimdLevel::best());
        let panels = acquire(pool, "right operand", cols.next_multiple_of(nr) * rows);
        let mut packed = Self { panels, rows, cols };
        packed.pack(view);
        packed
    }

    /// Packs another matrix in the place of this one; memory that is large enough stays.
    pub fn pack(&mut self, view: View<F>) {
        self.pack_for(SimdLevel::best(), view);
    }

    pub(super) fn pack_for(&mut self, machine: SimdLevel, view: View<F>) {
        let source = OperandSource::new(view, Operand::Right);
        let (cols, rows) = source.sizes();
        let [_, nr] = F::sides(machine);
        (self.rows, self.cols) = (rows, cols);
        let panels = self.panels.resize(cols.next_multiple_of(nr) * rows);
        let pieces = pieces(rows, cols.div_ceil(nr));
        let steps = rows / pieces;
        // All tasks of a product wait for this.
        let (piece, some) = ((nr * steps).max(1), FEW.div_ceil(rows.max(1)));
        par_for(parts_mut(panels, some * piece), |task, panels| {
            for (at, panel) in (task * some..).zip(panels.chunks_mut(piece)) {
                let place = (at / pieces * nr, at % pieces * steps);
                F::pack_panel(machine, &source, place, nr, panel);
            }
        });
    }

    /// Into how many independent parts the packing of a *k x n* matrix is cut, whatever the number of threads.
    pub fn tasks_for(rows: usize, cols: usize) -> usize {
        let [_, nr] = F::sides(SimdLevel::best());
        let panels = cols.div_ceil(nr);
        (panels * pieces(rows, panels)).div_ceil(FEW.div_ceil(rows.max(1)))
    }

    /// RightOperand with those that fill the last micro-panel.
    pub(super) fn whole(&self) -> usize {
        let [_, nr] = F::sides(SimdLevel::best());
        self.cols.next_multiple_of(nr)
    }

    pub(super) fn columns(&self) -> RightOperand<'_, F> {
        RightOperand::Packed(&self.panels, self.rows)
    }

    /// *k*, *n*
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Bytes of a packed *k x n* matrix, a cache line at its start included.
    pub fn bytes_for(rows: usize, cols: usize) -> usize {
        let [_, nr] = F::sides(SimdLevel::best());
        let elements = cols.checked_next_multiple_of(nr).and_then(|cols| cols.checked_mul(rows));
        elements
            .and_then(|all| all.checked_mul(size_of::<F>()))
            .map_or(usize::MAX, |all| all.saturating_add(64))
    }
}

/// Equal pieces of each of so many micro-panels: more than one where there would be too few tasks.
fn pieces(rows: usize, panels: usize) -> usize {
    let enough = |pieces: &usize| rows.is_multiple_of(*pieces) && panels * pieces >= TASKS;
    (1..=rows / FEW).find(enough).unwrap_or(1)
}
