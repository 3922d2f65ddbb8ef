//! A left operand that is packed once, in parts, each of which is multiplied many times.
use crate::{
    BufferPool, PooledBuffer, Real, View, acquire,
    packed::{Operand, OperandSource},
    par_for, parts_mut,
    simd::SimdLevel,
};

/// A matrix *m x k*, packed to stand on the left side of products, some rows at a time: rows that meet a weight in tasks of their
/// own.
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
    /// Part by part; in each, micro-panels as even as can be, with all k steps.
    panels: PooledBuffer<F>,
    rows: usize,
    steps: usize,
    /// LeftOperand of a part.
    each: usize,
}

impl<F: Real> PackedLeft<F> {
    /// Packs a matrix, transposed or not, in parts of `each` rows; the last part may have fewer. The parts are packed side by
    /// side.
    ///
    /// Cost: `O(m k)` time and as much memory.
    ///
    /// # Panics
    /// If `each` is 0.
    pub fn new(view: View<F>, each: usize) -> Self {
        Self::with_pool(None, view, each)
    }

    /// The same in memory from a pool, if there is one.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn with_pool(pool: Option<&BufferPool<F>>, view: View<F>, each: usize) -> Self {
        let (rows, steps) = view.shape();
        Self::packed_for(SimdLevel::best(), view, each, acquire(pool, "left operand", rows * steps))
    }

    #[cfg(test)]
    pub(crate) fn new_for(machine: SimdLevel, view: View<F>, each: usize) -> Self {
        let (rows, steps) = view.shape();
        Self::packed_for(machine, view, each, acquire(None, "left operand", rows * steps))
    }

    fn packed_for(machine: SimdLevel, view: View<F>, each: usize, mut panels: PooledBuffer<F>) -> Self {
        let source = OperandSource::new(view, Operand::Left);
        let ((rows, steps), [most, _]) = (source.sizes(), F::sides(machine));
        par_for(parts_mut(&mut panels, (each * steps).max(1)), |at, part| {
            let count = part.len() / steps;
            let panels = count.div_ceil(most);
            for panel in 0..panels {
                let [first, end] = [panel, panel + 1].map(|panel| panel * count / panels);
                let out = &mut part[first * steps..end * steps];
                F::pack_panel(machine, &source, (at * each + first, 0), end - first, out);
            }
        });
        Self { panels, rows, steps, each }
    }

    /// Into how many independent parts the packing of *m* rows is cut, whatever the number of threads.
    pub fn tasks_for(rows: usize, each: usize) -> usize {
        rows.div_ceil(each)
    }

    /// *m*, *k*
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.steps)
    }

    /// Number of parts.
    pub(crate) fn parts(&self) -> usize {
        Self::tasks_for(self.rows, self.each)
    }

    /// First row of a part.
    pub(crate) fn first_row(&self, at: usize) -> usize {
        at * self.each
    }

    /// One part with all that follows it, and its shape.
    pub(crate) fn part(&self, at: usize) -> (&[F], (usize, usize)) {
        let rows = self.rows.min((at + 1) * self.each) - at * self.each;
        (&self.panels[at * self.each * self.steps..], (rows, self.steps))
    }
}
