//! Backward pass of the selected normalizer: gradients of hidden rows and head.
//!
//! Sites (lattice nodes) are processed in waves and classes in tiles; [`Plan`] defines wave, block,
//! tile and group, and a strip is the rows of one score task. Symbols as in the crate
//! documentation: h hidden rows *N x H*, W and b head weight *C x H* and bias, Z scores, G score
//! gradients, a adjoints *N x S*, A their row sums, m largest score of a site, s sum of exp(Z - m).
//! x: input of the activation φ.
use std::{ops::Range, sync::Mutex};

use kernels::{
    Accumulate, View, ViewMut, WorkerSlots, ensure_capacity, ensure_len, lock,
    packed::{
        FullFormat, Operand, OperandFormat,
        bf16::{Bf16Format, SplitBf16Format},
    },
    par_for, parts, parts_mut, run_in_pool, zeros,
};

use crate::{
    Adjoints, Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    blocking::{Blocking, ROWS_PER_TASK, SITES_PER_TASK, backward_waves, count_active, ensure_slots},
    error::expect_len,
    head::{PackedOperands, fill_and_pack, pack_for_gradient, pack_for_scores, pack_right, strip_scores},
    scores::{ScoreGradient, ScoreSource},
    sites::DynSites,
};

/// Arguments of [`backward`]: those of [`forward`](crate::forward()), its result, and adjoints.
#[derive(Debug)]
pub struct BackwardInputs<'a, F, S: ?Sized> {
    /// N hidden rows of width H.
    pub sites: &'a S,
    /// Weight *C x H* and bias.
    pub head: &'a Head<'a, F>,
    /// Selected classes, *N x S*.
    pub selection: &'a Selection,
    /// Result of forward for the same arguments.
    pub normalized: &'a Normalized<F>,
    /// Gradients of the loss.
    pub adjoints: &'a Adjoints<'a>,
}

/// Gradients of the sites and of the head.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F, G> {
    /// Gradient of the inputs of the sites.
    pub sites: G,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; present even without a bias.
    ///
    /// It is summed in the type of the rows within a strip of sites, and in `f64` over strips.
    pub bias: Vec<f64>,
}

impl<F: Real, G> Gradients<F, G> {
    /// Creates zero gradients of a head, with the given gradient of sites.
    pub fn zero(sites: G, head: &Head<F>) -> Self {
        Self { sites, weight: zeros(head.weight.len()), bias: vec![0.0; head.classes] }
    }
}

/// Adds the gradients of sites and head to `into`.
///
/// ```text
/// for each wave of active sites (and a few inactive ones where rows were saved):
///     h = φ(x), unless it was saved
///     for each group of tiles:
///         par over tiles and strips of sites:
///             Z = h Wᵀ + b, or as saved
///             G = -A exp((Z - m) - log s), then += a at the selected classes
///         par over tiles and rows of sites:
///             dW += Gᵀ h;  db += Σ G;  dh += G W
///     par over rows:  dx = φ'(h) dh
///     scatter in site order
/// ```
///
/// with `A[i] = Σ_s a[i,s] - dL/dlogZ[i]`. At a selected class the softmax is computed from the
/// emission in `f64`, because `a - A p` cancels when the model is confident. A site is active if an
/// adjoint is not negligible; inactive sites cost nothing, except among saved rows of a wave with
/// at least seven eighths of active sites. Elements of `G` below
/// [`FLUSH_THRESHOLD`](kernels::Real::FLUSH_THRESHOLD) are set to 0. Returns the number of active
/// sites.
///
/// # Shapes
/// As [`forward`](crate::forward()); `into` as created by [`Gradients::zero`].
///
/// # Errors
/// Shapes that do not match; a budget below the smallest plan; an infinite weight; adjoints that
/// are not finite in the type of the rows. `into` is then unchanged.
///
/// # Cost
/// 6 N H C floating-point operations over the N active sites; a third of them recomputes scores
/// that were not saved. Memory as planned by [`Plan::scratch`].
pub fn backward<F: Real, S: Sites<F>>(
    arguments: BackwardInputs<F, S>,
    workspace: &mut Workspace<F>,
    into: &mut Gradients<F, S::Gradient>,
) -> Result<usize> {
    let BackwardInputs { sites, head, selection, normalized, adjoints } = arguments;
    let Gradients { sites: site_gradient, weight, bias } = into;
    let mut scatter = |wave: &[usize], gradient: &[F]| sites.scatter(wave, gradient, site_gradient);
    let sink = GradientSink { scatter: &mut scatter, weight, bias };
    F::backward_impl(BackwardInputs { sites, head, selection, normalized, adjoints }, workspace, sink)
}

/// Destination of the gradients of sites, weight and bias, with type-erased sites.
pub struct GradientSink<'a, F> {
    scatter: &'a mut (dyn FnMut(&[usize], &[F]) + Send),
    weight: &'a mut [F],
    bias: &'a mut [f64],
}

/// Runs [`backward`] with type-erased sites.
pub(crate) fn backward_impl<F: Real>(
    arguments: BackwardInputs<F, dyn DynSites<F> + '_>,
    workspace: &mut Workspace<F>,
    mut sink: GradientSink<F>,
) -> Result<usize> {
    run_in_pool(|| {
        let BackwardInputs { sites, head, selection, normalized, adjoints } = arguments;
        let plan = workspace.prepare(sites, head, selection)?;
        normalized.check(sites.count(), selection.per_site())?;
        adjoints.check::<F>(sites.count(), selection)?;
        expect_len("into.weight", head.weight.len(), sink.weight.len())?;
        expect_len("into.bias", head.classes, sink.bias.len())?;
        let pass = BackwardPass {
            plan,
            blocking: Blocking::for_precision(&plan, head.hidden, workspace.precision),
            head,
            score_gradient: ScoreGradient { selection, normalized, adjoints },
            score_sites: normalized.saved_scores.compatible_sites(&plan, head.classes).min(sites.count()),
        };
        Ok(match workspace.precision.resolve::<F>() {
            Precision::Full => {
                let mut operands = std::mem::take(&mut workspace.full_operands);
                let num_active = pass.run::<FullFormat>(sites, workspace, &mut operands, &mut sink);
                workspace.full_operands = operands;
                num_active
            }
            Precision::Bf16 => {
                let mut operands = std::mem::take(&mut workspace.bf16_operands);
                let num_active = pass.run::<Bf16Format>(sites, workspace, &mut operands, &mut sink);
                workspace.bf16_operands = operands;
                num_active
            }
            Precision::Bf16x3 => {
                let mut operands = std::mem::take(&mut workspace.bf16_operands);
                let num_active = pass.run::<SplitBf16Format>(sites, workspace, &mut operands, &mut sink);
                workspace.bf16_operands = operands;
                num_active
            }
        })
    })
}

/// Arguments shared by all waves of a backward pass.
struct BackwardPass<'a, F> {
    plan: Plan<F>,
    blocking: Blocking,
    head: &'a Head<'a, F>,
    score_gradient: ScoreGradient<'a, F>,
    /// Number of sites, from the first, whose scores are saved; a wave never mixes both kinds.
    score_sites: usize,
}

impl<F: Real> BackwardPass<'_, F> {
    /// Runs all waves; returns the number of active sites.
    fn run<N: OperandFormat<F>>(
        &self,
        sites: &dyn DynSites<F>,
        workspace: &mut Workspace<F>,
        operands: &mut PackedOperands<N::Word>,
        sink: &mut GradientSink<F>,
    ) -> usize {
        let Self {
            plan,
            blocking,
            score_gradient: ScoreGradient { selection, normalized, adjoints },
            score_sites,
            ..
        } = self;
        let mut wave_sites = std::mem::take(&mut workspace.wave_sites);
        let mut active_buffer = std::mem::take(&mut workspace.active);
        ensure_capacity(&mut wave_sites, plan.wave_sites);
        ensure_len(&mut active_buffer, sites.count(), false);
        let active = &mut active_buffer[..sites.count()];
        par_for(parts_mut(active, SITES_PER_TASK), |task, task_active| {
            for (site, is_active) in (task * SITES_PER_TASK..).zip(task_active) {
                *is_active = adjoints.is_active::<F>(site, selection);
            }
        });
        backward_waves(
            plan,
            blocking.strip_rows,
            normalized,
            *score_sites,
            active,
            &mut wave_sites,
            |wave, has_saved_rows| {
                self.run_wave::<N>(sites, wave, has_saved_rows, workspace, operands, sink);
            },
        );
        let num_active = count_active(active);
        (workspace.wave_sites, workspace.active) = (wave_sites, active_buffer);
        num_active
    }

    /// Adds the gradients of a wave.
    fn run_wave<N: OperandFormat<F>>(
        &self,
        sites: &dyn DynSites<F>,
        wave: &[usize],
        has_saved_rows: bool,
        workspace: &mut Workspace<F>,
        operands: &mut PackedOperands<N::Word>,
        sink: &mut GradientSink<F>,
    ) {
        let Self { plan, blocking, head, score_gradient, .. } = self;
        let Workspace { hidden, gradient, score_slots, column_sums, .. } = workspace;
        let (rows, h, recompute) = (wave.len(), head.hidden, self.recomputes_scores(wave));
        let (blocks, max_blocks) =
            (rows.div_ceil(plan.block_sites), plan.wave_sites.div_ceil(plan.block_sites));
        ensure_slots(score_slots, blocking.slot_count(plan));
        ensure_len(
            column_sums,
            plan.group_tiles * max_blocks * blocking.strips_per_block * plan.tile_classes,
            F::ZERO,
        );
        ensure_len(gradient, plan.wave_sites * h, F::ZERO);
        let gradient = &mut gradient[..rows * h];
        let h_right = &mut operands.h_right.ensure_len(max_blocks * blocking.h_right_words, N::ZERO)
            [..blocks * blocking.h_right_words];
        // Hidden rows, packed for the products that need them.
        let hidden = if has_saved_rows {
            let hidden = &score_gradient.normalized.saved_hidden.rows[wave[0] * h..][..rows * h];
            pack_right::<F, N>(plan, hidden, h, h_right);
            hidden
        } else {
            ensure_len(hidden, plan.wave_sites * h, F::ZERO);
            let hidden = &mut hidden[..rows * h];
            let h_left = recompute.then(|| {
                &mut operands.h_left.ensure_len(max_blocks * blocking.h_left_words, N::ZERO)
                    [..blocks * blocking.h_left_words]
            });
            fill_and_pack::<F, N>(plan, sites, wave, hidden, [h_left, Some(h_right)]);
            &*hidden
        };
        // Scores, their gradients, and the products with them, for some tiles at a time.
        for group in plan.tile_groups(head.classes) {
            let group_sums = &mut column_sums[..group.len().div_ceil(plan.tile_classes)
                * blocks
                * blocking.strips_per_block
                * plan.tile_classes];
            if recompute {
                pack_for_scores::<F, N>(plan, head, &group, &mut operands.wt_right);
            }
            pack_for_gradient::<F, N>(plan, head, &group, &mut operands.w_right);
            self.score_gradients::<N>(wave, &group, operands, score_slots, group_sums);
            let (operands, weight) = (&*operands, &mut sink.weight[group.start * h..group.end * h]);
            let (bias, gradient) = (&mut sink.bias[group.clone()], &mut *gradient);
            let head_task = || self.head_gradient::<N>(rows, operands, weight);
            let hidden_task = || self.hidden_gradient::<N>(rows, &group, operands, gradient);
            rayon::join(head_task, || {
                rayon::join(hidden_task, || self.bias_gradient(rows, group_sums, bias))
            });
        }
        // Gradients of the inputs.
        let tasks = (
            parts(wave, ROWS_PER_TASK),
            parts(hidden, ROWS_PER_TASK * h),
            parts_mut(gradient, ROWS_PER_TASK * h),
        );
        par_for(tasks, |_, (wave, hidden, gradient)| sites.pull_back_rows(wave, hidden, gradient));
        (sink.scatter)(wave, gradient);
    }

    /// Returns whether the scores of a wave must be recomputed; waves never mix both kinds.
    fn recomputes_scores(&self, wave: &[usize]) -> bool {
        wave[0] >= self.score_sites
    }

    /// Computes packed score gradients G, and their sums over each strip.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b, or as saved
    ///     G = -A exp((Z - m) - log s), then += a at the selected classes
    ///     column sums of G;  pack G;  pack Gᵀ, as steps of the block's sum
    /// ```
    fn score_gradients<N: OperandFormat<F>>(
        &self,
        wave: &[usize],
        group: &Range<usize>,
        operands: &mut PackedOperands<N::Word>,
        slots: &WorkerSlots<Vec<F>>,
        sums: &mut [F],
    ) {
        let Self { plan, blocking, head, score_gradient, .. } = self;
        let (h, blocks, recompute) =
            (head.hidden, wave.len().div_ceil(plan.block_sites), self.recomputes_scores(wave));
        let (tile_count, strip_rows) = (group.len().div_ceil(plan.tile_classes), blocking.strip_rows);
        let (mut gt_buffer, mut g_buffer) =
            (std::mem::take(&mut operands.gt_left), std::mem::take(&mut operands.g_left));
        let gt_left = gt_buffer.ensure_len(tile_count * blocks * blocking.gt_left_words, N::ZERO);
        let g_left = g_buffer.ensure_len(tile_count * blocks * blocking.g_left_words, N::ZERO);
        let tiles = (
            parts_mut(sums, blocks * blocking.strips_per_block * plan.tile_classes),
            parts_mut(gt_left, blocks * blocking.gt_left_words),
            parts_mut(g_left, blocks * blocking.g_left_words),
        );
        par_for(tiles, |tile, (sums, gt_left, g_left)| {
            let first_class = group.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(group.end - first_class);
            let classes = first_class..first_class + width;
            let blocks = (
                parts_mut(sums, blocking.strips_per_block * width),
                parts_mut(gt_left, blocking.gt_left_words),
                parts_mut(g_left, blocking.g_left_words),
                parts(wave, plan.block_sites),
            );
            par_for(blocks, |block, (sums, gt_left, g_left, wave)| {
                let (depth, gt_left) = (wave.len(), Mutex::new(gt_left));
                let g_left = parts_mut(g_left, N::words(Operand::Left, strip_rows, width));
                par_for(
                    (parts_mut(sums, width), g_left, parts(wave, strip_rows)),
                    |strip, (sums, g_left, sites)| {
                        let first_row = strip * strip_rows;
                        let z = &mut *slots.lock();
                        ensure_len(z, sites.len() * width, F::ZERO);
                        let z = &mut z[..sites.len() * width];
                        if recompute {
                            let out = ViewMut::new(z, sites.len(), width);
                            strip_scores::<F, N>(blocking, h, block, first_row, tile, operands, out);
                        }
                        for (g, &site) in z.chunks_exact_mut(width).zip(sites) {
                            let z = match recompute {
                                true => ScoreSource::InPlace(head.bias.map(|bias| &bias[classes.clone()])),
                                false => ScoreSource::Saved(
                                    score_gradient.normalized.saved_scores.row(site, &classes),
                                ),
                            };
                            score_gradient.write_row(site, first_class, z, g);
                        }
                        sums.fill(F::ZERO);
                        F::add_rows(sums, z);
                        let g = View::new(z, sites.len(), width);
                        N::pack(g, Operand::Left, g_left, 0, width);
                        N::pack(g.transposed(), Operand::Left, &mut lock(&gt_left), first_row, depth);
                    },
                );
            });
        });
        (operands.gt_left, operands.g_left) = (gt_buffer, g_buffer);
    }

    /// Adds the gradient of the head's weight.
    ///
    /// ```text
    /// par for each tile, par for each piece of its classes:
    ///     for each block, par for each MR classes:  dW += Gᵀ h
    /// ```
    ///
    /// A single thread processes a piece at a time, with the rows in its second-level cache.
    fn head_gradient<N: OperandFormat<F>>(
        &self,
        rows: usize,
        operands: &PackedOperands<N::Word>,
        weight: &mut [F],
    ) {
        let Self { plan, head, blocking, .. } = *self;
        let Blocking { shared_rows, task_rows, gt_left_words, h_right_words, .. } = blocking;
        let PackedOperands { gt_left, h_right, .. } = operands;
        let (h, blocks) = (head.hidden, rows.div_ceil(plan.block_sites));
        let tiles = (parts_mut(weight, plan.tile_classes * h), parts(gt_left, blocks * gt_left_words));
        par_for(tiles, |_, (weight, gt_left)| {
            par_for(parts_mut(weight, shared_rows * h), |piece, weight| {
                for (block, gt_left) in gt_left.chunks(gt_left_words).enumerate() {
                    let depth = plan.block_sites.min(rows - block * plan.block_sites);
                    par_for(parts_mut(weight, task_rows * h), |task, weight| {
                        let first_class = piece * shared_rows + task * task_rows;
                        let left = &gt_left[N::words(Operand::Left, first_class, depth)..];
                        let right = &h_right[block * h_right_words..];
                        let out = ViewMut::new(weight, weight.len() / h, h);
                        N::multiply(out, left, right, depth, Accumulate::Add);
                    });
                }
            });
        });
    }

    /// Computes the gradient of the hidden rows; the first group overwrites it.
    ///
    /// ```text
    /// par for each block of sites:
    ///     for each tile, par for each MR sites:  dh (=|+=) G W
    /// ```
    fn hidden_gradient<N: OperandFormat<F>>(
        &self,
        rows: usize,
        group: &Range<usize>,
        operands: &PackedOperands<N::Word>,
        gradient: &mut [F],
    ) {
        let Self { plan, head, blocking: Blocking { task_rows, g_left_words, w_right_words, .. }, .. } =
            *self;
        let PackedOperands { g_left, w_right, .. } = operands;
        let (h, blocks) = (head.hidden, rows.div_ceil(plan.block_sites));
        par_for(parts_mut(gradient, plan.block_sites * h), |block, gradient| {
            for tile in 0..group.len().div_ceil(plan.tile_classes) {
                let depth = plan.tile_classes.min(group.len() - tile * plan.tile_classes);
                let g_left = &g_left[(tile * blocks + block) * g_left_words..];
                let right = &w_right[tile * w_right_words..];
                let is_first = group.start == 0 && tile == 0;
                let accumulate = if is_first { Accumulate::Replace } else { Accumulate::Add };
                par_for(parts_mut(gradient, task_rows * h), |task, gradient| {
                    let left = &g_left[N::words(Operand::Left, task * task_rows, depth)..];
                    let out = ViewMut::new(gradient, gradient.len() / h, h);
                    N::multiply(out, left, right, depth, accumulate);
                });
            }
        });
    }

    /// Adds the column sums of all strips to the bias gradient.
    ///
    /// ```text
    /// par for each tile, par for each NR classes of it:  db += Σ G, strip after strip
    /// ```
    fn bias_gradient(&self, rows: usize, column_sums: &[F], bias: &mut [f64]) {
        let Self { plan, blocking: Blocking { nr, strip_rows, strips_per_block, .. }, .. } = *self;
        let sums_per_tile = rows.div_ceil(plan.block_sites) * strips_per_block * plan.tile_classes;
        let tiles = (parts_mut(bias, plan.tile_classes), parts(column_sums, sums_per_tile));
        par_for(tiles, |_, (bias, tile_sums)| {
            let width = bias.len();
            par_for(parts_mut(bias, nr), |panel, bias| {
                for (block, block_sums) in tile_sums.chunks(strips_per_block * width).enumerate() {
                    let rows = plan.block_sites.min(rows.saturating_sub(block * plan.block_sites));
                    for strip_sums in block_sums.chunks_exact(width).take(rows.div_ceil(strip_rows)) {
                        bias.iter_mut().zip(&strip_sums[panel * nr..]).for_each(|(b, g)| *b += g.to_f64());
                    }
                }
            });
        });
    }
}
