//! Buffers that calls of like shape share, so that only the first of them allocates.
use kernels::{
    grow,
    packed::{
        Full,
        half::{Half, Tile},
    },
};

use crate::{
    Head, MemoryBudget, Plan, Precision, Real, Result, Selection, Shape, Sites,
    error::expect_len,
    panels::{Panels, packed},
};

/// A plan's maker and the buffers of its waves.
///
/// One workspace serves any number of calls, one after the other; what it holds never reaches a result.
#[derive(Debug)]
pub struct Workspace<F> {
    plan: PlanFrom,
    pub(crate) precision: Precision,
    /// Hidden rows of a wave and their gradient.
    pub(crate) hidden: Vec<F>,
    pub(crate) gradient: Vec<F>,
    /// Scores that pass.
    pub(crate) z: Vec<F>,
    /// Column sums of each tile's blocks.
    pub(crate) sums: Vec<F>,
    /// Largest score and sum of exponentials of each row of each tile.
    pub(crate) statistics: Vec<(F, f64)>,
    /// Selected scores of each row of each tile.
    pub(crate) picked: Vec<F>,
    /// Packed factors, in the type of the rows or in bf16.
    pub(crate) full: Panels<F>,
    pub(crate) half: Panels<Tile>,
    /// Scores of an earlier call that nobody needs any more.
    spare: Vec<F>,
}

/// Where a call's plan comes from.
#[derive(Debug, Clone, Copy)]
enum PlanFrom {
    Budget(MemoryBudget),
    Caller(Plan),
}

impl<F: Real> Workspace<F> {
    /// Plans each call by its shape and a budget.
    pub fn new(budget: MemoryBudget) -> Self {
        Self::from(PlanFrom::Budget(budget))
    }

    /// Cuts each call the same way.
    ///
    /// # Errors
    /// A size of zero.
    pub fn with_plan(plan: Plan) -> Result<Self> {
        plan.check()?;
        Ok(Self::from(PlanFrom::Caller(plan)))
    }

    /// The same with products in other numbers.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { precision, full: Panels::default(), half: Panels::default(), ..self }
    }

    fn from(plan: PlanFrom) -> Self {
        Self {
            plan,
            precision: Precision::Full,
            hidden: Vec::new(),
            gradient: Vec::new(),
            z: Vec::new(),
            sums: Vec::new(),
            statistics: Vec::new(),
            picked: Vec::new(),
            full: Panels::default(),
            half: Panels::default(),
            spare: Vec::new(),
        }
    }

    /// The cut of a call.
    pub fn plan(&self, shape: Shape) -> Plan {
        match self.plan {
            PlanFrom::Budget(budget) => Plan::new(shape, size_of::<F>(), self.precision, budget),
            PlanFrom::Caller(plan) => plan.fitted(shape.sites, shape.classes.max(1)),
        }
    }

    /// Fails unless the arguments fit together; makes room for their cut.
    pub(crate) fn prepare<S: Sites<F>>(
        &mut self,
        sites: &S,
        head: &Head<F>,
        selection: &Selection,
    ) -> Result<Plan> {
        expect_len("head.hidden", sites.width(), head.hidden)?;
        selection.check(sites.len(), head.classes)?;
        head.reject_infinite_weights(self.precision)?;
        let shape = Shape {
            sites: sites.len(),
            hidden: head.hidden,
            classes: head.classes,
            selected: selection.per_site(),
        };
        let plan = self.plan(shape);
        grow(&mut self.hidden, plan.wave * head.hidden, F::ZERO);
        let (_, passing) = match self.precision {
            Precision::Full => packed::<F, Full>(&plan, head.hidden),
            Precision::Bf16 => packed::<F, Half>(&plan, head.hidden),
        };
        grow(&mut self.z, passing as usize, F::ZERO);
        grow(&mut self.picked, plan.wave * plan.tiles * selection.per_site().max(1), F::ZERO);
        grow(&mut self.statistics, plan.wave * plan.tiles, (F::ZERO, 0.0));
        Ok(plan)
    }

    /// Room for `len` scores that outlive the call.
    pub(crate) fn take_spare(&mut self, len: usize) -> Vec<F> {
        let mut kept = std::mem::take(&mut self.spare);
        grow(&mut kept, len, F::ZERO);
        kept.truncate(len);
        kept
    }

    /// Gives such room back.
    pub(crate) fn give_spare(&mut self, kept: Vec<F>) {
        if kept.capacity() > self.spare.capacity() {
            self.spare = kept;
        }
    }
}

/// Runs on one of the threads that the parallel steps inside use: otherwise each of them would put its caller to sleep
/// and wake it.
pub(crate) fn in_pool<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    rayon::scope(|_| run())
}
