//! Door for ready-made scores, as other toolkits' `rnnt_loss` takes them.
use panda_core::{Real, scores};

use crate::{
    Layout, Options, Result, Targets,
    columns::{Columns, Part},
    engine::Forward,
    error::expect_rows,
    objective::Transducer,
};

/// Loss and gradient of [`scores_loss`].
#[derive(Debug, Clone, PartialEq)]
pub struct ScoresLoss<F> {
    /// `-log P` of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the scores, shaped like them; exactly 0 in padding.
    pub gradient: Vec<F>,
    /// Forward log-sums of the packed sites, *N*, without delay penalty and σ.
    pub log_alpha: Vec<f64>,
    /// Backward log-sums of the packed sites, *N*; `loss = -log_beta` at the first site of an utterance.
    pub log_beta: Vec<f64>,
}

/// Transducer loss of scores (logits), with the gradient of `Σ_b weights[b] loss[b]`.
///
/// # Shapes
/// `scores` *rows x C* in `layout` ([`Layout::Padded`]: *B x T x (U+1) x C*), `weights` *B*.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, a real site whose scores are NaN, +inf or all -inf.
///
/// # Cost
/// O(N C) time; one copy of the scores. [`scores_loss_in_place`] does without the copy.
pub fn scores_loss<F: Real>(
    scores: &[F],
    classes: usize,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<ScoresLoss<F>> {
    let mut gradient = scores.to_vec();
    let forward = overwrite(&mut gradient, classes, layout, targets, options, weights)?;
    let sums = rnnt_dp::log_sums(targets.lattices(), &options.topology, &forward.emissions())?;
    let (log_alpha, log_beta) = (sums.log_alpha, sums.log_beta);
    Ok(ScoresLoss { losses: forward.losses().to_vec(), gradient, log_alpha, log_beta })
}

/// As [`scores_loss`], writing the gradient over the scores; returns the losses.
///
/// # Errors
/// As [`scores_loss`]; the scores are then untouched.
pub fn scores_loss_in_place<F: Real>(
    scores: &mut [F],
    classes: usize,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<Vec<f64>> {
    Ok(overwrite(scores, classes, layout, targets, options, weights)?.losses().to_vec())
}

fn overwrite<F: Real>(
    z: &mut [F],
    classes: usize,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<Forward<F>> {
    options.without_head()?;
    layout.check(targets)?;
    targets.check_classes(classes)?;
    expect_rows("scores", layout.score_rows(targets), classes, z.len())?;
    let site_of_row = layout.site_of_row(targets);
    let sites = targets.lattices().sites();
    let mut workspace = rnnt_dp::Workspace::new();
    let objective = Transducer::new(targets, Columns::Tokens);
    let forward = Forward::from_normaliser(&objective, options, &mut workspace, |_, selection| {
        scores::forward(z, classes, &site_of_row, sites, selection)
    })?;
    forward.with_adjoints(targets.lattices(), options, weights, |_, part, adjoints| {
        let Part { selection, normalized } = part;
        scores::backward_in_place(z, classes, &site_of_row, selection, normalized, adjoints)
    })?;
    Ok(forward)
}
