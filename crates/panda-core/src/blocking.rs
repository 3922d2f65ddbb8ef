//! Sizes of the parts that a plan's waves and tiles are divided into, for a kernel, and which sites form a wave.
use std::ops::Range;

use kernels::{
    ReusableBuffer, WorkerSlots,
    packed::{
        Full, Operand, OperandFormat,
        half::{DEPTH, Half},
    },
};

use crate::{Normalized, Plan, Precision, Real};

/// Rows of a task that makes hidden rows, pulls gradients back or merges statistics.
pub(crate) const ROWS_PER_TASK: usize = 4;
/// Sites of a task that looks at a few numbers of each.
pub(crate) const SITES_PER_TASK: usize = 1 << 10;
/// Steps of a sum that a task packs of a weight: the less for more tasks where a group has few.
const STEPS: [usize; 2] = [64, 32];
/// Tasks of a step that are enough: two for each of 64 threads.
pub(crate) const TASKS: usize = 128;
/// Scores that pass have room for so many threads at once; more wait for each other.
const MAX_SLOTS: usize = 64;

/// How the engine cuts a wave for a kernel, and words of the parts of its panels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocking {
    /// Rows of a left micro-panel, columns of a right one.
    pub mr: usize,
    pub nr: usize,
    /// Rows of a task's scores.
    pub strip: usize,
    /// Rows or classes of a task's products.
    pub leaf: usize,
    /// Rows or classes whose products read the same operand one after the other.
    pub piece: usize,
    /// Steps of a weight's micro-panel that a task packs.
    pub steps: usize,
    /// Strips of a block.
    pub strips: usize,
    /// Of a block.
    pub h_left: usize,
    pub h_right: usize,
    /// Of a tile.
    pub wt_right: usize,
    pub w_right: usize,
    /// Of a block in a tile.
    pub gt_left: usize,
    pub g_left: usize,
}

impl Blocking {
    pub fn new<F: Real, N: OperandFormat<F>>(plan: &Plan<F>, h: usize) -> Self {
        let Plan { block, tile_classes: tile, .. } = *plan;
        let (mr, nr) = (N::side(Operand::Left), N::side(Operand::Right));
        let strip = mr;
        let weights = plan.tiles.saturating_mul(tile).saturating_mul(h);
        // The average group is shorter than the longest.
        let few = weights / (nr * STEPS[0]) < 3 * TASKS / 2;
        Self {
            mr,
            nr,
            strip,
            leaf: mr,
            piece: 8 * N::strip(),
            steps: if N::STEPWISE { STEPS[usize::from(few)] } else { DEPTH },
            strips: block.div_ceil(strip),
            h_left: N::words(Operand::Left, block, h),
            h_right: N::words(Operand::Right, h, block),
            wt_right: N::words(Operand::Right, tile, h),
            w_right: N::words(Operand::Right, h, tile),
            gt_left: N::words(Operand::Left, tile, block),
            g_left: N::words(Operand::Left, block, tile),
        }
    }

    /// The same for a precision.
    pub fn of<F: Real>(plan: &Plan<F>, h: usize, precision: Precision) -> Self {
        match precision {
            Precision::Full => Self::new::<F, Full>(plan, h),
            Precision::Bf16 => Self::new::<F, Half>(plan, h),
        }
    }

    /// Slots for scores that are not kept.
    pub fn slots<F>(&self, plan: &Plan<F>) -> usize {
        plan.tiles.saturating_mul(plan.wave.div_ceil(plan.block)).saturating_mul(self.strips).min(MAX_SLOTS)
    }
}

/// Makes at least so many slots for scores that are not kept.
pub(crate) fn ensure_slots<F: Real>(slots: &mut WorkerSlots<Vec<F>>, count: usize) {
    if slots.len() < count {
        slots.release();
        slots.resize(count);
    }
}

/// Waves of forward: sites whose scores are kept, then the others.
pub(crate) fn forward_waves<F: Real>(
    plan: &Plan<F>,
    sites: usize,
    strip: usize,
) -> impl Iterator<Item = Range<usize>> {
    [0..plan.kept, plan.kept..sites].into_iter().flat_map(move |part| {
        let step = plan.step(part.len(), strip);
        part.clone().step_by(step).map(move |from| from..(from + step).min(part.end))
    })
}

/// Waves of backward, over the active sites: first those whose hidden rows are saved, then other sites whose scores were
/// kept, `kept` from the first on, then the rest. Calls `each` with a wave and whether its hidden rows are saved.
pub(crate) fn backward_waves<F: Real>(
    plan: &Plan<F>,
    strip: usize,
    normalized: &Normalized<F>,
    kept: usize,
    active: &[bool],
    list: &mut Vec<usize>,
    mut each: impl FnMut(&[usize], bool),
) {
    // Saved rows are contiguous, so that a few inactive ones are included: their gradients are zero.
    let whole = |wave: &Range<usize>| 8 * count_active(&active[wave.clone()]) >= 7 * wave.len();
    let is_active = |site: &usize| active[*site];
    let held = normalized.hidden.waves(plan, kept);
    for wave in held.clone().filter(whole) {
        list.clear();
        list.extend(wave);
        each(list, true);
    }
    let first = held.clone().last().map_or(0, |wave| wave.end);
    let partly = || held.clone().filter(|wave| !whole(wave)).flatten();
    let kept_sites = || partly().chain(first..kept).filter(is_active);
    let rest = || (kept..normalized.max.len()).filter(is_active);
    let streams: [(&mut dyn Iterator<Item = usize>, usize); 2] =
        [(&mut kept_sites(), kept_sites().count()), (&mut rest(), rest().count())];
    for (sites, count) in streams {
        let step = plan.step(count, strip);
        for _ in 0..count.div_ceil(step) {
            list.clear();
            list.extend((&mut *sites).take(step));
            each(list, false);
        }
    }
}

/// Number of active sites.
pub(crate) fn count_active(active: &[bool]) -> usize {
    active.iter().filter(|active| **active).count()
}
