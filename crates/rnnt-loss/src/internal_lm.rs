//! Label log-probabilities of the internal language model of a transducer.
//!
//! `Session::internal_lm` calls this module. The joint network runs on predictor rows with an
//! encoder row of zeros, and the softmax excludes the blank (HAT, Variani et al., arXiv 2003.07705,
//! section 3.2).
use panda_core::Real;
use panda_core::{Head, Selection};

use crate::{
    Error, Layout, Options, Result, Targets,
    budget::{CallPlan, SessionBuffers},
    error::expect_rows,
    heads::with_masked_blank,
    inputs::InputValues,
    joint_hidden_rows::{JointHiddenRows, JointSpec},
    site_buffers::RowIndices,
    targets::RowStarts,
};

/// Implements [`Session::internal_lm`](crate::Session::internal_lm).
pub(crate) fn internal_lm<F: Real>(
    buffers: &mut SessionBuffers<F>,
    predicted: &[F],
    head: Head<F>,
    layout: Layout,
    targets: &Targets,
    options: &Options,
) -> Result<Vec<Vec<f64>>> {
    layout.check(targets)?;
    targets.check_classes(head.classes())?;
    let (label_starts, width) = (layout.label_starts(targets), head.hidden());
    expect_rows("predicted", label_starts.total(), width, predicted.len())?;
    let sequences: Vec<Vec<u32>> = (0..targets.batch()).map(|b| targets.labels(b).to_vec()).collect();
    if sequences.iter().all(Vec::is_empty) {
        return Ok(vec![Vec::new(); targets.batch()]);
    }
    // A lattice of one frame has a site for each label position; its encoder row is zero.
    let targets = Targets::new(targets.blank(), vec![1; targets.batch()], sequences)?;
    let (encoded, lattices) = (vec![F::ZERO; width], targets.lattices());
    // All utterances share the encoder row.
    let frames = RowStarts::Padded { rows_per_utterance: 0, batch: targets.batch() };
    let activation = options.activation;
    let joint = JointSpec { width, frames, labels: label_starts, activation, mask: None };
    let values = InputValues { encoded: &encoded, predicted, ..InputValues::none() };
    let indices = joint.row_indices(&values, &targets, 0..targets.batch(), RowIndices::default())?;
    let hidden_rows = JointHiddenRows::new(&joint, &values, indices);
    let selection = targets.next_labels(Selection::default())?;
    // The head uses the whole budget.
    buffers.apply_plan(&CallPlan::single_head(options.budget), 1, options)?;
    let workspace = &mut buffers.normalizers[0];
    let normalized = with_masked_blank(head, targets.blank(), |head| {
        panda_core::forward(&hidden_rows, head, &selection, workspace)
            .map_err(|error| Error::at_site(error, lattices))
    })?;
    let log_probs =
        |b: usize| normalized.emissions[lattices.site_range(b)][..targets.labels(b).len()].to_vec();
    Ok((0..targets.batch()).map(log_probs).collect())
}
