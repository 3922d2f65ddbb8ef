//! Right matrix of a product, packed once and multiplied many times.
use super::blocked::RightOperand;
use crate::{
    BufferPool, PooledBuffer, Real, View, acquire,
    buffers::CACHE_LINE,
    packed::{Operand, OperandSource},
    par_for, parts_mut,
    simd::SimdLevel,
};

/// Columns may be split at multiples of this, on any machine.
pub const COLUMN_MULTIPLE: usize = 32;

/// Minimum steps of a piece of a micro-panel and of a task.
const STEPS_PER_PIECE: usize = 256;
/// Minimum tasks for long micro-panels: two for each of 64 threads.
const MIN_TASKS: usize = 128;

/// A matrix *k x n*, packed as a right operand.
///
/// Examples are a recurrent weight and the weight of a head that scores rows one at a time.
///
/// ```
/// use kernels::{Accumulate, PackedRight, View, ViewMut, product_packed};
///
/// let weight = PackedRight::new(View::new(&[1.0f32, 2.0, 3.0, 4.0], 2, 2));
/// let mut y = [10.0f32, 10.0];
/// let row = View::new(&[1.0, 1.0], 1, 2);
/// product_packed(ViewMut::new(&mut y, 1, 2), row, &weight, Accumulate::Add);
/// assert_eq!(y, [14.0, 16.0]);
/// ```
#[derive(Debug)]
pub struct PackedRight<F> {
    /// Micro-panels of NR columns, each with all k steps.
    ///
    /// NR: columns of a micro-kernel's tile.
    pub(super) panels: PooledBuffer<F>,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl<F: Real> Default for PackedRight<F> {
    /// Creates an empty matrix for [`pack`](PackedRight::pack).
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

    /// Packs a matrix in memory of a pool, if there is one.
    pub fn with_pool(pool: Option<&BufferPool<F>>, view: View<F>) -> Self {
        let (rows, cols) = view.shape();
        let [_, nr] = F::tile_shape(SimdLevel::best());
        let panels = acquire(pool, "right operand", cols.next_multiple_of(nr) * rows);
        let mut packed = Self { panels, rows, cols };
        packed.pack(view);
        packed
    }

    /// Replaces the matrix by another one; sufficient memory is reused.
    pub fn pack(&mut self, view: View<F>) {
        self.pack_for(SimdLevel::best(), view);
    }

    /// Packs a matrix at a SIMD level.
    pub(super) fn pack_for(&mut self, level: SimdLevel, view: View<F>) {
        let source = OperandSource::new(view, Operand::Right);
        let (cols, rows) = source.sizes();
        let [_, nr] = F::tile_shape(level);
        (self.rows, self.cols) = (rows, cols);
        let panels = self.panels.resize(cols.next_multiple_of(nr) * rows);
        let pieces = pieces_per_panel(rows, cols.div_ceil(nr));
        let steps = rows / pieces;
        // All tasks of a product wait for the packing.
        let (piece_len, pieces_per_task) = ((nr * steps).max(1), STEPS_PER_PIECE.div_ceil(rows.max(1)));
        par_for(parts_mut(panels, pieces_per_task * piece_len), |task, panels| {
            for (index, piece) in (task * pieces_per_task..).zip(panels.chunks_mut(piece_len)) {
                let start = (index / pieces * nr, index % pieces * steps);
                F::pack_panel(level, &source, start, nr, piece);
            }
        });
    }

    /// Returns the number of packing tasks for a *k x n* matrix.
    pub fn tasks_for(rows: usize, cols: usize) -> usize {
        let [_, nr] = F::tile_shape(SimdLevel::best());
        let panels = cols.div_ceil(nr);
        (panels * pieces_per_panel(rows, panels)).div_ceil(STEPS_PER_PIECE.div_ceil(rows.max(1)))
    }

    /// Returns the columns including those that pad the last micro-panel.
    pub(super) fn padded_cols(&self) -> usize {
        let [_, nr] = F::tile_shape(SimdLevel::best());
        self.cols.next_multiple_of(nr)
    }

    /// Returns the operand of a product.
    pub(super) fn columns(&self) -> RightOperand<'_, F> {
        RightOperand::Packed(&self.panels, self.rows)
    }

    /// Returns *k* and *n*.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.cols)
    }

    /// Returns the bytes of a packed *k x n* matrix.
    ///
    /// They include the alignment to a cache line.
    pub fn bytes_for(rows: usize, cols: usize) -> usize {
        let [_, nr] = F::tile_shape(SimdLevel::best());
        let elements = cols.checked_next_multiple_of(nr).and_then(|cols| cols.checked_mul(rows));
        elements
            .and_then(|elements| elements.checked_mul(size_of::<F>()))
            .map_or(usize::MAX, |bytes| bytes.saturating_add(CACHE_LINE))
    }
}

/// Returns the number of equal pieces of a micro-panel.
///
/// It is more than 1 where there would be too few tasks.
fn pieces_per_panel(rows: usize, panels: usize) -> usize {
    let is_enough = |pieces: &usize| rows.is_multiple_of(*pieces) && panels * pieces >= MIN_TASKS;
    (1..=rows / STEPS_PER_PIECE).find(is_enough).unwrap_or(1)
}
