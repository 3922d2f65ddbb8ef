//! Tests of `Learner`: gradients, update and restored state of a step.
//!
//! The utterances of the tests have 5, 7, 9 and 11 input rows and 1 to 4 labels.
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use candle_core::{Device, Tensor};
use model::checkpoint::{Checkpoint, Values};
use model::config::JointConfig;
use model::encoders::{EncoderKind, LstmEncoderConfig};
use model::predictors::{PredictorKind, StatelessPredictorConfig};
use model::{Gradients, Model, ModelConfig};
use training::data::{Batch, BatchSource};
use training::optimizer::{AdamW, Optimizer, OptimizerConfig, gradient_norm};
use training::recipe::RunConfig;
use training::run_folder::RunFolder;
use training::{CheckpointMetadata, Error, Learner, LossSums, Result, StartMode, StepPosition, Trainer};

fn model_config() -> ModelConfig {
    let encoder = LstmEncoderConfig { layers: 1, hidden: 8, dropout: 0.2, ..LstmEncoderConfig::default() };
    let predictor = StatelessPredictorConfig { embedding: 6, context: 2, dropout: 0.1 };
    let mut config = ModelConfig {
        predictor: Some(PredictorKind::Stateless(predictor)),
        ..ModelConfig::new(EncoderKind::Lstm(encoder), JointConfig { width: 9, dropout: 0.3 })
    };
    config.input.features.mels = 5;
    config.input.rows.stack = 2;
    config.terms.ctc_weight = 0.3;
    config
}

fn optimizer_config() -> OptimizerConfig {
    toml::from_str("learning_rate = 1e-2\nema = 0.9\ndecay = \"hold\"").unwrap()
}

fn new_learner() -> Learner {
    Learner::new(Model::new(&model_config(), 4).unwrap(), &optimizer_config()).unwrap()
}

/// Width D of the input rows: `mels` times `stack`.
const INPUT_WIDTH: usize = 10;

/// A batch of these utterances of a pseudorandom set.
fn batch(range: std::ops::Range<usize>) -> Batch {
    let length = |b: usize| 5 + 2 * b;
    let lengths: Vec<usize> = range.clone().map(length).collect();
    let longest = *lengths.iter().max().unwrap();
    let value = |b: usize, t: usize, d: usize| {
        if t < length(b) { ((1 + b) as f32 * 0.7 + t as f32 * 0.9 + d as f32).sin() } else { 0.0 }
    };
    let utterance_values =
        |b: usize| (0..longest * INPUT_WIDTH).map(move |i| value(b, i / INPUT_WIDTH, i % INPUT_WIDTH));
    let rows = Tensor::from_iter(range.clone().flat_map(utterance_values), &Device::Cpu).unwrap();
    let rows = rows.reshape((range.len(), longest, INPUT_WIDTH)).unwrap();
    let labels = range.clone().map(|b| (0..1 + b as u32).map(|u| (u + b as u32) % 4).collect()).collect();
    Batch { indices: range.map(|b| b as u64).collect(), ..Batch::new(rows, lengths, labels) }
}

const START: StepPosition = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };

/// Gradients of four utterances, in batches from cut to cut.
fn step_gradients(learner: &Learner, cuts: &[usize]) -> (Gradients, LossSums) {
    let mut batches = cuts.windows(2).map(|cut| Ok(batch(cut[0]..cut[1])));
    learner.gradients(&mut batches, 4, &START).unwrap()
}

fn flatten(gradients: &Gradients) -> Vec<f32> {
    gradients.values().flat_map(|g| g.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
}

fn expect_close(values: &[f32], expected: &[f32]) {
    let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert_eq!(values.len(), expected.len());
    assert!(
        values.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 2e-6 * largest),
        "{values:?}\n{expected:?}"
    );
}

#[test]
fn a_step_of_several_batches_is_the_step_of_all_their_utterances() {
    let learner = new_learner();
    let (single_batch, expected_sums) = step_gradients(&learner, &[0, 4]);
    assert_eq!((expected_sums.utterances, expected_sums.skipped), (4, 0));
    let expected_norm = gradient_norm(&single_batch).unwrap();
    for cuts in [&[0, 2, 4][..], &[0, 1, 4], &[0, 1, 2, 3, 4]] {
        let (several_batches, sums) = step_gradients(&learner, cuts);
        expect_close(&flatten(&several_batches), &flatten(&single_batch));
        assert!((gradient_norm(&several_batches).unwrap() / expected_norm - 1.0).abs() < 1e-6);
        assert_eq!(sums.utterances, 4);
        assert!(
            (sums.loss / expected_sums.loss - 1.0).abs() < 1e-6
                && (sums.ctc_loss / expected_sums.ctc_loss - 1.0).abs() < 1e-6
        );
    }
    // Half of the utterances have other gradients.
    let (half, _) = step_gradients(&learner, &[0, 2]);
    assert!(flatten(&half).iter().zip(flatten(&single_batch)).any(|(a, b)| (a - b).abs() > 1e-3));
}

#[test]
fn a_step_updates_the_weights_and_their_average() {
    let mut learner = new_learner();
    let before = learner.model().parameters().values().unwrap();
    let (step, _) = step_gradients(&learner, &[0, 4]);
    let norm = learner.apply(&step, &START).unwrap();
    assert_eq!(norm, gradient_norm(&step).unwrap());
    let after = learner.model().parameters().values().unwrap();
    let average = learner.average().unwrap();
    for (name, after) in &after {
        let changes = after.iter().zip(&before[name]).zip(&average[name]);
        // The first decay is 1/10.
        assert!(changes.clone().all(|((w, old), a)| (a - (0.1 * old + 0.9 * w)).abs() < 1e-6), "{name}");
        assert!(name.starts_with("ctc") || changes.clone().any(|((w, old), _)| w != old), "{name}");
    }
    // A gradient with NaN changes nothing.
    let mut invalid = step.clone();
    for gradient in invalid.values_mut() {
        *gradient = (&*gradient * f64::NAN).unwrap();
    }
    assert!(learner.apply(&invalid, &START).unwrap().is_nan());
    assert_eq!(learner.model().parameters().values().unwrap(), after);
}

type OptimizerState = BTreeMap<String, Values>;

/// The state of the optimizer, as in a checkpoint.
fn owned_state(learner: &Learner) -> OptimizerState {
    learner.optimizer_state().into_iter().map(|(kind, values)| (kind, values.into_owned())).collect()
}

#[test]
fn a_restored_learner_has_the_same_next_steps() {
    let run = |restore: bool| {
        let mut learner = new_learner();
        for step in 0..4 {
            if restore && step == 2 {
                let weights = learner.model().parameters().values().unwrap();
                let mut restored = new_learner();
                restored.restore(&weights, learner.average(), &owned_state(&learner), 2).unwrap();
                learner = restored;
            }
            let (gradients, _) = step_gradients(&learner, &[0, 4]);
            learner.apply(&gradients, &StepPosition { step, ..START }).unwrap();
        }
        (learner.model().parameters().values().unwrap(), learner.average().cloned())
    };
    assert_eq!(run(true), run(false));
    let mut learner = new_learner();
    let weights = learner.model().parameters().values().unwrap();
    let error = learner.restore(&weights, None, &owned_state(&new_learner()), 0).unwrap_err();
    assert!(matches!(error, Error::Model(model::Error::Shape { .. })), "{error}");
}

/// Gradient descent that counts its steps: a custom optimizer.
struct CountingDescent {
    num_steps: f32,
}

impl Optimizer for CountingDescent {
    fn step(&mut self, parameters: &model::Parameters, gradients: &Gradients, rate: f64) -> Result<f64> {
        for (name, variable) in parameters.iter() {
            if let Some(gradient) = gradients.get(name) {
                variable.set(&(variable.as_tensor() - (gradient * rate)?)?)?;
            }
        }
        self.num_steps += 1.0;
        gradient_norm(gradients)
    }

    fn state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        let count: Values = [("count".to_owned(), vec![self.num_steps])].into();
        [("steps".to_owned(), Cow::Owned(count))].into()
    }

    fn restore(&mut self, state: &OptimizerState, _: u64) -> Result<()> {
        self.num_steps = state["steps"]["count"][0];
        Ok(())
    }
}

#[test]
fn a_custom_optimizer_replaces_the_built_in_ones() {
    let model = || Model::new(&model_config(), 4).unwrap();
    let mut learner =
        Learner::with_optimizer(model(), &optimizer_config(), Box::new(CountingDescent { num_steps: 0.0 }))
            .unwrap();
    let (gradients, _) = step_gradients(&learner, &[0, 4]);
    let weights = learner.model().parameters().values().unwrap();
    learner.apply(&gradients, &START).unwrap();
    let name = "joint.head.bias";
    let gradient: Vec<f32> = gradients.get(name).unwrap().to_vec1().unwrap();
    let after = &learner.model().parameters().values().unwrap()[name];
    for ((new, old), g) in after.iter().zip(&weights[name]).zip(&gradient) {
        // The learning rate is constant.
        assert!((new - (old - 1e-2 * g)).abs() < 1e-6);
    }
    assert_eq!(learner.optimizer_state()["steps"]["count"], [1.0]);
    // The built-in optimizers have the same interface.
    let adamw: Box<dyn Optimizer> = Box::new(AdamW::new(model().parameters(), &optimizer_config()));
    assert!(Learner::with_optimizer(model(), &optimizer_config(), adamw).is_ok());
}

#[test]
fn the_state_of_a_custom_optimizer_is_in_the_checkpoint() {
    let parent = tempfile::tempdir().unwrap();
    /// The same four utterances in both steps of an epoch.
    struct ConstantSource;
    impl BatchSource for ConstantSource {
        fn plan(&self, _: u64) -> Result<Vec<Vec<usize>>> {
            Ok(vec![vec![0, 1, 2, 3]; 2])
        }

        fn batch(&self, _: u64, _: &[usize]) -> Result<Batch> {
            Ok(batch(0..4))
        }
    }
    let run = |epochs: u64, name: &str| {
        let path = parent.path().join(name);
        let folder = RunFolder::new(&path, StartMode::Resume).unwrap();
        let resumed =
            folder.last_checkpoint().exists().then(|| Checkpoint::read(&folder.last_checkpoint()).unwrap());
        let model = Model::new(&model_config(), 4).unwrap();
        let learner =
            Learner::with_optimizer(model, &optimizer_config(), Box::new(CountingDescent { num_steps: 0.0 }))
                .unwrap();
        let (mut group, run) = (distributed::ProcessGroup::single(), RunConfig::new(epochs));
        let (resumed, metadata) = (resumed.as_ref(), CheckpointMetadata::default());
        let mut trainer = Trainer::new(learner, &run, 1, metadata, &folder, resumed, &mut group).unwrap();
        let stop = AtomicBool::new(false);
        assert!(trainer.fit(&ConstantSource, &mut |_, _| Ok(None), &mut (), &stop).unwrap());
        Checkpoint::read(&folder.last_checkpoint()).unwrap()
    };
    let uninterrupted = run(2, "whole");
    assert_eq!(uninterrupted.optimizer_state["steps"]["count"], [4.0]);
    assert_eq!(run(1, "parts").optimizer_state["steps"]["count"], [2.0]);
    assert!(run(2, "parts").weights == uninterrupted.weights);
}
