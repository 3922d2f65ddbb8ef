//! How a call is cut; its bytes are a promise.
use std::cell::OnceCell;

use kernels::Real;

use crate::{
    Error, Frames, Labels, Options, RecognitionLattice, Result,
    group::Group,
    panels::{Panels, Screens},
    reach::Reach,
    step::{Room, Step, backpointers},
    weight_fn::Load,
};

/// Arcs of a wave at which products run well and most of what is read stays in the caches.
pub(crate) const ARCS: usize = 400_000;

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
    /// Whether best arcs are looked for without most weights, where there is a way.
    pub screened: bool,
    /// Bytes that the call holds at most beside arguments and results, and what each thread keeps for the packing of products
    /// ([`kernels::packing_bytes`]).
    pub bytes: usize,
    pub(crate) parts: Parts,
}

/// Bytes of what stays in a session from call to call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Parts {
    /// α, or backpointers.
    pub stored: usize,
    /// Arc weights of waves.
    pub arcs: usize,
    /// Arc weights along strings.
    pub strings: usize,
    /// What the steps of utterances work in.
    pub lanes: usize,
    /// Weights at work.
    pub weights: usize,
}

/// What a call does with a lattice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    /// Whether it sums over all paths.
    pub all_paths: bool,
    /// Whether it looks for the best ones, of all or of strings.
    pub best: bool,
    /// Whether gradients follow.
    pub gradients: bool,
    /// Whether all utterances go together.
    pub whole: bool,
    /// What walks from the start on hold.
    pub walks: Option<Walks>,
}

/// Bytes that walks hold for each frame, and for each utterance beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Walks {
    pub frame: usize,
    pub utterance: usize,
}

impl Work {
    /// One sum.
    pub const fn sum(all_paths: bool) -> Self {
        Self { all_paths, best: false, gradients: false, whole: false, walks: None }
    }

    /// The best instead of the sum.
    pub const fn best(self) -> Self {
        Self { best: true, ..self }
    }

    /// Walks, with a look at all arcs of each frame before or without.
    pub const fn walks(ahead: bool, walks: Walks) -> Self {
        Self { walks: Some(walks), ..Self::sum(ahead) }
    }

    /// And gradients.
    pub const fn with_gradients(self) -> Self {
        Self { gradients: true, ..self }
    }

    /// Of all utterances at once.
    pub const fn whole(self) -> Self {
        Self { whole: true, ..self }
    }
}

impl Plan {
    /// The cut with the largest groups that fits the budget; within it all arc weights are kept if there is room.
    ///
    /// # Errors
    /// [`Error::Budget`] for a budget below the smallest cut, or a cut that no memory holds.
    pub(crate) fn new<F: Real>(
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        labels: Option<&Labels>,
        (work, options): (Work, Options),
    ) -> Result<Self> {
        let positions =
            |b: usize| labels.and_then(|labels| labels.of(b)).map_or(0, |labels| labels.len() + 1);
        let lengths = (0..frames.utterances()).map(|b| (frames.length(b), positions(b))).collect();
        Self::for_lengths(lattice, lengths, frames.size(), (work, options))
    }

    /// The same from frames and positions of each utterance, and the size of a frame.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn for_lengths<F: Real>(
        lattice: &RecognitionLattice<F>,
        lengths: Vec<(usize, usize)>,
        features: usize,
        (work, options): (Work, Options),
    ) -> Result<Self> {
        let all = lengths.len().max(1);
        let sizes = Sizes::new(lattice, lengths, features, work);
        let least = if work.whole { all } else { 1 };
        let wide = |utterances: usize| ARCS.div_ceil(sizes.arcs.saturating_mul(utterances)).max(1);
        let limit = options.limit(sizes.plan(least, wide(least), Cut::Waves).bytes).min(isize::MAX as usize);
        let mut utterances = all;
        loop {
            let wide = wide(utterances);
            let fits = |cut| Some(sizes.plan(utterances, wide, cut)).filter(|plan| plan.bytes <= limit);
            let better = match (work.all_paths, work.best) {
                (true, true) => {
                    // What waves have no room for is not looked at.
                    let room =
                        |waves: &Plan| waves.bytes.saturating_add(Panels::bytes(sizes.states)) <= limit;
                    let screened = fits(Cut::Waves).filter(room).and_then(|_| sizes.screens(utterances));
                    screened.and_then(|_| fits(Cut::Screened))
                }
                (true, false) if options.keep_weights && work.gradients => fits(Cut::Kept),
                _ => None,
            };
            if let Some(plan) = better {
                return Ok(plan);
            }
            for window in std::iter::successors(Some(wide), |&window| (window > 1).then_some(window / 2)) {
                let plan = sizes.plan(utterances, window, Cut::Waves);
                if plan.bytes <= limit {
                    return Ok(plan);
                }
            }
            if utterances == least {
                let smallest = sizes.plan(utterances, 1, Cut::Waves).bytes;
                return Err(Error::Budget { smallest, found: limit });
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

/// What becomes of arc weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// They are there wave by wave.
    Waves,
    /// They all stay.
    Kept,
    /// Most of them are only estimated, but where waves are the only way.
    Screened,
}

/// Bytes of what a call holds, by what they grow with.
struct Sizes<'a, F> {
    lattice: RecognitionLattice<'a, F>,
    /// C
    states: usize,
    /// Arcs of a frame.
    arcs: usize,
    work: Work,
    /// Frames of each utterance, and positions of its string.
    lengths: Vec<(usize, usize)>,
    features: usize,
    lane: usize,
    /// Backpointers of a frame.
    backpointers: usize,
    /// Of one utterance, once somebody asked for it.
    screens: OnceCell<Option<Screens>>,
}

impl<'a, F: Real> Sizes<'a, F> {
    fn new(
        lattice: &RecognitionLattice<'a, F>,
        lengths: Vec<(usize, usize)>,
        features: usize,
        work: Work,
    ) -> Self {
        let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
        // A step takes memory itself, and comes when this has been planned.
        let (context, alignment) = (lattice.context(), lattice.alignment());
        Self {
            lattice: *lattice,
            states: c,
            arcs: c * (1 + v),
            work,
            lengths,
            features,
            lane: Room::<F>::bytes(context, alignment) + 2 * c * size_of::<F>(),
            backpointers: backpointers(context, alignment).iter().sum(),
            screens: OnceCell::new(),
        }
    }

    /// What the best arcs of so many utterances are looked for among, if that is of use.
    fn screens(&self, utterances: usize) -> Option<Screens> {
        let weights = self.lattice.weight_fn();
        let one = self.screens.get_or_init(|| {
            let any = weights.screens(Screens { utterances: usize::MAX, panels: 1, rest: 0 });
            let step = any.then(|| Step::new(self.lattice.context(), self.lattice.alignment()))?;
            step.panels().map(|panels| panels.load(1))
        });
        one.map(|one| Screens { utterances, ..one }).filter(|&screens| weights.screens(screens))
    }

    /// The largest of all groups, part by part: buffers stay from one to the next.
    fn plan(&self, utterances: usize, window: usize, cut: Cut) -> Plan {
        let (mut parts, mut others) = (Parts::default(), 0);
        for group in self.lengths.chunks(utterances) {
            let (found, other) = self.group(group, window, cut);
            parts = Parts {
                stored: parts.stored.max(found.stored),
                arcs: parts.arcs.max(found.arcs),
                strings: parts.strings.max(found.strings),
                lanes: parts.lanes.max(found.lanes),
                weights: parts.weights.max(found.weights),
            };
            others = others.max(other);
        }
        // Where the run of each state begins, the list of gradients, what belongs to no group.
        let fixed = Reach::bytes(self.lattice.context().states()) + 8192;
        let all = [parts.stored, parts.arcs, parts.strings, parts.lanes, parts.weights, others, fixed];
        let bytes = all.iter().fold(0usize, |all, &part| all.saturating_add(part));
        Plan { utterances, window, kept: cut == Cut::Kept, screened: cut == Cut::Screened, bytes, parts }
    }

    /// What stays in the session after a group, and what does not.
    fn group(&self, group: &[(usize, usize)], window: usize, cut: Cut) -> (Parts, usize) {
        let (c, float) = (self.lattice.context().states(), size_of::<F>());
        let Work { all_paths, best, gradients, walks, .. } = self.work;
        let sum = |of: &dyn Fn(&(usize, usize)) -> usize| group.iter().map(of).fold(0, usize::saturating_add);
        let frames = sum(&|&(frames, _)| frames);
        let wave = sum(&|&(frames, _)| frames.min(window));
        let stored = match (all_paths, best) {
            (true, true) => frames.saturating_mul(self.backpointers * 4),
            (true, false) => frames.saturating_mul(((if gradients { c } else { 0 }) + 1) * float),
            (false, _) => 0,
        };
        let arcs = if all_paths { self.arcs * float } else { 0 };
        let sites = sum(&|&(frames, positions)| frames.saturating_mul(positions));
        let positions = match walks {
            // One label at a time.
            Some(_) => 2,
            None => group.iter().map(|&(_, positions)| positions).max().unwrap_or(0),
        };
        let screened = match cut {
            Cut::Screened => self.screens(group.len()).unwrap_or_default(),
            Cut::Waves | Cut::Kept => Screens::default(),
        };
        let load = Load { frames, wave, positions, gradients, screened };
        let parts = Parts {
            stored,
            arcs: (if cut == Cut::Kept { frames } else { wave.saturating_mul(2) }).saturating_mul(arcs),
            strings: sites.saturating_mul(2 * float),
            lanes: if all_paths { group.len().saturating_mul(self.lane) } else { 0 },
            weights: self.lattice.weight_fn().bytes(load),
        };
        // Sums along strings in f64 (of best paths, how many labels a frame has), rows of α of one frame.
        let inside = self.lattice.alignment().num_states();
        let rows = sum(&|&(_, positions)| positions.saturating_mul(inside + 8));
        let sums = sites.saturating_add(rows).saturating_mul(8);
        // Packed rows and their utterances, lists of waves, lanes.
        let row = self.features.saturating_mul(float).saturating_add(4);
        let lists = frames.saturating_mul(row).saturating_add(wave.saturating_mul(32));
        let lists = lists.saturating_add(group.len().saturating_mul(512));
        let walks = walks.map_or(0, |Walks { frame, utterance }| {
            frame.saturating_mul(frames).saturating_add(utterance.saturating_mul(group.len()))
        });
        (parts, sums.saturating_add(lists).saturating_add(walks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Alignment, FullNGram, Table};

    #[test]
    fn long_utterances_have_a_plan_by_default() {
        let (context, length) = (FullNGram::new(32, 2).unwrap(), 16_000);
        let values = vec![0f32; 1_057 * 33];
        let table = Table::new(&values, &[1, 1_057, 33]).unwrap();
        let lattice = RecognitionLattice::new(&context, Alignment::FrameDependent, &table).unwrap();
        let rows = vec![0f32; 2 * length];
        let frames = Frames::new(&rows, &[2, length, 1], &[length; 2]).unwrap();
        let work = Work { gradients: true, ..Work::sum(true) };
        let plan = |options| Plan::new(&lattice, &frames, None, (work, options));
        let default = plan(Options::new(usize::MAX).recompute()).unwrap();
        assert!(default.bytes > panda_core::DEFAULT_BUDGET);
        assert_eq!((default.utterances, default.kept), (1, false));
        // A limit that was asked for is one.
        let less = Options::new(panda_core::DEFAULT_BUDGET);
        assert!(matches!(plan(less), Err(Error::Budget { .. })));
        assert!(matches!(plan(less.recompute()), Err(Error::Budget { .. })));
    }
}
