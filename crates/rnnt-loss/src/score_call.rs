//! Ready-made scores, as other toolkits' losses take them: a call over them, group by group as one over heads.
//!
//! Utterances lie one behind the other in either layout, so that a group is a run of rows.
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
    lattice_state::{Built, LatticeState},
    objective::LatticeObjective,
    site_buffers::SiteIndices,
};

/// Checked scores of a batch, for a sum over paths. The values come with each direction.
pub(crate) struct ScoreCall<'t> {
    objective: LatticeObjective<'t>,
    layout: Layout,
    classes: usize,
    /// D
    durations: usize,
}

impl<'t> ScoreCall<'t> {
    /// # Errors
    /// Shapes, classes, options or targets that do not fit together.
    pub fn new<F>(
        inputs: &ScoreInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let ScoreInputs { scores, classes, layout } = *inputs;
        options.without_head()?;
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

    /// CallSizes that decide the bytes of the call.
    pub fn sizes<'s, F>(&'s self, options: &'s Options) -> CallSizes<'s> {
        let float = size_of::<F>();
        // Maxima, log-sums and emissions of each role; rows of sites; scores of one role at a time where there are two.
        let of_role = |role| float + 8 + 8 * self.objective.selected(role);
        let site = 8 + self.roles().map(of_role).sum::<usize>();
        let apart = if self.durations > 0 { float * self.classes.max(self.durations) } else { 0 };
        let scratch = move |utterances: usize, sites: usize| {
            let rows = match self.layout {
                Layout::Packed => sites,
                Layout::Padded { frames, positions } => utterances * frames * positions,
            };
            let of_rows = ScratchReq::from_bytes(4 + apart).times(rows);
            of_rows.and(ScratchReq::from_bytes(site).times(sites))
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

    /// TokenNormalization, and durations if there are some.
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

    /// A copy of the scores of a role; none where there is only one.
    fn scores_of<F: Real>(&self, scores: &[F], role: Role) -> Option<Vec<F>> {
        let (width, columns) = (self.classes + self.durations, self.columns(role));
        (self.durations > 0).then(|| {
            let mut copy = Vec::with_capacity(scores.len() / width * columns.len());
            scores.chunks_exact(width).for_each(|row| copy.extend_from_slice(&row[columns.clone()]));
            copy
        })
    }

    /// Losses, and the gradient of their weighted sum, group after group, written over a copy of the scores.
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

    /// Losses of the whole batch, and the site of each row.
    pub fn forward<F: Real>(
        &self,
        z: &[F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Built<F>> {
        let plan = self.sizes::<F>(options).whole::<F>()?;
        buffers.apply_plan(&plan, 0, options)?;
        let first = self.layout.site_of_row(self.objective.sites());
        let state = self.forward_group(&self.objective, &first, z, options, buffers)?;
        Ok((SiteIndices { first, ..SiteIndices::default() }, state))
    }

    /// Their gradient, written over a copy of the scores.
    pub fn backward<F: Real>(
        &self,
        built: Built<F>,
        z: &[F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let mut gradient = z.to_vec();
        let losses = self.backward_in_place(built, &mut gradient, weights, options, buffers)?;
        Ok(output(losses, gradient))
    }

    /// The same, written over the scores.
    pub fn backward_in_place<F: Real>(
        &self,
        (indices, state): Built<F>,
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
            let own = copy.as_deref_mut().unwrap_or(&mut *z);
            scores::backward_in_place(own, columns.len(), site_of_row, selection, normalized, &adjoints)
                .map_err(|error| Error::at_site(error, lattices))?;
            if let Some(copy) = copy {
                let all = z.chunks_exact_mut(self.classes + self.durations);
                all.zip(copy.chunks_exact(columns.len()))
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
