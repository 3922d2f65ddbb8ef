//! Lattice weights of a joint network: values, gradients and label chains.
//!
//! They are compared with LAST (golden vectors), with central differences, and with each other. The
//! helpers are also for locally normalized weights.
use lattice::{Arcs, ArcsMut, Embeddings, JointWeightFn, LabelChain, Parameters, Real, WeightFn};
use oracle::differences::central_difference;

use crate::common::{
    F32_GRADIENTS, F64, Tolerance, assert_thread_independent, assert_within, dot, f32_values, golden, narrow,
    random, widened,
};

const EMBEDDINGS: &str = "weight_fn_cacher/context_embeddings";

/// A joint network with a table of embeddings, and its frames.
pub(crate) struct OwnedJoint<F> {
    pub states: usize,
    pub vocabulary: usize,
    pub parameters: Parameters<F>,
    /// *n x F*
    pub frames: Vec<F>,
    /// n
    pub count: usize,
}

impl<F: Real> OwnedJoint<F> {
    pub(crate) fn random(states: usize, vocabulary: usize, hidden: usize, frames: usize) -> Self {
        let (e, f) = (3, 2);
        // Name, number of elements and scale of each parameter.
        let shapes = [
            (EMBEDDINGS, states * e, 1.0),
            ("weight_fn/project_context_embeddings/kernel", e * hidden, 0.7),
            ("weight_fn/project_frame/kernel", f * hidden, 0.7),
            ("weight_fn/joint_bias", hidden, 0.3),
            ("weight_fn/Dense_0/kernel", hidden, 1.0),
            ("weight_fn/Dense_0/bias", 1, 1.0),
            ("weight_fn/Dense_1/kernel", hidden * vocabulary, 1.0),
            ("weight_fn/Dense_1/bias", vocabulary, 1.0),
        ];
        let parameters = (1..).zip(shapes);
        let parameters =
            parameters.map(|(seed, (name, size, scale))| (name.to_owned(), random(size, seed, scale)));
        let parameters = parameters.collect();
        Self { states, vocabulary, parameters, frames: random(frames * f, 30, 1.0), count: frames }
    }

    /// Converts to single precision.
    pub(crate) fn narrow(&self) -> OwnedJoint<f32> {
        let converted = |values: &[F]| narrow(&widened(values));
        let parameters =
            self.parameters.iter().map(|(name, values)| (name.clone(), converted(values))).collect();
        let Self { states, vocabulary, count, .. } = *self;
        OwnedJoint { states, vocabulary, parameters, frames: converted(&self.frames), count }
    }

    pub(crate) fn borrow(&self) -> JointWeightFn<'_, F> {
        let parameter = |name: &str| self.parameters[&format!("weight_fn/{name}")].as_slice();
        JointWeightFn {
            embeddings: Embeddings::Table(&self.parameters[EMBEDDINGS]),
            states: self.states,
            vocabulary: self.vocabulary,
            project_context: parameter("project_context_embeddings/kernel"),
            project_frame: parameter("project_frame/kernel"),
            joint_bias: parameter("joint_bias"),
            blank_kernel: parameter("Dense_0/kernel"),
            blank_bias: parameter("Dense_0/bias"),
            label_kernel: parameter("Dense_1/kernel"),
            label_bias: parameter("Dense_1/bias"),
        }
    }
}

/// Computes all arcs of all frames.
pub(crate) fn arc_weights<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
) -> (Vec<F>, Vec<F>) {
    let arcs = count * weight_fn.states();
    let (mut blank, mut label_arcs) = (vec![F::ZERO; arcs], vec![F::ZERO; arcs * weight_fn.vocabulary()]);
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    let frame_indices: Vec<usize> = (0..count).collect();
    weights.forward(&frame_indices, ArcsMut { blank: &mut blank, labels: &mut label_arcs });
    (blank, label_arcs)
}

/// Computes gradients of frames and parameters from adjoints of all arcs.
pub(crate) fn arc_gradients<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
    adjoints: Arcs<F>,
) -> (Vec<F>, Parameters<F>) {
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    let frame_indices: Vec<usize> = (0..count).collect();
    weights.backward(&frame_indices, adjoints);
    (weights.frame_gradient(frames), weights.finish())
}

/// Computes weights along a chain in all frames from `first_frame` on.
pub(crate) fn forward_chain<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
    first_frame: usize,
    chain: LabelChain,
) -> (Vec<F>, Vec<F>) {
    let sites = (count - first_frame) * chain.states.len();
    let (mut blank, mut label_arcs) = (vec![F::ONE; sites], vec![F::ONE; sites]);
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    weights
        .forward_chain(first_frame, chain, ArcsMut { blank: &mut blank, labels: &mut label_arcs })
        .unwrap();
    (blank, label_arcs)
}

/// Computes gradients of frames and parameters from adjoints along a chain.
pub(crate) fn backward_chain<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
    first_frame: usize,
    chain: LabelChain,
    adjoints: Arcs<F>,
) -> (Vec<F>, Parameters<F>) {
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    weights.backward_chain(first_frame, chain, adjoints).unwrap();
    (weights.frame_gradient(frames), weights.finish())
}

/// Sizes of the arcs of some frames.
#[derive(Clone, Copy)]
pub(crate) struct FrameArcsShape {
    /// C
    pub states: usize,
    /// V
    pub vocabulary: usize,
    pub frames: usize,
}

/// Adds adjoints along a chain to adjoints of all arcs.
pub(crate) fn scatter_chain<F: Real>(
    FrameArcsShape { states, vocabulary, frames }: FrameArcsShape,
    first_frame: usize,
    chain: LabelChain,
    Arcs { blank, labels: label_arcs }: Arcs<F>,
) -> (Vec<F>, Vec<F>) {
    let arcs = frames * states;
    let (mut blank_adjoints, mut label_adjoints) = (vec![F::ZERO; arcs], vec![F::ZERO; arcs * vocabulary]);
    for site in 0..blank.len() {
        let (t, u) = (first_frame + site / chain.states.len(), site % chain.states.len());
        let row = t * states + chain.states[u];
        blank_adjoints[row] += blank[site];
        if let Some(&label) = chain.labels.get(u) {
            label_adjoints[row * vocabulary + label as usize - 1] += label_arcs[site];
        }
    }
    (blank_adjoints, label_adjoints)
}

/// Selects the weights of a chain from those of all arcs.
pub(crate) fn chain_weights<F: Real>(
    FrameArcsShape { states, vocabulary, frames }: FrameArcsShape,
    first_frame: usize,
    chain: LabelChain,
    Arcs { blank, labels: label_arcs }: Arcs<F>,
) -> (Vec<F>, Vec<F>) {
    let rows = (first_frame..frames).flat_map(|t| chain.states.iter().map(move |&state| t * states + state));
    let labels = |(site, row): (usize, usize)| {
        let label = chain.labels.get(site % chain.states.len());
        label.map_or(F::NEG_INFINITY, |&label| label_arcs[row * vocabulary + label as usize - 1])
    };
    (rows.clone().map(|row| blank[row]).collect(), rows.enumerate().map(labels).collect())
}

/// Compares with golden vectors of LAST.
fn equals_last<F: Real>(values: Tolerance, gradients: Tolerance) {
    let Some(golden) = golden("weight_fns.f64") else { return };
    let start = "joint/params/";
    let named = |name: &str| (format!("weight_fn/{name}"), golden.cast(&format!("{start}{name}")));
    let mut parameters: Parameters<F> = golden.names_with_prefix(start).map(named).collect();
    parameters.insert(EMBEDDINGS.to_owned(), golden.cast("joint/cache"));
    let &[count, states, vocabulary] = golden.shape("joint/lexical") else { panic!("n x C x V") };
    let owned = OwnedJoint { states, vocabulary, parameters, frames: golden.cast("joint/frame"), count };
    let joint = owned.borrow();
    let (blank, label_arcs) = arc_weights(&joint, &owned.frames, count);
    assert_within("blank", &blank, golden.values("joint/blank"), values);
    assert_within("lexical", &label_arcs, golden.values("joint/lexical"), values);

    let mut weights = joint.bind(&mut Vec::new()).unwrap();
    weights.set_frames(&owned.frames, &vec![0; count]).unwrap();
    for (frame, &state) in golden.values("joint/state").iter().enumerate() {
        let mut label_arcs = vec![F::ZERO; vocabulary];
        let blank = weights.forward_state(frame, state as usize, &mut label_arcs);
        assert_within("state_blank", &[blank], &golden.values("joint/state_blank")[frame..][..1], values);
        let expected = &golden.values("joint/state_lexical")[frame * vocabulary..][..vocabulary];
        assert_within("state_lexical", &label_arcs, expected, values);
    }

    let adjoints: [Vec<F>; 2] =
        [golden.cast("joint/cotangent_blank"), golden.cast("joint/cotangent_lexical")];
    let (frame_gradient, computed) =
        arc_gradients(&joint, &owned.frames, count, Arcs { blank: &adjoints[0], labels: &adjoints[1] });
    assert_within("grad_frame", &frame_gradient, golden.values("joint/grad_frame"), gradients);
    assert_within("grad_cache", &computed[EMBEDDINGS], golden.values("joint/grad_cache"), gradients);
    for name in golden.names_with_prefix("joint/grad_params/") {
        let expected = golden.values(&format!("joint/grad_params/{name}"));
        assert_within(name, &computed[&format!("weight_fn/{name}")], expected, gradients);
    }
}

#[test]
fn f64_values_and_gradients_equal_last() {
    equals_last::<f64>(F64, F64);
}

#[test]
fn f32_values_and_gradients_equal_last() {
    equals_last::<f32>(f32_values(4.0), F32_GRADIENTS);
}

/// A chain that returns to a state and uses a label twice.
pub(crate) const CHAIN_STATES: [usize; 5] = [0, 2, 1, 2, 2];
pub(crate) const CHAIN_LABELS: [u32; 4] = [2, 1, 2, 2];

/// A function that uses a weight function.
pub(crate) type UseWeightFn<'a> = &'a mut dyn FnMut(&dyn WeightFn<f64>);

/// Checks gradients against central differences of `Σ a w`, of frames and along chains.
///
/// Any weight function of a joint network can be checked, in frames and parameters.
pub(crate) fn check_gradients(owned: &mut OwnedJoint<f64>, run: &dyn Fn(&OwnedJoint<f64>, UseWeightFn)) {
    let tolerance = Tolerance { relative: 1e-8, absolute: 1e-9 };
    let (count, first_frame) = (owned.count, 1);
    let chain = LabelChain { states: &CHAIN_STATES, labels: &CHAIN_LABELS };
    for all_arcs in [true, false] {
        let sizes = match all_arcs {
            true => [count * owned.states, count * owned.states * owned.vocabulary],
            false => [(count - first_frame) * CHAIN_STATES.len(); 2],
        };
        let [blank, label_arcs] = [random::<f64>(sizes[0], 40, 1.0), random::<f64>(sizes[1], 41, 1.0)];
        let value = |owned: &OwnedJoint<f64>| {
            let mut value = 0.0;
            run(owned, &mut |weight_fn| {
                let (b, l) = match all_arcs {
                    true => arc_weights(weight_fn, &owned.frames, count),
                    false => forward_chain(weight_fn, &owned.frames, count, first_frame, chain),
                };
                let finite: Vec<f64> = l.iter().map(|&l| if l.is_finite() { l } else { 0.0 }).collect();
                value = dot(&b, &blank) + dot(&finite, &label_arcs);
            });
            value
        };
        let mut computed = (Vec::new(), Parameters::new());
        run(owned, &mut |weight_fn| {
            let adjoints = Arcs { blank: &blank[..], labels: &label_arcs[..] };
            computed = match all_arcs {
                true => arc_gradients(weight_fn, &owned.frames, count, adjoints),
                false => backward_chain(weight_fn, &owned.frames, count, first_frame, chain, adjoints),
            };
        });
        let (frame_gradient, parameter_gradients) = computed;
        let point = owned.frames.clone();
        let value_at = |x: &[f64], owned: &mut OwnedJoint<f64>| {
            owned.frames = x.to_vec();
            Ok(value(owned))
        };
        let expected = central_difference(|x| value_at(x, owned), &point).unwrap();
        owned.frames = point;
        assert_within(&format!("frames, all arcs {all_arcs}"), &frame_gradient, &expected, tolerance);
        assert_eq!(parameter_gradients.len(), owned.parameters.len());
        for (name, computed) in parameter_gradients {
            let parameter = name.replace("weight_fn/weight_fn/", "weight_fn/");
            let point = owned.parameters[&parameter].clone();
            let value_at = |x: &[f64], owned: &mut OwnedJoint<f64>| {
                owned.parameters.insert(parameter.clone(), x.to_vec());
                Ok(value(owned))
            };
            let expected = central_difference(|x| value_at(x, owned), &point).unwrap();
            owned.parameters.insert(parameter.clone(), point);
            assert_within(&format!("{name}, all arcs {all_arcs}"), &computed, &expected, tolerance);
        }
    }
}

#[test]
fn gradients_are_central_differences() {
    check_gradients(&mut OwnedJoint::random(4, 3, 5, 3), &|owned, with| with(&owned.borrow()));
}

/// States exceed a block, and frames exceed a run.
///
/// Some addends are large.
#[test]
fn chains_and_single_states_equal_all_arcs() {
    let (states, vocabulary, count, first_frame) = (75, 19, 23, 2);
    let mut owned = OwnedJoint::<f32>::random(states, vocabulary, 33, count);
    owned.parameters.get_mut(EMBEDDINGS).unwrap()[3 * 2] = 60.0;
    owned.frames[2 * 20] = -70.0;
    let joint = owned.borrow();
    let chain = LabelChain { states: &[0, 2, 74, 33, 32, 2, 2], labels: &[2, 19, 7, 1, 2, 2] };
    let shape = FrameArcsShape { states, vocabulary, frames: count };
    let (blank, label_arcs) = arc_weights(&joint, &owned.frames, count);
    let (chain_blank, chain_label_arcs) = forward_chain(&joint, &owned.frames, count, first_frame, chain);
    let (expected_blank, expected_label_arcs) =
        chain_weights(shape, first_frame, chain, Arcs { blank: &blank, labels: &label_arcs });
    let tolerance = f32_values(10.0);
    assert_within("blank", &chain_blank, &widened(&expected_blank), tolerance);
    assert_within("lexical", &chain_label_arcs, &widened(&expected_label_arcs), tolerance);
    let mut weights = joint.bind(&mut Vec::new()).unwrap();
    weights.set_frames(&owned.frames, &vec![0; count]).unwrap();
    let mut row = vec![0.0; vocabulary];
    for (frame, state) in [(0, 0), (20, 2), (22, 74), (7, 33)] {
        let b = weights.forward_state(frame, state, &mut row);
        let row_index = frame * states + state;
        assert_within("blank", &[b], &widened(&blank[row_index..=row_index]), tolerance);
        assert_within(
            "lexical",
            &row,
            &widened(&label_arcs[row_index * vocabulary..][..vocabulary]),
            tolerance,
        );
    }

    let sites = chain_blank.len();
    let mut adjoints = [random::<f32>(sites, 3, 1.0), random(sites, 4, 1.0)];
    adjoints.iter_mut().for_each(|a| a[3..9].fill(0.0));
    let adjoints = Arcs { blank: &adjoints[0][..], labels: &adjoints[1][..] };
    let computed = backward_chain(&joint, &owned.frames, count, first_frame, chain, adjoints);
    let (blank, label_arcs) = scatter_chain(shape, first_frame, chain, adjoints);
    let arcs = Arcs { blank: &blank, labels: &label_arcs };
    let expected = arc_gradients(&joint, &owned.frames, count, arcs);
    let tolerance = Tolerance { relative: 1e-4, absolute: 1e-4 };
    assert_within("frames", &computed.0, &widened(&expected.0), tolerance);
    for (name, expected) in expected.1 {
        assert_within(&name, &computed.1[&name], &widened(&expected), tolerance);
    }
}

/// Groups of frames, some of them processed in parts.
#[test]
fn groups_of_frames_add_up() {
    let (states, vocabulary, count) = (40, 5, 9);
    let owned = OwnedJoint::<f64>::random(states, vocabulary, 8, count);
    let joint = owned.borrow();
    let (blank, label_arcs) =
        (random::<f64>(count * states, 5, 1.0), random(count * states * vocabulary, 6, 1.0));
    let expected = arc_gradients(&joint, &owned.frames, count, Arcs { blank: &blank, labels: &label_arcs });
    let mut weights = joint.bind(&mut Vec::new()).unwrap();
    let mut frame_gradients = Vec::new();
    for (group, parts) in [(0..4, vec![0..3, 3..4]), (4..9, vec![2..5, 0..2])] {
        weights.set_frames(&owned.frames[group.start * 2..group.end * 2], &vec![0; group.len()]).unwrap();
        for part in parts {
            let frames: Vec<usize> = part.clone().collect();
            let arcs = (group.start + part.start) * states..(group.start + part.end) * states;
            let label_arcs = &label_arcs[arcs.start * vocabulary..arcs.end * vocabulary];
            weights.backward(&frames, Arcs { blank: &blank[arcs], labels: label_arcs });
        }
        frame_gradients.extend(weights.frame_gradient(&owned.frames[group.start * 2..group.end * 2]));
    }
    assert_within("frames", &frame_gradients, &expected.0, F64);
    let computed = weights.finish();
    for (name, expected) in expected.1 {
        assert_within(&name, &computed[&name], &expected, F64);
    }
}

#[test]
fn results_do_not_depend_on_threads() {
    let (states, vocabulary, count) = (75, 19, 23);
    let owned = OwnedJoint::<f32>::random(states, vocabulary, 33, count);
    let joint = owned.borrow();
    let (blank, label_arcs): (Vec<f32>, Vec<f32>) =
        (random(count * states, 5, 1.0), random(count * states * vocabulary, 6, 1.0));
    let chain = LabelChain { states: &CHAIN_STATES, labels: &CHAIN_LABELS };
    let sites = count * CHAIN_STATES.len();
    assert_thread_independent(|| {
        (
            arc_weights(&joint, &owned.frames, count),
            arc_gradients(&joint, &owned.frames, count, Arcs { blank: &blank, labels: &label_arcs }),
            forward_chain(&joint, &owned.frames, count, 0, chain),
            backward_chain(
                &joint,
                &owned.frames,
                count,
                0,
                chain,
                Arcs { blank: &blank[..sites], labels: &label_arcs[..sites] },
            ),
        )
    });
}

#[test]
fn an_enormous_sum_gives_finite_weights() {
    let mut owned = OwnedJoint::<f32>::random(3, 2, 4, 2);
    owned.frames = narrow(&[1e30, 0.0, -1e30, 0.0]);
    let (blank, label_arcs) = arc_weights(&owned.borrow(), &owned.frames, 2);
    assert!(blank.iter().chain(&label_arcs).all(|w| w.is_finite()));
}

/// The first task that needs a row prepares it; others wait.
///
/// If the preparation ran in parallel, it could wait for one of these tasks.
#[test]
fn tasks_that_wait_for_the_first_row_do_not_deadlock() {
    let (states, count) = (3000, 64);
    let owned = OwnedJoint::<f32>::random(states, 2, 32, count);
    let joint = owned.borrow();
    let chain = LabelChain { states: &CHAIN_STATES, labels: &CHAIN_LABELS };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
    for _ in 0..200 {
        pool.install(|| forward_chain(&joint, &owned.frames, count, 0, chain));
    }
}
