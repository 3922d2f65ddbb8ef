//! Any weight function under a normaliser: rows of V weights, whole frames and a few sites of a chain at a time.
use kernels::{BufferPool, Real, ScratchReq, items_mut, par_for, parts, parts_mut};

use super::log_probabilities::Normalize;
use crate::{Arcs, ArcsMut, BoundWeights, LabelChain, Result};

/// Elements of the rows of one block.
const BLOCK_ELEMENTS: usize = 1 << 18;
const ROWS_PER_TASK: usize = 16;

/// C and V.
#[derive(Debug, Clone, Copy)]
pub struct ArcShape {
    pub states: usize,
    pub vocabulary: usize,
}

impl ArcShape {
    /// Frames whose weights are made at once on the way back.
    fn frames(self) -> usize {
        (BLOCK_ELEMENTS / self.states.saturating_mul(self.vocabulary.saturating_add(1)).max(1)).max(1)
    }

    /// Sites of a chain whose weights are made at once on the way back.
    fn sites(self) -> usize {
        (BLOCK_ELEMENTS / self.vocabulary.saturating_add(1)).max(1)
    }

    /// Memory of a [`backward`].
    pub fn backward_scratch<F>(self, frames: usize) -> ScratchReq {
        let arcs = self.states.saturating_mul(self.vocabulary.saturating_add(1));
        ScratchReq::new::<F>(arcs).times(frames.min(self.frames()))
    }

    /// Memory of a [`backward_chain`].
    pub fn chain_scratch<F>(self) -> ScratchReq {
        // Positions behind the last ones make at most twice as many.
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
    for (frames, (of_blank, of_labels)) in frames.chunks(shape.frames()).zip(all) {
        let (blank, lexical) = (&mut blank[..of_blank.len()], &mut lexical[..of_labels.len()]);
        inner.forward(frames, ArcsMut { blank: &mut *blank, lexical: &mut *lexical });
        let weights = (parts_mut(blank, ROWS_PER_TASK), parts_mut(lexical, ROWS_PER_TASK * v));
        par_for(
            (weights, parts(of_blank, ROWS_PER_TASK), parts(of_labels, ROWS_PER_TASK * v)),
            |_, (weights, of_blank, of_labels)| {
                let adjoints = of_blank.iter().zip(of_labels.chunks_exact(v));
                let weights = weights.0.iter_mut().zip(weights.1.chunks_exact_mut(v));
                for ((blank, lexical), (of_blank, of_labels)) in weights.zip(adjoints) {
                    let sum = of_labels.iter().map(|g| g.to_f64()).sum();
                    normalize.backward((of_blank.to_f64(), sum), blank, lexical);
                    F::add_slice(lexical, of_labels);
                }
            },
        );
        inner.backward(frames, Arcs { blank, lexical });
    }
}

/// Weights along a chain: of each site, V are made, and one beside the blank's is kept.
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
///     par for each site:  weights of its row, and their gradients
///     for each label y:   the inner function's own, along a chain of y alone
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
    let each = shape.sites().min(positions);
    let few = (shape.sites() / each).clamp(1, all.max(1));
    let mut blank = vec![F::ZERO; few * each];
    let mut lexical = vec![F::ZERO; few * each * v];
    // What is given to the inner function has one position more, because no label follows a last one.
    let mut room = vec![F::ZERO; 2 * few * (each + 1)];
    for from in (0..positions).step_by(each) {
        let block = from..(from + each).min(positions);
        let mut states = chain.states[block.clone()].to_vec();
        states.push(chain.states[block.end - 1]);
        for start in (0..all).step_by(few) {
            let count = few.min(all - start) * block.len();
            let (blank, lexical) = (&mut blank[..count], &mut lexical[..count * v]);
            let weights = &*inner;
            par_for((items_mut(blank), parts_mut(lexical, v)), |site, (blank, row)| {
                let (t, u) = (start + site / block.len(), block.start + site % block.len());
                let (at, label) = (t * positions + u, chain.labels.get(u));
                let of_label = label.map_or(F::ZERO, |_| adjoints.lexical[at]);
                if adjoints.blank[at] == F::ZERO && of_label == F::ZERO {
                    *blank = F::ZERO;
                    return row.fill(F::ZERO);
                }
                *blank = weights.forward_state(first + t, chain.states[u], row);
                normalize.backward((adjoints.blank[at].to_f64(), of_label.to_f64()), blank, row);
                if let Some(&label) = label {
                    row[label as usize - 1] += of_label;
                }
            });
            let sites = count / block.len() * states.len();
            let (of_blank, of_label) = room.split_at_mut(few * (each + 1));
            let (of_blank, of_label) = (&mut of_blank[..sites], &mut of_label[..sites]);
            for y in 0..v {
                for site in 0..count {
                    let at = site / block.len() * states.len() + site % block.len();
                    of_blank[at] = if y == 0 { blank[site] } else { F::ZERO };
                    of_label[at] = lexical[site * v + y];
                }
                for last in (block.len()..sites).step_by(states.len()) {
                    (of_blank[last], of_label[last]) = (F::ZERO, F::ZERO);
                }
                let labels = vec![1 + y as u32; block.len()];
                let chain = LabelChain { states: &states, labels: &labels };
                inner.backward_chain(first + start, chain, Arcs { blank: of_blank, lexical: of_label })?;
            }
        }
    }
    Ok(())
}
