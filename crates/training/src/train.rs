//! From a recipe to a trained and judged model.
use std::path::Path;
use std::sync::atomic::AtomicBool;

use distributed::ProcessGroup;

use crate::bad_item_log::BadItemLog;
use crate::data::{BatchSource, Largest, TrainingSet, UtteranceStore};
use crate::learner::Learner;
use crate::loading::{Loaded, Origin, Stopped};
use crate::observer::{Observer, RunReport};
use crate::rank_differences as differences;
use crate::recipe::{Changes, Data, Recipe, Select};
use crate::run_folder::{RunFolder, Start};
use crate::run_plan::{self, RunPlan};
use crate::trainer::{CheckpointMetadata, Trainer};
use crate::{Error, Result};
use model::Model;
use model::checkpoint::Checkpoint;
use recognizer::examples::{self, Example};
use recognizer::{Evaluation, Recognizer};

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Whether the stop flag ended it early; the checkpoint is there to resume from.
    pub stopped: bool,
    /// Optimiser steps done in all.
    pub steps: u64,
    /// Report on the dev set, if the run finished and has one.
    pub dev: Option<Evaluation>,
    /// Report on the test set, if the run finished and has one.
    pub test: Option<Evaluation>,
}

/// Trains by a recipe in a run folder, then evaluates.
///
/// `epochs` replaces the recipe's number; see [`train_with`]. When `stop` becomes true, the run writes a checkpoint after the current step and
/// returns; while it loads or evaluates what it has learnt, it returns at once, and what is saved is there to go on from.
///
/// # Errors
/// Anything that the recipe, the data or a checkpoint may have wrong, before anything is written; [`Error::Io`](model::Error::Io) if the folder
/// refuses; [`Error::Diverged`] if a score, a loss or a gradient is no number: the last checkpoint is then still there.
pub fn train(
    recipe: &Path,
    epochs: Option<u64>,
    folder: &Path,
    start: Start,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Outcome> {
    train_with(recipe, epochs.into(), (folder, start), &mut ProcessGroup::alone(), observer, stop)
}

/// [`train`], with more that is said otherwise than in the recipe, and alone or as one of several processes ([`ProcessGroup`]), each of which
/// calls this with the same recipe and folder: rank 0 writes, and tells its observer.
///
/// With `batch.memory`, what the run takes is known before its first step ([`RunReport::plan`]), and batches are cut so that it keeps
/// to it.
///
/// # Errors
/// Those of [`train`]; [`Error::Budget`] for a budget that is too small, with the smallest that would do; [`Error::NoPlan`] for parts
/// that do not say what they take; [`Error::Rank`] for what went wrong in another process.
pub fn train_with(
    recipe_path: &Path,
    changes: Changes,
    (folder, start): (&Path, Start),
    group: &mut ProcessGroup,
    observer: &mut dyn Observer,
    stop: &AtomicBool,
) -> Result<Outcome> {
    let writes = group.rank() == 0;
    let (recipe, text) = group.agree(Recipe::read(recipe_path, changes))?;
    let settings = differences::start(start, folder, group.transfer());
    differences::expect_equal(group, &settings)?;
    differences::expect_equal_recipe(group, &text)?;
    let made = if writes { RunFolder::new(folder, start) } else { Ok(RunFolder::read_only(folder)) };
    let folder = group.agree(made)?;
    let resumes = matches!(start, Start::Resume | Start::ResumeChanged);
    let Data { train, dev, test, .. } = &recipe.data;
    let weights = &recipe.init.pretrained.weights;
    let read = train.iter().chain(dev).chain(test).map(|path| path.as_path());
    // The recipe of a run that goes on may be the one in its folder.
    let own = resumes && folder.last().exists();
    let first = [Some(recipe_path), weights.as_deref()].into_iter().flatten().filter(|_| !own);
    let spared = folder.spare(read.chain(first));
    if let Err(error) = group.agree(spared) {
        folder.leave();
        return Err(error);
    }
    let observer: &mut dyn Observer = if writes { observer } else { &mut () };

    let stopped = |steps| Ok(Outcome { stopped: true, steps, dev: None, test: None });
    let mut steps = 0;
    let origin = Origin { folder: &folder, start, epochs_given: changes.epochs.is_some() };
    let loaded = Loaded::new(&recipe, origin, observer, stop).map_err(|error| match error {
        Stopped::By(error) => error,
        Stopped::At(so_far) => {
            steps = so_far;
            Error::Stopped
        }
    });
    if let Ok(Loaded { resumed: Some(resumed), .. }) = &loaded {
        steps = resumed.progress.step;
    }
    let loaded = match group.agree(loaded) {
        Ok(loaded) => loaded,
        Err(error) => {
            folder.leave();
            return if let Error::Stopped = error { stopped(steps) } else { Err(error) };
        }
    };
    let Loaded { resumed, pretrained, tokenizer, front_end, train, dev, test, data, bad } = loaded;
    let source = TrainingSet::new(&train, &recipe, &front_end);
    let planned = || -> Result<_> {
        let model = Model::new(&recipe.model(), tokenizer.size())?;
        if let Some(pretrained) = pretrained {
            pretrained.apply(model.parameters())?;
        }
        let plan = recipe.batch.memory.map(|budget| {
            let others: usize = dev.iter().chain(&test).map(Example::bytes).sum();
            let before = run_plan::before(train.bytes() + others);
            let longest = (source.longest() as f64 * recipe.augment.stretch()).ceil() as usize;
            let together =
                if recipe.batch.buckets > 0 { recipe.batch.max_utterances.min(train.count()) } else { 1 };
            let evaluated =
                examples::row_counts(dev.iter().chain(&test), &recipe.encoder.rows).max().unwrap_or(0);
            RunPlan::new(&model, budget, before, (longest, evaluated, together))
        });
        let plan = plan.transpose()?;
        let source = source.with_plan(plan.map(|plan| (plan, model.clone())));
        // What no epoch can be cut into is said now, and what no loss can keep to its budget with.
        source.plan(0)?;
        for Largest { id, rows, labels } in source.largest()? {
            model.check_budget(&id, rows, labels)?;
        }
        Ok((model, source, plan))
    };
    let goes_on = resumed.as_ref().map(|checkpoint| &checkpoint.progress);
    let tokenizer_json = tokenizer.to_json()?;
    let state = differences::state(&tokenizer_json, goes_on, &bad);
    let planned = differences::expect_equal_data(group, &data)
        .and_then(|()| differences::expect_equal(group, &state))
        .and_then(|()| planned());
    let (model, source, plan) = match group.agree(planned) {
        Ok(planned) => planned,
        Err(error) => {
            folder.leave();
            return Err(error);
        }
    };
    speech::clear_decode_cache();
    if plan.is_some() {
        kernels::release_freed_memory();
    }
    let about = CheckpointMetadata { recipe: text.clone(), tokenizer: tokenizer_json, data: Some(data) };
    let run = (&recipe.training.run, recipe.batch.accumulate);
    let learner = Learner::new(model, &recipe.optimizer)?.with_plan(plan);
    let of_sets = |name: &str| bad.get(&format!("data.{name}")).cloned().unwrap_or_default();
    let (dev_bad, test_bad) = (of_sets("dev"), of_sets("test"));
    let of = match &train {
        UtteranceStore::Memory(_) => usize::MAX,
        UtteranceStore::Disk(streamed) => streamed.utterances(),
    };
    let bad = BadItemLog::new(bad, of, recipe.data.max_bad);
    let trainer = Trainer::new(learner, run, about, (&folder, resumed.as_ref()), &mut *group)?;
    let mut trainer = trainer.with_bad_items(bad)?;
    let cleared = match writes {
        true => folder
            .clear(resumed.as_ref().map(|checkpoint| &checkpoint.progress))
            .and_then(|()| folder.write_recipe(&text, recipe_path)),
        false => Ok(()),
    };
    trainer.agree(cleared)?;
    drop(resumed);
    trainer.planned(plan);
    observer.on_start(&RunReport {
        parameters: trainer.learner().model().parameters().count(),
        classes: trainer.learner().model().classes(),
        utterances: train.count(),
        audio_seconds: (0..train.count()).map(|index| train.seconds(index)).sum(),
        epochs: recipe.training.run.epochs,
        first_epoch: trainer.progress().epoch,
        plan,
    });

    let report =
        |model: &Model, examples: &[Example], group: &mut ProcessGroup, stop: &AtomicBool| match examples
            .is_empty()
        {
            true => Ok(None),
            false => {
                let recognizer = Recognizer::new(model.clone(), tokenizer.clone(), recipe.batch.size())?;
                let recognizer =
                    recognizer.with_silence(0.0)?.with_special_omitted(recipe.tokens.ignore_special);
                let fits = |count, rows| plan.is_none_or(|plan| plan.holds(model, count, rows));
                let (rank, count) = (group.rank(), group.size());
                let batches = recognizer.plan_batches(examples, &fits);
                // Each process recognizes some batches, and all receive all texts.
                let own = batches.into_iter().skip(rank).step_by(count);
                let texts = recognizer.recognize_examples(examples, own, stop).map_err(Error::from);
                let texts = group.agree(texts)?;
                let all = if count == 1 { vec![texts] } else { group.all_gather(&texts)? };
                Ok(Some(recognizer.score(examples, all.into_iter().flatten())))
            }
        };
    // A run that stops in the middle of an epoch's report could not go on from there.
    let mut judge =
        |model: &Model, group: &mut ProcessGroup| report(model, &dev, group, &AtomicBool::new(false));
    let finished = trainer.fit(&source, &mut judge, observer, stop)?;
    let train_bad = trainer.bad_items().train();
    let (learner, progress) = trainer.into_parts();
    let steps = progress.step;
    if !finished {
        return stopped(steps);
    }
    // What rank 0 has written is there from here on.
    group.agree::<(), Error>(Ok(()))?;

    let model = learner.model();
    if recipe.training.run.select == Select::Best && progress.best.is_some() {
        let best = Checkpoint::read(&folder.best())?;
        best.check(&folder.best(), &model.parameters().shapes())?;
        model.parameters().set(best.average.as_ref().unwrap_or(&best.weights))?;
    } else if let Some(average) = learner.average() {
        model.parameters().set(average)?;
    }
    let mut both = || Ok((report(model, &dev, group, stop)?, report(model, &test, group, stop)?));
    let (dev, test) = match both() {
        // All of the training is saved; a run that goes on from there has only this left to do.
        Err(Error::Stopped) => return stopped(steps),
        reports => reports?,
    };
    let with = |found: Option<Evaluation>, bad| found.map(|found| Evaluation { bad, ..found });
    let (dev, test) = (with(dev, dev_bad), with(test, test_bad));
    let outcome = Outcome { stopped: false, steps, dev, test };
    let sets = [("dev", &outcome.dev), ("test", &outcome.test)];
    let sets: Vec<_> = sets.iter().filter_map(|(name, set)| Some((*name, set.as_ref()?))).collect();
    group.agree(if writes { folder.write_evaluations(&sets, &train_bad) } else { Ok(()) })?;
    Ok(outcome)
}
