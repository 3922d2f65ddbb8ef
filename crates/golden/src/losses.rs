//! Golden test of transducer losses: runs a case and pairs results with stored values.
use rnnt_loss::Element;
use rnnt_loss::{
    Head, HiddenInputs, JointNetwork, Layout, NetworkInputs, Options, Reduction, ScoreInputs, Session,
    Targets, Topology,
};

use super::case::LossCase;
use super::outcome::{LossOutcome, options, real_rows};
use super::{pruned, topologies};
use crate::error::RunError;

/// Absolute score above which a case is hard.
const HARD_SCORE: f64 = 900.0;
/// Loss below which a case is hard.
const HARD_LOSS: f64 = 1e-4;

/// Returns true if [`run`] supports a kind.
pub(super) fn is_supported(kind: &str) -> bool {
    ["rnnt_dense", "rnnt_fused_linear", "rnnt_joint_network", "tdt", "multiblank", "rnnt_pruned"]
        .contains(&kind)
}

/// Runs a case with inputs of type `F`: f32 or f64.
pub(super) fn run<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    match case.kind.as_str() {
        "rnnt_fused_linear" => rows::<F>(case),
        "rnnt_joint_network" => joint::<F>(case),
        "tdt" => topologies::tdt::<F>(case),
        "rnnt_pruned" => pruned::pruned::<F>(case),
        "multiblank" => topologies::multi_blank::<F>(case),
        _ => dense::<F>(case),
    }
}

/// Runs given scores, with all variants of the gradient.
fn dense<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let [_, frames, positions, classes] = case.shape("logits")?;
    let layout = Layout::Padded { frames, positions };
    let values: Vec<F> = case.values("logits")?;
    let scores = ScoreInputs { scores: &values, classes, layout };
    let weights = Reduction::Sum.weights(&targets);
    let case_options = options(case);
    let mut session = Session::new(&case_options)?;
    let pending = session.forward(scores, &targets)?;
    let emissions = pending.emissions().into_owned();
    let output = pending.backward(&weights)?;
    let mut out = LossOutcome::default();
    case.get("loss")?;
    case.get("grad_logits")?;
    losses(&mut out, case, &output.losses)?;
    log_sums(&mut out, case, &targets, &emissions, (frames, positions))?;
    for reduction in [Reduction::Sum, Reduction::Mean, Reduction::MeanPerTarget, Reduction::MeanVolume] {
        let name = match reduction {
            Reduction::Sum => "loss_sum",
            Reduction::Mean => "loss_mean",
            Reduction::MeanPerTarget => "loss_mean_per_target",
            Reduction::MeanVolume => "loss_mean_volume",
        };
        out.loss(case, name, &[reduction.reduce(&output.losses, &targets)?])?;
    }

    let gradient = |options: &Options| -> rnnt_loss::Result<_> {
        Ok(Session::new(options)?.sum(scores, &targets, &weights)?.gradients.scores)
    };
    out.gradient(case, "grad_logits", &output.gradients.scores)?;
    let unclamped = Options { clamp: None, ..case_options };
    out.gradient(case, "grad_logits_unclamped", &gradient(&unclamped)?)?;
    let without_fastemit = Options { fastemit: 0.0, ..unclamped };
    out.gradient(case, "grad_logits_no_fastemit", &gradient(&without_fastemit)?)?;
    let mut in_place = values.clone();
    session.sum_in_place(&mut in_place, (classes, layout), &targets, &Reduction::Mean.weights(&targets))?;
    out.gradient(case, "grad_logits_loss_mean", &in_place)?;

    let is_real = real_rows(&targets, frames, positions);
    out.expect_zero_padding("grad_logits", &output.gradients.scores, classes, &is_real);
    let rows = values.chunks_exact(classes).zip(&is_real).filter(|(_, is_real)| **is_real);
    let largest = rows.flat_map(|(row, _)| row).map(|z| z.to_f64().abs()).filter(|z| z.is_finite());
    out.is_hard =
        largest.fold(0.0, f64::max) >= HARD_SCORE || output.losses.iter().any(|&loss| loss < HARD_LOSS);
    Ok(out)
}

/// Adds the loss, and the FastEmit loss that NeMo reports.
///
/// NeMo multiplies the loss by `1 + λ`.
fn losses(out: &mut LossOutcome, case: &LossCase, output: &[f64]) -> Result<(), RunError> {
    out.loss(case, "loss", output)?;
    let scale = 1.0 + case.options.fastemit_lambda;
    let reported: Vec<f64> = output.iter().map(|loss| scale * loss).collect();
    Ok(out.loss(case, "loss_fastemit_nemo", &reported)?)
}

/// Adds forward and backward sums of a regular lattice, padded with zeros.
fn log_sums(
    out: &mut LossOutcome,
    case: &LossCase,
    targets: &Targets,
    emissions: &[f64],
    (frames, positions): (usize, usize),
) -> Result<(), RunError> {
    let lattices = targets.lattices();
    let sums = rnnt_dp::log_sums(lattices, &Topology::rnnt(), emissions).map_err(rnnt_loss::Error::from)?;
    for (name, packed) in [("log_alpha", &sums.log_alpha), ("log_beta", &sums.log_beta)] {
        let mut padded = vec![0.0; targets.batch() * frames * positions];
        for b in 0..targets.batch() {
            for (site, at) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
                padded[(b * frames + at.frame) * positions + at.label] = packed[site];
            }
        }
        out.loss(case, name, &padded)?;
    }
    Ok(())
}

/// Runs joint network outputs `[N, H]` (`h`) with a head (`W`, `b`).
fn rows<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let [_, width] = case.shape("W")?;
    let frames = max(&targets, |b| targets.frames(b));
    let positions = max(&targets, |b| targets.labels(b).len() + 1);
    let layout = match case.options.layout.as_deref() {
        Some("packed") => Layout::Packed,
        Some("padded") => Layout::Padded { frames, positions },
        other => return Err(case.error("options.layout", "packed or padded", &format!("{other:?}")).into()),
    };
    let (hidden, weight): (Vec<F>, Vec<F>) = (case.values("h")?, case.values("W")?);
    let bias: Option<Vec<F>> = case.find("b").map(|_| case.values("b")).transpose()?;
    let head = Head::new(&weight, bias.as_deref(), width).map_err(rnnt_loss::Error::from)?;
    let weights = Reduction::Sum.weights(&targets);
    let rows = HiddenInputs::new(&hidden, head).with_layout(layout);
    let output = Session::new(&options(case))?.sum(rows, &targets, &weights)?;
    let mut out = LossOutcome::default();
    for name in ["loss", "grad_h", "grad_W"] {
        case.get(name)?;
    }
    let gradients = output.gradients;
    out.loss(case, "loss", &output.losses)?;
    out.gradient(case, "grad_h", &gradients.hidden)?;
    out.gradient(case, "grad_W", &gradients.head.weight)?;
    if bias.is_some() {
        case.get("grad_b")?;
        out.gradient(case, "grad_b", &gradients.head.bias)?;
    }
    if layout != Layout::Packed {
        out.expect_zero_padding("grad_h", &gradients.hidden, width, &real_rows(&targets, frames, positions));
    }
    Ok(out)
}

/// Runs encoder and predictor outputs with the whole joint network.
///
/// Names of the case: `W_A` and `W_L` project `h_enc` and `h_pred` with bias `b_Z`; the head is
/// `W_O` and `b_O`.
fn joint<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let ([_, frames, encoder_width], [_, positions, predictor_width]) =
        (case.shape("h_enc")?, case.shape("h_pred")?);
    let [classes, width] = case.shape("W_O")?;
    let layout = Layout::Padded { frames, positions };
    let input = |name: &str| case.values::<F>(name);
    let (encodings, predictions) = (input("h_enc")?, input("h_pred")?);
    let (encoder, predictor, bias) = (input("W_A")?, input("W_L")?, input("b_Z")?);
    let (head_weight, head_bias) = (input("W_O")?, input("b_O")?);
    let network = JointNetwork {
        encoder: &encoder,
        encoder_width,
        predictor: &predictor,
        predictor_width,
        bias: Some(&bias),
        head: Head::new(&head_weight, Some(&head_bias), width).map_err(rnnt_loss::Error::from)?,
    };
    let (mut session, weights) = (Session::new(&options(case))?, Reduction::Sum.weights(&targets));
    let inputs = NetworkInputs { encodings: &encodings, predictions: &predictions, layout };
    let output = network.sum(&mut session, inputs, &targets, &weights)?;
    let mut out = LossOutcome::default();
    case.get("loss")?;
    out.loss(case, "loss", &output.losses)?;
    for (name, gradient) in [
        ("grad_h_enc", &output.encodings),
        ("grad_h_pred", &output.predictions),
        ("grad_W_A", &output.encoder),
        ("grad_W_L", &output.predictor),
        ("grad_b_Z", &output.bias),
        ("grad_W_O", &output.head.weight),
        ("grad_b_O", &output.head.bias),
    ] {
        case.get(name)?;
        out.gradient(case, name, gradient)?;
    }
    if case.find("logits").is_some() {
        // The same lattice from the scores that the author of the case computed.
        let scores = ScoreInputs { scores: &input("logits")?, classes, layout };
        let output = session.sum(scores, &targets, &weights)?;
        out.loss(case, "loss", &output.losses)?;
    }
    let batch = targets.batch();
    let is_real: Vec<bool> = (0..batch * frames).map(|i| i % frames < targets.frames(i / frames)).collect();
    out.expect_zero_padding("grad_h_enc", &output.encodings, encoder_width, &is_real);
    let is_real: Vec<bool> =
        (0..batch * positions).map(|i| i % positions <= targets.labels(i / positions).len()).collect();
    out.expect_zero_padding("grad_h_pred", &output.predictions, predictor_width, &is_real);
    Ok(out)
}

/// Returns the maximum of a size over the utterances.
fn max(targets: &Targets, size: impl Fn(usize) -> usize) -> usize {
    (0..targets.batch()).map(size).max().unwrap_or_default()
}
