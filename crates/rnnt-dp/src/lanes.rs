//! Runs the transducer lattices of a batch in parallel lanes.
//!
//! A lane is a worker with its own scratch memory that processes utterances one after the other.
//! For each utterance it composes the emissions of arcs if necessary, runs both recursions, and
//! writes loss and adjoints.
use std::sync::Mutex;

use kernels::{lock, run_in_pool};
use rayon::prelude::*;

use crate::{
    Error, Result, TopologyArc,
    compose::{compose_emissions, needs_composition, scatter_adjoints},
    schedule::{CallShapes, Schedule, UtteranceSlot},
    utterance::LaneScratch,
    walk::Lattice,
};

/// Losses below the negative of this limit are overflows: log-probabilities never sum to so much.
const MAX_ABS_LOSS: f64 = 1e280;

/// Result of a lane: the error of the first utterance that has one, with its index.
type LaneResult = std::result::Result<(), (usize, Error)>;

/// The inputs of a call: shapes and emissions of a batch.
pub(crate) struct BatchCall<'a> {
    pub shapes: CallShapes<'a>,
    pub emissions: &'a [f64],
}

impl BatchCall<'_> {
    /// Runs all utterances; `slot_buffer` keeps its memory from call to call.
    ///
    /// ```text
    /// for each lane in parallel:
    ///     while its own turns, or those of later lanes, have an utterance left:
    ///         both directions in parallel
    /// ```
    pub(crate) fn run(
        &self,
        lanes: &mut [LaneScratch],
        schedule: &mut Schedule,
        slot_buffer: &mut Vec<UtteranceSlot<'static>>,
        losses: &mut [f64],
        mut adjoints: &mut [f64],
    ) -> Result<()> {
        let (lattices, columns) = (self.shapes.lattices, self.shapes.topology.num_columns());
        let utterance_slot = |(utterance, loss)| {
            let sites = lattices.site_range(utterance).len();
            let utterance_adjoints = adjoints.split_off_mut(..sites * columns).expect("as long as all sites");
            Some((loss, utterance_adjoints))
        };
        // The outputs of each utterance, until a lane takes them.
        let mut slots = clear_with_capacity(std::mem::take(slot_buffer));
        slots.extend(losses.iter_mut().enumerate().map(utterance_slot));
        schedule.assign(&self.shapes, lanes.len());
        let remaining = Mutex::new((schedule, &mut slots));
        let next_utterance = |lane: usize| {
            let (schedule, slots) = &mut *lock(&remaining);
            let utterance = schedule.next(lane)?;
            slots[utterance].take().map(|slot| (utterance, slot))
        };
        // All utterances run, so that the same error is returned for every thread count.
        let first_error = |left: LaneResult, right: LaneResult| match (left, right) {
            (Err(left), Err(right)) => Err(if left.0 < right.0 { left } else { right }),
            (left, right) => left.and(right),
        };
        let run_lane = |(lane, scratch): (usize, &mut LaneScratch)| {
            let mut outcome = Ok(());
            while let Some((utterance, (loss, adjoints))) = next_utterance(lane) {
                let result = self.run_utterance(scratch, utterance, adjoints).map(|value| *loss = value);
                outcome = first_error(outcome, result.map_err(|error| (utterance, error)));
            }
            outcome
        };
        // `install` runs the loop on a thread of the pool. From another thread, each step of a
        // single lane would cause a thread switch.
        let lanes = lanes.par_iter_mut().enumerate().with_max_len(1);
        let outcome = run_in_pool(|| lanes.map(run_lane).reduce(|| Ok(()), first_error));
        *slot_buffer = clear_with_capacity(slots);
        outcome.map_err(|(_, error)| error)
    }

    /// Returns the loss of an utterance and writes its adjoints, by columns.
    fn run_utterance(
        &self,
        scratch: &mut LaneScratch,
        utterance: usize,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        let CallShapes { lattices, topology, regularizers } = self.shapes;
        let lattice = Lattice::new_unchecked(lattices, topology, self.emissions, utterance);
        if !needs_composition(topology, regularizers) {
            let factor = |arc: &TopologyArc| regularizers.adjoint_factor(arc.labels > 0);
            return self.forward_backward(
                scratch,
                utterance,
                &lattice,
                lattice.emissions(),
                factor,
                adjoints,
            );
        }
        let mut arc_emissions = std::mem::take(&mut scratch.arc_emissions);
        let mut arc_adjoints = std::mem::take(&mut scratch.arc_adjoints);
        compose_emissions(&lattice, regularizers, &mut arc_emissions);
        arc_adjoints.resize(arc_emissions.len(), 0.0);
        let outcome =
            self.forward_backward(scratch, utterance, &lattice, &arc_emissions, |_| 1.0, &mut arc_adjoints);
        adjoints.fill(0.0);
        if outcome.as_ref().is_ok_and(|loss| loss.is_finite()) {
            scatter_adjoints(&lattice, regularizers, &arc_adjoints, adjoints);
        }
        (scratch.arc_emissions, scratch.arc_adjoints) = (arc_emissions, arc_adjoints);
        outcome
    }

    /// Runs both recursions over the emissions of arcs; writes the adjoints of arcs.
    fn forward_backward(
        &self,
        scratch: &mut LaneScratch,
        utterance: usize,
        lattice: &Lattice,
        emissions: &[f64],
        factor: impl Fn(&TopologyArc) -> f64 + Sync,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        let CallShapes { lattices, topology, .. } = self.shapes;
        if !lattices.is_full() {
            lattice.check_emissions()?;
            let loss = scratch.run_banded(lattice, emissions, factor, adjoints);
            return if loss > -MAX_ABS_LOSS { Ok(loss) } else { Err(Error::Overflow { utterance, loss }) };
        }
        let (frames, labels) = (lattices.num_frames(utterance), lattices.num_labels(utterance));
        let (total, is_valid) = scratch.run_to_middle(frames, labels, topology.arcs(), emissions);
        let loss = -total.ln();
        let emission_check = if is_valid { Ok(()) } else { lattice.check_emissions() };
        let loss_check = if loss > -MAX_ABS_LOSS { Ok(()) } else { Err(Error::Overflow { utterance, loss }) };
        let outcome = emission_check.and(loss_check);
        if outcome.is_err() {
            scratch.clear_sums();
        } else if loss.is_finite() {
            scratch.run_from_middle(total, factor, emissions, adjoints);
        } else {
            adjoints.fill(0.0);
        }
        outcome.map(|()| loss)
    }
}

/// Empties a list for slots of another lifetime; keeps its memory.
fn clear_with_capacity<'b>(mut list: Vec<UtteranceSlot<'_>>) -> Vec<UtteranceSlot<'b>> {
    list.clear();
    list.into_iter().map(|_| None).collect()
}
