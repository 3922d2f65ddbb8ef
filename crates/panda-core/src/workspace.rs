//! Buffers that calls of like shape share, so that only the first of them allocates.
use std::ops::Range;

use crate::{Head, MemoryBudget, Plan, Real, Result, Selection, Shape, Sites, error::expect_len};

/// A plan's maker and the buffers of its waves.
///
/// One workspace serves any number of calls, one after the other; what it holds never reaches a result.
#[derive(Debug)]
pub struct Workspace<F> {
    plan: PlanFrom,
    /// Hidden rows of a wave and their gradient.
    pub(crate) hidden: Vec<F>,
    pub(crate) gradient: Vec<F>,
    /// Tiles in flight, *wave x classes* each.
    pub(crate) tiles: Vec<F>,
    /// Column sums of each tile's blocks.
    pub(crate) sums: Vec<F>,
    /// Largest score and sum of exponentials of each row of each tile.
    pub(crate) statistics: Vec<(F, f64)>,
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

    fn from(plan: PlanFrom) -> Self {
        Self {
            plan,
            hidden: Vec::new(),
            gradient: Vec::new(),
            tiles: Vec::new(),
            sums: Vec::new(),
            statistics: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// The cut of a call.
    pub fn plan(&self, shape: Shape) -> Plan {
        match self.plan {
            PlanFrom::Budget(budget) => Plan::new(shape, size_of::<F>(), budget),
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
        head.reject_infinite_weights()?;
        let shape = Shape {
            sites: sites.len(),
            hidden: head.hidden,
            classes: head.classes,
            selected: selection.per_site(),
        };
        let plan = self.plan(shape);
        let wide = plan.tiles * plan.classes;
        grow(&mut self.hidden, plan.wave * head.hidden, F::ZERO);
        grow(&mut self.tiles, plan.wave * wide, F::ZERO);
        grow(&mut self.statistics, plan.wave * plan.tiles, (F::ZERO, 0.0));
        Ok(plan)
    }

    /// Room for `len` scores that outlive the call.
    pub(crate) fn take_spare(&mut self, len: usize) -> Vec<F> {
        let mut kept = std::mem::take(&mut self.spare);
        kept.truncate(len);
        kept.reserve_exact(len - kept.len());
        kept.resize(len, F::ZERO);
        kept
    }

    /// Gives such room back.
    pub(crate) fn give_spare(&mut self, kept: Vec<F>) {
        if kept.capacity() > self.spare.capacity() {
            self.spare = kept;
        }
    }
}

/// Makes a buffer at least so long.
pub(crate) fn grow<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T) {
    if buffer.len() < len {
        buffer.resize(len, value);
    }
}

/// Runs of tiles that are in flight together, as ranges of classes.
pub(crate) fn flights(plan: &Plan, classes: usize) -> impl Iterator<Item = Range<usize>> + use<> {
    let step = plan.tiles * plan.classes;
    (0..classes).step_by(step).map(move |from| from..(from + step).min(classes))
}
