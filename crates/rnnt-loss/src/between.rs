//! What lies between the two directions: answers of heads, the sum over paths, adjoints of the answers.
use std::{borrow::Cow, ops::Range};

use kernels::reset;
use panda_core::Real;
use panda_core::{Adjoints, Clamp, Normalized, Selection};
use rnnt_dp::Lattices;

use crate::{
    Error, Options, Result,
    columns::{self, HeadAdjoints},
    compact::{Compact, cut},
    error::expect_len,
    heads::{Answer, Role},
    objective::{Objective, Recursions},
    skip::{Lost, skip},
    smoothing::{add_z_loss, smooth, unsmooth, z_loss_adjoints},
};

/// A few numbers a site, and the scores that the budget has room for.
pub(crate) struct Between<F> {
    /// Columns, and those of tokens.
    width: (usize, usize),
    /// Of each head, the tokens' first.
    answers: Vec<Answer<F>>,
    losses: Vec<f64>,
    /// Adjoints of the columns, *N x S*, and room for what is made of them.
    numbers: Vec<f64>,
    /// N S
    entries: usize,
    skipped: Vec<Lost>,
}

/// What a session has for it.
pub(crate) struct Rooms<'s> {
    pub recursions: &'s mut Recursions,
    pub compact: &'s mut Compact,
}

/// How many numbers a site has here, of so many columns; both directions use the same room beside the adjoints.
pub(crate) fn numbers(columns: usize, options: &Options) -> usize {
    let (loss, one) = (&options.loss, usize::from);
    let (durations, factored, smooths) = (loss.durations() > 0, loss.factors_blank(), options.smooths());
    let mixed = if durations || factored || smooths { columns } else { 0 };
    let forward = mixed + if loss.omega() > 0.0 { 4 } else { 0 };
    let apart = if durations { columns } else { 2 * one(factored) };
    let backward = one(options.clamp.is_some()) + 2 * one(smooths) + one(options.z_loss > 0.0) + apart;
    columns + forward.max(backward)
}

impl<F: Real> Between<F> {
    /// Losses and adjoints; `normalise` is asked for each head.
    pub fn new(
        roles: impl Iterator<Item = Role>,
        objective: &Objective,
        options: &Options,
        rooms: Rooms,
        mut normalise: impl FnMut(usize, &Selection) -> panda_core::Result<Normalized<F>>,
    ) -> Result<Self> {
        let (lattices, width) = (objective.sites().lattices(), objective.width());
        let Rooms { recursions, compact } = rooms;
        let mut answers = Vec::with_capacity(3);
        for (head, role) in roles.enumerate() {
            let selection = objective.selection(role, compact.selection(head))?;
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
        let (sites, entries) = (lattices.sites(), lattices.sites() * width.0);
        let mut numbers =
            reset(std::mem::take(&mut compact.numbers), sites * self::numbers(width.0, options), 0.0);
        let mut losses = vec![0.0; lattices.batch()];
        let (adjoints, mut room) = numbers.split_at_mut(entries);
        let emissions = if columns::mixes(&answers) || options.smooths() {
            let emissions = cut(&mut room, entries);
            columns::write(&answers, emissions);
            if let ([all, .., mean], true) = (answers.as_slice(), options.smooths()) {
                let (all, mean) = (&all.normalized, &mean.normalized);
                smooth(emissions, width, options.label_smoothing, all, mean);
            }
            &*emissions
        } else {
            &answers[0].normalized.emissions
        };
        objective.sum(emissions, options, recursions, &mut losses, adjoints, room)?;
        if options.z_loss > 0.0 {
            add_z_loss(&mut losses, options.z_loss, &answers[0].normalized, lattices)?;
        }
        let skipped = match options.skip > 0.0 {
            true => skip(lattices, width, adjoints, options.skip),
            false => Vec::new(),
        };
        Ok(Self { width, answers, losses, numbers, entries, skipped })
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
        &self.numbers[..self.entries]
    }

    /// What all utterances lose together under their weights, if anything may be left out.
    pub fn lost(&self, weights: &[f64]) -> Option<Lost> {
        (!self.skipped.is_empty()).then(|| Lost::weighted(&self.skipped, weights))
    }

    /// By how much the gradients of a site's scores can exceed the sum of its adjoints.
    pub fn reach(&self) -> f64 {
        columns::reach(&self.answers)
    }

    /// Hands the weighted adjoints of each head to a backward pass; once.
    pub fn adjoin(
        &mut self,
        lattices: &Lattices,
        options: &Options,
        weights: &[f64],
        mut backward: impl FnMut(usize, &Answer<F>, &Adjoints) -> panda_core::Result<()>,
    ) -> Result<()> {
        let Self { width, answers, losses, numbers, entries, .. } = self;
        expect_len("weights", lattices.batch(), weights.len())?;
        // An impossible utterance has no gradient, whatever an infinite loss has become above: 0 · inf would be NaN.
        let possible = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(&*losses).map(possible).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::Weight { utterance, found: weights[utterance] });
        }
        let sites = lattices.sites();
        let (emissions, mut room) = numbers.split_at_mut(*entries);
        // A clamp acts on the gradient of the unweighted loss, so that the weights have to wait.
        let clamp = options.clamp.map(|limit| {
            let at_sites = cut(&mut room, sites);
            weights.iter().enumerate().for_each(|(b, weight)| at_sites[lattices.range(b)].fill(*weight));
            Clamp { limit, weights: at_sites }
        });
        if clamp.is_none() {
            let (columns, _) = *width;
            for (utterance, weight) in weights.iter().enumerate() {
                let Range { start, end } = lattices.range(utterance);
                emissions[start * columns..end * columns].iter_mut().for_each(|a| *a *= weight);
            }
        }
        let of_means = options.smooths().then(|| {
            let of_means = cut(&mut room, sites);
            unsmooth(emissions, *width, options.label_smoothing, of_means);
            of_means
        });
        let mut adjoints = columns::adjoints(answers, emissions, &mut room);
        if of_means.is_some() || options.z_loss > 0.0 {
            let log_z = cut(&mut room, sites);
            match &of_means {
                Some(of_means) => log_z.iter_mut().zip(&**of_means).for_each(|(z, mean)| *z = -mean),
                None => log_z.fill(0.0),
            }
            let factor = |utterance: usize| match clamp {
                // As above; there is no gradient without a path.
                Some(_) => 1.0,
                None => weights[utterance],
            };
            z_loss_adjoints(log_z, options.z_loss, &answers[0].normalized, lattices, factor);
            adjoints[0].log_z = Some(log_z);
        }
        adjoints.extend(of_means.map(|log_z| HeadAdjoints { emissions: &[], log_z: Some(log_z) }));
        for (head, (answer, of)) in answers.iter().zip(&adjoints).enumerate() {
            let adjoints = Adjoints { emissions: of.emissions, log_z: of.log_z.as_deref(), clamp };
            backward(head, answer, &adjoints).map_err(|error| Error::at_site(error, lattices))?;
        }
        Ok(())
    }

    /// Nobody needs more than the losses: what they were made with is the session's again.
    pub fn close(self, normalisers: &mut [panda_core::Workspace<F>], compact: &mut Compact) -> Vec<f64> {
        let mut normalisers = normalisers.iter_mut();
        for (head, Answer { selection, normalized, .. }) in self.answers.into_iter().enumerate() {
            compact.keep_selection(head, selection);
            if let Some(workspace) = normalisers.next() {
                workspace.recycle(normalized);
            }
        }
        compact.numbers = self.numbers;
        self.losses
    }
}
