//! The factors of a wave's three products, packed: one engine for all kernels.
//!
//! ```text
//! Z = h Wᵀ      dW += Gᵀ h      dh += G W
//! ```
//!
//! Sites are cut into blocks and classes into tiles as the [`Plan`] says. Either side of a product wants its own order,
//! so that each of the six factors is packed for itself, and once; scores and their gradients exist for a few rows of a
//! tile at a time, in the nearest cache. A task owns what it writes, and every sum has one order: blocks and tiles by
//! number, whoever computes them. Where tasks share a packed block, each has steps of its own in every micro-panel, and a
//! lock stands for what cannot be said in slices.
use std::{
    ops::Range,
    sync::{Mutex, MutexGuard},
};

use kernels::{
    Accumulate, AlignedVec, View, ViewMut, ensure_len, items_mut,
    packed::{Operand, OperandFormat},
    par_for, parts, parts_mut, runs,
};

use crate::{
    Head, Plan, Real,
    buffer::Buffer,
    cut::{Cut, FEW},
    sites::Make,
};

/// Packed factors of the wave and the flight at hand, each part with room for a whole block or tile.
#[derive(Debug)]
pub(crate) struct Panels<W> {
    /// `h` on the left and on the right, block after block.
    pub h_left: AlignedVec<W>,
    pub h_right: AlignedVec<W>,
    /// `Wᵀ` and `W` on the right, tile after tile.
    pub wt_right: AlignedVec<W>,
    pub w_right: AlignedVec<W>,
    /// `Gᵀ` and `G` on the left, tile after tile, in each block after block.
    pub gt_left: AlignedVec<W>,
    pub g_left: AlignedVec<W>,
}

impl<W> Default for Panels<W> {
    fn default() -> Self {
        let [h_left, h_right, wt_right, w_right, gt_left, g_left] =
            std::array::from_fn(|_| AlignedVec::default());
        Self { h_left, h_right, wt_right, w_right, gt_left, g_left }
    }
}

impl<W: Clone> Panels<W> {
    /// Each of them.
    pub fn all(&mut self) -> [&mut dyn Buffer; 6] {
        let Self { h_left, h_right, wt_right, w_right, gt_left, g_left } = self;
        [h_left, h_right, wt_right, w_right, gt_left, g_left]
    }
}

/// Rooms for the scores of a task each, as many as tasks may run at once.
#[derive(Debug, Default)]
pub(crate) struct Slots<F>(Vec<Mutex<Vec<F>>>);

impl<F: Real> Slots<F> {
    /// At least so many.
    pub fn make(&mut self, count: usize) {
        if self.0.len() < count {
            self.0 = (0..count).map(|_| Mutex::default()).collect();
        }
    }

    /// Bytes held.
    pub fn held(&self) -> usize {
        let of = |slot: &Mutex<Vec<F>>| size_of_val(slot) + size_of_val(&**lock(slot));
        self.0.iter().map(of).sum()
    }

    /// Lends one with room for `len` scores, whatever is in it: to each thread its own, if there are enough.
    pub fn with<T>(&self, len: usize, run: impl FnOnce(&mut [F]) -> T) -> T {
        let mut slot = lock(&self.0[rayon::current_thread_index().unwrap_or(0) % self.0.len()]);
        ensure_len(&mut slot, len, F::ZERO);
        run(&mut slot[..len])
    }
}

impl<F: Real> Buffer for Slots<F> {
    fn bytes(&self) -> usize {
        self.held()
    }
    fn let_go(&mut self) {
        *self = Self::default();
    }
}

/// What a panic left behind is only ever overwritten.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Makes the hidden rows of a wave and packs them: on the left for their scores and on the right for the gradient of the
/// head, unless somebody has done it or nobody will need it.
///
/// ```text
/// par for each block, par for each strip of it:
///     par for a few rows each:  h = φ(x)
///     pack h on the left;  pack h on the right, as these steps of the block's sum
/// ```
pub(crate) fn fill<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    sites: &dyn Make<F>,
    wave: &[usize],
    hidden: &mut [F],
    [left, right]: [Option<&mut [N::Word]>; 2],
) {
    let h = sites.columns();
    let Cut { strip, h_left, h_right, .. } = Cut::new::<F, N>(plan, h);
    let left = left.map(|left| parts_mut(left, h_left));
    let right = right.map(|right| parts_mut(right, h_right));
    let blocks = (parts_mut(hidden, plan.block * h), parts(wave, plan.block), left, right);
    par_for(blocks, |_, (hidden, wave, left, right)| {
        let (depth, right) = (wave.len(), right.map(Mutex::new));
        let left = left.map(|left| parts_mut(left, N::words(Operand::Left, strip, h)));
        par_for((parts_mut(hidden, strip * h), parts(wave, strip), left), |at, (hidden, wave, left)| {
            let rows = (parts_mut(hidden, FEW * h), parts(wave, FEW));
            par_for(rows, |_, (hidden, wave)| sites.make(wave, hidden));
            let view = View::new(hidden, wave.len(), h);
            if let Some(left) = left {
                N::pack(view, Operand::Left, left, 0, h);
            }
            if let Some(right) = &right {
                N::pack(view, Operand::Right, &mut lock(right), at * strip, depth);
            }
        });
    });
}

/// Packs the rows of a wave on the right.
///
/// ```text
/// par for each block, par for each strip of it:  pack h, as these steps of the block's sum
/// ```
pub(crate) fn pack_right<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    hidden: &[F],
    h: usize,
    right: &mut [N::Word],
) {
    let Cut { strip, h_right, .. } = Cut::new::<F, N>(plan, h);
    par_for((parts(hidden, plan.block * h), parts_mut(right, h_right)), |_, (hidden, right)| {
        let (depth, right) = (hidden.len() / h, Mutex::new(right));
        par_for(parts(hidden, strip * h), |at, hidden| {
            let view = View::new(hidden, hidden.len() / h, h);
            N::pack(view, Operand::Right, &mut lock(&right), at * strip, depth);
        });
    });
}

/// Packs the weights of a flight for its scores, `Wᵀ` on the right.
///
/// ```text
/// par for each tile, par for each NR classes of it, par for some steps of H each:  pack W
/// ```
pub(crate) fn pack_for_scores<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    head: &Head<F>,
    flight: &Range<usize>,
    into: &mut AlignedVec<N::Word>,
) {
    let h = head.hidden;
    let cut = Cut::new::<F, N>(plan, h);
    let packed = into.ensure_len(flight.len().div_ceil(plan.tile_classes) * cut.wt_right, N::ZERO);
    let tiles = parts(&head.weight[flight.start * h..flight.end * h], plan.tile_classes * h);
    par_for((parts_mut(packed, cut.wt_right), tiles), |_, (packed, weight)| {
        let panels = parts_mut(packed, N::words(Operand::Right, cut.nr, h));
        par_for((panels, parts(weight, cut.nr * h)), |_, (packed, weight)| {
            let some = |steps: Range<usize>| {
                View::with_stride(&weight[steps.start..], weight.len() / h, steps.len(), h).transposed()
            };
            pack_panels::<F, N>(&cut, packed, h, some);
        });
    });
}

/// Packs the weights of a flight for the gradient of the rows, `W` on the right.
///
/// ```text
/// par for each tile, par for each NR of H, par for some classes of the tile each:  pack W
/// ```
pub(crate) fn pack_for_gradient<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    head: &Head<F>,
    flight: &Range<usize>,
    into: &mut AlignedVec<N::Word>,
) {
    let h = head.hidden;
    let cut = Cut::new::<F, N>(plan, h);
    let packed = into.ensure_len(flight.len().div_ceil(plan.tile_classes) * cut.w_right, N::ZERO);
    let tiles = parts(&head.weight[flight.start * h..flight.end * h], plan.tile_classes * h);
    par_for((parts_mut(packed, cut.w_right), tiles), |_, (packed, weight)| {
        let width = weight.len() / h;
        let panels = parts_mut(packed, N::words(Operand::Right, cut.nr, width));
        par_for((panels, runs(h, cut.nr)), |_, (packed, cols)| {
            let some = |steps: Range<usize>| {
                View::with_stride(&weight[steps.start * h + cols.start..], steps.len(), cols.len(), h)
            };
            pack_panels::<F, N>(&cut, packed, width, some);
        });
    });
}

/// Packs NR columns on the right, some steps of a sum of `depth` at a time.
fn pack_panels<'a, F: Real, N: OperandFormat<F>>(
    cut: &Cut,
    packed: &mut [N::Word],
    depth: usize,
    some: impl Fn(Range<usize>) -> View<'a, F> + Sync,
) {
    let pack = |piece: usize, packed: &mut [N::Word]| {
        let steps = piece * cut.steps..depth.min((piece + 1) * cut.steps);
        let count = steps.len();
        N::pack(some(steps), Operand::Right, packed, 0, count);
    };
    if N::STEPWISE {
        par_for(parts_mut(packed, N::words(Operand::Right, cut.nr, cut.steps)), pack);
    } else {
        // Two micro-panels, a word of each for so many steps: the words of the same steps do not lie side by side.
        let (low, high) = packed.split_at_mut(packed.len() / 2);
        par_for((items_mut(low), items_mut(high)), |piece, (low, high)| {
            let mut words = [N::ZERO; 2];
            pack(piece, &mut words);
            [*low, *high] = words;
        });
    }
}

/// Scores, without the bias, of a strip of a block from its row `first` on in a tile.
pub(crate) fn scores<F: Real, N: OperandFormat<F>>(
    cut: &Cut,
    h: usize,
    (block, first): (usize, usize),
    tile: usize,
    Panels { h_left, wt_right, .. }: &Panels<N::Word>,
    z: ViewMut<F>,
) {
    let left = &h_left[block * cut.h_left + N::words(Operand::Left, first, h)..];
    N::multiply(z, left, &wt_right[tile * cut.wt_right..], h, Accumulate::Replace);
}
