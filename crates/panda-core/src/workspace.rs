//! Reusable buffers of the selected normalizer, and their memory requirements.
//!
//! [`Plan`] defines wave, block, tile and group; a strip is the rows of one score task.
use std::sync::Mutex;

use kernels::{
    ReusableBuffer, ScratchReq, WorkerSlots, ensure_len,
    packed::{
        FullFormat,
        bf16::{Bf16Format, SplitBf16Format, Tile},
    },
    reset,
};

use crate::{
    DEFAULT_BUDGET, Head, Normalized, Plan, Precision, Real, Result, Selection, Shape,
    blocking::Blocking,
    error::expect_len,
    head::{PackedOperands, operand_requirements},
    saved::{SavedHidden, SavedScores},
    sites::DynSites,
};

/// Maximum bytes of the thread pool's queues during a call.
const QUEUE_BYTES: usize = 16 << 10;

/// Plans calls of the selected normalizer and reuses their buffers.
///
/// A workspace serves any number of calls, one after the other; its contents never affect results.
/// With a budget it never holds more bytes than that for calls of any shape: buffers of earlier
/// calls are freed if they would exceed it.
#[derive(Debug)]
pub struct Workspace<F> {
    plan: PlanSource<F>,
    pub(crate) precision: Precision,
    /// Sites of the current wave.
    pub(crate) wave_sites: Vec<usize>,
    /// Whether each site is active.
    pub(crate) active: Vec<bool>,
    /// Hidden rows of a wave.
    pub(crate) hidden: Vec<F>,
    /// Gradient of the hidden rows of a wave.
    pub(crate) gradient: Vec<F>,
    /// Scores that are not saved.
    pub(crate) score_slots: WorkerSlots<Vec<F>>,
    /// Sums of the score gradient over each strip's rows, by class.
    pub(crate) column_sums: Vec<F>,
    /// Largest score and sum of exponentials of each row of each tile.
    pub(crate) statistics: Vec<(F, f64)>,
    /// Selected scores of each row of each tile.
    pub(crate) selected_scores: Vec<F>,
    /// Packed operands, in the type of the rows or in bf16.
    pub(crate) full_operands: PackedOperands<F>,
    pub(crate) bf16_operands: PackedOperands<Tile>,
    /// Buffers of a recycled result.
    recycled: Normalized<F>,
}

/// Source of a call's plan.
#[derive(Debug, Clone, Copy)]
enum PlanSource<F> {
    Budget { bytes: usize, keep_scores: bool },
    Caller(Plan<F>),
}

impl<F: Real> Workspace<F> {
    /// Plans each call by its shape and a budget in bytes; see [`Plan::new`].
    pub fn new(budget: usize, keep_scores: bool) -> Self {
        Self::with_plan_source(PlanSource::Budget { bytes: budget, keep_scores })
    }

    /// Uses the same plan for all calls.
    ///
    /// # Errors
    /// A size of zero.
    pub fn with_plan(plan: Plan<F>) -> Result<Self> {
        plan.check()?;
        Ok(Self::with_plan_source(PlanSource::Caller(plan)))
    }

    /// Sets the precision of products.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self {
            precision,
            full_operands: PackedOperands::default(),
            bf16_operands: PackedOperands::default(),
            recycled: Normalized::empty(),
            ..self
        }
    }

    /// Changes the budget of further calls, which also limits existing buffers.
    pub fn set_budget(&mut self, budget: usize, keep_scores: bool) {
        self.plan = PlanSource::Budget { bytes: budget, keep_scores };
    }

    fn with_plan_source(plan: PlanSource<F>) -> Self {
        Self {
            plan,
            precision: Precision::Full,
            wave_sites: Vec::new(),
            active: Vec::new(),
            hidden: Vec::new(),
            gradient: Vec::new(),
            score_slots: WorkerSlots::default(),
            column_sums: Vec::new(),
            statistics: Vec::new(),
            selected_scores: Vec::new(),
            full_operands: PackedOperands::default(),
            bf16_operands: PackedOperands::default(),
            recycled: Normalized::empty(),
        }
    }

    /// Returns the plan of a call.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) for a budget below the smallest one.
    pub(crate) fn plan(&self, shape: Shape) -> Result<Plan<F>> {
        match self.plan {
            PlanSource::Budget { bytes, keep_scores } => Plan::new(shape, self.precision, bytes, keep_scores),
            PlanSource::Caller(plan) => Ok(plan.fitted(shape.sites, shape.classes)),
        }
    }

    /// Checks and plans a call, and frees buffers beyond the budget.
    pub(crate) fn prepare(
        &mut self,
        sites: &dyn DynSites<F>,
        head: &Head<F>,
        selection: &Selection,
    ) -> Result<Plan<F>> {
        expect_len("head.hidden", sites.columns(), head.hidden)?;
        selection.check(sites.count(), head.classes)?;
        head.check_weights(self.precision)?;
        let shape = Shape {
            sites: sites.count(),
            hidden: head.hidden,
            classes: head.classes,
            selected: selection.per_site(),
        };
        let plan = self.plan(shape)?;
        if let PlanSource::Budget { bytes, keep_scores } = self.plan {
            let limit = if keep_scores { bytes } else { bytes.min(DEFAULT_BUDGET) };
            self.release_excess(limit, &plan, shape);
        }
        Ok(plan)
    }

    /// Frees buffers beyond the plan, if the total exceeds a limit.
    fn release_excess(&mut self, limit: usize, plan: &Plan<F>, shape: Shape) {
        let required = requirements(plan, shape, self.precision);
        let Self {
            precision,
            wave_sites,
            active,
            hidden,
            gradient,
            score_slots,
            column_sums,
            statistics,
            selected_scores,
            recycled,
            ..
        } = self;
        let Normalized { max, log_sum, emissions, saved_scores, saved_hidden } = recycled;
        let wave_buffers: [&mut dyn ReusableBuffer; _] =
            [wave_sites, active, hidden, gradient, score_slots, column_sums, statistics, selected_scores];
        // The operands of the other precision are empty.
        let operands = match precision.resolve::<F>() {
            Precision::Full => self.full_operands.buffers_mut(),
            Precision::Bf16 | Precision::Bf16x3 => self.bf16_operands.buffers_mut(),
        };
        let result_buffers: [&mut dyn ReusableBuffer; _] =
            [&mut saved_scores.scores, &mut saved_hidden.rows, max, log_sum, emissions];
        let buffers = wave_buffers.into_iter().chain(operands).chain(result_buffers);
        let mut buffers: Vec<_> = buffers.zip(required).collect();
        kernels::release_excess(limit, task_scratch(plan), &mut buffers);
    }

    /// Keeps the memory of a result for the next call.
    pub fn recycle(&mut self, normalized: Normalized<F>) {
        let Normalized { max, log_sum, emissions, saved_scores, saved_hidden } = normalized;
        keep_larger(&mut self.recycled.max, max);
        keep_larger(&mut self.recycled.log_sum, log_sum);
        keep_larger(&mut self.recycled.emissions, emissions);
        keep_larger(&mut self.recycled.saved_scores.scores, saved_scores.scores);
        keep_larger(&mut self.recycled.saved_hidden.rows, saved_hidden.rows);
    }

    /// Takes recycled buffers for the result of a forward.
    pub(crate) fn take_buffers(
        &mut self,
        plan: &Plan<F>,
        sites: usize,
        per_site: usize,
        head: &Head<F>,
    ) -> Normalized<F> {
        let strip_rows = Blocking::for_precision(plan, head.hidden, self.precision).strip_rows;
        let recycled = std::mem::replace(&mut self.recycled, Normalized::empty());
        let (hidden_sites, wave_sites) = plan.hidden_waves(strip_rows);
        let score_wave_sites = plan.wave_sites(plan.saved_scores, strip_rows);
        let scores = resize_exact(recycled.saved_scores.scores, plan.saved_scores * head.classes);
        let rows = resize_exact(recycled.saved_hidden.rows, hidden_sites * head.hidden);
        Normalized {
            max: reset(recycled.max, sites, F::NEG_INFINITY),
            log_sum: reset(recycled.log_sum, sites, 0.0),
            emissions: reset(recycled.emissions, sites * per_site, 0.0),
            saved_scores: SavedScores::new(scores, plan, score_wave_sites, head.classes),
            saved_hidden: SavedHidden { rows, sites: hidden_sites, wave_sites },
        }
    }
}

/// Replaces a recycled buffer by a larger one.
fn keep_larger<T>(recycled: &mut Vec<T>, other: Vec<T>) {
    if other.capacity() > recycled.capacity() {
        *recycled = other;
    }
}

/// Resizes a buffer to `len` unspecified elements, without excess capacity.
fn resize_exact<F: Real>(mut buffer: Vec<F>, len: usize) -> Vec<F> {
    ensure_len(&mut buffer, len, F::ZERO);
    buffer.truncate(len);
    buffer
}

/// Returns the scratch of a call; the plan must match its shape.
pub(crate) fn scratch<F: Real>(plan: &Plan<F>, shape: Shape, precision: Precision) -> ScratchReq {
    ScratchReq::all_of(requirements(plan, shape, precision)).and(task_scratch(plan))
}

/// Returns the scratch of the sites, for any plan.
///
/// It is the largest score, log-sum, emissions and activity of each site.
pub(crate) fn site_scratch<F>(shape: Shape) -> [ScratchReq; 4] {
    let Shape { sites, selected, .. } = shape;
    let emissions = ScratchReq::new::<f64>(selected).times(sites);
    [ScratchReq::new::<F>(sites), ScratchReq::new::<f64>(sites), emissions, ScratchReq::new::<bool>(sites)]
}

/// Returns the requirements of all buffers, in the order of [`Workspace::release_excess`].
fn requirements<F: Real>(plan: &Plan<F>, shape: Shape, precision: Precision) -> [ScratchReq; 19] {
    let Shape { hidden: h, classes, selected, .. } = shape;
    let Plan { wave_sites, block_sites, tile_classes, group_tiles, saved_scores, .. } = *plan;
    let blocking = Blocking::for_precision(plan, h, precision);
    let [max, log_sum, emissions, active] = site_scratch::<F>(shape);
    let rows = ScratchReq::new::<F>(h).times(wave_sites);
    let slot = WorkerSlots::<Vec<F>>::requirement_of(
        ScratchReq::new::<F>(tile_classes).times(blocking.strip_rows.min(wave_sites)),
    );
    let blocks = wave_sites.div_ceil(block_sites);
    let strips = group_tiles.saturating_mul(blocks).saturating_mul(blocking.strips_per_block);
    let selected_scores = ScratchReq::new::<F>(selected.max(1)).times(wave_sites).times(group_tiles);
    let (hidden_sites, _) = plan.hidden_waves(blocking.strip_rows);
    // h: hidden rows, w: weight, g: score gradient, t: transposed; left or right operand.
    let [h_left, h_right, wt_right, w_right, gt_left, g_left] = match precision.resolve::<F>() {
        Precision::Full => operand_requirements::<F, FullFormat>(plan, h),
        Precision::Bf16 => operand_requirements::<F, Bf16Format>(plan, h),
        Precision::Bf16x3 => operand_requirements::<F, SplitBf16Format>(plan, h),
    };
    [
        ScratchReq::new::<usize>(wave_sites),
        active,
        rows,
        rows,
        slot.times(blocking.slot_count(plan)),
        ScratchReq::new::<F>(tile_classes).times(strips),
        ScratchReq::new::<(F, f64)>(wave_sites).times(group_tiles),
        selected_scores,
        h_left,
        h_right,
        wt_right,
        w_right,
        gt_left,
        g_left,
        ScratchReq::new::<F>(classes).times(saved_scores),
        ScratchReq::new::<F>(h).times(hidden_sites),
        max,
        log_sum,
        emissions,
    ]
}

/// Returns the scratch of tasks: a lock for each block of gradients or rows, and queues.
fn task_scratch<F>(plan: &Plan<F>) -> ScratchReq {
    let locks = plan.group_tiles.max(1).saturating_mul(plan.wave_sites.div_ceil(plan.block_sites));
    ScratchReq::new::<Mutex<&mut [F]>>(locks).and(ScratchReq::from_bytes(QUEUE_BYTES))
}
