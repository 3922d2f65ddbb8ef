//! Where the arcs of a frame lead: sums and maxima over the arcs to each state, and back along them.
//!
//! In a context whose states lead to runs of successive states ([`NextStates::Run`]) whole rows of weights meet whole rows of states. Where
//! there are many arcs and the runs do not overlap, states are cut into blocks, side by side; each is summed in the order of its
//! sources, so that blocks change no bit.
use std::ops::Range;

use kernels::{ArcScatter, Real, ScratchReq, items_mut, par_for, parts, parts_mut};

use crate::{Context, context::NextStates};

/// Arcs of a frame above which states are cut.
const MANY: usize = 1 << 18;
/// Blocks that states are cut into, about.
const BLOCKS: usize = 64;

/// The arcs of a frame by where they lead.
pub struct Reach<'a> {
    context: &'a dyn Context,
    /// None for a context without runs.
    runs: Option<StateRuns>,
}

struct StateRuns {
    /// Where the run of each state begins.
    starts: Vec<u32>,
    /// States that are reached apart from others, if there are many.
    blocks: Vec<StateBlock>,
    /// Where the run of each state begins in its block.
    inside: Vec<u32>,
}

/// Successive states, and runs of all states that lead there.
struct StateBlock {
    states: Range<usize>,
    sources: Vec<Range<usize>>,
}

impl<'a> Reach<'a> {
    pub fn new(context: &'a dyn Context) -> Self {
        let start = |state| match context.after(state) {
            NextStates::Run(first) => Some(first as u32),
            NextStates::Same(_) | NextStates::List(_) => None,
        };
        let starts: Option<Vec<u32>> = (0..context.states()).map(start).collect();
        Self { context, runs: starts.map(|starts| StateRuns::new(starts, context.vocabulary(), MANY)) }
    }

    /// Memory of the lists of a context with `states` states.
    pub fn scratch(states: usize) -> ScratchReq {
        // Each block has a range of sources for every time that its states come round, at most one a state.
        ScratchReq::new::<u64>(states).and(ScratchReq::new::<Range<usize>>(states))
    }

    pub fn context(&self) -> &'a dyn Context {
        self.context
    }

    /// The first of the successive states that the labels from each state lead to, if they do.
    pub fn runs(&self) -> Option<&[u32]> {
        self.runs.as_ref().map(|runs| &*runs.starts)
    }

    /// `max[q] = max(max[q], shifts[p] + l[p,y])`
    pub fn max<F: Real>(&self, lexical: &[F], shifts: &[F], max: &mut [F]) {
        match &self.runs {
            None => self.each(lexical, shifts, |_, to, w| max[to] = if w > max[to] { w } else { max[to] }),
            Some(runs) => runs.in_blocks(max, &mut [], |block, max, _| {
                runs.fans(block, lexical, shifts, |fan| F::scatter_max(max, fan));
            }),
        }
    }

    /// `sums[q] += exp(shifts[p] + l[p,y] - max[q])`
    pub fn sum<F: Real>(&self, lexical: &[F], shifts: &[F], max: &[F], sums: &mut [F]) {
        match &self.runs {
            None => self.each(lexical, shifts, |_, to, w| {
                sums[to] += F::from_f64((w - max[to]).to_f64().exp());
            }),
            Some(runs) => runs.in_blocks(sums, &mut [], |block, sums, _| {
                let max = block.map_or(max, |block| &max[block.states.clone()]);
                runs.fans(block, lexical, shifts, |fan| F::scatter_exp_sum(sums, max, fan));
            }),
        }
    }

    /// The best arc to each state that is better than what is known: its weight and its number `p V + y`.
    pub fn best<F: Real>(&self, lexical: &[F], shifts: &[F], best: &mut [F], from: &mut [u32]) {
        match &self.runs {
            None => self.each(lexical, shifts, |arc, to, w| {
                if w > best[to] {
                    (best[to], from[to]) = (w, arc as u32);
                }
            }),
            Some(runs) => runs.in_blocks(best, from, |block, best, from| {
                runs.fans(block, lexical, shifts, |fan| F::scatter_argmax(best, from, fan));
            }),
        }
    }

    /// `l[p,y] = exp(l[p,y] + next[δ(p,y)] + shifts[p])`, `sums[p] = Σ_y` of it.
    pub fn back<F: Real>(&self, lexical: &mut [F], shifts: &[F], next: &[F], sums: &mut [F]) {
        let vocabulary = self.context.vocabulary();
        if let Some(StateRuns { starts, blocks, .. }) = &self.runs {
            if blocks.is_empty() {
                return F::gather_exp(lexical, shifts, starts, next, sums);
            }
            let rows = starts.len().div_ceil(BLOCKS);
            let own = (parts_mut(lexical, rows * vocabulary), parts_mut(sums, rows));
            par_for(
                (own, parts(shifts, rows), parts(starts, rows)),
                |_, ((lexical, sums), shifts, starts)| {
                    F::gather_exp(lexical, shifts, starts, next, sums);
                },
            );
            return;
        }
        let rows = lexical.chunks_exact_mut(vocabulary).zip(sums).zip(shifts);
        for (state, ((row, sum), &shift)) in rows.enumerate() {
            let after = self.context.after(state);
            *sum = F::ZERO;
            for (label, w) in (1..).zip(row) {
                let arc = *w + next[after.label(label)] + shift;
                *w = if shift == F::NEG_INFINITY { F::ZERO } else { F::from_f64(arc.to_f64().exp()) };
                *sum += *w;
            }
        }
    }

    fn each<F: Real>(&self, lexical: &[F], shifts: &[F], mut visit: impl FnMut(usize, usize, F)) {
        let vocabulary = self.context.vocabulary();
        for (state, (row, &shift)) in lexical.chunks_exact(vocabulary).zip(shifts).enumerate() {
            let after = self.context.after(state);
            if shift != F::NEG_INFINITY {
                for (label, &w) in (1..).zip(row) {
                    visit(state * vocabulary + label, after.label(label), w + shift);
                }
            }
        }
    }
}

impl StateRuns {
    fn new(starts: Vec<u32>, vocabulary: usize, many: usize) -> Self {
        let states = starts.len();
        let mut firsts: Vec<usize> = starts.iter().map(|&start| start as usize).collect();
        firsts.sort_unstable();
        firsts.dedup();
        let apart = firsts.windows(2).all(|two| two[0] + vocabulary <= two[1]);
        if states * vocabulary < many || !apart {
            return Self { starts, blocks: Vec::new(), inside: Vec::new() };
        }
        let each = firsts.len().div_ceil(BLOCKS);
        let mut edges: Vec<usize> = firsts.iter().copied().step_by(each).collect();
        edges[0] = 0;
        edges.push(states);
        let block = |states: &[usize]| StateBlock { states: states[0]..states[1], sources: Vec::new() };
        let mut blocks: Vec<StateBlock> = edges.windows(2).map(block).collect();
        let mut inside = Vec::with_capacity(states);
        for (source, &start) in starts.iter().enumerate() {
            let block = &mut blocks[edges.partition_point(|&edge| edge <= start as usize) - 1];
            inside.push(start - block.states.start as u32);
            match block.sources.last_mut() {
                Some(last) if last.end == source => last.end += 1,
                _ => block.sources.push(source..source + 1),
            }
        }
        Self { starts, blocks, inside }
    }

    /// Runs on the parts of states, and of what may stand beside them, that belong to each block, or on all of them.
    fn in_blocks<F: Real>(
        &self,
        mut states: &mut [F],
        mut beside: &mut [u32],
        run: impl Fn(Option<&StateBlock>, &mut [F], &mut [u32]) + Sync,
    ) {
        if self.blocks.is_empty() {
            return run(None, states, beside);
        }
        let mut parts = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let own = states.split_off_mut(..block.states.len()).expect("blocks are all states");
            let most = block.states.len().min(beside.len());
            parts.push((block, own, beside.split_off_mut(..most).expect("there are so many")));
        }
        par_for(items_mut(&mut parts), |_, (block, states, beside)| run(Some(block), states, beside));
    }

    /// The arcs that lead to a block, or all of them, in the order of their sources.
    fn fans<F: Real>(
        &self,
        block: Option<&StateBlock>,
        lexical: &[F],
        shifts: &[F],
        mut visit: impl FnMut(ArcScatter<F>),
    ) {
        let Some(block) = block else {
            return visit(ArcScatter { rows: lexical, shifts, starts: &self.starts, first_row: 0 });
        };
        let vocabulary = lexical.len() / self.starts.len();
        for sources in &block.sources {
            visit(ArcScatter {
                rows: &lexical[sources.start * vocabulary..sources.end * vocabulary],
                shifts: &shifts[sources.clone()],
                starts: &self.inside[sources.clone()],
                first_row: sources.start,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FullNGram, NextStateTable};

    /// Blocks, one list of all arcs, and a table of the same states: the same bits.
    fn blocks_change_nothing<F: Real + PartialEq>(vocabulary: usize, order: usize) {
        let context = FullNGram::new(vocabulary, order).unwrap();
        let c = context.states();
        let number = |i: usize| F::from_f64(((i * 7919 % 1009) as f64 - 500.0) / 60.0);
        let lexical: Vec<F> = (0..c * vocabulary).map(number).collect();
        let blocked = |i: usize| if i % 7 == 3 { F::NEG_INFINITY } else { number(i * 31) };
        let shifts: Vec<F> = (0..c).map(blocked).collect();
        let whole = Reach::new(&context);
        let mut cut = Reach::new(&context);
        cut.runs = cut.runs.map(|runs| StateRuns::new(runs.starts, vocabulary, 0));
        assert!(cut.runs.as_ref().unwrap().blocks.len() > 1);
        let results = [whole, cut].map(|reach| {
            let (mut max, mut best, mut from) = (vec![F::NEG_INFINITY; c], vec![F::ZERO; c], vec![0; c]);
            reach.max(&lexical, &shifts, &mut max);
            max.iter_mut().for_each(|m| *m = if *m == F::NEG_INFINITY { F::ZERO } else { *m });
            reach.best(&lexical, &shifts, &mut best, &mut from);
            let (mut sums, mut back, mut rows) = (vec![F::ZERO; c], lexical.clone(), vec![F::ZERO; c]);
            reach.sum(&lexical, &shifts, &max, &mut sums);
            reach.back(&mut back, &shifts, &max, &mut rows);
            (max, best, from, sums, back, rows)
        });
        assert!(results[0] == results[1]);
    }

    #[test]
    fn blocks_of_states_change_no_bit() {
        for (vocabulary, order) in [(2, 3), (5, 2), (17, 2), (3, 5), (40, 1)] {
            if order > 1 {
                blocks_change_nothing::<f32>(vocabulary, order);
                blocks_change_nothing::<f64>(vocabulary, order);
            }
        }
    }

    #[test]
    fn runs_that_overlap_are_not_cut() {
        let table: Vec<i64> = (0..600).flat_map(|p| [p % 500, p % 500 + 1]).collect();
        let context = NextStateTable::new(&table, 600, 2).unwrap();
        let Reach { runs: Some(runs), .. } = Reach::new(&context) else { panic!("they are runs") };
        assert!(StateRuns::new(runs.starts, 2, 0).blocks.is_empty());
    }
}
