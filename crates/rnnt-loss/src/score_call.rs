//! Loss and gradient from scores (logits), as in other toolkits.
//!
//! A row has the scores of one site: a lattice node (t, u), or for CTC a frame. Utterances are
//! consecutive in packed and padded layouts, so that a group of utterances is a range of rows.
use std::{borrow::Cow, ops::Range};

use kernels::ScratchReq;
use panda_core::Real;
use panda_core::scores;

use crate::{
    Error, Gradients, Layout, Loss, LossOutput, Options, Result, ScoreInputs, SkippedSites, Targets,
    budget::{CallSizes, SessionBuffers},
    ctc::Ctc,
    error::expect_rows,
    heads::{HeadOutput, Role},
    lattice_state::{ForwardPass, LatticeState},
    objective::LatticeObjective,
    site_buffers::SiteIndices,
};

/// A checked call over scores; the values are arguments of each pass.
pub(crate) struct ScoreCall<'t> {
    objective: LatticeObjective<'t>,
    layout: Layout,
    classes: usize,
    /// Number of durations D.
    durations: usize,
}

impl<'t> ScoreCall<'t> {
    /// Checks the scores of a batch.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub fn new<F>(
        inputs: &ScoreInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let ScoreInputs { scores, classes, layout } = *inputs;
        options.check_without_head()?;
        let (durations, layout) =
            (loss.durations(), if *loss == Loss::Ctc { Ctc::layout(layout) } else { layout });
        let in_range = targets.check_classes(classes);
        let objective = LatticeObjective::new(loss, targets)?;
        layout.check(objective.sites())?;
        in_range?;
        let width = classes.saturating_add(durations);
        expect_rows("scores", layout.score_rows(objective.sites()), width, scores.len())?;
        Ok(Self { objective, layout, classes, durations })
    }

    /// Sizes that determine the bytes of the call.
    pub fn sizes<'s, F>(&'s self, options: &'s Options) -> CallSizes<'s> {
        let float = size_of::<F>();
        // Maxima, log-sums and emissions of each role; rows of sites; with durations, scores of one
        // role.
        let role_bytes = |role| float + 8 + 8 * self.objective.selected(role);
        let site = 8 + self.roles().map(role_bytes).sum::<usize>();
        let copy = if self.durations > 0 { float * self.classes.max(self.durations) } else { 0 };
        let scratch = move |utterances: usize, sites: usize| {
            let rows = match self.layout {
                Layout::Packed => sites,
                Layout::Padded { frames, positions } => utterances * frames * positions,
            };
            let row_scratch = ScratchReq::from_bytes(4 + copy).times(rows);
            row_scratch.and(ScratchReq::from_bytes(site).times(sites))
        };
        let scores: Option<Box<dyn Fn(usize, usize) -> ScratchReq>> = Some(Box::new(scratch));
        CallSizes {
            objective: &self.objective,
            options,
            hidden: 0,
            classes: 0,
            indices: [0; 3],
            held: 0,
            scores,
        }
    }

    /// Roles of the columns: tokens, and durations if the loss has them.
    fn roles(&self) -> impl Iterator<Item = Role> + use<> {
        std::iter::once(Role::Tokens).chain((self.durations > 0).then_some(Role::Durations))
    }

    /// Columns of each row that belong to a role.
    fn columns(&self, role: Role) -> Range<usize> {
        match role {
            Role::Durations => self.classes..self.classes + self.durations,
            _ => 0..self.classes,
        }
    }

    /// Copies the scores of a role; none without durations.
    fn scores_of<F: Real>(&self, scores: &[F], role: Role) -> Option<Vec<F>> {
        let (width, columns) = (self.classes + self.durations, self.columns(role));
        (self.durations > 0).then(|| {
            let mut copy = Vec::with_capacity(scores.len() / width * columns.len());
            scores.chunks_exact(width).for_each(|row| copy.extend_from_slice(&row[columns.clone()]));
            copy
        })
    }

    /// Computes losses and gradient, one group at a time.
    ///
    /// The gradient is computed in a copy of the scores.
    pub fn sum<F: Real>(
        &self,
        z: &[F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let plan = self.sizes::<F>(options).in_groups::<F>()?;
        let mut gradient = z.to_vec();
        buffers.apply_plan(&plan, 0, options)?;
        let (mut losses, mut rest) = (Vec::with_capacity(weights.len()), &mut *gradient);
        for utterances in plan.groups {
            let (first, objective) = (utterances.start, self.objective.part(utterances.clone()));
            let site_of_row = self.layout.site_of_row(objective.sites());
            let entries = site_of_row.len() * (self.classes + self.durations);
            let z = rest.split_off_mut(..entries).expect("scores of all rows were counted");
            let run = || {
                let state = self.forward_group(&objective, &site_of_row, z, options, buffers)?;
                self.backward_group(
                    (&objective, &site_of_row),
                    state,
                    &weights[utterances],
                    z,
                    options,
                    buffers,
                )
            };
            losses.extend(run().map_err(|error: Error| error.in_group(first))?);
        }
        Ok(output(losses, gradient))
    }

    /// Computes the losses of the batch, and the site of each row.
    pub fn forward<F: Real>(
        &self,
        z: &[F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<ForwardPass<F>> {
        let plan = self.sizes::<F>(options).all_at_once::<F>()?;
        buffers.apply_plan(&plan, 0, options)?;
        let first = self.layout.site_of_row(self.objective.sites());
        let state = self.forward_group(&self.objective, &first, z, options, buffers)?;
        Ok((SiteIndices { first, ..SiteIndices::default() }, state))
    }

    /// Computes the gradient in a copy of the scores.
    pub fn backward<F: Real>(
        &self,
        built: ForwardPass<F>,
        z: &[F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let mut gradient = z.to_vec();
        let losses = self.backward_in_place(built, &mut gradient, weights, options, buffers)?;
        Ok(output(losses, gradient))
    }

    /// Computes the gradient in place: it overwrites the scores `z`.
    pub fn backward_in_place<F: Real>(
        &self,
        (indices, state): ForwardPass<F>,
        z: &mut [F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Vec<f64>> {
        self.backward_group((&self.objective, &indices.first), state, weights, z, options, buffers)
    }

    fn forward_group<F: Real>(
        &self,
        objective: &LatticeObjective,
        site_of_row: &[u32],
        z: &[F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LatticeState<F>> {
        let (lattices, mut outputs) = (objective.sites().lattices(), Vec::with_capacity(3));
        for (index, role) in self.roles().enumerate() {
            let selection = objective.selection(role, buffers.sites.take_selection(index))?;
            let copy = self.scores_of(z, role);
            let (z, classes) = (copy.as_deref().unwrap_or(z), self.columns(role).len());
            let normalized = scores::forward(z, classes, site_of_row, lattices.sites(), &selection)
                .map_err(|error| role.error(error, lattices))?;
            outputs.push(HeadOutput { role, selection, normalized });
        }
        LatticeState::forward(outputs, objective, options, buffers)
    }

    fn backward_group<F: Real>(
        &self,
        (objective, site_of_row): (&LatticeObjective, &[u32]),
        mut state: LatticeState<F>,
        weights: &[f64],
        z: &mut [F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Vec<f64>> {
        let lattices = objective.sites().lattices();
        for (HeadOutput { role, selection, normalized }, adjoints) in
            state.backward(lattices, options, weights)?
        {
            let (columns, mut copy) = (self.columns(*role), self.scores_of(z, *role));
            let role_scores = copy.as_deref_mut().unwrap_or(&mut *z);
            scores::backward_in_place(
                role_scores,
                columns.len(),
                site_of_row,
                selection,
                normalized,
                &adjoints,
            )
            .map_err(|error| Error::at_site(error, lattices))?;
            if let Some(copy) = copy {
                let rows = z.chunks_exact_mut(self.classes + self.durations);
                rows.zip(copy.chunks_exact(columns.len()))
                    .for_each(|(row, part)| row[columns.clone()].copy_from_slice(part));
            }
        }
        Ok(state.release(buffers))
    }
}

fn output<F>(losses: Vec<f64>, scores: Vec<F>) -> LossOutput<F> {
    let gradients = Gradients { scores, ..Gradients::default() };
    LossOutput { losses, first_pass: None, gradients, skipped: SkippedSites::default() }
}
