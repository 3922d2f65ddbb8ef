//! Normalizes the arcs of any weight function, row by row.
//!
//! A row has the V label weights of a context state at a frame. A chain is one label string; a site
//! of it is a frame t and a label position u.
use kernels::{BufferPool, Real, ScratchReq, items_mut, par_for, parts, parts_mut};

use super::log_probabilities::Normalize;
use crate::{Arcs, ArcsMut, BoundWeights, LabelChain, Result};

/// Elements of the rows of one block.
const BLOCK_ELEMENTS: usize = 1 << 18;
const ROWS_PER_TASK: usize = 16;

/// C and V, the numbers of context states and labels.
#[derive(Debug, Clone, Copy)]
pub struct ArcShape {
    pub states: usize,
    pub vocabulary: usize,
}

impl ArcShape {
    /// Frames whose weights backward computes at once.
    fn frames(self) -> usize {
        (BLOCK_ELEMENTS / self.states.saturating_mul(self.vocabulary.saturating_add(1)).max(1)).max(1)
    }

    /// Sites of a chain whose weights backward computes at once.
    fn sites(self) -> usize {
        (BLOCK_ELEMENTS / self.vocabulary.saturating_add(1)).max(1)
    }

    /// Memory of a [`backward`] over `frames` frames.
    pub fn backward_scratch<F>(self, frames: usize) -> ScratchReq {
        let arcs = self.states.saturating_mul(self.vocabulary.saturating_add(1));
        ScratchReq::new::<F>(arcs).times(frames.min(self.frames()))
    }

    /// Memory of a [`backward_chain`].
    pub fn chain_scratch<F>(self) -> ScratchReq {
        // One more position per frame at most doubles the number of sites.
        ScratchReq::new::<F>(self.sites()).times(self.vocabulary.saturating_add(5))
    }
}

/// Computes the weights of all arcs of some frames.
pub fn forward<F: Real>(
    inner: &dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    frames: &[usize],
    arcs: ArcsMut<F>,
) {
    let ArcsMut { blank, lexical } = arcs;
    inner.forward(frames, ArcsMut { blank, lexical });
    let v = shape.vocabulary;
    par_for(
        (parts_mut(blank, ROWS_PER_TASK), parts_mut(lexical, ROWS_PER_TASK * v)),
        |_, (blank, lexical)| {
            for (blank, lexical) in blank.iter_mut().zip(lexical.chunks_exact_mut(v)) {
                normalize.forward(blank, lexical);
            }
        },
    );
}

/// Propagates adjoints of the results of [`forward`].
pub fn backward<F: Real>(
    inner: &mut dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    frames: &[usize],
    adjoints: Arcs<F>,
) {
    let ArcShape { states, vocabulary: v } = shape;
    let count = shape.frames().min(frames.len()) * states;
    let (mut blank, mut lexical) = (vec![F::ZERO; count], vec![F::ZERO; count * v]);
    let all = adjoints.blank.chunks(count.max(1)).zip(adjoints.lexical.chunks((count * v).max(1)));
    for (frames, (blank_adjoint, label_adjoints)) in frames.chunks(shape.frames()).zip(all) {
        let (blank, lexical) = (&mut blank[..blank_adjoint.len()], &mut lexical[..label_adjoints.len()]);
        inner.forward(frames, ArcsMut { blank: &mut *blank, lexical: &mut *lexical });
        let weights = (parts_mut(blank, ROWS_PER_TASK), parts_mut(lexical, ROWS_PER_TASK * v));
        par_for(
            (weights, parts(blank_adjoint, ROWS_PER_TASK), parts(label_adjoints, ROWS_PER_TASK * v)),
            |_, (weights, blank_adjoint, label_adjoints)| {
                let adjoints = blank_adjoint.iter().zip(label_adjoints.chunks_exact(v));
                let weights = weights.0.iter_mut().zip(weights.1.chunks_exact_mut(v));
                for ((blank, lexical), (blank_adjoint, label_adjoints)) in weights.zip(adjoints) {
                    let sum = label_adjoints.iter().map(|g| g.to_f64()).sum();
                    normalize.backward((blank_adjoint.to_f64(), sum), blank, lexical);
                    F::add_slice(lexical, label_adjoints);
                }
            },
        );
        inner.backward(frames, Arcs { blank, lexical });
    }
}

/// Computes weights along a chain: V weights of each site, of which one is kept with the blank.
pub fn forward_chain<F: Real>(
    inner: &dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    pool: &BufferPool<F>,
    (first, chain): (usize, LabelChain),
    arcs: ArcsMut<F>,
) {
    let positions = chain.states.len();
    par_for(
        (parts_mut(arcs.blank, ROWS_PER_TASK), parts_mut(arcs.lexical, ROWS_PER_TASK)),
        |at, (blank, lexical)| {
            let mut row = pool.acquire("task", shape.vocabulary);
            for (site, (blank, lexical)) in (at * ROWS_PER_TASK..).zip(blank.iter_mut().zip(lexical)) {
                let (t, u) = (site / positions, site % positions);
                let state = normalize.state(inner.forward_state(first + t, chain.states[u], &mut row), &row);
                *blank = F::from_f64(state.blank);
                *lexical = chain.labels.get(u).map_or(F::NEG_INFINITY, |&label| {
                    F::from_f64(state.label(row[label as usize - 1].to_f64()))
                });
            }
        },
    );
}

/// Propagates adjoints of the results of [`forward_chain`].
///
/// ```text
/// for each block of positions, for each few frames:
///     in parallel over sites:  weights of the row, and their gradients
///     for each label y:        backward of the inner function, along a chain of only y
/// ```
pub fn backward_chain<F: Real>(
    inner: &mut dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    (first, chain): (usize, LabelChain),
    adjoints: Arcs<F>,
) -> Result<()> {
    let (positions, v) = (chain.states.len(), shape.vocabulary);
    let all = adjoints.blank.len() / positions;
    let block_positions = shape.sites().min(positions);
    let frames_per_block = (shape.sites() / block_positions).clamp(1, all.max(1));
    let mut blank = vec![F::ZERO; frames_per_block * block_positions];
    let mut lexical = vec![F::ZERO; frames_per_block * block_positions * v];
    // The inner function gets one more position, because no label follows the last position.
    let mut chain_adjoints = vec![F::ZERO; 2 * frames_per_block * (block_positions + 1)];
    for from in (0..positions).step_by(block_positions) {
        let block = from..(from + block_positions).min(positions);
        let mut states = chain.states[block.clone()].to_vec();
        states.push(chain.states[block.end - 1]);
        for start in (0..all).step_by(frames_per_block) {
            let count = frames_per_block.min(all - start) * block.len();
            let (blank, lexical) = (&mut blank[..count], &mut lexical[..count * v]);
            let weights = &*inner;
            par_for((items_mut(blank), parts_mut(lexical, v)), |site, (blank, row)| {
                let (t, u) = (start + site / block.len(), block.start + site % block.len());
                let (at, label) = (t * positions + u, chain.labels.get(u));
                let label_adjoint = label.map_or(F::ZERO, |_| adjoints.lexical[at]);
                if adjoints.blank[at] == F::ZERO && label_adjoint == F::ZERO {
                    *blank = F::ZERO;
                    return row.fill(F::ZERO);
                }
                *blank = weights.forward_state(first + t, chain.states[u], row);
                normalize.backward((adjoints.blank[at].to_f64(), label_adjoint.to_f64()), blank, row);
                if let Some(&label) = label {
                    row[label as usize - 1] += label_adjoint;
                }
            });
            let sites = count / block.len() * states.len();
            let (blank_adjoint, label_adjoint) =
                chain_adjoints.split_at_mut(frames_per_block * (block_positions + 1));
            let (blank_adjoint, label_adjoint) = (&mut blank_adjoint[..sites], &mut label_adjoint[..sites]);
            for y in 0..v {
                for site in 0..count {
                    let at = site / block.len() * states.len() + site % block.len();
                    blank_adjoint[at] = if y == 0 { blank[site] } else { F::ZERO };
                    label_adjoint[at] = lexical[site * v + y];
                }
                for last in (block.len()..sites).step_by(states.len()) {
                    (blank_adjoint[last], label_adjoint[last]) = (F::ZERO, F::ZERO);
                }
                let labels = vec![1 + y as u32; block.len()];
                let chain = LabelChain { states: &states, labels: &labels };
                inner.backward_chain(
                    first + start,
                    chain,
                    Arcs { blank: blank_adjoint, lexical: label_adjoint },
                )?;
            }
        }
    }
    Ok(())
}
