//! Cases of the pruned transducer: first pass, ranges, and the joint network over the retained sites.
use pruned::{Batch, Matrices, Ranges, Unigram, first_pass};
use rnnt_loss::Element;
use rnnt_loss::{
    Head, Joint, Layout, Loss, Options, PrunedJoint, Pruning, Reduction, Scales, Scores, Session, Simple,
    SimpleGradient, Targets, Tokens, Topology,
};

use super::case::{self, LossCase};
use super::outcome::{LossOutcome, options};
use crate::error::Stop;

/// Both passes, one by one and together.
pub(super) fn pruned<F: Element>(case: &LossCase) -> Result<LossOutcome, Stop> {
    let targets = case.targets()?;
    let [_, frames, classes] = case.shape("am")?;
    let [_, positions, width] = case.shape("lm_proj")?;
    let layout = Layout::Padded { frames, positions };
    let input = |name: &str| case.values::<F>(name);
    let (am, lm) = (input("am")?, input("lm")?);
    let source = Matrices::new(&am, &lm, classes).map_err(rnnt_loss::Error::from)?;
    let topology = arcs(case)?;
    let ones = Reduction::Sum.weights(&targets);
    let mut out = LossOutcome::default();

    let (encoded, predicted, weight, bias) = (input("am_proj")?, input("lm_proj")?, input("W")?, input("b")?);
    let head = Head::new(&weight, Some(&bias), width).map_err(rnnt_loss::Error::from)?;
    let joint = Joint::new(&encoded, &predicted, head).with_layout(layout);
    let scales = Scales { simple: 1.0, pruned: 1.0 };
    let inputs = PrunedJoint { simple: Simple::Matrices(source), joint, scales };
    let (tokens, pruning) = (Tokens::Softmax, pruning(case)?);
    let chosen =
        Options { loss: Loss::Pruned { topology: topology.clone(), tokens, pruning }, ..options(case) };
    let found = Session::new(&chosen)?.sum(inputs, &targets, &ones)?;
    let (Some(first), Some(SimpleGradient::Matrices(simple))) = (found.first_pass, found.gradients.simple)
    else {
        unreachable!("pruning has a first pass")
    };
    out.loss(case, "simple_loss", &first.losses)?;
    out.loss(case, "pruned_loss", &found.losses)?;
    for (name, gradient) in [
        ("grad_am", &simple.am),
        ("grad_lm", &simple.lm),
        ("grad_am_proj", &found.gradients.encoded),
        ("grad_lm_proj", &found.gradients.predicted),
        ("grad_W", &found.gradients.head.weight),
        ("grad_b", &found.gradients.head.bias),
    ] {
        case.get(name)?;
        out.gradient(case, name, gradient)?;
    }
    let mut every = Session::new(&Options { loss: Loss::over(topology.clone()), ..chosen })?;
    if case.options.delay_penalty == 0.0 {
        out.loss(case, "unpruned_joint_loss", &every.sum(joint, &targets, &ones)?.losses)?;
    }
    occupancies(&mut out, case, &source, &targets, (frames, positions), &topology)?;
    ranges(&mut out, case, &targets, &first.ranges)?;
    scores(&mut out, case, &targets, &first.ranges, &mut every)?;
    let real: Vec<bool> =
        (0..targets.batch() * frames).map(|i| i % frames < targets.frames(i / frames)).collect();
    out.sealed("grad_am_proj", &found.gradients.encoded, width, &real);
    out.sealed("grad_am", &simple.am, classes, &real);
    Ok(out)
}

/// The arcs of either pass.
fn arcs(case: &LossCase) -> Result<Topology, Stop> {
    let name = case.options.rnnt_type.as_deref();
    let Some(topology) = name.and_then(|name| name.parse().ok()) else {
        let expected = "regular, modified or constrained";
        return Err(case.wrong("options.rnnt_type", expected, &format!("{name:?}")).into());
    };
    Ok(topology)
}

fn pruning(case: &LossCase) -> Result<Pruning, Stop> {
    let Some(s_range) = case.options.s_range_requested else {
        return Err(case.wrong("options.s_range_requested", "a width", "none").into());
    };
    let case::Options { lm_only_scale, am_only_scale, .. } = case.options;
    Ok(Pruning { s_range, lm_only_scale, am_only_scale, unigram: Unigram::AllRows })
}

/// Posteriors of the first pass, in the files by label and by frame.
fn occupancies<F: Element>(
    out: &mut LossOutcome,
    case: &LossCase,
    source: &Matrices<F>,
    targets: &Targets,
    (frames, positions): (usize, usize),
    topology: &Topology,
) -> Result<(), Stop> {
    let case::Options { lm_only_scale, am_only_scale, delay_penalty, .. } = case.options;
    let options = pruned::Options {
        topology: topology.clone(),
        lm_only_scale,
        am_only_scale,
        unigram: Unigram::AllRows,
        delay_penalty,
        ..pruned::Options::default()
    };
    let each = 0..targets.batch();
    let lengths = each.clone().map(|b| targets.frames(b)).collect();
    let labels = each.clone().map(|b| targets.labels(b).to_vec()).collect();
    let batch = Batch::padded(targets.blank(), lengths, labels, frames, positions);
    let pass = batch.and_then(|batch| first_pass(source, &batch, &options));
    let pass = pass.map_err(rnnt_loss::Error::from)?;
    let [_, _, wide] = case.shape("px_grad")?;
    let mut px = vec![0.0; targets.batch() * (positions - 1) * wide];
    let mut py = vec![0.0; targets.batch() * positions * frames];
    let lattices = targets.lattices();
    for b in each {
        for (site, at) in lattices.site_range(b).zip(lattices.utterance_sites(b)) {
            let [blank, label] = [pass.occupancies[2 * site], pass.occupancies[2 * site + 1]];
            py[(b * positions + at.label) * frames + at.frame] = blank;
            if at.label < targets.labels(b).len() {
                px[(b * (positions - 1) + at.label) * wide + at.frame] = label;
            }
        }
    }
    out.gradient(case, "px_grad", &px)?;
    Ok(out.gradient(case, "py_grad", &py)?)
}

/// Label positions of every real frame, which must be the very same.
fn ranges(out: &mut LossOutcome, case: &LossCase, targets: &Targets, found: &Ranges) -> Result<(), Stop> {
    let [_, frames, width] = case.shape("ranges")?;
    let stored = &case.get("ranges")?.values;
    for b in 0..targets.batch() {
        for t in 0..targets.frames(b) {
            let row = &stored[(b * frames + t) * width..][..width];
            let band = found.band(b, t);
            // Files keep as many positions as the widest utterance.
            let same = row[0] == band.start as f64 && band.len() <= width;
            if !same || row[band.len() - 1] != (band.end - 1) as f64 {
                out.different.push("ranges");
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Scores of the retained sites, as the case's author computed them, by the door for scores.
fn scores<F: Element>(
    out: &mut LossOutcome,
    case: &LossCase,
    targets: &Targets,
    ranges: &Ranges,
    session: &mut Session<F>,
) -> Result<(), Stop> {
    let [batch, frames, width, classes] = case.shape("pruned_logits")?;
    let stored = case.values::<F>("pruned_logits")?;
    let bands = (0..batch).map(|b| (0..targets.frames(b)).map(|t| ranges.band(b, t)).collect());
    let retained = targets.retained(bands.collect())?;
    let mut rows = Vec::new();
    for b in 0..batch {
        for t in 0..targets.frames(b) {
            let kept = ranges.band(b, t).len();
            rows.extend((0..kept).map(|k| ((b * frames + t) * width + k) * classes));
        }
    }
    let packed: Vec<F> = rows.iter().flat_map(|&row| &stored[row..row + classes]).copied().collect();
    let ones = Reduction::Sum.weights(targets);
    let packed = Scores { scores: &packed, classes, layout: Layout::Packed };
    let found = session.sum(packed, &retained, &ones)?;
    out.loss(case, "pruned_loss", &found.losses)?;
    let mut gradient = vec![F::ZERO; stored.len()];
    for (row, values) in rows.into_iter().zip(found.gradients.scores.chunks_exact(classes)) {
        gradient[row..row + classes].copy_from_slice(values);
    }
    Ok(out.gradient(case, "grad_pruned_logits", &gradient)?)
}
