//! `train`: runs a recipe from its files to checkpoints and final evaluation.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use distributed::ProcessGroup;

use crate::bad_item_log::BadItemLog;
use crate::data::{BatchSource, EncoderCacheConfig, LargestUtterance, TrainingSet, UtteranceStore};
use crate::encoder_pass::EncoderPass;
use crate::learner::Learner;
use crate::loading::{LoadError, RunInputs, RunOrigin};
use crate::observer::{Observer, RunReport};
use crate::optimizer::RateFactors;
use crate::rank_differences;
use crate::recipe::{CheckpointSelection, DataConfig, Recipe, RecipeOverrides, check_frozen_encoder};
use crate::run_folder::{RunFolder, StartMode};
use crate::run_plan::{self, RunPlan};
use crate::trainer::{CheckpointMetadata, Trainer};
use crate::{Error, Result};
use model::{CheckpointFile, Model};
use recognizer::examples::{self, Example};
use recognizer::{Evaluation, Recognizer};

/// The result of a run.
#[derive(Debug, Clone)]
pub struct RunOutcome {
    /// True if the stop flag ended the run early; it can be resumed from its checkpoint.
    pub stopped: bool,
    /// Total number of optimizer steps.
    pub steps: u64,
    /// Evaluation on the dev set, if the run finished and has one.
    pub dev: Option<Evaluation>,
    /// Evaluation on the test set, if the run finished and has one.
    pub test: Option<Evaluation>,
}

/// Trains a model by a recipe, then evaluates it.
///
/// `epochs` replaces the recipe's number; see [`train_with`]. When `stop` becomes true, the run
/// writes a checkpoint after the current step and returns; while it loads or evaluates, it returns
/// at once, and can be resumed from what is saved.
///
/// # Errors
/// All errors of the recipe, the data or a checkpoint, before anything is written;
/// [`Error::Io`](model::Error::Io) if the folder cannot be written; [`Error::Diverged`] if a score,
/// a loss or a gradient is not finite: the last checkpoint is then unchanged.
pub fn train(
    recipe: &Path,
    epochs: Option<u64>,
    folder: &Path,
    start: StartMode,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<RunOutcome> {
    train_with(recipe, epochs.into(), folder, start, &mut ProcessGroup::single(), observer, stop)
}

/// Trains as [`train`], with recipe overrides and in one or several processes.
///
/// Each process of a [`ProcessGroup`] calls this function with the same recipe and folder; rank 0
/// writes, and reports to its observer. With `batch.memory`, the memory of the run is planned
/// before its first step ([`RunReport::plan`]), and batches are limited accordingly.
///
/// # Errors
/// Those of [`train`]; [`Error::Budget`] for a budget that is too small, with the smallest one;
/// [`Error::NoPlan`] for parts that do not report their memory; [`Error::Rank`] for an error in
/// another process.
pub fn train_with(
    recipe_path: &Path,
    overrides: RecipeOverrides,
    folder: &Path,
    start: StartMode,
    group: &mut ProcessGroup,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<RunOutcome> {
    // 1. Settings, recipe and folder, which must be equal in all processes.
    let is_writer = group.rank() == 0;
    let (recipe, text) = group.agree(Recipe::read(recipe_path, overrides.clone()))?;
    let settings = rank_differences::start_settings(start, folder, group.transfer());
    rank_differences::expect_equal_settings(group, &settings)?;
    rank_differences::expect_equal_recipe(group, &text)?;
    let run_folder = if is_writer { RunFolder::new(folder, start) } else { Ok(RunFolder::read_only(folder)) };
    let folder = group.agree(run_folder)?;
    let resumes = matches!(start, StartMode::Resume | StartMode::ResumeChanged);
    let DataConfig { train, dev, test, .. } = &recipe.data;
    let pretrained_weights = &recipe.init.pretrained.weights;
    let inputs = train.iter().chain(dev).chain(test).map(|path| path.as_path());
    // A resumed run may use the recipe in its folder.
    let is_resumed = resumes && folder.last_checkpoint().exists();
    let new_inputs =
        [Some(recipe_path), pretrained_weights.as_deref()].into_iter().flatten().filter(|_| !is_resumed);
    let inputs_differ_from_outputs = folder.expect_no_overwritten_input(inputs.chain(new_inputs));
    if let Err(error) = group.agree(inputs_differ_from_outputs) {
        folder.discard();
        return Err(error);
    }
    let observer: &mut dyn Observer = if is_writer { observer } else { &mut () };

    // 2. Inputs: checkpoint of a resumed run, tokenizer, data.
    let stopped_outcome = |steps| Ok(RunOutcome { stopped: true, steps, dev: None, test: None });
    let mut steps = 0;
    let origin = RunOrigin { folder: &folder, start, has_new_epochs: overrides.epochs.is_some() };
    let inputs = RunInputs::new(&recipe, origin, observer, stop).map_err(|error| match error {
        LoadError::Failed(error) => error,
        LoadError::Stopped(steps_so_far) => {
            steps = steps_so_far;
            Error::Stopped
        }
    });
    if let Ok(RunInputs { resumed: Some(resumed), .. }) = &inputs {
        steps = resumed.progress.step;
    }
    let inputs = match group.agree(inputs) {
        Ok(inputs) => inputs,
        Err(error) => {
            folder.discard();
            return if let Error::Stopped = error { stopped_outcome(steps) } else { Err(error) };
        }
    };
    let RunInputs { resumed, pretrained, tokenizer, front_end, train, dev, test, fingerprint, bad_items } =
        inputs;
    // 3. Model, memory plan and batches, checked before the folder is changed.
    let source = TrainingSet::new(&train, &recipe, &front_end);
    let new_model_and_batches = || -> Result<_> {
        let model = Model::new(&recipe.model_config(), tokenizer.size())?;
        if let Some(pretrained) = pretrained {
            pretrained.apply(model.parameters())?;
        }
        RateFactors::new(&recipe.optimizer.rates).check_names(model.parameters())?;
        let encoder_pass = recipe.training.run.encoder_pass();
        if encoder_pass == EncoderPass::Cached {
            check_frozen_encoder(&model)?;
        }
        let plan = recipe.batch.memory.map(|budget| {
            let evaluation_bytes: usize = dev.iter().chain(&test).map(Example::bytes).sum();
            let baseline = run_plan::baseline_bytes(train.bytes() + evaluation_bytes);
            let longest = (source.longest() as f64 * recipe.augment.stretch()).ceil() as usize;
            let min_utterances =
                if recipe.batch.buckets > 0 { recipe.batch.max_utterances.min(train.count()) } else { 1 };
            let rows = examples::row_counts(dev.iter().chain(&test), &recipe.encoder.rows);
            let longest_evaluated = rows.max().unwrap_or(0);
            RunPlan::new(&model, budget, baseline, longest, longest_evaluated, min_utterances, encoder_pass)
        });
        let plan = plan.transpose()?;
        let source = source.with_plan(plan.map(|plan| (plan, model.clone())));
        // Fails now if an epoch cannot be divided into batches, or the budget of a loss is too
        // small.
        source.plan(0)?;
        for LargestUtterance { id, rows, labels } in source.largest()? {
            model.check_budget(&id, rows, labels)?;
        }
        Ok((model, source, plan))
    };
    let progress = resumed.as_ref().map(|checkpoint| &checkpoint.progress);
    let tokenizer_json = tokenizer.to_json()?;
    let state = rank_differences::state_settings(&tokenizer_json, progress, &bad_items);
    let model_and_batches = rank_differences::expect_equal_data(group, &fingerprint)
        .and_then(|()| rank_differences::expect_equal_settings(group, &state))
        .and_then(|()| new_model_and_batches());
    let (model, source, plan) = match group.agree(model_and_batches) {
        Ok(model_and_batches) => model_and_batches,
        Err(error) => {
            folder.discard();
            return Err(error);
        }
    };
    speech::clear_decode_cache();
    if plan.is_some() {
        kernels::release_freed_memory();
    }
    // 4. Trainer; from here on, rank 0 writes to the folder.
    let metadata =
        CheckpointMetadata { recipe: text.clone(), tokenizer: tokenizer_json, data: Some(fingerprint) };
    let recomputes = recipe.training.run.recompute;
    let learner = Learner::new(model, &recipe.optimizer)?.with_recomputation(recomputes).with_plan(plan);
    let bad_of = |name: &str| bad_items.get(&format!("data.{name}")).cloned().unwrap_or_default();
    let (dev_bad, test_bad) = (bad_of("dev"), bad_of("test"));
    // Bad items of a set in memory are already checked, and steps add none.
    let num_listed = match &train {
        UtteranceStore::Memory(_) => usize::MAX,
        UtteranceStore::Disk(set) => set.listed_count(),
    };
    let bad_item_log = BadItemLog::new(bad_items, num_listed, recipe.data.max_bad);
    let (run, accumulate) = (&recipe.training.run, recipe.batch.accumulate);
    let trainer = Trainer::new(learner, run, accumulate, metadata, &folder, resumed.as_ref(), &mut *group)?;
    let mut trainer = trainer.with_bad_items(bad_item_log)?;
    let first_write = match is_writer {
        true => folder
            .clear(resumed.as_ref().map(|checkpoint| &checkpoint.progress))
            .and_then(|()| folder.write_recipe(&text, recipe_path)),
        false => Ok(()),
    };
    trainer.agree(first_write)?;
    drop(resumed);
    trainer.set_plan(plan);
    let source = match encoded_source(source, &recipe, plan, &mut trainer, &folder, observer, stop) {
        Err(Error::Stopped) => return stopped_outcome(steps),
        source => source?,
    };
    observer.on_start(&RunReport {
        parameters: trainer.learner().model().parameters().count(),
        classes: trainer.learner().model().classes(),
        utterances: train.count(),
        audio_seconds: (0..train.count()).map(|index| train.seconds(index)).sum(),
        epochs: recipe.training.run.epochs,
        first_epoch: trainer.progress().epoch,
        plan,
    });

    // 5. Training, with an evaluation of the dev set after epochs.
    let evaluate =
        |model: &Model, examples: &[Example], group: &mut ProcessGroup, stop: &AtomicBool| match examples
            .is_empty()
        {
            true => Ok(None),
            false => {
                let recognizer = Recognizer::new(model.clone(), tokenizer.clone(), recipe.batch.size())?;
                let recognizer =
                    recognizer.with_silence(0.0)?.with_special_omitted(recipe.tokens.ignore_special);
                let fits = |count, rows| plan.is_none_or(|plan| plan.fits_encoding(model, count, rows));
                let (rank, ranks) = (group.rank(), group.size());
                let batches = recognizer.plan_batches(examples, &fits);
                // Each process recognizes some batches, and all receive all texts.
                let own_batches = batches.into_iter().skip(rank).step_by(ranks);
                let texts = recognizer.recognize_examples(examples, own_batches, stop).map_err(Error::from);
                let texts = group.agree(texts)?;
                let texts_by_rank = if ranks == 1 { vec![texts] } else { group.all_gather(&texts)? };
                Ok(Some(recognizer.score(examples, texts_by_rank.into_iter().flatten())))
            }
        };
    // The evaluation of an epoch is not stopped: the run could not be resumed from the middle of
    // it.
    let mut validate =
        |model: &Model, group: &mut ProcessGroup| evaluate(model, &dev, group, &AtomicBool::new(false));
    let is_finished = trainer.fit(&*source, &mut validate, observer, stop)?;
    let train_bad = trainer.bad_items().train();
    let (learner, progress) = trainer.into_parts();
    let steps = progress.step;
    if !is_finished {
        return stopped_outcome(steps);
    }
    // Waits until rank 0 has written its files.
    group.agree::<(), Error>(Ok(()))?;

    // 6. Final evaluation of the selected weights.
    let model = learner.model();
    if recipe.training.run.select == CheckpointSelection::Best && progress.best.is_some() {
        let (best, parameters) = (CheckpointFile::open(&folder.best_checkpoint())?, model.parameters());
        best.check(&parameters.shapes())?;
        for (name, _) in parameters.iter() {
            parameters.set_parameter(name, &best.read_weight(name)?)?;
        }
    } else if let Some(average) = learner.average() {
        model.parameters().set(average)?;
    }
    let mut evaluate_both =
        || Ok((evaluate(model, &dev, group, stop)?, evaluate(model, &test, group, stop)?));
    let (dev, test) = match evaluate_both() {
        // The training is saved; a resumed run has only the evaluation left.
        Err(Error::Stopped) => return stopped_outcome(steps),
        evaluations => evaluations?,
    };
    let with_bad =
        |evaluation: Option<Evaluation>, bad| evaluation.map(|evaluation| Evaluation { bad, ..evaluation });
    let (dev, test) = (with_bad(dev, dev_bad), with_bad(test, test_bad));
    let outcome = RunOutcome { stopped: false, steps, dev, test };
    let sets = [("dev", &outcome.dev), ("test", &outcome.test)];
    let sets: Vec<_> = sets.iter().filter_map(|(name, set)| Some((*name, set.as_ref()?))).collect();
    group.agree(if is_writer { folder.write_evaluations(&sets, &train_bad) } else { Ok(()) })?;
    Ok(outcome)
}

/// Returns the batches of a run.
///
/// With `training.cache_encoder`, they have cached encoder rows. Rank 0 computes
/// the rows that no valid file contains.
fn encoded_source<'a>(
    set: TrainingSet<'a>,
    recipe: &Recipe,
    plan: Option<RunPlan>,
    trainer: &mut Trainer,
    folder: &RunFolder,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Box<dyn BatchSource + 'a>> {
    let Some(format) = recipe.training.run.cache_encoder else { return Ok(Box::new(set)) };
    let model = trainer.learner().model().clone();
    let shared_folder = recipe.data.cache.as_deref();
    let cache = EncoderCacheConfig { model: &model, format, run_folder: folder.path(), shared_folder };
    let written = match trainer.writes() {
        true => {
            let fits = |count, rows| plan.is_none_or(|plan| plan.fits_encoding(&model, count, rows));
            cache.write_if_needed(&set, &fits, observer, stop)
        }
        false => Ok(()),
    };
    trainer.agree(written)?;
    Ok(Box::new(cache.open(set)?))
}
