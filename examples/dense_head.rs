//! Example: trains a recipe with dense transducer scores, as a custom objective.
//!
//! The scores of all sites and classes are one candle tensor, `[B, T, U+1, C]`.
//!
//! ```sh
//! cargo run --release --example dense_head -- RECIPE RUN [EPOCHS]
//! panda evaluate RUN/last.safetensors MANIFEST
//! ```
use std::path::Path;
use std::sync::atomic::AtomicBool;

use candle_core::Tensor;
use oracle::dense::{joint_logits, low_memory_transducer_loss};
use panda::distributed::ProcessGroup;
use panda::model::{Losses, Model, TrainingPass, linear};
use panda::recognizer::examples::load;
use panda::rnnt_loss::candle::{HeadTensors, HiddenTensors, LossSession, LossSum};
use panda::rnnt_loss::{Activation, Loss, Options, Targets};
use panda::speech::{FrontEnd, Tokenizer, read_manifest};
use panda::training::data::{Batch, TrainingSet, UtteranceStore};
use panda::training::run_folder::RunFolder;
use panda::training::{
    CheckpointMetadata, EpochReport, Learner, Observer, Recipe, Result, StartMode, Trainer,
    TrainingObjective, peak_resident_bytes,
};

/// Transducer losses by candle's operations on scores `[B, T, U+1, C]`.
struct DenseObjective {
    ctc: LossSession,
}

impl TrainingObjective for DenseObjective {
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        batch_size: usize,
        _: u64,
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        // Scores of all sites, and the transducer losses.
        let layer = |name: &str| {
            let parameter = |field: &str| {
                model.parameters().get(&format!("{name}.{field}")).expect("a parameter of the model")
            };
            [parameter("weight").as_tensor(), parameter("bias").as_tensor()]
        };
        let apply = |name: &str, x: &Tensor| {
            let [weight, bias] = layer(name);
            linear(x, weight, bias)
        };
        let (encoded, lengths) = model.encoder().forward(&batch.rows, &batch.lengths, pass.as_deref_mut())?;
        let predictor = model.predictor().expect("a transducer");
        let predicted = predictor.forward(&batch.labels, pass)?;
        let [frame_rows, label_rows] =
            [apply("joint.encoder", &encoded)?, apply("joint.predictor", &predicted)?];
        let [weight, bias] = layer("joint.head");
        let to_candle_error = |error: oracle::Error| candle_core::Error::wrap(error);
        let logits = joint_logits(&frame_rows, &label_rows, weight, bias, Activation::Tanh)
            .map_err(to_candle_error)?;
        let losses = low_memory_transducer_loss(&logits, &lengths, &batch.labels, model.blank())
            .map_err(to_candle_error)?;
        drop(logits);
        let mean = (losses.sum_all()? / batch_size as f64)?.to_dtype(candle_core::DType::F64)?;

        // The auxiliary CTC loss of the encoder output.
        let [weight, bias] = layer("ctc");
        let head = HeadTensors { weight, bias: Some(bias) };
        let targets = Targets::new(model.blank(), lengths, batch.labels.clone())?;
        let weights = vec![1.0 / batch_size as f64; batch.labels.len()];
        let LossSum { sum, losses: ctc, .. } =
            self.ctc.sum(HiddenTensors { hidden: &encoded, head }, &targets, &weights)?;
        let transducer = losses.to_dtype(candle_core::DType::F64)?.to_vec1()?;
        Ok(Losses { transducer, simple: None, mean, ctc: Some((ctc, sum)) })
    }
}

/// Prints loss, time and memory of each epoch.
struct PrintEpochs;

impl Observer for PrintEpochs {
    fn on_epoch(&mut self, report: &EpochReport) {
        let metrics = &report.metrics;
        println!(
            "epoch {}: loss {:.3}, {:.1} s, at most {} MiB resident",
            metrics.epoch,
            metrics.loss,
            metrics.seconds,
            peak_resident_bytes().map_or(0, |bytes| bytes >> 20)
        );
    }
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (recipe, folder) = match &arguments[..] {
        [recipe, folder, ..] => (Path::new(recipe), Path::new(folder)),
        _ => return Err("usage: dense_head RECIPE RUN [EPOCHS]".into()),
    };
    let epochs = arguments.get(2).map(|epochs| epochs.parse()).transpose()?;
    let (recipe, text) = Recipe::read(recipe, epochs)?;
    // Load the training data of the recipe.
    let mut utterances = Vec::new();
    for manifest in &recipe.data.train {
        utterances.extend(read_manifest(manifest)?);
    }
    let texts: Vec<&str> = utterances.iter().map(|utterance| utterance.text.as_str()).collect();
    let tokenizer = Tokenizer::train(recipe.tokens.kind, &texts)?;
    let front_end = FrontEnd::new(&recipe.features)?;
    let stop = AtomicBool::new(false);
    let utterances = UtteranceStore::Memory(load(&utterances, &front_end, Some(&tokenizer), &stop)?);
    let source = TrainingSet::new(&utterances, &recipe, &front_end);

    // Train a model with the dense objective.
    let model = Model::new(&recipe.model_config(), tokenizer.size())?;
    println!("{} parameters, {} classes", model.parameters().count(), model.classes());
    let ctc = LossSession::new(&Options::new(Loss::Ctc))?;
    let learner = Learner::new(model, &recipe.optimizer)?.with_objective(Box::new(DenseObjective { ctc }));
    let folder = RunFolder::new(folder, StartMode::Fresh)?;
    let metadata = CheckpointMetadata { recipe: text, tokenizer: tokenizer.to_json()?, data: None };
    let (run, accumulate) = (&recipe.training.run, recipe.batch.accumulate);
    let mut group = ProcessGroup::single();
    let mut trainer = Trainer::new(learner, run, accumulate, metadata, &folder, None, &mut group)?;
    trainer.fit(&source, &mut |_: &Model, _: &mut ProcessGroup| Ok(None), &mut PrintEpochs, &stop)?;
    Ok(())
}
