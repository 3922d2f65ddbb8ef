//! Ready-made scores, as other toolkits' losses take them: a call over them, group by group as one over heads.
//!
//! Utterances lie one behind the other in either layout, so that a group is a run of rows.
use std::ops::Range;

use panda_core::Real;
use panda_core::scores;

use crate::{
    Element, Error, Gradients, Layout, Loss, Options, Output, Result, Scores, Session, Skipped, Targets,
    between::{Between, Rooms},
    budget::{OfScores, Sizes},
    ctc::Ctc,
    error::{expect_len, expect_rows},
    heads::{Answer, Role},
    objective::Objective,
};

/// Scores of a batch, for a sum over paths.
pub(crate) struct Call<'a> {
    objective: Objective<'a>,
    layout: Layout,
    classes: usize,
    /// D
    durations: usize,
}

/// Some utterances of it.
struct Group<'c> {
    call: &'c Call<'c>,
    objective: Objective<'c>,
    site_of_row: Vec<u32>,
}

impl<'a> Call<'a> {
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn new<F>(
        inputs: &Scores<F>,
        loss: &'a Loss,
        targets: &'a Targets,
        options: &Options,
    ) -> Result<Self> {
        let Scores { scores, classes, layout } = *inputs;
        crate::session::reject_pruned(loss)?;
        options.without_head()?;
        let objective = Objective::new(loss, targets)?;
        let layout = if *loss == Loss::Ctc { Ctc::layout(layout) } else { layout };
        layout.check(objective.sites())?;
        targets.check_classes(classes)?;
        let durations = loss.durations();
        let width = classes.saturating_add(durations);
        expect_rows("scores", layout.score_rows(objective.sites()), width, scores.len())?;
        Ok(Self { objective, layout, classes, durations })
    }

    /// What decides how many bytes the call takes.
    pub fn sizes<'s, F>(&'s self, options: &'s Options) -> Sizes<'s> {
        let float = size_of::<F>();
        // Maxima, log-sums and emissions of each role; rows of sites; scores of one role at a time where there are two.
        let of_role = |role| float + 8 + 8 * self.objective.selected(role);
        let site = 8 + self.roles().map(of_role).sum::<usize>();
        let apart = if self.durations > 0 { float * self.classes.max(self.durations) } else { 0 };
        let scores = Some(OfScores { layout: self.layout, row: 4 + apart, site });
        Sizes { objective: &self.objective, options, hidden: 0, classes: 0, listed: [0; 3], held: 0, scores }
    }

    /// Tokens, and durations if there are some.
    fn roles(&self) -> impl Iterator<Item = Role> + use<> {
        std::iter::once(Role::Tokens).chain((self.durations > 0).then_some(Role::Durations))
    }

    /// Columns of each row that belong to a role.
    fn columns(&self, role: usize) -> Range<usize> {
        if role == 0 { 0..self.classes } else { self.classes..self.classes + self.durations }
    }

    /// Scores of a role by themselves; none where they are all there is.
    fn apart<F: Real>(&self, scores: &[F], role: usize) -> Option<Vec<F>> {
        let (width, columns) = (self.classes + self.durations, self.columns(role));
        (self.durations > 0).then(|| {
            let mut apart = Vec::with_capacity(scores.len() / width * columns.len());
            scores.chunks_exact(width).for_each(|row| apart.extend_from_slice(&row[columns.clone()]));
            apart
        })
    }

    fn group(&self, utterances: Range<usize>) -> Group<'_> {
        let objective = self.objective.part(utterances);
        let site_of_row = self.layout.site_of_row(objective.sites());
        Group { call: self, objective, site_of_row }
    }

    fn all(&self) -> Group<'_> {
        self.group(0..self.objective.sites().batch())
    }

    /// Losses, and the gradient of their weighted sum written over the scores.
    fn sum<F: Real>(&self, session: &mut Session<F>, weights: &[f64], mut z: &mut [F]) -> Result<Vec<f64>> {
        let plan = self.sizes::<F>(&session.options).in_groups::<F>()?;
        session.keep_to(&plan, 0)?;
        let mut losses = Vec::with_capacity(weights.len());
        for utterances in plan.groups {
            let first = utterances.start;
            let group = self.group(utterances.clone());
            let entries = group.site_of_row.len() * (self.classes + self.durations);
            let own = z.split_off_mut(..entries).expect("scores of all rows were counted");
            let run = || {
                let between = group.forward(session, own)?;
                group.overwrite(session, between, &weights[utterances], own)
            };
            losses.extend(run().map_err(|error: Error| error.in_group(first))?);
        }
        Ok(losses)
    }
}

impl Group<'_> {
    /// Losses and adjoints.
    fn forward<F: Real>(&self, session: &mut Session<F>, z: &[F]) -> Result<Between<F>> {
        let Session { options, recursions, compact, .. } = session;
        let Self { call, objective, site_of_row } = self;
        let (sites, rooms) = (objective.sites().lattices().sites(), Rooms { recursions, compact });
        Between::new(call.roles(), objective, options, rooms, |head, selection| {
            let apart = call.apart(z, head);
            let z = apart.as_deref().unwrap_or(z);
            scores::forward(z, call.columns(head).len(), site_of_row, sites, selection)
        })
    }

    /// Writes the gradient over the scores.
    fn overwrite<F: Real>(
        &self,
        session: &mut Session<F>,
        mut between: Between<F>,
        weights: &[f64],
        z: &mut [F],
    ) -> Result<Vec<f64>> {
        let (Self { call, objective, site_of_row: of }, options) = (self, &session.options);
        between.adjoin(objective.sites().lattices(), options, weights, |head, answer, adjoints| {
            let Answer { selection, normalized, .. } = answer;
            let columns = call.columns(head);
            let Some(mut apart) = call.apart(z, head) else {
                return scores::backward_in_place(z, columns.len(), of, selection, normalized, adjoints);
            };
            scores::backward_in_place(&mut apart, columns.len(), of, selection, normalized, adjoints)?;
            let all = z.chunks_exact_mut(call.classes + call.durations);
            all.zip(apart.chunks_exact(columns.len()))
                .for_each(|(row, part)| row[columns.clone()].copy_from_slice(part));
            Ok(())
        })?;
        Ok(between.close(&mut [], &mut session.compact))
    }
}

/// Losses and adjoints of the whole batch.
pub(crate) fn forward<F: Real>(
    session: &mut Session<F>,
    inputs: &Scores<F>,
    targets: &Targets,
) -> Result<Between<F>> {
    let loss = session.options.loss.clone();
    let mut run = || {
        let call = Call::new(inputs, &loss, targets, &session.options)?;
        let plan = call.sizes::<F>(&session.options).whole::<F>()?;
        session.keep_to(&plan, 0)?;
        call.all().forward(session, inputs.scores)
    };
    run().map_err(|error: Error| error.of(&loss))
}

/// Their gradient, written over a copy of the scores.
pub(crate) fn backward<F: Real>(
    session: &mut Session<F>,
    inputs: &Scores<F>,
    targets: &Targets,
    between: Between<F>,
    weights: &[f64],
) -> Result<Output<F>> {
    let loss = session.options.loss.clone();
    let call = Call::new(inputs, &loss, targets, &session.options)?;
    let mut gradient = inputs.scores.to_vec();
    let losses = call.all().overwrite(session, between, weights, &mut gradient);
    Ok(output(losses.map_err(|error| error.of(&loss))?, gradient))
}

/// Losses and gradient, group after group, over a copy of the scores.
pub(crate) fn sum<F: Real>(
    session: &mut Session<F>,
    inputs: &Scores<F>,
    targets: &Targets,
    weights: &[f64],
) -> Result<Output<F>> {
    let loss = session.options.loss.clone();
    let mut run = || {
        let call = Call::new(inputs, &loss, targets, &session.options)?;
        call.sizes::<F>(&session.options).in_groups::<F>()?;
        let mut gradient = inputs.scores.to_vec();
        Ok(output(call.sum(session, weights, &mut gradient)?, gradient))
    };
    run().map_err(|error: Error| error.of(&loss))
}

fn output<F>(losses: Vec<f64>, scores: Vec<F>) -> Output<F> {
    let gradients = Gradients { scores, ..Gradients::default() };
    Output { losses, first_pass: None, gradients, skipped: Skipped::default() }
}

impl<F: Element> Session<F> {
    /// As [`Session::sum`] of [`Scores`], writing the gradient over the scores; returns the losses.
    ///
    /// # Shapes
    /// `scores` as [`Scores::scores`], `weights` *B*.
    ///
    /// # Errors
    /// As [`Session::sum`]; the scores are then untouched.
    ///
    /// # Cost
    /// O(N C) time; memory as [`Session::plan_whole`] says, nothing of the size of the scores unless the loss has durations.
    pub fn sum_in_place(
        &mut self,
        scores: &mut [F],
        (classes, layout): (usize, Layout),
        targets: &Targets,
        weights: &[f64],
    ) -> Result<Vec<f64>> {
        F::engine(self).sum_in_place(scores, (classes, layout), targets, weights)
    }
}

/// [`Session::sum_in_place`]
pub(crate) fn sum_in_place<F: Real>(
    session: &mut Session<F>,
    scores: &mut [F],
    (classes, layout): (usize, Layout),
    targets: &Targets,
    weights: &[f64],
) -> Result<Vec<f64>> {
    expect_len("weights", targets.batch(), weights.len())?;
    let loss = session.options.loss.clone();
    // All utterances at once, so that a mistake in the last is found before the first is overwritten.
    let between = forward(session, &Scores { scores: &*scores, classes, layout }, targets)?;
    let call = Call::new(&Scores { scores: &*scores, classes, layout }, &loss, targets, &session.options)?;
    let losses = call.all().overwrite(session, between, weights, scores);
    losses.map_err(|error| error.of(&loss))
}
