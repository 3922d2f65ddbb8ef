//! Computes transducer and CTC losses and gradients from scores (logits).
//!
//! A row has the scores of one site: a lattice node (t, u), or for CTC a frame. Utterances are
//! consecutive in packed and padded layouts, so that a group of utterances is a range of rows. The
//! engine of a session creates a [`ScoreCall`]; it differs from a `HeadCall` in that no head
//! computes the scores, and that their gradient overwrites a copy of them.
use std::{borrow::Cow, ops::Range};

use kernels::ScratchReq;
use panda_core::Real;
use panda_core::scores as score_normalizer;

use crate::{
    Error, Gradients, Layout, Loss, LossOutput, Options, Result, ScoreInputs, SkippedSites, Targets,
    budget::{CallSizes, SessionBuffers},
    ctc::CtcObjective,
    error::expect_rows,
    heads::{HeadOutput, HeadRole},
    lattice_state::{ForwardResult, LatticeState},
    objective::LatticeObjective,
    site_buffers::RowIndices,
};

/// A checked call over scores; the values are arguments of each pass.
pub(crate) struct ScoreCall<'t> {
    objective: LatticeObjective<'t>,
    layout: Layout,
    classes: usize,
    /// Number of durations D.
    durations: usize,
}

/// A range of utterances of a call.
#[derive(Clone, Copy)]
struct ScoreCallGroup<'g> {
    objective: &'g LatticeObjective<'g>,
    /// Site of each row of the scores.
    site_of_row: &'g [u32],
}

impl<'t> ScoreCall<'t> {
    /// Checks the scores of a batch.
    ///
    /// # Errors
    /// Shapes, classes, options or targets that do not match.
    pub(crate) fn new<F>(
        inputs: &ScoreInputs<F>,
        loss: Cow<'t, Loss>,
        targets: Cow<'t, Targets>,
        options: &Options,
    ) -> Result<Self> {
        let ScoreInputs { scores, classes, layout } = *inputs;
        options.check_without_head()?;
        let (durations, layout) =
            (loss.num_durations(), if *loss == Loss::Ctc { CtcObjective::layout(layout) } else { layout });
        let class_check = targets.check_classes(classes);
        let objective = LatticeObjective::new(loss, targets)?;
        layout.check(objective.site_targets())?;
        class_check?;
        let width = classes.saturating_add(durations);
        expect_rows("scores", layout.score_rows(objective.site_targets()), width, scores.len())?;
        Ok(Self { objective, layout, classes, durations })
    }

    /// Sizes that determine the bytes of the call; rows and sites take scratch memory.
    pub(crate) fn sizes<'s, F>(&'s self, options: &'s Options) -> CallSizes<'s> {
        let score_bytes = size_of::<F>();
        // Of a site: the row, and the largest score, log-sum and emissions of each role.
        let role_bytes = |role| score_bytes + size_of::<f64>() * (1 + self.objective.selected_classes(role));
        let site_bytes = size_of::<usize>() + self.roles().map(role_bytes).sum::<usize>();
        // Of a row: the site, and with durations a copy of the scores of one role.
        let copied_bytes =
            if self.durations > 0 { score_bytes * self.classes.max(self.durations) } else { 0 };
        let scratch = move |utterances: usize, sites: usize| {
            let rows = match self.layout {
                Layout::Packed => sites,
                Layout::Padded { frames, positions } => utterances * frames * positions,
            };
            let row_scratch = ScratchReq::from_bytes(size_of::<u32>() + copied_bytes).times(rows);
            row_scratch.and(ScratchReq::from_bytes(site_bytes).times(sites))
        };
        let score_scratch: Option<Box<dyn Fn(usize, usize) -> ScratchReq>> = Some(Box::new(scratch));
        CallSizes {
            objective: &self.objective,
            options,
            hidden: 0,
            classes: 0,
            index_bytes: [0; 3],
            caller_bytes: 0,
            score_scratch,
        }
    }

    /// Roles of the columns: tokens, and durations if the loss has them.
    fn roles(&self) -> impl Iterator<Item = HeadRole> + use<> {
        std::iter::once(HeadRole::Tokens).chain((self.durations > 0).then_some(HeadRole::Durations))
    }

    /// Columns of each row that belong to a role.
    fn columns(&self, role: HeadRole) -> Range<usize> {
        match role {
            HeadRole::Durations => self.classes..self.classes + self.durations,
            _ => 0..self.classes,
        }
    }

    /// Copies the scores of a role; none without durations.
    fn copy_scores<F: Real>(&self, scores: &[F], role: HeadRole) -> Option<Vec<F>> {
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
    pub(crate) fn sum<F: Real>(
        &self,
        scores: &[F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let plan = self.sizes::<F>(options).in_groups::<F>()?;
        let mut gradient = scores.to_vec();
        buffers.apply_plan(&plan, 0, options)?;
        let (mut losses, mut remaining_rows) = (Vec::with_capacity(weights.len()), &mut *gradient);
        for utterances in plan.groups {
            let (first_utterance, objective) = (utterances.start, self.objective.part(utterances.clone()));
            let site_of_row = self.layout.site_of_row(objective.site_targets());
            let entries = site_of_row.len() * (self.classes + self.durations);
            let scores = remaining_rows.split_off_mut(..entries).expect("scores of all rows were counted");
            let group = ScoreCallGroup { objective: &objective, site_of_row: &site_of_row };
            let run_group = || {
                let state = self.forward_group(group, scores, options, buffers)?;
                self.backward_group(group, state, &weights[utterances], scores, options, buffers)
            };
            losses.extend(run_group().map_err(|error: Error| error.in_group(first_utterance))?);
        }
        Ok(loss_output(losses, gradient))
    }

    /// Computes the losses of the batch, and the site of each row.
    pub(crate) fn forward<F: Real>(
        &self,
        scores: &[F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<ForwardResult<F>> {
        let plan = self.sizes::<F>(options).all_at_once::<F>()?;
        buffers.apply_plan(&plan, 0, options)?;
        let site_of_row = self.layout.site_of_row(self.objective.site_targets());
        let group = ScoreCallGroup { objective: &self.objective, site_of_row: &site_of_row };
        let state = self.forward_group(group, scores, options, buffers)?;
        Ok(ForwardResult { indices: RowIndices { rows: site_of_row, ..RowIndices::default() }, state })
    }

    /// Computes the gradient in a copy of the scores.
    pub(crate) fn backward<F: Real>(
        &self,
        forward_result: ForwardResult<F>,
        scores: &[F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LossOutput<F>> {
        let mut gradient = scores.to_vec();
        let losses = self.backward_in_place(forward_result, &mut gradient, weights, options, buffers)?;
        Ok(loss_output(losses, gradient))
    }

    /// Computes the gradient in place: it overwrites the scores.
    pub(crate) fn backward_in_place<F: Real>(
        &self,
        ForwardResult { indices, state }: ForwardResult<F>,
        scores: &mut [F],
        weights: &[f64],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Vec<f64>> {
        let group = ScoreCallGroup { objective: &self.objective, site_of_row: &indices.rows };
        self.backward_group(group, state, weights, scores, options, buffers)
    }

    /// Computes the losses of a group, and the state for their gradients.
    fn forward_group<F: Real>(
        &self,
        ScoreCallGroup { objective, site_of_row }: ScoreCallGroup,
        scores: &[F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<LatticeState<F>> {
        let (lattices, mut outputs) = (objective.site_targets().lattices(), Vec::with_capacity(3));
        for (index, role) in self.roles().enumerate() {
            let selection = objective.selection(role, buffers.sites.take_selection(index))?;
            let copy = self.copy_scores(scores, role);
            let (role_scores, classes) = (copy.as_deref().unwrap_or(scores), self.columns(role).len());
            let normalized = score_normalizer::forward(
                role_scores,
                classes,
                site_of_row,
                lattices.num_sites(),
                &selection,
            )
            .map_err(|error| role.convert_error(error, lattices))?;
            outputs.push(HeadOutput { role, selection, normalized });
        }
        LatticeState::forward(outputs, objective, options, buffers)
    }

    /// Overwrites the scores of a group with the gradient; returns the losses.
    fn backward_group<F: Real>(
        &self,
        ScoreCallGroup { objective, site_of_row }: ScoreCallGroup,
        mut state: LatticeState<F>,
        weights: &[f64],
        scores: &mut [F],
        options: &Options,
        buffers: &mut SessionBuffers<F>,
    ) -> Result<Vec<f64>> {
        let lattices = objective.site_targets().lattices();
        for (HeadOutput { role, selection, normalized }, adjoints) in
            state.backward(lattices, options, weights)?
        {
            let (columns, mut copy) = (self.columns(*role), self.copy_scores(scores, *role));
            let role_scores = copy.as_deref_mut().unwrap_or(&mut *scores);
            score_normalizer::backward_in_place(
                role_scores,
                columns.len(),
                site_of_row,
                selection,
                normalized,
                &adjoints,
            )
            .map_err(|error| Error::at_site(error, lattices))?;
            if let Some(copy) = copy {
                let rows = scores.chunks_exact_mut(self.classes + self.durations);
                rows.zip(copy.chunks_exact(columns.len()))
                    .for_each(|(row, role_row)| row[columns.clone()].copy_from_slice(role_row));
            }
        }
        Ok(state.release(buffers))
    }
}

/// The output of a call, which has no skipped sites.
fn loss_output<F>(losses: Vec<f64>, scores: Vec<F>) -> LossOutput<F> {
    let gradients = Gradients { scores, ..Gradients::default() };
    LossOutput { losses, first_pass: None, gradients, skipped: SkippedSites::default() }
}
