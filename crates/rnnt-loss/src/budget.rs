//! Plans the memory of a transducer loss call: splits the batch into groups that fit the budget.
//!
//! A group is a range of utterances that are processed together. A site is a lattice node (t, u).
//! The normalizer is the blocked log-softmax over the classes of a head.
//!
//! ```text
//! budget >= call + max over groups (lists of sites, emissions, adjoints)
//!                + lattices + Σ_heads plan of the normalizer
//! ```
//!
//! The smallest possible budget is that of one utterance at a time: the values of its sites, the
//! buffers of one lattice recursion (a lane), and the smallest plan of each head.
use std::ops::Range;

use kernels::ScratchReq;
use panda_core::Real;
use panda_core::{DEFAULT_BUDGET, Plan, Shape, Workspace};
use rnnt_dp::Topology;

use crate::{
    Error, Options, Result, columns,
    heads::{HeadRole, HeadSet},
    objective::{LatticeObjective, LatticeWorkspace},
    site_buffers::SiteBuffers,
};

/// Sizes that determine the memory of a call.
pub(crate) struct CallSizes<'a> {
    pub objective: &'a LatticeObjective<'a>,
    pub options: &'a Options,
    /// Joint width H.
    pub hidden: usize,
    /// Number of classes C.
    pub classes: usize,
    /// Bytes per site in each list of [`RowIndices`](crate::site_buffers::RowIndices).
    pub index_bytes: [usize; 3],
    /// Bytes that the caller allocates, such as a first pass.
    pub caller_bytes: usize,
    /// Scratch memory by utterances and sites, for scores as inputs.
    pub score_scratch: Option<Box<dyn Fn(usize, usize) -> ScratchReq + 'a>>,
}

/// Plan of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallPlan {
    /// Groups of utterances.
    pub groups: Vec<Range<usize>>,
    /// Bytes for the recursions over lattices.
    pub lattice_bytes: usize,
    /// Budget of each head, tokens first.
    pub head_budgets: Vec<usize>,
    /// Scratch memory of all sites, in the order of [`SiteBuffers::allocated_by_buffer`].
    pub site_scratch: [ScratchReq; 6],
    /// Bytes that the caller allocates, such as those of a first pass.
    pub caller_bytes: usize,
    /// Unused bytes of the budget.
    pub unused_bytes: usize,
    /// Whether the scores of most sites of a group are kept.
    pub keeps_scores: bool,
    /// Most bytes at any time.
    pub bytes: usize,
}

impl CallPlan {
    /// Plan of a single head without a lattice.
    pub(crate) fn single_head(budget: usize) -> Self {
        Self {
            groups: Vec::new(),
            lattice_bytes: 0,
            head_budgets: vec![budget],
            site_scratch: [ScratchReq::EMPTY; 6],
            caller_bytes: 0,
            unused_bytes: 0,
            keeps_scores: false,
            bytes: budget,
        }
    }
}

/// Maximum sites of a group without kept scores: four full waves of most plans.
///
/// A wave is the range of sites that the normalizer processes over all classes at a time.
const MAX_GROUP_SITES: usize = 6272;
/// Lower bound of the limit on the sites of a group.
const MIN_GROUP_SITES: usize = 64;
/// Bytes for lists of lists and the thread pool's queues.
const SLACK_BYTES: usize = 16 << 10;
/// Upper bound on the bytes of an utterance in lists.
///
/// The lists are first rows of frames and labels, groups, losses, lattices of groups; for CTC
/// copied frame counts.
const UTTERANCE_BYTES: usize = 160;
/// Bytes of a site in the occupancies that `skipped_sites` sorts.
///
/// A list that grows may have a capacity of twice its `f64` elements.
const SKIP_BYTES: usize = 2 * size_of::<f64>();

/// Returns whether the scores of three quarters of the sites are saved.
fn keeps_most_scores(saved_sites: usize, sites: usize) -> bool {
    saved_sites >= sites / 4 * 3
}

/// Groups neighbors up to a limit on their sum; an element above it is its own group.
fn fill_groups(sizes: &[usize], limit: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::with_capacity(sizes.len());
    let mut sum = 0;
    for (index, &size) in sizes.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if size.saturating_add(sum) <= limit => {
                group.end = index + 1;
                sum += size;
            }
            _ => {
                groups.push(index..index + 1);
                sum = size;
            }
        }
    }
    groups
}

/// Groups neighbors like [`fill_groups`], with the smallest possible maximum.
///
/// Small groups can keep the scores of all of their sites.
fn balance_groups(sizes: &[usize], limit: usize) -> Vec<Range<usize>> {
    let count = fill_groups(sizes, limit).len();
    let total = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
    // Bisection for the smallest limit that needs no more groups.
    let (mut min_limit, mut max_limit) = (total.div_ceil(count.max(1)).min(limit), limit);
    while min_limit < max_limit {
        let middle = min_limit + (max_limit - min_limit) / 2;
        match fill_groups(sizes, middle).len() <= count {
            true => max_limit = middle,
            false => min_limit = middle + 1,
        }
    }
    fill_groups(sizes, max_limit)
}

impl CallSizes<'_> {
    /// Plans all utterances at once, for a pending loss.
    ///
    /// # Errors
    /// [`Error::Budget`].
    pub(crate) fn all_at_once<F: Real>(&self) -> Result<CallPlan> {
        self.plan::<F>(std::iter::once(0..self.objective.site_targets().batch()).collect())
    }

    /// Plans one group at a time.
    ///
    /// # Errors
    /// [`Error::Budget`] if single utterances exceed the budget.
    pub(crate) fn in_groups<F: Real>(&self) -> Result<CallPlan> {
        let groups = self.groups::<F>();
        match self.plan::<F>(groups) {
            Err(Error::Budget { .. }) => {
                self.plan::<F>((0..self.objective.site_targets().batch()).map(|b| b..b + 1).collect())
            }
            planned => planned,
        }
    }

    /// Groups of neighbors within the budget.
    ///
    /// Short utterances share a group, so that its waves are full.
    fn groups<F: Real>(&self) -> Vec<Range<usize>> {
        let (budget, site_bytes) = (self.options.working_bytes(), self.site_bytes());
        let bytes_with_scores = self.classes.saturating_mul(size_of::<F>()).saturating_add(site_bytes);
        // Half of the budget may keep scores; without them an eighth is enough for a group.
        let sites_with_scores = if self.options.keep_scores { budget / 2 / bytes_with_scores } else { 0 };
        let limit = match (&self.score_scratch, self.options.plan) {
            // Scores have no waves, but lists with padding: the limit is in bytes, not in sites.
            (Some(_), _) => budget / 2,
            (None, Some(plan)) => plan.wave_sites,
            (None, None) => {
                sites_with_scores.max((budget / 8 / site_bytes).clamp(MIN_GROUP_SITES, MAX_GROUP_SITES))
            }
        };
        let lattices = self.objective.site_targets().lattices();
        // Size of an utterance in the unit of the limit: bytes or sites.
        let utterance_size = |b| {
            let sites = lattices.site_range(b).len();
            match &self.score_scratch {
                Some(_) => site_bytes.saturating_mul(sites) + self.group_bytes(&(b..b + 1), sites),
                None => sites,
            }
        };
        let sizes: Vec<usize> = (0..lattices.batch()).map(utterance_size).collect();
        balance_groups(&sizes, limit)
    }

    /// Distributes the budget over lattices and heads for given groups.
    fn plan<F: Real>(&self, groups: Vec<Range<usize>>) -> Result<CallPlan> {
        let limit = self.options.budget;
        // Bytes that no plan changes: call, groups, sites.
        let (mut max_sites, mut fixed_bytes) = (0, 0);
        for group in &groups {
            let lattices = self.objective.site_targets().lattices();
            let sites = lattices.site_range(group.end - 1).end - lattices.site_range(group.start).start;
            max_sites = max_sites.max(sites);
            fixed_bytes = fixed_bytes.max(self.group_bytes(group, sites));
        }
        let [one_lane_bytes, all_lane_bytes] =
            [1, crate::ctc::MAX_LANES].map(|lanes| self.lattice_bytes(&groups, lanes));
        // Buffers of the largest group by sites may coexist with those of the largest group by
        // other bytes.
        let fixed_bytes = fixed_bytes.saturating_add(self.site_bytes().saturating_mul(max_sites));
        let fixed_bytes = fixed_bytes.saturating_add(self.call_bytes::<F>());
        let shapes = if self.score_scratch.is_some() { Vec::new() } else { self.head_shapes(max_sites) };
        // An explicit plan of the caller, which may exceed the budget.
        if let Some(plan) = self.options.plan {
            let head_bytes: usize =
                shapes.iter().map(|&(_, shape)| self.plan_bytes::<F>(plan.to::<F>(), shape)).sum();
            return Ok(CallPlan {
                groups,
                lattice_bytes: all_lane_bytes,
                head_budgets: Vec::new(),
                site_scratch: self.site_scratch(max_sites),
                caller_bytes: self.caller_bytes,
                unused_bytes: usize::MAX,
                keeps_scores: keeps_most_scores(plan.saved_scores, max_sites),
                bytes: fixed_bytes.saturating_add(all_lane_bytes).saturating_add(head_bytes),
            });
        }
        // The minimum: one lane, and the smallest plan of each head.
        let min_bytes = |&(_, shape): &(HeadRole, Shape)| {
            Plan::<F>::minimal(shape, self.options.precision).scratch(shape, self.options.precision).bytes()
        };
        let min_head_bytes: Vec<usize> = shapes.iter().map(min_bytes).collect();
        let needed = min_head_bytes
            .iter()
            .fold(fixed_bytes.saturating_add(one_lane_bytes), |sum, &bytes| sum.saturating_add(bytes));
        let Some(remaining) = limit.checked_sub(needed) else {
            return Err(Error::Budget { smallest: needed, found: limit });
        };
        // More lanes, for at most a quarter of the remaining bytes if there are heads.
        let lane_limit = if shapes.is_empty() { remaining } else { remaining / 4 };
        let lattice_bytes = one_lane_bytes + (all_lane_bytes - one_lane_bytes).min(lane_limit);
        let mut remaining = remaining - (lattice_bytes - one_lane_bytes);
        // Small heads (durations, blank, mean) need a long wave rather than kept scores.
        let mut head_budgets = vec![0; shapes.len()];
        for (head, budget) in head_budgets.iter_mut().enumerate().skip(1) {
            let (_, shape) = shapes[head];
            let preferred = Plan::<F>::new(shape, self.options.precision, DEFAULT_BUDGET, true);
            let preferred = preferred.map_or(min_head_bytes[head], |plan| self.plan_bytes(plan, shape));
            let added = preferred.saturating_sub(min_head_bytes[head]).min(remaining / 8);
            *budget = min_head_bytes[head] + added;
            remaining -= added;
        }
        // The head of the tokens takes everything else.
        if let (Some(tokens), Some(min_bytes)) = (head_budgets.first_mut(), min_head_bytes.first()) {
            *tokens = min_bytes.saturating_add(remaining);
        }
        // The bytes that the plans of the heads need within their budgets.
        let (mut bytes, mut keeps_scores) = (fixed_bytes.saturating_add(lattice_bytes), true);
        for (head, (&(_, shape), &budget)) in shapes.iter().zip(&head_budgets).enumerate() {
            let keep_scores = self.options.may_keep_scores(head);
            let plan = Plan::<F>::new(shape, self.options.precision, budget, keep_scores)?;
            bytes = bytes.saturating_add(self.plan_bytes(plan, shape));
            keeps_scores &= keeps_most_scores(plan.saved_scores, shape.sites);
        }
        Ok(CallPlan {
            groups,
            lattice_bytes,
            head_budgets,
            site_scratch: self.site_scratch(max_sites),
            caller_bytes: self.caller_bytes,
            unused_bytes: limit.saturating_sub(bytes),
            keeps_scores,
            bytes,
        })
    }

    /// Bytes of a head's plan.
    fn plan_bytes<F: Real>(&self, plan: Plan<F>, shape: Shape) -> usize {
        plan.scratch(shape, self.options.precision).bytes()
    }

    /// Shape of each head's call over a number of sites.
    pub(crate) fn head_shapes(&self, sites: usize) -> Vec<(HeadRole, Shape)> {
        let shape = |(role, classes)| {
            let selected = self.objective.selected_classes(role);
            (role, Shape { sites, hidden: self.hidden, classes, selected })
        };
        HeadSet::<f32>::roles_and_classes(self.classes, self.options).into_iter().map(shape).collect()
    }

    /// Scratch memory of sites in each vector.
    ///
    /// The order is that of [`SiteBuffers::allocated_by_buffer`].
    fn site_scratch(&self, sites: usize) -> [ScratchReq; 6] {
        let selected: usize = self.head_shapes(0).iter().map(|(_, shape)| shape.selected).sum();
        let [row_bytes, label_row_bytes, key_bytes] = self.index_bytes;
        let columns = self.objective.column_counts().all;
        let value_bytes = size_of::<f64>() * columns::values_per_site(columns, self.options);
        let (id_bytes, mask_bytes) = (size_of::<u32>() * selected, size_of::<bool>() * selected);
        [value_bytes, id_bytes, mask_bytes, row_bytes, label_row_bytes, key_bytes]
            .map(|bytes| ScratchReq::from_bytes(bytes).times(sites))
    }

    /// Bytes of a site in addition to those of the normalizer.
    fn site_bytes(&self) -> usize {
        let skip_bytes = if self.options.skip > 0.0 { SKIP_BYTES } else { 0 };
        ScratchReq::all_of(self.site_scratch(1)).bytes() + skip_bytes
    }

    /// Bytes of a group without sites, lattices and normalizer.
    fn group_bytes(&self, group: &Range<usize>, sites: usize) -> usize {
        let utterance_bytes: usize = group.clone().map(|b| self.objective.utterance_bytes(b)).sum();
        let score_bytes =
            self.score_scratch.as_ref().map_or(0, |scratch| scratch(group.len(), sites).bytes());
        utterance_bytes.saturating_add(score_bytes)
    }

    /// Bytes of a call, independent of its groups.
    fn call_bytes<F: Real>(&self) -> usize {
        let batch = self.objective.site_targets().batch();
        let list_bytes = UTTERANCE_BYTES * batch + self.objective.call_bytes();
        let head_bytes = HeadSet::<F>::bytes(self.classes, self.hidden, self.options);
        head_bytes + list_bytes + self.caller_bytes + SLACK_BYTES
    }

    /// Bytes of lattice recursions that run in a number of parallel lanes.
    fn lattice_bytes(&self, groups: &[Range<usize>], lanes: usize) -> usize {
        let (omega, rnnt) = (self.options.loss.omega(), Topology::rnnt());
        let Some(topology) = self.options.loss.topology() else {
            let lane_bytes = |group: &Range<usize>| self.objective.lane_bytes(group) * lanes.min(group.len());
            return groups.iter().map(lane_bytes).max().unwrap_or(0);
        };
        let topologies: Vec<&Topology> =
            [topology].into_iter().chain((omega > 0.0).then_some(&rnnt)).collect();
        let lattices = self.objective.site_targets().lattices();
        // One group at a time, as each copies its bands.
        let calls = groups
            .iter()
            .flat_map(|group| topologies.iter().map(|&topology| (lattices.slice(group.clone()), topology)));
        rnnt_dp::Workspace::scratch_for_all(calls, &self.options.regularizers(), lanes).bytes()
    }
}

/// Buffers of a session, reused from step to step.
#[derive(Debug)]
pub struct SessionBuffers<F> {
    /// One workspace per head.
    pub(crate) normalizers: Vec<Workspace<F>>,
    pub(crate) lattices: LatticeWorkspace,
    pub(crate) sites: SiteBuffers,
    /// Workspace of the first pass of pruned training.
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
    /// Frees buffers that exceed a plan; sets the budgets of others.
    pub(crate) fn apply_plan(&mut self, plan: &CallPlan, heads: usize, options: &Options) -> Result<()> {
        if plan.caller_bytes == 0 {
            // The call has no first pass.
            self.pruning.keep_within(&::pruned::PassScratch::default(), plan.unused_bytes);
        }
        let unused_bytes = plan.unused_bytes.saturating_sub(self.pruning.excess());
        let unused_bytes = self.lattices.keep_within(plan.lattice_bytes, &options.loss, unused_bytes);
        self.sites.keep_within(plan.site_scratch, unused_bytes);
        self.normalizers.truncate(heads);
        while self.normalizers.len() < heads {
            let workspace = match options.plan {
                None => Workspace::new(options.budget, options.keep_scores),
                Some(plan) => Workspace::with_plan(plan.to::<F>())?,
            };
            self.normalizers.push(workspace.with_precision(options.precision));
        }
        for (head, (workspace, &budget)) in self.normalizers.iter_mut().zip(&plan.head_budgets).enumerate() {
            workspace.set_budget(budget, options.may_keep_scores(head));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
