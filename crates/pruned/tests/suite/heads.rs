//! The pruned first pass over linear layers (`Heads`) compared with matrices.
//!
//! Gradients are compared with the chain rule in plain loops.
use kernels::Real;
use oracle::{compare::assert_close, noise};
use pruned::{Batch, Error, Heads, HeadsGradient, Linear, Matrices, Options, Unigram, first_pass};

use crate::plain::Problem;

/// A linear layer and its inputs.
struct Layer<F> {
    /// *rows x H*
    rows: Vec<F>,
    /// *C x H*
    weight: Vec<F>,
    bias: Option<Vec<F>>,
    /// H
    hidden: usize,
}

/// Layers of frames and labels, and the batch that they score.
struct Layers {
    /// Frames, then labels.
    sides: [Layer<f64>; 2],
    classes: usize,
    batch: Batch,
    options: Options,
}

/// Creates random layers for three utterances of different lengths.
fn random_layers(seed: u64, classes: usize, options: Options, has_bias: bool) -> Layers {
    let shapes = [(6, 3), (140, 5), (1, 0)];
    let problem = Problem::random(seed, &shapes, classes, 1.0, options.clone());
    let rows = [shapes.len() * problem.max_frames, shapes.len() * problem.positions];
    let side = |i: usize, hidden: usize| {
        let value = |purpose: u64, count: usize, scale: f64| {
            noise::normal(seed, 100 + 10 * i as u64 + purpose, count, scale)
        };
        let bias = has_bias.then(|| value(3, classes, 0.5));
        let (rows, weight) = (value(1, rows[i] * hidden, 1.0), value(2, classes * hidden, 1.5));
        Layer { rows, weight, bias, hidden }
    };
    Layers { sides: [side(0, 5), side(1, 3)], classes, batch: problem.batch(), options }
}

impl Layers {
    /// Losses and gradients of `Heads` over the layers, in the type `F`.
    fn run<F: Real>(&self) -> (Vec<f64>, HeadsGradient<F>) {
        let cast = |v: &[f64]| v.iter().map(|&v| F::from_f64(v)).collect::<Vec<F>>();
        let sides = self.sides.each_ref().map(|side| Layer {
            rows: cast(&side.rows),
            weight: cast(&side.weight),
            bias: side.bias.as_deref().map(cast),
            hidden: side.hidden,
        });
        let [am, lm] = sides.each_ref().map(|Layer { rows, weight, bias, hidden }| {
            Linear::new(rows, weight, bias.as_deref(), *hidden).unwrap()
        });
        let heads = Heads::new(am, lm).unwrap();
        let pass = first_pass(&heads, &self.batch, &self.options).unwrap();
        let gradient = pass.backward(&heads, &[1.0, -0.5, 2.0]).unwrap();
        (pass.losses, gradient)
    }

    /// Expected losses and, for each side, gradients of rows, weight and bias.
    fn expected(&self) -> (Vec<f64>, [[Vec<f64>; 3]; 2]) {
        let classes = self.classes;
        let scores = self.sides.each_ref().map(|Layer { rows, weight, bias, hidden }| {
            let value = |row: &[f64], c: usize| {
                let product: f64 = row.iter().zip(&weight[c * hidden..]).map(|(x, w)| x * w).sum();
                product + bias.as_ref().map_or(0.0, |bias| bias[c])
            };
            rows.chunks(*hidden)
                .flat_map(|row| (0..classes).map(move |c| value(row, c)))
                .collect::<Vec<f64>>()
        });
        let source = Matrices::new(&scores[0], &scores[1], classes).unwrap();
        let pass = first_pass(&source, &self.batch, &self.options).unwrap();
        let gradient = pass.backward(&source, &[1.0, -0.5, 2.0]).unwrap();
        let layer_gradients = |side: usize, g: &[f64]| {
            let Layer { rows, weight, hidden, .. } = &self.sides[side];
            let mut out = [vec![0.0; rows.len()], vec![0.0; weight.len()], vec![0.0; classes]];
            for (r, g) in g.chunks(classes).enumerate() {
                for (c, &g) in g.iter().enumerate() {
                    for k in 0..*hidden {
                        out[0][r * hidden + k] += g * weight[c * hidden + k];
                        out[1][c * hidden + k] += g * rows[r * hidden + k];
                    }
                    out[2][c] += g;
                }
            }
            out
        };
        (pass.losses, [layer_gradients(0, &gradient.am), layer_gradients(1, &gradient.lm)])
    }

    fn check<F: Real>(&self, tolerance: f64) {
        let ((losses, actual), (expected_losses, expected)) = (self.run::<F>(), self.expected());
        for (actual, expected) in losses.iter().zip(&expected_losses) {
            assert!((actual - expected).abs() <= tolerance * (1.0 + expected.abs()), "{actual} {expected}");
        }
        for (side, (actual, expected)) in [actual.am, actual.lm].into_iter().zip(expected).enumerate() {
            for (i, (actual, expected)) in
                [actual.rows, actual.weight, actual.bias].into_iter().zip(expected).enumerate()
            {
                let actual: Vec<f64> = actual.into_iter().map(F::to_f64).collect();
                assert_close(&format!("side {side}, gradient {i}"), &actual, &expected, tolerance * 10.0);
            }
        }
    }
}

#[test]
fn heads_equal_matrices_of_their_scores() {
    let plain = Options::default();
    let smooth = Options { lm_only_scale: 0.2, am_only_scale: 0.1, ..plain.clone() };
    for (seed, classes, options, has_bias) in [
        (1, 7, plain.clone(), true),
        (2, 2100, plain, false),
        (3, 1500, smooth.clone(), true),
        (
            4,
            300,
            Options { topology: rnnt_dp::Topology::constrained(), delay_penalty: 0.1, ..smooth.clone() },
            true,
        ),
        (5, 1030, Options { unigram: Unigram::AllRows, ..smooth }, true),
    ] {
        let layers = random_layers(seed, classes, options, has_bias);
        layers.check::<f64>(1e-11);
        layers.check::<f32>(2e-5);
    }
}

#[test]
fn masked_classes_get_no_gradient() {
    let mut layers = random_layers(6, 40, Options { lm_only_scale: 0.2, ..Options::default() }, true);
    let blank = layers.batch.blank();
    let is_used = |c: u32| c == blank || (0..3).any(|b| layers.batch.labels(b).contains(&c));
    let masked = (0..40).find(|&c| !is_used(c)).unwrap() as usize;
    layers.sides[0].bias.as_mut().unwrap()[masked] = f64::NEG_INFINITY;
    let (losses, gradient) = layers.run::<f32>();
    assert!(losses.iter().all(|loss| loss.is_finite()));
    assert!(gradient.am.weight[masked * 5..][..5].iter().all(|g| *g == 0.0));
    assert!(gradient.am.bias[masked] == 0.0 && gradient.am.bias.iter().all(|g| g.is_finite()));
    layers.check::<f64>(1e-11);
}

#[test]
fn mistakes_are_named() {
    let (x, w) = ([1.0f32; 6], [1.0f32; 12]);
    let error = |rows: &[f32], weight: &[f32], bias: Option<&[f32]>, hidden| {
        Linear::new(rows, weight, bias, hidden).unwrap_err()
    };
    assert_eq!(error(&x, &w, None, 0), Error::Zero { argument: "hidden" });
    assert_eq!(error(&x, &[], None, 3), Error::Zero { argument: "classes" });
    assert_eq!(error(&x[1..], &w, None, 3), Error::Length { argument: "rows", expected: 3, found: 5 });
    assert_eq!(error(&x, &w[1..], None, 3), Error::Length { argument: "weight", expected: 9, found: 11 });
    assert_eq!(error(&x, &w, Some(&x), 3), Error::Length { argument: "bias", expected: 4, found: 6 });
    let mut invalid_weight = w;
    invalid_weight[7] = f32::NEG_INFINITY;
    assert!(matches!(error(&x, &invalid_weight, None, 3), Error::Weight { class: 2, .. }));
    let [a, b] = [3, 2].map(|hidden| Linear::new(&x, &w, None, hidden).unwrap());
    assert_eq!(Heads::new(a, b).unwrap_err(), Error::Classes { frames: 4, labels: 6 });
}
