//! Ready-made scores, as other toolkits' losses take them.
use panda_core::Real;
use panda_core::scores;

use crate::{
    Element, Error, Gradients, Layout, Loss, Options, Output, Result, Scores, Session, Skipped, Targets,
    between::{Between, Rooms},
    budget::{CallPlan, Sizes},
    ctc::Ctc,
    error::expect_rows,
    heads::{Answer, Role},
    objective::Objective,
};

/// Where the scores of a batch lie.
struct Rows {
    site_of_row: Vec<u32>,
    classes: usize,
    /// D
    durations: usize,
}

impl Rows {
    fn new(
        len: usize,
        (classes, layout): (usize, Layout),
        loss: &Loss,
        objective: &Objective,
        targets: &Targets,
    ) -> Result<Self> {
        let layout = if *loss == Loss::Ctc { Ctc::layout(layout) } else { layout };
        layout.check(objective.sites())?;
        targets.check_classes(classes)?;
        let durations = loss.durations();
        let width = classes.saturating_add(durations);
        expect_rows("scores", layout.score_rows(objective.sites()), width, len)?;
        Ok(Self { site_of_row: layout.site_of_row(objective.sites()), classes, durations })
    }

    /// Tokens, and durations if there are some.
    fn roles(&self) -> impl Iterator<Item = Role> + use<> {
        std::iter::once(Role::Tokens).chain((self.durations > 0).then_some(Role::Durations))
    }

    /// Columns of each row that belong to a role.
    fn columns(&self, role: usize) -> std::ops::Range<usize> {
        if role == 0 { 0..self.classes } else { self.classes..self.classes + self.durations }
    }

    /// Scores of a role by themselves; none where they are all there is.
    fn apart<F: Real>(&self, scores: &[F], role: usize) -> Option<Vec<F>> {
        let width = self.classes + self.durations;
        let columns = self.columns(role);
        (self.durations > 0)
            .then(|| scores.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect())
    }
}

/// Losses and adjoints.
pub(crate) fn forward<F: Real>(
    session: &mut Session<F>,
    inputs: &Scores<F>,
    targets: &Targets,
) -> Result<Between<F>> {
    let Scores { scores: z, classes, layout } = *inputs;
    crate::session::reject_pruned(&session.options.loss)?;
    session.options.without_head()?;
    let mut run = || {
        session.keep_to(&plan(&session.options, inputs, targets)?, 0)?;
        let Session { options, recursions, compact, .. } = &mut *session;
        let loss = &options.loss;
        let objective = Objective::new(loss, targets)?;
        let rows = Rows::new(z.len(), (classes, layout), loss, &objective, targets)?;
        let sites = objective.sites().lattices().sites();
        Between::new(rows.roles(), &objective, options, Rooms { recursions, compact }, |head, selection| {
            let apart = rows.apart(z, head);
            let z = apart.as_deref().unwrap_or(z);
            scores::forward(z, rows.columns(head).len(), &rows.site_of_row, sites, selection)
        })
    };
    run().map_err(|error: Error| error.of(&session.options.loss))
}

/// Writes the gradient over the scores.
pub(crate) fn overwrite<F: Real>(
    session: &mut Session<F>,
    inputs: (usize, Layout),
    targets: &Targets,
    mut between: Between<F>,
    weights: &[f64],
    z: &mut [F],
) -> Result<Vec<f64>> {
    let options = &session.options;
    let loss = &options.loss;
    let objective = Objective::new(loss, targets)?;
    let rows = Rows::new(z.len(), inputs, loss, &objective, targets)?;
    let lattices = objective.sites().lattices();
    let outcome = between.adjoin(lattices, options, weights, |head, answer, adjoints| {
        let Answer { selection, normalized, .. } = answer;
        let (columns, of) = (rows.columns(head), &rows.site_of_row);
        let Some(mut apart) = rows.apart(z, head) else {
            return scores::backward_in_place(z, columns.len(), of, selection, normalized, adjoints);
        };
        scores::backward_in_place(&mut apart, columns.len(), of, selection, normalized, adjoints)?;
        let all = z.chunks_exact_mut(rows.classes + rows.durations);
        all.zip(apart.chunks_exact(columns.len()))
            .for_each(|(row, part)| row[columns.clone()].copy_from_slice(part));
        Ok(())
    });
    outcome.map_err(|error| error.of(loss))?;
    Ok(between.close(&mut [], &mut session.compact))
}

/// Losses and the gradient, written over a copy of the scores.
pub(crate) fn backward<F: Real>(
    session: &mut Session<F>,
    inputs: &Scores<F>,
    targets: &Targets,
    between: Between<F>,
    weights: &[f64],
) -> Result<Output<F>> {
    let mut gradient = inputs.scores.to_vec();
    let place = (inputs.classes, inputs.layout);
    let losses = overwrite(session, place, targets, between, weights, &mut gradient)?;
    let gradients = Gradients { scores: gradient, ..Gradients::default() };
    Ok(Output { losses, first_pass: None, gradients, skipped: Skipped::default() })
}

/// Bytes beside scores and results.
pub(crate) fn plan<F: Real>(options: &Options, inputs: &Scores<F>, targets: &Targets) -> Result<CallPlan> {
    let objective = Objective::new(&options.loss, targets)?;
    let Scores { scores, classes, .. } = *inputs;
    let durations = options.loss.durations();
    // Rows of sites and sites of rows; scores of one head at a time where there are two, and log-sums of each.
    let rows = scores.len() / (classes + durations).max(1);
    let apart = if durations > 0 { scores.len().saturating_mul(size_of::<F>()) } else { 0 };
    let sites = objective.sites().lattices().sites();
    let log_sums = (8 + size_of::<F>() + 8) * sites * if durations > 0 { 2 } else { 1 };
    let held = 4 * rows + log_sums + apart + 8 * objective.width().0 * sites;
    let sizes = Sizes { objective: &objective, options, hidden: 0, classes: 0, listed: [0; 3], held };
    sizes.without_heads()
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
    /// O(N C) time; nothing of the size of the scores, unless the loss has durations.
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
    crate::error::expect_len("weights", targets.batch(), weights.len())?;
    let between = forward(session, &Scores { scores, classes, layout }, targets)?;
    overwrite(session, (classes, layout), targets, between, weights, scores)
}
