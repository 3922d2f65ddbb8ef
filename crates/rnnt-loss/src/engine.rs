//! The engine behind every door: normaliser forward, lattice, normaliser backward.
use std::{borrow::Cow, ops::Range};

use kernels::Real;
use panda_core::{Adjoints, Backward, Clamp, Head, Normalized, Selection, Sites};
use rnnt_dp::Lattices;

use crate::{
    Error, Options, Result, Session, Skipped,
    columns::{self, HeadAdjoints},
    error::expect_len,
    heads::{Answer, Into, Role},
    objective::Objective,
    sites::GroupSites,
    skip::{Lost, skip},
    smoothing::{add_z_loss, smooth, unsmooth, z_loss_adjoints},
};

/// What lies between the two directions: a few numbers a site, and the scores that the budget has room for.
pub(crate) struct Forward<F> {
    /// Columns, and those of tokens.
    width: (usize, usize),
    /// Of each head, the tokens' first.
    answers: Vec<Answer<F>>,
    losses: Vec<f64>,
    adjoints: Vec<f64>,
    skipped: Vec<Lost>,
}

/// The heads of a call by their roles.
pub(crate) type HeadList<'a, F> = [(Role, Head<'a, F>)];

impl<F: Real> Forward<F> {
    /// Losses and adjoints from hidden rows and heads.
    pub fn new(
        sites: &GroupSites<F>,
        heads: &HeadList<F>,
        objective: &Objective,
        session: &mut Session<F>,
    ) -> Result<Self> {
        let Session { options, normalisers, lattices, lattice_bytes } = session;
        let lattices = (lattices, *lattice_bytes);
        let roles = heads.iter().map(|(role, _)| *role);
        Self::from_normaliser(roles, objective, options, lattices, |head, selection| {
            panda_core::forward(sites, &heads[head].1, selection, &mut normalisers[head])
        })
    }

    /// The same, with log-probabilities from elsewhere; `normalise` is asked for each head.
    pub fn from_normaliser(
        roles: impl Iterator<Item = Role>,
        objective: &Objective,
        options: &Options,
        workspace: (&mut rnnt_dp::Workspace, usize),
        mut normalise: impl FnMut(usize, &Selection) -> panda_core::Result<Normalized<F>>,
    ) -> Result<Self> {
        let (lattices, width) = (objective.sites().lattices(), objective.width());
        let mut answers = Vec::with_capacity(3);
        for (head, role) in roles.enumerate() {
            let selection = objective.selection(role)?;
            let normalized = normalise(head, &selection).map_err(|error| {
                let masked = match role {
                    Role::Mean => "-inf for a class, which has no share to be smoothed",
                    Role::Blank => "-inf for the blank alone",
                    Role::Tokens | Role::Durations => "-inf for every class",
                };
                Error::at_site(error, lattices).masked(masked)
            })?;
            answers.push(Answer { role, selection, normalized });
        }
        let mut emissions = columns::emissions(&answers);
        if options.smooths()
            && let [all, .., mean] = answers.as_slice()
        {
            let (all, mean) = (&all.normalized, &mean.normalized);
            smooth(emissions.to_mut(), width, options.label_smoothing, all, mean);
        }
        let (mut losses, mut adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
        objective.sum(&emissions, options, workspace, &mut losses, &mut adjoints)?;
        if options.z_loss > 0.0 {
            add_z_loss(&mut losses, options.z_loss, &answers[0].normalized, lattices)?;
        }
        let skipped = match options.skip > 0.0 {
            true => skip(lattices, width, &mut adjoints, options.skip),
            false => Vec::new(),
        };
        drop(emissions);
        Ok(Self { width, answers, losses, adjoints, skipped })
    }

    /// Loss of each utterance.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Emissions of all sites, before smoothing.
    pub fn emissions(&self) -> Cow<'_, [f64]> {
        columns::emissions(&self.answers)
    }

    /// Adjoints of the emissions, not yet weighted by utterance.
    pub fn adjoints(&self) -> &[f64] {
        &self.adjoints
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`: those of each head to its own, that of the sites to the first one's.
    ///
    /// Returns the losses, and what was left out; kept scores are the session's again.
    pub fn backward(
        self,
        sites: &GroupSites<F>,
        heads: &HeadList<F>,
        lattices: &Lattices,
        weights: &[f64],
        session: &mut Session<F>,
        into: &mut [Into<F>],
    ) -> Result<(Vec<f64>, Skipped)> {
        let Session { options, normalisers, .. } = session;
        let (lost, reach) = (self.lost(weights), columns::reach(&self.answers));
        let mut counted = 0;
        let losses = self.with_adjoints(lattices, options, weights, |head, answer, adjoints| {
            let sum = std::mem::take(&mut into[0].sites);
            into[head].sites = sum;
            let Answer { selection, normalized, .. } = &mut *answer;
            let normaliser = &mut normalisers[head];
            let arguments = Backward { sites, head: &heads[head].1, selection, normalized, adjoints };
            let outcome = panda_core::backward(arguments, normaliser, &mut into[head]);
            into[0].sites = std::mem::take(&mut into[head].sites);
            counted = counted.max(outcome?);
            normalized.release(normaliser);
            Ok(())
        })?;
        let skipped = match lost {
            None => Skipped::default(),
            Some(lost) => {
                let largest = heads.iter().map(|(_, head)| head.largest_weight()).fold(0.0, f64::max);
                Skipped::new(lost, reach, sites.largest(), sites.steepest() * largest)
            }
        };
        Ok((losses, Skipped { zeros: sites.len() - counted - skipped.sites, ..skipped }))
    }

    /// What all utterances lose together under their weights, if anything may be left out.
    fn lost(&self, weights: &[f64]) -> Option<Lost> {
        (!self.skipped.is_empty()).then(|| Lost::weighted(&self.skipped, weights))
    }

    /// Hands the weighted adjoints of each head to a backward pass; returns the losses.
    pub fn with_adjoints(
        self,
        lattices: &Lattices,
        options: &Options,
        weights: &[f64],
        mut backward: impl FnMut(usize, &mut Answer<F>, &Adjoints) -> panda_core::Result<()>,
    ) -> Result<Vec<f64>> {
        let Self { width, mut answers, losses, adjoints: mut emissions, .. } = self;
        expect_len("weights", lattices.batch(), weights.len())?;
        // An impossible utterance has no gradient, whatever an infinite loss has become above: 0 · inf would be NaN.
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(&losses).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        // A clamp acts on the gradient of the unweighted loss, so that the weights have to wait.
        let at_sites = options.clamp.map(|_| at_sites(lattices, &weights));
        if at_sites.is_none() {
            let (columns, _) = width;
            for (utterance, weight) in weights.iter().enumerate() {
                let Range { start, end } = lattices.range(utterance);
                emissions[start * columns..end * columns].iter_mut().for_each(|a| *a *= weight);
            }
        }
        let clamp = options.clamp.zip(at_sites.as_ref()).map(|(limit, weights)| Clamp { limit, weights });
        let of_means = options.smooths().then(|| unsmooth(&mut emissions, width, options.label_smoothing));
        let mut adjoints = columns::adjoints(&answers, emissions);
        if of_means.is_some() || options.z_loss > 0.0 {
            let mut log_z = vec![0.0; lattices.sites()];
            if let Some(of_means) = &of_means {
                log_z.iter_mut().zip(of_means).for_each(|(z, mean)| *z -= mean);
            }
            let factor = |utterance: usize| match clamp {
                // As above; there is no gradient without a path.
                Some(_) => 1.0,
                None => weights[utterance],
            };
            z_loss_adjoints(&mut log_z, options.z_loss, &answers[0].normalized, lattices, factor);
            adjoints[0].log_z = Some(log_z);
        }
        adjoints.extend(of_means.map(|log_z| HeadAdjoints { emissions: Vec::new(), log_z: Some(log_z) }));
        for (head, (answer, of)) in answers.iter_mut().zip(&adjoints).enumerate() {
            let adjoints = Adjoints { emissions: &of.emissions, log_z: of.log_z.as_deref(), clamp };
            backward(head, answer, &adjoints).map_err(|error| Error::at_site(error, lattices))?;
        }
        Ok(losses)
    }

    /// Losses, emissions and adjoints are read; lets go of kept scores, whose room is the session's again.
    pub fn release(&mut self, session: &mut Session<F>) {
        let pairs = self.answers.iter_mut().zip(&mut session.normalisers);
        pairs.for_each(|(answer, workspace)| answer.normalized.release(workspace));
    }
}

/// A value for each utterance, repeated at its sites.
fn at_sites(lattices: &Lattices, values: &[f64]) -> Vec<f64> {
    let mut out = Vec::with_capacity(lattices.sites());
    for (b, value) in values.iter().enumerate() {
        out.extend(std::iter::repeat_n(*value, lattices.range(b).len()));
    }
    out
}
