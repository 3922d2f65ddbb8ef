//! Forward: emissions and the two halves of logZ, one wave of sites at a time, tile by tile.
use std::ops::Range;

use kernels::{
    ViewMut, WorkerSlots, ensure_capacity, ensure_len, install,
    packed::{Full, OperandFormat, half::Half},
    par_for, parts, parts_mut,
};

use crate::{
    Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    blocking::{Blocking, ROWS_PER_TASK, ensure_slots, forward_waves},
    head::{PackedOperands, fill, pack_for_scores, scores},
    saved::SavedHidden,
    sites::DynSites,
};

/// Emissions of the selected classes, exact over all classes.
///
/// ```text
/// for each wave of sites, for each group of tiles, in parallel over tiles:
///     Z = h Wᵀ + b;  m_j = max Z;  s_j = Σ exp(Z - m_j);  remember Z at the selected classes
/// for each site:  m = max_j m_j;  s = Σ_j s_j exp(m_j - m)
///     logZ = m + log s;  r = (Z_selected - m) - log s
/// ```
///
/// # Shapes
/// `sites` N rows of width H, `head` *C x H*, `selection` *N x S*. N = 0, S = 0 and C = 1 are legal.
///
/// # Errors
/// Shapes that do not fit, a budget below the smallest plan, a selected class out of range, an infinite weight, a site whose scores hold NaN or +inf
/// ([`Error::NotFinite`](crate::Error::NotFinite)) or are all -inf ([`Error::AllMasked`](crate::Error::AllMasked)).
///
/// # Cost
/// 2 N H C floating-point operations and N C exponentials; memory as [`Plan::scratch`](crate::Plan::scratch) says. `f32`
/// products accumulate in `f32`, sums of exponentials in `f64`.
pub fn forward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    workspace: &mut Workspace<F>,
) -> Result<Normalized<F>> {
    F::forward_impl(sites, head, selection, workspace)
}

/// [`forward`] of any sites.
pub(crate) fn forward_impl<F: Real>(
    sites: &dyn DynSites<F>,
    head: &Head<F>,
    selection: &Selection,
    workspace: &mut Workspace<F>,
) -> Result<Normalized<F>> {
    install(|| {
        let plan = workspace.prepare(sites, head, selection)?;
        let mut out = workspace.take_buffers(&plan, [sites.count(), selection.per_site()], head);
        let blocking = Blocking::of(&plan, head.hidden, workspace.precision);
        let pass = Pass { plan, blocking, head, selection };
        match workspace.precision {
            Precision::Full => {
                let mut panels = std::mem::take(&mut workspace.full);
                pass.run::<Full>(sites, workspace, &mut panels, &mut out);
                workspace.full = panels;
            }
            Precision::Bf16 => {
                let mut panels = std::mem::take(&mut workspace.half);
                pass.run::<Half>(sites, workspace, &mut panels, &mut out);
                workspace.half = panels;
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

/// What all waves of a forward have in common.
struct Pass<'a, F> {
    plan: Plan<F>,
    blocking: Blocking,
    head: &'a Head<'a, F>,
    selection: &'a Selection,
}

impl<F: Real> Pass<'_, F> {
    /// All waves.
    fn run<N: OperandFormat<F>>(
        &self,
        sites: &dyn DynSites<F>,
        workspace: &mut Workspace<F>,
        panels: &mut PackedOperands<N::Word>,
        out: &mut Normalized<F>,
    ) {
        let Self { ref plan, ref blocking, head, selection } = *self;
        let (h, per_site) = (head.hidden, selection.per_site().max(1));
        let most = plan.wave.div_ceil(plan.block);
        let Workspace { list, hidden, z, statistics, picked, .. } = workspace;
        ensure_capacity(list, plan.wave);
        ensure_slots(z, blocking.slots(plan));
        ensure_len(picked, plan.wave * plan.tiles * per_site, F::ZERO);
        ensure_len(statistics, plan.wave * plan.tiles, (F::ZERO, 0.0));
        let Normalized { max, log_sum, emissions, scores, hidden: saved } = out;
        let SavedHidden { rows: saved_rows, sites: saved, .. } = saved;
        let (mut saved_rows, mut kept) = (saved_rows.as_mut_slice(), scores.scores.as_mut_slice());
        for wave in forward_waves(plan, sites.count(), blocking.strip) {
            let rows = wave.len();
            list.clear();
            list.extend(wave.clone());
            let hidden = match wave.end <= *saved {
                true => saved_rows.split_off_mut(..rows * h).expect("there is room for all saved rows"),
                false => {
                    ensure_len(hidden, plan.wave * h, F::ZERO);
                    &mut hidden[..rows * h]
                }
            };
            let left = &mut panels.h_left.ensure_len(most * blocking.h_left, N::ZERO)
                [..rows.div_ceil(plan.block) * blocking.h_left];
            fill::<F, N>(plan, sites, list, hidden, [Some(left), None]);
            for group in plan.tile_groups(head.classes) {
                let tiles = group.len().div_ceil(plan.tile_classes);
                let keep = (wave.start < plan.kept).then(|| {
                    let keep = kept.split_off_mut(..rows * group.len());
                    keep.expect("there is room for the scores of all kept sites")
                });
                let statistics = &mut statistics[..rows * tiles];
                let picked = &mut picked[..rows * tiles * per_site];
                pack_for_scores::<F, N>(plan, head, &group, &mut panels.wt_right);
                self.scores::<N>(list, &group, panels, (keep, z), (statistics, picked));
                merge(statistics, &mut max[wave.clone()], &mut log_sum[wave.clone()]);
                self.select(list, &group, picked, emissions);
            }
        }
    }

    /// Scores of a wave and a group, all of them `kept` or a few rows of each task `passing`; and what is to be known of
    /// them: largest score and sum of exponentials of each row of each tile, and selected scores where the class is one of
    /// the tile's.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b;  m = max Z;  s = Σ exp(Z - m);  remember Z at the selected classes
    /// ```
    fn scores<N: OperandFormat<F>>(
        &self,
        wave: &[usize],
        group: &Range<usize>,
        panels: &PackedOperands<N::Word>,
        (kept, passing): (Option<&mut [F]>, &WorkerSlots<Vec<F>>),
        (statistics, picked): (&mut [(F, f64)], &mut [F]),
    ) {
        let Self { ref plan, ref blocking, head, selection } = *self;
        let (rows, per_site, strip) = (wave.len(), selection.per_site().max(1), blocking.strip);
        let found = (parts_mut(statistics, rows), parts_mut(picked, rows * per_site));
        let kept = kept.map(|kept| parts_mut(kept, rows * plan.tile_classes));
        par_for((kept, found), |tile, (kept, (statistics, picked))| {
            let from = group.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(group.end - from);
            let bias = head.bias.map(|bias| &bias[from..from + width]);
            let score = |at, z: &mut [F], wave: &[usize], statistics: &mut [_], picked: &mut [F]| {
                scores::<F, N>(blocking, head.hidden, at, tile, panels, ViewMut::new(z, wave.len(), width));
                F::tile_statistics(z, width, bias, statistics);
                for ((z, picked), &site) in z.chunks(width).zip(picked.chunks_mut(per_site)).zip(wave) {
                    for (slot, class) in selection.active(site) {
                        if let Some(z) = (class as usize).checked_sub(from).and_then(|class| z.get(class)) {
                            picked[slot] = *z;
                        }
                    }
                }
            };
            let found = (parts_mut(statistics, plan.block), parts_mut(picked, plan.block * per_site));
            let kept = kept.map(|kept| parts_mut(kept, plan.block * width));
            let blocks = (kept, found, parts(wave, plan.block));
            par_for(blocks, |block, (kept, (statistics, picked), wave)| {
                let found = (parts_mut(statistics, strip), parts_mut(picked, strip * per_site));
                let kept = kept.map(|kept| parts_mut(kept, strip * width));
                par_for((kept, found, parts(wave, strip)), |at, (kept, (statistics, picked), wave)| {
                    let at = (block, at * strip);
                    match kept {
                        Some(z) => score(at, z, wave, statistics, picked),
                        None => {
                            let z = &mut *passing.lock();
                            ensure_len(z, wave.len() * width, F::ZERO);
                            score(at, &mut z[..wave.len() * width], wave, statistics, picked);
                        }
                    }
                });
            });
        });
    }

    /// Remembers the scores of the selected classes of a group.
    fn select(&self, wave: &[usize], group: &Range<usize>, picked: &[F], emissions: &mut [f64]) {
        let (per_site, rows) = (self.selection.per_site(), wave.len());
        if per_site == 0 {
            return;
        }
        let of_wave = &mut emissions[wave[0] * per_site..][..rows * per_site];
        par_for(
            (parts_mut(of_wave, ROWS_PER_TASK * per_site), parts(wave, ROWS_PER_TASK)),
            |few, (emissions, sites)| {
                for (at, (emissions, &site)) in emissions.chunks_exact_mut(per_site).zip(sites).enumerate() {
                    for (slot, class) in self.selection.active(site) {
                        let class = class as usize;
                        if group.contains(&class) {
                            let tile = (class - group.start) / self.plan.tile_classes;
                            let row = tile * rows + few * ROWS_PER_TASK + at;
                            emissions[slot] = picked[row * per_site + slot].to_f64();
                        }
                    }
                }
            },
        );
    }
}

/// Folds the statistics of a group's tiles into those of its sites, in tile order.
fn merge<F: Real>(statistics: &[(F, f64)], max: &mut [F], sum: &mut [f64]) {
    let rows = max.len();
    par_for((parts_mut(max, ROWS_PER_TASK), parts_mut(sum, ROWS_PER_TASK)), |few, (max, sum)| {
        for (at, (max, sum)) in max.iter_mut().zip(sum).enumerate() {
            for &(tile_max, tile_sum) in statistics[few * ROWS_PER_TASK + at..].iter().step_by(rows) {
                let (low, high) = if tile_max > *max { (*max, tile_max) } else { (tile_max, *max) };
                // exp(-inf + inf) would be NaN; without a path below, the other side alone remains.
                let factor = if low == high { 1.0 } else { (low.to_f64() - high.to_f64()).exp() };
                *sum = if tile_max > *max { *sum * factor + tile_sum } else { *sum + tile_sum * factor };
                *max = high;
            }
        }
    });
}
