//! The normalizer's head (last linear layer), packed for its products.
//!
//! ```text
//! Z = h Wᵀ      dW += Gᵀ h      dh += G W
//! ```
//! h: hidden rows; W: head weight; Z: scores; G: score gradients.
//!
//! Sites are divided into blocks and classes into tiles, as planned by [`Plan`]. Each factor of a
//! product needs its own order, so each of the six operands is packed once. Scores and their
//! gradients exist for a strip (a few rows) of a tile at a time, in the nearest cache. A task owns
//! what it writes, and each sum has a fixed order over blocks and tiles for any schedule. Tasks
//! that share a packed block write disjoint steps of its micro-panels; a lock protects what slices
//! cannot express.
use std::{ops::Range, sync::Mutex};

use kernels::{
    Accumulate, AlignedVec, ReusableBuffer, ScratchReq, View, ViewMut, lock,
    packed::{Operand, OperandFormat},
    par_find, par_for, parts, parts_mut, range_parts,
};

use crate::{
    Error, Plan, Precision, Real, Result,
    blocking::{Blocking, ROWS_PER_TASK},
    error::expect_len,
    sites::{DynSites, has_infinite_or_nan, max_abs},
};

/// Weights of a task that checks them.
const WEIGHTS_PER_TASK: usize = 1 << 16;
/// Largest number of words of a micro-panel in a piece.
const MAX_PANEL_WORDS: usize = 2;

/// Borrowed weight *C x H* and bias *C* of the head.
#[derive(Debug, Clone, Copy)]
pub struct Head<'a, F> {
    pub(crate) weight: &'a [F],
    pub(crate) bias: Option<&'a [F]>,
    pub(crate) hidden: usize,
    pub(crate) classes: usize,
}

impl<'a, F: Real> Head<'a, F> {
    /// Borrows a row-major weight and an optional bias; a bias of -inf masks its class.
    ///
    /// # Errors
    /// `hidden` or the number of classes is zero; lengths that do not match.
    pub fn new(weight: &'a [F], bias: Option<&'a [F]>, hidden: usize) -> Result<Self> {
        let classes = weight.len().checked_div(hidden).ok_or(Error::Zero { argument: "hidden" })?;
        if classes == 0 {
            return Err(Error::Zero { argument: "classes" });
        }
        expect_len("head.weight", classes * hidden, weight.len())?;
        if let Some(bias) = bias {
            expect_len("head.bias", classes, bias.len())?;
        }
        Ok(Self { weight, bias, hidden, classes })
    }

    /// Fails for a weight that is infinite in the products' precision.
    ///
    /// Forward would treat it as a masked class, and backward would compute `0 · inf` = NaN. NaN
    /// weights make scores NaN, which forward reports with the site.
    pub(crate) fn check_weights(&self, precision: Precision) -> Result<()> {
        // The scaled weight overflows to infinity if the weight overflows in the precision.
        let scale = match precision.resolve::<F>() {
            Precision::Full => F::ONE,
            Precision::Bf16 | Precision::Bf16x3 => F::from_f64(F::MAX.to_f64() / Precision::BF16_LIMIT),
        };
        let find_infinite = |_, weight: &[F]| has_infinite_or_nan(weight, scale).then_some(());
        if par_find(parts(self.weight, WEIGHTS_PER_TASK), find_infinite).is_none() {
            return Ok(());
        }
        match self.weight.iter().position(|w| (*w * scale).to_f64().is_infinite()) {
            None => Ok(()),
            Some(index) => {
                let class = index / self.hidden;
                Err(Error::InfiniteWeight { class, value: self.weight[index].to_f64() })
            }
        }
    }

    /// Returns the largest magnitude of a weight.
    pub fn max_abs_weight(&self) -> f64 {
        max_abs(self.weight)
    }

    /// Returns the weight, *C x H*.
    pub fn weight(&self) -> &'a [F] {
        self.weight
    }

    /// Returns the bias, *C*, if there is one.
    pub fn bias(&self) -> Option<&'a [F]> {
        self.bias
    }

    /// Returns the number of classes C.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Returns the width H of hidden rows.
    pub fn hidden(&self) -> usize {
        self.hidden
    }
}

/// Packed operands of the current wave and group.
#[derive(Debug)]
pub(crate) struct PackedOperands<W> {
    /// `h` on the left and on the right, block after block.
    pub h_left: AlignedVec<W>,
    pub h_right: AlignedVec<W>,
    /// `Wᵀ` and `W` on the right, tile after tile.
    pub wt_right: AlignedVec<W>,
    pub w_right: AlignedVec<W>,
    /// `Gᵀ` and `G` on the left, by tile and block.
    pub gt_left: AlignedVec<W>,
    pub g_left: AlignedVec<W>,
}

impl<W> Default for PackedOperands<W> {
    fn default() -> Self {
        let [h_left, h_right, wt_right, w_right, gt_left, g_left] =
            std::array::from_fn(|_| AlignedVec::default());
        Self { h_left, h_right, wt_right, w_right, gt_left, g_left }
    }
}

/// Returns the requirements of [`PackedOperands::buffers_mut`].
pub(crate) fn operand_requirements<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    h: usize,
) -> [ScratchReq; 6] {
    let blocking = Blocking::new::<F, N>(plan, h);
    let (tiles, blocks) = (plan.group_tiles, plan.wave_sites.div_ceil(plan.block_sites));
    let tile_blocks = tiles.saturating_mul(blocks);
    [
        (blocks, blocking.h_left_words),
        (blocks, blocking.h_right_words),
        (tiles, blocking.wt_right_words),
        (tiles, blocking.w_right_words),
        (tile_blocks, blocking.gt_left_words),
        (tile_blocks, blocking.g_left_words),
    ]
    .map(|(count, words)| ScratchReq::aligned::<N::Word>(count.saturating_mul(words)))
}

impl<W> PackedOperands<W> {
    /// Returns all buffers.
    pub(crate) fn buffers_mut(&mut self) -> [&mut dyn ReusableBuffer; 6] {
        let Self { h_left, h_right, wt_right, w_right, gt_left, g_left } = self;
        [h_left, h_right, wt_right, w_right, gt_left, g_left]
    }
}

/// Computes and packs the hidden rows of a wave.
///
/// They are packed on the left for scores and on the right for the gradient of the head, as
/// required.
///
/// ```text
/// par for each block, par for each strip of it:
///     par for a few rows each:  h = φ(x)
///     pack h on the left;  pack h on the right, as steps of the block's sum
/// ```
pub(crate) fn fill_and_pack<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    sites: &dyn DynSites<F>,
    wave: &[usize],
    hidden: &mut [F],
    [left, right]: [Option<&mut [N::Word]>; 2],
) {
    let h = sites.columns();
    let Blocking { strip_rows, h_left_words, h_right_words, .. } = Blocking::new::<F, N>(plan, h);
    let left = left.map(|left| parts_mut(left, h_left_words));
    let right = right.map(|right| parts_mut(right, h_right_words));
    let blocks = (parts_mut(hidden, plan.block_sites * h), parts(wave, plan.block_sites), left, right);
    par_for(blocks, |_, (hidden, wave, left, right)| {
        let (depth, right) = (wave.len(), right.map(Mutex::new));
        let left = left.map(|left| parts_mut(left, N::words(Operand::Left, strip_rows, h)));
        par_for(
            (parts_mut(hidden, strip_rows * h), parts(wave, strip_rows), left),
            |strip, (hidden, wave, left)| {
                let rows = (parts_mut(hidden, ROWS_PER_TASK * h), parts(wave, ROWS_PER_TASK));
                par_for(rows, |_, (hidden, wave)| sites.fill_rows(wave, hidden));
                let view = View::new(hidden, wave.len(), h);
                if let Some(left) = left {
                    N::pack(view, Operand::Left, left, 0, h);
                }
                if let Some(right) = &right {
                    N::pack(view, Operand::Right, &mut lock(right), strip * strip_rows, depth);
                }
            },
        );
    });
}

/// Packs saved rows of a wave on the right.
///
/// ```text
/// par for each block, par for each strip of it:  pack h, as steps of the block's sum
/// ```
pub(crate) fn pack_right<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    hidden: &[F],
    h: usize,
    right: &mut [N::Word],
) {
    let Blocking { strip_rows, h_right_words, .. } = Blocking::new::<F, N>(plan, h);
    let blocks = (parts(hidden, plan.block_sites * h), parts_mut(right, h_right_words));
    par_for(blocks, |_, (hidden, right)| {
        let (depth, right) = (hidden.len() / h, Mutex::new(right));
        par_for(parts(hidden, strip_rows * h), |strip, hidden| {
            let view = View::new(hidden, hidden.len() / h, h);
            N::pack(view, Operand::Right, &mut lock(&right), strip * strip_rows, depth);
        });
    });
}

/// Packs the weights of a group for scores: `Wᵀ` on the right.
///
/// ```text
/// par for each tile, par for each NR classes of it, par for some steps of H each:  pack W
/// ```
pub(crate) fn pack_for_scores<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    head: &Head<F>,
    group: &Range<usize>,
    buffer: &mut AlignedVec<N::Word>,
) {
    let h = head.hidden;
    let blocking = Blocking::new::<F, N>(plan, h);
    let packed =
        buffer.ensure_len(group.len().div_ceil(plan.tile_classes) * blocking.wt_right_words, N::ZERO);
    let tiles = parts(&head.weight[group.start * h..group.end * h], plan.tile_classes * h);
    par_for((parts_mut(packed, blocking.wt_right_words), tiles), |_, (packed, weight)| {
        let panels = parts_mut(packed, N::words(Operand::Right, blocking.nr, h));
        par_for((panels, parts(weight, blocking.nr * h)), |_, (packed, weight)| {
            let view = |steps: Range<usize>| {
                View::with_stride(&weight[steps.start..], weight.len() / h, steps.len(), h).transposed()
            };
            pack_panels::<F, N>(&blocking, packed, h, view);
        });
    });
}

/// Packs the weights of a group for the gradient of the rows: `W` on the right.
///
/// ```text
/// par for each tile, par for each NR of H, par for some classes of the tile each:  pack W
/// ```
pub(crate) fn pack_for_gradient<F: Real, N: OperandFormat<F>>(
    plan: &Plan<F>,
    head: &Head<F>,
    group: &Range<usize>,
    buffer: &mut AlignedVec<N::Word>,
) {
    let h = head.hidden;
    let blocking = Blocking::new::<F, N>(plan, h);
    let packed = buffer.ensure_len(group.len().div_ceil(plan.tile_classes) * blocking.w_right_words, N::ZERO);
    let tiles = parts(&head.weight[group.start * h..group.end * h], plan.tile_classes * h);
    par_for((parts_mut(packed, blocking.w_right_words), tiles), |_, (packed, weight)| {
        let width = weight.len() / h;
        let panels = parts_mut(packed, N::words(Operand::Right, blocking.nr, width));
        par_for((panels, range_parts(h, blocking.nr)), |_, (packed, columns)| {
            let view = |steps: Range<usize>| {
                View::with_stride(&weight[steps.start * h + columns.start..], steps.len(), columns.len(), h)
            };
            pack_panels::<F, N>(&blocking, packed, width, view);
        });
    });
}

/// Packs NR columns on the right, `steps_per_task` steps at a time.
fn pack_panels<'a, F: Real, N: OperandFormat<F>>(
    blocking: &Blocking,
    packed: &mut [N::Word],
    depth: usize,
    view: impl Fn(Range<usize>) -> View<'a, F> + Sync,
) {
    let pack = |piece: usize, packed: &mut [N::Word]| {
        let steps = piece * blocking.steps_per_task..depth.min((piece + 1) * blocking.steps_per_task);
        let count = steps.len();
        N::pack(view(steps), Operand::Right, packed, 0, count);
    };
    if N::STEPWISE {
        par_for(parts_mut(packed, N::words(Operand::Right, blocking.nr, blocking.steps_per_task)), pack);
    } else {
        // The NR columns are two micro-panels. Their words for these steps, one or two each, are
        // not adjacent, so they are packed in temporary memory.
        let panel_words = N::words(Operand::Right, blocking.nr, blocking.steps_per_task) / 2;
        let (first, second) = packed.split_at_mut(packed.len() / 2);
        par_for((parts_mut(first, panel_words), parts_mut(second, panel_words)), |piece, panels| {
            let mut words = [N::ZERO; 2 * MAX_PANEL_WORDS];
            let words = &mut words[..2 * panel_words];
            pack(piece, words);
            panels.0.copy_from_slice(&words[..panel_words]);
            panels.1.copy_from_slice(&words[panel_words..]);
        });
    }
}

/// Computes scores of a strip in a tile, without the bias.
///
/// The strip starts at row `first_row` of `block`.
pub(crate) fn strip_scores<F: Real, N: OperandFormat<F>>(
    blocking: &Blocking,
    h: usize,
    block: usize,
    first_row: usize,
    tile: usize,
    operands: &PackedOperands<N::Word>,
    out: ViewMut<F>,
) {
    let PackedOperands { h_left, wt_right, .. } = operands;
    let left = &h_left[block * blocking.h_left_words + N::words(Operand::Left, first_row, h)..];
    N::multiply(out, left, &wt_right[tile * blocking.wt_right_words..], h, Accumulate::Replace);
}
