//! The language model that is inside of a transducer.
use panda_core::{Head, JointSites, Real};

use crate::{Error, Layout, Options, Result, Targets, Workspace, error::expect_rows, heads::Factored};

/// Log-probability of each label by the label side alone: the internal language model of HAT (Variani et al., arXiv
/// 2003.07705, section 3.2), which shallow fusion with another one subtracts.
///
/// ```text
/// h(u) = act(labels[u])      log P(y | u) = z_y - log Σ_{y' not blank} exp z_y'
/// ```
///
/// The frame's share of the joint is left out, and so is the blank, whether [`Options::factored_blank`] is set or not. Of the
/// options, activation, budget and precision count. The log-probability of a whole sequence is the sum over its labels.
///
/// ```
/// use rnnt_loss::{Head, Layout, Options, Targets, internal_lm};
/// let (labels, weight) = ([0.3f32, 0.7], [5.0, 1.0, 1.0]); // U = 1, H = 1, C = 3: both labels are alike
/// let targets = Targets::new(0, vec![9], vec![vec![2]])?;
/// let head = Head::new(&weight, None, 1)?;
/// let found = internal_lm(&labels, &head, Layout::Packed, &targets, &Options::default())?;
/// assert!((found[0][0] - 0.5f64.ln()).abs() < 1e-6);
/// # Ok::<(), rnnt_loss::Error>(())
/// ```
///
/// # Shapes
/// `labels` *rows x H* in `layout`, as for [`projected_loss`](crate::projected_loss()). Returns U numbers for each utterance.
///
/// # Errors
/// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, or -inf for every label.
///
/// # Cost
/// 2 Σ (U+1) H C floating-point operations.
pub fn internal_lm<F: Real>(
    labels: &[F],
    head: &Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
) -> Result<Vec<Vec<f64>>> {
    layout.check(targets)?;
    targets.check_classes(head.classes())?;
    expect_rows("labels", layout.label_rows(targets).1, head.hidden(), labels.len())?;
    let all: Vec<Vec<u32>> = (0..targets.batch()).map(|b| targets.labels(b).to_vec()).collect();
    if all.iter().all(Vec::is_empty) {
        return Ok(vec![Vec::new(); targets.batch()]);
    }
    // One frame, of zeros, at which everybody says everything.
    let targets = Targets::new(targets.blank(), vec![1; targets.batch()], all)?;
    let (frame, (_, label_of)) =
        (vec![F::ZERO; head.hidden()], layout.joint_rows(&targets, 0..targets.batch()));
    let (frame_of, lattices) = (vec![0; label_of.len()], targets.lattices());
    let at_site = |error| Error::at_site(error, lattices);
    let sites = JointSites::new(&frame, labels, &frame_of, &label_of, head.hidden(), options.activation)
        .map_err(at_site)?;
    let factored = Factored::new(head, targets.blank());
    let ([without_blank, _], selection) = (factored.heads()?, targets.labels_without_blank()?);
    let mut workspace = Workspace::new(options)?.normaliser;
    let found = panda_core::forward(&sites, &without_blank, &selection, &mut workspace).map_err(at_site)?;
    let of = |b: usize| found.emissions[lattices.range(b)][..targets.labels(b).len()].to_vec();
    Ok((0..targets.batch()).map(of).collect())
}
