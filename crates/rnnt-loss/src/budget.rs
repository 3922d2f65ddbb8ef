//! How a call is cut into groups of utterances, and how many bytes each of the session's buffers may hold meanwhile.
//!
//! ```text
//! budget >= call + max over groups (sites' lists, emissions, adjoints) + lattices + Σ_heads plan of the normaliser
//! ```
//!
//! What cannot be cut is one utterance: its sites' compact numbers, one lane of its lattice, and the smallest cut of each head.
use std::ops::Range;

use kernels::ScratchReq;
use panda_core::Real;
use panda_core::{DEFAULT_BUDGET, Plan, Shape, Workspace};
use rnnt_dp::Topology;

use crate::{
    Error, Options, Result, columns,
    heads::{HeadSet, Role},
    objective::{LatticeObjective, LatticeWorkspace},
    site_buffers::SiteBuffers,
};

/// CallSizes that decide what a call takes.
pub(crate) struct CallSizes<'a> {
    pub objective: &'a LatticeObjective<'a>,
    pub options: &'a Options,
    /// H
    pub hidden: usize,
    /// C
    pub classes: usize,
    /// Bytes of a site in each list of what hidden rows are made of.
    pub indices: [usize; 3],
    /// Bytes that the caller of the call holds on its behalf: projections, copies, a first pass.
    pub held: usize,
    /// Scratch of ready-made scores in the place of heads, for so many utterances and sites.
    pub scores: Option<Box<dyn Fn(usize, usize) -> ScratchReq + 'a>>,
}

/// The cut of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CallPlan {
    /// Utterances that go together.
    pub groups: Vec<Range<usize>>,
    /// Bytes for the recursions over lattices.
    pub lattices: usize,
    /// Budgets of the heads, the tokens' first.
    pub heads: Vec<usize>,
    /// Scratch of the numbers of all sites, in the order of [`SiteBuffers::held`].
    pub sites: [ScratchReq; 6],
    /// Bytes that the caller holds, such as those of a first pass.
    pub held: usize,
    /// Bytes of the budget that nobody has a use for.
    pub left: usize,
    /// Whether the scores of three quarters of a group's sites are kept from forward to backward.
    pub kept: bool,
    /// All that is held at once, at most.
    pub bytes: usize,
}

impl CallPlan {
    /// A single head without a lattice.
    pub fn of_one(budget: usize) -> Self {
        let (groups, heads) = (Vec::new(), vec![budget]);
        let (sites, bytes) = ([ScratchReq::EMPTY; 6], budget);
        Self { groups, lattices: 0, heads, sites, held: 0, left: 0, kept: false, bytes }
    }
}

/// Sites of a group where no more scores can be kept: four full waves of most plans.
const SITES: usize = 6272;
const SHORTEST: usize = 64;
/// Lattices of a group that are worked on at once, where there is room for so many.
pub(crate) const LANES: usize = 64;
/// Lists of lists, and what queues of the thread pool grow by.
const SLACK: usize = 16 << 10;

/// Neighbours together, up to so much, or one that is larger.
fn filled(sizes: &[usize], room: usize) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::with_capacity(sizes.len());
    let mut sum = 0;
    for (at, &size) in sizes.iter().enumerate() {
        match groups.last_mut() {
            Some(group) if size.saturating_add(sum) <= room => {
                group.end = at + 1;
                sum += size;
            }
            _ => {
                groups.push(at..at + 1);
                sum = size;
            }
        }
    }
    groups
}

/// As many groups as [`filled`] makes, the largest as small as it can be: what is kept of small groups is kept of all of their sites.
fn even(sizes: &[usize], room: usize) -> Vec<Range<usize>> {
    let count = filled(sizes, room).len();
    let all = sizes.iter().fold(0usize, |sum, &size| sum.saturating_add(size));
    let (mut low, mut high) = (all.div_ceil(count.max(1)).min(room), room);
    while low < high {
        let middle = low + (high - low) / 2;
        match filled(sizes, middle).len() <= count {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    filled(sizes, high)
}

impl CallSizes<'_> {
    /// All utterances at once, as for a pending value.
    ///
    /// # Errors
    /// [`Error::Budget`].
    pub fn whole<F: Real>(&self) -> Result<CallPlan> {
        self.plan::<F>(std::iter::once(0..self.objective.sites().batch()).collect())
    }

    /// Group after group.
    ///
    /// # Errors
    /// [`Error::Budget`] if not even single utterances fit.
    pub fn in_groups<F: Real>(&self) -> Result<CallPlan> {
        let groups = self.neighbours::<F>();
        match self.plan::<F>(groups) {
            Err(Error::Budget { .. }) => {
                self.plan::<F>((0..self.objective.sites().batch()).map(|b| b..b + 1).collect())
            }
            planned => planned,
        }
    }

    /// Neighbours, as many as fit. Short utterances share a group, so that its waves are full; a long one is alone.
    fn neighbours<F: Real>(&self) -> Vec<Range<usize>> {
        let (working, bytes) = (self.options.working_bytes(), self.of_site());
        let each = self.classes.saturating_mul(size_of::<F>()).saturating_add(bytes);
        let kept = if self.options.keep_scores { working / 2 / each } else { 0 };
        let room = match (&self.scores, self.options.plan) {
            // There are no waves to fill, but rows of padding to list: bytes in the place of sites.
            (Some(_), _) => working / 2,
            (None, Some(plan)) => plan.wave,
            (None, None) => kept.max((working / 8 / bytes).clamp(SHORTEST, SITES)),
        };
        let lattices = self.objective.sites().lattices();
        let of_utterance = |utterance| {
            let own = lattices.site_range(utterance).len();
            match &self.scores {
                Some(_) => bytes.saturating_mul(own) + self.beside(&(utterance..utterance + 1), own),
                None => own,
            }
        };
        let sizes: Vec<usize> = (0..lattices.batch()).map(of_utterance).collect();
        even(&sizes, room)
    }

    fn plan<F: Real>(&self, groups: Vec<Range<usize>>) -> Result<CallPlan> {
        let limit = self.options.budget;
        let (mut most, mut own) = (0, 0);
        for group in &groups {
            let all = self.objective.sites().lattices();
            let sites = all.site_range(group.end - 1).end - all.site_range(group.start).start;
            most = most.max(sites);
            own = own.max(self.beside(group, sites));
        }
        let [lane, lanes] = [1, LANES].map(|lanes| self.lattices(&groups, lanes));
        // The numbers of each site stay from the group of most sites to that of most bytes beside them.
        let own = own.saturating_add(self.of_site().saturating_mul(most));
        let own = own.saturating_add(self.of_call::<F>());
        let shapes = if self.scores.is_some() { Vec::new() } else { self.shapes(most) };
        if let Some(plan) = self.options.plan {
            let heads: usize =
                shapes.iter().map(|&(_, shape)| self.bytes_of::<F>(plan.to::<F>(), shape)).sum();
            let bytes = own.saturating_add(lanes).saturating_add(heads);
            let (heads, sites, held) = (Vec::new(), self.site_scratch(most), self.held);
            let (left, kept) = (usize::MAX, plan.saved_scores >= most / 4 * 3);
            return Ok(CallPlan { groups, lattices: lanes, heads, sites, held, left, kept, bytes });
        }
        let smallest =
            |&(_, shape): &(Role, Shape)| Plan::<F>::minimal_scratch(shape, self.options.precision).bytes();
        let smallest: Vec<usize> = shapes.iter().map(smallest).collect();
        let needed = smallest.iter().fold(own.saturating_add(lane), |sum, &bytes| sum.saturating_add(bytes));
        let Some(rest) = limit.checked_sub(needed) else {
            return Err(Error::Budget { smallest: needed, found: limit });
        };
        let lattices = lane + (lanes - lane).min(if shapes.is_empty() { rest } else { rest / 4 });
        let mut rest = rest - (lattices - lane);
        // Durations, a blank alone and a mean have few classes: what they want most is a wave of some length.
        let mut heads = vec![0; shapes.len()];
        for (head, bytes) in heads.iter_mut().enumerate().skip(1) {
            let (_, shape) = shapes[head];
            let wish = Plan::<F>::new(shape, self.options.precision, DEFAULT_BUDGET, true);
            let wish = wish.map_or(smallest[head], |plan| self.bytes_of(plan, shape));
            let more = wish.saturating_sub(smallest[head]).min(rest / 8);
            *bytes = smallest[head] + more;
            rest -= more;
        }
        if let (Some(tokens), Some(smallest)) = (heads.first_mut(), smallest.first()) {
            *tokens = smallest.saturating_add(rest);
        }
        let (mut bytes, mut kept) = (own.saturating_add(lattices), true);
        for (head, (&(_, shape), &budget)) in shapes.iter().zip(&heads).enumerate() {
            let keep_scores = self.options.keeps_scores(head);
            let plan = Plan::<F>::new(shape, self.options.precision, budget, keep_scores)?;
            bytes = bytes.saturating_add(self.bytes_of(plan, shape));
            kept &= plan.saved_scores >= shape.sites / 4 * 3;
        }
        let (sites, held, left) = (self.site_scratch(most), self.held, limit.saturating_sub(bytes));
        Ok(CallPlan { groups, lattices, heads, sites, held, left, kept, bytes })
    }

    fn bytes_of<F: Real>(&self, plan: Plan<F>, shape: Shape) -> usize {
        plan.scratch(shape, self.options.precision).bytes()
    }

    /// Shape of each head's call over so many sites.
    pub fn shapes(&self, sites: usize) -> Vec<(Role, Shape)> {
        let shape = |(role, classes)| {
            let selected = self.objective.selected(role);
            (role, Shape { sites, hidden: self.hidden, classes, selected })
        };
        HeadSet::<f32>::roles(self.classes, self.options).into_iter().map(shape).collect()
    }

    /// Scratch of some sites in each of the session's compact vectors, in the order of [`SiteBuffers::held`].
    fn site_scratch(&self, sites: usize) -> [ScratchReq; 6] {
        let selected: usize = self.shapes(0).iter().map(|(_, shape)| shape.selected).sum();
        let [first, second, keys] = self.indices;
        let (columns, _) = self.objective.width();
        let numbers = 8 * columns::numbers_per_site(columns, self.options);
        [numbers, 4 * selected, selected, first, second, keys]
            .map(|bytes| ScratchReq::from_bytes(bytes).times(sites))
    }

    /// Bytes of a site beside the normaliser's.
    fn of_site(&self) -> usize {
        // Those of a bucket of little occupancy.
        let skipped = if self.options.skip > 0.0 { 16 } else { 0 };
        ScratchReq::all_of(self.site_scratch(1)).bytes() + skipped
    }

    /// Bytes of a group beside the numbers of each site, lattices and normaliser.
    fn beside(&self, group: &Range<usize>, sites: usize) -> usize {
        let of_utterances: usize = group.clone().map(|b| self.objective.bytes_of(b)).sum();
        let of_scores = self.scores.as_ref().map_or(0, |scores| scores(group.len(), sites).bytes());
        of_utterances.saturating_add(of_scores)
    }

    /// Bytes of a call, whatever its groups.
    fn of_call<F: Real>(&self) -> usize {
        let batch = self.objective.sites().batch();
        // First rows of frames and labels, groups, losses, lattices of groups; for CTC the frames as targets of their own.
        let lists = 160 * batch + self.objective.bytes_of_call();
        HeadSet::<F>::bytes(self.classes, self.hidden, self.options) + lists + self.held + SLACK
    }

    /// Bytes of recursions in so many lanes, which stay from group to group.
    fn lattices(&self, groups: &[Range<usize>], lanes: usize) -> usize {
        let (omega, rnnt) = (self.options.loss.omega(), Topology::rnnt());
        let Some(topology) = self.options.loss.topology() else {
            let of = |group: &Range<usize>| self.objective.bytes_of_lane(group) * lanes.min(group.len());
            return groups.iter().map(of).max().unwrap_or(0);
        };
        let topologies: Vec<&Topology> =
            [topology].into_iter().chain((omega > 0.0).then_some(&rnnt)).collect();
        let all = self.objective.sites().lattices();
        // One part at a time: they hold bands of their own.
        let calls = groups
            .iter()
            .flat_map(|group| topologies.iter().map(|&topology| (all.slice(group.clone()), topology)));
        rnnt_dp::Workspace::scratch_for_all(calls, &self.options.regularisers(), lanes).bytes()
    }
}

/// Buffers that all calls of a session share; they stay from step to step.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The least that the largest of so many runs of neighbours can be.
    fn least(sizes: &[usize], count: usize) -> usize {
        if count == 1 || sizes.len() <= 1 {
            return sizes.iter().sum();
        }
        let first = |at: usize| sizes[..at].iter().sum::<usize>().max(least(&sizes[at..], count - 1));
        (1..=sizes.len()).map(first).min().unwrap_or(0)
    }

    #[test]
    fn groups_are_as_few_as_they_can_be_and_as_even() {
        let mut state = 1u32;
        for case in 0..400 {
            let mut draw = |most: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % most
            };
            let sizes: Vec<usize> = (0..draw(9)).map(|_| draw(50) as usize).collect();
            let room = draw(120) as usize;
            let groups = even(&sizes, room);
            let of = |group: &Range<usize>| sizes[group.clone()].iter().sum::<usize>();
            assert!(groups.iter().flat_map(Range::clone).eq(0..sizes.len()), "{case}");
            assert!(groups.iter().all(|group| of(group) <= room || group.len() == 1), "{case}: {groups:?}");
            assert_eq!(groups.len(), filled(&sizes, room).len(), "{case}");
            let largest = groups.iter().map(of).max().unwrap_or(0);
            if sizes.iter().all(|&size| size <= room) && !sizes.is_empty() {
                assert_eq!(largest, least(&sizes, groups.len()), "{case}: {sizes:?} {room} {groups:?}");
            }
        }
        assert_eq!(even(&[1000; 8], 7058), [0..4, 4..8]);
    }
}
