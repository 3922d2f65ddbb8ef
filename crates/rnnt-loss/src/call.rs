//! A call over heads: inputs, brought together with their targets, forwards to losses and backwards to gradients.
//!
//! ```text
//! for each group of utterances:
//!     sites ──► normaliser of each head ──► between ──► normaliser of each head ──► gradients
//! ```
use std::ops::Range;

use panda_core::Real;
use panda_core::{Backward, Gradients as HeadGradients, Head, Sites};

use crate::{
    Error, Gradients, Joint, Layout, Loss, Options, Output, Result, Rows, Session, Skipped, Targets,
    between::{Between, Rooms},
    budget::Sizes,
    ctc::Ctc,
    error::expect_rows,
    heads::{Answer, Heads, Into, Role},
    joint_sites::{JointRows, JointSites},
    objective::Objective,
    row_sites::RowSites,
    sites::GroupSites,
};

/// Joint rows or hidden rows under heads, for a sum over paths.
pub(crate) struct Call<'a, F: Real> {
    pub objective: Objective<'a>,
    pub heads: Heads<'a, F>,
    source: Source<'a, F>,
}

enum Source<'a, F> {
    Joint(JointRows<'a, F>),
    Rows { hidden: &'a [F], width: usize, layout: Layout },
}

/// Some utterances of a call.
pub(crate) struct Group<'c, F> {
    sites: GroupSites<'c, F>,
    pub objective: Objective<'c>,
    heads: Vec<(Role, Head<'c, F>)>,
}

impl<'a, F: Real> Call<'a, F> {
    /// Rows that a joint network adds.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn joint(
        joint: &Joint<'a, F>,
        loss: &'a Loss,
        targets: &'a Targets,
        options: &Options,
    ) -> Result<Self> {
        let Joint { encoded, predicted, head, durations, dropout, layout } = *joint;
        if *loss == Loss::Ctc {
            return Err(Error::Inputs {
                expected: "rows or scores for CTC",
                found: "those of a joint network",
            });
        }
        options.check()?;
        targets.check_classes(head.classes())?;
        layout.check(targets)?;
        let (frames, labels, width) =
            (layout.frame_starts(targets), layout.label_starts(targets), head.hidden());
        expect_rows("encoded", frames.total(), width, encoded.len())?;
        expect_rows("predicted", labels.total(), width, predicted.len())?;
        let mask = dropout.map_or(Ok(None), |dropout| dropout.mask())?;
        let activation = options.activation;
        let source = Source::Joint(JointRows { encoded, predicted, width, frames, labels, activation, mask });
        let (objective, heads) =
            (Objective::new(loss, targets)?, Heads::new(head, durations, targets.blank(), options)?);
        Ok(Self { objective, heads, source })
    }

    /// Hidden rows, a site's or, for CTC, a frame's.
    ///
    /// # Errors
    /// As above.
    pub fn rows(rows: &Rows<'a, F>, loss: &'a Loss, targets: &'a Targets, options: &Options) -> Result<Self> {
        let Rows { hidden, head, durations, layout } = *rows;
        options.check()?;
        targets.check_classes(head.classes())?;
        let (objective, width) = (Objective::new(loss, targets)?, head.hidden());
        let layout = if *loss == Loss::Ctc { Ctc::layout(layout) } else { layout };
        layout.check(objective.sites())?;
        expect_rows("hidden", layout.score_rows(objective.sites()), width, hidden.len())?;
        let heads = Heads::new(head, durations, targets.blank(), options)?;
        Ok(Self { objective, heads, source: Source::Rows { hidden, width, layout } })
    }

    /// What decides how many bytes the call takes, beside those that are held on its behalf.
    pub fn sizes<'s>(&'s self, options: &'s Options, held: usize) -> Sizes<'s> {
        let listed = match &self.source {
            Source::Joint(rows) => JointSites::<F>::listed(rows.mask.is_some()),
            Source::Rows { layout, .. } => RowSites::<F>::listed(*layout),
        };
        let (hidden, classes) = (self.heads.hidden(), self.heads.classes());
        Sizes { objective: &self.objective, options, hidden, classes, listed, held, scores: None }
    }

    /// Losses and gradients, group after group.
    pub fn sum(&self, session: &mut Session<F>, weights: &[f64], held: usize) -> Result<Output<F>> {
        let plan = self.sizes(&session.options, held).in_groups::<F>()?;
        let mut into = self.zero()?;
        session.keep_to(&plan, into.len())?;
        let (mut losses, mut skipped) = (Vec::with_capacity(weights.len()), Skipped::default());
        for utterances in plan.groups {
            let first = utterances.start;
            let run = || {
                let group = self.group(utterances.clone(), session)?;
                let between = group.forward(session)?;
                group.backward(between, &weights[utterances], session, &mut into)
            };
            let (of_group, left_out) = run().map_err(|error: Error| error.in_group(first))?;
            losses.extend(of_group);
            skipped.add(left_out);
        }
        Ok(Output { losses, first_pass: None, gradients: self.name(into), skipped })
    }

    /// Losses of all utterances at once.
    pub fn forward(&self, session: &mut Session<F>, held: usize) -> Result<Between<F>> {
        let plan = self.sizes(&session.options, held).whole::<F>()?;
        session.keep_to(&plan, self.heads.list()?.len())?;
        let group = self.group(0..self.objective.sites().batch(), session)?;
        let between = group.forward(session)?;
        group.close(session);
        Ok(between)
    }

    /// Their gradients.
    pub fn backward(
        &self,
        session: &mut Session<F>,
        between: Between<F>,
        weights: &[f64],
    ) -> Result<Output<F>> {
        let (group, mut into) = (self.group(0..self.objective.sites().batch(), session)?, self.zero()?);
        let (losses, skipped) = group.backward(between, weights, session, &mut into)?;
        Ok(Output { losses, first_pass: None, gradients: self.name(into), skipped })
    }

    /// Some of the utterances, listed in vectors of the session.
    ///
    /// # Errors
    /// A row that holds an infinite value.
    pub fn group(&self, utterances: Range<usize>, session: &mut Session<F>) -> Result<Group<'_, F>> {
        let (targets, spare) = (self.objective.sites(), std::mem::take(&mut session.compact.rows));
        let sites = match &self.source {
            Source::Joint(rows) => {
                GroupSites::Joint(JointSites::new(rows, targets, utterances.clone(), spare)?)
            }
            Source::Rows { hidden, width, layout } => {
                let rows = RowSites::new(hidden, *width, *layout, targets, utterances.clone(), spare);
                GroupSites::Rows(rows)
            }
        };
        Ok(Group { sites, objective: self.objective.part(utterances), heads: self.heads.list()? })
    }

    /// Zero gradients: of each head of the list, and of the rows with the first.
    fn zero(&self) -> Result<Vec<Into<F>>> {
        let rows = match &self.source {
            Source::Joint(rows) => {
                vec![kernels::zeros(rows.encoded.len()), kernels::zeros(rows.predicted.len())]
            }
            Source::Rows { hidden, .. } => vec![kernels::zeros(hidden.len())],
        };
        let list = self.heads.list()?;
        let mut into: Vec<_> = list.iter().map(|(_, head)| HeadGradients::zero(Vec::new(), head)).collect();
        into[0].sites = rows;
        Ok(into)
    }

    /// The same under the names of the inputs.
    fn name(&self, mut into: Vec<Into<F>>) -> Gradients<F> {
        let rows = std::mem::take(&mut into[0].sites);
        let [head, durations] = self.heads.join(into);
        let mut gradients = Gradients { head, durations, ..Gradients::default() };
        let mut rows = rows.into_iter();
        let mut next = || rows.next().unwrap_or_default();
        match &self.source {
            Source::Joint(_) => (gradients.encoded, gradients.predicted) = (next(), next()),
            Source::Rows { .. } => gradients.hidden = next(),
        }
        gradients
    }
}

impl<F: Real> Group<'_, F> {
    /// Losses, and all that the other direction wants to know.
    pub fn forward(&self, session: &mut Session<F>) -> Result<Between<F>> {
        let Session { options, normalisers, recursions, compact, .. } = session;
        let (roles, rooms) = (self.heads.iter().map(|(role, _)| *role), Rooms { recursions, compact });
        Between::new(roles, &self.objective, options, rooms, |head, selection| {
            panda_core::forward(&self.sites, &self.heads[head].1, selection, &mut normalisers[head])
        })
    }

    /// Adds the gradients of `Σ_b weights[b] loss[b]`: those of each head to its own, that of the sites to the first one's.
    ///
    /// Returns the losses, and what was left out; all buffers are the session's again.
    pub fn backward(
        self,
        mut between: Between<F>,
        weights: &[f64],
        session: &mut Session<F>,
        into: &mut [Into<F>],
    ) -> Result<(Vec<f64>, Skipped)> {
        let Self { sites, objective, heads } = &self;
        let Session { options, normalisers, compact, .. } = session;
        let mut counted = 0;
        between.adjoin(objective.sites().lattices(), options, weights, |head, answer, adjoints| {
            let sum = std::mem::take(&mut into[0].sites);
            into[head].sites = sum;
            let Answer { selection, normalized, .. } = answer;
            let arguments = Backward { sites, head: &heads[head].1, selection, normalized, adjoints };
            let outcome = panda_core::backward(arguments, &mut normalisers[head], &mut into[head]);
            into[0].sites = std::mem::take(&mut into[head].sites);
            counted = counted.max(outcome?);
            Ok(())
        })?;
        let skipped = between.lost(weights).map_or_else(Skipped::default, |lost| {
            let largest = heads.iter().map(|(_, head)| head.largest_weight()).fold(0.0, f64::max);
            Skipped::new(lost, between.reach(), sites.largest(), sites.steepest() * largest)
        });
        let skipped = Skipped { zeros: sites.len() - counted - skipped.sites, ..skipped };
        let losses = between.close(normalisers, compact);
        self.close(session);
        Ok((losses, skipped))
    }

    /// Its lists are the session's again.
    pub fn close(self, session: &mut Session<F>) {
        session.compact.rows = self.sites.into_lists();
    }
}
