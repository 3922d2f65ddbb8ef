//! Sums and maxima over the label arcs into each lattice state.
//!
//! They are the inner loops of the forward, backward and Viterbi recursions of one frame (`step`).
//! p: source state; y: label, 1 to V; q = δ(p, y): target state; `l[p,y]` (`label_arcs`): weight of
//! a label arc; `shifts[p]`: value that is added to all arcs from p, such as α.
//!
//! In a context whose states lead to runs of successive states ([`NextStates::Run`]), the weights
//! of a source state align with its run of target states. If there are many arcs and the runs do
//! not overlap, target states are split into blocks, which are processed in parallel. Each target
//! state is summed in the order of its sources, so that blocks do not change the bits.
use std::ops::Range;

use kernels::{ArcScatter, Real, ScratchReq, items_mut, par_for, parts, parts_mut};

use crate::{Context, context::NextStates};

/// Minimum number of arcs per frame for splitting states into blocks.
const MIN_BLOCKED_ARCS: usize = 1 << 18;
/// Approximate number of parallel blocks of states.
const BLOCKS: usize = 64;

/// The label arcs of a frame by their targets.
pub(crate) struct ArcTargets<'a> {
    context: &'a dyn Context,
    /// `None` if some state does not lead to a run of states.
    runs: Option<StateRuns>,
}

/// Runs of target states, if each state leads to successive states.
struct StateRuns {
    /// First target state of each source state.
    starts: Vec<u32>,
    /// Blocks of target states; empty if states are not split.
    blocks: Vec<TargetBlock>,
    /// First target state of each source state, relative to its block.
    starts_in_block: Vec<u32>,
}

/// Successive target states, and the source states that lead there.
struct TargetBlock {
    targets: Range<usize>,
    /// Ranges of source states, in order.
    source_ranges: Vec<Range<usize>>,
}

impl<'a> ArcTargets<'a> {
    /// Finds the runs of target states of a context.
    pub(crate) fn new(context: &'a dyn Context) -> Self {
        let run_start = |state| match context.next_states(state) {
            NextStates::Run(start) => Some(start as u32),
            NextStates::Same(_) | NextStates::List(_) => None,
        };
        let starts: Option<Vec<u32>> = (0..context.states()).map(run_start).collect();
        Self {
            context,
            runs: starts.map(|starts| StateRuns::new(starts, context.vocabulary(), MIN_BLOCKED_ARCS)),
        }
    }

    /// Memory of the lists of a context with `states` states.
    pub(crate) fn scratch(states: usize) -> ScratchReq {
        // Each block has a list of ranges of source states, at most one range per state in total.
        ScratchReq::new::<u64>(states).and(ScratchReq::new::<Range<usize>>(states))
    }

    /// The context.
    pub(crate) fn context(&self) -> &'a dyn Context {
        self.context
    }

    /// First target state of each source state, if all have runs.
    pub(crate) fn runs(&self) -> Option<&[u32]> {
        self.runs.as_ref().map(|runs| &*runs.starts)
    }

    /// Computes `max[q] = max(max[q], shifts[p] + l[p,y])`.
    pub(crate) fn scatter_max<F: Real>(&self, label_arcs: &[F], shifts: &[F], max: &mut [F]) {
        match &self.runs {
            None => self.for_each_arc(label_arcs, shifts, |_, target, w| {
                max[target] = if w > max[target] { w } else { max[target] };
            }),
            Some(runs) => runs.for_each_block(max, &mut [], |block, max, _| {
                runs.for_each_source_range(block, label_arcs, shifts, |arcs| F::scatter_max(max, arcs));
            }),
        }
    }

    /// Computes `sums[q] += exp(shifts[p] + l[p,y] - max[q])`.
    pub(crate) fn scatter_exp_sum<F: Real>(&self, label_arcs: &[F], shifts: &[F], max: &[F], sums: &mut [F]) {
        match &self.runs {
            None => self.for_each_arc(label_arcs, shifts, |_, target, w| {
                sums[target] += F::from_f64((w - max[target]).to_f64().exp());
            }),
            Some(runs) => runs.for_each_block(sums, &mut [], |block, sums, _| {
                let max = block.map_or(max, |block| &max[block.targets.clone()]);
                runs.for_each_source_range(block, label_arcs, shifts, |arcs| {
                    F::scatter_exp_sum(sums, max, arcs)
                });
            }),
        }
    }

    /// Finds the best arc to each state that is better than `best`.
    ///
    /// Writes its weight including the shift, and its number `p V + y`.
    pub(crate) fn scatter_argmax<F: Real>(
        &self,
        label_arcs: &[F],
        shifts: &[F],
        best: &mut [F],
        best_arcs: &mut [u32],
    ) {
        match &self.runs {
            None => self.for_each_arc(label_arcs, shifts, |arc, target, w| {
                if w > best[target] {
                    (best[target], best_arcs[target]) = (w, arc as u32);
                }
            }),
            Some(runs) => runs.for_each_block(best, best_arcs, |block, best, best_arcs| {
                runs.for_each_source_range(block, label_arcs, shifts, |arcs| {
                    F::scatter_argmax(best, best_arcs, arcs)
                });
            }),
        }
    }

    /// Computes `l[p,y] = exp(l[p,y] + next[δ(p,y)] + shifts[p])` and `sums[p] = Σ_y l[p,y]`.
    ///
    /// `next` has a value for each target state, such as β.
    pub(crate) fn gather_exp<F: Real>(&self, label_arcs: &mut [F], shifts: &[F], next: &[F], sums: &mut [F]) {
        let vocabulary = self.context.vocabulary();
        // Runs: contiguous reads of `next`, in parallel over source states.
        if let Some(StateRuns { starts, blocks, .. }) = &self.runs {
            if blocks.is_empty() {
                return F::gather_exp(label_arcs, shifts, starts, next, sums);
            }
            let rows_per_task = starts.len().div_ceil(BLOCKS);
            let row_tasks =
                (parts_mut(label_arcs, rows_per_task * vocabulary), parts_mut(sums, rows_per_task));
            par_for(
                (row_tasks, parts(shifts, rows_per_task), parts(starts, rows_per_task)),
                |_, ((label_arcs, sums), shifts, starts)| {
                    F::gather_exp(label_arcs, shifts, starts, next, sums);
                },
            );
            return;
        }
        // Any other context: one arc at a time.
        let rows = label_arcs.chunks_exact_mut(vocabulary).zip(sums).zip(shifts);
        for (state, ((row, sum), &shift)) in rows.enumerate() {
            let targets = self.context.next_states(state);
            *sum = F::ZERO;
            for (label, w) in (1..).zip(row) {
                let arc = *w + next[targets.state(label)] + shift;
                *w = if shift == F::NEG_INFINITY { F::ZERO } else { F::from_f64(arc.to_f64().exp()) };
                *sum += *w;
            }
        }
    }

    /// Calls `visit(p V + y, target, weight + shift)` for each arc whose shift is above -inf.
    fn for_each_arc<F: Real>(&self, label_arcs: &[F], shifts: &[F], mut visit: impl FnMut(usize, usize, F)) {
        let vocabulary = self.context.vocabulary();
        for (state, (row, &shift)) in label_arcs.chunks_exact(vocabulary).zip(shifts).enumerate() {
            let targets = self.context.next_states(state);
            if shift != F::NEG_INFINITY {
                for (label, &w) in (1..).zip(row) {
                    visit(state * vocabulary + label, targets.state(label), w + shift);
                }
            }
        }
    }
}

impl StateRuns {
    /// Splits target states into blocks if arcs are many and runs disjoint.
    fn new(starts: Vec<u32>, vocabulary: usize, min_blocked_arcs: usize) -> Self {
        let states = starts.len();
        let mut distinct_starts: Vec<usize> = starts.iter().map(|&start| start as usize).collect();
        distinct_starts.sort_unstable();
        distinct_starts.dedup();
        let is_disjoint = distinct_starts.windows(2).all(|pair| pair[0] + vocabulary <= pair[1]);
        if states * vocabulary < min_blocked_arcs || !is_disjoint {
            return Self { starts, blocks: Vec::new(), starts_in_block: Vec::new() };
        }
        // Blocks of target states: each has the same number of runs, and begins with one.
        let runs_per_block = distinct_starts.len().div_ceil(BLOCKS);
        let mut block_edges: Vec<usize> = distinct_starts.iter().copied().step_by(runs_per_block).collect();
        block_edges[0] = 0;
        block_edges.push(states);
        let block = |edges: &[usize]| TargetBlock { targets: edges[0]..edges[1], source_ranges: Vec::new() };
        let mut blocks: Vec<TargetBlock> = block_edges.windows(2).map(block).collect();
        // The source states of each block.
        let mut starts_in_block = Vec::with_capacity(states);
        for (source, &start) in starts.iter().enumerate() {
            let block = &mut blocks[block_edges.partition_point(|&edge| edge <= start as usize) - 1];
            starts_in_block.push(start - block.targets.start as u32);
            match block.source_ranges.last_mut() {
                Some(last) if last.end == source => last.end += 1,
                _ => block.source_ranges.push(source..source + 1),
            }
        }
        Self { starts, blocks, starts_in_block }
    }

    /// Calls `process` with the part of `values` and `best_arcs` of each block.
    ///
    /// Both have an element for each target state; `best_arcs` may be empty. Without blocks,
    /// `process` gets all of them.
    fn for_each_block<F: Real>(
        &self,
        mut values: &mut [F],
        mut best_arcs: &mut [u32],
        process: impl Fn(Option<&TargetBlock>, &mut [F], &mut [u32]) + Sync,
    ) {
        if self.blocks.is_empty() {
            return process(None, values, best_arcs);
        }
        let mut parts = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let block_values = values.split_off_mut(..block.targets.len()).expect("blocks cover all states");
            let arc_count = block.targets.len().min(best_arcs.len());
            parts.push((
                block,
                block_values,
                best_arcs.split_off_mut(..arc_count).expect("blocks cover all sources"),
            ));
        }
        par_for(items_mut(&mut parts), |_, (block, values, best_arcs)| {
            process(Some(block), values, best_arcs);
        });
    }

    /// Calls `visit` with the arcs to a block, by source range.
    ///
    /// Without a block, it visits all arcs.
    fn for_each_source_range<F: Real>(
        &self,
        block: Option<&TargetBlock>,
        label_arcs: &[F],
        shifts: &[F],
        mut visit: impl FnMut(ArcScatter<F>),
    ) {
        let Some(block) = block else {
            return visit(ArcScatter { rows: label_arcs, shifts, starts: &self.starts, first_row: 0 });
        };
        let vocabulary = label_arcs.len() / self.starts.len();
        for sources in &block.source_ranges {
            visit(ArcScatter {
                rows: &label_arcs[sources.start * vocabulary..sources.end * vocabulary],
                shifts: &shifts[sources.clone()],
                starts: &self.starts_in_block[sources.clone()],
                first_row: sources.start,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FullNGram, NextStateTable};

    /// Checks that blocks of target states do not change result bits.
    fn check_blocks<F: Real + PartialEq>(vocabulary: usize, order: usize) {
        let context = FullNGram::new(vocabulary, order).unwrap();
        let states = context.states();
        let value = |i: usize| F::from_f64(((i * 7919 % 1009) as f64 - 500.0) / 60.0);
        let label_arcs: Vec<F> = (0..states * vocabulary).map(value).collect();
        // Some states are unreachable.
        let shift = |i: usize| if i % 7 == 3 { F::NEG_INFINITY } else { value(i * 31) };
        let shifts: Vec<F> = (0..states).map(shift).collect();
        let unsplit = ArcTargets::new(&context);
        let mut split = ArcTargets::new(&context);
        split.runs = split.runs.map(|runs| StateRuns::new(runs.starts, vocabulary, 0));
        assert!(split.runs.as_ref().unwrap().blocks.len() > 1);
        let results = [unsplit, split].map(|targets| {
            let (mut max, mut best, mut best_arcs) =
                (vec![F::NEG_INFINITY; states], vec![F::ZERO; states], vec![0; states]);
            targets.scatter_max(&label_arcs, &shifts, &mut max);
            max.iter_mut().for_each(|m| *m = if *m == F::NEG_INFINITY { F::ZERO } else { *m });
            targets.scatter_argmax(&label_arcs, &shifts, &mut best, &mut best_arcs);
            let (mut sums, mut arc_marginals, mut row_sums) =
                (vec![F::ZERO; states], label_arcs.clone(), vec![F::ZERO; states]);
            targets.scatter_exp_sum(&label_arcs, &shifts, &max, &mut sums);
            targets.gather_exp(&mut arc_marginals, &shifts, &max, &mut row_sums);
            (max, best, best_arcs, sums, arc_marginals, row_sums)
        });
        assert!(results[0] == results[1]);
    }

    #[test]
    fn blocks_of_states_do_not_change_bits() {
        for (vocabulary, order) in [(2, 3), (5, 2), (17, 2), (3, 5), (40, 1)] {
            if order > 1 {
                check_blocks::<f32>(vocabulary, order);
                check_blocks::<f64>(vocabulary, order);
            }
        }
    }

    #[test]
    fn overlapping_runs_are_not_split() {
        // Two labels: the runs of states p and p + 1 share a state.
        let table: Vec<i64> = (0..600).flat_map(|p| [p % 500, p % 500 + 1]).collect();
        let context = NextStateTable::new(&table, 600, 2).unwrap();
        let ArcTargets { runs: Some(runs), .. } = ArcTargets::new(&context) else {
            panic!("states have runs")
        };
        assert!(StateRuns::new(runs.starts, 2, 0).blocks.is_empty());
    }
}
