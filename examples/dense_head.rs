//! The usual way, to compare with: a recipe trained with all scores of the joint in one candle tensor, by an objective of one's own.
//!
//! `cargo run --release --example dense_head -- RECIPE RUN [EPOCHS]`, then `panda evaluate RUN/last.safetensors MANIFEST`
use std::path::Path;
use std::sync::atomic::AtomicBool;

use candle_core::Tensor;
use oracle::dense::{joint_logits, low_memory_transducer_loss};
use panda::distributed::ProcessGroup;
use panda::model::{Losses, Model, TrainingPass, linear};
use panda::recognizer::examples::load;
use panda::rnnt_loss::candle::{HeadTensors, LossSession, LossSum, RowTensors};
use panda::rnnt_loss::{Activation, Loss, Options, Targets};
use panda::speech::{FrontEnd, Tokenizer, read_manifest};
use panda::training::data::{Batch, TrainingSet, UtteranceStore};
use panda::training::run_folder::RunFolder;
use panda::training::{
    CheckpointMetadata, EpochReport, Learner, Observer, Recipe, Result, Start, Trainer, TrainingObjective,
    peak_resident,
};

/// Regular transducer losses by candle's own operations on B x T x (U + 1) x C scores.
struct Dense {
    ctc: LossSession,
}

impl TrainingObjective for Dense {
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        of: usize,
        _: u64,
        mut pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        let layer = |name: &str| {
            let part = |what: &str| {
                model.parameters().get(&format!("{name}.{what}")).expect("a parameter of the model")
            };
            [part("weight").as_tensor(), part("bias").as_tensor()]
        };
        let apply = |name: &str, x: &Tensor| {
            let [weight, bias] = layer(name);
            linear(x, weight, bias)
        };
        let (encoded, lengths) = model.encoder().forward(&batch.rows, &batch.lengths, pass.as_deref_mut())?;
        let predictor = model.predictor().expect("a transducer");
        let predicted = predictor.forward(&batch.labels, pass)?;
        let [frames, rows] = [apply("joint.encoder", &encoded)?, apply("joint.predictor", &predicted)?];
        let [weight, bias] = layer("joint.head");
        let foreign = |error: oracle::Error| candle_core::Error::wrap(error);
        let logits = joint_logits(&frames, &rows, weight, bias, Activation::Tanh).map_err(foreign)?;
        let losses =
            low_memory_transducer_loss(&logits, &lengths, &batch.labels, model.blank()).map_err(foreign)?;
        drop(logits);
        let mean = (losses.sum_all()? / of as f64)?.to_dtype(candle_core::DType::F64)?;

        let [weight, bias] = layer("ctc");
        let head = HeadTensors { weight, bias: Some(bias) };
        let targets = Targets::new(model.blank(), lengths, batch.labels.clone())?;
        let shares = vec![1.0 / of as f64; batch.labels.len()];
        let LossSum { sum, losses: ctc, .. } =
            self.ctc.sum(RowTensors { hidden: &encoded, head }, &targets, &shares)?;
        let transducer = losses.to_dtype(candle_core::DType::F64)?.to_vec1()?;
        Ok(Losses { transducer, simple: None, mean, ctc: Some((ctc, sum)) })
    }
}

struct Print;

impl Observer for Print {
    fn on_epoch(&mut self, report: &EpochReport) {
        let metrics = &report.metrics;
        println!(
            "epoch {}: loss {:.3}, {:.1} s, at most {} MiB resident",
            metrics.epoch,
            metrics.loss,
            metrics.seconds,
            peak_resident().map_or(0, |bytes| bytes >> 20)
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
    let mut utterances = Vec::new();
    for manifest in &recipe.data.train {
        utterances.extend(read_manifest(manifest)?);
    }
    let texts: Vec<&str> = utterances.iter().map(|one| one.text.as_str()).collect();
    let tokenizer = Tokenizer::train(recipe.tokens.kind, &texts)?;
    let front_end = FrontEnd::new(&recipe.features)?;
    let stop = AtomicBool::new(false);
    let store = UtteranceStore::Memory(load(&utterances, &front_end, Some(&tokenizer), &stop)?);
    let source = TrainingSet::new(&store, &recipe, &front_end);

    let model = Model::new(&recipe.model(), tokenizer.size())?;
    println!("{} parameters, {} classes", model.parameters().count(), model.classes());
    let ctc = LossSession::new(&Options::of(Loss::Ctc))?;
    let learner = Learner::new(model, &recipe.optimizer)?.with_objective(Box::new(Dense { ctc }));
    let folder = RunFolder::new(folder, Start::Fresh)?;
    let about = CheckpointMetadata { recipe: text, tokenizer: tokenizer.to_json()?, data: None };
    let run = (&recipe.training.run, recipe.batch.accumulate);
    let mut group = ProcessGroup::alone();
    let mut trainer = Trainer::new(learner, run, about, (&folder, None), &mut group)?;
    trainer.fit(&source, &mut |_: &Model, _: &mut ProcessGroup| Ok(None), &mut Print, &stop)?;
    Ok(())
}
