//! Forward of the selected normalizer: exact log-probabilities of selected classes.
//!
//! Sites (lattice nodes) are processed in waves and classes in tiles. h: hidden rows; W, b: head
//! weight and bias; Z: scores; r: emissions.
use std::ops::Range;

use kernels::{
    ViewMut, WorkerSlots, ensure_capacity, ensure_len, install,
    packed::{FullFormat, OperandFormat, bf16::Bf16Format},
    par_for, parts, parts_mut,
};

use crate::{
    Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    blocking::{Blocking, ROWS_PER_TASK, ensure_slots, forward_waves},
    head::{PackedOperands, fill, pack_for_scores, scores},
    saved::SavedHidden,
    sites::DynSites,
};

/// Computes emissions of the selected classes, exact over all classes.
///
/// ```text
/// for each wave of sites, for each group of tiles, in parallel over tiles:
///     Z = h Wᵀ + b;  m_j = max Z;  s_j = Σ exp(Z - m_j);  remember Z at the selected classes
/// for each site:  m = max_j m_j;  s = Σ_j s_j exp(m_j - m)
///     logZ = m + log s;  r = (Z_selected - m) - log s
/// ```
///
/// # Shapes
/// `sites` N rows of width H, `head` *C x H*, `selection` *N x S*. N = 0, S = 0 and C = 1 are
/// legal.
///
/// # Errors
/// Shapes that do not match; a budget below the smallest plan; a selected class out of range; an
/// infinite weight; a site whose scores contain NaN or +inf
/// ([`Error::NotFinite`](crate::Error::NotFinite)) or are all -inf
/// ([`Error::AllMasked`](crate::Error::AllMasked)).
///
/// # Cost
/// 2 N H C floating-point operations and N C exponentials; memory as planned by
/// [`Plan::scratch`](crate::Plan::scratch). `f32`
/// products accumulate in `f32`, sums of exponentials in `f64`.
pub fn forward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    workspace: &mut Workspace<F>,
) -> Result<Normalized<F>> {
    F::forward_impl(sites, head, selection, workspace)
}

/// Runs [`forward`] with type-erased sites.
pub(crate) fn forward_impl<F: Real>(
    sites: &dyn DynSites<F>,
    head: &Head<F>,
    selection: &Selection,
    workspace: &mut Workspace<F>,
) -> Result<Normalized<F>> {
    install(|| {
        let plan = workspace.prepare(sites, head, selection)?;
        let mut out = workspace.take_buffers(&plan, [sites.count(), selection.per_site()], head);
        let blocking = Blocking::for_precision(&plan, head.hidden, workspace.precision);
        let pass = Pass { plan, blocking, head, selection };
        match workspace.precision {
            Precision::Full => {
                let mut operands = std::mem::take(&mut workspace.full);
                pass.run::<FullFormat>(sites, workspace, &mut operands, &mut out);
                workspace.full = operands;
            }
            Precision::Bf16 => {
                let mut operands = std::mem::take(&mut workspace.bf16);
                pass.run::<Bf16Format>(sites, workspace, &mut operands, &mut out);
                workspace.bf16 = operands;
            }
        }
        match out.finish(selection) {
            Ok(()) => Ok(out),
            Err(error) => {
                workspace.recycle(out);
                Err(error)
            }
        }
    })
}

/// Arguments shared by all waves of a forward pass.
struct Pass<'a, F> {
    plan: Plan<F>,
    blocking: Blocking,
    head: &'a Head<'a, F>,
    selection: &'a Selection,
}

impl<F: Real> Pass<'_, F> {
    /// Runs all waves.
    fn run<N: OperandFormat<F>>(
        &self,
        sites: &dyn DynSites<F>,
        workspace: &mut Workspace<F>,
        operands: &mut PackedOperands<N::Word>,
        out: &mut Normalized<F>,
    ) {
        let Self { ref plan, ref blocking, head, selection } = *self;
        let (h, per_site) = (head.hidden, selection.per_site().max(1));
        let max_blocks = plan.wave.div_ceil(plan.block);
        let Workspace { wave_sites, hidden, z, statistics, selected_scores, .. } = workspace;
        ensure_capacity(wave_sites, plan.wave);
        ensure_slots(z, blocking.slots(plan));
        ensure_len(selected_scores, plan.wave * plan.tiles * per_site, F::ZERO);
        ensure_len(statistics, plan.wave * plan.tiles, (F::ZERO, 0.0));
        let Normalized { max, log_sum, emissions, scores, hidden: saved } = out;
        let SavedHidden { rows: saved_rows, sites: saved, .. } = saved;
        let (mut saved_rows, mut saved_scores) = (saved_rows.as_mut_slice(), scores.scores.as_mut_slice());
        for wave in forward_waves(plan, sites.count(), blocking.strip) {
            let rows = wave.len();
            wave_sites.clear();
            wave_sites.extend(wave.clone());
            let hidden = match wave.end <= *saved {
                true => saved_rows.split_off_mut(..rows * h).expect("the buffer has all saved rows"),
                false => {
                    ensure_len(hidden, plan.wave * h, F::ZERO);
                    &mut hidden[..rows * h]
                }
            };
            let left = &mut operands.h_left.ensure_len(max_blocks * blocking.h_left, N::ZERO)
                [..rows.div_ceil(plan.block) * blocking.h_left];
            fill::<F, N>(plan, sites, wave_sites, hidden, [Some(left), None]);
            for group in plan.tile_groups(head.classes) {
                let tiles = group.len().div_ceil(plan.tile_classes);
                let keep = (wave.start < plan.saved_scores).then(|| {
                    let keep = saved_scores.split_off_mut(..rows * group.len());
                    keep.expect("the buffer has the scores of all saved sites")
                });
                let statistics = &mut statistics[..rows * tiles];
                let selected_scores = &mut selected_scores[..rows * tiles * per_site];
                pack_for_scores::<F, N>(plan, head, &group, &mut operands.wt_right);
                self.scores::<N>(wave_sites, &group, operands, (keep, z), (statistics, selected_scores));
                merge(statistics, &mut max[wave.clone()], &mut log_sum[wave.clone()]);
                self.select(wave_sites, &group, selected_scores, emissions);
            }
        }
    }

    /// Computes scores, statistics and selected scores of a wave and group.
    ///
    /// With `saved_scores`, all scores are written to it; otherwise they exist for a few rows of
    /// each task. Statistics are the largest score and the sum of exponentials of each row of each
    /// tile.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b;  m = max Z;  s = Σ exp(Z - m);  remember Z at the selected classes
    /// ```
    fn scores<N: OperandFormat<F>>(
        &self,
        wave: &[usize],
        group: &Range<usize>,
        operands: &PackedOperands<N::Word>,
        (saved_scores, slots): (Option<&mut [F]>, &WorkerSlots<Vec<F>>),
        (statistics, selected_scores): (&mut [(F, f64)], &mut [F]),
    ) {
        let Self { ref plan, ref blocking, head, selection } = *self;
        let (rows, per_site, strip) = (wave.len(), selection.per_site().max(1), blocking.strip);
        let outputs = (parts_mut(statistics, rows), parts_mut(selected_scores, rows * per_site));
        let saved_scores = saved_scores.map(|saved_scores| parts_mut(saved_scores, rows * plan.tile_classes));
        par_for((saved_scores, outputs), |tile, (saved_scores, (statistics, selected_scores))| {
            let from = group.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(group.end - from);
            let bias = head.bias.map(|bias| &bias[from..from + width]);
            let score = |at, z: &mut [F], wave: &[usize], statistics: &mut [_], selected_scores: &mut [F]| {
                scores::<F, N>(blocking, head.hidden, at, tile, operands, ViewMut::new(z, wave.len(), width));
                F::tile_statistics(z, width, bias, statistics);
                for ((z, selected_scores), &site) in
                    z.chunks(width).zip(selected_scores.chunks_mut(per_site)).zip(wave)
                {
                    for (slot, class) in selection.active(site) {
                        if let Some(z) = (class as usize).checked_sub(from).and_then(|class| z.get(class)) {
                            selected_scores[slot] = *z;
                        }
                    }
                }
            };
            let outputs =
                (parts_mut(statistics, plan.block), parts_mut(selected_scores, plan.block * per_site));
            let saved_scores = saved_scores.map(|saved_scores| parts_mut(saved_scores, plan.block * width));
            let blocks = (saved_scores, outputs, parts(wave, plan.block));
            par_for(blocks, |block, (saved_scores, (statistics, selected_scores), wave)| {
                let outputs = (parts_mut(statistics, strip), parts_mut(selected_scores, strip * per_site));
                let saved_scores = saved_scores.map(|saved_scores| parts_mut(saved_scores, strip * width));
                par_for(
                    (saved_scores, outputs, parts(wave, strip)),
                    |at, (saved_scores, (statistics, selected_scores), wave)| {
                        let at = (block, at * strip);
                        match saved_scores {
                            Some(z) => score(at, z, wave, statistics, selected_scores),
                            None => {
                                let z = &mut *slots.lock();
                                ensure_len(z, wave.len() * width, F::ZERO);
                                score(at, &mut z[..wave.len() * width], wave, statistics, selected_scores);
                            }
                        }
                    },
                );
            });
        });
    }

    /// Writes the scores of a group's selected classes to `emissions`.
    ///
    /// `Normalized::finish` subtracts logZ later.
    fn select(&self, wave: &[usize], group: &Range<usize>, selected_scores: &[F], emissions: &mut [f64]) {
        let (per_site, rows) = (self.selection.per_site(), wave.len());
        if per_site == 0 {
            return;
        }
        let wave_emissions = &mut emissions[wave[0] * per_site..][..rows * per_site];
        par_for(
            (parts_mut(wave_emissions, ROWS_PER_TASK * per_site), parts(wave, ROWS_PER_TASK)),
            |task, (emissions, sites)| {
                for (at, (emissions, &site)) in emissions.chunks_exact_mut(per_site).zip(sites).enumerate() {
                    for (slot, class) in self.selection.active(site) {
                        let class = class as usize;
                        if group.contains(&class) {
                            let tile = (class - group.start) / self.plan.tile_classes;
                            let row = tile * rows + task * ROWS_PER_TASK + at;
                            emissions[slot] = selected_scores[row * per_site + slot].to_f64();
                        }
                    }
                }
            },
        );
    }
}

/// Merges maxima and sums of tiles into those of sites, in order.
fn merge<F: Real>(statistics: &[(F, f64)], max: &mut [F], sum: &mut [f64]) {
    let rows = max.len();
    par_for((parts_mut(max, ROWS_PER_TASK), parts_mut(sum, ROWS_PER_TASK)), |task, (max, sum)| {
        for (at, (max, sum)) in max.iter_mut().zip(sum).enumerate() {
            for &(tile_max, tile_sum) in statistics[task * ROWS_PER_TASK + at..].iter().step_by(rows) {
                let (low, high) = if tile_max > *max { (*max, tile_max) } else { (tile_max, *max) };
                // exp(-inf + inf) would be NaN; if both are -inf, the sums are added as they are.
                let factor = if low == high { 1.0 } else { (low.to_f64() - high.to_f64()).exp() };
                *sum = if tile_max > *max { *sum * factor + tile_sum } else { *sum + tile_sum * factor };
                *max = high;
            }
        }
    });
}
