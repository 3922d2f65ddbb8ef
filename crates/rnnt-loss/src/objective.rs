//! The objective of a loss, transducer or CTC: selected classes, memory, forward-backward.
//!
//! A call evaluates heads at sites (lattice nodes; for CTC frames) in the same way for all losses.
//! [`LatticeObjective`] has the parts that differ: which classes each site selects, and how the
//! emissions (log-probabilities of the selected classes, a column each) become losses and adjoints
//! (derivatives of each loss with respect to the emissions).
use std::{borrow::Cow, ops::Range};

use panda_core::Selection;
use rnnt_dp::{Regularizers, Topology};

use crate::{
    Loss, Options, Result, Targets,
    column_counts::{ColumnCounts, RNNT_COLUMNS},
    ctc::{CtcLane, CtcObjective},
    heads::HeadRole,
    site_buffers::clear_with_capacity,
};

/// Upper bound on an utterance's bytes in lists, without its labels.
///
/// They are entries in the lists of labels, weights, classes, shapes and losses.
const UTTERANCE_BYTES: usize = 256;
/// Bytes of a label: its id and its token weight.
const LABEL_BYTES: usize = size_of::<u32>() + size_of::<f64>();
/// Upper bound on the bytes of two empty vectors of bands.
const BAND_BYTES: usize = 64;
/// Bytes of a frame's band: its first label position and its first site.
const FRAME_BAND_BYTES: usize = 2 * size_of::<u32>();

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
    pub(crate) fn new(loss: Cow<'a, Loss>, targets: Cow<'a, Targets>) -> Result<Self> {
        loss.check_columns(&targets)?;
        Ok(match *loss {
            Loss::Ctc => Self::Ctc(CtcObjective::new(&targets)?),
            _ => Self::Transducer(TransducerObjective { loss, targets }),
        })
    }

    /// Targets with the sites of the objective: for CTC, the frames.
    pub(crate) fn site_targets(&self) -> &Targets {
        match self {
            Self::Transducer(transducer) => &transducer.targets,
            Self::Ctc(ctc) => ctc.frame_targets(),
        }
    }

    /// Numbers of columns of a site.
    pub(crate) fn column_counts(&self) -> ColumnCounts {
        match self {
            Self::Transducer(transducer) => {
                ColumnCounts { all: transducer.num_columns(), tokens: transducer.targets.num_token_columns() }
            }
            Self::Ctc(ctc) => ColumnCounts { all: ctc.num_columns(), tokens: ctc.num_columns() },
        }
    }

    /// Objective of a range of utterances.
    pub(crate) fn part(&self, utterances: Range<usize>) -> LatticeObjective<'_> {
        match self {
            Self::Transducer(TransducerObjective { loss, targets }) => {
                let (loss, targets) = (Cow::Borrowed(&**loss), Cow::Owned(targets.part(utterances)));
                LatticeObjective::Transducer(TransducerObjective { loss, targets })
            }
            Self::Ctc(ctc) => LatticeObjective::Ctc(ctc.part(utterances)),
        }
    }

    /// Selects the classes of a head at every site; reuses the buffers of `spare`.
    pub(crate) fn selection(&self, role: HeadRole, spare: Selection) -> Result<Selection> {
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
                let num_sites = self.site_targets().lattices().num_sites();
                let durations = self.selected_classes(role);
                let entries = num_sites * durations;
                let (ids, active) = spare.into_parts();
                let (mut ids, mut active) =
                    (clear_with_capacity(ids, entries), clear_with_capacity(active, entries));
                (0..num_sites).for_each(|_| ids.extend(0..durations as u32));
                active.resize(entries, true);
                Ok(Selection::new(ids, active, durations)?)
            }
        }
    }

    /// Number of classes that a site selects of a head.
    pub(crate) fn selected_classes(&self, role: HeadRole) -> usize {
        let ColumnCounts { all: columns, tokens } = self.column_counts();
        match (role, self) {
            (HeadRole::Blank | HeadRole::Mean, _) => 0,
            (HeadRole::Durations, _) => columns - tokens,
            // The next label only: the blank has a separate head.
            (HeadRole::Tokens, Self::Transducer(TransducerObjective { loss, .. }))
                if loss.factors_blank() =>
            {
                1
            }
            (HeadRole::Tokens, _) => tokens,
        }
    }

    /// Bytes of an utterance in a group: copied labels and shapes, losses and weights.
    pub(crate) fn utterance_bytes(&self, utterance: usize) -> usize {
        match self {
            Self::Transducer(TransducerObjective { targets, .. }) => {
                let (frames, labels) = (targets.frames(utterance), targets.labels(utterance).len());
                let is_full = targets.lattices().is_full();
                let band_bytes = if is_full { 0 } else { BAND_BYTES + FRAME_BAND_BYTES * (frames + 1) };
                UTTERANCE_BYTES + LABEL_BYTES * labels + band_bytes
            }
            // Both the copied targets of the frames and those of the labels.
            Self::Ctc(ctc) => 2 * UTTERANCE_BYTES + ctc.utterance_bytes(utterance),
        }
    }

    /// Bytes of all utterances in addition to the targets of the caller.
    pub(crate) fn call_bytes(&self) -> usize {
        match self {
            Self::Transducer(_) => 0,
            Self::Ctc(ctc) => {
                (0..ctc.frame_targets().batch()).map(|b| UTTERANCE_BYTES + ctc.utterance_bytes(b)).sum()
            }
        }
    }

    /// Bytes of a CTC lane for the utterances of a group.
    pub(crate) fn lane_bytes(&self, group: &Range<usize>) -> usize {
        match self {
            Self::Transducer(_) => 0,
            Self::Ctc(ctc) => ctc.lane_scratch(group.clone()).bytes(),
        }
    }

    /// Computes losses and adjoints of the emissions, including token weights.
    ///
    /// `adjoints` must be 0.
    pub(crate) fn forward_backward(
        &self,
        emissions: &[f64],
        options: &Options,
        workspace: &mut LatticeWorkspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
        scratch: &mut [f64],
    ) -> Result<()> {
        let regularizers = options.regularizers();
        match self {
            Self::Transducer(objective) => {
                let workspace = &mut workspace.transducer;
                objective.forward_backward(emissions, &regularizers, workspace, losses, adjoints, scratch)
            }
            Self::Ctc(objective) => {
                let (lanes, budget) = (&mut workspace.ctc_lanes, workspace.budget);
                objective.forward_backward(emissions, &regularizers, lanes, budget, losses, adjoints)
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
    pub(crate) fn keep_within(&mut self, budget: usize, loss: &Loss, unused_bytes: usize) -> usize {
        self.budget = budget;
        let (transducer_limit, ctc_limit) =
            if *loss == Loss::Ctc { (unused_bytes, budget) } else { (budget, unused_bytes) };
        self.transducer.set_budget(transducer_limit);
        if self.ctc_bytes() > ctc_limit {
            self.ctc_lanes = Vec::new();
        }
        unused_bytes - if *loss == Loss::Ctc { self.transducer.allocated_bytes() } else { self.ctc_bytes() }
    }

    /// Bytes of the buffers of CTC.
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
    /// Arcs of the lattices.
    fn topology(&self) -> Option<&Topology> {
        self.loss.topology()
    }

    /// Number of emission columns of a site.
    fn num_columns(&self) -> usize {
        self.topology().map_or(0, Topology::num_columns)
    }

    /// Computes losses and adjoints; `scratch` is for the RNN-T loss of a TDT mixture.
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
            let num_entries = RNNT_COLUMNS * lattices.num_sites();
            let (rnnt_emissions, rnnt_adjoints) = scratch[..2 * num_entries].split_at_mut(num_entries);
            let rows = rnnt_emissions
                .chunks_exact_mut(RNNT_COLUMNS)
                .zip(emissions.chunks_exact(topology.num_columns()));
            rows.for_each(|(rnnt_row, row)| rnnt_row.copy_from_slice(&row[..RNNT_COLUMNS]));
            self.mix_rnnt_loss(rnnt_emissions, rnnt_adjoints, regularizers, workspace, losses, adjoints)?;
        }
        self.targets.apply_token_weights(adjoints, topology.num_columns());
        Ok(())
    }

    /// Mixes `(1 - ω) TDT + ω RNN-T`, the latter without durations and σ.
    ///
    /// NeMo chooses one of both losses at random; this is the expected value of that choice.
    fn mix_rnnt_loss(
        &self,
        rnnt_emissions: &[f64],
        rnnt_adjoints: &mut [f64],
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
            rnnt_emissions,
            &regularizers,
            &mut rnnt_losses,
            rnnt_adjoints,
        )?;
        for (loss, rnnt_loss) in losses.iter_mut().zip(rnnt_losses) {
            // For ω = 1, (1 - ω) times an infinite loss would be NaN.
            *loss = if omega == 1.0 { rnnt_loss } else { (1.0 - omega) * *loss + omega * rnnt_loss };
        }
        let columns = self.num_columns();
        let rows = adjoints.chunks_exact_mut(columns);
        for (row, rnnt_row) in rows.zip(rnnt_adjoints.chunks_exact(RNNT_COLUMNS)) {
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
