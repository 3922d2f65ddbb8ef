//! Sums over paths with their gradients, arc weights and marginals.
use lattice::{Frames, LatticeOutput, LatticeSession, Options, PathSum, RecognitionLattice};
use rnnt_loss::Element;

use super::check::{Check, Quantity, wide};
use super::definition::Weighed;
use super::inputs::LatticeInputs;
use crate::error::Stop;

/// Arc weights of all frames, padding too: *B.. T x C* and *B.. T x C x V*.
pub fn weights<F: Element>(
    check: &mut Check,
    inputs: &LatticeInputs<F>,
    lattice: &RecognitionLattice<F>,
) -> Result<Weighed, Stop> {
    let (c, v) = (lattice.context().states(), lattice.context().vocabulary());
    let rows = inputs.num_frames.len() * inputs.padded();
    let mut weights = lattice.weight_fn().bind(&mut Vec::new())?;
    weights.set_frames(inputs.rows(), &inputs.utterances())?;
    let (mut blank, mut lexical) = (vec![F::ZERO; rows * c], vec![F::ZERO; rows * c * v]);
    let frames: Vec<usize> = (0..rows).collect();
    weights.forward(&frames, lattice::ArcsMut { blank: &mut blank, lexical: &mut lexical });
    let stored = ["out/blank_weights", "out/lexical_weights"];
    let stored = [&check.file.get(stored[0])?.values[..], &check.file.get(stored[1])?.values].concat();
    check.scale_by(&stored, inputs.padded());
    check.values("out/blank_weights", &blank)?;
    check.values("out/lexical_weights", &lexical)?;
    // The same, state by state.
    let (mut single, mut rest) = (vec![F::ZERO; rows * c], vec![F::ZERO; rows * c * v]);
    for (at, (single, rest)) in single.iter_mut().zip(rest.chunks_exact_mut(v)).enumerate() {
        *single = weights.forward_state(at / c, at % c, rest);
    }
    check.values("out/blank_weights", &single)?;
    check.values("out/lexical_weights", &rest)?;
    if check.file.find("out/context_embeddings_cache").is_some() {
        check.values("out/context_embeddings_cache", &inputs.joint()?.context_embeddings()?)?;
    }
    Ok(Weighed { blank: wide(&blank), lexical: wide(&lexical) })
}

/// All sums in the log semiring, by every door and cut in every way.
pub fn sums<F: Element>(
    check: &mut Check,
    inputs: &LatticeInputs<F>,
    lattice: &RecognitionLattice<F>,
) -> Result<(), Stop> {
    let (frames, labels) = (inputs.frames()?, inputs.labels()?);
    // Arc weights kept, computed again, and frame by frame for one utterance after the other.
    let tight = match LatticeSession::<F>::new(Options::new(0)).plan(lattice, &frames, &labels) {
        Err(lattice::Error::Budget { smallest, .. }) => Options::new(smallest),
        other => Options::new(other?.bytes),
    };
    let found = LatticeSession::new(tight).sum(lattice, &frames, &labels, &inputs.cotangents)?;
    check.compare(Quantity::Value, "out/loss", &found.sums)?;
    gradients(check, "out/grad_loss", &found)?;
    for budget in [Options::new(usize::MAX), Options::new(usize::MAX).recompute()] {
        let mut session = LatticeSession::new(budget);
        for (sum, value, gradient) in [
            (PathSum::Loss, "out/loss", "out/grad_loss"),
            (PathSum::Denominator, "out/denom_log", "out/grad_denom_log"),
            (PathSum::Numerator, "out/numer_log", "out/grad_numer_log"),
        ] {
            let distances = session.distances(sum, lattice, &frames, Some(&labels))?;
            check.compare(Quantity::Value, value, &distances)?;
            let found = session.sum_paths(sum, lattice, &frames, Some(&labels), &inputs.cotangents)?;
            check.compare(Quantity::Value, value, &found.sums)?;
            gradients(check, gradient, &found)?;
        }
        let pending = session.forward(lattice, &frames, &labels)?;
        check.compare(Quantity::Value, "out/loss", pending.losses())?;
        let found = pending.backward(&inputs.cotangents)?;
        gradients(check, "out/grad_loss", &found)?;
        if check.file.find("out/grad_loss_autodiff/frames").is_some() {
            gradients(check, "out/grad_loss_autodiff", &found)?;
        }
        check.compare(Quantity::Value, "out/alpha_log", &session.alphas(lattice, &frames)?)?;
        marginals(check, &mut session, lattice, &frames)?;
    }
    Ok(())
}

fn gradients<F: Element>(check: &mut Check, of: &str, found: &LatticeOutput<F>) -> Result<(), Stop> {
    if let Some(table) = found.parameters.get("table") {
        return Ok(check.gradient(&format!("{of}/table"), table)?);
    }
    check.gradient(&format!("{of}/frames"), &found.frames)?;
    for (name, gradient) in &found.parameters {
        check.gradient(&format!("{of}/params/{name}"), gradient)?;
    }
    Ok(())
}

fn marginals<F: Element>(
    check: &mut Check,
    session: &mut LatticeSession<F>,
    lattice: &RecognitionLattice<F>,
    frames: &Frames<F>,
) -> Result<(), Stop> {
    let (blank, lexical) = session.marginals(lattice, frames)?;
    check.gradient("out/blank_marginals", &blank)?;
    Ok(check.gradient("out/lexical_marginals", &lexical)?)
}
