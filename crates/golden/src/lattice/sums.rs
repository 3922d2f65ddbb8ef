//! Golden test of lattices: arc weights, log-sums over paths with gradients, marginals.
//!
//! The files call label arcs *lexical*. The sums are those of a session; `arc_weights` checks the
//! slow reference functions.
use lattice::{Frames, LatticeOutput, LatticeSession, Options, PathSum, RecognitionLattice};
use rnnt_loss::Element;

use super::arc_weights::ArcWeights;
use super::check::{LatticeCheck, Quantity, to_f64};
use super::inputs::LatticeInputs;
use crate::error::RunError;

/// Compares the arc weights of all frames, padding included, and returns them.
pub(super) fn compare_arc_weights<F: Element>(
    check: &mut LatticeCheck,
    inputs: &LatticeInputs<F>,
    lattice: &RecognitionLattice<F>,
) -> Result<ArcWeights, RunError> {
    let (states, vocabulary) = (lattice.context().states(), lattice.context().vocabulary());
    let num_frames = inputs.num_frames.len() * inputs.padded_frames();
    let mut weights = lattice.weight_fn().bind(&mut Vec::new())?;
    weights.set_frames(inputs.padded_frame_values(), &inputs.utterance_of_frames())?;
    let (mut blank, mut label_arcs) =
        (vec![F::ZERO; num_frames * states], vec![F::ZERO; num_frames * states * vocabulary]);
    let frames: Vec<usize> = (0..num_frames).collect();
    weights.forward(&frames, lattice::ArcsMut { blank: &mut blank, labels: &mut label_arcs });
    let (blank_name, label_name) = ("out/blank_weights", "out/lexical_weights");
    let stored = [&check.file.get(blank_name)?.values[..], &check.file.get(label_name)?.values].concat();
    check.set_scale(&stored, inputs.padded_frames());
    check.compare_values(blank_name, &blank)?;
    check.compare_values(label_name, &label_arcs)?;
    // Compute the same weights one state at a time.
    let (mut state_blank, mut state_label_arcs) =
        (vec![F::ZERO; num_frames * states], vec![F::ZERO; num_frames * states * vocabulary]);
    for (state_index, (blank, label_arcs)) in
        state_blank.iter_mut().zip(state_label_arcs.chunks_exact_mut(vocabulary)).enumerate()
    {
        *blank = weights.forward_state(state_index / states, state_index % states, label_arcs);
    }
    check.compare_values(blank_name, &state_blank)?;
    check.compare_values(label_name, &state_label_arcs)?;
    if check.file.find("out/context_embeddings_cache").is_some() {
        check.compare_values("out/context_embeddings_cache", &inputs.joint()?.context_embeddings()?)?;
    }
    Ok(ArcWeights { blank: to_f64(&blank), label_arcs: to_f64(&label_arcs) })
}

/// Compares all sums in the log semiring, with all memory budgets.
pub(super) fn compare_session_sums<F: Element>(
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
    compare_gradients(check, "out/grad_loss", &output)?;
    // All path sums with gradients, with weights that are kept and recomputed.
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
            compare_gradients(check, gradient, &output)?;
        }
        let pending = session.forward(lattice, &frames, &labels)?;
        check.compare(Quantity::Value, "out/loss", pending.losses())?;
        let output = pending.backward(&inputs.cotangents)?;
        compare_gradients(check, "out/grad_loss", &output)?;
        if check.file.find("out/grad_loss_autodiff/frames").is_some() {
            compare_gradients(check, "out/grad_loss_autodiff", &output)?;
        }
        check.compare(Quantity::Value, "out/alpha_log", &session.alphas(lattice, &frames)?)?;
        compare_marginals(check, &mut session, lattice, &frames)?;
    }
    Ok(())
}

/// Compares the gradients of frames and parameters, or of a weight table.
fn compare_gradients<F: Element>(
    check: &mut LatticeCheck,
    prefix: &str,
    output: &LatticeOutput<F>,
) -> Result<(), RunError> {
    if let Some(table) = output.parameters.get("table") {
        return Ok(check.compare_gradient(&format!("{prefix}/table"), table)?);
    }
    check.compare_gradient(&format!("{prefix}/frames"), &output.frames)?;
    for (name, gradient) in &output.parameters {
        check.compare_gradient(&format!("{prefix}/params/{name}"), gradient)?;
    }
    Ok(())
}

/// Compares the marginals of blank and label arcs.
fn compare_marginals<F: Element>(
    check: &mut LatticeCheck,
    session: &mut LatticeSession<F>,
    lattice: &RecognitionLattice<F>,
    frames: &Frames<F>,
) -> Result<(), RunError> {
    let (blank, label_arcs) = session.marginals(lattice, frames)?;
    check.compare_gradient("out/blank_marginals", &blank)?;
    Ok(check.compare_gradient("out/lexical_marginals", &label_arcs)?)
}
