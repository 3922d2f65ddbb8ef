//! Task sizes of the selected normalizer, and division of sites into waves.
//!
//! wave: sites whose hidden rows exist at once; block: part of a wave; strip: rows of one
//! score task; tile: classes whose scores exist at once; word: element of a packed operand. In the
//! names of operands, h are hidden rows, w and wt the head's weight and its transpose, g and gt the
//! score gradients and their transpose.
use std::ops::Range;

use kernels::{
    ReusableBuffer, WorkerSlots,
    packed::{
        FullFormat, Operand, OperandFormat,
        bf16::{Bf16Format, DEPTH, SplitBf16Format},
    },
};

use crate::{Normalized, Plan, Precision, Real};

/// Rows of a task that computes hidden rows, their gradients or statistics.
pub(crate) const ROWS_PER_TASK: usize = 4;
/// Sites of a task that reads a few numbers of each.
pub(crate) const SITES_PER_TASK: usize = 1 << 10;
/// Steps of a weight that a task packs.
const STEPS_PER_TASK: usize = 64;
/// Steps of a weight that a task packs if tasks are few.
const STEPS_PER_SHORT_TASK: usize = 32;
/// Consecutive products that read the same right operand.
///
/// Each has the preferred rows of the operand format.
pub(crate) const SHARED_PRODUCTS: usize = 8;
/// Targeted number of tasks in a step: two for each of 64 threads.
pub(crate) const MIN_TASKS: usize = 128;
/// Maximum number of threads that compute unsaved scores at once; further threads wait.
const MAX_SLOTS: usize = 64;

/// Task sizes of a wave, and words of its packed operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocking {
    /// Rows of a left micro-panel.
    pub mr: usize,
    /// Columns of a right micro-panel.
    pub nr: usize,
    /// Rows of a task that computes scores.
    pub strip_rows: usize,
    /// Rows or classes of a task that computes a product.
    pub task_rows: usize,
    /// Rows or classes of consecutive products that read the same operand.
    pub shared_rows: usize,
    /// Steps of a weight's micro-panel that a task packs.
    pub steps_per_task: usize,
    /// Strips of a block.
    pub strips_per_block: usize,
    /// Words of a block of hidden rows, as left or right operand.
    pub h_left_words: usize,
    pub h_right_words: usize,
    /// Words of a tile of weights, transposed (`wt`) or not (`w`).
    pub wt_right_words: usize,
    pub w_right_words: usize,
    /// Words of a tile's score gradients of a block.
    ///
    /// `gt`: transposed, for the gradient of the head; `g`: for the gradient of the rows.
    pub gt_left_words: usize,
    pub g_left_words: usize,
}

impl Blocking {
    /// Selects the sizes for an operand format, with hidden width `h`.
    pub(crate) fn new<F: Real, N: OperandFormat<F>>(plan: &Plan<F>, h: usize) -> Self {
        let Plan { block_sites, tile_classes, group_tiles, .. } = *plan;
        let (mr, nr) = (N::panel_width(Operand::Left), N::panel_width(Operand::Right));
        let strip_rows = mr;
        let weights = group_tiles.saturating_mul(tile_classes).saturating_mul(h);
        // The average group is smaller than the largest.
        let has_few_tasks = weights / (nr * STEPS_PER_TASK) < 3 * MIN_TASKS / 2;
        let steps_per_task = if has_few_tasks { STEPS_PER_SHORT_TASK } else { STEPS_PER_TASK };
        Self {
            mr,
            nr,
            strip_rows,
            task_rows: mr,
            shared_rows: SHARED_PRODUCTS * N::preferred_rows(),
            steps_per_task: if N::STEPWISE { steps_per_task } else { DEPTH },
            strips_per_block: block_sites.div_ceil(strip_rows),
            h_left_words: N::words(Operand::Left, block_sites, h),
            h_right_words: N::words(Operand::Right, h, block_sites),
            wt_right_words: N::words(Operand::Right, tile_classes, h),
            w_right_words: N::words(Operand::Right, h, tile_classes),
            gt_left_words: N::words(Operand::Left, tile_classes, block_sites),
            g_left_words: N::words(Operand::Left, block_sites, tile_classes),
        }
    }

    /// Selects the sizes for a precision.
    pub(crate) fn for_precision<F: Real>(plan: &Plan<F>, h: usize, precision: Precision) -> Self {
        match precision.resolve::<F>() {
            Precision::Full => Self::new::<F, FullFormat>(plan, h),
            Precision::Bf16 => Self::new::<F, Bf16Format>(plan, h),
            Precision::Bf16x3 => Self::new::<F, SplitBf16Format>(plan, h),
        }
    }

    /// Returns the number of slots for unsaved scores.
    pub(crate) fn slot_count<F>(&self, plan: &Plan<F>) -> usize {
        plan.group_tiles
            .saturating_mul(plan.wave_sites.div_ceil(plan.block_sites))
            .saturating_mul(self.strips_per_block)
            .min(MAX_SLOTS)
    }
}

/// Ensures `count` slots for unsaved scores.
pub(crate) fn ensure_slots<F: Real>(slots: &mut WorkerSlots<Vec<F>>, count: usize) {
    if slots.len() < count {
        slots.release();
        slots.resize(count);
    }
}

/// Returns the waves of forward: sites with saved scores, then the others.
pub(crate) fn forward_waves<F: Real>(
    plan: &Plan<F>,
    sites: usize,
    strip_rows: usize,
) -> impl Iterator<Item = Range<usize>> {
    [0..plan.saved_scores, plan.saved_scores..sites].into_iter().flat_map(move |sites| {
        let wave_sites = plan.wave_sites(sites.len(), strip_rows);
        sites.clone().step_by(wave_sites).map(move |start| start..(start + wave_sites).min(sites.end))
    })
}

/// Calls `visit(wave, has_saved_rows)` with each wave of active sites.
///
/// `has_saved_rows` is true if the hidden rows of the wave are saved; such waves may include a few
/// inactive sites. They come first, then other sites with saved scores (the first `score_sites`),
/// then the rest. `wave_sites` is the buffer of a wave's sites.
pub(crate) fn backward_waves<F: Real>(
    plan: &Plan<F>,
    strip_rows: usize,
    normalized: &Normalized<F>,
    score_sites: usize,
    active: &[bool],
    wave_sites: &mut Vec<usize>,
    mut visit: impl FnMut(&[usize], bool),
) {
    // Waves of saved rows. These are contiguous, so a wave includes a few inactive sites, whose
    // gradients are zero.
    let is_dense = |wave: &Range<usize>| {
        // At least seven eighths are active.
        8 * count_active(&active[wave.clone()]) >= 7 * wave.len()
    };
    let is_active = |site: &usize| active[*site];
    let saved_waves = normalized.saved_hidden.compatible_waves(plan, score_sites);
    for wave in saved_waves.clone().filter(is_dense) {
        wave_sites.clear();
        wave_sites.extend(wave);
        visit(wave_sites, true);
    }
    // Waves without saved rows, of active sites only.
    let saved_end = saved_waves.clone().last().map_or(0, |wave| wave.end);
    let sparse_sites = || saved_waves.clone().filter(|wave| !is_dense(wave)).flatten();
    let score_wave_sites = || sparse_sites().chain(saved_end..score_sites).filter(is_active);
    let other_sites = || (score_sites..normalized.max.len()).filter(is_active);
    let without_saved_rows: [(&mut dyn Iterator<Item = usize>, usize); 2] =
        [(&mut score_wave_sites(), score_wave_sites().count()), (&mut other_sites(), other_sites().count())];
    for (sites, count) in without_saved_rows {
        let max_sites = plan.wave_sites(count, strip_rows);
        for _ in 0..count.div_ceil(max_sites) {
            wave_sites.clear();
            wave_sites.extend((&mut *sites).take(max_sites));
            visit(wave_sites, false);
        }
    }
}

/// Counts the active sites.
pub(crate) fn count_active(active: &[bool]) -> usize {
    active.iter().filter(|active| **active).count()
}
