//! Door for hidden rows that exist already, one a site.
use panda_core::{Gradients, Head, Real, Rows};

use crate::{
    Layout, Options, Result, Skipped, Targets, Workspace, columns::Columns, engine::SampleWise,
    error::expect_rows,
};

/// Loss and gradients of [`rows_loss`].
#[derive(Debug, Clone, PartialEq)]
pub struct RowsLoss<F> {
    /// `-log P` of each utterance, *B*.
    pub losses: Vec<f64>,
    /// Gradient of the hidden rows, shaped like them; 0 in padding.
    pub hidden: Vec<F>,
    /// Gradient of the head's weight, *C x H*.
    pub weight: Vec<F>,
    /// Gradient of the head's bias, *C*.
    pub bias: Vec<F>,
    /// What [`Options::skip`] left out of the gradients.
    pub skipped: Skipped,
}

/// Transducer loss of hidden rows and a head, with all gradients of `Σ_b weights[b] loss[b]`.
///
/// # Shapes
/// `hidden` *rows x H* in `layout` ([`Layout::Padded`]: *B x T x (U+1) x H*), `weights` *B*.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf.
///
/// # Cost
/// As [`projected_loss`](crate::projected_loss), plus a packed copy of a group's rows if they are padded.
pub fn rows_loss<F: Real>(
    hidden: &[F],
    head: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
    weights: &[f64],
) -> Result<RowsLoss<F>> {
    layout.check(targets)?;
    let width = head.hidden();
    expect_rows("hidden", layout.score_rows(targets), width, hidden.len())?;
    options.without_head()?;
    targets.check_classes(head.classes())?;
    let (heads, mut workspace) = ([*head], Workspace::new(options)?);
    let mut run = SampleWise::new(&heads, Columns::Tokens, targets, weights, &mut workspace)?;
    let mut into = [Gradients::zero(Vec::new(), head)];
    let mut gradient = vec![F::ZERO; hidden.len()];
    for group in run.groups() {
        let part = targets.part(group.clone());
        let runs = layout.site_runs(targets, group.clone());
        let packed: Vec<F>;
        let rows = match runs.as_slice() {
            [run] => &hidden[run.start * width..run.end * width],
            runs => {
                packed = runs
                    .iter()
                    .flat_map(|run| &hidden[run.start * width..run.end * width])
                    .copied()
                    .collect();
                &packed
            }
        };
        into[0].sites = vec![F::ZERO; rows.len()];
        run.step(group, &part, &Rows::new(rows, width)?, &mut into)?;
        let mut found = into[0].sites.as_slice();
        for run in runs {
            let into_run = &mut gradient[run.start * width..run.end * width];
            into_run.copy_from_slice(found.split_off(..into_run.len()).expect("a gradient for every site"));
        }
    }
    let (losses, skipped) = run.finish();
    let [into] = into;
    let bias = into.bias.into_iter().map(F::from_f64).collect();
    Ok(RowsLoss { losses, hidden: gradient, weight: into.weight, bias, skipped })
}
