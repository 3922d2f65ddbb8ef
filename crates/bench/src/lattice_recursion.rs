//! Benchmark of the lattice recursion (forward-backward) with given emissions.
//!
//! The baseline is a textbook forward-backward recursion. Emissions are the log-probabilities of
//! blank and next label at each lattice node.
use oracle::reference::log_add;
use rayon::prelude::*;
use rnnt_dp::{Lattices, Regularizers, Topology, Workspace};

use super::case::Method;
use super::error::Result;
use super::gradients::{GradientValues, NamedGradients};
use super::inputs::noise;
use super::inputs::ragged_lengths;
use super::workload::CaseShape;
use super::workload::Workload;

/// Lattices, and the log-probabilities of blank and next label at each site.
struct LatticeBatch {
    lattices: Lattices,
    emissions: Vec<f64>,
    shape: CaseShape,
}

/// Creates a ragged batch `[B, T, U]` and the workload of a method.
///
/// # Errors
/// If the lattices do not support the sizes.
pub(crate) fn prepare([batch, frames, labels]: [usize; 3], method: &Method) -> Result<Box<dyn Workload>> {
    let (lengths, counts) = ragged_lengths(batch, frames, labels);
    let lattices = Lattices::new(lengths, counts)?;
    let sites = lattices.num_sites();
    // Log-probabilities between -3 and -0.1.
    let emissions = noise(6, 2 * sites, 1.45).iter().map(|x| f64::from(*x) - 1.55).collect();
    let shape = CaseShape {
        B: Some(batch),
        T: Some(frames),
        U: Some(labels),
        N: Some(sites),
        ..CaseShape::default()
    };
    let batch = LatticeBatch { lattices, emissions, shape };
    Ok(match method {
        Method::Panda { .. } => Box::new(RecursionWorkload { batch, workspace: Workspace::new() }),
        _ => Box::new(TextbookWorkload(batch)),
    })
}

impl LatticeBatch {
    fn result_bytes(&self) -> u64 {
        8 * (self.emissions.len() + self.lattices.batch()) as u64
    }
}

/// [`rnnt_dp`] with a workspace that the first step allocates.
struct RecursionWorkload {
    batch: LatticeBatch,
    workspace: Workspace,
}

impl Workload for RecursionWorkload {
    fn shape(&self) -> CaseShape {
        self.batch.shape
    }

    fn result_bytes(&self) -> u64 {
        self.batch.result_bytes()
    }

    fn operations(&self) -> Option<u64> {
        None
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let LatticeBatch { lattices, emissions, .. } = &self.batch;
        let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
        let mut losses = vec![0.0; lattices.batch()];
        let mut adjoints = vec![0.0; emissions.len()];
        self.workspace.forward_backward(
            lattices,
            &topology,
            emissions,
            &regularizers,
            &mut losses,
            &mut adjoints,
        )?;
        Ok(vec![("losses", GradientValues::Double(losses)), ("adjoints", GradientValues::Double(adjoints))])
    }
}

/// Textbook recursions in `f64`, one utterance per task.
struct TextbookWorkload(LatticeBatch);

impl Workload for TextbookWorkload {
    fn shape(&self) -> CaseShape {
        self.0.shape
    }

    fn result_bytes(&self) -> u64 {
        self.0.result_bytes()
    }

    fn operations(&self) -> Option<u64> {
        None
    }

    fn step(&mut self) -> Result<NamedGradients> {
        let LatticeBatch { lattices, emissions, .. } = &self.0;
        let forward_backward = |b: usize| {
            let range = lattices.site_range(b);
            let emissions = &emissions[2 * range.start..2 * range.end];
            forward_backward_utterance(emissions, lattices.num_frames(b), lattices.num_labels(b))
        };
        let results: Vec<(f64, Vec<f64>)> =
            (0..lattices.batch()).into_par_iter().map(forward_backward).collect();
        let (losses, adjoints): (Vec<f64>, Vec<Vec<f64>>) = results.into_iter().unzip();
        Ok(vec![
            ("losses", GradientValues::Double(losses)),
            ("adjoints", GradientValues::Double(adjoints.concat())),
        ])
    }
}

/// Returns loss and adjoints of one utterance, `[T, U+1]` lattice nodes.
///
/// Each node has two emissions (blank, next label); an adjoint is the derivative of the loss with
/// respect to an emission.
fn forward_backward_utterance(emissions: &[f64], frames: usize, labels: usize) -> (f64, Vec<f64>) {
    let positions = labels + 1;
    let node = |t: usize, u: usize| t * positions + u;
    let blank = |t: usize, u: usize| emissions[2 * node(t, u)];
    let label = |t: usize, u: usize| emissions[2 * node(t, u) + 1];
    let mut alpha = vec![f64::NEG_INFINITY; frames * positions];
    let mut beta = alpha.clone();
    // Forward recursion: α.
    alpha[0] = 0.0;
    for t in 0..frames {
        for u in 0..positions {
            if t > 0 {
                alpha[node(t, u)] = log_add(alpha[node(t, u)], alpha[node(t - 1, u)] + blank(t - 1, u));
            }
            if u > 0 {
                alpha[node(t, u)] = log_add(alpha[node(t, u)], alpha[node(t, u - 1)] + label(t, u - 1));
            }
        }
    }
    // Backward recursion: β. After the last frame, a path ends; it must have emitted all labels.
    let beta_after_blank = |beta: &[f64], t: usize, u: usize| match (t + 1 < frames, u == labels) {
        (true, _) => beta[node(t + 1, u)],
        (false, true) => 0.0,
        (false, false) => f64::NEG_INFINITY,
    };
    for t in (0..frames).rev() {
        for u in (0..positions).rev() {
            beta[node(t, u)] = blank(t, u) + beta_after_blank(&beta, t, u);
            if u < labels {
                beta[node(t, u)] = log_add(beta[node(t, u)], label(t, u) + beta[node(t, u + 1)]);
            }
        }
    }
    // Loss, and adjoints of both emissions of each node.
    let loss = -beta[0];
    let mut adjoints = vec![0.0; emissions.len()];
    for t in 0..frames {
        for u in 0..positions {
            let log_prefix = alpha[node(t, u)] + loss;
            adjoints[2 * node(t, u)] = -(log_prefix + blank(t, u) + beta_after_blank(&beta, t, u)).exp();
            if u < labels {
                adjoints[2 * node(t, u) + 1] = -(log_prefix + label(t, u) + beta[node(t, u + 1)]).exp();
            }
        }
    }
    (loss, adjoints)
}
