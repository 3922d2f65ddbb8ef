//! The language model that is inside of a transducer.
use panda_core::Real;
use panda_core::{Head, Selection};

use crate::{
    Element, Error, Layout, Result, Session, Targets,
    budget::CallPlan,
    compact::Lists,
    error::expect_rows,
    heads::without_blank,
    joint_sites::{JointRows, JointSites},
    targets::Starts,
};

impl<F: Element> Session<F> {
    /// Log-probability of each label by the label side alone: the internal language model of HAT (Variani et al., arXiv
    /// 2003.07705, section 3.2), which shallow fusion with another one subtracts.
    ///
    /// ```text
    /// h(u) = act(predicted[u])      log P(y | u) = z_y - log Σ_{y' not blank} exp z_y'
    /// ```
    ///
    /// The frame's share of the joint is left out, and so is the blank, factored or not. Of the options, activation, budget and
    /// precision count. The log-probability of a whole sequence is the sum over its labels.
    ///
    /// ```
    /// use rnnt_loss::{Head, Layout, Options, Session, Targets};
    /// let (predicted, weight) = ([0.3f32, 0.7], [5.0, 1.0, 1.0]); // U = 1, H = 1, C = 3: both labels are alike
    /// let targets = Targets::new(0, vec![9], vec![vec![2]])?;
    /// let mut session = Session::new(&Options::default())?;
    /// let found = session.internal_lm(&predicted, Head::new(&weight, None, 1)?, Layout::Packed, &targets)?;
    /// assert!((found[0][0] - 0.5f64.ln()).abs() < 1e-6);
    /// # Ok::<(), rnnt_loss::Error>(())
    /// ```
    ///
    /// # Shapes
    /// `predicted` *rows x H* in `layout`, as [`Joint::predicted`](crate::Joint::predicted). Returns U numbers for each utterance.
    ///
    /// # Errors
    /// Shapes that do not fit, labels outside the classes, scores that are NaN or +inf, or -inf for every label.
    ///
    /// # Cost
    /// 2 Σ (U+1) H C floating-point operations.
    pub fn internal_lm(
        &mut self,
        predicted: &[F],
        head: Head<F>,
        layout: Layout,
        targets: &Targets,
    ) -> Result<Vec<Vec<f64>>> {
        F::engine(self).internal_lm(predicted, head, layout, targets)
    }
}

/// [`Session::internal_lm`]
pub(crate) fn label_side<F: Real>(
    session: &mut Session<F>,
    predicted: &[F],
    head: Head<F>,
    layout: Layout,
    targets: &Targets,
) -> Result<Vec<Vec<f64>>> {
    layout.check(targets)?;
    targets.check_classes(head.classes())?;
    let (labels, width) = (layout.label_starts(targets), head.hidden());
    expect_rows("predicted", labels.total(), width, predicted.len())?;
    let all: Vec<Vec<u32>> = (0..targets.batch()).map(|b| targets.labels(b).to_vec()).collect();
    if all.iter().all(Vec::is_empty) {
        return Ok(vec![Vec::new(); targets.batch()]);
    }
    // One frame, of zeros, at which everybody says everything.
    let targets = Targets::new(targets.blank(), vec![1; targets.batch()], all)?;
    let (encoded, lattices) = (vec![F::ZERO; width], targets.lattices());
    let (activation, frames) = (session.options.activation, Starts::Every(0, targets.batch()));
    let rows = JointRows { encoded: &encoded, predicted, width, frames, labels, activation, mask: None };
    let sites = JointSites::new(&rows, &targets, 0..targets.batch(), Lists::default())?;
    let selection = targets.next_labels(Selection::default())?;
    // The whole budget is the head's.
    session.first = ::pruned::Workspace::default();
    session.keep_to(&CallPlan::of_one(session.options.budget), 1)?;
    let workspace = &mut session.normalisers[0];
    let found = without_blank(head, targets.blank(), |head| {
        panda_core::forward(&sites, head, &selection, workspace)
            .map_err(|error| Error::at_site(error, lattices))
    })?;
    let of = |b: usize| found.emissions[lattices.range(b)][..targets.labels(b).len()].to_vec();
    Ok((0..targets.batch()).map(of).collect())
}
