//! What the sites of a batch are asked for, and the sums over paths that the answers go into.
use std::{borrow::Cow, ops::Range};

use panda_core::Selection;
use rnnt_dp::{Regularisers, Topology};

use crate::{Options, Result, Targets, columns::Columns};

/// A sum over paths, of some utterances.
pub(crate) trait Objective {
    /// Utterances and their sites.
    fn sites(&self) -> &Targets;
    /// What the emissions are made of.
    fn columns(&self) -> Columns;
    /// How many columns there are under some options, and how many of them, from the first, stand for tokens.
    fn width(&self, options: &Options) -> (usize, usize);
    /// Bytes of a site beside its scores: normaliser, selection, rows, lattice and adjoints.
    fn bytes(&self) -> usize;
    /// The same for some of the utterances.
    fn part(&self, utterances: Range<usize>) -> Self;
    /// Fails for options that do not fit.
    fn check(&self, options: &Options) -> Result<()>;
    /// What each head is asked for.
    fn selections(&self) -> Result<Vec<Selection>>;
    /// Writes losses and the adjoints of the emissions, those of labels times their weights.
    fn sum(
        &self,
        emissions: &[f64],
        options: &Options,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()>;
}

/// Transducer lattices.
pub(crate) struct Transducer<'a> {
    targets: Cow<'a, Targets>,
    columns: Columns,
}

impl<'a> Transducer<'a> {
    pub fn new(targets: &'a Targets, columns: Columns) -> Self {
        Self { targets: Cow::Borrowed(targets), columns }
    }
}

impl Objective for Transducer<'_> {
    fn sites(&self) -> &Targets {
        &self.targets
    }

    fn columns(&self) -> Columns {
        self.columns
    }

    fn width(&self, options: &Options) -> (usize, usize) {
        (options.topology.columns(), self.targets.tokens())
    }

    fn bytes(&self) -> usize {
        // A column more is an id, a mark, an emission, its adjoint and a copy of that.
        128 + 32 * (self.targets.tokens() - 2 + self.columns.durations())
    }

    fn part(&self, utterances: Range<usize>) -> Self {
        Self { targets: Cow::Owned(self.targets.part(utterances)), columns: self.columns }
    }

    fn check(&self, options: &Options) -> Result<()> {
        self.columns.check(&self.targets, options)
    }

    fn selections(&self) -> Result<Vec<Selection>> {
        self.columns.selections(&self.targets)
    }

    fn sum(
        &self,
        emissions: &[f64],
        options: &Options,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let (lattices, topology) = (self.targets.lattices(), &options.topology);
        let regularisers = options.regularisers();
        workspace.forward_backward(lattices, topology, emissions, &regularisers, losses, adjoints)?;
        if options.omega > 0.0 && matches!(self.columns, Columns::TokensAndDurations(_)) {
            let rows = emissions.chunks_exact(topology.columns());
            let tokens: Vec<f64> = rows.flat_map(|row| &row[..2]).copied().collect();
            self.mix(&tokens, options, workspace, losses, adjoints)?;
        }
        self.targets.weigh_tokens(adjoints, topology.columns());
        Ok(())
    }
}

impl Transducer<'_> {
    /// `(1 - ω) TDT + ω RNN-T`, the latter over the same tokens, without durations and σ: what NeMo draws at random, in its mean.
    fn mix(
        &self,
        tokens: &[f64],
        options: &Options,
        workspace: &mut rnnt_dp::Workspace,
        losses: &mut [f64],
        adjoints: &mut [f64],
    ) -> Result<()> {
        let (mut plain, mut of_tokens) = (vec![0.0; losses.len()], vec![0.0; tokens.len()]);
        let regularisers = Regularisers { sigma: 0.0, ..options.regularisers() };
        let (lattices, topology, omega) = (self.targets.lattices(), Topology::rnnt(), options.omega);
        workspace.forward_backward(lattices, &topology, tokens, &regularisers, &mut plain, &mut of_tokens)?;
        for (loss, plain) in losses.iter_mut().zip(plain) {
            // 0 · inf
            *loss = if omega == 1.0 { plain } else { (1.0 - omega) * *loss + omega * plain };
        }
        let width = options.topology.columns();
        let rows = adjoints.chunks_exact_mut(width);
        for (row, plain) in rows.zip(of_tokens.chunks_exact(2)) {
            row.iter_mut().for_each(|a| *a *= 1.0 - omega);
            row.iter_mut().zip(plain).for_each(|(a, plain)| *a += omega * plain);
        }
        // One of the two may have paths where the sum has none.
        for (utterance, _) in losses.iter().enumerate().filter(|(_, loss)| loss.is_infinite()) {
            let Range { start, end } = lattices.range(utterance);
            adjoints[start * width..end * width].fill(0.0);
        }
        Ok(())
    }
}
