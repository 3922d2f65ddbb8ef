//! The joint network.
use lattice::{Arcs, ArcsMut, Embeddings, JointWeightFn, LabelChain, Parameters, Real, WeightFn};
use oracle::differences::central;

use crate::common::{
    Bar, F32_GRADIENTS, F64, assert_within, dot, f32_values, golden, made_up, narrow, on_any_threads, widened,
};

const EMBEDDINGS: &str = "weight_fn_cacher/context_embeddings";

/// A joint network with a table of embeddings, and frames for it.
pub struct Owned<F> {
    pub states: usize,
    pub vocabulary: usize,
    pub parameters: Parameters<F>,
    /// *n x F*
    pub frames: Vec<F>,
    pub count: usize,
}

impl<F: Real> Owned<F> {
    pub fn made_up(states: usize, vocabulary: usize, hidden: usize, frames: usize) -> Self {
        let (e, f) = (3, 2);
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
            parameters.map(|(seed, (name, size, scale))| (name.to_owned(), made_up(size, seed, scale)));
        let parameters = parameters.collect();
        Self { states, vocabulary, parameters, frames: made_up(frames * f, 30, 1.0), count: frames }
    }

    /// The same in single precision.
    pub fn narrow(&self) -> Owned<f32> {
        let of = |values: &[F]| narrow(&widened(values));
        let parameters = self.parameters.iter().map(|(name, values)| (name.clone(), of(values))).collect();
        let Self { states, vocabulary, count, .. } = *self;
        Owned { states, vocabulary, parameters, frames: of(&self.frames), count }
    }

    pub fn borrow(&self) -> JointWeightFn<'_, F> {
        let of = |name: &str| self.parameters[&format!("weight_fn/{name}")].as_slice();
        JointWeightFn {
            embeddings: Embeddings::Table(&self.parameters[EMBEDDINGS]),
            states: self.states,
            vocabulary: self.vocabulary,
            project_context: of("project_context_embeddings/kernel"),
            project_frame: of("project_frame/kernel"),
            joint_bias: of("joint_bias"),
            blank: of("Dense_0/kernel"),
            blank_bias: of("Dense_0/bias"),
            lexical: of("Dense_1/kernel"),
            lexical_bias: of("Dense_1/bias"),
        }
    }
}

/// All arcs of all frames.
pub fn weigh<F: Real>(weight_fn: &dyn WeightFn<F>, frames: &[F], count: usize) -> (Vec<F>, Vec<F>) {
    let arcs = count * weight_fn.states();
    let (mut blank, mut lexical) = (vec![F::ZERO; arcs], vec![F::ZERO; arcs * weight_fn.vocabulary()]);
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    let all: Vec<usize> = (0..count).collect();
    weights.forward(&all, ArcsMut { blank: &mut blank, lexical: &mut lexical });
    (blank, lexical)
}

/// Gradients of frames and parameters from adjoints of all arcs.
pub fn pull<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
    (blank, lexical): (&[F], &[F]),
) -> (Vec<F>, Parameters<F>) {
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    let all: Vec<usize> = (0..count).collect();
    weights.backward(&all, Arcs { blank, lexical });
    (weights.frame_gradient(frames), weights.finish())
}

/// Weights along a chain in all frames from the first on.
pub fn forward_chain<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
    first: usize,
    chain: LabelChain,
) -> (Vec<F>, Vec<F>) {
    let sites = (count - first) * chain.states.len();
    let (mut blank, mut lexical) = (vec![F::ONE; sites], vec![F::ONE; sites]);
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    weights.forward_chain(first, chain, ArcsMut { blank: &mut blank, lexical: &mut lexical }).unwrap();
    (blank, lexical)
}

/// Gradients of frames and parameters from adjoints along a chain.
pub fn backward_chain<F: Real>(
    weight_fn: &dyn WeightFn<F>,
    frames: &[F],
    count: usize,
    (first, chain): (usize, LabelChain),
    (blank, lexical): (&[F], &[F]),
) -> (Vec<F>, Parameters<F>) {
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(frames, &vec![0; count]).unwrap();
    weights.backward_chain(first, chain, Arcs { blank, lexical }).unwrap();
    (weights.frame_gradient(frames), weights.finish())
}

/// The same adjoints on all arcs of all frames; those of arcs that a chain uses twice are summed.
pub fn spread<F: Real>(
    (states, vocabulary, count): (usize, usize, usize),
    (first, chain): (usize, LabelChain),
    (blank, lexical): (&[F], &[F]),
) -> (Vec<F>, Vec<F>) {
    let arcs = count * states;
    let (mut of_blank, mut of_labels) = (vec![F::ZERO; arcs], vec![F::ZERO; arcs * vocabulary]);
    for site in 0..blank.len() {
        let (t, u) = (first + site / chain.states.len(), site % chain.states.len());
        let row = t * states + chain.states[u];
        of_blank[row] += blank[site];
        if let Some(&label) = chain.labels.get(u) {
            of_labels[row * vocabulary + label as usize - 1] += lexical[site];
        }
    }
    (of_blank, of_labels)
}

/// The weights of a chain among those of all arcs.
pub fn along<F: Real>(
    (states, vocabulary, count): (usize, usize, usize),
    (first, chain): (usize, LabelChain),
    (blank, lexical): (&[F], &[F]),
) -> (Vec<F>, Vec<F>) {
    let rows = (first..count).flat_map(|t| chain.states.iter().map(move |&state| t * states + state));
    let labels = |(site, row): (usize, usize)| {
        let label = chain.labels.get(site % chain.states.len());
        label.map_or(F::NEG_INFINITY, |&label| lexical[row * vocabulary + label as usize - 1])
    };
    (rows.clone().map(|row| blank[row]).collect(), rows.enumerate().map(labels).collect())
}

fn equals_last<F: Real>(values: Bar, gradients: Bar) {
    let Some(golden) = golden("weight_fns.f64") else { return };
    let start = "joint/params/";
    let named = |name: &str| (format!("weight_fn/{name}"), golden.of(&format!("{start}{name}")));
    let mut parameters: Parameters<F> = golden.below(start).map(named).collect();
    parameters.insert(EMBEDDINGS.to_owned(), golden.of("joint/cache"));
    let &[count, states, vocabulary] = golden.shape("joint/lexical") else { panic!("n x C x V") };
    let owned = Owned { states, vocabulary, parameters, frames: golden.of("joint/frame"), count };
    let joint = owned.borrow();
    let (blank, lexical) = weigh(&joint, &owned.frames, count);
    assert_within("blank", &blank, golden.wide("joint/blank"), values);
    assert_within("lexical", &lexical, golden.wide("joint/lexical"), values);

    let mut weights = joint.bind(&mut Vec::new()).unwrap();
    weights.set_frames(&owned.frames, &vec![0; count]).unwrap();
    for (frame, &state) in golden.wide("joint/state").iter().enumerate() {
        let mut lexical = vec![F::ZERO; vocabulary];
        let blank = weights.forward_state(frame, state as usize, &mut lexical);
        assert_within("state_blank", &[blank], &golden.wide("joint/state_blank")[frame..][..1], values);
        let expected = &golden.wide("joint/state_lexical")[frame * vocabulary..][..vocabulary];
        assert_within("state_lexical", &lexical, expected, values);
    }

    let adjoints: [Vec<F>; 2] = [golden.of("joint/cotangent_blank"), golden.of("joint/cotangent_lexical")];
    let (of_frames, found) = pull(&joint, &owned.frames, count, (&adjoints[0], &adjoints[1]));
    assert_within("grad_frame", &of_frames, golden.wide("joint/grad_frame"), gradients);
    assert_within("grad_cache", &found[EMBEDDINGS], golden.wide("joint/grad_cache"), gradients);
    for name in golden.below("joint/grad_params/") {
        let expected = golden.wide(&format!("joint/grad_params/{name}"));
        assert_within(name, &found[&format!("weight_fn/{name}")], expected, gradients);
    }
}

#[test]
fn f64_equals_last() {
    equals_last::<f64>(F64, F64);
}

#[test]
fn f32_equals_last() {
    equals_last::<f32>(f32_values(4.0), F32_GRADIENTS);
}

/// A chain that comes back to a state and uses a label twice.
pub const STATES: [usize; 5] = [0, 2, 1, 2, 2];
pub const LABELS: [u32; 4] = [2, 1, 2, 2];

/// What is done with a weight function.
pub type With<'a> = &'a mut dyn FnMut(&dyn WeightFn<f64>);

/// Gradients of frames and parameters of any weight function of a joint network, whole frames and chains, against central
/// differences of `Σ a w`.
pub fn check_gradients(owned: &mut Owned<f64>, run: &dyn Fn(&Owned<f64>, With)) {
    let bar = Bar { relative: 1e-8, absolute: 1e-9 };
    let (count, first) = (owned.count, 1);
    let chain = LabelChain { states: &STATES, labels: &LABELS };
    for whole in [true, false] {
        let sizes = match whole {
            true => [count * owned.states, count * owned.states * owned.vocabulary],
            false => [(count - first) * STATES.len(); 2],
        };
        let [blank, lexical] = [made_up::<f64>(sizes[0], 40, 1.0), made_up::<f64>(sizes[1], 41, 1.0)];
        let value = |owned: &Owned<f64>| {
            let mut value = 0.0;
            run(owned, &mut |weight_fn| {
                let (b, l) = match whole {
                    true => weigh(weight_fn, &owned.frames, count),
                    false => forward_chain(weight_fn, &owned.frames, count, first, chain),
                };
                let finite: Vec<f64> = l.iter().map(|&l| if l.is_finite() { l } else { 0.0 }).collect();
                value = dot(&b, &blank) + dot(&finite, &lexical);
            });
            value
        };
        let mut found = (Vec::new(), Parameters::new());
        run(owned, &mut |weight_fn| {
            let adjoints = (blank.as_slice(), lexical.as_slice());
            found = match whole {
                true => pull(weight_fn, &owned.frames, count, adjoints),
                false => backward_chain(weight_fn, &owned.frames, count, (first, chain), adjoints),
            };
        });
        let (of_frames, of_parameters) = found;
        let at = owned.frames.clone();
        let of = |x: &[f64], owned: &mut Owned<f64>| {
            owned.frames = x.to_vec();
            Ok(value(owned))
        };
        let expected = central(|x| of(x, owned), &at).unwrap();
        owned.frames = at;
        assert_within(&format!("frames, whole {whole}"), &of_frames, &expected, bar);
        assert_eq!(of_parameters.len(), owned.parameters.len());
        for (name, found) in of_parameters {
            let own = name.replace("weight_fn/weight_fn/", "weight_fn/");
            let at = owned.parameters[&own].clone();
            let of = |x: &[f64], owned: &mut Owned<f64>| {
                owned.parameters.insert(own.clone(), x.to_vec());
                Ok(value(owned))
            };
            let expected = central(|x| of(x, owned), &at).unwrap();
            owned.parameters.insert(own.clone(), at);
            assert_within(&format!("{name}, whole {whole}"), &found, &expected, bar);
        }
    }
}

#[test]
fn gradients_are_central_differences() {
    check_gradients(&mut Owned::made_up(4, 3, 5, 3), &|owned, with| with(&owned.borrow()));
}

/// More states than a block, more frames than a run; addends that cannot be prepared.
#[test]
fn chains_and_single_states_are_what_whole_frames_are() {
    let (states, vocabulary, count, first) = (75, 19, 23, 2);
    let mut owned = Owned::<f32>::made_up(states, vocabulary, 33, count);
    owned.parameters.get_mut(EMBEDDINGS).unwrap()[3 * 2] = 60.0;
    owned.frames[2 * 20] = -70.0;
    let joint = owned.borrow();
    let chain = LabelChain { states: &[0, 2, 74, 33, 32, 2, 2], labels: &[2, 19, 7, 1, 2, 2] };
    let shape = (states, vocabulary, count);
    let (blank, lexical) = weigh(&joint, &owned.frames, count);
    let (b, l) = forward_chain(&joint, &owned.frames, count, first, chain);
    let (expected_b, expected_l) = along(shape, (first, chain), (&blank, &lexical));
    let bar = f32_values(10.0);
    assert_within("blank", &b, &widened(&expected_b), bar);
    assert_within("lexical", &l, &widened(&expected_l), bar);
    let mut weights = joint.bind(&mut Vec::new()).unwrap();
    weights.set_frames(&owned.frames, &vec![0; count]).unwrap();
    let mut row = vec![0.0; vocabulary];
    for (frame, state) in [(0, 0), (20, 2), (22, 74), (7, 33)] {
        let b = weights.forward_state(frame, state, &mut row);
        let at = frame * states + state;
        assert_within("blank", &[b], &widened(&blank[at..=at]), bar);
        assert_within("lexical", &row, &widened(&lexical[at * vocabulary..][..vocabulary]), bar);
    }

    let mut adjoints = [made_up::<f32>(b.len(), 3, 1.0), made_up(b.len(), 4, 1.0)];
    adjoints.iter_mut().for_each(|a| a[3..9].fill(0.0));
    let adjoints = (adjoints[0].as_slice(), adjoints[1].as_slice());
    let found = backward_chain(&joint, &owned.frames, count, (first, chain), adjoints);
    let all = spread(shape, (first, chain), adjoints);
    let expected = pull(&joint, &owned.frames, count, (&all.0, &all.1));
    let bar = Bar { relative: 1e-4, absolute: 1e-4 };
    assert_within("frames", &found.0, &widened(&expected.0), bar);
    for (name, expected) in expected.1 {
        assert_within(&name, &found.1[&name], &widened(&expected), bar);
    }
}

/// Groups of frames, of which some are pulled in parts, add up.
#[test]
fn groups_of_frames_add_up() {
    let (states, vocabulary, count) = (40, 5, 9);
    let owned = Owned::<f64>::made_up(states, vocabulary, 8, count);
    let joint = owned.borrow();
    let (blank, lexical) =
        (made_up::<f64>(count * states, 5, 1.0), made_up(count * states * vocabulary, 6, 1.0));
    let expected = pull(&joint, &owned.frames, count, (&blank, &lexical));
    let mut weights = joint.bind(&mut Vec::new()).unwrap();
    let mut of_frames = Vec::new();
    for (group, parts) in [(0..4, vec![0..3, 3..4]), (4..9, vec![2..5, 0..2])] {
        weights.set_frames(&owned.frames[group.start * 2..group.end * 2], &vec![0; group.len()]).unwrap();
        for part in parts {
            let frames: Vec<usize> = part.clone().collect();
            let arcs = (group.start + part.start) * states..(group.start + part.end) * states;
            let lexical = &lexical[arcs.start * vocabulary..arcs.end * vocabulary];
            weights.backward(&frames, Arcs { blank: &blank[arcs], lexical });
        }
        of_frames.extend(weights.frame_gradient(&owned.frames[group.start * 2..group.end * 2]));
    }
    assert_within("frames", &of_frames, &expected.0, F64);
    let found = weights.finish();
    for (name, expected) in expected.1 {
        assert_within(&name, &found[&name], &expected, F64);
    }
}

#[test]
fn bits_do_not_depend_on_threads() {
    let (states, vocabulary, count) = (75, 19, 23);
    let owned = Owned::<f32>::made_up(states, vocabulary, 33, count);
    let joint = owned.borrow();
    let (blank, lexical): (Vec<f32>, Vec<f32>) =
        (made_up(count * states, 5, 1.0), made_up(count * states * vocabulary, 6, 1.0));
    let chain = LabelChain { states: &STATES, labels: &LABELS };
    let sites = count * STATES.len();
    on_any_threads(|| {
        (
            weigh(&joint, &owned.frames, count),
            pull(&joint, &owned.frames, count, (&blank, &lexical)),
            forward_chain(&joint, &owned.frames, count, 0, chain),
            backward_chain(&joint, &owned.frames, count, (0, chain), (&blank[..sites], &lexical[..sites])),
        )
    });
}

#[test]
fn an_enormous_tangent_is_one() {
    let mut owned = Owned::<f32>::made_up(3, 2, 4, 2);
    owned.frames = narrow(&[1e30, 0.0, -1e30, 0.0]);
    let (blank, lexical) = weigh(&owned.borrow(), &owned.frames, 2);
    assert!(blank.iter().chain(&lexical).all(|w| w.is_finite()));
}

/// Rows of single states are prepared by the first task that asks for one, while others wait for it: if that were work for
/// many, it could wait for one of them.
#[test]
fn tasks_that_wait_for_the_first_row_do_not_stop_each_other() {
    let (states, count) = (3000, 64);
    let owned = Owned::<f32>::made_up(states, 2, 32, count);
    let joint = owned.borrow();
    let chain = LabelChain { states: &STATES, labels: &LABELS };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(5).build().unwrap();
    for _ in 0..200 {
        pool.install(|| forward_chain(&joint, &owned.frames, count, 0, chain));
    }
}
