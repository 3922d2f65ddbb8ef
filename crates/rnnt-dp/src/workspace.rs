//! A batch of lattices, in memory that calls share.
use std::sync::{Mutex, PoisonError};

use crate::{
    Arc, Error, Lattices, Regularisers, Result, Topology,
    compose::{composed, fold, unfold},
    forward_backward::expect,
    log_sums::Walk,
    utterance::Scratch,
};

/// No sum of log-probabilities, far as it may be from 0, is that large.
const ABSURD: f64 = 1e280;

/// Memory for [`Workspace::forward_backward`], which grows to what the largest utterance needs, for as many utterances as
/// are worked on at once, and is kept.
///
/// ```
/// use rnnt_dp::{Lattices, Regularisers, Topology, Workspace};
/// let lattices = Lattices::new(vec![2], vec![1])?;
/// let (mut losses, mut adjoints) = ([0.0], [0.0; 8]);
/// let mut workspace = Workspace::new();
/// for step in 1..3 {
///     let emissions = [-0.5 / step as f64; 8];
///     let regularisers = Regularisers::default();
///     workspace.forward_backward(
///         &lattices, &Topology::rnnt(), &emissions, &regularisers, &mut losses, &mut adjoints,
///     )?;
/// }
/// assert!((losses[0] - (0.75 - 2f64.ln())).abs() < 1e-12); // two paths of three arcs
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Workspace {
    /// Those that no utterance uses.
    idle: Mutex<Vec<Scratch>>,
}

impl Workspace {
    /// A workspace that is still empty.
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`forward_backward`](fn@crate::forward_backward), into given slices, and without allocation once a batch of the
    /// same shape has been seen (with several threads: once chance has given each the largest utterance).
    ///
    /// # Shapes
    /// `emissions` and `adjoints` *N x S*, `losses` *B*. Every number of the latter two is written.
    ///
    /// # Errors
    /// As [`forward_backward`](fn@crate::forward_backward), and slices of a wrong length. What was written by then means
    /// nothing.
    ///
    /// # Cost
    /// As there. The memory that is kept is about two numbers for each site of an utterance, of as many utterances as
    /// there are threads; diagonals count as filled up to multiples of eight sites.
    pub fn forward_backward(
        &mut self,
        lattices: &Lattices,
        topology: &Topology,
        emissions: &[f64],
        regularisers: &Regularisers,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let entries = lattices.sites() * topology.columns();
        expect("emissions", entries, emissions.len())?;
        expect("losses", lattices.batch(), losses.len())?;
        expect("adjoints", entries, adjoints.len())?;
        regularisers.check()?;
        let idle = &self.idle;
        Batch { lattices, topology, emissions, regularisers, idle }.run(0, losses, adjoints)
    }
}

struct Batch<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
    emissions: &'a [f64],
    regularisers: &'a Regularisers,
    idle: &'a Mutex<Vec<Scratch>>,
}

impl Batch<'_> {
    /// Works on the utterances from `first` on that `losses` and `adjoints` belong to: on about one half of their sites
    /// here, while another thread may take the other half.
    fn run(&self, first: usize, losses: &mut [f64], adjoints: &mut [f64]) -> Result<()> {
        if let [loss] = losses {
            *loss = self.one(first, adjoints)?;
            return Ok(());
        }
        let begin = self.lattices.range(first).start;
        let sites_before = |utterance: usize| self.lattices.range(utterance).start - begin;
        let half = adjoints.len() / self.topology.columns() / 2;
        let split = (first + 1..first + losses.len() - 1).find(|&b| sites_before(b) >= half);
        let split = split.unwrap_or(first + losses.len() - 1);
        let (losses, later_losses) = losses.split_at_mut(split - first);
        let (adjoints, later) = adjoints.split_at_mut(sites_before(split) * self.topology.columns());
        let halves =
            rayon::join(|| self.run(first, losses, adjoints), || self.run(split, later_losses, later));
        // The earlier error first, so that the same mistake always gives the same message.
        halves.0.and(halves.1)
    }

    /// The loss of an utterance.
    fn one(&self, utterance: usize, adjoints: &mut [f64]) -> Result<f64> {
        let take = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = take().unwrap_or_default();
        let loss = self.one_in(&mut scratch, utterance, adjoints);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        loss
    }

    fn one_in(&self, scratch: &mut Scratch, utterance: usize, adjoints: &mut [f64]) -> Result<f64> {
        let walk = Walk::new(self.lattices, self.topology, self.emissions, utterance);
        if !composed(self.topology, self.regularisers) {
            let factor = |arc: &Arc| self.regularisers.factor(arc.labels > 0);
            return self.recur(scratch, utterance, &walk, walk.emissions, factor, adjoints);
        }
        let (mut arcs, mut of_arcs) = std::mem::take(&mut scratch.arcs);
        fold(&walk, self.regularisers, &mut arcs);
        of_arcs.resize(arcs.len(), 0.0);
        let outcome = self.recur(scratch, utterance, &walk, &arcs, |_| 1.0, &mut of_arcs);
        adjoints.fill(0.0);
        if outcome.as_ref().is_ok_and(|loss| loss.is_finite()) {
            unfold(&walk, self.regularisers, &of_arcs, adjoints);
        }
        scratch.arcs = (arcs, of_arcs);
        outcome
    }

    /// Both recursions over the emissions of arcs.
    fn recur(
        &self,
        scratch: &mut Scratch,
        utterance: usize,
        walk: &Walk,
        emissions: &[f64],
        factor: impl Fn(&Arc) -> f64 + Sync,
        adjoints: &mut [f64],
    ) -> Result<f64> {
        let (frames, labels) = (self.lattices.frames(utterance), self.lattices.labels(utterance));
        if !self.lattices.full() {
            walk.check()?;
            let loss = scratch.banded(walk, emissions, factor, adjoints);
            return if loss > -ABSURD { Ok(loss) } else { Err(Error::Overflow { utterance, loss }) };
        }
        let (total, sound) = scratch.meet(frames, labels, self.topology.arcs(), emissions);
        let loss = -total.ln();
        let outcome = if sound { Ok(()) } else { walk.check() };
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
