//! Door for hidden rows that exist already, one a site.
use panda_core::{Gradients, Head, Real, Rows};

use crate::{
    Layout, Options, Result, Skipped, Targets, Workspace,
    engine::SampleWise,
    error::expect_rows,
    heads::Heads,
    objective::{Objective, Transducer},
};

/// Loss and gradients of [`rows_loss`] and [`ctc_loss`](crate::ctc_loss()).
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
    targets.check_classes(head.classes())?;
    let heads = Heads::new(head, None, targets.blank(), options)?;
    Workspace::new(options)?.rows_loss(
        ("hidden", hidden),
        &heads,
        layout,
        Transducer::new(targets, heads.columns()),
        weights,
    )
}

impl<F: Real> Workspace<F> {
    pub(crate) fn rows_loss(
        &mut self,
        (argument, hidden): (&'static str, &[F]),
        heads: &Heads<F>,
        layout: Layout,
        objective: impl Objective,
        weights: &[f64],
    ) -> Result<RowsLoss<F>> {
        layout.check(objective.sites())?;
        let list = heads.list()?;
        let width = list[0].hidden();
        expect_rows(argument, layout.score_rows(objective.sites()), width, hidden.len())?;
        let mut run = SampleWise::new(&list, objective, weights, self)?;
        let mut into: Vec<_> = list.iter().map(|head| Gradients::zero(Vec::new(), head)).collect();
        let mut gradient = vec![F::ZERO; hidden.len()];
        for group in run.groups() {
            let part = run.objective.part(group.clone());
            let runs = layout.site_runs(run.objective.sites(), group.clone());
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
                into_run
                    .copy_from_slice(found.split_off(..into_run.len()).expect("a gradient for every site"));
            }
        }
        let (losses, skipped) = run.finish();
        let (weight, bias) = heads.join(into).swap_remove(0);
        Ok(RowsLoss { losses, hidden: gradient, weight, bias, skipped })
    }
}
