//! Cases of transducers with durations: TDT and multi-blank.
use panda_core::Real;
use rnnt_loss::{Layout, Reduction, Topology, scores_loss, tdt_scores_loss};

use super::case::Case;
use super::outcome::{Outcome, Stop, options, real_rows};

/// Rows of tokens and durations.
pub(super) fn tdt<F: Real>(case: &Case) -> Result<Outcome, Stop> {
    let targets = case.targets()?;
    let [_, frames, positions, width] = case.shape("acts")?;
    let durations = &case.options.durations;
    let Some(classes) = width.checked_sub(durations.len()) else {
        return Err(case
            .wrong("options.durations", "fewer than the columns", &durations.len().to_string())
            .into());
    };
    let mut options = options(case);
    options.topology = Topology::tdt(durations).map_err(rnnt_loss::Error::from)?;
    options.omega = case.options.omega;
    let layout = Layout::Padded { frames, positions };
    let (scores, ones) = (case.values::<F>("acts")?, Reduction::Sum.weights(&targets));
    let (losses, gradient) = tdt_scores_loss(&scores, classes, layout, &targets, &options, &ones)?;
    outcome(case, &losses, &gradient, width, &real_rows(&targets, frames, positions))
}

/// Rows in which some classes are blanks of several frames.
pub(super) fn multi_blank<F: Real>(case: &Case) -> Result<Outcome, Stop> {
    let targets = case.targets()?.with_big_blanks(case.options.big_blank_ids.clone())?;
    let [_, frames, positions, classes] = case.shape("acts")?;
    let mut options = options(case);
    let durations = &case.options.big_blank_durations;
    options.topology = Topology::multi_blank(durations).map_err(rnnt_loss::Error::from)?;
    let layout = Layout::Padded { frames, positions };
    let (scores, ones) = (case.values::<F>("acts")?, Reduction::Sum.weights(&targets));
    let found = scores_loss(&scores, classes, layout, &targets, &options, &ones)?;
    outcome(case, &found.losses, &found.gradient, classes, &real_rows(&targets, frames, positions))
}

fn outcome<F: Real>(
    case: &Case,
    losses: &[f64],
    gradient: &[F],
    width: usize,
    real: &[bool],
) -> Result<Outcome, Stop> {
    let mut out = Outcome::default();
    case.get("loss")?;
    case.get("grad_acts")?;
    out.loss(case, "loss", losses)?;
    out.gradient(case, "grad_acts", gradient)?;
    out.sealed("grad_acts", gradient, width, real);
    Ok(out)
}
