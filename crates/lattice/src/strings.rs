//! The labels with the largest sums over their alignments, as far as a beam finds them.
use std::collections::BTreeMap;

use kernels::{Real, items_mut, par_for};

use crate::{
    Frames, RecognitionLattice, Result, Session,
    plan::{Plan, Use},
    session::{Call, Sum, check_sums},
};

/// Labels that a beam found.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelString {
    /// 1 to V.
    pub labels: Vec<u32>,
    /// The frame of each, on the heaviest way that the beam saw.
    pub frames: Vec<usize>,
    /// Log sum over the alignments that the beam kept: at most `log S`.
    pub weight: f64,
}

/// Node of a tree of strings: the string before, and the last label. The root has neither.
type Name = (u32, u32);

const ROOT: Name = (u32::MAX, 0);
const NOTHING: u32 = u32::MAX;

/// Alignments of one string that end in one place.
#[derive(Clone, Copy)]
struct Ways {
    /// Log of their sum, and of the largest of them as far as merges tell them apart.
    sum: f64,
    best: f64,
    /// Last frame with a label on the heaviest way, as an index of the arena; a frame that came after it in this one.
    time: u32,
    frame: Option<usize>,
}

/// A string that is kept, with its node and context state.
#[derive(Clone, Copy)]
struct Kept {
    name: Name,
    node: u32,
    state: u32,
    ways: Ways,
}

/// The beam of an utterance.
#[derive(Default)]
struct Lane {
    nodes: Vec<(Name, u32)>,
    ids: BTreeMap<Name, u32>,
    /// The time before, and a frame.
    times: Vec<(u32, usize)>,
    kept: Vec<Kept>,
}

/// Ways to places, in a fixed order.
type Places = BTreeMap<Name, (u32, Ways)>;

impl<F: Real> Session<F> {
    /// The strings of each utterance, heaviest first, at most `width`: frame by frame the heaviest so many strings go on, and
    /// alignments of equal strings are added up.
    ///
    /// # Errors
    /// As [`distances`](Self::distances); a width of 0.
    ///
    /// # Cost
    /// Arc weights of `width` context states a frame, and as often as a frame may emit labels once more; memory of all candidates of
    /// a frame, `width x (1 + V)`, and of the `width` strings that each frame keeps, outside of the budget.
    pub fn best_strings(
        &mut self,
        lattice: &RecognitionLattice<F>,
        frames: &Frames<F>,
        width: usize,
    ) -> Result<Vec<Vec<LabelString>>> {
        if width == 0 {
            return Err(crate::Error::shape("width", "at least 1 string", 0));
        }
        let mut call = Call::new(lattice, frames, None, Sum::Denominator)?;
        let plan = Plan::new(lattice, frames, None, (Use::Forward, self.budget))?;
        let mut all = Vec::with_capacity(frames.utterances());
        for group in plan.groups(frames) {
            call.enter(&group)?;
            let mut lanes: Vec<Lane> = group.utterances.clone().map(|_| Lane::default()).collect();
            par_for(items_mut(&mut lanes), |at, lane| lane.search(&call, group.of(at), width));
            let heaviest = |lane: &Lane| lane.kept.first().map_or(f64::NEG_INFINITY, |kept| kept.ways.sum);
            check_sums(&lanes.iter().map(heaviest).collect::<Vec<_>>(), &group)?;
            all.extend(lanes.iter().map(Lane::strings));
        }
        Ok(all)
    }
}

impl Lane {
    fn search<F: Real>(&mut self, call: &Call<F>, packed: std::ops::Range<usize>, width: usize) {
        let (context, alignment) = (call.lattice.context(), call.lattice.alignment());
        let mut lexical = vec![F::ZERO; context.vocabulary()];
        let none = Ways { sum: 0.0, best: 0.0, time: NOTHING, frame: None };
        self.kept = self.keep([(ROOT, (context.start() as u32, none))].into(), width);
        for (frame, row) in packed.enumerate() {
            let mut ends = Places::new();
            let mut live = std::mem::take(&mut self.kept);
            for labels in 0..=alignment.expansions().unwrap_or(0) {
                let more = alignment.expansions().is_none_or(|most| labels < most);
                let mut longer = Places::new();
                for kept in &live {
                    let blank = call.weights.weigh_state(row, kept.state as usize, &mut lexical).to_f64();
                    add(&mut ends, kept.name, kept.state, kept.ways.over(blank));
                    for (label, weight) in (1..).zip(&lexical).take(if more { lexical.len() } else { 0 }) {
                        let ways = Ways { frame: Some(frame), ..kept.ways.over(weight.to_f64()) };
                        if ways.sum == f64::NEG_INFINITY {
                            continue;
                        }
                        let state = context.next_state(kept.state as usize, label as usize) as u32;
                        let to = if alignment.expansions().is_none() { &mut ends } else { &mut longer };
                        add(to, (kept.node, label), state, ways);
                    }
                }
                live = self.keep(longer, width);
            }
            self.kept = self.keep(ends, width);
        }
    }

    /// The heaviest strings, equal ones in the order of their names.
    fn keep(&mut self, places: Places, width: usize) -> Vec<Kept> {
        let mut all: Vec<_> = places.into_iter().collect();
        all.sort_by(|(_, (_, a)), (_, (_, b))| b.sum.total_cmp(&a.sum));
        all.truncate(width);
        let mut kept = |(name, (state, mut ways)): (Name, (u32, Ways))| {
            if let Some(frame) = ways.frame.take() {
                self.times.push((ways.time, frame));
                ways.time = self.times.len() as u32 - 1;
            }
            let next = self.nodes.len() as u32;
            let node = *self.ids.entry(name).or_insert(next);
            if node == next {
                self.nodes.push((name, state));
            }
            Kept { name, node, state, ways }
        };
        all.into_iter().map(&mut kept).collect()
    }

    fn strings(&self) -> Vec<LabelString> {
        let string = |kept: &Kept| {
            let (mut labels, mut frames) = (Vec::new(), Vec::new());
            let (mut name, mut time) = (kept.name, kept.ways.time);
            while name != ROOT {
                labels.push(name.1);
                name = self.nodes[name.0 as usize].0;
            }
            while time != NOTHING {
                let (before, frame) = self.times[time as usize];
                frames.push(frame);
                time = before;
            }
            labels.reverse();
            frames.reverse();
            LabelString { labels, frames, weight: kept.ways.sum }
        };
        self.kept.iter().map(string).collect()
    }
}

impl Ways {
    fn over(self, weight: f64) -> Self {
        Self { sum: self.sum + weight, best: self.best + weight, ..self }
    }
}

/// Adds ways to a place.
fn add(places: &mut Places, name: Name, state: u32, ways: Ways) {
    let Some((_, there)) = places.get_mut(&name) else {
        places.insert(name, (state, ways));
        return;
    };
    let (high, low) = (there.sum.max(ways.sum), there.sum.min(ways.sum));
    there.sum = if high.is_finite() { high + (low - high).exp().ln_1p() } else { high };
    if ways.best > there.best {
        (there.best, there.time, there.frame) = (ways.best, ways.time, ways.frame);
    }
}
