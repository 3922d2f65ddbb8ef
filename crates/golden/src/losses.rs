//! Golden test of transducer losses: runs a case and pairs results with stored values.
//!
//! The inputs of a case are scores, joint network outputs, or encoder and predictor outputs; each
//! kind has a function. TDT and multi-blank transducers are in `duration_losses`, pruned ones in
//! `pruned`.
use rnnt_loss::Element;
use rnnt_loss::{
    Head, HiddenInputs, JointNetwork, Layout, NetworkInputs, Options, Reduction, ScoreInputs, Session,
    Targets, Topology,
};

use super::case::LossCase;
use super::outcome::{LossOutcome, common_options, real_row_mask};
use super::{duration_losses, pruned};
use crate::error::RunError;

/// Absolute score from which on a case is ill-conditioned: f32 programs are inexact.
const EXTREME_SCORE: f64 = 900.0;
/// Loss below which a case is ill-conditioned.
const TINY_LOSS: f64 = 1e-4;

/// Returns true if [`run`] supports a kind.
pub(super) fn is_supported(kind: &str) -> bool {
    ["rnnt_dense", "rnnt_fused_linear", "rnnt_joint_network", "tdt", "multiblank", "rnnt_pruned"]
        .contains(&kind)
}

/// Runs a case with inputs of type `F`: f32 or f64.
pub(super) fn run<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    match case.kind.as_str() {
        "rnnt_fused_linear" => run_hidden_rows::<F>(case),
        "rnnt_joint_network" => run_joint_network::<F>(case),
        "tdt" => duration_losses::run_tdt::<F>(case),
        "rnnt_pruned" => pruned::run_pruned::<F>(case),
        "multiblank" => duration_losses::run_multi_blank::<F>(case),
        _ => run_dense_scores::<F>(case),
    }
}

/// Runs given scores, with all variants of the gradient.
fn run_dense_scores<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let [_, frames, positions, classes] = case.shape("logits")?;
    let layout = Layout::Padded { frames, positions };
    let values: Vec<F> = case.values("logits")?;
    let scores = ScoreInputs { scores: &values, classes, layout };
    let weights = Reduction::Sum.weights(&targets);
    let case_options = common_options(case);
    let mut session = Session::new(&case_options)?;
    let pending = session.forward(scores, &targets)?;
    let emissions = pending.emissions().into_owned();
    let output = pending.backward(&weights)?;
    let mut outcome = LossOutcome::default();
    case.require(&["loss", "grad_logits"])?;
    // Losses, their reductions, and the sums of the recursion.
    add_losses(&mut outcome, case, &output.losses)?;
    add_log_sums(&mut outcome, case, &targets, &emissions, frames, positions)?;
    for reduction in [Reduction::Sum, Reduction::Mean, Reduction::MeanPerTarget, Reduction::MeanVolume] {
        let name = match reduction {
            Reduction::Sum => "loss_sum",
            Reduction::Mean => "loss_mean",
            Reduction::MeanPerTarget => "loss_mean_per_target",
            Reduction::MeanVolume => "loss_mean_volume",
        };
        outcome.add_loss(case, name, &[reduction.reduce(&output.losses, &targets)?])?;
    }

    // Gradients: with all options, without clamping, without FastEmit, and in place.
    let gradient = |options: &Options| -> rnnt_loss::Result<_> {
        Ok(Session::new(options)?.sum(scores, &targets, &weights)?.gradients.scores)
    };
    outcome.add_gradient(case, "grad_logits", &output.gradients.scores)?;
    let unclamped = Options { clamp: None, ..case_options };
    outcome.add_gradient(case, "grad_logits_unclamped", &gradient(&unclamped)?)?;
    let without_fastemit = Options { fastemit: 0.0, ..unclamped };
    outcome.add_gradient(case, "grad_logits_no_fastemit", &gradient(&without_fastemit)?)?;
    let mut in_place = values.clone();
    session.sum_in_place(&mut in_place, (classes, layout), &targets, &Reduction::Mean.weights(&targets))?;
    outcome.add_gradient(case, "grad_logits_loss_mean", &in_place)?;

    // Padding, and whether the case is ill-conditioned.
    let is_real = real_row_mask(&targets, frames, positions);
    outcome.expect_zero_padding("grad_logits", &output.gradients.scores, classes, &is_real);
    let site_scores = values.chunks_exact(classes).zip(&is_real).filter(|(_, is_real)| **is_real);
    let magnitudes = site_scores.flat_map(|(row, _)| row).map(|z| z.to_f64().abs()).filter(|z| z.is_finite());
    outcome.is_ill_conditioned =
        magnitudes.fold(0.0, f64::max) >= EXTREME_SCORE || output.losses.iter().any(|&loss| loss < TINY_LOSS);
    Ok(outcome)
}

/// Adds the loss, and the FastEmit loss that NeMo reports.
///
/// NeMo multiplies the loss by `1 + λ`.
fn add_losses(outcome: &mut LossOutcome, case: &LossCase, losses: &[f64]) -> Result<(), RunError> {
    outcome.add_loss(case, "loss", losses)?;
    let scale = 1.0 + case.options.fastemit_lambda;
    let reported: Vec<f64> = losses.iter().map(|loss| scale * loss).collect();
    Ok(outcome.add_loss(case, "loss_fastemit_nemo", &reported)?)
}

/// Adds forward and backward sums of a regular lattice, padded with zeros.
fn add_log_sums(
    outcome: &mut LossOutcome,
    case: &LossCase,
    targets: &Targets,
    emissions: &[f64],
    frames: usize,
    positions: usize,
) -> Result<(), RunError> {
    let lattices = targets.lattices();
    let sums = rnnt_dp::log_sums(lattices, &Topology::rnnt(), emissions).map_err(rnnt_loss::Error::from)?;
    for (name, packed) in [("log_alpha", &sums.log_alpha), ("log_beta", &sums.log_beta)] {
        let mut padded = vec![0.0; targets.batch() * frames * positions];
        for b in 0..targets.batch() {
            for (site_index, site) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
                padded[(b * frames + site.frame) * positions + site.label] = packed[site_index];
            }
        }
        outcome.add_loss(case, name, &padded)?;
    }
    Ok(())
}

/// Runs joint network outputs `[N, H]` (`h`) with a head (`W`, `b`).
fn run_hidden_rows<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let [_, width] = case.shape("W")?;
    let frames = max_over_utterances(&targets, |b| targets.frames(b));
    let positions = max_over_utterances(&targets, |b| targets.labels(b).len() + 1);
    let layout = match case.options.layout.as_deref() {
        Some("packed") => Layout::Packed,
        Some("padded") => Layout::Padded { frames, positions },
        other => return Err(case.error("options.layout", "packed or padded", &format!("{other:?}")).into()),
    };
    let (hidden, weight): (Vec<F>, Vec<F>) = (case.values("h")?, case.values("W")?);
    let bias: Option<Vec<F>> = case.find("b").map(|_| case.values("b")).transpose()?;
    let head = Head::new(&weight, bias.as_deref(), width).map_err(rnnt_loss::Error::from)?;
    let weights = Reduction::Sum.weights(&targets);
    let inputs = HiddenInputs::new(&hidden, head).with_layout(layout);
    let output = Session::new(&common_options(case))?.sum(inputs, &targets, &weights)?;
    let mut outcome = LossOutcome::default();
    case.require(&["loss", "grad_h", "grad_W"])?;
    let gradients = output.gradients;
    outcome.add_loss(case, "loss", &output.losses)?;
    outcome.add_gradient(case, "grad_h", &gradients.hidden)?;
    outcome.add_gradient(case, "grad_W", &gradients.head.weight)?;
    if bias.is_some() {
        case.require(&["grad_b"])?;
        outcome.add_gradient(case, "grad_b", &gradients.head.bias)?;
    }
    if layout != Layout::Packed {
        outcome.expect_zero_padding(
            "grad_h",
            &gradients.hidden,
            width,
            &real_row_mask(&targets, frames, positions),
        );
    }
    Ok(outcome)
}

/// Runs encoder and predictor outputs with the whole joint network.
///
/// Names of the case: `W_A` and `W_L` project `h_enc` and `h_pred` with bias `b_Z`; the head is
/// `W_O` and `b_O`.
fn run_joint_network<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let ([_, frames, encoder_width], [_, positions, predictor_width]) =
        (case.shape("h_enc")?, case.shape("h_pred")?);
    let [classes, width] = case.shape("W_O")?;
    let layout = Layout::Padded { frames, positions };
    let input = |name: &str| case.values::<F>(name);
    let (encodings, predictions) = (input("h_enc")?, input("h_pred")?);
    let (encoder, predictor, bias) = (input("W_A")?, input("W_L")?, input("b_Z")?);
    let (head_weight, head_bias) = (input("W_O")?, input("b_O")?);
    // The joint network.
    let network = JointNetwork {
        encoder: &encoder,
        encoder_width,
        predictor: &predictor,
        predictor_width,
        bias: Some(&bias),
        head: Head::new(&head_weight, Some(&head_bias), width).map_err(rnnt_loss::Error::from)?,
    };
    let (mut session, weights) = (Session::new(&common_options(case))?, Reduction::Sum.weights(&targets));
    let inputs = NetworkInputs { encoder_rows: &encodings, predictor_rows: &predictions, layout };
    let output = network.sum(&mut session, inputs, &targets, &weights)?;
    // Losses and gradients of all inputs and parameters.
    let mut outcome = LossOutcome::default();
    case.require(&["loss"])?;
    outcome.add_loss(case, "loss", &output.losses)?;
    for (name, gradient) in [
        ("grad_h_enc", &output.encodings),
        ("grad_h_pred", &output.predictions),
        ("grad_W_A", &output.encoder),
        ("grad_W_L", &output.predictor),
        ("grad_b_Z", &output.bias),
        ("grad_W_O", &output.head.weight),
        ("grad_b_O", &output.head.bias),
    ] {
        case.require(&[name])?;
        outcome.add_gradient(case, name, gradient)?;
    }
    if case.find("logits").is_some() {
        // The same lattice from the scores that the author of the case computed.
        let scores = ScoreInputs { scores: &input("logits")?, classes, layout };
        let output = session.sum(scores, &targets, &weights)?;
        outcome.add_loss(case, "loss", &output.losses)?;
    }
    // Gradients of padding.
    let batch = targets.batch();
    let is_real_frame: Vec<bool> =
        (0..batch * frames).map(|i| i % frames < targets.frames(i / frames)).collect();
    outcome.expect_zero_padding("grad_h_enc", &output.encodings, encoder_width, &is_real_frame);
    let is_real_position: Vec<bool> =
        (0..batch * positions).map(|i| i % positions <= targets.labels(i / positions).len()).collect();
    outcome.expect_zero_padding("grad_h_pred", &output.predictions, predictor_width, &is_real_position);
    Ok(outcome)
}

/// Returns the maximum of a size over the utterances.
fn max_over_utterances(targets: &Targets, size: impl Fn(usize) -> usize) -> usize {
    (0..targets.batch()).map(size).max().unwrap_or_default()
}
