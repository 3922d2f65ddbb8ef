//! Loss sessions over candle tensors match sessions over slices.
//!
//! Losses and gradients of all kinds of inputs are compared, in both float types, for tensors that
//! are contiguous or not, tracked or not.
use candle_core::{DType, Device, Tensor, Var, backprop::GradStore};
use pruned::{Heads, Linear};
use rnnt_loss::{
    Dropout, Error, Gradients, Head, HiddenInputs, JointInputs, Layout, Loss, Options, PassScales,
    PrunedInputs, Pruning, ScoreInputs, Session, SimpleGradient, SimpleInputs, Targets, Topology,
    candle::{
        HeadTensors, HiddenTensors, JointTensors, LossSession, PrunedTensors, ScoreTensors, SimpleTensors,
        TensorInputs,
    },
};

const DEVICE: Device = Device::Cpu;
/// B = 3, padded T = 4, U + 1 = 3.
const LAYOUT: Layout = Layout::Padded { frames: 4, positions: 3 };
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 3] = [0.5, -2.0, 1.5];
/// Width of the joint network.
const H: usize = 3;
/// Number of classes.
const C: usize = 5;
/// Number of durations.
const D: usize = 3;
const SCALES: PassScales = PassScales { simple: 0.25, pruned: 0.75 };

/// Targets of the batch.
fn targets() -> Targets {
    Targets::new(2, vec![4, 3, 1], vec![vec![0, 4], vec![1], vec![]]).unwrap()
}

/// Numbers that are exact in `f32`, for equal inputs of both types.
fn values(len: usize, salt: u64) -> Vec<f64> {
    oracle::noise::normal(salt, 0, len, 1.0).into_iter().map(|x| f64::from(x as f32)).collect()
}

/// Pseudo-random variable of a shape.
fn var(shape: &[usize], salt: u64, dtype: DType) -> Var {
    let tensor = Tensor::from_vec(values(shape.iter().product(), salt), shape, &DEVICE).unwrap();
    Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap()
}

fn tensor_values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// A kind of inputs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum InputKind {
    Joint,
    Dropout,
    Durations,
    CtcRows,
    Scores,
    ScoresWithDurations,
    CtcScores,
    Pruned,
}

const INPUT_KINDS: [InputKind; 8] = [
    InputKind::Joint,
    InputKind::Dropout,
    InputKind::Durations,
    InputKind::CtcRows,
    InputKind::Scores,
    InputKind::ScoresWithDurations,
    InputKind::CtcScores,
    InputKind::Pruned,
];

impl InputKind {
    fn options(self) -> Options {
        let topology = Topology::tdt(&[0, 1, 2]).unwrap();
        let loss = match self {
            Self::Joint | Self::Dropout | Self::Scores => Loss::rnnt(),
            Self::Durations | Self::ScoresWithDurations => Loss::Tdt { topology, sigma: 0.05, omega: 0.25 },
            Self::CtcRows | Self::CtcScores => Loss::Ctc,
            Self::Pruned => Loss::pruned(Pruning { s_range: 2, lm_only_scale: 0.25, ..Pruning::default() }),
        };
        Options { fastemit: 0.1, ..Options::new(loss) }
    }

    fn dropout(self) -> Option<Dropout> {
        (self == Self::Dropout).then_some(Dropout { rate: 0.25, seed: 4 })
    }

    /// Shapes of the tensors in order; a head is a weight and a bias.
    fn shapes(self) -> Vec<Vec<usize>> {
        let joint = [vec![3, 4, H], vec![3, 3, H], vec![C, H], vec![C]];
        match self {
            Self::Joint | Self::Dropout => joint.to_vec(),
            Self::Durations => [&joint[..], &[vec![D, H], vec![D]]].concat(),
            Self::CtcRows => vec![vec![3, 4, H], vec![C, H], vec![C]],
            Self::Scores => vec![vec![3, 4, 3, C]],
            Self::ScoresWithDurations => vec![vec![3, 4, 3, C + D]],
            Self::CtcScores => vec![vec![3, 4, C]],
            Self::Pruned => {
                let simple = [vec![3, 4, 6], vec![C, 6], vec![C], vec![3, 3, 7], vec![C, 7], vec![C]];
                [&joint[..], &simple].concat()
            }
        }
    }

    fn vars(self, dtype: DType) -> Vec<Var> {
        let shapes = self.shapes();
        shapes.iter().zip(1..).map(|(shape, salt)| var(shape, salt, dtype)).collect()
    }

    /// Whether a tensor is the bias of a head.
    fn is_bias(self, tensor: usize) -> bool {
        self.shapes()[tensor].len() == 1
    }

    /// Arguments of a call from tensors in the order of [`InputKind::shapes`].
    fn inputs<'a>(self, tensors: &[&'a Tensor], has_bias: bool) -> TensorInputs<'a> {
        let head =
            |index: usize| HeadTensors { weight: tensors[index], bias: has_bias.then(|| tensors[index + 1]) };
        let joint = || JointTensors {
            encoded: tensors[0],
            predicted: tensors[1],
            head: head(2),
            durations: (self == Self::Durations).then(|| head(4)),
            dropout: self.dropout(),
        };
        match self {
            Self::Joint | Self::Dropout | Self::Durations => joint().into(),
            Self::CtcRows => HiddenTensors { hidden: tensors[0], head: head(1) }.into(),
            Self::Scores | Self::ScoresWithDurations | Self::CtcScores => {
                ScoreTensors { scores: tensors[0] }.into()
            }
            Self::Pruned => {
                let simple =
                    SimpleTensors { frames: tensors[4], labels: tensors[7], am: head(5), lm: head(8) };
                PrunedTensors { simple, joint: joint(), scales: SCALES }.into()
            }
        }
    }

    /// Losses, and gradients of all tensors in order, from slices.
    fn by_slices(self, vars: &[Var], has_bias: bool, weights: &[f64]) -> (Vec<f64>, Vec<Vec<f64>>) {
        let v: Vec<Vec<f64>> = vars.iter().map(|var| tensor_values(var)).collect();
        let bias_of = |index: usize| has_bias.then(|| &v[index][..]);
        let head = |index: usize, width| Head::new(&v[index], bias_of(index + 1), width).unwrap();
        let joint = || {
            let joint = JointInputs { dropout: self.dropout(), ..JointInputs::new(&v[0], &v[1], head(2, H)) };
            joint.with_layout(LAYOUT)
        };
        let scores = |classes| ScoreInputs { scores: &v[0], classes, layout: LAYOUT };
        let (targets, mut session) = (targets(), Session::new(&self.options()).unwrap());
        let out = match self {
            Self::Joint | Self::Dropout => session.sum(joint(), &targets, weights),
            Self::Durations => session.sum(joint().with_durations(head(4, H)), &targets, weights),
            Self::CtcRows => {
                session.sum(HiddenInputs::new(&v[0], head(1, H)).with_layout(LAYOUT), &targets, weights)
            }
            Self::Scores | Self::ScoresWithDurations | Self::CtcScores => {
                session.sum(scores(C), &targets, weights)
            }
            Self::Pruned => {
                let am = Linear::new(&v[4], &v[5], bias_of(6), 6).unwrap();
                let lm = Linear::new(&v[7], &v[8], bias_of(9), 7).unwrap();
                let simple = SimpleInputs::Heads(Heads::new(am, lm).unwrap());
                session.sum(PrunedInputs { simple, joint: joint(), scales: SCALES }, &targets, weights)
            }
        };
        let out = out.unwrap();
        let losses = match &out.first_pass {
            None => out.losses,
            Some(first) => {
                let losses = first.losses.iter().zip(&out.losses);
                losses.map(|(simple, pruned)| SCALES.simple * simple + SCALES.pruned * pruned).collect()
            }
        };
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = out.gradients;
        let gradients = match self {
            Self::Joint | Self::Dropout => vec![encoded, predicted, head.weight, head.bias],
            Self::Durations => {
                vec![encoded, predicted, head.weight, head.bias, durations.weight, durations.bias]
            }
            Self::CtcRows => vec![hidden, head.weight, head.bias],
            Self::Scores | Self::ScoresWithDurations | Self::CtcScores => vec![scores],
            Self::Pruned => {
                let Some(SimpleGradient::Heads(heads)) = simple else { panic!("heads were given") };
                let simple = [heads.am, heads.lm].map(|side| [side.rows, side.weight, side.bias]);
                let joint = [encoded, predicted, head.weight, head.bias];
                joint.into_iter().chain(simple.into_iter().flatten()).collect()
            }
        };
        (losses, gradients)
    }
}

#[track_caller]
fn assert_close(kind: InputKind, actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "{kind:?}");
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert!(
            (actual - expected).abs() <= tolerance * (1.0 + expected.abs()),
            "{kind:?}, entry {i}: {actual} {expected}"
        );
    }
}

/// `Σ weights losses`, differentiable.
fn weighted_sum(losses: &Tensor, weights: &[f64]) -> Tensor {
    (losses * Tensor::new(weights, &DEVICE).unwrap()).unwrap().sum_all().unwrap()
}

/// Compares gradients of tensors, which must exist.
#[track_caller]
fn check_gradients(
    kind: InputKind,
    gradients: &GradStore,
    vars: &[Var],
    expected: &[Vec<f64>],
    has_bias: bool,
    tolerance: f64,
) {
    for (index, (var, expected)) in vars.iter().zip(expected).enumerate() {
        match gradients.get(var) {
            Some(actual) => {
                assert_eq!((actual.dims(), actual.dtype()), (var.dims(), var.dtype()), "{kind:?} {index}");
                assert_close(kind, &tensor_values(actual), expected, tolerance);
            }
            None => assert!(kind.is_bias(index) && !has_bias, "{kind:?}: tensor {index} has no gradient"),
        }
    }
}

fn borrow(vars: &[Var]) -> Vec<&Tensor> {
    vars.iter().map(Var::as_tensor).collect()
}

#[test]
fn tensor_sessions_match_slices_in_both_types() {
    for kind in INPUT_KINDS {
        let session = LossSession::new(&kind.options()).unwrap();
        for (dtype, loss_tolerance, tolerance) in [(DType::F64, 1e-12, 1e-12), (DType::F32, 2e-6, 2e-5)] {
            for bias in [true, false] {
                let vars = kind.vars(dtype);
                let (losses, expected) = kind.by_slices(&vars, bias, &WEIGHTS);
                let tensors = borrow(&vars);
                let actual = session.forward(kind.inputs(&tensors, bias), &targets()).unwrap();
                assert_eq!((actual.dims(), actual.dtype()), (&[3][..], DType::F64));
                assert_close(kind, &tensor_values(&actual), &losses, loss_tolerance);
                let gradients = weighted_sum(&actual, &WEIGHTS).backward().unwrap();
                check_gradients(kind, &gradients, &vars, &expected, bias, tolerance);

                let out = session.sum(kind.inputs(&tensors, bias), &targets(), &WEIGHTS).unwrap();
                let value: f64 = losses.iter().zip(WEIGHTS).map(|(loss, weight)| loss * weight).sum();
                assert_close(kind, &tensor_values(&out.sum), &[value], loss_tolerance);
                assert_eq!(out.first_pass.is_some(), kind == InputKind::Pruned);
                check_gradients(kind, &out.sum.backward().unwrap(), &vars, &expected, bias, tolerance);
            }
        }
    }
}

/// The first backward pass consumes the state; a second one repeats the forward pass.
#[test]
fn a_graph_may_be_differentiated_twice() {
    let other_weights = [1.0, 0.25, -0.5];
    for kind in INPUT_KINDS {
        let session = LossSession::new(&kind.options()).unwrap();
        let vars = kind.vars(DType::F64);
        let tensors = borrow(&vars);
        let losses = session.forward(kind.inputs(&tensors, true), &targets()).unwrap();
        // Another call uses the buffers in between.
        session.sum(kind.inputs(&tensors, true), &targets(), &[1.0; 3]).unwrap();
        for weights in [WEIGHTS, WEIGHTS, other_weights, WEIGHTS] {
            let (_, expected) = kind.by_slices(&vars, true, &weights);
            check_gradients(
                kind,
                &weighted_sum(&losses, &weights).backward().unwrap(),
                &vars,
                &expected,
                true,
                1e-12,
            );
        }
        let sum = session.sum(kind.inputs(&tensors, true), &targets(), &WEIGHTS).unwrap().sum;
        let (_, expected) = kind.by_slices(&vars, true, &WEIGHTS);
        for factor in [1.0, -3.0] {
            let expected: Vec<Vec<f64>> =
                expected.iter().map(|g| g.iter().map(|g| factor * g).collect()).collect();
            let gradients = (&sum * factor).unwrap().backward().unwrap();
            check_gradients(kind, &gradients, &vars, &expected, true, 1e-12);
        }
    }
}

/// Only tracked tensors have gradients.
#[test]
fn any_tensor_may_be_untracked() {
    for kind in INPUT_KINDS {
        let session = LossSession::new(&kind.options()).unwrap();
        let vars = kind.vars(DType::F64);
        let (losses, expected) = kind.by_slices(&vars, true, &WEIGHTS);
        let detached: Vec<Tensor> = vars.iter().map(|var| var.as_detached_tensor()).collect();
        for only in 0..vars.len() {
            let mut tensors: Vec<&Tensor> = detached.iter().collect();
            tensors[only] = &vars[only];
            let losses_tensor = session.forward(kind.inputs(&tensors, true), &targets()).unwrap();
            assert_close(kind, &tensor_values(&losses_tensor), &losses, 1e-12);
            let sum = session.sum(kind.inputs(&tensors, true), &targets(), &WEIGHTS).unwrap().sum;
            for gradients in
                [weighted_sum(&losses_tensor, &WEIGHTS).backward().unwrap(), sum.backward().unwrap()]
            {
                assert_close(
                    kind,
                    &tensor_values(gradients.get(&vars[only]).unwrap()),
                    &expected[only],
                    1e-12,
                );
                for (index, tensor) in detached.iter().enumerate() {
                    assert!(gradients.get(tensor).is_none(), "{kind:?}: tensor {index} has a gradient");
                }
            }
        }
        // Without tracked tensors the loss is a constant.
        let tensors: Vec<&Tensor> = detached.iter().collect();
        let losses_tensor = session.forward(kind.inputs(&tensors, true), &targets()).unwrap();
        assert_close(kind, &tensor_values(&losses_tensor), &losses, 1e-12);
        assert!(!losses_tensor.track_op());
    }
}

/// Tensors that are transposed or sliced, hence not contiguous.
#[test]
fn tensors_may_be_noncontiguous() {
    for kind in INPUT_KINDS {
        let session = LossSession::new(&kind.options()).unwrap();
        let vars = kind.vars(DType::F64);
        let (losses, expected) = kind.by_slices(&vars, true, &WEIGHTS);
        // The last two axes are transposed; a vector has stride 2.
        let (mut noncontiguous, mut sources) = (Vec::new(), Vec::new());
        for var in &vars {
            let rank = var.rank();
            let source = match rank {
                1 => Tensor::stack(&[var.as_tensor(), var.as_tensor()], 1).unwrap(),
                _ => var.transpose(rank - 2, rank - 1).unwrap().contiguous().unwrap(),
            };
            let source = Var::from_tensor(&source.detach()).unwrap();
            noncontiguous.push(match rank {
                1 => source.narrow(1, 1, 1).unwrap().squeeze(1).unwrap(),
                _ => source.transpose(rank - 2, rank - 1).unwrap(),
            });
            sources.push(source);
        }
        assert!(noncontiguous.iter().all(|tensor| !tensor.is_contiguous()));
        let tensors: Vec<&Tensor> = noncontiguous.iter().collect();
        let losses_tensor = session.forward(kind.inputs(&tensors, true), &targets()).unwrap();
        assert_close(kind, &tensor_values(&losses_tensor), &losses, 1e-12);
        let sum = session.sum(kind.inputs(&tensors, true), &targets(), &WEIGHTS).unwrap().sum;
        for gradients in [weighted_sum(&losses_tensor, &WEIGHTS).backward().unwrap(), sum.backward().unwrap()]
        {
            for ((sources, var), expected) in sources.iter().zip(&vars).zip(&expected) {
                let actual = gradients.get(sources).unwrap();
                let actual = match var.rank() {
                    1 => {
                        let unused = actual.narrow(1, 0, 1).unwrap();
                        assert!(tensor_values(&unused).iter().all(|g| *g == 0.0), "{kind:?}");
                        actual.narrow(1, 1, 1).unwrap()
                    }
                    rank => actual.transpose(rank - 2, rank - 1).unwrap(),
                };
                assert_close(kind, &tensor_values(&actual), expected, 1e-12);
            }
        }
    }
}

/// The infinite loss of an utterance does not affect other gradients.
#[test]
fn an_utterance_without_a_path_has_no_gradient_in_any_pass() {
    let targets = Targets::new(2, vec![4, 3, 1], vec![vec![0, 4], vec![1], vec![3, 3]]).unwrap();
    let pruning = Pruning { s_range: 2, ..Pruning::default() };
    let tokens = rnnt_loss::TokenNormalization::Softmax;
    let loss = Loss::Pruned { topology: Topology::modified(), tokens, pruning };
    let vars = InputKind::Pruned.vars(DType::F64);
    let session = LossSession::new(&Options::new(loss)).unwrap();
    let tensors = borrow(&vars);
    let losses = session.forward(InputKind::Pruned.inputs(&tensors, true), &targets).unwrap();
    let actual = tensor_values(&losses);
    assert!(actual[0].is_finite() && actual[1].is_finite() && actual[2] == f64::INFINITY, "{actual:?}");
    let gradients = losses.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let weights = [2.0 * actual[0], 2.0 * actual[1], 0.0];
    let sum = session.sum(InputKind::Pruned.inputs(&tensors, true), &targets, &weights).unwrap().sum;
    let expected = sum.backward().unwrap();
    for var in &vars {
        assert_close(
            InputKind::Pruned,
            &tensor_values(gradients.get(var).unwrap()),
            &tensor_values(expected.get(var).unwrap()),
            1e-11,
        );
    }
}

#[test]
fn invalid_rates_and_weights_are_errors() {
    let vars = InputKind::Joint.vars(DType::F32);
    let tensors = borrow(&vars);
    let TensorInputs::Joint(joint) = InputKind::Joint.inputs(&tensors, true) else { panic!("a joint") };
    let session = LossSession::new(&Options::default()).unwrap();
    for rate in [-0.5, 1.0, f64::NAN] {
        let joint = JointTensors { dropout: Some(Dropout { rate, seed: 0 }), ..joint };
        assert!(matches!(session.forward(joint, &targets()), Err(Error::Dropout { .. })));
        assert!(matches!(session.sum(joint, &targets(), &WEIGHTS), Err(Error::Dropout { .. })));
    }
    let actual = session.sum(joint, &targets(), &[1.0, f64::NAN, 1.0]);
    assert!(matches!(actual, Err(Error::Weight { utterance: 1, .. })));
    assert!(matches!(session.sum(joint, &targets(), &[1.0]), Err(Error::Shape { argument: "weights", .. })));
    let losses = session.forward(joint, &targets()).unwrap();
    let message = weighted_sum(&losses, &[1.0, f64::NAN, 1.0]).backward().unwrap_err().to_string();
    assert!(message.contains("weights: utterance 1"), "{message}");
    // The graph is still usable after the error.
    assert!(weighted_sum(&losses, &WEIGHTS).backward().is_ok());
}
