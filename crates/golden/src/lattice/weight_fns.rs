//! Weight functions by themselves: joint network, local normalisation, recurrent cacher.
use lattice::weight_fn::Normalize;
use lattice::{
    Arcs, ArcsMut, BoundWeights, Embeddings, JointWeightFn, LocallyNormalized, Parameters, SharedRnn,
    TableWeightFn, WeightFn,
};
use rnnt_loss::Element;

use super::check::Check;
use super::file::File;
use crate::error::Stop;

/// Whether a tensor is an answer.
pub fn is_answer(name: &str) -> bool {
    const GIVEN: [&str; 6] =
        ["joint/cache", "joint/frame", "joint/state", "hat_extreme/blank_in", "hat_extreme/lexical_in", ""];
    let given = GIVEN.contains(&name)
        || ["joint/params/", "rnn_cacher/params/", "normalize/"].iter().any(|of| name.starts_with(of));
    !given && !name.contains("/cotangent") && name != "rnn_cacher/vocab_context"
}

pub fn weight_fns<F: Element>(check: &mut Check) -> Result<(), Stop> {
    joint::<F>(check)?;
    normalised::<F>(check)?;
    extreme::<F>(check)?;
    recurrent::<F>(check)?;
    check.leave_out("hat_extreme/*_last is where LAST overflows", |name| {
        name.starts_with("hat_extreme/") && name.ends_with("_last")
    });
    Ok(())
}

/// Weights of all arcs of so many frames.
fn weigh<F: Element>(weights: &dyn BoundWeights<F>, frames: usize, [c, v]: [usize; 2]) -> (Vec<F>, Vec<F>) {
    let (mut blank, mut lexical) = (vec![F::ZERO; frames * c], vec![F::ZERO; frames * c * v]);
    let all: Vec<usize> = (0..frames).collect();
    weights.forward(&all, ArcsMut { blank: &mut blank, lexical: &mut lexical });
    (blank, lexical)
}

/// Takes the cotangents of so many frames back.
fn pull<F: Element>(
    check: &Check,
    weights: &mut dyn BoundWeights<F>,
    of: &str,
    [c, v]: [usize; 2],
    frames: usize,
) -> Result<(), Stop> {
    let values = |what: &str, count: usize| -> Result<Vec<F>, Stop> {
        let name = format!("{of}/cotangent_{what}");
        let values = check.file.values::<F>(&name)?;
        if values.len() != count {
            let found = format!("{} values", values.len());
            return Err(check.file.wrong(&name, &format!("{count} values"), &found).into());
        }
        Ok(values)
    };
    let (blank, lexical) = (values("blank", frames * c)?, values("lexical", frames * c * v)?);
    let all: Vec<usize> = (0..frames).collect();
    weights.backward(&all, Arcs { blank: &blank, lexical: &lexical });
    Ok(())
}

fn joint<F: Element>(check: &mut Check) -> Result<(), Stop> {
    let file = check.file;
    let of = |name: &str| file.values::<F>(&format!("joint/{name}"));
    let cache = of("cache")?;
    let names = [
        "project_context_embeddings/kernel",
        "project_frame/kernel",
        "joint_bias",
        "Dense_0/kernel",
        "Dense_0/bias",
        "Dense_1/kernel",
        "Dense_1/bias",
    ];
    let parameters = names.iter().map(|name| of(&format!("params/{name}"))).collect::<Result<Vec<_>, _>>()?;
    let [context, frame, bias, blank, blank_bias, lexical, lexical_bias] = &parameters[..] else {
        unreachable!("there are as many as names");
    };
    let [frames, states, vocabulary] = file.shape("joint/lexical")?;
    let joint = JointWeightFn {
        embeddings: Embeddings::Table(&cache),
        states,
        vocabulary,
        project_context: context,
        project_frame: frame,
        joint_bias: bias,
        blank,
        blank_bias,
        lexical,
        lexical_bias,
    };
    let mut weights = joint.bind(&mut Vec::new())?;
    let size = joint.frame_size().unwrap_or(0);
    let rows = of("frame")?;
    if rows.len() != frames * size {
        let expected = format!("{frames} frames of {size}");
        return Err(file.wrong("joint/frame", &expected, &format!("{} values", rows.len())).into());
    }
    weights.set_frames(&rows, &vec![0; frames])?;
    let (b, l) = weigh(&*weights, frames, [states, vocabulary]);
    check.values("joint/blank", &b)?;
    check.values("joint/lexical", &l)?;
    let (mut b, mut l) = (Vec::new(), vec![F::ZERO; frames * vocabulary]);
    let chosen = file.whole("joint/state")?;
    if let Some(state) = chosen.iter().find(|&&state| state >= states) {
        return Err(file.wrong("joint/state", &format!("below {states}"), &state.to_string()).into());
    }
    for (frame, (&state, l)) in chosen.iter().zip(l.chunks_exact_mut(vocabulary)).enumerate() {
        b.push(weights.forward_state(frame, state, l));
    }
    check.values("joint/state_blank", &b)?;
    check.values("joint/state_lexical", &l)?;
    pull(check, &mut *weights, "joint", [states, vocabulary], frames)?;
    check.gradient("joint/grad_frame", &weights.frame_gradient(&rows))?;
    for (name, gradient) in weights.finish() {
        let name = match name.strip_prefix("weight_fn/") {
            Some(name) => format!("joint/grad_params/{name}"),
            None => "joint/grad_cache".into(),
        };
        check.gradient(&name, &gradient)?;
    }
    Ok(())
}

/// Arc weights *n x C* and *n x C x V* as a table.
fn table<F: Element>(file: &File, [blank, lexical]: [&str; 2], vocabulary: usize) -> Result<Vec<F>, Stop> {
    let (blank, lexical) = (file.values::<F>(blank)?, file.values::<F>(lexical)?);
    if lexical.len() != blank.len() * vocabulary || vocabulary == 0 {
        let found = format!("{} and {} values", blank.len(), lexical.len());
        return Err(file.wrong("lexical", "V labels for each blank, V at least 1", &found).into());
    }
    let rows = blank.iter().zip(lexical.chunks_exact(vocabulary));
    Ok(rows.flat_map(|(&b, l)| std::iter::once(b).chain(l.iter().copied())).collect())
}

fn normalised<F: Element>(check: &mut Check) -> Result<(), Stop> {
    let [frames, states, vocabulary] = check.file.shape("normalize/lexical")?;
    let values = table::<F>(check.file, ["normalize/blank", "normalize/lexical"], vocabulary)?;
    let rows: Vec<F> = (0..frames).map(|row| F::from_f64(row as f64)).collect();
    for (name, normalize) in [("hat", Normalize::Hat), ("log_softmax", Normalize::LogSoftmax)] {
        let inner = TableWeightFn::new(&values, &[frames, states, 1 + vocabulary])?;
        let local = LocallyNormalized::new(inner, normalize);
        let mut weights = WeightFn::<F>::bind(&local, &mut Vec::new())?;
        weights.set_frames(&rows, &vec![0; frames])?;
        let (blank, lexical) = weigh(&*weights, frames, [states, vocabulary]);
        check.values(&format!("{name}/blank"), &blank)?;
        check.values(&format!("{name}/lexical"), &lexical)?;
        pull(check, &mut *weights, "normalize", [states, vocabulary], frames)?;
        let gradient = weights.finish().remove("table").unwrap_or_default();
        let rows = || gradient.chunks_exact(1 + vocabulary);
        let blank: Vec<F> = rows().map(|row| row[0]).collect();
        let lexical: Vec<F> = rows().flat_map(|row| row[1..].iter().copied()).collect();
        check.gradient(&format!("{name}/grad_blank"), &blank)?;
        check.gradient(&format!("{name}/grad_lexical"), &lexical)?;
    }
    Ok(())
}

/// Blanks of up to 1000 and of -inf.
fn extreme<F: Element>(check: &mut Check) -> Result<(), Stop> {
    let [states, vocabulary] = check.file.shape("hat_extreme/lexical_in")?;
    let values = table::<F>(check.file, ["hat_extreme/blank_in", "hat_extreme/lexical_in"], vocabulary)?;
    let inner = TableWeightFn::new(&values, &[1, states, 1 + vocabulary])?;
    let local = LocallyNormalized::new(inner, Normalize::Hat);
    let mut weights = WeightFn::<F>::bind(&local, &mut Vec::new())?;
    weights.set_frames(&[F::ZERO], &[0])?;
    let (blank, lexical) = weigh(&*weights, 1, [states, vocabulary]);
    check.values("hat_extreme/blank_exact", &blank)?;
    Ok(check.values("hat_extreme/lexical_exact", &lexical)?)
}

fn recurrent<F: Element>(check: &mut Check) -> Result<(), Stop> {
    let file = check.file;
    let [vocabulary, order] = file.whole("rnn_cacher/vocab_context")?[..] else {
        return Err(file.wrong("rnn_cacher/vocab_context", "V and n", "something else").into());
    };
    let parameters: Parameters<F> = file
        .under("rnn_cacher/params/")
        .map(|(name, stored)| (name.to_owned(), stored.values.iter().map(|&x| F::from_f64(x)).collect()))
        .collect();
    let rnn = shared_rnn((vocabulary, order), |name| {
        let found = parameters.get(name).map(Vec::as_slice);
        Ok(found.ok_or_else(|| file.wrong(&format!("rnn_cacher/params/{name}"), "a tensor", "none"))?)
    })?;
    let [states, width] = file.shape("rnn_cacher/out")?;
    rnn.check(states)?;
    check.values("rnn_cacher/out", &rnn.forward()?)?;
    let cotangent = file.values::<F>("rnn_cacher/cotangent")?;
    if cotangent.len() != states * width {
        let found = format!("{} values", cotangent.len());
        return Err(file.wrong("rnn_cacher/cotangent", "as many as embeddings", &found).into());
    }
    for (name, gradient) in rnn.backward(&cotangent) {
        let name = name.trim_start_matches("weight_fn_cacher/");
        check.gradient(&format!("rnn_cacher/grad_params/{name}"), &gradient)?;
    }
    Ok(())
}

/// A recurrent cacher of parameters by their names.
pub fn shared_rnn<'a, F: Element>(
    (vocabulary, order): (usize, usize),
    parameter: impl Fn(&str) -> Result<&'a [F], Stop>,
) -> Result<SharedRnn<'a, F>, Stop> {
    let gates = |from: char, what: &str| -> Result<[&'a [F]; 4], Stop> {
        let of = |gate: char| parameter(&format!("rnn_cell/{from}{gate}/{what}"));
        Ok([of('i')?, of('f')?, of('g')?, of('o')?])
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
