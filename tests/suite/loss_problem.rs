//! Random batches for loss tests, with their composed and dense losses.
//!
//! The composed loss joins joint network, normalizer and lattice; the dense loss is the reference
//! of the crate oracle.

use candle_core::{DType, Device, Tensor, Var};
use oracle::{dense, noise};
use panda::panda_core::Plan;
use panda::rnnt_loss::{
    Activation, Options, SkippedSites, Targets,
    candle::{transducer_loss, transducer_loss_sum},
};
use proptest::prelude::*;

/// Projected encoder and predictor rows, a head, and targets.
///
/// All values are exact in f32.
#[derive(Clone, Debug)]
pub(crate) struct Problem {
    /// T of each utterance.
    pub frames: Vec<usize>,
    pub labels: Vec<Vec<u32>>,
    pub blank: u32,
    /// T of the padded batch.
    pub max_frames: usize,
    /// U + 1 of the padded batch.
    pub positions: usize,
    pub classes: usize,
    /// H
    pub width: usize,
    pub activation: Activation,
    /// `[B, T, H]`
    pub encoded: Vec<f64>,
    /// `[B, U+1, H]`
    pub predicted: Vec<f64>,
    /// `[C, H]`
    pub head_weight: Vec<f64>,
    /// `[C]`
    pub head_bias: Vec<f64>,
    /// Factors of the losses in the sum that is differentiated.
    pub weights: Vec<f64>,
}

/// Losses of utterances, and gradients as in [`GRADIENT_NAMES`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LossGradients {
    pub losses: Vec<f64>,
    pub gradients: [Vec<f64>; 4],
}

/// Names of the gradients: of frame rows, of label rows, and of the head.
pub(crate) const GRADIENT_NAMES: [&str; 4] = ["frames", "labels", "weight", "bias"];

impl Problem {
    /// Draws values and lengths; the first utterance fills the padded shape.
    ///
    /// `scale` is the standard deviation of weight and bias of the head.
    pub(crate) fn draw(
        seed: u64,
        batch: usize,
        max_frames: usize,
        max_labels: usize,
        classes: usize,
        width: usize,
        scale: f64,
    ) -> Self {
        let draw_integers = |purpose: u64, below: usize| noise::integers(seed, purpose, batch, below as u32);
        let blank = noise::integers(seed, 0, 1, classes as u32)[0];
        let mut frames: Vec<usize> =
            draw_integers(1, max_frames).into_iter().map(|n| n as usize + 1).collect();
        let mut label_counts: Vec<usize> =
            draw_integers(2, max_labels + 1).into_iter().map(|n| n as usize).collect();
        (frames[0], label_counts[0]) = (max_frames, max_labels);
        let labels = (100..)
            .zip(label_counts)
            .map(|(purpose, count)| noise::labels(seed, purpose, count, classes as u32, blank))
            .collect();
        // Values exact in f32, so that both types get the same problem.
        let values = |purpose: u64, count: usize, scale: f64| -> Vec<f64> {
            noise::normal(seed, purpose, count, scale).into_iter().map(|x| f64::from(x as f32)).collect()
        };
        Self {
            frames,
            labels,
            blank,
            max_frames,
            positions: max_labels + 1,
            classes,
            width,
            activation: Activation::Tanh,
            encoded: values(3, batch * max_frames * width, 1.0),
            predicted: values(4, batch * (max_labels + 1) * width, 1.0),
            head_weight: values(5, classes * width, scale),
            head_bias: values(6, classes, scale),
            weights: values(7, batch, 1.0),
        }
    }

    /// Returns the number of utterances.
    pub(crate) fn batch(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn targets(&self) -> Targets {
        Targets::new(self.blank, self.frames.clone(), self.labels.clone()).unwrap()
    }

    pub(crate) fn options(&self) -> Options {
        Options { activation: self.activation, ..Options::default() }
    }

    /// Frame rows, label rows, head weight and head bias as variables.
    pub(crate) fn vars(&self, dtype: DType) -> [Var; 4] {
        let (batch, width) = (self.batch(), self.width);
        let var = |values: &[f64], shape: &[usize]| {
            let tensor = Tensor::from_slice(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
            Var::from_tensor(&tensor).unwrap()
        };
        [
            var(&self.encoded, &[batch, self.max_frames, width]),
            var(&self.predicted, &[batch, self.positions, width]),
            var(&self.head_weight, &[self.classes, width]),
            var(&self.head_bias, &[self.classes]),
        ]
    }

    /// The composed loss.
    pub(crate) fn composed_loss(&self, dtype: DType, options: &Options) -> LossGradients {
        let vars = self.vars(dtype);
        let [encoded, predicted, weight, bias] = &vars;
        self.differentiate(
            &transducer_loss(encoded, predicted, weight, bias, &self.targets(), options).unwrap(),
            &vars,
        )
    }

    /// Returns the smallest budget that the errors of the loss state.
    ///
    /// The maximum over separate losses and their sum; 0 if neither function fails.
    pub(crate) fn required_budget(&self, dtype: DType, options: &Options) -> usize {
        let vars = self.vars(dtype);
        let [encoded, predicted, weight, bias] = &vars;
        let separate = transducer_loss(encoded, predicted, weight, bias, &self.targets(), options).err();
        let sum =
            transducer_loss_sum(encoded, predicted, weight, bias, &self.targets(), options, &self.weights)
                .err();
        let required = |error| match error {
            panda::rnnt_loss::Error::Budget { smallest, .. } => smallest,
            other => panic!("{other}"),
        };
        separate.into_iter().chain(sum).map(required).max().unwrap_or(0)
    }

    /// The composed loss in sample-wise mode: gradients are computed with the losses.
    pub(crate) fn sample_wise(&self, dtype: DType, options: &Options) -> (LossGradients, SkippedSites) {
        let vars = self.vars(dtype);
        let [encoded, predicted, weight, bias] = &vars;
        let out =
            transducer_loss_sum(encoded, predicted, weight, bias, &self.targets(), options, &self.weights)
                .unwrap();
        let gradients = out.sum.backward().unwrap();
        let gradients =
            [0, 1, 2, 3].map(|i| tensor_values(gradients.get(&vars[i]).expect(GRADIENT_NAMES[i])));
        let weighted_sum: f64 =
            out.losses.iter().zip(&self.weights).map(|(loss, weight)| loss * weight).sum();
        assert!((out.sum.to_scalar::<f64>().unwrap() - weighted_sum).abs() <= 1e-12 * weighted_sum.abs());
        (LossGradients { losses: out.losses, gradients }, out.skipped)
    }

    /// Dense scores of all sites, differentiable.
    pub(crate) fn logits(&self, [encoded, predicted, weight, bias]: &[Var; 4]) -> Tensor {
        dense::joint_logits(encoded, predicted, weight, bias, self.activation).unwrap()
    }

    /// The dense loss by candle operations, in f64.
    pub(crate) fn dense(&self, fastemit: f64) -> LossGradients {
        let vars = self.vars(DType::F64);
        let logits = self.logits(&vars);
        let loss = dense::transducer_loss_fastemit(&logits, &self.frames, &self.labels, self.blank, fastemit)
            .unwrap();
        self.differentiate(&loss, &vars)
    }

    /// Differentiates `Σ_b weights[b] loss[b]`.
    pub(crate) fn differentiate(&self, loss: &Tensor, vars: &[Var; 4]) -> LossGradients {
        let weights = Tensor::new(self.weights.as_slice(), &Device::Cpu).unwrap();
        let gradients = (loss * weights).unwrap().sum_all().unwrap().backward().unwrap();
        LossGradients {
            losses: loss.to_vec1().unwrap(),
            gradients: [0, 1, 2, 3].map(|i| tensor_values(gradients.get(&vars[i]).expect(GRADIENT_NAMES[i]))),
        }
    }
}

/// The values of a tensor in f64.
pub(crate) fn tensor_values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Ragged batches with random blank and number of classes.
pub(crate) fn problems() -> impl Strategy<Value = Problem> {
    let shape = (1_usize..5, 1_usize..9, 0_usize..6, 2_usize..45, 1_usize..9);
    (shape, any::<u64>(), 0.1..4.0_f64, any::<bool>()).prop_map(
        |((batch, max_frames, max_labels, classes, width), seed, scale, relu)| {
            let mut problem = Problem::draw(seed, batch, max_frames, max_labels, classes, width, scale);
            if relu {
                problem.activation = Activation::Relu;
            }
            problem
        },
    )
}

/// Draws plans of the normalizer with several small tiles and waves.
///
/// A tile is a range of classes, a wave a range of lattice nodes; the last ones may be incomplete.
pub(crate) fn plans() -> impl Strategy<Value = Plan<f32>> {
    (1_usize..20, 1_usize..9, 1_usize..17, 1_usize..5, 0_usize..60).prop_map(
        |(wave_sites, block_sites, tile_classes, tiles, saved_scores)| {
            // The hidden rows of some sites are kept as well.
            Plan {
                saved_hidden: saved_scores / 2,
                ..Plan::custom(wave_sites, block_sites, tile_classes, tiles, saved_scores)
            }
        },
    )
}
