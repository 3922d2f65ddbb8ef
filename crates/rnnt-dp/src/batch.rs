//! Work on a batch of lattices, lane beside lane.
use crate::{
    Arc, Error, Result,
    compose::{composed, fold, unfold},
    lanes::{Shapes, cut},
    utterance::Scratch,
    walk::Lattice,
};

/// No sum of log-probabilities, far as it may be from 0, is that large.
const ABSURD: f64 = 1e280;

pub(crate) struct Batch<'a> {
    pub shapes: Shapes<'a>,
    pub emissions: &'a [f64],
}

impl Batch<'_> {
    /// Works on the utterances from `first` on that `losses` and `adjoints` belong to, in at most as many lanes.
    ///
    /// ```text
    /// for each lane in parallel:
    ///     for each utterance of the lane:
    ///         both directions in parallel
    /// ```
    pub fn run(
        &self,
        lanes: &mut [Scratch],
        first: usize,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let (lattices, columns) = (self.shapes.lattices, self.shapes.topology.columns());
        let begin = lattices.range(first).start;
        if let [scratch] = lanes {
            let mut rest = adjoints;
            for (utterance, loss) in (first..).zip(losses) {
                let (mine, others) = rest.split_at_mut(lattices.range(utterance).len() * columns);
                *loss = self.one(scratch, utterance, mine)?;
                rest = others;
            }
            return Ok(());
        }
        let split = cut(lattices, &(first..first + losses.len()), lanes.len());
        let (lanes, later_lanes) = lanes.split_at_mut(lanes.len() / 2);
        let (losses, later_losses) = losses.split_at_mut(split - first);
        let (adjoints, later) = adjoints.split_at_mut((lattices.range(split).start - begin) * columns);
        let halves = rayon::join(
            || self.run(lanes, first, losses, adjoints),
            || self.run(later_lanes, split, later_losses, later),
        );
        // The earlier error first, so that the same mistake always gives the same message.
        halves.0.and(halves.1)
    }

    /// The loss of an utterance.
    fn one(&self, scratch: &mut Scratch, utterance: usize, adjoints: &mut [f64]) -> Result<f64> {
        let Shapes { lattices, topology, regularisers } = self.shapes;
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
        scratch: &mut Scratch,
        utterance: usize,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&Arc) -> f64 + Sync,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        let Shapes { lattices, topology, .. } = self.shapes;
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
