//! Golden test of arc weights, log-sums over paths with gradients, and marginals.
use lattice::{Frames, LatticeOutput, LatticeSession, Options, PathSum, RecognitionLattice};
use rnnt_loss::Element;

use super::arc_weights::ArcWeights;
use super::check::{LatticeCheck, Quantity, to_f64};
use super::inputs::LatticeInputs;
use crate::error::RunError;

/// Compares the arc weights of all frames, padding included, and returns them.
pub fn arc_weights<F: Element>(
    check: &mut LatticeCheck,
    inputs: &LatticeInputs<F>,
    lattice: &RecognitionLattice<F>,
) -> Result<ArcWeights, RunError> {
    let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
    let rows = inputs.num_frames.len() * inputs.padded();
    let mut weights = lattice.weight_fn().bind(&mut Vec::new())?;
    weights.set_frames(inputs.rows(), &inputs.utterances())?;
    let (mut blank, mut lexical) = (vec![F::ZERO; rows * c], vec![F::ZERO; rows * c * v]);
    let frames: Vec<usize> = (0..rows).collect();
    weights.forward(&frames, lattice::ArcsMut { blank: &mut blank, lexical: &mut lexical });
    let stored = ["out/blank_weights", "out/lexical_weights"];
    let stored = [&check.file.get(stored[0])?.values[..], &check.file.get(stored[1])?.values].concat();
    check.set_scale(&stored, inputs.padded());
    check.values("out/blank_weights", &blank)?;
    check.values("out/lexical_weights", &lexical)?;
    // Compute the same weights one state at a time.
    let (mut state_blank, mut state_lexical) = (vec![F::ZERO; rows * c], vec![F::ZERO; rows * c * v]);
    for (at, (blank, lexical)) in state_blank.iter_mut().zip(state_lexical.chunks_exact_mut(v)).enumerate() {
        *blank = weights.forward_state(at / c, at % c, lexical);
    }
    check.values("out/blank_weights", &state_blank)?;
    check.values("out/lexical_weights", &state_lexical)?;
    if check.file.find("out/context_embeddings_cache").is_some() {
        check.values("out/context_embeddings_cache", &inputs.joint()?.context_embeddings()?)?;
    }
    Ok(ArcWeights { blank: to_f64(&blank), lexical: to_f64(&lexical) })
}

/// Compares all sums in the log semiring, with all memory budgets.
pub fn sums<F: Element>(
    check: &mut LatticeCheck,
    inputs: &LatticeInputs<F>,
    lattice: &RecognitionLattice<F>,
) -> Result<(), RunError> {
    let (frames, labels) = (inputs.frames()?, inputs.labels()?);
    // Budgets: the minimum (one frame of one utterance at a time), unlimited, recomputed weights.
    let min_budget = match LatticeSession::<F>::new(Options::new(0)).plan(lattice, &frames, &labels) {
        Err(lattice::Error::Budget { smallest, .. }) => Options::new(smallest),
        other => Options::new(other?.bytes),
    };
    let output = LatticeSession::new(min_budget).sum(lattice, &frames, &labels, &inputs.cotangents)?;
    check.compare(Quantity::Value, "out/loss", &output.sums)?;
    gradients(check, "out/grad_loss", &output)?;
    for budget in [Options::new(usize::MAX), Options::new(usize::MAX).recompute()] {
        let mut session = LatticeSession::new(budget);
        for (sum, value, gradient) in [
            (PathSum::Loss, "out/loss", "out/grad_loss"),
            (PathSum::Denominator, "out/denom_log", "out/grad_denom_log"),
            (PathSum::Numerator, "out/numer_log", "out/grad_numer_log"),
        ] {
            let distances = session.distances(sum, lattice, &frames, Some(&labels))?;
            check.compare(Quantity::Value, value, &distances)?;
            let output = session.sum_paths(sum, lattice, &frames, Some(&labels), &inputs.cotangents)?;
            check.compare(Quantity::Value, value, &output.sums)?;
            gradients(check, gradient, &output)?;
        }
        let pending = session.forward(lattice, &frames, &labels)?;
        check.compare(Quantity::Value, "out/loss", pending.losses())?;
        let output = pending.backward(&inputs.cotangents)?;
        gradients(check, "out/grad_loss", &output)?;
        if check.file.find("out/grad_loss_autodiff/frames").is_some() {
            gradients(check, "out/grad_loss_autodiff", &output)?;
        }
        check.compare(Quantity::Value, "out/alpha_log", &session.alphas(lattice, &frames)?)?;
        marginals(check, &mut session, lattice, &frames)?;
    }
    Ok(())
}

fn gradients<F: Element>(
    check: &mut LatticeCheck,
    prefix: &str,
    output: &LatticeOutput<F>,
) -> Result<(), RunError> {
    if let Some(table) = output.parameters.get("table") {
        return Ok(check.gradient(&format!("{prefix}/table"), table)?);
    }
    check.gradient(&format!("{prefix}/frames"), &output.frames)?;
    for (name, gradient) in &output.parameters {
        check.gradient(&format!("{prefix}/params/{name}"), gradient)?;
    }
    Ok(())
}

fn marginals<F: Element>(
    check: &mut LatticeCheck,
    session: &mut LatticeSession<F>,
    lattice: &RecognitionLattice<F>,
    frames: &Frames<F>,
) -> Result<(), RunError> {
    let (blank, lexical) = session.marginals(lattice, frames)?;
    check.gradient("out/blank_marginals", &blank)?;
    Ok(check.gradient("out/lexical_marginals", &lexical)?)
}
