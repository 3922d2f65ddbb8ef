//! Buffers that calls of like shape share, so that only the first of them allocates, and what they require.
use std::sync::Mutex;

use kernels::{
    ReusableBuffer, ScratchReq, WorkerSlots, ensure_len,
    packed::{
        Full,
        half::{Half, Tile},
    },
    reset,
};

use crate::{
    DEFAULT_BUDGET, Head, Normalized, Plan, Precision, Real, Result, Selection, Shape,
    blocking::Blocking,
    error::expect_len,
    head::{PackedOperands, panel_requirements},
    saved::{SavedHidden, SavedScores},
    sites::DynSites,
};

/// Bytes that the queues of the thread pool take meanwhile, however large the call.
const QUEUE_BYTES: usize = 16 << 10;

/// Plans calls and keeps the buffers of their waves.
///
/// One workspace serves any number of calls, one after the other; what it holds never reaches a result. With a budget it
/// never holds more than that, whatever the shapes of its calls: where buffers of an earlier one would be too much, they go.
#[derive(Debug)]
pub struct Workspace<F> {
    plan: PlanFrom<F>,
    pub(crate) precision: Precision,
    /// Sites of a wave.
    pub(crate) list: Vec<usize>,
    /// Whether each site is active.
    pub(crate) active: Vec<bool>,
    /// Hidden rows of a wave and their gradient.
    pub(crate) hidden: Vec<F>,
    pub(crate) gradient: Vec<F>,
    /// Scores that pass.
    pub(crate) z: WorkerSlots<Vec<F>>,
    /// Column sums of each tile's strips.
    pub(crate) sums: Vec<F>,
    /// Largest score and sum of exponentials of each row of each tile.
    pub(crate) statistics: Vec<(F, f64)>,
    /// Selected scores of each row of each tile.
    pub(crate) picked: Vec<F>,
    /// Packed factors, in the type of the rows or in bf16.
    pub(crate) full: PackedOperands<F>,
    pub(crate) half: PackedOperands<Tile>,
    /// What an earlier call kept and nobody needs any more.
    spare: Normalized<F>,
}

/// Where a call's plan comes from.
#[derive(Debug, Clone, Copy)]
enum PlanFrom<F> {
    Budget { bytes: usize, keep_scores: bool },
    Caller(Plan<F>),
}

impl<F: Real> Workspace<F> {
    /// Plans each call by its shape and a budget in bytes, see [`Plan::new`].
    pub fn new(budget: usize, keep_scores: bool) -> Self {
        Self::from(PlanFrom::Budget { bytes: budget, keep_scores })
    }

    /// Divides each call the same way.
    ///
    /// # Errors
    /// A size of zero.
    pub fn with_plan(plan: Plan<F>) -> Result<Self> {
        plan.check()?;
        Ok(Self::from(PlanFrom::Caller(plan)))
    }

    /// The same with products in other numbers.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self {
            precision,
            full: PackedOperands::default(),
            half: PackedOperands::default(),
            spare: Normalized::none(),
            ..self
        }
    }

    /// Plans further calls by another budget, which holds for the buffers that are there as well.
    pub fn set_budget(&mut self, budget: usize, keep_scores: bool) {
        self.plan = PlanFrom::Budget { bytes: budget, keep_scores };
    }

    fn from(plan: PlanFrom<F>) -> Self {
        Self {
            plan,
            precision: Precision::Full,
            list: Vec::new(),
            active: Vec::new(),
            hidden: Vec::new(),
            gradient: Vec::new(),
            z: WorkerSlots::default(),
            sums: Vec::new(),
            statistics: Vec::new(),
            picked: Vec::new(),
            full: PackedOperands::default(),
            half: PackedOperands::default(),
            spare: Normalized::none(),
        }
    }

    /// The plan of a call.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) for a budget below the smallest one.
    pub fn plan(&self, shape: Shape) -> Result<Plan<F>> {
        match self.plan {
            PlanFrom::Budget { bytes, keep_scores } => Plan::new(shape, self.precision, bytes, keep_scores),
            PlanFrom::Caller(plan) => Ok(plan.fitted(shape.sites, shape.classes)),
        }
    }

    /// Fails unless the arguments fit together; frees buffers that the budget has no room for besides the plan.
    pub(crate) fn prepare(
        &mut self,
        sites: &dyn DynSites<F>,
        head: &Head<F>,
        selection: &Selection,
    ) -> Result<Plan<F>> {
        expect_len("head.hidden", sites.columns(), head.hidden)?;
        selection.check(sites.count(), head.classes)?;
        head.reject_infinite_weights(self.precision)?;
        let shape = Shape {
            sites: sites.count(),
            hidden: head.hidden,
            classes: head.classes,
            selected: selection.per_site(),
        };
        let plan = self.plan(shape)?;
        if let PlanFrom::Budget { bytes, keep_scores } = self.plan {
            let limit = if keep_scores { bytes } else { bytes.min(DEFAULT_BUDGET) };
            self.release_excess(limit, &plan, shape);
        }
        Ok(plan)
    }

    /// Frees buffers that are larger than their part of the plan, if all of them together exceed a limit.
    fn release_excess(&mut self, limit: usize, plan: &Plan<F>, shape: Shape) {
        let required = requirements(plan, shape, self.precision);
        let Self { precision, list, active, hidden, gradient, z, sums, statistics, picked, spare, .. } = self;
        let Normalized { max, log_sum, emissions, scores, hidden: saved } = spare;
        let of_wave: [&mut dyn ReusableBuffer; _] =
            [list, active, hidden, gradient, z, sums, statistics, picked];
        // The panels of the other precision are empty.
        let panels = match precision {
            Precision::Full => self.full.all(),
            Precision::Bf16 => self.half.all(),
        };
        let saved: [&mut dyn ReusableBuffer; _] =
            [&mut scores.scores, &mut saved.rows, max, log_sum, emissions];
        let buffers = of_wave.into_iter().chain(panels).chain(saved);
        let mut buffers: Vec<_> = buffers.zip(required).collect();
        kernels::release_excess(limit, task_scratch(plan), &mut buffers);
    }

    /// Takes back what a forward found, once nobody needs it: the next call of its shape allocates nothing for it.
    pub fn recycle(&mut self, normalized: Normalized<F>) {
        let Normalized { max, log_sum, emissions, scores, hidden } = normalized;
        keep_larger(&mut self.spare.max, max);
        keep_larger(&mut self.spare.log_sum, log_sum);
        keep_larger(&mut self.spare.emissions, emissions);
        keep_larger(&mut self.spare.scores.scores, scores.scores);
        keep_larger(&mut self.spare.hidden.rows, hidden.rows);
    }

    /// Buffers of what outlives a forward, without results yet.
    pub(crate) fn take_buffers(
        &mut self,
        plan: &Plan<F>,
        [sites, per_site]: [usize; 2],
        head: &Head<F>,
    ) -> Normalized<F> {
        let strip = Blocking::of(plan, head.hidden, self.precision).strip;
        let spare = std::mem::replace(&mut self.spare, Normalized::none());
        let (held, wave) = plan.held(strip);
        let saved_scores = exactly(spare.scores.scores, plan.kept * head.classes);
        let rows = exactly(spare.hidden.rows, held * head.hidden);
        Normalized {
            max: reset(spare.max, sites, F::NEG_INFINITY),
            log_sum: reset(spare.log_sum, sites, 0.0),
            emissions: reset(spare.emissions, sites * per_site, 0.0),
            scores: SavedScores::new(saved_scores, plan, plan.step(plan.kept, strip), head.classes),
            hidden: SavedHidden { rows, sites: held, wave },
        }
    }
}

fn keep_larger<T>(spare: &mut Vec<T>, other: Vec<T>) {
    if other.capacity() > spare.capacity() {
        *spare = other;
    }
}

/// A buffer of so many elements, whatever is in them, and room for no fewer.
fn exactly<F: Real>(mut buffer: Vec<F>, len: usize) -> Vec<F> {
    ensure_len(&mut buffer, len, F::ZERO);
    buffer.truncate(len);
    buffer
}

/// Scratch of a call with a plan that fits the shape.
pub(crate) fn scratch<F: Real>(plan: &Plan<F>, shape: Shape, precision: Precision) -> ScratchReq {
    ScratchReq::all_of(requirements(plan, shape, precision)).and(task_scratch(plan))
}

/// Scratch of the sites, whatever the plan: largest score, log-sum and emissions of each, and whether it is active.
pub(crate) fn site_scratch<F>(shape: Shape) -> [ScratchReq; 4] {
    let Shape { sites, selected, .. } = shape;
    let emissions = ScratchReq::new::<f64>(selected).times(sites);
    [ScratchReq::new::<F>(sites), ScratchReq::new::<f64>(sites), emissions, ScratchReq::new::<bool>(sites)]
}

/// Requirements of all buffers, in the order of [`Workspace::release_excess`].
fn requirements<F: Real>(plan: &Plan<F>, shape: Shape, precision: Precision) -> [ScratchReq; 19] {
    let Shape { hidden: h, classes, selected, .. } = shape;
    let Plan { wave, block, tile_classes: tile, tiles, kept, .. } = *plan;
    let blocking = Blocking::of(plan, h, precision);
    let [max, log_sum, emissions, active] = site_scratch::<F>(shape);
    let rows = ScratchReq::new::<F>(h).times(wave);
    let slot =
        WorkerSlots::<Vec<F>>::requirement_of(ScratchReq::new::<F>(tile).times(blocking.strip.min(wave)));
    let strips = tiles.saturating_mul(wave.div_ceil(block)).saturating_mul(blocking.strips);
    let picked = ScratchReq::new::<F>(selected.max(1)).times(wave).times(tiles);
    let [h_left, h_right, wt_right, w_right, gt_left, g_left] = match precision {
        Precision::Full => panel_requirements::<F, Full>(plan, h),
        Precision::Bf16 => panel_requirements::<F, Half>(plan, h),
    };
    [
        ScratchReq::new::<usize>(wave),
        active,
        rows,
        rows,
        slot.times(blocking.slots(plan)),
        ScratchReq::new::<F>(tile).times(strips),
        ScratchReq::new::<(F, f64)>(wave).times(tiles),
        picked,
        h_left,
        h_right,
        wt_right,
        w_right,
        gt_left,
        g_left,
        ScratchReq::new::<F>(classes).times(kept),
        ScratchReq::new::<F>(h).times(plan.held(blocking.strip).0),
        max,
        log_sum,
        emissions,
    ]
}

/// Scratch that lives inside of a step: a lock of each block, of a tile of gradients or of rows, and queues.
fn task_scratch<F>(plan: &Plan<F>) -> ScratchReq {
    let locks = plan.tiles.max(1).saturating_mul(plan.wave.div_ceil(plan.block));
    ScratchReq::new::<Mutex<&mut [F]>>(locks).and(ScratchReq::from_bytes(QUEUE_BYTES))
}
