//! Golden test of the pruned transducer: first pass, ranges, second pass.
//!
//! Names as in k2: `am` and `lm` are frame and label scores of the simple joiner; `px` and `py` are
//! occupancies of label and blank arcs; `ranges` are the label positions kept for each frame.
use pruned::{Batch, Matrices, Ranges, Unigram, first_pass};
use rnnt_loss::Element;
use rnnt_loss::{
    Head, JointInputs, Layout, Loss, Options, PassScales, PrunedInputs, Pruning, Reduction, ScoreInputs,
    Session, SimpleGradient, SimpleInputs, Targets, TokenNormalization, Topology,
};

use super::case::{self, LossCase};
use super::outcome::{LossOutcome, common_options};
use crate::error::RunError;

/// Runs both passes, separately and together.
pub(super) fn run_pruned<F: Element>(case: &LossCase) -> Result<LossOutcome, RunError> {
    let targets = case.targets()?;
    let [_, frames, classes] = case.shape("am")?;
    let [_, positions, width] = case.shape("lm_proj")?;
    let layout = Layout::Padded { frames, positions };
    let input = |name: &str| case.values::<F>(name);
    let (am, lm) = (input("am")?, input("lm")?);
    let simple_joiner = Matrices::new(&am, &lm, classes).map_err(rnnt_loss::Error::from)?;
    let topology = parse_topology(case)?;
    let loss_weights = Reduction::Sum.weights(&targets);
    let mut outcome = LossOutcome::default();

    // Both passes in one session, with the gradients of all inputs.
    let (frame_rows, label_rows, weight, bias) =
        (input("am_proj")?, input("lm_proj")?, input("W")?, input("b")?);
    let head = Head::new(&weight, Some(&bias), width).map_err(rnnt_loss::Error::from)?;
    let joint = JointInputs::new(&frame_rows, &label_rows, head).with_layout(layout);
    let scales = PassScales { simple: 1.0, pruned: 1.0 };
    let inputs = PrunedInputs { simple: SimpleInputs::Matrices(simple_joiner), joint, scales };
    let (tokens, pruning) = (TokenNormalization::Softmax, parse_pruning(case)?);
    let case_options = Options {
        loss: Loss::Pruned { topology: topology.clone(), tokens, pruning },
        ..common_options(case)
    };
    let output = Session::new(&case_options)?.sum(inputs, &targets, &loss_weights)?;
    let (Some(first_pass), Some(SimpleGradient::Matrices(simple))) =
        (output.first_pass, output.gradients.simple)
    else {
        unreachable!("pruning has a first pass")
    };
    outcome.add_loss(case, "simple_loss", &first_pass.losses)?;
    outcome.add_loss(case, "pruned_loss", &output.losses)?;
    for (name, gradient) in [
        ("grad_am", &simple.am),
        ("grad_lm", &simple.lm),
        ("grad_am_proj", &output.gradients.encoded),
        ("grad_lm_proj", &output.gradients.predicted),
        ("grad_W", &output.gradients.head.weight),
        ("grad_b", &output.gradients.head.bias),
    ] {
        case.require(&[name])?;
        outcome.add_gradient(case, name, gradient)?;
    }
    // The loss without pruning, and the results of each pass on its own inputs.
    let mut full_session =
        Session::new(&Options { loss: Loss::with_topology(topology.clone()), ..case_options })?;
    if case.options.delay_penalty == 0.0 {
        outcome.add_loss(
            case,
            "unpruned_joint_loss",
            &full_session.sum(joint, &targets, &loss_weights)?.losses,
        )?;
    }
    compare_occupancies(&mut outcome, case, &simple_joiner, &targets, frames, positions, &topology)?;
    compare_ranges(&mut outcome, case, &targets, &first_pass.ranges)?;
    compare_second_pass(&mut outcome, case, &targets, &first_pass.ranges, &mut full_session)?;
    let is_real_frame: Vec<bool> =
        (0..targets.batch() * frames).map(|i| i % frames < targets.frames(i / frames)).collect();
    outcome.expect_zero_padding("grad_am_proj", &output.gradients.encoded, width, &is_real_frame);
    outcome.expect_zero_padding("grad_am", &simple.am, classes, &is_real_frame);
    Ok(outcome)
}

/// Returns the topology of both passes.
fn parse_topology(case: &LossCase) -> Result<Topology, RunError> {
    let name = case.options.rnnt_type.as_deref();
    let Some(topology) = name.and_then(|name| name.parse().ok()) else {
        let expected = "regular, modified or constrained";
        return Err(case.error("options.rnnt_type", expected, &format!("{name:?}")).into());
    };
    Ok(topology)
}

/// Returns the pruning settings of the case: width of a range, and smoothing scales.
fn parse_pruning(case: &LossCase) -> Result<Pruning, RunError> {
    let Some(s_range) = case.options.s_range_requested else {
        return Err(case.error("options.s_range_requested", "a width", "none").into());
    };
    let case::Options { lm_only_scale, am_only_scale, .. } = case.options;
    Ok(Pruning { s_range, lm_only_scale, am_only_scale, unigram: Unigram::AllRows })
}

/// Compares the arc occupancies of the first pass, stored as `[B, U, T]`.
fn compare_occupancies<F: Element>(
    outcome: &mut LossOutcome,
    case: &LossCase,
    simple_joiner: &Matrices<F>,
    targets: &Targets,
    frames: usize,
    positions: usize,
    topology: &Topology,
) -> Result<(), RunError> {
    let case::Options { lm_only_scale, am_only_scale, delay_penalty, .. } = case.options;
    let options = pruned::Options {
        topology: topology.clone(),
        lm_only_scale,
        am_only_scale,
        unigram: Unigram::AllRows,
        delay_penalty,
        ..pruned::Options::default()
    };
    let utterances = 0..targets.batch();
    let lengths = utterances.clone().map(|b| targets.frames(b)).collect();
    let labels = utterances.clone().map(|b| targets.labels(b).to_vec()).collect();
    let batch = Batch::padded(targets.blank(), lengths, labels, frames, positions);
    let output = batch.and_then(|batch| first_pass(simple_joiner, &batch, &options));
    let output = output.map_err(rnnt_loss::Error::from)?;
    let [_, _, px_frames] = case.shape("px_grad")?;
    let mut px = vec![0.0; targets.batch() * (positions - 1) * px_frames];
    let mut py = vec![0.0; targets.batch() * positions * frames];
    let lattices = targets.lattices();
    for b in utterances {
        for (site_index, site) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
            // A site has two arcs: blank and next label.
            let [blank, label] = [output.occupancies[2 * site_index], output.occupancies[2 * site_index + 1]];
            py[(b * positions + site.label) * frames + site.frame] = blank;
            if site.label < targets.labels(b).len() {
                px[(b * (positions - 1) + site.label) * px_frames + site.frame] = label;
            }
        }
    }
    outcome.add_gradient(case, "px_grad", &px)?;
    Ok(outcome.add_gradient(case, "py_grad", &py)?)
}

/// Compares the label positions of every frame, which must be equal.
fn compare_ranges(
    outcome: &mut LossOutcome,
    case: &LossCase,
    targets: &Targets,
    ranges: &Ranges,
) -> Result<(), RunError> {
    let [_, frames, width] = case.shape("ranges")?;
    let stored = &case.get("ranges")?.values;
    for b in 0..targets.batch() {
        for t in 0..targets.frames(b) {
            let stored_range = &stored[(b * frames + t) * width..][..width];
            let band = ranges.band(b, t);
            // Files pad the range of every frame to the same width; only the band itself is
            // compared.
            let is_same_start = stored_range[0] == band.start as f64 && band.len() <= width;
            if !is_same_start || stored_range[band.len() - 1] != (band.end - 1) as f64 {
                outcome.mismatches.push("ranges");
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Runs the second pass on stored scores of the retained sites.
///
/// A retained site is a lattice node (t, u) inside the range of its frame.
fn compare_second_pass<F: Element>(
    outcome: &mut LossOutcome,
    case: &LossCase,
    targets: &Targets,
    ranges: &Ranges,
    session: &mut Session<F>,
) -> Result<(), RunError> {
    let [batch, frames, width, classes] = case.shape("pruned_logits")?;
    let stored = case.values::<F>("pruned_logits")?;
    let bands = (0..batch).map(|b| (0..targets.frames(b)).map(|t| ranges.band(b, t)).collect());
    let retained = targets.with_bands(bands.collect())?;
    // Offsets of the retained sites in the stored scores.
    let mut offsets = Vec::new();
    for b in 0..batch {
        for t in 0..targets.frames(b) {
            let positions = ranges.band(b, t).len();
            offsets.extend((0..positions).map(|k| ((b * frames + t) * width + k) * classes));
        }
    }
    let packed_scores: Vec<F> =
        offsets.iter().flat_map(|&offset| &stored[offset..offset + classes]).copied().collect();
    let loss_weights = Reduction::Sum.weights(targets);
    let inputs = ScoreInputs { scores: &packed_scores, classes, layout: Layout::Packed };
    let output = session.sum(inputs, &retained, &loss_weights)?;
    outcome.add_loss(case, "pruned_loss", &output.losses)?;
    let mut gradient = vec![F::ZERO; stored.len()];
    for (offset, values) in offsets.into_iter().zip(output.gradients.scores.chunks_exact(classes)) {
        gradient[offset..offset + classes].copy_from_slice(values);
    }
    Ok(outcome.add_gradient(case, "grad_pruned_logits", &gradient)?)
}
