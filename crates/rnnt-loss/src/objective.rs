//! What transducer and CTC losses compute differently: selections, memory, recursions.
//!
//! A site is a lattice node (t, u), for CTC a frame. Adjoints are derivatives of the loss with
//! respect to the emissions (log-probabilities of the selected classes), one column per class.
use std::{borrow::Cow, ops::Range};

use panda_core::Selection;
use rnnt_dp::{Regularizers, Topology};

use crate::{
    Loss, Options, Result, Targets,
    columns::ColumnCounts,
    ctc::{CtcLane, CtcObjective},
    heads::HeadRole,
    site_buffers::clear_with_capacity,
};

/// The objective of a loss over the lattices of a batch.
pub(crate) enum LatticeObjective<'a> {
    Transducer(TransducerObjective<'a>),
    Ctc(CtcObjective),
}

impl<'a> LatticeObjective<'a> {
    /// Creates the objective of a loss over targets.
    ///
    /// # Errors
    /// Targets that the loss does not support.
    pub fn new(loss: Cow<'a, Loss>, targets: Cow<'a, Targets>) -> Result<Self> {
        loss.check_columns(&targets)?;
        Ok(match *loss {
            Loss::Ctc => Self::Ctc(CtcObjective::new(&targets)?),
            _ => Self::Transducer(TransducerObjective { loss, targets }),
        })
    }

    /// Targets with the sites of the objective: for CTC, the frames.
    pub fn site_targets(&self) -> &Targets {
        match self {
            Self::Transducer(transducer) => &transducer.targets,
            Self::Ctc(ctc) => ctc.frames(),
        }
    }

    /// Numbers of columns of a site.
    pub fn column_counts(&self) -> ColumnCounts {
        match self {
            Self::Transducer(transducer) => {
                ColumnCounts { all: transducer.columns(), tokens: transducer.targets.tokens() }
            }
            Self::Ctc(ctc) => ColumnCounts { all: ctc.columns(), tokens: ctc.columns() },
        }
    }

    /// Objective of a range of utterances.
    pub fn part(&self, utterances: Range<usize>) -> LatticeObjective<'_> {
        match self {
            Self::Transducer(TransducerObjective { loss, targets }) => {
                let (loss, targets) = (Cow::Borrowed(&**loss), Cow::Owned(targets.part(utterances)));
                LatticeObjective::Transducer(TransducerObjective { loss, targets })
            }
            Self::Ctc(ctc) => LatticeObjective::Ctc(ctc.part(utterances)),
        }
    }

    /// Selects the classes of a head; reuses the vectors of `spare`.
    pub fn selection(&self, role: HeadRole, spare: Selection) -> Result<Selection> {
        match (role, self) {
            (HeadRole::Blank | HeadRole::Mean, _) => Ok(Selection::default()),
            (HeadRole::Tokens, Self::Ctc(ctc)) => ctc.selection(spare),
            (HeadRole::Tokens, Self::Transducer(TransducerObjective { loss, targets })) => {
                match loss.factors_blank() {
                    true => targets.next_labels(spare),
                    false => targets.selection(spare),
                }
            }
            (HeadRole::Durations, _) => {
                let ColumnCounts { all: columns, tokens } = self.column_counts();
                let (sites, count) = (self.site_targets().lattices().num_sites(), columns - tokens);
                let (ids, active) = spare.into_parts();
                let (mut ids, mut active) =
                    (clear_with_capacity(ids, sites * count), clear_with_capacity(active, sites * count));
                (0..sites).for_each(|_| ids.extend(0..count as u32));
                active.resize(sites * count, true);
                Ok(Selection::new(ids, active, count)?)
            }
        }
    }

    /// Number of classes that a site selects of a head.
    pub fn selected_classes(&self, role: HeadRole) -> usize {
        let ColumnCounts { all: columns, tokens } = self.column_counts();
        match (role, self) {
            (HeadRole::Blank | HeadRole::Mean, _) => 0,
            (HeadRole::Durations, _) => columns - tokens,
            (HeadRole::Tokens, Self::Transducer(TransducerObjective { loss, .. }))
                if loss.factors_blank() =>
            {
                1
            }
            (HeadRole::Tokens, _) => tokens,
        }
    }

    /// Bytes of an utterance in a group: copied labels and shapes, losses and weights.
    pub fn utterance_bytes(&self, utterance: usize) -> usize {
        match self {
            Self::Transducer(TransducerObjective { targets, .. }) => {
                let (frames, labels) = (targets.frames(utterance), targets.labels(utterance).len());
                let bands = if targets.lattices().is_full() { 0 } else { 64 + 8 * (frames + 1) };
                256 + 12 * labels + bands
            }
            Self::Ctc(ctc) => 512 + ctc.utterance_bytes(utterance),
        }
    }

    /// Bytes of all utterances in addition to the targets of the caller.
    pub fn call_bytes(&self) -> usize {
        match self {
            Self::Transducer(_) => 0,
            Self::Ctc(ctc) => (0..ctc.frames().batch()).map(|b| 256 + ctc.utterance_bytes(b)).sum(),
        }
    }

    /// Bytes of a CTC lane for the utterances of a group.
    pub fn lane_bytes(&self, group: &Range<usize>) -> usize {
        match self {
            Self::Transducer(_) => 0,
            Self::Ctc(ctc) => ctc.lane_scratch(group.clone()).bytes(),
        }
    }

    /// Computes losses and adjoints of the emissions, including token weights.
    ///
    /// `adjoints` must be 0.
    pub fn forward_backward(
        &self,
        emissions: &[f64],
        options: &Options,
        workspace: &mut LatticeWorkspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
        scratch: &mut [f64],
    ) -> Result<()> {
        let (regularizers, LatticeWorkspace { transducer: lattices, ctc_lanes, budget }) =
            (options.regularizers(), workspace);
        match self {
            Self::Transducer(transducer) => {
                transducer.forward_backward(emissions, &regularizers, lattices, losses, adjoints, scratch)
            }
            Self::Ctc(ctc) => {
                ctc.forward_backward(emissions, &regularizers, ctc_lanes, *budget, losses, adjoints)
            }
        }
    }
}

/// Buffers of a session for transducer lattices and CTC.
#[derive(Debug)]
pub(crate) struct LatticeWorkspace {
    transducer: rnnt_dp::Workspace,
    ctc_lanes: Vec<CtcLane>,
    /// Limit in bytes on the buffers of the current call's loss.
    budget: usize,
}

impl LatticeWorkspace {
    /// Limits the buffers of `loss` to `budget` bytes, others to `unused_bytes`.
    ///
    /// Buffers above their limit are freed. Returns `unused_bytes` minus the bytes of the other
    /// buffers.
    pub fn keep_within(&mut self, budget: usize, loss: &Loss, unused_bytes: usize) -> usize {
        self.budget = budget;
        let (transducer_limit, ctc_limit) =
            if *loss == Loss::Ctc { (unused_bytes, budget) } else { (budget, unused_bytes) };
        self.transducer.set_budget(transducer_limit);
        if self.ctc_bytes() > ctc_limit {
            self.ctc_lanes = Vec::new();
        }
        unused_bytes - if *loss == Loss::Ctc { self.transducer.allocated_bytes() } else { self.ctc_bytes() }
    }

    fn ctc_bytes(&self) -> usize {
        self.ctc_lanes.iter().map(CtcLane::bytes).sum()
    }
}

impl Default for LatticeWorkspace {
    fn default() -> Self {
        Self { transducer: rnnt_dp::Workspace::with_budget(0), ctc_lanes: Vec::new(), budget: 0 }
    }
}

/// The objective of transducer losses.
pub(crate) struct TransducerObjective<'a> {
    loss: Cow<'a, Loss>,
    targets: Cow<'a, Targets>,
}

impl TransducerObjective<'_> {
    fn topology(&self) -> Option<&Topology> {
        self.loss.topology()
    }

    fn columns(&self) -> usize {
        self.topology().map_or(0, Topology::num_columns)
    }

    fn forward_backward(
        &self,
        emissions: &[f64],
        regularizers: &Regularizers,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
        scratch: &mut [f64],
    ) -> Result<()> {
        let Some(topology) = self.topology() else { return Ok(()) };
        let lattices = self.targets.lattices();
        workspace.forward_backward(lattices, topology, emissions, regularizers, losses, adjoints)?;
        if self.loss.omega() > 0.0 {
            // Emissions and adjoints of blank and label, without durations.
            let (token_emissions, token_adjoints) =
                scratch[..4 * lattices.num_sites()].split_at_mut(2 * lattices.num_sites());
            let rows =
                token_emissions.chunks_exact_mut(2).zip(emissions.chunks_exact(topology.num_columns()));
            rows.for_each(|(tokens, row)| tokens.copy_from_slice(&row[..2]));
            self.mix_rnnt_loss(token_emissions, token_adjoints, regularizers, workspace, losses, adjoints)?;
        }
        self.targets.apply_token_weights(adjoints, topology.num_columns());
        Ok(())
    }

    /// Mixes `(1 - ω) TDT + ω RNN-T`, the latter without durations and σ.
    ///
    /// NeMo chooses one of both losses at random; this is the expected value of that choice.
    fn mix_rnnt_loss(
        &self,
        token_emissions: &[f64],
        token_adjoints: &mut [f64],
        regularizers: &Regularizers,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let mut rnnt_losses = vec![0.0; losses.len()];
        let regularizers = Regularizers { sigma: 0.0, ..*regularizers };
        let (lattices, topology, omega) = (self.targets.lattices(), Topology::rnnt(), self.loss.omega());
        workspace.forward_backward(
            lattices,
            &topology,
            token_emissions,
            &regularizers,
            &mut rnnt_losses,
            token_adjoints,
        )?;
        for (loss, rnnt_loss) in losses.iter_mut().zip(rnnt_losses) {
            // For ω = 1, (1 - ω) times an infinite loss would be NaN.
            *loss = if omega == 1.0 { rnnt_loss } else { (1.0 - omega) * *loss + omega * rnnt_loss };
        }
        let columns = self.columns();
        let rows = adjoints.chunks_exact_mut(columns);
        for (row, rnnt_row) in rows.zip(token_adjoints.chunks_exact(2)) {
            row.iter_mut().for_each(|adjoint| *adjoint *= 1.0 - omega);
            row.iter_mut().zip(rnnt_row).for_each(|(adjoint, rnnt)| *adjoint += omega * rnnt);
        }
        // If one of the losses is infinite, the other may still have adjoints.
        for (utterance, _) in losses.iter().enumerate().filter(|(_, loss)| loss.is_infinite()) {
            let Range { start, end } = lattices.site_range(utterance);
            adjoints[start * columns..end * columns].fill(0.0);
        }
        Ok(())
    }
}
