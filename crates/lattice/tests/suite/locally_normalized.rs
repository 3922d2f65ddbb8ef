//! Locally normalized weight functions of lattices: values and gradients.
//!
//! They are compared with LAST (golden vectors), with central differences, and along chains with
//! all arcs.
use lattice::{
    AlignmentLattice, Arcs, ArcsMut, BoundWeights, Embeddings, Error, Frames, FullNGram, JointWeightFn,
    LabelChain, Labels, LatticeSession, LocallyNormalized, Normalize, Parameters, Real, RecognitionLattice,
    Result, ScratchReq, SharedRnn, TableWeightFn, WeightFn, Workload,
};

use crate::{
    common::{
        F32_GRADIENTS, F64, Golden, Tolerance, assert_thread_independent, assert_within, f32_values, golden,
        narrow, random,
    },
    joint::{
        CHAIN_LABELS, CHAIN_STATES, FrameArcsShape, OwnedJoint, UseWeightFn, arc_gradients, arc_weights,
        backward_chain, chain_weights, check_gradients, forward_chain, scatter_chain,
    },
};

const NORMALIZERS: [(Normalize, &str); 2] = [(Normalize::Hat, "hat"), (Normalize::LogSoftmax, "log_softmax")];

/// A joint network that is not recognized as one.
struct GenericJoint<'a, F>(JointWeightFn<'a, F>);

impl<F: Real> WeightFn<F> for GenericJoint<'_, F> {
    fn vocabulary(&self) -> usize {
        self.0.vocabulary
    }
    fn states(&self) -> usize {
        self.0.states
    }
    fn frame_size(&self) -> Option<usize> {
        self.0.frame_size()
    }
    fn scratch(&self, workload: Workload) -> ScratchReq {
        self.0.scratch(workload)
    }
    fn bind(&self, buffers: &mut Vec<Vec<F>>) -> Result<Box<dyn BoundWeights<F> + '_>> {
        self.0.bind(buffers)
    }
}

/// Rows of a table, with the blank before the labels.
fn table_rows<F: Real>(blank: &[f64], label_arcs: &[f64]) -> Vec<F> {
    let labels = label_arcs.len() / blank.len();
    let rows = blank.iter().zip(label_arcs.chunks_exact(labels));
    rows.flat_map(|(&blank, row)| std::iter::once(blank).chain(row.iter().copied()))
        .map(F::from_f64)
        .collect()
}

/// Compares with golden vectors of LAST.
fn equals_last<F: panda_core::Real>(values: Tolerance, gradients: Tolerance) {
    let Some(golden) = golden("weight_fns.f64") else { return };
    for (normalize, name) in NORMALIZERS {
        let &[rows, states, v] = golden.shape("normalize/lexical") else { panic!("X x C x V") };
        let table = table_rows::<F>(golden.values("normalize/blank"), golden.values("normalize/lexical"));
        let table = TableWeightFn::new(&table, &[rows, states, 1 + v]).unwrap();
        let weight_fn = LocallyNormalized::new(table, normalize);
        let frames: Vec<F> = (0..rows).map(|row| F::from_f64(row as f64)).collect();
        let (blank, label_arcs) = arc_weights(&weight_fn, &frames, rows);
        assert_within("blank", &blank, golden.values(&format!("{name}/blank")), values);
        assert_within("lexical", &label_arcs, golden.values(&format!("{name}/lexical")), values);
        let adjoints: [Vec<F>; 2] =
            [golden.cast("normalize/cotangent_blank"), golden.cast("normalize/cotangent_lexical")];
        let (_, computed) =
            arc_gradients(&weight_fn, &frames, rows, Arcs { blank: &adjoints[0], labels: &adjoints[1] });
        let expected: Vec<f64> = table_rows(
            golden.values(&format!("{name}/grad_blank")),
            golden.values(&format!("{name}/grad_lexical")),
        );
        assert_within(&format!("{name} table"), &computed["table"], &expected, gradients);
    }
}

#[test]
fn f64_values_and_gradients_equal_last() {
    equals_last::<f64>(F64, F64);
}

#[test]
fn f32_values_and_gradients_equal_last() {
    equals_last::<f32>(f32_values(2.0), F32_GRADIENTS);
}

/// Compares the hybrid normalization of extreme weights with exact values.
fn check_extremes<F: panda_core::Real>(tolerance: Tolerance) {
    let Some(golden) = golden("weight_fns.f64") else { return };
    let &[rows, v] = golden.shape("hat_extreme/lexical_in") else { panic!("X x V") };
    let table =
        table_rows::<F>(golden.values("hat_extreme/blank_in"), golden.values("hat_extreme/lexical_in"));
    let weight_fn =
        LocallyNormalized::new(TableWeightFn::new(&table, &[rows, 1, 1 + v]).unwrap(), Normalize::Hat);
    let frames: Vec<F> = (0..rows).map(|row| F::from_f64(row as f64)).collect();
    let (blank, label_arcs) = arc_weights(&weight_fn, &frames, rows);
    assert_within("blank", &blank, golden.values("hat_extreme/blank_exact"), tolerance);
    assert_within("lexical", &label_arcs, golden.values("hat_extreme/lexical_exact"), tolerance);
    let (blank, label_arcs) = (blank.map_finite(), label_arcs.map_finite());
    let (_, computed) = arc_gradients(&weight_fn, &frames, rows, Arcs { blank: &blank, labels: &label_arcs });
    assert!(computed["table"].iter().all(|g| g.to_f64().is_finite()));
}

/// Replaces -inf by finite numbers, as adjoints.
trait MapFinite<F> {
    fn map_finite(&self) -> Vec<F>;
}

impl<F: Real> MapFinite<F> for Vec<F> {
    fn map_finite(&self) -> Vec<F> {
        self.iter().map(|&w| if w.to_f64().is_finite() { w } else { F::ONE }).collect()
    }
}

/// All digits are correct, even of the smallest log-probabilities.
#[test]
fn extreme_blanks_are_exact() {
    check_extremes::<f64>(Tolerance { relative: 1e-14, absolute: 0.0 });
    // 8e-40 is a subnormal number.
    check_extremes::<f32>(Tolerance { relative: 2e-7, absolute: 1e-44 });
}

#[test]
fn gradients_of_a_joint_network_equal_central_differences() {
    for (normalize, _) in NORMALIZERS {
        let run = |owned: &OwnedJoint<f64>, with: UseWeightFn| {
            with(&LocallyNormalized::new(owned.borrow(), normalize));
        };
        check_gradients(&mut OwnedJoint::random(4, 3, 5, 3), &run);
    }
}

#[test]
fn gradients_of_any_weights_equal_central_differences() {
    for (normalize, _) in NORMALIZERS {
        let run = |owned: &OwnedJoint<f64>, with: UseWeightFn| {
            with(&LocallyNormalized::new(GenericJoint(owned.borrow()), normalize));
        };
        check_gradients(&mut OwnedJoint::random(4, 3, 5, 3), &run);
    }
}

/// Frames of a larger network, and a chain with adjoints.
struct ChainCase {
    owned: OwnedJoint<f64>,
    first_frame: usize,
    states: Vec<usize>,
    labels: Vec<u32>,
    adjoints: [Vec<f64>; 2],
}

impl ChainCase {
    /// Some successive sites have no adjoints.
    fn new(vocabulary: usize, count: usize) -> Self {
        let (states, first_frame, positions) = (9, 3, 37);
        let sites = positions * (count - first_frame);
        let mut adjoints = [random::<f64>(sites, 3, 1.0), random(sites, 4, 1.0)];
        adjoints.iter_mut().for_each(|a| a[300..700].fill(0.0));
        Self {
            owned: OwnedJoint::random(states, vocabulary, 24, count),
            first_frame,
            states: (0..positions).map(|u| u * u % states).collect(),
            labels: (0..positions - 1).map(|u| (u * 77 % vocabulary + 1) as u32).collect(),
            adjoints,
        }
    }

    fn chain(&self) -> LabelChain<'_> {
        LabelChain { states: &self.states, labels: &self.labels }
    }

    fn check<F: Real>(
        &self,
        name: &str,
        expected: &ChainResults,
        weight_fn: &dyn WeightFn<F>,
        [values, gradients]: [Tolerance; 2],
    ) {
        assert!(weight_fn.is_locally_normalized());
        let frames: Vec<F> = narrow(&self.owned.frames);
        let count = self.owned.count;
        let (blank, label_arcs) = forward_chain(weight_fn, &frames, count, self.first_frame, self.chain());
        assert_within(name, &blank, &expected.weights.0, values);
        assert_within(name, &label_arcs, &expected.weights.1, values);
        let adjoints = self.adjoints.each_ref().map(|adjoints| narrow::<F>(adjoints));
        let adjoints = Arcs { blank: &adjoints[0], labels: &adjoints[1] };
        let computed = backward_chain(weight_fn, &frames, count, self.first_frame, self.chain(), adjoints);
        assert_within(&format!("{name} frames"), &computed.0, &expected.gradients.0, gradients);
        assert_eq!(computed.1.len(), expected.gradients.1.len());
        for (parameter, expected) in &expected.gradients.1 {
            assert_within(&format!("{name} {parameter}"), &computed.1[parameter], expected, gradients);
        }
    }
}

/// Weights along a chain, and gradients, from all arcs.
struct ChainResults {
    weights: (Vec<f64>, Vec<f64>),
    gradients: (Vec<f64>, Parameters<f64>),
}

impl ChainCase {
    fn expected(&self, weight_fn: &dyn WeightFn<f64>) -> ChainResults {
        let OwnedJoint { states, vocabulary, count, frames, .. } = &self.owned;
        let shape = FrameArcsShape { states: *states, vocabulary: *vocabulary, frames: *count };
        let (blank, label_arcs) = arc_weights(weight_fn, frames, *count);
        let weights = Arcs { blank: &blank[..], labels: &label_arcs[..] };
        let adjoints = Arcs { blank: &self.adjoints[0][..], labels: &self.adjoints[1][..] };
        let all_adjoints = scatter_chain(shape, self.first_frame, self.chain(), adjoints);
        let all_adjoints = Arcs { blank: &all_adjoints.0[..], labels: &all_adjoints.1[..] };
        ChainResults {
            weights: chain_weights(shape, self.first_frame, self.chain(), weights),
            gradients: arc_gradients(weight_fn, frames, *count, all_adjoints),
        }
    }
}

/// With the selected normalizer; budgets keep all, some or no scores.
///
/// Labels exceed a tile, and sites exceed a wave.
#[test]
fn chains_equal_all_arcs() {
    let case = ChainCase::new(500, 130);
    let single = case.owned.narrow();
    for (normalize, name) in NORMALIZERS {
        let expected = case.expected(&LocallyNormalized::new(case.owned.borrow(), normalize));
        for budget in [56 << 20, usize::MAX, 1 << 20] {
            let inner = case.owned.borrow();
            case.check(name, &expected, &LocallyNormalized { inner, normalize, budget }, [F64, F64]);
            // Sums of thousands of adjoints of either sign.
            let gradients = Tolerance { relative: 1e-4, absolute: 1e-4 };
            let inner = single.borrow();
            let weight_fn = LocallyNormalized { inner, normalize, budget };
            case.check(name, &expected, &weight_fn, [f32_values(1.0), gradients]);
        }
    }
}

/// With a normalizer of rows.
#[test]
fn chains_of_any_weights_equal_all_arcs() {
    let case = ChainCase::new(60, 22);
    for (normalize, name) in NORMALIZERS {
        let generic = LocallyNormalized::new(GenericJoint(case.owned.borrow()), normalize);
        case.check(name, &case.expected(&generic), &generic, [F64, F64]);
    }
}

/// Rows are so long that frames and positions are processed in parts.
#[test]
fn chains_in_a_large_table_equal_all_arcs() {
    let (states, vocabulary, count, first_frame) = (3, 8000, 14, 1);
    let table: Vec<f64> = random(2 * states * (1 + vocabulary), 1, 4.0);
    let table = TableWeightFn::new(&table, &[2, states, 1 + vocabulary]).unwrap();
    let frames: Vec<f64> = (0..count).map(|t| f64::from(t as u32 % 3 % 2)).collect();
    let positions: Vec<usize> = (0..40).map(|u| u * u % states).collect();
    let labels: Vec<u32> = (0..39).map(|u| u * 200 + 1).collect();
    let shape = FrameArcsShape { states, vocabulary, frames: count };
    let chain = LabelChain { states: &positions, labels: &labels };
    let sites = positions.len() * (count - first_frame);
    let (blank_adjoints, label_adjoints) = (random::<f64>(sites, 2, 1.0), random::<f64>(sites, 3, 1.0));
    let adjoints = Arcs { blank: &blank_adjoints[..], labels: &label_adjoints[..] };
    for (normalize, name) in NORMALIZERS {
        let weight_fn = LocallyNormalized::new(table, normalize);
        let (blank, label_arcs) = arc_weights(&weight_fn, &frames, count);
        let arcs = Arcs { blank: &blank, labels: &label_arcs };
        let expected = chain_weights(shape, first_frame, chain, arcs);
        let computed = forward_chain(&weight_fn, &frames, count, first_frame, chain);
        assert_within(name, &computed.0, &expected.0, F64);
        assert_within(name, &computed.1, &expected.1, F64);
        let (blank, label_arcs) = scatter_chain(shape, first_frame, chain, adjoints);
        let all_adjoints = Arcs { blank: &blank, labels: &label_arcs };
        let (_, expected) = arc_gradients(&weight_fn, &frames, count, all_adjoints);
        let (_, computed) = backward_chain(&weight_fn, &frames, count, first_frame, chain, adjoints);
        assert_within(name, &computed["table"], &expected["table"], F64);
    }
}

#[test]
fn a_budget_below_the_smallest_plan_is_an_error() {
    let owned = OwnedJoint::<f64>::random(3, 4, 5, 2);
    let budget = 100;
    let weight_fn = LocallyNormalized { inner: owned.borrow(), normalize: Normalize::Hat, budget };
    let mut weights = weight_fn.bind(&mut Vec::new()).unwrap();
    weights.set_frames(&owned.frames, &[0, 0]).unwrap();
    let chain = LabelChain { states: &[0, 1], labels: &[1] };
    let (mut blank, mut label_arcs) = ([0.0; 4], [0.0; 4]);
    let arcs = lattice::ArcsMut { blank: &mut blank, labels: &mut label_arcs };
    let error = weights.forward_chain(0, chain, arcs).unwrap_err();
    assert!(matches!(error, Error::Normalizer(panda_core::Error::Budget { .. })), "{error}");
    let adjoints = Arcs { blank: &[1.0; 4], labels: &[1.0; 4] };
    assert!(weights.backward_chain(0, chain, adjoints).is_err());
    // Earlier gradients are unchanged.
    assert!(weights.finish().values().all(|gradient| gradient.iter().all(|g| g.is_finite())));
}

#[test]
fn results_do_not_depend_on_threads() {
    let (states, vocabulary, count) = (40, 30, 60);
    let owned = OwnedJoint::<f32>::random(states, vocabulary, 33, count);
    let (blank, label_arcs): (Vec<f32>, Vec<f32>) =
        (random(count * states, 5, 1.0), random(count * states * vocabulary, 6, 1.0));
    let chain = LabelChain { states: &CHAIN_STATES, labels: &CHAIN_LABELS };
    let sites = count * CHAIN_STATES.len();
    for (normalize, _) in NORMALIZERS {
        let joint = LocallyNormalized::new(owned.borrow(), normalize);
        let generic = LocallyNormalized::new(GenericJoint(owned.borrow()), normalize);
        assert_thread_independent(|| {
            let results = |weight_fn: &dyn WeightFn<f32>| {
                (
                    arc_weights(weight_fn, &owned.frames, count),
                    arc_gradients(
                        weight_fn,
                        &owned.frames,
                        count,
                        Arcs { blank: &blank, labels: &label_arcs },
                    ),
                    forward_chain(weight_fn, &owned.frames, count, 0, chain),
                    backward_chain(
                        weight_fn,
                        &owned.frames,
                        count,
                        0,
                        chain,
                        Arcs { blank: &blank[..sites], labels: &label_arcs[..sites] },
                    ),
                )
            };
            (results(&joint), results(&generic))
        });
    }
}

/// Golden lattices: arc weights, and the gradients of the denominator from its marginals.
fn lattices_equal_last<F: panda_core::Real>(values: Tolerance, gradients: Tolerance) {
    let normalizers =
        [("", None), ("_hat", Some(Normalize::Hat)), ("_log_softmax", Some(Normalize::LogSoftmax))];
    for case in [
        "emb_fd_c1",
        "emb_fd_c1_hat",
        "emb_fd_c1_log_softmax",
        "emb_fld2_c2_hat",
        "rnn_fd_c2",
        "rnn_fld1_c1_log_softmax",
    ] {
        let Some(golden) = golden(&format!("joint_{case}.f64")) else { return };
        let normalize = normalizers.iter().rev().find(|(end, _)| case.ends_with(end)).unwrap().1;
        let prefix = if normalize.is_some() { "weight_fn/weight_fn" } else { "weight_fn" };
        let order = case.split("_c").nth(1).unwrap()[..1].parse().unwrap();
        let start = "in/params/";
        let parameters: Parameters<F> = golden
            .names_with_prefix(start)
            .map(|name| (name.to_owned(), golden.cast(&format!("{start}{name}"))))
            .collect();
        let joint = borrow(&golden, &parameters, prefix, order);
        let normalized = normalize.map(|normalize| LocallyNormalized::new(joint, normalize));
        let weight_fn: &dyn WeightFn<F> = match &normalized {
            Some(normalized) => normalized,
            None => &joint,
        };
        let cache = joint.context_embeddings().unwrap();
        assert_within(case, &cache, golden.values("out/context_embeddings_cache"), values);

        let &[batch, frames, size] = golden.shape("in/frames") else { panic!("B x T x F") };
        let frame_rows = golden.cast::<F>("in/frames");
        let (blank, label_arcs) = arc_weights(weight_fn, &frame_rows, batch * frames);
        assert_within(case, &blank, golden.values("out/blank_weights"), values);
        assert_within(case, &label_arcs, golden.values("out/lexical_weights"), values);

        let weighted = |name: &str| -> Vec<F> {
            let marginals = golden.values(name);
            let size = marginals.len() / batch;
            let weights =
                golden.values("in/loss_cotangent").iter().flat_map(|&g| std::iter::repeat_n(g, size));
            marginals.iter().zip(weights).map(|(m, g)| F::from_f64(m * g)).collect()
        };
        let (b, l) = (weighted("out/blank_marginals"), weighted("out/lexical_marginals"));
        let (frame_gradient, computed) =
            arc_gradients(weight_fn, &frame_rows, batch * frames, Arcs { blank: &b, labels: &l });
        assert_eq!(frame_gradient.len(), batch * frames * size);
        assert_within(case, &frame_gradient, golden.values("out/grad_denom_log/frames"), gradients);
        let names: Vec<&str> = golden.names_with_prefix("out/grad_denom_log/params/").collect();
        assert_eq!(names.len(), computed.len());
        for name in names {
            let expected = golden.values(&format!("out/grad_denom_log/params/{name}"));
            assert_within(&format!("{case} {name}"), &computed[name], expected, gradients);
        }
    }
}

/// Borrows the joint network of a golden file.
fn borrow<'a, F: Real>(
    golden: &Golden,
    parameters: &'a Parameters<F>,
    prefix: &str,
    order: usize,
) -> JointWeightFn<'a, F> {
    let parameter = |name: &str| parameters[&format!("{prefix}/{name}")].as_slice();
    let &[.., states, vocabulary] = golden.shape("out/lexical_weights") else { panic!("C x V") };
    let cell =
        |names: [&str; 4]| names.map(|name| &parameters[&format!("weight_fn_cacher/rnn_cell/{name}")][..]);
    let embeddings = match parameters.get("weight_fn_cacher/context_embeddings") {
        Some(table) => Embeddings::Table(table),
        None => Embeddings::Rnn(SharedRnn {
            vocabulary,
            order,
            embedding: &parameters["weight_fn_cacher/Embed_0/embedding"],
            input: cell(["ii/kernel", "if/kernel", "ig/kernel", "io/kernel"]),
            recurrent: cell(["hi/kernel", "hf/kernel", "hg/kernel", "ho/kernel"]),
            bias: cell(["hi/bias", "hf/bias", "hg/bias", "ho/bias"]),
        }),
    };
    JointWeightFn {
        embeddings,
        states,
        vocabulary,
        project_context: parameter("project_context_embeddings/kernel"),
        project_frame: parameter("project_frame/kernel"),
        joint_bias: parameter("joint_bias"),
        blank_kernel: parameter("Dense_0/kernel"),
        blank_bias: parameter("Dense_0/bias"),
        label_kernel: parameter("Dense_1/kernel"),
        label_bias: parameter("Dense_1/bias"),
    }
}

#[test]
fn f64_equals_lattices_of_last() {
    lattices_equal_last::<f64>(F64, F64);
}

#[test]
fn f32_equals_lattices_of_last() {
    lattices_equal_last::<f32>(f32_values(2.0), F32_GRADIENTS);
}

/// Golden lattices with locally normalized weights: losses and all gradients.
fn losses_equal_last<F: panda_core::Real>(values: Tolerance, gradients: Tolerance) {
    for (case, alignment, normalize) in [
        ("emb_fd_c1_hat", AlignmentLattice::FrameDependent, Normalize::Hat),
        ("emb_fd_c1_log_softmax", AlignmentLattice::FrameDependent, Normalize::LogSoftmax),
        ("emb_fld2_c2_hat", AlignmentLattice::frame_label_dependent(2).unwrap(), Normalize::Hat),
        (
            "rnn_fld1_c1_log_softmax",
            AlignmentLattice::frame_label_dependent(1).unwrap(),
            Normalize::LogSoftmax,
        ),
    ] {
        let Some(golden) = golden(&format!("joint_{case}.f64")) else { return };
        let order = case.split("_c").nth(1).unwrap()[..1].parse().unwrap();
        let start = "in/params/";
        let parameters: Parameters<F> = golden
            .names_with_prefix(start)
            .map(|name| (name.to_owned(), golden.cast(&format!("{start}{name}"))))
            .collect();
        let joint = borrow(&golden, &parameters, "weight_fn/weight_fn", order);
        let counts = |name: &str| golden.values(name).iter().map(|&n| n as usize).collect::<Vec<_>>();
        let frame_rows = golden.cast::<F>("in/frames");
        let ids: Vec<u32> = golden.values("in/labels").iter().map(|&y| y as u32).collect();
        let frames = Frames::new(&frame_rows, golden.shape("in/frames"), &counts("in/num_frames")).unwrap();
        let labels = Labels::new(&ids, golden.shape("in/labels"), &counts("in/num_labels")).unwrap();
        let context = FullNGram::new(joint.vocabulary, order).unwrap();
        let joint_normalized = LocallyNormalized::new(joint, normalize);
        let row_normalized = LocallyNormalized::new(GenericJoint(joint), normalize);
        for weight_fn in [&joint_normalized as &dyn WeightFn<F>, &row_normalized] {
            let lattice = RecognitionLattice::new(&context, alignment, weight_fn).unwrap();
            let weights = golden.values("in/loss_cotangent");
            let mut session = LatticeSession::default();
            let computed = session.sum(&lattice, &frames, &labels, weights).unwrap();
            assert_within(case, &computed.sums, golden.values("out/loss"), values);
            assert_within(case, &computed.frames, golden.values("out/grad_loss/frames"), gradients);
            let names: Vec<&str> = golden.names_with_prefix("out/grad_loss/params/").collect();
            assert_eq!(names.len(), computed.parameters.len());
            for name in names {
                let expected = golden.values(&format!("out/grad_loss/params/{name}"));
                assert_within(&format!("{case} {name}"), &computed.parameters[name], expected, gradients);
            }
        }
    }
}

#[test]
fn f64_equals_losses_of_last() {
    losses_equal_last::<f64>(F64, F64);
}

#[test]
fn f32_equals_losses_of_last() {
    // Five frames.
    losses_equal_last::<f32>(f32_values(5.0), F32_GRADIENTS);
}

/// All labels have one weight, without checks; blanks have weight 0.
#[derive(Clone, Copy)]
struct UncheckedWeights(f32);

impl WeightFn<f32> for UncheckedWeights {
    fn vocabulary(&self) -> usize {
        2
    }
    fn states(&self) -> usize {
        3
    }
    fn frame_size(&self) -> Option<usize> {
        None
    }
    fn scratch(&self, _: Workload) -> ScratchReq {
        ScratchReq::EMPTY
    }
    fn bind(&self, _: &mut Vec<Vec<f32>>) -> Result<Box<dyn BoundWeights<f32> + '_>> {
        Ok(Box::new(*self))
    }
}

impl BoundWeights<f32> for UncheckedWeights {
    fn set_frames(&mut self, _: &[f32], _: &[u32]) -> Result<()> {
        Ok(())
    }
    fn forward(&self, _: &[usize], arcs: ArcsMut<f32>) {
        arcs.blank.fill(0.0);
        arcs.labels.fill(self.0);
    }
    fn forward_state(&self, _: usize, _: usize, label_arcs: &mut [f32]) -> f32 {
        label_arcs.fill(self.0);
        0.0
    }
    fn forward_chain(&self, _: usize, chain: LabelChain, arcs: ArcsMut<f32>) -> Result<()> {
        arcs.blank.fill(0.0);
        for row in arcs.labels.chunks_exact_mut(chain.states.len()) {
            row.fill(self.0);
            *row.last_mut().unwrap() = f32::NEG_INFINITY;
        }
        Ok(())
    }
    fn backward(&mut self, _: &[usize], _: Arcs<f32>) {}
    fn backward_chain(&mut self, _: usize, _: LabelChain, _: Arcs<f32>) -> Result<()> {
        Ok(())
    }
    fn frame_gradient(&mut self, rows: &[f32]) -> Vec<f32> {
        vec![0.0; rows.len()]
    }
    fn finish(self: Box<Self>) -> Parameters<f32> {
        Parameters::new()
    }
}

/// NaN is detected although it fails all comparisons.
#[test]
fn nan_in_unchecked_weights_is_detected() {
    let context = FullNGram::new(2, 1).unwrap();
    let frames = Frames::new(&[0.0f32, 1.0], &[1, 2, 1], &[2]).unwrap();
    let labels = Labels::new(&[1], &[1, 1], &[1]).unwrap();
    for (weight, fails) in [(f32::NAN, true), (-7.0, false)] {
        let weight_fn = UncheckedWeights(weight);
        let lattice =
            RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &weight_fn).unwrap();
        let mut session = LatticeSession::default();
        for computed in
            [session.best_alignments(&lattice, &frames, &labels), session.best_paths(&lattice, &frames)]
        {
            assert_eq!(matches!(computed, Err(Error::Overflow { utterance: 0, .. })), fails, "{computed:?}");
        }
    }
}
