//! Backward: gradients from compact adjoints, one wave of sites at a time, tile by tile.
use std::{ops::Range, sync::Mutex};

use kernels::{
    Accumulate, View, ViewMut, WorkerSlots, ensure_capacity, ensure_len, install, lock,
    packed::{Full, Operand, OperandFormat, half::Half},
    par_for, parts, parts_mut, zeros,
};

use crate::{
    Adjoints, Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    blocking::{Blocking, ROWS_PER_TASK, SITES_PER_TASK, backward_waves, count_active, ensure_slots},
    error::expect_len,
    head::{PackedOperands, fill, pack_for_gradient, pack_for_scores, pack_right, scores},
    scores::{ScoreGradient, ScoreSource},
    sites::DynSites,
};

/// What [`backward`] goes back over: the arguments of [`forward`](crate::forward()), its result, and adjoints.
#[derive(Debug)]
pub struct Backward<'a, F, S: ?Sized> {
    /// N rows of width H.
    pub sites: &'a S,
    /// *C x H*
    pub head: &'a Head<'a, F>,
    /// *N x S*
    pub selection: &'a Selection,
    /// What forward found for the same arguments.
    pub normalized: &'a Normalized<F>,
    /// What the lattice sends back.
    pub adjoints: &'a Adjoints<'a>,
}

/// Gradients of everything that made the scores.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradients<F, G> {
    /// Gradient of what the sites were made of.
    pub sites: G,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*; also there for a head without one. Strips of sites are summed in `f64`.
    pub bias: Vec<f64>,
}

impl<F: Real, G> Gradients<F, G> {
    /// Zero gradients of a head, around a gradient of sites.
    pub fn zero(sites: G, head: &Head<F>) -> Self {
        Self { sites, weight: zeros(head.weight.len()), bias: vec![0.0; head.classes] }
    }
}

/// Adds the gradients of sites and head, from adjoints of the emissions, to `into`.
///
/// ```text
/// for each wave of sites with an adjoint that is not zero (and a few others where rows were kept):
///     h = φ(x), unless it was kept
///     for each group of tiles:
///         par over tiles and strips of sites:   Z = h Wᵀ + b, or as kept;  G = -A exp((Z - m) - log s),
///                                               then += a at the selected classes
///         par over tiles and rows of sites:     dW += Gᵀ h;  db += Σ G;  dh += G W
///     par over rows:  dx = φ'(h) dh
///     scatter in site order
/// ```
///
/// With `A[i] = Σ_s a[i,s] - dL/dlogZ[i]`. At a selected class the softmax is taken from the emission in `f64`,
/// because there `a - A p` cancels when the model is sure. A site whose adjoints are all zero costs nothing,
/// unless it lies among kept rows of a wave of which seven eighths count; and
/// elements of `G` below [`TINY`](kernels::Real::TINY) count as zero. Returns how many sites were not left out.
///
/// # Shapes
/// As [`forward`](crate::forward()); `into` as [`Gradients::zero`] makes it.
///
/// # Errors
/// Shapes that do not fit; a budget below the smallest plan; an infinite weight; adjoints that are not finite in the type
/// of the rows. `into` is then untouched.
///
/// # Cost
/// 6 N H C floating-point operations (a third of them recomputes scores that were not kept) over the N sites that
/// count; memory as [`Plan::scratch`] says.
pub fn backward<F: Real, S: Sites<F>>(
    arguments: Backward<F, S>,
    workspace: &mut Workspace<F>,
    into: &mut Gradients<F, S::Gradient>,
) -> Result<usize> {
    let Backward { sites, head, selection, normalized, adjoints } = arguments;
    let Gradients { sites: of_sites, weight, bias } = into;
    let mut scatter = |wave: &[usize], gradient: &[F]| sites.scatter(wave, gradient, of_sites);
    let into = GradientSink { scatter: &mut scatter, weight, bias };
    F::backward_impl(Backward { sites, head, selection, normalized, adjoints }, workspace, into)
}

/// What gradients are added to: those of what made the hidden rows of a wave, of the weight and of the bias.
pub struct GradientSink<'a, F> {
    scatter: &'a mut (dyn FnMut(&[usize], &[F]) + Send),
    weight: &'a mut [F],
    bias: &'a mut [f64],
}

/// [`backward`] of any sites.
pub(crate) fn backward_impl<F: Real>(
    arguments: Backward<F, dyn DynSites<F> + '_>,
    workspace: &mut Workspace<F>,
    mut into: GradientSink<F>,
) -> Result<usize> {
    install(|| {
        let Backward { sites, head, selection, normalized, adjoints } = arguments;
        let plan = workspace.prepare(sites, head, selection)?;
        normalized.check(sites.count(), selection.per_site())?;
        adjoints.check::<F>(sites.count(), selection)?;
        expect_len("into.weight", head.weight.len(), into.weight.len())?;
        expect_len("into.bias", head.classes, into.bias.len())?;
        let pass = Pass {
            plan,
            blocking: Blocking::of(&plan, head.hidden, workspace.precision),
            head,
            step: ScoreGradient { selection, normalized, adjoints },
            kept: normalized.scores.sites_for(&plan, head.classes).min(sites.count()),
        };
        Ok(match workspace.precision {
            Precision::Full => {
                let mut panels = std::mem::take(&mut workspace.full);
                let count = pass.run::<Full>(sites, workspace, &mut panels, &mut into);
                workspace.full = panels;
                count
            }
            Precision::Bf16 => {
                let mut panels = std::mem::take(&mut workspace.half);
                let count = pass.run::<Half>(sites, workspace, &mut panels, &mut into);
                workspace.half = panels;
                count
            }
        })
    })
}

/// What all waves of a way back have in common.
struct Pass<'a, F> {
    plan: Plan<F>,
    blocking: Blocking,
    head: &'a Head<'a, F>,
    step: ScoreGradient<'a, F>,
    /// Sites, from the first, whose scores were kept; a wave has such sites, or others, never both.
    kept: usize,
}

impl<F: Real> Pass<'_, F> {
    /// All waves; returns the number of active sites.
    fn run<N: OperandFormat<F>>(
        &self,
        sites: &dyn DynSites<F>,
        workspace: &mut Workspace<F>,
        panels: &mut PackedOperands<N::Word>,
        into: &mut GradientSink<F>,
    ) -> usize {
        let Self { plan, blocking, step: ScoreGradient { selection, normalized, adjoints }, kept, .. } = self;
        let (mut list, mut active) =
            (std::mem::take(&mut workspace.list), std::mem::take(&mut workspace.active));
        ensure_capacity(&mut list, plan.wave);
        ensure_len(&mut active, sites.count(), false);
        let of_call = &mut active[..sites.count()];
        par_for(parts_mut(of_call, SITES_PER_TASK), |many, active| {
            for (at, active) in active.iter_mut().enumerate() {
                *active = adjoints.is_active::<F>(many * SITES_PER_TASK + at, selection);
            }
        });
        backward_waves(plan, blocking.strip, normalized, *kept, of_call, &mut list, |wave, saved| {
            self.wave::<N>(sites, wave, saved, workspace, panels, into);
        });
        let count = count_active(of_call);
        (workspace.list, workspace.active) = (list, active);
        count
    }

    /// One wave, whose hidden rows may be saved.
    fn wave<N: OperandFormat<F>>(
        &self,
        sites: &dyn DynSites<F>,
        wave: &[usize],
        saved: bool,
        workspace: &mut Workspace<F>,
        panels: &mut PackedOperands<N::Word>,
        into: &mut GradientSink<F>,
    ) {
        let Self { plan, blocking, head, step, .. } = self;
        let Workspace { hidden, gradient, z, sums, .. } = workspace;
        let (rows, h, recompute) = (wave.len(), head.hidden, self.recompute(wave));
        let (blocks, most) = (rows.div_ceil(plan.block), plan.wave.div_ceil(plan.block));
        ensure_slots(z, blocking.slots(plan));
        ensure_len(sums, plan.tiles * most * blocking.strips * plan.tile_classes, F::ZERO);
        ensure_len(gradient, plan.wave * h, F::ZERO);
        let gradient = &mut gradient[..rows * h];
        let right =
            &mut panels.h_right.ensure_len(most * blocking.h_right, N::ZERO)[..blocks * blocking.h_right];
        let hidden = if saved {
            let hidden = &step.normalized.hidden.rows[wave[0] * h..][..rows * h];
            pack_right::<F, N>(plan, hidden, h, right);
            hidden
        } else {
            ensure_len(hidden, plan.wave * h, F::ZERO);
            let hidden = &mut hidden[..rows * h];
            let left = recompute.then(|| {
                &mut panels.h_left.ensure_len(most * blocking.h_left, N::ZERO)[..blocks * blocking.h_left]
            });
            fill::<F, N>(plan, sites, wave, hidden, [left, Some(right)]);
            &*hidden
        };
        for group in plan.tile_groups(head.classes) {
            let sums = &mut sums
                [..group.len().div_ceil(plan.tile_classes) * blocks * blocking.strips * plan.tile_classes];
            if recompute {
                pack_for_scores::<F, N>(plan, head, &group, &mut panels.wt_right);
            }
            pack_for_gradient::<F, N>(plan, head, &group, &mut panels.w_right);
            self.of_scores::<N>(wave, &group, panels, z, sums);
            let (panels, weight) = (&*panels, &mut into.weight[group.start * h..group.end * h]);
            let (bias, gradient) = (&mut into.bias[group.clone()], &mut *gradient);
            let of_head = || self.of_head::<N>(rows, panels, weight);
            let of_hidden = || self.of_hidden::<N>(rows, &group, panels, gradient);
            rayon::join(of_head, || rayon::join(of_hidden, || self.of_bias(rows, sums, bias)));
        }
        let pieces = (
            parts(wave, ROWS_PER_TASK),
            parts(hidden, ROWS_PER_TASK * h),
            parts_mut(gradient, ROWS_PER_TASK * h),
        );
        par_for(pieces, |_, (wave, hidden, gradient)| sites.pull_back_rows(wave, hidden, gradient));
        (into.scatter)(wave, gradient);
    }

    /// Whether a wave's scores were not kept.
    fn recompute(&self, wave: &[usize]) -> bool {
        wave[0] >= self.kept
    }

    /// The gradients of the scores, packed on the left either way, and their column sums, of each strip of each tile.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b, or as kept;  G = -A exp((Z - m) - log s), then += a at the selected classes
    ///     column sums of G;  pack G;  pack Gᵀ, as these steps of the block's sum
    /// ```
    fn of_scores<N: OperandFormat<F>>(
        &self,
        wave: &[usize],
        group: &Range<usize>,
        panels: &mut PackedOperands<N::Word>,
        slots: &WorkerSlots<Vec<F>>,
        sums: &mut [F],
    ) {
        let Self { plan, blocking, head, step, .. } = self;
        let (h, blocks, recompute) = (head.hidden, wave.len().div_ceil(plan.block), self.recompute(wave));
        let (count, strip) = (group.len().div_ceil(plan.tile_classes), blocking.strip);
        let (mut gt_room, mut g_room) =
            (std::mem::take(&mut panels.gt_left), std::mem::take(&mut panels.g_left));
        let gt_left = gt_room.ensure_len(count * blocks * blocking.gt_left, N::ZERO);
        let g_left = g_room.ensure_len(count * blocks * blocking.g_left, N::ZERO);
        let tiles = (
            parts_mut(sums, blocks * blocking.strips * plan.tile_classes),
            parts_mut(gt_left, blocks * blocking.gt_left),
            parts_mut(g_left, blocks * blocking.g_left),
        );
        par_for(tiles, |tile, (sums, gt_left, g_left)| {
            let from = group.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(group.end - from);
            let classes = from..from + width;
            let blocks = (
                parts_mut(sums, blocking.strips * width),
                parts_mut(gt_left, blocking.gt_left),
                parts_mut(g_left, blocking.g_left),
                parts(wave, plan.block),
            );
            par_for(blocks, |block, (sums, gt_left, g_left, wave)| {
                let (depth, gt_left) = (wave.len(), Mutex::new(gt_left));
                let g_left = parts_mut(g_left, N::words(Operand::Left, strip, width));
                par_for((parts_mut(sums, width), g_left, parts(wave, strip)), |at, (sums, g_left, sites)| {
                    let first = at * strip;
                    let z = &mut *slots.lock();
                    ensure_len(z, sites.len() * width, F::ZERO);
                    let z = &mut z[..sites.len() * width];
                    if recompute {
                        let out = ViewMut::new(z, sites.len(), width);
                        scores::<F, N>(blocking, h, (block, first), tile, panels, out);
                    }
                    for (g, &site) in z.chunks_exact_mut(width).zip(sites) {
                        let z = match recompute {
                            true => ScoreSource::InPlace(head.bias.map(|bias| &bias[classes.clone()])),
                            false => ScoreSource::Saved(step.normalized.scores.row(site, &classes)),
                        };
                        step.apply(site, from, z, g);
                    }
                    sums.fill(F::ZERO);
                    F::add_rows(sums, z);
                    let g = View::new(z, sites.len(), width);
                    N::pack(g, Operand::Left, g_left, 0, width);
                    N::pack(g.transposed(), Operand::Left, &mut lock(&gt_left), first, depth);
                });
            });
        });
        (panels.gt_left, panels.g_left) = (gt_room, g_room);
    }

    /// ```text
    /// par for each tile, par for each piece of its classes:
    ///     for each block, par for each MR classes:  dW += Gᵀ h
    /// ```
    ///
    /// The pieces of a block come one after the other on a thread that nobody helps, with the rows in its second cache.
    fn of_head<N: OperandFormat<F>>(&self, rows: usize, panels: &PackedOperands<N::Word>, weight: &mut [F]) {
        let Self { plan, head, blocking: Blocking { piece, leaf, gt_left, h_right, .. }, .. } = *self;
        let PackedOperands { gt_left: all, h_right: right, .. } = panels;
        let (h, blocks) = (head.hidden, rows.div_ceil(plan.block));
        let tiles = (parts_mut(weight, plan.tile_classes * h), parts(all, blocks * gt_left));
        par_for(tiles, |_, (weight, packed)| {
            par_for(parts_mut(weight, piece * h), |at, weight| {
                for (block, packed) in packed.chunks(gt_left).enumerate() {
                    let depth = plan.block.min(rows - block * plan.block);
                    par_for(parts_mut(weight, leaf * h), |row, weight| {
                        let left = &packed[N::words(Operand::Left, at * piece + row * leaf, depth)..];
                        let out = ViewMut::new(weight, weight.len() / h, h);
                        N::multiply(out, left, &right[block * h_right..], depth, Accumulate::Add);
                    });
                }
            });
        });
    }

    /// ```text
    /// par for each block of sites:
    ///     for each tile, par for each MR sites:  dh (=|+=) G W
    /// ```
    ///
    /// The first group overwrites it.
    fn of_hidden<N: OperandFormat<F>>(
        &self,
        rows: usize,
        group: &Range<usize>,
        panels: &PackedOperands<N::Word>,
        gradient: &mut [F],
    ) {
        let Self { plan, head, blocking: Blocking { leaf, g_left, w_right, .. }, .. } = *self;
        let (h, blocks) = (head.hidden, rows.div_ceil(plan.block));
        par_for(parts_mut(gradient, plan.block * h), |block, gradient| {
            for tile in 0..group.len().div_ceil(plan.tile_classes) {
                let depth = plan.tile_classes.min(group.len() - tile * plan.tile_classes);
                let packed = &panels.g_left[(tile * blocks + block) * g_left..];
                let first = group.start == 0 && tile == 0;
                let how = if first { Accumulate::Replace } else { Accumulate::Add };
                par_for(parts_mut(gradient, leaf * h), |row, gradient| {
                    let left = &packed[N::words(Operand::Left, row * leaf, depth)..];
                    let out = ViewMut::new(gradient, gradient.len() / h, h);
                    N::multiply(out, left, &panels.w_right[tile * w_right..], depth, how);
                });
            }
        });
    }

    /// Adds the column sums of the strips of each tile.
    ///
    /// ```text
    /// par for each tile, par for each NR classes of it:  db += Σ G, strip after strip
    /// ```
    fn of_bias(&self, rows: usize, sums: &[F], bias: &mut [f64]) {
        let Self { plan, blocking: Blocking { nr, strip, strips, .. }, .. } = *self;
        let of_tile = rows.div_ceil(plan.block) * strips * plan.tile_classes;
        par_for((parts_mut(bias, plan.tile_classes), parts(sums, of_tile)), |_, (bias, sums)| {
            let width = bias.len();
            par_for(parts_mut(bias, nr), |at, bias| {
                for (block, sums) in sums.chunks(strips * width).enumerate() {
                    let rows = plan.block.min(rows.saturating_sub(block * plan.block));
                    for sums in sums.chunks_exact(width).take(rows.div_ceil(strip)) {
                        bias.iter_mut().zip(&sums[at * nr..]).for_each(|(b, g)| *b += g.to_f64());
                    }
                }
            });
        });
    }
}
