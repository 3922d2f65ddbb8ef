//! First pass of the pruned transducer: loss, arc posteriors and gradients.
//!
//! The simple joiner adds an encoder score `am` and a predictor score `lm` for each class. The pass
//! is public API: `forward.rs` computes the log-probabilities of arcs, the crate `rnnt_dp` the
//! losses and posteriors, `backward.rs` the gradient of a tile of classes. This module connects
//! them and divides the batch into groups of utterances.
use std::ops::Range;

use kernels::{Real, WorkerSlots, ensure_len, items_mut, par_for, parts_mut, reset};
use rayon::prelude::*;
use rnnt_dp::{Regularizers, Topology};

use crate::{
    Batch, Error, Options, Plan, Ranges, Result, ScoreSource, Side, TaskScratch, Workspace, backward,
    emissions::{Derivatives, WeightedOccupancies},
    error::expect_len,
    forward::compute_emissions,
    label_arc::LabelArc,
    plan::{GroupSizes, utterance_groups},
    source::split_matrix_runs,
    sums::{BatchSums, UtteranceSums},
    tile_gradients::TileGradients,
    tiles::{self, split_lengths, take_front},
    unigram::UnigramDistribution,
    utterance::UtteranceScores,
    workspace::reserve_slots,
};

/// Elements of a task that negates derivatives.
const ELEMENTS_PER_TASK: usize = 1 << 12;

/// The result of a first pass, which [`FirstPass::backward`] needs.
#[derive(Debug, Clone, PartialEq)]
pub struct FirstPass<F> {
    /// `-log P` of each utterance, *B*; +inf where no path has a positive probability.
    pub losses: Vec<f64>,
    /// Posterior of each arc, *N x 2*: blank, next label; sites are packed as in
    /// `rnnt_dp::Lattices`.
    ///
    /// It is 0 for arcs that do not exist and for utterances without a path.
    pub occupancies: Vec<f64>,
    pub(crate) sums: BatchSums<F>,
    /// Unigrams: none, one for all utterances, or one for each.
    pub(crate) unigrams: Vec<UnigramDistribution<F>>,
    batch: Batch,
    options: Options,
    label_arc: LabelArc,
    plan: Plan,
    classes: usize,
}

/// Computes the transducer loss of the simple joiner, `softmax(am[t] + lm[u])`.
///
/// No tensor of frames x labels x classes is stored.
///
/// The formulas are in the crate documentation.
///
/// # Shapes
/// `source`: scores `am` and `lm` of C classes, in the rows of `batch`.
///
/// # Errors
/// Options out of range; labels out of range; too few rows; a score of an utterance that is NaN or
/// +inf; a site without a finite score. An utterance without a path is not an error: its loss is
/// +inf and its gradients are 0.
///
/// # Cost
/// Σ T (U+1) C multiply-adds and Σ (T+U+1) C exponentials, in addition to the scores of `source`.
/// With an am-only term the exponentials of the labels are computed three times. Parallel over
/// utterances and blocks of frames; memory as planned by [`Plan::scratch`] of the default plan. The
/// bits of an utterance do not depend on the others, except with
/// [`Unigram::AllRows`](crate::Unigram::AllRows).
pub fn first_pass<F: Real, S: ScoreSource<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
) -> Result<FirstPass<F>> {
    first_pass_with(source, batch, options, Plan::default(), &mut Workspace::default())
}

/// Computes a [`first_pass`] with a plan and a workspace.
///
/// Its memory is that of the plan. The workspace keeps it, except for the memory of the result,
/// which [`Workspace::recycle`] reuses.
///
/// # Errors
/// As [`first_pass`].
pub fn first_pass_with<F: Real, S: ScoreSource<F>>(
    source: &S,
    batch: &Batch,
    options: &Options,
    plan: Plan,
    workspace: &mut Workspace<F>,
) -> Result<FirstPass<F>> {
    let label_arc = options.check()?;
    batch.check(source.rows(Side::Frames), source.rows(Side::Labels), source.classes())?;
    let (sums, unigrams) = compute_emissions(source, batch, options, label_arc, plan, workspace)?;
    // Each arc has one emission, which is already summed over columns.
    let arcs = Topology::new(options.topology.arcs().to_vec())?;
    let (shapes, regularizers) = (batch.lattices(), Regularizers::default());
    let Workspace { lattices, scratch_f64, recycled, .. } = workspace;
    let emissions = &scratch_f64[..2 * shapes.num_sites()];
    // Losses, and their derivatives by the emissions: the negative posteriors of arcs.
    let mut losses = vec![0.0; batch.len()];
    let mut occupancies = reset(std::mem::take(&mut recycled.occupancies), emissions.len(), 0.0);
    // The number of lanes (lattices in parallel) depends only on shapes, so memory does not depend
    // on the number of threads.
    let bytes = rnnt_dp::Workspace::scratch(shapes, &arcs, &regularizers, plan.lanes(batch)).bytes();
    lattices.set_budget(bytes.max(lattices.allocated_bytes()));
    lattices.forward_backward(shapes, &arcs, emissions, &regularizers, &mut losses, &mut occupancies)?;
    par_for(parts_mut(&mut occupancies, ELEMENTS_PER_TASK), |_, part| {
        part.iter_mut().for_each(|o| *o = 0.0 - *o);
    });
    let (batch, options) = (batch.clone(), options.clone());
    let classes = source.classes();
    Ok(FirstPass { losses, occupancies, sums, unigrams, batch, options, label_arc, plan, classes })
}

impl<F: Real> FirstPass<F> {
    /// Returns the gradient of `Σ_b weights[b] losses[b]`.
    ///
    /// `source` must be that of forward. Utterances without a path have no gradient.
    ///
    /// # Shapes
    /// `weights` *B*.
    ///
    /// # Errors
    /// A weight that is not finite; a source of another shape.
    ///
    /// # Cost
    /// Two products, while forward has one of the same size; the exponentials again; scores and
    /// gradients of `source`. Memory as planned.
    pub fn backward<S: ScoreSource<F>>(&self, source: &S, weights: &[f64]) -> Result<S::Gradient> {
        let mut gradient = source.zero_gradient();
        self.backward_into(source, weights, &mut gradient, &mut Workspace::default())?;
        Ok(gradient)
    }

    /// Adds the gradient to one that is zero in the batch's rows.
    ///
    /// # Errors
    /// As [`Self::backward`].
    pub fn backward_into<S: ScoreSource<F>>(
        &self,
        source: &S,
        weights: &[f64],
        gradient: &mut S::Gradient,
        workspace: &mut Workspace<F>,
    ) -> Result<()> {
        expect_len("weights", self.batch.len(), weights.len())?;
        let weight_or_zero = |(weight, loss): (&f64, &f64)| if loss.is_finite() { *weight } else { 0.0 };
        let weights: Vec<f64> = weights.iter().zip(&self.losses).map(weight_or_zero).collect();
        if let Some(utterance) = weights.iter().position(|weight| !weight.is_finite()) {
            return Err(Error::UtteranceWeight { utterance, found: weights[utterance] });
        }
        self.batch.check(source.rows(Side::Frames), source.rows(Side::Labels), source.classes())?;
        let (classes, max_classes) = (source.classes(), self.plan.classes);
        expect_len("source.classes", self.classes, classes)?;
        // Buffers: scratch for the largest group, and the gradient of a shared unigram.
        let Workspace { slots, scratch, scratch_f64, .. } = workspace;
        let shares_unigram = self.options.shares_unigram();
        let sizes = GroupSizes::new(classes, &self.batch, &self.options, self.plan);
        reserve_slots(slots, self.plan.tasks, sizes.task_scratch::<F, S>(source));
        let sums = self.sums.split(&sizes.utterances);
        let groups = utterance_groups(&self.batch, self.plan.rows);
        let group_lens =
            sizes.max_over(&groups, |b| sizes.backward_lens::<F>(b, Derivatives::count_underflow(&sums[b])));
        ensure_len(scratch, group_lens.scratch, F::ZERO);
        let shared_len = if shares_unigram { classes } else { 0 };
        ensure_len(scratch_f64, shared_len + group_lens.scratch_f64, 0.0);
        let (shared_gradient, scratch_f64) = scratch_f64.split_at_mut(shared_len);
        shared_gradient.fill(0.0);
        // Gradients of the scores, and from those of the unigrams the rest of the gradient.
        for group in groups {
            let work = GroupWork {
                group: group.clone(),
                weights: &weights[group.clone()],
                sizes: &sizes,
                scratch: &mut scratch[..],
                scratch_f64: &mut *scratch_f64,
            };
            let unigram_gradients = self.group_gradient(source, work, gradient, &sums, slots);
            for (unigram_gradient, b) in unigram_gradients.chunks_exact(classes).zip(group) {
                match shares_unigram {
                    true => shared_gradient.iter_mut().zip(unigram_gradient).for_each(|(sum, g)| *sum += g),
                    false => self.unigrams[b].pull_back(
                        source,
                        unigram_gradient,
                        gradient,
                        max_classes,
                        scratch,
                        slots,
                    ),
                }
            }
        }
        if let (true, Some(unigram)) = (shares_unigram, self.unigrams.first()) {
            unigram.pull_back(source, shared_gradient, gradient, max_classes, scratch, slots);
        }
        Ok(())
    }

    /// Returns the bands of `s_range` label positions that keep the most occupancy.
    ///
    /// # Errors
    /// As [`Ranges::new`].
    pub fn ranges(&self, s_range: usize) -> Result<Ranges> {
        Ranges::new(&self.occupancies, self.batch.lattices(), &self.options.topology, s_range)
    }

    /// Adds the gradient of a group of consecutive utterances.
    ///
    /// Returns the gradient of the unigrams' probabilities, *group x C*.
    fn group_gradient<'r, S: ScoreSource<F>>(
        &self,
        source: &S,
        work: GroupWork<'_, 'r, F>,
        gradient: &mut S::Gradient,
        sums: &[UtteranceSums<F>],
        slots: &WorkerSlots<TaskScratch<F>>,
    ) -> &'r [f64] {
        let GroupWork { group, weights, sizes, mut scratch, mut scratch_f64 } = work;
        // Derivatives by the emissions of each utterance.
        let classes = if self.unigrams.is_empty() { 0 } else { source.classes() };
        let unigram_gradients = take_front(&mut scratch_f64, group.len() * classes);
        unigram_gradients.fill(0.0);
        let buffers = group.clone().map(|b| {
            let derivatives = take_front(&mut scratch, Derivatives::<F>::buffer_len(sizes.utterances[b]));
            let context_tiles = take_front(&mut scratch, sizes.context_tiles_len(b));
            let underflow = take_front(&mut scratch_f64, Derivatives::count_underflow(&sums[b]));
            (derivatives, underflow, context_tiles)
        });
        let buffers: Vec<_> = buffers.collect();
        let utterance_derivatives = |(b, (mut buffer, underflow, context_tiles)): (usize, (_, _, _))| {
            let utterance = UtteranceScores::new(source, &self.batch, b, unigram(&self.unigrams, b));
            let Range { start, end } = self.batch.lattices().site_range(b);
            let occupancies = WeightedOccupancies {
                occupancies: &self.occupancies[2 * start..2 * end],
                weight: weights[b - group.start],
            };
            let derivatives = Derivatives::new(
                &utterance,
                &sums[b],
                &self.options,
                self.label_arc.forces_blank,
                occupancies,
                &mut buffer,
                underflow,
            );
            (utterance, derivatives, context_tiles)
        };
        let mut utterances: Vec<_> =
            group.clone().into_par_iter().zip(buffers).map(utterance_derivatives).collect();

        // Gradients of the scores, one tile of classes at a time, or all classes in place.
        let row_runs = |side| group.clone().map(|b| self.batch.rows(side, b)).collect::<Vec<_>>();
        let (frames, labels) = (row_runs(Side::Frames), row_runs(Side::Labels));
        let row_count = |runs: &[Range<usize>]| runs.iter().map(Range::len).sum::<usize>();
        let max_classes = tiles::even_size(source.classes(), self.plan.classes);
        let mut compute_tile = |tile: &Range<usize>,
                                mut frame_gradients: Vec<&mut [F]>,
                                mut label_gradients: Vec<&mut [F]>| {
            let mut unigrams: Vec<&mut [f64]> = unigram_gradients
                .chunks_exact_mut(classes.max(1))
                .map(|row| &mut row[tile.clone()])
                .collect();
            unigrams.resize_with(group.len(), Default::default);
            let outputs =
                (items_mut(&mut frame_gradients), items_mut(&mut label_gradients), items_mut(&mut unigrams));
            let tasks = (items_mut(&mut utterances), outputs);
            par_for(tasks, |_, ((utterance, derivatives, context_tiles), (frames, labels, unigram))| {
                let gradients = TileGradients { frames, labels, unigram };
                let sums = &sums[utterance.index];
                backward::tile_gradient(utterance, sums, derivatives, tile, gradients, context_tiles, slots);
            });
        };
        if max_classes == source.classes()
            && let Some([frame_gradients, label_gradients]) = S::dense_gradients(gradient)
        {
            let split = |matrix, runs| split_matrix_runs(matrix, max_classes, runs, usize::MAX);
            compute_tile(&(0..max_classes), split(frame_gradients, &frames), split(label_gradients, &labels));
            return unigram_gradients;
        }
        let frame_gradients = take_front(&mut scratch, row_count(&frames) * max_classes);
        let label_gradients = take_front(&mut scratch, row_count(&labels) * max_classes);
        for tile in tiles::class_tiles(source.classes(), max_classes) {
            let width = tile.len();
            let frame_gradients = &mut frame_gradients[..row_count(&frames) * width];
            let label_gradients = &mut label_gradients[..row_count(&labels) * width];
            let lengths =
                |runs: &[Range<usize>]| runs.iter().map(|run| run.len() * width).collect::<Vec<_>>();
            compute_tile(
                &tile,
                split_lengths(frame_gradients, lengths(&frames)),
                split_lengths(label_gradients, lengths(&labels)),
            );
            source.add_gradient(Side::Frames, &frames, tile.clone(), frame_gradients, gradient, slots);
            source.add_gradient(Side::Labels, &labels, tile, label_gradients, gradient, slots);
        }
        unigram_gradients
    }
}

/// A group of consecutive utterances in backward: their weights and scratch memory.
struct GroupWork<'g, 'r, F> {
    /// Indices in the batch.
    group: Range<usize>,
    /// Weights of the losses of the group.
    weights: &'g [f64],
    sizes: &'g GroupSizes,
    scratch: &'g mut [F],
    scratch_f64: &'r mut [f64],
}

/// Returns the unigram of an utterance, if there is one.
fn unigram<F>(unigrams: &[UnigramDistribution<F>], utterance: usize) -> Option<&UnigramDistribution<F>> {
    unigrams.get(utterance).or(unigrams.first())
}
