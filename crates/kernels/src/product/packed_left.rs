//! Left matrix of a product: packed once in parts, multiplied many times.
use crate::{
    BufferPool, PooledBuffer, Real, View, acquire,
    packed::{Operand, OperandSource},
    par_for, parts_mut,
    simd::SimdLevel,
};

/// A matrix *m x k*, packed in parts as a left operand.
///
/// ```
/// use kernels::{Accumulate, PackedLeft, PackedRight, View, ViewMut, product_of_parts};
///
/// let weight = PackedLeft::new(View::new(&[1.0f32, 2.0, 3.0, 4.0], 2, 2), 1);
/// let mut y = [10.0f32];
/// let right = PackedRight::new(View::new(&[1.0, 1.0], 2, 1));
/// product_of_parts(ViewMut::new(&mut y, 1, 1), (&weight, 1), (&right, 0), Accumulate::Add);
/// assert_eq!(y, [17.0]);
/// ```
#[derive(Debug)]
pub struct PackedLeft<F> {
    /// Part by part: micro-panels of nearly equal size, with all k steps.
    panels: PooledBuffer<F>,
    rows: usize,
    steps: usize,
    /// Rows of a part.
    rows_per_part: usize,
}

impl<F: Real> PackedLeft<F> {
    /// Packs a matrix in parts of `rows_per_part` rows; the last part may have fewer.
    ///
    /// Cost: `O(m k)` time and as much memory.
    ///
    /// # Panics
    /// If `rows_per_part` is 0.
    pub fn new(view: View<F>, rows_per_part: usize) -> Self {
        Self::with_pool(None, view, rows_per_part)
    }

    /// Packs a matrix in memory of a pool, if there is one.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with_pool(pool: Option<&BufferPool<F>>, view: View<F>, rows_per_part: usize) -> Self {
        let (rows, steps) = view.shape();
        Self::packed_for(SimdLevel::best(), view, rows_per_part, acquire(pool, "left operand", rows * steps))
    }

    #[cfg(test)]
    pub(crate) fn new_for(level: SimdLevel, view: View<F>, rows_per_part: usize) -> Self {
        let (rows, steps) = view.shape();
        Self::packed_for(level, view, rows_per_part, acquire(None, "left operand", rows * steps))
    }

    /// Packs a matrix into `panels` in parallel tasks, one for each part.
    fn packed_for(
        level: SimdLevel,
        view: View<F>,
        rows_per_part: usize,
        mut panels: PooledBuffer<F>,
    ) -> Self {
        let source = OperandSource::new(view, Operand::Left);
        let ((rows, steps), [mr, _]) = (source.sizes(), F::tile_shape(level));
        par_for(parts_mut(&mut panels, (rows_per_part * steps).max(1)), |index, part| {
            let row_count = part.len() / steps;
            let panels = row_count.div_ceil(mr);
            for panel in 0..panels {
                let [first_row, end_row] = [panel, panel + 1].map(|panel| panel * row_count / panels);
                let out = &mut part[first_row * steps..end_row * steps];
                let start = (index * rows_per_part + first_row, 0);
                F::pack_panel(level, &source, start, end_row - first_row, out);
            }
        });
        Self { panels, rows, steps, rows_per_part }
    }

    /// Returns the number of packing tasks for *m* rows.
    pub fn tasks_for(rows: usize, rows_per_part: usize) -> usize {
        rows.div_ceil(rows_per_part)
    }

    /// Returns *m* and *k*.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.steps)
    }

    /// Returns the number of parts.
    pub(crate) fn parts(&self) -> usize {
        Self::tasks_for(self.rows, self.rows_per_part)
    }

    /// Returns the first row of a part.
    pub(crate) fn first_row(&self, part: usize) -> usize {
        part * self.rows_per_part
    }

    /// Returns the panels from a part on, and the part's shape.
    pub(crate) fn part(&self, part: usize) -> (&[F], (usize, usize)) {
        let rows = self.rows.min((part + 1) * self.rows_per_part) - part * self.rows_per_part;
        (&self.panels[part * self.rows_per_part * self.steps..], (rows, self.steps))
    }
}
