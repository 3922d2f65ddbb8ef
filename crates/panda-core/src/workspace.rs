//! Buffers that calls of like shape share, so that only the first of them allocates.
use kernels::{ensure_len, packed::half::Tile, reset};

use crate::{
    DEFAULT_BUDGET, Head, Normalized, Plan, Precision, Real, Result, Selection, Shape,
    buffer::Buffer,
    cut::{Cut, Parts},
    error::expect_len,
    kept::{Held, Kept},
    panels::{Panels, Slots},
    sites::Make,
};

/// A plan's maker and the buffers of its waves.
///
/// One workspace serves any number of calls, one after the other; what it holds never reaches a result. With a budget it
/// never holds more than that, whatever the shapes of its calls: where buffers of an earlier one would be too much, they go.
#[derive(Debug)]
pub struct Workspace<F> {
    plan: PlanFrom<F>,
    pub(crate) precision: Precision,
    /// Sites of a wave.
    pub(crate) list: Vec<usize>,
    /// Whether each site counts.
    pub(crate) counts: Vec<bool>,
    /// Hidden rows of a wave and their gradient.
    pub(crate) hidden: Vec<F>,
    pub(crate) gradient: Vec<F>,
    /// Scores that pass.
    pub(crate) z: Slots<F>,
    /// Column sums of each tile's strips.
    pub(crate) sums: Vec<F>,
    /// Largest score and sum of exponentials of each row of each tile.
    pub(crate) statistics: Vec<(F, f64)>,
    /// Selected scores of each row of each tile.
    pub(crate) picked: Vec<F>,
    /// Packed factors, in the type of the rows or in bf16.
    pub(crate) full: Panels<F>,
    pub(crate) half: Panels<Tile>,
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

    /// Cuts each call the same way.
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
            full: Panels::default(),
            half: Panels::default(),
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
            counts: Vec::new(),
            hidden: Vec::new(),
            gradient: Vec::new(),
            z: Slots::default(),
            sums: Vec::new(),
            statistics: Vec::new(),
            picked: Vec::new(),
            full: Panels::default(),
            half: Panels::default(),
            spare: Normalized::none(),
        }
    }

    /// The cut of a call.
    ///
    /// # Errors
    /// [`Error::Budget`](crate::Error::Budget) for a budget below the smallest one.
    pub fn plan(&self, shape: Shape) -> Result<Plan<F>> {
        match self.plan {
            PlanFrom::Budget { bytes, keep_scores } => Plan::new(shape, self.precision, bytes, keep_scores),
            PlanFrom::Caller(plan) => Ok(plan.fitted(shape.sites, shape.classes)),
        }
    }

    /// Fails unless the arguments fit together; lets buffers go that the budget has no room for beside their cut.
    pub(crate) fn prepare(
        &mut self,
        sites: &dyn Make<F>,
        head: &Head<F>,
        selection: &Selection,
        panels: (&mut Panels<F>, &mut Panels<Tile>),
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
            self.limit(limit, plan.parts(shape, self.precision), panels);
        }
        Ok(plan)
    }

    /// Drops every buffer that is larger than its part of the plan, if all of them together would be more than a limit.
    fn limit(&mut self, limit: usize, parts: Parts, (full, half): (&mut Panels<F>, &mut Panels<Tile>)) {
        let Self { list, counts, hidden, gradient, z, sums, statistics, picked, spare, .. } = self;
        let Normalized { max, log_sum, emissions, kept, held } = spare;
        let vectors: [&mut dyn Buffer; _] = [list, counts, hidden, gradient, z, sums, statistics, picked];
        let (of_vectors, of_panels) = parts.buffers.split_at(vectors.len());
        // Panels of the other precision are empty.
        let panels = full.all().into_iter().zip(of_panels).chain(half.all().into_iter().zip(of_panels));
        let between: [&mut dyn Buffer; _] = [&mut kept.scores, &mut held.rows, max, log_sum, emissions];
        let between = between.into_iter().zip(&parts.between);
        let mut buffers: Vec<_> = vectors.into_iter().zip(of_vectors).chain(panels).chain(between).collect();
        let excess = buffers.iter().map(|(buffer, part)| buffer.bytes().saturating_sub(**part));
        if excess.fold(parts.bytes(), usize::saturating_add) > limit {
            let large = buffers.iter_mut().filter(|(buffer, part)| buffer.bytes() > **part);
            large.for_each(|(buffer, _)| buffer.let_go());
        }
    }

    /// Takes back what a forward found, once nobody needs it: the next call of its shape allocates nothing for it.
    pub fn recycle(&mut self, normalized: Normalized<F>) {
        let Normalized { max, log_sum, emissions, kept, held } = normalized;
        keep_larger(&mut self.spare.max, max);
        keep_larger(&mut self.spare.log_sum, log_sum);
        keep_larger(&mut self.spare.emissions, emissions);
        keep_larger(&mut self.spare.kept.scores, kept.scores);
        keep_larger(&mut self.spare.held.rows, held.rows);
    }

    /// Room for what outlives a forward, nothing found yet.
    pub(crate) fn take_spare(
        &mut self,
        plan: &Plan<F>,
        [sites, per_site]: [usize; 2],
        head: &Head<F>,
    ) -> Normalized<F> {
        let strip = Cut::of(plan, head.hidden, self.precision).strip;
        let spare = std::mem::replace(&mut self.spare, Normalized::none());
        let (held, wave) = plan.held(strip);
        let scores = exactly(spare.kept.scores, plan.kept * head.classes);
        let rows = exactly(spare.held.rows, held * head.hidden);
        Normalized {
            max: reset(spare.max, sites, F::NEG_INFINITY),
            log_sum: reset(spare.log_sum, sites, 0.0),
            emissions: reset(spare.emissions, sites * per_site, 0.0),
            kept: Kept::new(scores, plan, plan.step(plan.kept, strip), head.classes),
            held: Held { rows, sites: held, wave },
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

/// Runs on one of the threads that the parallel steps inside use: otherwise each of them would put its caller to sleep
/// and wake it.
pub(crate) fn in_pool<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| run())
}
