//! The three functions of a step.
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
use training::optimizer::OptimizerConfig;
use training::optimizer::{AdamW, Optimizer, norm};
use training::recipe::RunConfig;
use training::run_folder::RunFolder;
use training::{CheckpointMetadata, Error, Learner, LossSums, Result, StartMode, StepPosition, Trainer};

fn config() -> ModelConfig {
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

fn optimizer() -> OptimizerConfig {
    toml::from_str("learning_rate = 1e-2\nema = 0.9\ndecay = \"hold\"").unwrap()
}

fn learner() -> Learner {
    Learner::new(Model::new(&config(), 4).unwrap(), &optimizer()).unwrap()
}

/// Utterances `from ..` of a made-up set.
fn batch(which: std::ops::Range<usize>) -> Batch {
    let lengths: Vec<usize> = which.clone().map(|b| 5 + 2 * b).collect();
    let frames = *lengths.iter().max().unwrap();
    let value = |b: usize, t: usize, d: usize| {
        if t < 5 + 2 * b { ((1 + b) as f32 * 0.7 + t as f32 * 0.9 + d as f32).sin() } else { 0.0 }
    };
    let rows = which.clone().flat_map(|b| (0..frames * 10).map(move |i| value(b, i / 10, i % 10)));
    let rows = Tensor::from_iter(rows, &Device::Cpu).unwrap().reshape((which.len(), frames, 10)).unwrap();
    let labels = which.clone().map(|b| (0..1 + b as u32).map(|u| (u + b as u32) % 4).collect()).collect();
    Batch { numbers: which.map(|b| b as u64).collect(), ..Batch::new(rows, lengths, labels) }
}

const START: StepPosition = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };

fn gradients(learner: &Learner, cuts: &[usize]) -> (Gradients, LossSums) {
    let mut batches = cuts.windows(2).map(|cut| Ok(batch(cut[0]..cut[1])));
    learner.gradients(&mut batches, 4, &START).unwrap()
}

fn values(gradients: &Gradients) -> Vec<f32> {
    gradients.values().flat_map(|g| g.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
}

fn close(a: &[f32], b: &[f32]) {
    let largest = b.iter().fold(0f32, |m, x| m.max(x.abs()));
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 2e-6 * largest), "{a:?}\n{b:?}");
}

#[test]
fn a_step_of_several_batches_is_the_step_of_all_their_utterances() {
    let learner = learner();
    let (whole, tally) = gradients(&learner, &[0, 4]);
    assert_eq!((tally.utterances, tally.skipped), (4, 0));
    for cuts in [&[0, 2, 4][..], &[0, 1, 4], &[0, 1, 2, 3, 4]] {
        let (parts, sums) = gradients(&learner, cuts);
        close(&values(&parts), &values(&whole));
        assert!((norm(&parts).unwrap() / norm(&whole).unwrap() - 1.0).abs() < 1e-6);
        assert_eq!(sums.utterances, 4);
        assert!(
            (sums.loss / tally.loss - 1.0).abs() < 1e-6
                && (sums.ctc_loss / tally.ctc_loss - 1.0).abs() < 1e-6
        );
    }
    // Half of the utterances are not the whole.
    let (half, _) = gradients(&learner, &[0, 2]);
    assert!(values(&half).iter().zip(values(&whole)).any(|(a, b)| (a - b).abs() > 1e-3));
}

#[test]
fn applying_moves_the_weights_and_their_average() {
    let mut learner = learner();
    let before = learner.model().parameters().values().unwrap();
    let (step, _) = gradients(&learner, &[0, 4]);
    let found = learner.apply(&step, &START).unwrap();
    assert_eq!(found, norm(&step).unwrap());
    let after = learner.model().parameters().values().unwrap();
    let average = learner.average().unwrap();
    for (name, after) in &after {
        let moved = after.iter().zip(&before[name]).zip(&average[name]);
        // The first decay is 1/10.
        assert!(moved.clone().all(|((w, old), a)| (a - (0.1 * old + 0.9 * w)).abs() < 1e-6), "{name}");
        assert!(name.starts_with("ctc") || moved.clone().any(|((w, old), _)| w != old), "{name}");
    }
    // A gradient that is no number leaves everything as it is.
    let mut broken = step.clone();
    for gradient in broken.values_mut() {
        *gradient = (&*gradient * f64::NAN).unwrap();
    }
    assert!(learner.apply(&broken, &START).unwrap().is_nan());
    assert_eq!(learner.model().parameters().values().unwrap(), after);
}

/// What the optimiser remembers, as a checkpoint would hold it.
fn owned(learner: &Learner) -> Memory {
    learner.optimizer_state().into_iter().map(|(kind, values)| (kind, values.into_owned())).collect()
}

type Memory = BTreeMap<String, Values>;

#[test]
fn a_restored_learner_goes_on_as_if_nothing_had_happened() {
    let run = |restore: bool| {
        let mut learner = learner();
        for step in 0..4 {
            if restore && step == 2 {
                let weights = learner.model().parameters().values().unwrap();
                let mut other = self::learner();
                other.restore(&weights, learner.average(), &owned(&learner), 2).unwrap();
                learner = other;
            }
            let (step_gradients, _) = gradients(&learner, &[0, 4]);
            learner.apply(&step_gradients, &StepPosition { step, ..START }).unwrap();
        }
        (learner.model().parameters().values().unwrap(), learner.average().cloned())
    };
    assert_eq!(run(true), run(false));
    let mut learner = learner();
    let weights = learner.model().parameters().values().unwrap();
    let error = learner.restore(&weights, None, &owned(&self::learner()), 0).unwrap_err();
    assert!(matches!(error, Error::Model(model::Error::Shape { .. })), "{error}");
}

/// Gradient descent that counts its steps: an optimiser of one's own.
struct Descent(f32);

impl Optimizer for Descent {
    fn step(&mut self, parameters: &model::Parameters, gradients: &Gradients, rate: f64) -> Result<f64> {
        for (name, variable) in parameters.iter() {
            if let Some(gradient) = gradients.get(name) {
                variable.set(&(variable.as_tensor() - (gradient * rate)?)?)?;
            }
        }
        self.0 += 1.0;
        norm(gradients)
    }

    fn state(&self) -> BTreeMap<String, Cow<'_, Values>> {
        let count: Values = [("count".to_owned(), vec![self.0])].into();
        [("steps".to_owned(), Cow::Owned(count))].into()
    }

    fn restore(&mut self, memory: &Memory, _: u64) -> Result<()> {
        self.0 = memory["steps"]["count"][0];
        Ok(())
    }
}

#[test]
fn an_optimiser_of_ones_own_takes_the_place_of_ours() {
    let model = || Model::new(&config(), 4).unwrap();
    let mut own = Learner::with_optimizer(model(), &optimizer(), Box::new(Descent(0.0))).unwrap();
    let (before, _) = gradients(&own, &[0, 4]);
    let weights = own.model().parameters().values().unwrap();
    own.apply(&before, &START).unwrap();
    let name = "joint.head.bias";
    let gradient: Vec<f32> = before.get(name).unwrap().to_vec1().unwrap();
    let after = &own.model().parameters().values().unwrap()[name];
    for ((new, old), g) in after.iter().zip(&weights[name]).zip(&gradient) {
        assert!((new - (old - 1e-2 * g)).abs() < 1e-6);
    }
    assert_eq!(own.optimizer_state()["steps"]["count"], [1.0]);
    // Ours is one such object.
    let ours: Box<dyn Optimizer> = Box::new(AdamW::new(model().parameters(), &optimizer()));
    assert!(Learner::with_optimizer(model(), &optimizer(), ours).is_ok());
}

#[test]
fn what_an_optimiser_of_ones_own_remembers_is_in_the_checkpoint() {
    let place = tempfile::tempdir().unwrap();
    let source = |_| Ok(batch(0..4));
    struct Same<F>(F);
    impl<F: Fn(u64) -> Result<Batch> + Sync> BatchSource for Same<F> {
        fn plan(&self, _: u64) -> Result<Vec<Vec<usize>>> {
            Ok(vec![vec![0, 1, 2, 3]; 2])
        }

        fn batch(&self, epoch: u64, _: &[usize]) -> Result<Batch> {
            (self.0)(epoch)
        }
    }
    let run = |epochs: u64, name: &str| {
        let path = place.path().join(name);
        let folder = RunFolder::new(&path, StartMode::Resume).unwrap();
        let resumed = folder.last().exists().then(|| Checkpoint::read(&folder.last()).unwrap());
        let model = Model::new(&config(), 4).unwrap();
        let learner = Learner::with_optimizer(model, &optimizer(), Box::new(Descent(0.0))).unwrap();
        let (mut group, run) = (distributed::ProcessGroup::single(), RunConfig::new(epochs));
        let (resumed, metadata) = (resumed.as_ref(), CheckpointMetadata::default());
        let mut trainer = Trainer::new(learner, &run, 1, metadata, &folder, resumed, &mut group).unwrap();
        let stop = AtomicBool::new(false);
        assert!(trainer.fit(&Same(source), &mut |_, _| Ok(None), &mut (), &stop).unwrap());
        Checkpoint::read(&folder.last()).unwrap()
    };
    let whole = run(2, "whole");
    assert_eq!(whole.optimizer_state["steps"]["count"], [4.0]);
    assert_eq!(run(1, "parts").optimizer_state["steps"]["count"], [2.0]);
    assert!(run(2, "parts").weights == whole.weights);
}
