//! Golden test of losses with durations: TDT and multi-blank transducers.
//!
//! A case has the scores of the batch (`acts`), the loss and its gradient (`grad_acts`).
use rnnt_loss::Element;
use rnnt_loss::{
    Layout, Loss, LossOutput, Options, Reduction, ScoreInputs, Session, TokenNormalization, Topology,
};

use super::case::{self, LossCase};
use super::outcome::{LossOutcome, common_options, real_row_mask};
use crate::error::RunError;

/// Runs scores of a token-and-duration transducer: classes, then durations.
pub(super) fn run_tdt<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let [_, frames, positions, width] = case.shape("acts")?;
    let durations = &case.options.durations;
    let Some(classes) = width.checked_sub(durations.len()) else {
        return Err(case
            .error("options.durations", "fewer than the columns", &durations.len().to_string())
            .into());
    };
    let topology = Topology::tdt(durations).map_err(rnnt_loss::Error::from)?;
    let case::Options { sigma, omega, .. } = case.options;
    let options = Options { loss: Loss::Tdt { topology, sigma, omega }, ..common_options(case) };
    let layout = Layout::Padded { frames, positions };
    let (scores, loss_weights) = (case.values::<F>("acts")?, Reduction::Sum.weights(&targets));
    let scores = ScoreInputs { scores: &scores, classes, layout };
    let output = Session::new(&options)?.sum(scores, &targets, &loss_weights)?;
    compare_output(case, &output, width, &real_row_mask(&targets, frames, positions))
}

/// Runs scores with big blanks, which advance by several frames.
pub(super) fn run_multi_blank<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?.with_big_blanks(case.options.big_blank_ids.clone())?;
    let [_, frames, positions, classes] = case.shape("acts")?;
    let durations = &case.options.big_blank_durations;
    let topology = Topology::multi_blank(durations).map_err(rnnt_loss::Error::from)?;
    let loss = Loss::Transducer { topology, tokens: TokenNormalization::Softmax, sigma: case.options.sigma };
    let options = Options { loss, ..common_options(case) };
    let layout = Layout::Padded { frames, positions };
    let (scores, loss_weights) = (case.values::<F>("acts")?, Reduction::Sum.weights(&targets));
    let scores = ScoreInputs { scores: &scores, classes, layout };
    let output = Session::new(&options)?.sum(scores, &targets, &loss_weights)?;
    compare_output(case, &output, classes, &real_row_mask(&targets, frames, positions))
}

/// Pairs losses and gradient with stored values; padded sites must have zero gradients.
fn compare_output<F: Element>(
    case: &LossCase,
    output: &LossOutput<F>,
    width: usize,
    is_real: &[bool],
) -> Result<LossOutcome, RunError> {
    let mut outcome = LossOutcome::default();
    case.require(&["loss", "grad_acts"])?;
    let gradient = &output.gradients.scores;
    outcome.add_loss(case, "loss", &output.losses)?;
    outcome.add_gradient(case, "grad_acts", gradient)?;
    outcome.expect_zero_padding("grad_acts", gradient, width, is_real);
    Ok(outcome)
}
