//! Forward pass of the selected normalizer: log-probabilities of selected classes.
//!
//! Sites (lattice nodes) are processed in waves and classes in tiles; [`Plan`] defines wave, block,
//! tile and group. h: hidden rows *N x H*; W, b: head weight *C x H* and bias; Z: scores; r:
//! emissions *N x S*; j: tile; m: largest score of a site; s: sum of its exponentials.
use std::ops::Range;

use kernels::{
    ViewMut, WorkerSlots, ensure_capacity, ensure_len,
    packed::{
        FullFormat, OperandFormat,
        bf16::{Bf16Format, SplitBf16Format},
    },
    par_for, parts, parts_mut, run_in_pool,
};

use crate::{
    Head, Normalized, Plan, Precision, Real, Result, Selection, Sites, Workspace,
    blocking::{Blocking, ROWS_PER_TASK, ensure_slots, forward_waves},
    head::{PackedOperands, fill_and_pack, pack_for_scores, strip_scores},
    sites::DynSites,
};

/// Computes emissions of the selected classes, exact over all classes.
///
/// ```text
/// for each wave of sites, for each group of tiles, in parallel over tiles:
///     Z = h Wᵀ + b;  m_j = max Z;  s_j = Σ exp(Z - m_j);  copy Z at the selected classes
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
    run_in_pool(|| {
        let plan = workspace.prepare(sites, head, selection)?;
        let mut out = workspace.take_buffers(&plan, sites.count(), selection.per_site(), head);
        let blocking = Blocking::for_precision(&plan, head.hidden, workspace.precision);
        let pass = ForwardPass { plan, blocking, head, selection };
        match workspace.precision.resolve::<F>() {
            Precision::Full => {
                let mut operands = std::mem::take(&mut workspace.full_operands);
                pass.run::<FullFormat>(sites, workspace, &mut operands, &mut out);
                workspace.full_operands = operands;
            }
            Precision::Bf16 => {
                let mut operands = std::mem::take(&mut workspace.bf16_operands);
                pass.run::<Bf16Format>(sites, workspace, &mut operands, &mut out);
                workspace.bf16_operands = operands;
            }
            Precision::Bf16x3 => {
                let mut operands = std::mem::take(&mut workspace.bf16_operands);
                pass.run::<SplitBf16Format>(sites, workspace, &mut operands, &mut out);
                workspace.bf16_operands = operands;
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
struct ForwardPass<'a, F> {
    plan: Plan<F>,
    blocking: Blocking,
    head: &'a Head<'a, F>,
    selection: &'a Selection,
}

/// Memory of the scores of a wave and group.
struct ScoreMemory<'a, F> {
    /// Receives all scores, if they are saved for backward.
    saved: Option<&'a mut [F]>,
    /// Scores of the current tasks, if they are not.
    slots: &'a WorkerSlots<Vec<F>>,
}

impl<F: Real> ForwardPass<'_, F> {
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
        let max_blocks = plan.wave_sites.div_ceil(plan.block_sites);
        let Workspace { wave_sites, hidden, score_slots, statistics, selected_scores, .. } = workspace;
        ensure_capacity(wave_sites, plan.wave_sites);
        ensure_slots(score_slots, blocking.slot_count(plan));
        ensure_len(selected_scores, plan.wave_sites * plan.group_tiles * per_site, F::ZERO);
        ensure_len(statistics, plan.wave_sites * plan.group_tiles, (F::ZERO, 0.0));
        let Normalized { max, log_sum, emissions, saved_scores, saved_hidden } = out;
        let hidden_sites = saved_hidden.sites;
        let (mut saved_rows, mut saved_scores) =
            (saved_hidden.rows.as_mut_slice(), saved_scores.scores.as_mut_slice());
        for wave in forward_waves(plan, sites.count(), blocking.strip_rows) {
            let rows = wave.len();
            wave_sites.clear();
            wave_sites.extend(wave.clone());
            // Hidden rows of the wave, in saved or in reused memory.
            let hidden = match wave.end <= hidden_sites {
                true => saved_rows.split_off_mut(..rows * h).expect("the buffer has all saved rows"),
                false => {
                    ensure_len(hidden, plan.wave_sites * h, F::ZERO);
                    &mut hidden[..rows * h]
                }
            };
            let h_left = &mut operands.h_left.ensure_len(max_blocks * blocking.h_left_words, N::ZERO)
                [..rows.div_ceil(plan.block_sites) * blocking.h_left_words];
            fill_and_pack::<F, N>(plan, sites, wave_sites, hidden, [Some(h_left), None]);
            // Scores, for some tiles at a time.
            for group in plan.tile_groups(head.classes) {
                let tiles = group.len().div_ceil(plan.tile_classes);
                let group_scores = (wave.start < plan.saved_scores).then(|| {
                    let group_scores = saved_scores.split_off_mut(..rows * group.len());
                    group_scores.expect("the buffer has the scores of all saved sites")
                });
                let statistics = &mut statistics[..rows * tiles];
                let selected_scores = &mut selected_scores[..rows * tiles * per_site];
                pack_for_scores::<F, N>(plan, head, &group, &mut operands.wt_right);
                let memory = ScoreMemory { saved: group_scores, slots: score_slots };
                self.compute_scores::<N>(wave_sites, &group, operands, memory, statistics, selected_scores);
                merge_tile_statistics(statistics, &mut max[wave.clone()], &mut log_sum[wave.clone()]);
                self.gather_selected(wave_sites, &group, selected_scores, emissions);
            }
        }
    }

    /// Computes scores, statistics and selected scores of a wave and group.
    ///
    /// Scores that are saved are all written to `memory`; otherwise they exist for a few rows of
    /// each task. Statistics are the largest score and the sum of exponentials of each row of each
    /// tile.
    ///
    /// ```text
    /// par for each tile, par for each block, par for each strip:
    ///     Z = h Wᵀ + b;  m = max Z;  s = Σ exp(Z - m);  remember Z at the selected classes
    /// ```
    fn compute_scores<N: OperandFormat<F>>(
        &self,
        wave: &[usize],
        group: &Range<usize>,
        operands: &PackedOperands<N::Word>,
        memory: ScoreMemory<F>,
        statistics: &mut [(F, f64)],
        selected_scores: &mut [F],
    ) {
        let ScoreMemory { saved: saved_scores, slots } = memory;
        let Self { ref plan, ref blocking, head, selection } = *self;
        let (rows, per_site, strip_rows) = (wave.len(), selection.per_site().max(1), blocking.strip_rows);
        let outputs = (parts_mut(statistics, rows), parts_mut(selected_scores, rows * per_site));
        let saved_scores = saved_scores.map(|saved_scores| parts_mut(saved_scores, rows * plan.tile_classes));
        par_for((saved_scores, outputs), |tile, (saved_scores, (statistics, selected_scores))| {
            let first_class = group.start + tile * plan.tile_classes;
            let width = plan.tile_classes.min(group.end - first_class);
            let bias = head.bias.map(|bias| &bias[first_class..first_class + width]);
            let score_strip = |block: usize,
                               first_row: usize,
                               z: &mut [F],
                               wave: &[usize],
                               statistics: &mut [_],
                               selected_scores: &mut [F]| {
                let out = ViewMut::new(&mut *z, wave.len(), width);
                strip_scores::<F, N>(blocking, head.hidden, block, first_row, tile, operands, out);
                F::tile_statistics(z, width, bias, statistics);
                for ((z, selected_scores), &site) in
                    z.chunks(width).zip(selected_scores.chunks_mut(per_site)).zip(wave)
                {
                    for (slot, class) in selection.active(site) {
                        if let Some(z) =
                            (class as usize).checked_sub(first_class).and_then(|class| z.get(class))
                        {
                            selected_scores[slot] = *z;
                        }
                    }
                }
            };
            let outputs = (
                parts_mut(statistics, plan.block_sites),
                parts_mut(selected_scores, plan.block_sites * per_site),
            );
            let saved_scores =
                saved_scores.map(|saved_scores| parts_mut(saved_scores, plan.block_sites * width));
            let blocks = (saved_scores, outputs, parts(wave, plan.block_sites));
            par_for(blocks, |block, (saved_scores, (statistics, selected_scores), wave)| {
                let outputs =
                    (parts_mut(statistics, strip_rows), parts_mut(selected_scores, strip_rows * per_site));
                let saved_scores =
                    saved_scores.map(|saved_scores| parts_mut(saved_scores, strip_rows * width));
                par_for(
                    (saved_scores, outputs, parts(wave, strip_rows)),
                    |strip, (saved_scores, (statistics, selected_scores), wave)| {
                        let first_row = strip * strip_rows;
                        match saved_scores {
                            Some(z) => score_strip(block, first_row, z, wave, statistics, selected_scores),
                            None => {
                                let z = &mut *slots.lock();
                                ensure_len(z, wave.len() * width, F::ZERO);
                                let z = &mut z[..wave.len() * width];
                                score_strip(block, first_row, z, wave, statistics, selected_scores);
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
    fn gather_selected(
        &self,
        wave: &[usize],
        group: &Range<usize>,
        selected_scores: &[F],
        emissions: &mut [f64],
    ) {
        let (per_site, rows) = (self.selection.per_site(), wave.len());
        if per_site == 0 {
            return;
        }
        let wave_emissions = &mut emissions[wave[0] * per_site..][..rows * per_site];
        par_for(
            (parts_mut(wave_emissions, ROWS_PER_TASK * per_site), parts(wave, ROWS_PER_TASK)),
            |task, (emissions, sites)| {
                for (index, (emissions, &site)) in emissions.chunks_exact_mut(per_site).zip(sites).enumerate()
                {
                    for (slot, class) in self.selection.active(site) {
                        let class = class as usize;
                        if group.contains(&class) {
                            let tile = (class - group.start) / self.plan.tile_classes;
                            let row = tile * rows + task * ROWS_PER_TASK + index;
                            emissions[slot] = selected_scores[row * per_site + slot].to_f64();
                        }
                    }
                }
            },
        );
    }
}

/// Merges maxima and sums of tiles into those of sites, in order.
fn merge_tile_statistics<F: Real>(statistics: &[(F, f64)], max: &mut [F], sum: &mut [f64]) {
    let rows = max.len();
    par_for((parts_mut(max, ROWS_PER_TASK), parts_mut(sum, ROWS_PER_TASK)), |task, (max, sum)| {
        for (index, (max, sum)) in max.iter_mut().zip(sum).enumerate() {
            for &(tile_max, tile_sum) in statistics[task * ROWS_PER_TASK + index..].iter().step_by(rows) {
                let (smaller, larger) = if tile_max > *max { (*max, tile_max) } else { (tile_max, *max) };
                // exp(-inf + inf) would be NaN; if both are -inf, the sums are added as they are.
                let factor = if smaller == larger { 1.0 } else { (smaller.to_f64() - larger.to_f64()).exp() };
                *sum = if tile_max > *max { *sum * factor + tile_sum } else { *sum + tile_sum * factor };
                *max = larger;
            }
        }
    });
}
