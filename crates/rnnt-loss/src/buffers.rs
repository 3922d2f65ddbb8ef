//! SessionBuffers of a session, which stay from step to step.
use panda_core::{Real, Workspace};

use crate::{Options, Result, budget::CallPlan, objective::LatticeWorkspace, site_buffers::SiteBuffers};

/// SessionBuffers that all calls of a session share.
#[derive(Debug)]
pub struct SessionBuffers<F> {
    /// One for each head.
    pub(crate) normalizers: Vec<Workspace<F>>,
    pub(crate) lattices: LatticeWorkspace,
    pub(crate) sites: SiteBuffers,
    /// Of the first pass of pruned training.
    pub(crate) pruning: ::pruned::Workspace<F>,
}

impl<F: Real> Default for SessionBuffers<F> {
    fn default() -> Self {
        Self {
            normalizers: Vec::new(),
            lattices: LatticeWorkspace::default(),
            sites: SiteBuffers::default(),
            pruning: ::pruned::Workspace::default(),
        }
    }
}

impl<F: Real> SessionBuffers<F> {
    /// Frees buffers that a plan leaves no memory for, and sets the budgets of the others.
    pub(crate) fn apply_plan(&mut self, plan: &CallPlan, heads: usize, options: &Options) -> Result<()> {
        if plan.held == 0 {
            // There is no first pass.
            self.pruning.keep_within(&::pruned::PassScratch::default(), plan.left);
        }
        let left = plan.left.saturating_sub(self.pruning.excess());
        let left = self.lattices.keep_within(plan.lattices, &options.loss, left);
        self.sites.keep_within(plan.sites, left);
        self.normalizers.truncate(heads);
        while self.normalizers.len() < heads {
            let workspace = match options.plan {
                None => Workspace::new(options.budget, options.keep_scores),
                Some(plan) => Workspace::with_plan(plan.to::<F>())?,
            };
            self.normalizers.push(workspace.with_precision(options.precision));
        }
        for (head, (workspace, &budget)) in self.normalizers.iter_mut().zip(&plan.heads).enumerate() {
            workspace.set_budget(budget, options.keeps_scores(head));
        }
        Ok(())
    }
}
