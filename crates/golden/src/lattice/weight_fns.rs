//! Golden test of weight functions: the arc weights of a lattice.
//!
//! They are the joint network, local normalization (HAT, log-softmax) and a recurrent network over
//! contexts. A context state has one weight for the blank arc and one for each label, V in all.
use lattice::weight_fn::Normalize;
use lattice::{
    Arcs, ArcsMut, BoundWeights, Embeddings, JointWeightFn, LocallyNormalized, Parameters, SharedRnn,
    TableWeightFn, WeightFn,
};
use rnnt_loss::Element;

use super::check::LatticeCheck;
use super::file::LatticeFile;
use crate::error::RunError;

/// Returns true if a tensor is a result.
pub(super) fn is_result(name: &str) -> bool {
    const INPUTS: [&str; 6] =
        ["joint/cache", "joint/frame", "joint/state", "hat_extreme/blank_in", "hat_extreme/lexical_in", ""];
    let is_input = INPUTS.contains(&name)
        || ["joint/params/", "rnn_cacher/params/", "normalize/"]
            .iter()
            .any(|prefix| name.starts_with(prefix));
    !is_input && !name.contains("/cotangent") && name != "rnn_cacher/vocab_context"
}

/// Checks all weight functions; each has a group of tensors.
pub(super) fn compare_weight_fns<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    compare_joint::<F>(check)?;
    compare_local_normalization::<F>(check)?;
    compare_extreme_blanks::<F>(check)?;
    compare_recurrent_network::<F>(check)?;
    check.ignore("hat_extreme/*_last is ignored, as LAST overflows", |name| {
        name.starts_with("hat_extreme/") && name.ends_with("_last")
    });
    Ok(())
}

/// Computes the weights of all arcs of the first frames.
fn all_arc_weights<F: Element>(
    weights: &dyn BoundWeights<F>,
    frames: usize,
    states: usize,
    vocabulary: usize,
) -> (Vec<F>, Vec<F>) {
    let (mut blank, mut label_arcs) =
        (vec![F::ZERO; frames * states], vec![F::ZERO; frames * states * vocabulary]);
    let indices: Vec<usize> = (0..frames).collect();
    weights.forward(&indices, ArcsMut { blank: &mut blank, labels: &mut label_arcs });
    (blank, label_arcs)
}

/// Propagates the cotangents of the first frames backward.
fn backpropagate_cotangents<F: Element>(
    check: &LatticeCheck,
    weights: &mut dyn BoundWeights<F>,
    prefix: &str,
    frames: usize,
    states: usize,
    vocabulary: usize,
) -> Result<(), RunError> {
    let values = |arc_kind: &str, count: usize| -> Result<Vec<F>, RunError> {
        let name = format!("{prefix}/cotangent_{arc_kind}");
        let values = check.file.values::<F>(&name)?;
        if values.len() != count {
            let actual = format!("{} values", values.len());
            return Err(check.file.error(&name, &format!("{count} values"), &actual).into());
        }
        Ok(values)
    };
    let (blank, label_arcs) =
        (values("blank", frames * states)?, values("lexical", frames * states * vocabulary)?);
    let indices: Vec<usize> = (0..frames).collect();
    weights.backward(&indices, Arcs { blank: &blank, labels: &label_arcs });
    Ok(())
}

/// Checks weights and gradients of the joint network.
fn compare_joint<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    let file = check.file;
    let tensor = |name: &str| file.values::<F>(&format!("joint/{name}"));
    let cache = tensor("cache")?;
    let names = [
        "project_context_embeddings/kernel",
        "project_frame/kernel",
        "joint_bias",
        "Dense_0/kernel",
        "Dense_0/bias",
        "Dense_1/kernel",
        "Dense_1/bias",
    ];
    let parameters =
        names.iter().map(|name| tensor(&format!("params/{name}"))).collect::<Result<Vec<_>, _>>()?;
    let [context, frame, bias, blank_kernel, blank_bias, label_kernel, label_bias] = &parameters[..] else {
        unreachable!("one tensor per name");
    };
    let [frames, states, vocabulary] = file.shape("joint/lexical")?;
    let joint = JointWeightFn {
        embeddings: Embeddings::Table(&cache),
        states,
        vocabulary,
        project_context: context,
        project_frame: frame,
        joint_bias: bias,
        blank_kernel,
        blank_bias,
        label_kernel,
        label_bias,
    };
    // Weights of all arcs, and of the arcs of one state per frame.
    let mut weights = joint.bind(&mut Vec::new())?;
    let frame_size = joint.frame_size().unwrap_or(0);
    let frame_values = tensor("frame")?;
    if frame_values.len() != frames * frame_size {
        let expected = format!("{frames} frames of {frame_size}");
        return Err(file.error("joint/frame", &expected, &format!("{} values", frame_values.len())).into());
    }
    weights.set_frames(&frame_values, &vec![0; frames])?;
    let (blank_weights, label_weights) = all_arc_weights(&*weights, frames, states, vocabulary);
    check.compare_values("joint/blank", &blank_weights)?;
    check.compare_values("joint/lexical", &label_weights)?;
    let (mut blank_weights, mut label_weights) = (Vec::new(), vec![F::ZERO; frames * vocabulary]);
    let states_of_frames = file.integers("joint/state")?;
    if let Some(state) = states_of_frames.iter().find(|&&state| state >= states) {
        return Err(file.error("joint/state", &format!("below {states}"), &state.to_string()).into());
    }
    let state_weights = states_of_frames.iter().zip(label_weights.chunks_exact_mut(vocabulary));
    for (frame, (&state, label_weights)) in state_weights.enumerate() {
        blank_weights.push(weights.forward_state(frame, state, label_weights));
    }
    check.compare_values("joint/state_blank", &blank_weights)?;
    check.compare_values("joint/state_lexical", &label_weights)?;

    // Gradients of frames and parameters.
    backpropagate_cotangents(check, &mut *weights, "joint", frames, states, vocabulary)?;
    check.compare_gradient("joint/grad_frame", &weights.frame_gradient(&frame_values))?;
    for (name, gradient) in weights.finish() {
        let name = match name.strip_prefix("weight_fn/") {
            Some(name) => format!("joint/grad_params/{name}"),
            None => "joint/grad_cache".into(),
        };
        check.compare_gradient(&name, &gradient)?;
    }
    Ok(())
}

/// Combines arc weights `[n, C]` and `[n, C, V]` to a table.
fn weight_table<F: Element>(
    file: &LatticeFile,
    [blank_name, label_name]: [&str; 2],
    vocabulary: usize,
) -> Result<Vec<F>, RunError> {
    let (blank, label_arcs) = (file.values::<F>(blank_name)?, file.values::<F>(label_name)?);
    if label_arcs.len() != blank.len() * vocabulary || vocabulary == 0 {
        let actual = format!("{} and {} values", blank.len(), label_arcs.len());
        return Err(file.error("lexical", "V labels per blank, V at least 1", &actual).into());
    }
    let rows = blank.iter().zip(label_arcs.chunks_exact(vocabulary));
    Ok(rows.flat_map(|(&b, l)| std::iter::once(b).chain(l.iter().copied())).collect())
}

/// Checks weights and gradients of local normalization, on given weights.
fn compare_local_normalization<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    let [frames, states, vocabulary] = check.file.shape("normalize/lexical")?;
    let values = weight_table::<F>(check.file, ["normalize/blank", "normalize/lexical"], vocabulary)?;
    // A frame of a table function is its row in the table.
    let table_rows: Vec<F> = (0..frames).map(|t| F::from_f64(t as f64)).collect();
    for (name, normalize) in [("hat", Normalize::Hat), ("log_softmax", Normalize::LogSoftmax)] {
        let inner = TableWeightFn::new(&values, &[frames, states, 1 + vocabulary])?;
        let local = LocallyNormalized::new(inner, normalize);
        let mut weights = WeightFn::<F>::bind(&local, &mut Vec::new())?;
        weights.set_frames(&table_rows, &vec![0; frames])?;
        let (blank, label_arcs) = all_arc_weights(&*weights, frames, states, vocabulary);
        check.compare_values(&format!("{name}/blank"), &blank)?;
        check.compare_values(&format!("{name}/lexical"), &label_arcs)?;

        backpropagate_cotangents(check, &mut *weights, "normalize", frames, states, vocabulary)?;
        let gradient = weights.finish().remove("table").unwrap_or_default();
        let gradient_rows = || gradient.chunks_exact(1 + vocabulary);
        let blank: Vec<F> = gradient_rows().map(|row| row[0]).collect();
        let label_arcs: Vec<F> = gradient_rows().flat_map(|row| row[1..].iter().copied()).collect();
        check.compare_gradient(&format!("{name}/grad_blank"), &blank)?;
        check.compare_gradient(&format!("{name}/grad_lexical"), &label_arcs)?;
    }
    Ok(())
}

/// Checks blanks of up to 1000 and of -inf.
fn compare_extreme_blanks<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    let [states, vocabulary] = check.file.shape("hat_extreme/lexical_in")?;
    let values =
        weight_table::<F>(check.file, ["hat_extreme/blank_in", "hat_extreme/lexical_in"], vocabulary)?;
    let inner = TableWeightFn::new(&values, &[1, states, 1 + vocabulary])?;
    let local = LocallyNormalized::new(inner, Normalize::Hat);
    let mut weights = WeightFn::<F>::bind(&local, &mut Vec::new())?;
    weights.set_frames(&[F::ZERO], &[0])?;
    let (blank, label_arcs) = all_arc_weights(&*weights, 1, states, vocabulary);
    check.compare_values("hat_extreme/blank_exact", &blank)?;
    Ok(check.compare_values("hat_extreme/lexical_exact", &label_arcs)?)
}

/// Checks embeddings and gradients of the recurrent network over contexts.
fn compare_recurrent_network<F: Element>(check: &mut LatticeCheck) -> Result<(), RunError> {
    let file = check.file;
    let [vocabulary, order] = file.integers("rnn_cacher/vocab_context")?[..] else {
        return Err(file.error("rnn_cacher/vocab_context", "V and n", "something else").into());
    };
    let parameters: Parameters<F> = file
        .with_prefix("rnn_cacher/params/")
        .map(|(name, stored)| (name.to_owned(), stored.values.iter().map(|&x| F::from_f64(x)).collect()))
        .collect();
    let rnn = shared_rnn(vocabulary, order, |name| {
        let parameter = parameters.get(name).map(Vec::as_slice);
        Ok(parameter.ok_or_else(|| file.error(&format!("rnn_cacher/params/{name}"), "a tensor", "none"))?)
    })?;
    let [states, width] = file.shape("rnn_cacher/out")?;
    rnn.check(states)?;
    check.compare_values("rnn_cacher/out", &rnn.forward()?)?;
    let cotangent = file.values::<F>("rnn_cacher/cotangent")?;
    if cotangent.len() != states * width {
        let actual = format!("{} values", cotangent.len());
        return Err(file.error("rnn_cacher/cotangent", "as many values as the embeddings", &actual).into());
    }
    for (name, gradient) in rnn.backward(&cotangent) {
        let name = name.trim_start_matches("weight_fn_cacher/");
        check.compare_gradient(&format!("rnn_cacher/grad_params/{name}"), &gradient)?;
    }
    Ok(())
}

/// Creates the recurrent network over contexts from named parameters.
pub(super) fn shared_rnn<'a, F: Element>(
    vocabulary: usize,
    order: usize,
    parameter: impl Fn(&str) -> Result<&'a [F], RunError>,
) -> Result<SharedRnn<'a, F>, RunError> {
    let gates = |source: char, kind: &str| -> Result<[&'a [F]; 4], RunError> {
        let gate = |gate: char| parameter(&format!("rnn_cell/{source}{gate}/{kind}"));
        Ok([gate('i')?, gate('f')?, gate('g')?, gate('o')?])
    };
    Ok(SharedRnn {
        vocabulary,
        order,
        embedding: parameter("Embed_0/embedding")?,
        input: gates('i', "kernel")?,
        recurrent: gates('h', "kernel")?,
        bias: gates('h', "bias")?,
    })
}
