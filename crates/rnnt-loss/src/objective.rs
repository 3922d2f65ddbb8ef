//! What the sites of some utterances are asked for, and the sum over paths that the answers go into.
use std::{borrow::Cow, ops::Range};

use panda_core::Selection;
use rnnt_dp::{Regularizers, Topology};

use crate::{
    Loss, Options, Result, Targets,
    ctc::{Ctc, CtcLane},
    heads::Role,
    site_buffers::clear_with_capacity,
};

/// A sum over paths.
pub(crate) enum LatticeObjective<'a> {
    Transducer(TransducerObjective<'a>),
    Ctc(Ctc),
}

impl<'a> LatticeObjective<'a> {
    /// The objective of a kind of loss over the utterances of some targets.
    ///
    /// # Errors
    /// Targets that the loss has no columns for.
    pub fn new(loss: Cow<'a, Loss>, targets: Cow<'a, Targets>) -> Result<Self> {
        loss.check_columns(&targets)?;
        Ok(match *loss {
            Loss::Ctc => Self::Ctc(Ctc::new(&targets)?),
            _ => Self::Transducer(TransducerObjective { loss, targets }),
        })
    }

    /// Utterances and their sites.
    pub fn sites(&self) -> &Targets {
        match self {
            Self::Transducer(transducer) => &transducer.targets,
            Self::Ctc(ctc) => ctc.frames(),
        }
    }

    /// How many columns there are, and how many of them, from the first, stand for tokens.
    pub fn width(&self) -> (usize, usize) {
        match self {
            Self::Transducer(transducer) => (transducer.columns(), transducer.targets.tokens()),
            Self::Ctc(ctc) => (ctc.most(), ctc.most()),
        }
    }

    /// The same for some of the utterances.
    pub fn part(&self, utterances: Range<usize>) -> LatticeObjective<'_> {
        match self {
            Self::Transducer(TransducerObjective { loss, targets }) => {
                let (loss, targets) = (Cow::Borrowed(&**loss), Cow::Owned(targets.part(utterances)));
                LatticeObjective::Transducer(TransducerObjective { loss, targets })
            }
            Self::Ctc(ctc) => LatticeObjective::Ctc(ctc.part(utterances)),
        }
    }

    /// What a head is asked for, in the vectors of another answer.
    pub fn selection(&self, role: Role, spare: Selection) -> Result<Selection> {
        match (role, self) {
            (Role::Blank | Role::Mean, _) => Ok(Selection::default()),
            (Role::Tokens, Self::Ctc(ctc)) => ctc.selection(spare),
            (Role::Tokens, Self::Transducer(TransducerObjective { loss, targets })) => {
                match loss.factors_blank() {
                    true => targets.next_labels(spare),
                    false => targets.selection(spare),
                }
            }
            (Role::Durations, _) => {
                let (columns, tokens) = self.width();
                let (sites, count) = (self.sites().lattices().sites(), columns - tokens);
                let (ids, active) = spare.into_parts();
                let (mut ids, mut active) =
                    (clear_with_capacity(ids, sites * count), clear_with_capacity(active, sites * count));
                (0..sites).for_each(|_| ids.extend(0..count as u32));
                active.resize(sites * count, true);
                Ok(Selection::new(ids, active, count)?)
            }
        }
    }

    /// How many entries of a site a head is asked for.
    pub fn selected(&self, role: Role) -> usize {
        let (columns, tokens) = self.width();
        match (role, self) {
            (Role::Blank | Role::Mean, _) => 0,
            (Role::Durations, _) => columns - tokens,
            (Role::Tokens, Self::Transducer(TransducerObjective { loss, .. })) if loss.factors_blank() => 1,
            (Role::Tokens, _) => tokens,
        }
    }

    /// Bytes of an utterance in a group: its labels and shapes anew, losses and weights.
    pub fn bytes_of(&self, utterance: usize) -> usize {
        match self {
            Self::Transducer(TransducerObjective { targets, .. }) => {
                let (frames, labels) = (targets.frames(utterance), targets.labels(utterance).len());
                let bands = if targets.lattices().is_full() { 0 } else { 64 + 8 * (frames + 1) };
                256 + 12 * labels + bands
            }
            Self::Ctc(ctc) => 512 + ctc.bytes_of(utterance),
        }
    }

    /// Bytes of all utterances beside the targets of the caller.
    pub fn bytes_of_call(&self) -> usize {
        match self {
            Self::Transducer(_) => 0,
            Self::Ctc(ctc) => (0..ctc.frames().batch()).map(|b| 256 + ctc.bytes_of(b)).sum(),
        }
    }

    /// Bytes of a lane for the sums over alignments of a group's utterances, for CTC.
    pub fn bytes_of_lane(&self, group: &Range<usize>) -> usize {
        match self {
            Self::Transducer(_) => 0,
            Self::Ctc(ctc) => ctc.lane(group.clone()).bytes(),
        }
    }

    /// Writes losses and the adjoints of the emissions, which arrive as 0, those of labels times their weights.
    pub fn sum(
        &self,
        emissions: &[f64],
        options: &Options,
        workspace: &mut LatticeWorkspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
        scratch: &mut [f64],
    ) -> Result<()> {
        let (regularisers, LatticeWorkspace { lattices, ctc: lanes, bytes }) =
            (options.regularisers(), workspace);
        match self {
            Self::Transducer(transducer) => {
                transducer.sum(emissions, &regularisers, lattices, losses, adjoints, scratch)
            }
            Self::Ctc(ctc) => ctc.sum(emissions, &regularisers, (lanes, *bytes), losses, adjoints),
        }
    }
}

/// SessionBuffers of a session for sums over paths, of either kind.
#[derive(Debug)]
pub(crate) struct LatticeWorkspace {
    lattices: rnnt_dp::Workspace,
    ctc: Vec<CtcLane>,
    /// Limit of the call at hand.
    bytes: usize,
}

impl LatticeWorkspace {
    /// Sets the limit of calls of a loss, and frees buffers of the other kind that exceed `left` bytes.
    ///
    /// Returns how many of those are left.
    pub fn keep_within(&mut self, bytes: usize, loss: &Loss, left: usize) -> usize {
        self.bytes = bytes;
        let (lattices, lanes) = if *loss == Loss::Ctc { (left, bytes) } else { (bytes, left) };
        self.lattices.set_budget(lattices);
        if self.lane_bytes() > lanes {
            self.ctc = Vec::new();
        }
        left - if *loss == Loss::Ctc { self.lattices.allocated_bytes() } else { self.lane_bytes() }
    }

    fn lane_bytes(&self) -> usize {
        self.ctc.iter().map(CtcLane::bytes).sum()
    }
}

impl Default for LatticeWorkspace {
    fn default() -> Self {
        Self { lattices: rnnt_dp::Workspace::with_budget(0), ctc: Vec::new(), bytes: 0 }
    }
}

/// Transducer lattices.
pub(crate) struct TransducerObjective<'a> {
    loss: Cow<'a, Loss>,
    targets: Cow<'a, Targets>,
}

impl TransducerObjective<'_> {
    fn topology(&self) -> Option<&Topology> {
        self.loss.topology()
    }

    fn columns(&self) -> usize {
        self.topology().map_or(0, Topology::columns)
    }

    fn sum(
        &self,
        emissions: &[f64],
        regularisers: &Regularizers,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
        scratch: &mut [f64],
    ) -> Result<()> {
        let Some(topology) = self.topology() else { return Ok(()) };
        let lattices = self.targets.lattices();
        workspace.forward_backward(lattices, topology, emissions, regularisers, losses, adjoints)?;
        if self.loss.omega() > 0.0 {
            let (tokens, of_tokens) = scratch[..4 * lattices.sites()].split_at_mut(2 * lattices.sites());
            let rows = tokens.chunks_exact_mut(2).zip(emissions.chunks_exact(topology.columns()));
            rows.for_each(|(tokens, row)| tokens.copy_from_slice(&row[..2]));
            self.mix((tokens, of_tokens), regularisers, workspace, losses, adjoints)?;
        }
        self.targets.weigh_tokens(adjoints, topology.columns());
        Ok(())
    }

    /// `(1 - ω) TDT + ω RNN-T`, the latter over the same tokens, without durations and σ: what NeMo draws at random, in its mean.
    fn mix(
        &self,
        (tokens, of_tokens): (&[f64], &mut [f64]),
        regularisers: &Regularizers,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let mut plain = vec![0.0; losses.len()];
        let regularisers = Regularizers { sigma: 0.0, ..*regularisers };
        let (lattices, topology, omega) = (self.targets.lattices(), Topology::rnnt(), self.loss.omega());
        workspace.forward_backward(lattices, &topology, tokens, &regularisers, &mut plain, of_tokens)?;
        for (loss, plain) in losses.iter_mut().zip(plain) {
            // 0 · inf
            *loss = if omega == 1.0 { plain } else { (1.0 - omega) * *loss + omega * plain };
        }
        let width = self.columns();
        let rows = adjoints.chunks_exact_mut(width);
        for (row, plain) in rows.zip(of_tokens.chunks_exact(2)) {
            row.iter_mut().for_each(|a| *a *= 1.0 - omega);
            row.iter_mut().zip(plain).for_each(|(a, plain)| *a += omega * plain);
        }
        // One of the two may have paths where the sum has none.
        for (utterance, _) in losses.iter().enumerate().filter(|(_, loss)| loss.is_infinite()) {
            let Range { start, end } = lattices.site_range(utterance);
            adjoints[start * width..end * width].fill(0.0);
        }
        Ok(())
    }
}
