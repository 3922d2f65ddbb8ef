//! Runs a case through the door that its kind belongs to and lines up what came out with what is stored.
use rnnt_loss::Element;
use rnnt_loss::{
    Encodings, Head, JointNetwork, Layout, Options, Reduction, Rows, Scores, Session, Targets, Topology,
};

use super::case::LossCase;
use super::outcome::{LossOutcome, options, real_rows};
use super::{pruned, topologies};
use crate::error::Stop;

/// Scores of this size count as huge.
const HUGE: f64 = 900.0;
/// Losses below this count as near zero.
const TINY: f64 = 1e-4;

/// Whether [`run`] knows a kind.
pub(super) fn knows(kind: &str) -> bool {
    ["rnnt_dense", "rnnt_fused_linear", "rnnt_joint_network", "tdt", "multiblank", "rnnt_pruned"]
        .contains(&kind)
}

/// Runs a case with `F` as the type of its rows.
pub(super) fn run<F: Element>(case: &LossCase) -> Result<LossOutcome, Stop> {
    match case.kind.as_str() {
        "rnnt_fused_linear" => rows::<F>(case),
        "rnnt_joint_network" => joint::<F>(case),
        "tdt" => topologies::tdt::<F>(case),
        "rnnt_pruned" => pruned::pruned::<F>(case),
        "multiblank" => topologies::multi_blank::<F>(case),
        _ => dense::<F>(case),
    }
}

/// Ready-made scores, with every variant of the gradient that the case stores.
fn dense<F: Element>(case: &LossCase) -> Result<LossOutcome, Stop> {
    let targets = case.targets()?;
    let [_, frames, positions, classes] = case.shape("logits")?;
    let layout = Layout::Padded { frames, positions };
    let values: Vec<F> = case.values("logits")?;
    let scores = Scores { scores: &values, classes, layout };
    let ones = Reduction::Sum.weights(&targets);
    let chosen = options(case);
    let mut session = Session::new(&chosen)?;
    let pending = session.forward(scores, &targets)?;
    let emissions = pending.emissions().into_owned();
    let found = pending.backward(&ones)?;
    let mut out = LossOutcome::default();
    case.get("loss")?;
    case.get("grad_logits")?;
    losses(&mut out, case, &found.losses)?;
    log_sums(&mut out, case, &targets, &emissions, (frames, positions))?;
    for reduction in [Reduction::Sum, Reduction::Mean, Reduction::MeanPerTarget, Reduction::MeanVolume] {
        let name = match reduction {
            Reduction::Sum => "loss_sum",
            Reduction::Mean => "loss_mean",
            Reduction::MeanPerTarget => "loss_mean_per_target",
            Reduction::MeanVolume => "loss_mean_volume",
        };
        out.loss(case, name, &[reduction.reduce(&found.losses, &targets)?])?;
    }

    let gradient = |options: &Options| -> rnnt_loss::Result<_> {
        Ok(Session::new(options)?.sum(scores, &targets, &ones)?.gradients.scores)
    };
    out.gradient(case, "grad_logits", &found.gradients.scores)?;
    let free = Options { clamp: None, ..chosen };
    out.gradient(case, "grad_logits_unclamped", &gradient(&free)?)?;
    let plain = Options { fastemit: 0.0, ..free };
    out.gradient(case, "grad_logits_no_fastemit", &gradient(&plain)?)?;
    let mut over = values.clone();
    session.sum_in_place(&mut over, (classes, layout), &targets, &Reduction::Mean.weights(&targets))?;
    out.gradient(case, "grad_logits_loss_mean", &over)?;

    let real = real_rows(&targets, frames, positions);
    out.sealed("grad_logits", &found.gradients.scores, classes, &real);
    let rows = values.chunks_exact(classes).zip(&real).filter(|(_, real)| **real);
    let largest = rows.flat_map(|(row, _)| row).map(|z| z.to_f64().abs()).filter(|z| z.is_finite());
    out.hard = largest.fold(0.0, f64::max) >= HUGE || found.losses.iter().any(|&loss| loss < TINY);
    Ok(out)
}

/// Losses as both of two toolkits report them.
fn losses(out: &mut LossOutcome, case: &LossCase, found: &[f64]) -> Result<(), Stop> {
    out.loss(case, "loss", found)?;
    let scale = 1.0 + case.options.fastemit_lambda;
    let reported: Vec<f64> = found.iter().map(|loss| scale * loss).collect();
    Ok(out.loss(case, "loss_fastemit_nemo", &reported)?)
}

/// Forward and backward sums of a regular lattice, padded with the zeros that the files hold.
fn log_sums(
    out: &mut LossOutcome,
    case: &LossCase,
    targets: &Targets,
    emissions: &[f64],
    (frames, positions): (usize, usize),
) -> Result<(), Stop> {
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

/// Hidden rows and a head.
fn rows<F: Element>(case: &LossCase) -> Result<LossOutcome, Stop> {
    let targets = case.targets()?;
    let [_, width] = case.shape("W")?;
    let (frames, positions) =
        (most(&targets, |b| targets.frames(b)), most(&targets, |b| targets.labels(b).len() + 1));
    let layout = match case.options.layout.as_deref() {
        Some("packed") => Layout::Packed,
        Some("padded") => Layout::Padded { frames, positions },
        other => return Err(case.wrong("options.layout", "packed or padded", &format!("{other:?}")).into()),
    };
    let (hidden, weight): (Vec<F>, Vec<F>) = (case.values("h")?, case.values("W")?);
    let bias: Option<Vec<F>> = case.find("b").map(|_| case.values("b")).transpose()?;
    let head = Head::new(&weight, bias.as_deref(), width).map_err(rnnt_loss::Error::from)?;
    let ones = Reduction::Sum.weights(&targets);
    let rows = Rows::new(&hidden, head).with_layout(layout);
    let found = Session::new(&options(case))?.sum(rows, &targets, &ones)?;
    let mut out = LossOutcome::default();
    for name in ["loss", "grad_h", "grad_W"] {
        case.get(name)?;
    }
    let gradients = found.gradients;
    out.loss(case, "loss", &found.losses)?;
    out.gradient(case, "grad_h", &gradients.hidden)?;
    out.gradient(case, "grad_W", &gradients.head.weight)?;
    if bias.is_some() {
        case.get("grad_b")?;
        out.gradient(case, "grad_b", &gradients.head.bias)?;
    }
    if layout != Layout::Packed {
        out.sealed("grad_h", &gradients.hidden, width, &real_rows(&targets, frames, positions));
    }
    Ok(out)
}

/// Encodings, predictions and the whole joint network.
fn joint<F: Element>(case: &LossCase) -> Result<LossOutcome, Stop> {
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
    let (mut session, ones) = (Session::new(&options(case))?, Reduction::Sum.weights(&targets));
    let inputs = Encodings { encodings: &encodings, predictions: &predictions, layout };
    let found = network.sum(&mut session, inputs, &targets, &ones)?;
    let mut out = LossOutcome::default();
    case.get("loss")?;
    out.loss(case, "loss", &found.losses)?;
    for (name, gradient) in [
        ("grad_h_enc", &found.encodings),
        ("grad_h_pred", &found.predictions),
        ("grad_W_A", &found.encoder),
        ("grad_W_L", &found.predictor),
        ("grad_b_Z", &found.bias),
        ("grad_W_O", &found.head.weight),
        ("grad_b_O", &found.head.bias),
    ] {
        case.get(name)?;
        out.gradient(case, name, gradient)?;
    }
    if case.find("logits").is_some() {
        // The same lattice by another door, from the scores that the case's author computed.
        let scores = Scores { scores: &input("logits")?, classes, layout };
        let found = session.sum(scores, &targets, &ones)?;
        out.loss(case, "loss", &found.losses)?;
    }
    let batch = targets.batch();
    let real: Vec<bool> = (0..batch * frames).map(|i| i % frames < targets.frames(i / frames)).collect();
    out.sealed("grad_h_enc", &found.encodings, encoder_width, &real);
    let real: Vec<bool> =
        (0..batch * positions).map(|i| i % positions <= targets.labels(i / positions).len()).collect();
    out.sealed("grad_h_pred", &found.predictions, predictor_width, &real);
    Ok(out)
}

fn most(targets: &Targets, of: impl Fn(usize) -> usize) -> usize {
    (0..targets.batch()).map(of).max().unwrap_or_default()
}
