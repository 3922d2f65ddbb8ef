//! Loss sessions: `forward` and `backward` match `sum` for every loss and input kind.
use pruned::{Heads, Linear, Matrices};
use rnnt_dp::{Regularizers, forward_backward, log_sums};
use rnnt_loss::{
    Dropout, Error, Gradients, Head, HeadGradient, HiddenInputs, Inputs, JointInputs, Loss, Options,
    PassScales, PrunedInputs, Pruning, ScoreInputs, Session, SimpleGradient, SimpleInputs, Targets,
    TokenNormalization, Topology,
};

/// Width of the joint network.
const H: usize = 3;
/// Number of classes.
const C: usize = 6;
/// Number of durations.
const D: usize = 3;
/// Class id of the blank.
const BLANK: u32 = 2;
/// Frames T and labels U of each utterance.
const SHAPES: [(usize, usize); 3] = [(4, 2), (1, 0), (3, 3)];
/// Frames of the batch.
const FRAMES: usize = 8;
/// Label positions of the batch.
const POSITIONS: usize = 8;
/// Sites of the batch.
const SITES: usize = 4 * 3 + 1 + 3 * 4;
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 3] = [0.5, 1.0, -2.0];

/// Pseudo-random values.
fn values(len: usize, salt: u64) -> Vec<f64> {
    oracle::noise::normal(salt, 0, len, 1.0)
}

/// Values of all kinds of inputs.
struct InputData {
    encoded: Vec<f64>,
    predicted: Vec<f64>,
    /// Hidden rows of the sites.
    hidden: Vec<f64>,
    /// Hidden rows of the frames, for CTC.
    frame_hidden: Vec<f64>,
    scores: Vec<f64>,
    scores_with_durations: Vec<f64>,
    /// Weight and bias of the token head.
    head: [Vec<f64>; 2],
    /// Weight and bias of the duration head.
    durations: [Vec<f64>; 2],
    /// Matrices `am` and `lm`, and weights of linear layers for both.
    simple: [Vec<f64>; 4],
}

impl InputData {
    fn new() -> Self {
        Self {
            encoded: values(FRAMES * H, 1),
            predicted: values(POSITIONS * H, 2),
            hidden: values(SITES * H, 3),
            frame_hidden: values(FRAMES * H, 4),
            scores: values(SITES * C, 5),
            scores_with_durations: values(SITES * (C + D), 6),
            head: [values(C * H, 7), values(C, 8)],
            durations: [values(D * H, 9), values(D, 10)],
            simple: [values(FRAMES * C, 11), values(POSITIONS * C, 12), values(C * H, 13), values(C * H, 14)],
        }
    }

    fn head(&self) -> Head<'_, f64> {
        Head::new(&self.head[0], Some(&self.head[1]), H).unwrap()
    }

    fn durations(&self) -> Head<'_, f64> {
        Head::new(&self.durations[0], Some(&self.durations[1]), H).unwrap()
    }

    fn joint(&self) -> JointInputs<'_, f64> {
        JointInputs::new(&self.encoded, &self.predicted, self.head())
    }

    /// Pruned inputs, with a simple joiner of linear layers or of matrices.
    fn pruned(&self, has_layers: bool) -> PrunedInputs<'_, f64> {
        let [am, lm, am_weight, lm_weight] = &self.simple;
        let simple = match has_layers {
            false => SimpleInputs::Matrices(Matrices::new(am, lm, C).unwrap()),
            true => {
                let am = Linear::new(&self.encoded, am_weight, None, H).unwrap();
                let lm = Linear::new(&self.predicted, lm_weight, Some(&self.head[1]), H).unwrap();
                SimpleInputs::Heads(Heads::new(am, lm).unwrap())
            }
        };
        PrunedInputs { simple, joint: self.joint(), scales: PassScales { simple: 0.25, pruned: 0.75 } }
    }

    /// All combinations of loss and inputs, with their names in messages.
    fn cases(&self) -> Vec<(&'static str, Options, Inputs<'_, f64>, Targets)> {
        let scores = |scores, classes| ScoreInputs { scores, classes, layout: rnnt_loss::Layout::Packed };
        let tdt = || Loss::Tdt { topology: Topology::tdt(&[0, 1, 2]).unwrap(), sigma: 0.05, omega: 0.25 };
        let with = |loss| Options { fastemit: 0.3, delay_penalty: 0.1, ..Options::new(loss) };
        let regularized = Options { label_smoothing: 0.1, z_loss: 0.05, ..Options::default() };
        let bands = vec![vec![0..2, 0..3, 1..3, 1..3], vec![0..1], vec![0..4, 0..4, 2..4]];
        let banded = targets().with_bands(bands).unwrap();
        let big = targets().with_big_blanks(vec![4]).unwrap();
        let factored = Loss::Transducer {
            topology: Topology::modified(),
            tokens: TokenNormalization::FactoredBlank,
            sigma: 0.1,
        };
        let pruning = Pruning { s_range: 2, lm_only_scale: 0.25, ..Pruning::default() };
        let modified = Loss::Pruned {
            topology: Topology::modified(),
            tokens: TokenNormalization::FactoredBlank,
            pruning,
        };
        let joint_with_dropout = self.joint().with_dropout(Dropout { rate: 0.25, seed: 3 });
        let hidden_with_durations = HiddenInputs {
            durations: Some(self.durations()),
            ..HiddenInputs::new(&self.hidden, self.head())
        };
        vec![
            ("joint", with(Loss::rnnt()), self.joint().into(), targets()),
            ("clamp", Options { clamp: Some(0.05), ..Options::default() }, self.joint().into(), targets()),
            ("skip", Options { skip: 0.02, ..Options::default() }, self.joint().into(), targets()),
            ("smoothing", regularized, self.joint().into(), targets()),
            ("dropout", with(Loss::rnnt()), joint_with_dropout.into(), targets()),
            ("bands", with(Loss::rnnt()), self.joint().into(), banded.clone()),
            ("big blanks", with(Loss::multi_blank(&[2]).unwrap()), self.joint().into(), big),
            ("factored", with(factored), self.joint().into(), targets()),
            ("durations", with(tdt()), self.joint().with_durations(self.durations()).into(), targets()),
            ("rows", with(Loss::rnnt()), HiddenInputs::new(&self.hidden, self.head()).into(), targets()),
            ("rows with durations", with(tdt()), hidden_with_durations.into(), targets()),
            (
                "factored rows",
                with(Loss::hat()),
                HiddenInputs::new(&self.hidden, self.head()).into(),
                targets(),
            ),
            ("scores", with(Loss::rnnt()), scores(&self.scores, C).into(), targets()),
            ("scores with durations", with(tdt()), scores(&self.scores_with_durations, C).into(), targets()),
            ("ctc", with(Loss::Ctc), HiddenInputs::new(&self.frame_hidden, self.head()).into(), targets()),
            ("ctc scores", with(Loss::Ctc), scores(&self.scores[..FRAMES * C], C).into(), targets()),
            ("pruned", with(Loss::pruned(pruning)), self.pruned(false).into(), targets()),
            ("pruned heads", with(modified), self.pruned(true).into(), targets()),
        ]
    }
}

/// Targets of the batch.
fn targets() -> Targets {
    let labels = vec![vec![1, 5], vec![], vec![0, 0, 3]];
    let targets = Targets::new(BLANK, SHAPES.map(|shape| shape.0).to_vec(), labels).unwrap();
    targets.with_token_weights(vec![vec![0.5, 2.0], vec![], vec![1.5, 1.0, 0.7]]).unwrap()
}

/// All gradients, concatenated.
fn concatenate_gradients(gradients: &Gradients<f64>) -> Vec<f64> {
    let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
    let head_values = |HeadGradient { weight, bias }: &HeadGradient<f64>| [&weight[..], bias].concat();
    let simple = match simple {
        None => Vec::new(),
        Some(SimpleGradient::Matrices(matrices)) => [&matrices.am[..], &matrices.lm].concat(),
        Some(SimpleGradient::Heads(heads)) => [&heads.am, &heads.lm]
            .into_iter()
            .flat_map(|side| [&side.rows[..], &side.weight, &side.bias].concat())
            .collect(),
    };
    [&encoded[..], predicted, hidden, scores, &head_values(head), &head_values(durations), &simple].concat()
}

#[track_caller]
fn assert_close(name: &str, actual: &[f64], expected: &[f64]) {
    assert_eq!(actual.len(), expected.len(), "{name}");
    assert!(expected.iter().any(|x| *x != 0.0), "{name}");
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        let near = actual == expected || (actual - expected).abs() <= 1e-12 * (1.0 + expected.abs());
        assert!(near, "{name}, entry {i}: {actual} {expected}");
    }
}

#[test]
fn forward_and_backward_match_sum() {
    let data = InputData::new();
    for (name, options, inputs, targets) in data.cases() {
        let mut session = Session::new(&options).unwrap();
        let sum = session.sum(inputs, &targets, &WEIGHTS).unwrap();
        let pending = session.forward(inputs, &targets).unwrap();
        let first_pass = pending.first_pass().cloned();
        assert_close(name, pending.losses(), &sum.losses);
        let out = pending.backward(&WEIGHTS).unwrap();
        assert_eq!(first_pass, out.first_pass, "{name}");
        assert_eq!(sum.first_pass.is_some(), matches!(options.loss, Loss::Pruned { .. }), "{name}");
        if let (Some(actual), Some(expected)) = (&out.first_pass, &sum.first_pass) {
            assert_eq!((&actual.losses, &actual.ranges), (&expected.losses, &expected.ranges), "{name}");
        }
        assert_close(name, &concatenate_gradients(&out.gradients), &concatenate_gradients(&sum.gradients));
        assert_eq!(out.skipped.sites, sum.skipped.sites, "{name}");
        assert_eq!(out.skipped.sites > 0, options.skip > 0.0, "{name}");
        // The next call does not depend on the contents of the buffers.
        let again = session.forward(inputs, &targets).unwrap().backward(&WEIGHTS).unwrap();
        assert_eq!(again, out, "{name}");
        assert_eq!(session.sum(inputs, &targets, &WEIGHTS).unwrap(), sum, "{name}");
    }
}

/// `forward` permits weights that depend on the losses.
///
/// An utterance without a path has no gradient for any weight.
#[test]
fn weights_may_depend_on_losses() {
    let data = InputData::new();
    for (name, options, inputs, targets) in data.cases() {
        let mut session = Session::new(&options).unwrap();
        let pending = session.forward(inputs, &targets).unwrap();
        // d/dL of the sum of squares.
        let weights: Vec<f64> = pending.losses().iter().map(|loss| 2.0 * loss).collect();
        let out = pending.backward(&weights).unwrap();
        assert!(concatenate_gradients(&out.gradients).iter().all(|g| g.is_finite()), "{name}");
        if weights.iter().all(|weight| weight.is_finite()) {
            let sum = session.sum(inputs, &targets, &weights).unwrap();
            assert_close(
                name,
                &concatenate_gradients(&out.gradients),
                &concatenate_gradients(&sum.gradients),
            );
        }
    }
    // More labels than frames.
    let targets = Targets::new(BLANK, vec![4, 2, 2], vec![vec![1, 5], vec![1, 1, 3], vec![]]).unwrap();
    let mut session = Session::new(&Options::new(Loss::with_topology(Topology::modified()))).unwrap();
    let pending = session.forward(data.joint(), &targets).unwrap();
    assert_eq!(pending.losses()[1], f64::INFINITY);
    let weights: Vec<f64> = pending.losses().iter().map(|loss| 2.0 * loss).collect();
    let out = pending.backward(&weights).unwrap().gradients;
    assert!(concatenate_gradients(&out).iter().all(|g| g.is_finite()));
    assert!(out.encoded[4 * H..6 * H].iter().all(|g| *g == 0.0));
    assert!(out.encoded[..4 * H].iter().any(|g| *g != 0.0));
}

/// A pending loss exposes emissions and adjoints of the lattice.
#[test]
fn emissions_and_adjoints_match_the_lattice() {
    let data = InputData::new();
    let plain = Targets::new(BLANK, vec![4, 1, 3], vec![vec![1, 5], vec![], vec![0, 0, 3]]).unwrap();
    for topology in [Topology::rnnt(), Topology::tdt(&[0, 1, 2]).unwrap()] {
        let tdt = topology != Topology::rnnt();
        let (loss, durations) = match tdt {
            true => (Loss::tdt(&[0, 1, 2]).unwrap(), Some(data.durations())),
            false => (Loss::rnnt(), None),
        };
        let mut session = Session::new(&Options::new(loss)).unwrap();
        let pending = session.forward(JointInputs { durations, ..data.joint() }, &plain).unwrap();
        let (lattices, emissions) = (plain.lattices(), pending.emissions());
        assert_eq!(emissions.len(), SITES * topology.num_columns());
        let expected = forward_backward(lattices, &topology, &emissions, &Regularizers::default()).unwrap();
        assert_eq!((pending.losses(), pending.adjoints()), (&expected.losses[..], &expected.adjoints[..]));
        let sums = log_sums(lattices, &topology, &emissions).unwrap();
        for (b, loss) in pending.losses().iter().enumerate() {
            assert!((loss + sums.log_beta[lattices.site_range(b).start]).abs() < 1e-12);
        }
    }
}

#[test]
fn invalid_weights_are_errors_and_keep_the_session_usable() {
    let data = InputData::new();
    for (name, options, inputs, targets) in data.cases() {
        let mut session = Session::new(&options).unwrap();
        let expected = session.forward(inputs, &targets).unwrap().backward(&WEIGHTS).unwrap();
        for weights in [&WEIGHTS[..2], &[1.0; 4], &[]] {
            let actual = session.forward(inputs, &targets).unwrap().backward(weights);
            assert!(matches!(actual, Err(Error::Shape { argument: "weights", .. })), "{name}");
            let actual = session.sum(inputs, &targets, weights);
            assert!(matches!(actual, Err(Error::Shape { argument: "weights", .. })), "{name}");
        }
        for bad in [f64::NAN, f64::INFINITY] {
            let actual = session.forward(inputs, &targets).unwrap().backward(&[1.0, bad, 1.0]);
            assert!(matches!(actual, Err(Error::Weight { utterance: 1, .. })), "{name}: {actual:?}");
            let actual = session.sum(inputs, &targets, &[1.0, bad, 1.0]);
            assert!(matches!(actual, Err(Error::Weight { utterance: 1, .. })), "{name}: {actual:?}");
        }
        assert_eq!(
            session.forward(inputs, &targets).unwrap().backward(&WEIGHTS).unwrap(),
            expected,
            "{name}"
        );
    }
}
