//! How a call is cut; its bytes are a promise.
use kernels::Real;
use panda_core::MemoryBudget;

use crate::{
    Error, Frames, Labels, RecognitionLattice, Result,
    group::Group,
    step::{Room, Step},
    weight_fn::Load,
};

/// Arcs of a wave at which products run well and most of what is read stays in the caches.
pub(crate) const ARCS: usize = 1_200_000;

/// The cut of a call: how many utterances go together, how many of their frames have arc weights at once, and whether arc weights
/// stay from forward to backward (k2's trade) or are computed again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Utterances of a group.
    pub utterances: usize,
    /// Frames of each utterance in a wave.
    pub window: usize,
    /// Whether arc weights stay.
    pub kept: bool,
    /// Bytes that the call holds at most beside arguments and results.
    pub bytes: usize,
}

/// What a call does with a lattice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Sums without gradients.
    Forward,
    /// Best paths.
    Paths,
    /// Best paths of strings, without the arcs of whole frames.
    Alignments,
    /// Sums and gradients, group by group.
    Gradients,
    /// Sums first, and gradients when the weights are known: all utterances at once.
    Whole,
    /// Walks from the start on: so many bytes for each frame, and for each utterance beside them. All arcs of a wave are weighed
    /// before, or only those of the states that are walked through.
    Walks { ahead: bool, frame: usize, utterance: usize },
}

impl Plan {
    /// The cut with the largest groups that fits the budget; within it all arc weights are kept if there is room.
    ///
    /// # Errors
    /// [`Error::Budget`] for a budget below the smallest cut.
    pub(crate) fn new<F: Real>(
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        (what, budget): (Use, MemoryBudget),
    ) -> Result<Self> {
        let sizes = Sizes::new(lattice, frames, labels, what);
        let all = frames.utterances().max(1);
        let least = if what == Use::Whole { all } else { 1 };
        let mut utterances = all;
        loop {
            let wide = ARCS.div_ceil(sizes.arcs * utterances).max(1);
            if budget.keeps() && matches!(what, Use::Gradients | Use::Whole) {
                let plan = sizes.plan(utterances, wide, true);
                if plan.bytes <= budget.limit() {
                    return Ok(plan);
                }
            }
            for window in std::iter::successors(Some(wide), |&window| (window > 1).then_some(window / 2)) {
                let plan = sizes.plan(utterances, window, false);
                if plan.bytes <= budget.limit() {
                    return Ok(plan);
                }
            }
            if utterances == least {
                let smallest = sizes.plan(utterances, 1, false).bytes;
                return Err(Error::Budget { smallest, found: budget.limit() });
            }
            utterances = (utterances / 2).max(least);
        }
    }

    pub(crate) fn groups<F: Real>(&self, frames: &Frames<F>) -> Vec<Group> {
        let starts = (0..frames.utterances()).step_by(self.utterances);
        let end = |start: usize| (start + self.utterances).min(frames.utterances());
        starts.map(|start| Group::new(frames, start..end(start), self.window)).collect()
    }
}

/// Bytes of what a call holds, by what they grow with.
struct Sizes<'a, F> {
    lattice: RecognitionLattice<'a, F>,
    /// Arcs of a frame.
    arcs: usize,
    what: Use,
    /// Frames and sites of the string of each utterance.
    lengths: Vec<(usize, usize)>,
    features: usize,
    lane: usize,
    /// Backpointers of a frame.
    backpointers: usize,
}

impl<'a, F: Real> Sizes<'a, F> {
    fn new(
        lattice: &RecognitionLattice<'a, F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        what: Use,
    ) -> Self {
        let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
        let positions =
            |b: usize| labels.and_then(|labels| labels.of(b)).map_or(0, |labels| labels.len() + 1);
        let lengths = (0..frames.utterances()).map(|b| (frames.length(b), frames.length(b) * positions(b)));
        let step: Step = lattice.step();
        let lane = Room::<F>::bytes(&step) + 2 * c * size_of::<F>();
        Self {
            lattice: *lattice,
            arcs: c * (1 + v),
            what,
            lengths: lengths.collect(),
            features: frames.size(),
            lane,
            backpointers: step.kept().iter().sum(),
        }
    }

    fn plan(&self, utterances: usize, window: usize, kept: bool) -> Plan {
        let groups = self.lengths.chunks(utterances);
        let bytes = groups.map(|group| self.bytes(group, window, kept)).max().unwrap_or(0);
        let starts = 4 * self.lattice.context().states();
        Plan { utterances, window, kept, bytes: bytes.saturating_add(starts) }
    }

    fn bytes(&self, group: &[(usize, usize)], window: usize, kept: bool) -> usize {
        let (c, float) = (self.lattice.context().states(), size_of::<F>());
        let frames: usize = group.iter().map(|(frames, _)| frames).sum();
        let wave: usize = group.iter().map(|&(frames, _)| frames.min(window)).sum();
        let stored = match self.what {
            Use::Forward => 0,
            Use::Paths => frames * self.backpointers * 4,
            // Three times α, in f64.
            Use::Alignments => {
                group.iter().map(|&(frames, sites)| 24 * sites.checked_div(frames).unwrap_or(0)).sum()
            }
            Use::Gradients | Use::Whole => frames * (c + 1) * float,
            Use::Walks { frame, utterance, .. } => {
                frames.saturating_mul(frame).saturating_add(group.len().saturating_mul(utterance))
            }
        };
        let arcs = match self.what {
            Use::Alignments | Use::Walks { ahead: false, .. } => 0,
            _ => (if kept { frames } else { 2 * wave }).saturating_mul(self.arcs * float),
        };
        let sites: usize = group.iter().map(|(_, sites)| sites * (2 * float + 8)).sum();
        // Packed rows and their utterances, lists of waves, offsets.
        let lists = frames * (self.features * float + 4 + float) + 4 * wave * 8 + group.len() * 256;
        let gradients = matches!(self.what, Use::Gradients | Use::Whole);
        let positions = match self.what {
            // One label at a time.
            Use::Walks { .. } => 2,
            _ => group.iter().map(|&(frames, sites)| sites / frames.max(1)).max().unwrap_or(0),
        };
        let weights = self.lattice.weight_fn().bytes(Load { frames, wave, positions, gradients });
        [stored, arcs, sites, lists, group.len() * self.lane, weights]
            .iter()
            .fold(0, |all, x| all.saturating_add(*x))
    }
}
