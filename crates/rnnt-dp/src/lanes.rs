//! Work on a batch of lattices, lane beside lane.
use std::sync::Mutex;

use kernels::{install, lock};
use rayon::prelude::*;

use crate::{
    Arc, Error, Result,
    compose::{composed, fold, unfold},
    schedule::{CallShapes, Schedule, UtteranceSlot},
    utterance::LaneScratch,
    walk::Lattice,
};

/// No sum of log-probabilities, far as it may be from 0, is that large.
const ABSURD: f64 = 1e280;

/// How a lane ends: well, or with the error of the first utterance that has one.
type LaneResult = std::result::Result<(), (usize, Error)>;

pub(crate) struct LatticeCall<'a> {
    pub shapes: CallShapes<'a>,
    pub emissions: &'a [f64],
}

impl LatticeCall<'_> {
    /// Works on all utterances. `entries` is a list that is kept from call to call.
    ///
    /// ```text
    /// for each lane in parallel:
    ///     while an utterance is left of its turns or of later ones:
    ///         both directions in parallel
    /// ```
    pub fn run(
        &self,
        lanes: &mut [LaneScratch],
        turns: &mut Schedule,
        entries: &mut Vec<UtteranceSlot<'static>>,
        losses: &mut [f64],
        mut adjoints: &mut [f64],
    ) -> Result<()> {
        let (lattices, columns) = (self.shapes.lattices, self.shapes.topology.columns());
        let entry = |(utterance, loss)| {
            let sites = lattices.range(utterance).len();
            let mine = adjoints.split_off_mut(..sites * columns).expect("as long as all sites");
            Some((loss, mine))
        };
        let mut given = emptied(std::mem::take(entries));
        given.extend(losses.iter_mut().enumerate().map(entry));
        turns.share(&self.shapes, lanes.len());
        let left = Mutex::new((turns, &mut given));
        let next = |lane: usize| {
            let (turns, given) = &mut *lock(&left);
            let utterance = turns.next(lane)?;
            given[utterance].take().map(|entry| (utterance, entry))
        };
        // All are looked at, so that the same mistake always gives the same message.
        let first = |a: LaneResult, b: LaneResult| match (a, b) {
            (Err(a), Err(b)) => Err(if a.0 < b.0 { a } else { b }),
            (a, b) => a.and(b),
        };
        let work = |(lane, scratch): (usize, &mut LaneScratch)| {
            let mut outcome = Ok(());
            while let Some((utterance, (loss, adjoints))) = next(lane) {
                let found = self.one(scratch, utterance, adjoints).map(|found| *loss = found);
                outcome = first(outcome, found.map_err(|error| (utterance, error)));
            }
            outcome
        };
        // On a thread of the pool: elsewhere each step of a single lane would put its caller to sleep and wake it.
        let lanes = lanes.par_iter_mut().enumerate().with_max_len(1);
        let outcome = install(|| lanes.map(work).reduce(|| Ok(()), first));
        *entries = emptied(given);
        outcome.map_err(|(_, error)| error)
    }

    /// The loss of an utterance.
    fn one(&self, scratch: &mut LaneScratch, utterance: usize, adjoints: &mut [f64]) -> Result<f64> {
        let CallShapes { lattices, topology, regularisers } = self.shapes;
        let lattice = Lattice::unchecked(lattices, topology, self.emissions, utterance);
        if !composed(topology, regularisers) {
            let factor = |arc: &Arc| regularisers.factor(arc.labels > 0);
            return self.recur(scratch, utterance, &lattice, lattice.emissions(), factor, adjoints);
        }
        let (mut arcs, mut of_arcs) = std::mem::take(&mut scratch.arcs);
        fold(&lattice, regularisers, &mut arcs);
        of_arcs.resize(arcs.len(), 0.0);
        let outcome = self.recur(scratch, utterance, &lattice, &arcs, |_| 1.0, &mut of_arcs);
        adjoints.fill(0.0);
        if outcome.as_ref().is_ok_and(|loss| loss.is_finite()) {
            unfold(&lattice, regularisers, &of_arcs, adjoints);
        }
        scratch.arcs = (arcs, of_arcs);
        outcome
    }

    /// Both recursions over the emissions of arcs.
    fn recur(
        &self,
        scratch: &mut LaneScratch,
        utterance: usize,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&Arc) -> f64 + Sync,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        let CallShapes { lattices, topology, .. } = self.shapes;
        if !lattices.full() {
            lattice.check()?;
            let loss = scratch.banded(lattice, emissions, factor, adjoints);
            return if loss > -ABSURD { Ok(loss) } else { Err(Error::Overflow { utterance, loss }) };
        }
        let (frames, labels) = (lattices.frames(utterance), lattices.labels(utterance));
        let (total, sound) = scratch.meet(frames, labels, topology.arcs(), emissions);
        let loss = -total.ln();
        let outcome = if sound { Ok(()) } else { lattice.check() };
        let outcome =
            outcome.and(if loss > -ABSURD { Ok(()) } else { Err(Error::Overflow { utterance, loss }) });
        if outcome.is_err() {
            scratch.heal();
        } else if loss.is_finite() {
            scratch.part_again(total, factor, emissions, adjoints);
        } else {
            adjoints.fill(0.0);
        }
        outcome.map(|()| loss)
    }
}

/// The list without what is in it, for entries that live for another time, in the same memory.
fn emptied<'b>(mut list: Vec<UtteranceSlot<'_>>) -> Vec<UtteranceSlot<'b>> {
    list.clear();
    list.into_iter().map(|_| None).collect()
}
