//! Local normalization of lattice arcs for any weight function.
//!
//! All V weights of a state are computed; `selected.rs` is the faster way for joint networks. A row
//! has the V label weights of a context state at a frame. A chain is one label string; a site of it
//! is a frame t and a label position u.
use kernels::{BufferPool, Real, ScratchReq, items_mut, par_for, parts, parts_mut};

use super::log_probabilities::Normalize;
use crate::{Arcs, ArcsMut, BoundWeights, LabelChain, Result};

/// Weights of one block of frames or sites in backward.
const BLOCK_ELEMENTS: usize = 1 << 18;
/// Rows of a task.
const ROWS_PER_TASK: usize = 16;

/// Numbers of context states and labels of arcs.
#[derive(Debug, Clone, Copy)]
pub(super) struct ArcShape {
    /// C, the number of context states.
    pub states: usize,
    /// V, the number of labels.
    pub vocabulary: usize,
}

impl ArcShape {
    /// Frames whose weights backward computes at once.
    fn frames_per_block(self) -> usize {
        (BLOCK_ELEMENTS / self.states.saturating_mul(self.vocabulary.saturating_add(1)).max(1)).max(1)
    }

    /// Sites of a chain whose weights backward computes at once.
    fn sites_per_block(self) -> usize {
        (BLOCK_ELEMENTS / self.vocabulary.saturating_add(1)).max(1)
    }

    /// Memory of a [`backward`] over `frames` frames.
    pub(super) fn backward_scratch<F>(self, frames: usize) -> ScratchReq {
        let arcs = self.states.saturating_mul(self.vocabulary.saturating_add(1));
        ScratchReq::new::<F>(arcs).times(frames.min(self.frames_per_block()))
    }

    /// Memory of a [`backward_chain`].
    pub(super) fn chain_scratch<F>(self) -> ScratchReq {
        // A site has V + 1 weights and two adjoints of the chain. One more position per frame at
        // most doubles the number of adjoints.
        ScratchReq::new::<F>(self.sites_per_block()).times(self.vocabulary.saturating_add(1 + 2 * 2))
    }
}

/// Computes the weights of all arcs of some frames.
pub(super) fn forward<F: Real>(
    inner: &dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    frames: &[usize],
    arcs: ArcsMut<F>,
) {
    let ArcsMut { blank, labels: label_arcs } = arcs;
    inner.forward(frames, ArcsMut { blank, labels: label_arcs });
    let v = shape.vocabulary;
    par_for(
        (parts_mut(blank, ROWS_PER_TASK), parts_mut(label_arcs, ROWS_PER_TASK * v)),
        |_, (blank, label_arcs)| {
            for (blank, label_arcs) in blank.iter_mut().zip(label_arcs.chunks_exact_mut(v)) {
                normalize.forward(blank, label_arcs);
            }
        },
    );
}

/// Propagates adjoints of the results of [`forward`].
pub(super) fn backward<F: Real>(
    inner: &mut dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    frames: &[usize],
    adjoints: Arcs<F>,
) {
    let ArcShape { states, vocabulary: v } = shape;
    let block_states = shape.frames_per_block().min(frames.len()) * states;
    let (mut blank, mut label_arcs) = (vec![F::ZERO; block_states], vec![F::ZERO; block_states * v]);
    let adjoint_blocks =
        adjoints.blank.chunks(block_states.max(1)).zip(adjoints.labels.chunks((block_states * v).max(1)));
    for (frames, (blank_adjoint, label_adjoints)) in
        frames.chunks(shape.frames_per_block()).zip(adjoint_blocks)
    {
        let (blank, label_arcs) =
            (&mut blank[..blank_adjoint.len()], &mut label_arcs[..label_adjoints.len()]);
        inner.forward(frames, ArcsMut { blank: &mut *blank, labels: &mut *label_arcs });
        let weights = (parts_mut(blank, ROWS_PER_TASK), parts_mut(label_arcs, ROWS_PER_TASK * v));
        par_for(
            (weights, parts(blank_adjoint, ROWS_PER_TASK), parts(label_adjoints, ROWS_PER_TASK * v)),
            |_, (weights, blank_adjoint, label_adjoints)| {
                let adjoints = blank_adjoint.iter().zip(label_adjoints.chunks_exact(v));
                let weights = weights.0.iter_mut().zip(weights.1.chunks_exact_mut(v));
                for ((blank, label_arcs), (blank_adjoint, label_adjoints)) in weights.zip(adjoints) {
                    let sum = label_adjoints.iter().map(|g| g.to_f64()).sum();
                    normalize.backward(blank_adjoint.to_f64(), sum, blank, label_arcs);
                    F::add_slice(label_arcs, label_adjoints);
                }
            },
        );
        inner.backward(frames, Arcs { blank, labels: label_arcs });
    }
}

/// Computes weights along a chain: V weights of each site, of which one is kept with the blank.
pub(super) fn forward_chain<F: Real>(
    inner: &dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    pool: &BufferPool<F>,
    first_frame: usize,
    chain: LabelChain,
    arcs: ArcsMut<F>,
) {
    let positions = chain.states.len();
    par_for(
        (parts_mut(arcs.blank, ROWS_PER_TASK), parts_mut(arcs.labels, ROWS_PER_TASK)),
        |task, (blank, label_arcs)| {
            let mut row = pool.acquire("task", shape.vocabulary);
            for (site, (blank, label_arc)) in (task * ROWS_PER_TASK..).zip(blank.iter_mut().zip(label_arcs)) {
                let (t, u) = (site / positions, site % positions);
                let state =
                    normalize.state(inner.forward_state(first_frame + t, chain.states[u], &mut row), &row);
                *blank = F::from_f64(state.blank);
                *label_arc = chain.labels.get(u).map_or(F::NEG_INFINITY, |&label| {
                    F::from_f64(state.label_log_probability(row[label as usize - 1].to_f64()))
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
pub(super) fn backward_chain<F: Real>(
    inner: &mut dyn BoundWeights<F>,
    normalize: Normalize,
    shape: ArcShape,
    first_frame: usize,
    chain: LabelChain,
    adjoints: Arcs<F>,
) -> Result<()> {
    let (positions, v) = (chain.states.len(), shape.vocabulary);
    let frame_count = adjoints.blank.len() / positions;
    let block_positions = shape.sites_per_block().min(positions);
    let frames_per_block = (shape.sites_per_block() / block_positions).clamp(1, frame_count.max(1));
    let mut blank = vec![F::ZERO; frames_per_block * block_positions];
    let mut label_arcs = vec![F::ZERO; frames_per_block * block_positions * v];
    // The inner function gets one more position, because no label follows the last position.
    let mut chain_adjoints = vec![F::ZERO; 2 * frames_per_block * (block_positions + 1)];
    for block_start in (0..positions).step_by(block_positions) {
        let block = block_start..(block_start + block_positions).min(positions);
        let mut states = chain.states[block.clone()].to_vec();
        states.push(chain.states[block.end - 1]);
        for block_frame in (0..frame_count).step_by(frames_per_block) {
            let site_count = frames_per_block.min(frame_count - block_frame) * block.len();
            let (blank, label_arcs) = (&mut blank[..site_count], &mut label_arcs[..site_count * v]);
            // Weights of the rows, and their gradients.
            let weights = &*inner;
            par_for((items_mut(blank), parts_mut(label_arcs, v)), |site, (blank, row)| {
                let (t, u) = (block_frame + site / block.len(), block.start + site % block.len());
                let (index, label) = (t * positions + u, chain.labels.get(u));
                let label_adjoint = label.map_or(F::ZERO, |_| adjoints.labels[index]);
                if adjoints.blank[index] == F::ZERO && label_adjoint == F::ZERO {
                    *blank = F::ZERO;
                    return row.fill(F::ZERO);
                }
                *blank = weights.forward_state(first_frame + t, chain.states[u], row);
                normalize.backward(adjoints.blank[index].to_f64(), label_adjoint.to_f64(), blank, row);
                if let Some(&label) = label {
                    row[label as usize - 1] += label_adjoint;
                }
            });
            let chain_sites = site_count / block.len() * states.len();
            let (blank_adjoint, label_adjoint) =
                chain_adjoints.split_at_mut(frames_per_block * (block_positions + 1));
            let (blank_adjoint, label_adjoint) =
                (&mut blank_adjoint[..chain_sites], &mut label_adjoint[..chain_sites]);
            // The gradients of one label at a time, as adjoints of a chain; the blank's only once.
            for label_index in 0..v {
                for site in 0..site_count {
                    let index = site / block.len() * states.len() + site % block.len();
                    blank_adjoint[index] = if label_index == 0 { blank[site] } else { F::ZERO };
                    label_adjoint[index] = label_arcs[site * v + label_index];
                }
                for unused_site in (block.len()..chain_sites).step_by(states.len()) {
                    (blank_adjoint[unused_site], label_adjoint[unused_site]) = (F::ZERO, F::ZERO);
                }
                let labels = vec![1 + label_index as u32; block.len()];
                let chain = LabelChain { states: &states, labels: &labels };
                inner.backward_chain(
                    first_frame + block_frame,
                    chain,
                    Arcs { blank: blank_adjoint, labels: label_adjoint },
                )?;
            }
        }
    }
    Ok(())
}
