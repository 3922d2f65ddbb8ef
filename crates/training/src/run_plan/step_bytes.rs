//! Upper bounds of the memory of a step: encoder, predictor, joint network and losses.
use model::Model;
use model::config::LossKind;

use super::{BYTES_PER_NUMBER, BatchShape};
use crate::{Error, Result};

/// Bytes of a step of any shape: stacks, blocks of threads, and nodes of the graph.
const STEP_OVERHEAD_BYTES: usize = 4 << 20;

/// Checks that the memory of a model's steps is known.
///
/// # Errors
/// [`Error::NoPlan`] if the encoder, the predictor or the loss does not report its memory.
pub fn check_step_bytes(model: &Model) -> Result<()> {
    let no_plan = |what: &str| Error::NoPlan { what: what.to_owned() };
    let config = model.config();
    if model.encoder().bytes(1, 1, config.input.width()).is_none() {
        return Err(no_plan("the encoder"));
    }
    if model.lattice().is_some() {
        return Err(no_plan("a recognition lattice"));
    }
    if model.predictor().is_some_and(|predictor| predictor.bytes(1, 1).is_none()) {
        return Err(no_plan("the predictor"));
    }
    // The budget is for lattices and sites; without a limit, the loss has no plan.
    let budget = config.loss.options.budget;
    if budget.bytes == usize::MAX {
        return Err(no_plan(&format!("loss.budget = \"{budget}\"")));
    }
    Ok(())
}

/// Returns an upper bound of the bytes of a batch's passes.
///
/// Not included are weights, their gradients and the input rows. A frozen encoder has no backward
/// pass: it needs at most the bytes of one with recomputation.
pub fn step_bytes(model: &Model, shape: BatchShape) -> usize {
    let BatchShape { utterances, rows, labels } = shape;
    let (config, encoder) = (model.config(), model.encoder());
    let is_trained = model.parameters().iter_trained().any(|(name, _)| name.starts_with("encoder."));
    let width = config.input.width();
    let bytes = encoder.bytes(utterances, rows, width).unwrap_or(usize::MAX);
    let encoder_bytes = match is_trained {
        true => bytes,
        false => bytes.min(encoder.recomputed_bytes(utterances, rows, width).unwrap_or(usize::MAX)),
    };
    let encoded_shape = BatchShape { utterances, rows: config.encoder.output_rows(rows), labels };
    encoder_bytes.saturating_add(encoded_step_bytes(model, encoded_shape))
}

/// Returns [`step_bytes`] of passes with recomputation.
///
/// Layers of the encoder save their input only; see [`model::TrainingPass::with_recomputation`].
pub fn recomputed_step_bytes(model: &Model, shape: BatchShape) -> usize {
    let BatchShape { utterances, rows, labels } = shape;
    let config = model.config();
    let encoder = model.encoder().recomputed_bytes(utterances, rows, config.input.width());
    let encoded_shape = BatchShape { utterances, rows: config.encoder.output_rows(rows), labels };
    encoder.unwrap_or(usize::MAX).saturating_add(encoded_step_bytes(model, encoded_shape))
}

/// Returns an upper bound of the bytes after the encoder.
///
/// The rows of the batch are encoder rows, which are not included; otherwise as [`step_bytes`].
pub(super) fn encoded_step_bytes(model: &Model, shape: BatchShape) -> usize {
    let BatchShape { utterances, rows, labels } = shape;
    let config = model.config();
    // 1. Predictor.
    let predictor = model
        .predictor()
        .map_or(0, |predictor| predictor.bytes(utterances, labels + 1).unwrap_or(usize::MAX));
    let frames = utterances * rows;
    let positions = utterances * (labels + 1);
    let (encoder_width, predictor_width) =
        (model.encoder().width(), model.predictor().map_or(0, |part| part.width()));
    // 2. The rest of the graph. Joint network: projected rows and their gradients, and gradients of
    // the inputs, twice where they are added.
    let joint = match config.loss.kind {
        LossKind::Ctc {} => 0,
        _ => {
            BYTES_PER_NUMBER
                * (4 * (frames + positions) * model.width()
                    + 3 * (frames * encoder_width + positions * predictor_width))
        }
    };
    let pruned = match config.loss.kind {
        LossKind::Pruned { .. } => {
            2 * BYTES_PER_NUMBER * (frames * encoder_width + positions * predictor_width)
        }
        _ => 0,
    };
    let ctc = if model.has_ctc_head() { 2 * BYTES_PER_NUMBER * frames * encoder_width } else { 0 };
    // 3. Losses; an auxiliary CTC loss shares the budget.
    let losses = config.loss.options.budget.bytes;
    // Losses keep the gradients of heads while the graph exists.
    let head_prefixes = ["joint.head", "joint.durations", "ctc", "simple"];
    let heads = model
        .parameters()
        .iter()
        .filter(|(name, _)| head_prefixes.iter().any(|prefix| name.starts_with(prefix)));
    let head_bytes = BYTES_PER_NUMBER * heads.map(|(_, head)| head.elem_count()).sum::<usize>();
    [predictor, joint, pruned, ctc, losses, head_bytes, STEP_OVERHEAD_BYTES]
        .into_iter()
        .fold(0, usize::saturating_add)
}
