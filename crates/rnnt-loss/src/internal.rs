//! The language model that is inside of a transducer.
use panda_core::Real;
use panda_core::{Head, Selection};

use crate::{
    Error, Layout, Options, Result, Targets,
    budget::{CallPlan, SessionBuffers},
    error::expect_rows,
    heads::without_blank,
    inputs::InputValues,
    joint_sites::{JointSites, JointSource},
    site_buffers::SiteIndices,
    targets::Starts,
};

/// [`Session::internal_lm`](crate::Session::internal_lm)
pub(crate) fn label_side<F: Real>(
    buffers: &mut SessionBuffers<F>,
    predicted: &[F],
    head: Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
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
    let (activation, frames) = (options.activation, Starts::Every(0, targets.batch()));
    let source = JointSource { width, frames, labels, activation, mask: None };
    let values = InputValues { encoded: &encoded, predicted, ..InputValues::none() };
    let indices = source.indices(&values, &targets, 0..targets.batch(), SiteIndices::default())?;
    let sites = JointSites::new(&source, &values, indices);
    let selection = targets.next_labels(Selection::default())?;
    // The whole budget is the head's.
    buffers.apply_plan(&CallPlan::of_one(options.budget), 1, options)?;
    let workspace = &mut buffers.normalizers[0];
    let found = without_blank(head, targets.blank(), |head| {
        panda_core::forward(&sites, head, &selection, workspace)
            .map_err(|error| Error::at_site(error, lattices))
    })?;
    let of = |b: usize| found.emissions[lattices.site_range(b)][..targets.labels(b).len()].to_vec();
    Ok((0..targets.batch()).map(of).collect())
}
