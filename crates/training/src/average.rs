//! Checkpoint averaging: the mean of the weights of several checkpoints of a run.
use std::path::{Path, PathBuf};

use crate::files::OutputFile;
use crate::metrics::Metrics;
use crate::run_files::epoch_checkpoints;
use crate::run_folder::RunFolder;
use crate::{Error, Recipe, Result};
use model::checkpoint::{Checkpoint, Progress, Values};
use recognizer::Metric;
use speech::files::read_input_text;

/// The inputs and the size of an averaged checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct AverageReport {
    /// The checkpoints, in the order in which they were added.
    pub inputs: Vec<PathBuf>,
    /// Number of weights of the result.
    pub parameters: usize,
    /// True if moving averages (EMA) were averaged as well; evaluation then uses them.
    pub has_moving_average: bool,
}

/// Writes the mean of the weights of several checkpoints as a checkpoint.
///
/// Moving averages are averaged as well if the checkpoints have them. The result can be evaluated;
/// it has no optimizer state, so that no run can resume from it.
///
/// ```text
/// w = (w₁ + ... + w_k) / k        in f64, in the order of the list
/// ```
/// Recipes may differ in `[data]` only. Cost: the weights once in f64, and one checkpoint at a
/// time.
///
/// # Errors
/// [`Error::NoCheckpoints`]; [`Error::Checkpoint`](model::Error::Checkpoint) for the first one of
/// another recipe, tokenizer or shape, or with a moving average where others have none;
/// [`Error::OutputIsInput`]; those of [`Checkpoint::read`]; [`Error::Io`](model::Error::Io).
pub fn average(checkpoints: &[PathBuf], output: &Path) -> Result<AverageReport> {
    let inputs: Vec<&Path> = checkpoints.iter().map(PathBuf::as_path).collect();
    let Some((first, others)) = inputs.split_first() else {
        return Err(Error::NoCheckpoints);
    };
    // 1. The first checkpoint, which also has the recipe and the tokenizer of the result.
    let output_file = OutputFile::new(output, &inputs)?;
    let mut mean = Checkpoint::read(first)?;
    mean.check(first, &mean.shapes)?;
    let recipe = Recipe::from_checkpoint(&mean, first)?;
    let mut weight_sums = WeightSums::new(&mean.weights);
    let mut moving_average_sums = mean.average.as_ref().map(WeightSums::new);
    let mut progress = mean.progress.clone();
    // 2. The sums over all checkpoints, and the largest progress.
    for path in others {
        let checkpoint = Checkpoint::read(path)?;
        expect_same_model(path, &checkpoint, &mean, &recipe)?;
        weight_sums.add(&checkpoint.weights);
        if let (Some(sums), Some(values)) = (&mut moving_average_sums, &checkpoint.average) {
            sums.add(values);
        }
        if checkpoint.progress.step > progress.step {
            progress = checkpoint.progress.clone();
        }
        if checkpoint.data != mean.data {
            mean.data = None;
        }
    }
    // 3. The means.
    let count = inputs.len();
    mean.progress = Progress { epoch: progress.epoch, step: progress.step, ..Progress::default() };
    mean.optimizer_state.clear();
    weight_sums.write_mean(count, &mut mean.weights);
    if let (Some(sums), Some(values)) = (moving_average_sums, &mut mean.average) {
        sums.write_mean(count, values);
    }
    output_file.write(&mean.to_bytes(output)?)?;
    Ok(AverageReport {
        inputs: checkpoints.to_vec(),
        parameters: mean.weights.values().map(Vec::len).sum(),
        has_moving_average: mean.average.is_some(),
    })
}

/// Selects `count` epoch checkpoints of a run, in their order.
///
/// These are the last ones, or with `best` those with the lowest error rate on the dev set, by the
/// metric of the run's recipe; at equal rates, later ones are preferred.
///
/// # Errors
/// [`Error::NoCheckpoints`] for a `count` of 0; [`Error::TooFewCheckpoints`];
/// [`Error::Io`](model::Error::Io) if the folder or its metrics cannot be read.
pub fn select_checkpoints(folder: &Path, count: usize, best: bool) -> Result<Vec<PathBuf>> {
    let mut epochs = epoch_checkpoints(folder)?;
    if best {
        let metrics = RunFolder::read_metrics_in(folder, u64::MAX)?;
        // A folder without a recipe was not made by a run.
        let recipe_path = folder.join("recipe.toml");
        let metric = match recipe_path.exists() {
            true => {
                let text =
                    read_input_text(&recipe_path).map_err(Error::io(&recipe_path, "read the recipe"))?;
                Recipe::parse_of_run(&text, &recipe_path)?.training.run.metric
            }
            false => Metric::default(),
        };
        let rate = |row: &Metrics| match metric {
            Metric::Wer => row.dev_wer,
            Metric::Cer => row.dev_cer,
        };
        let rate_of = |epoch: u64| metrics.iter().find(|row| row.epoch == epoch).and_then(rate);
        let mut rates_and_epochs: Vec<(f64, u64)> =
            epochs.iter().filter_map(|&(epoch, _)| Some((rate_of(epoch)?, epoch))).collect();
        rates_and_epochs.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        rates_and_epochs.truncate(count);
        epochs.retain(|(epoch, _)| rates_and_epochs.iter().any(|(_, best_epoch)| best_epoch == epoch));
    }
    if count == 0 {
        return Err(Error::NoCheckpoints);
    }
    if epochs.len() < count {
        let expected = match best {
            true => format!("{count} epochs with a checkpoint and an error rate"),
            false => format!("{count} epochs with a checkpoint"),
        };
        return Err(Error::TooFewCheckpoints { path: folder.to_owned(), expected, found: epochs.len() });
    }
    Ok(epochs.split_off(epochs.len() - count).into_iter().map(|(_, path)| path).collect())
}

/// Checks that two checkpoints are of the same model.
fn expect_same_model(path: &Path, other: &Checkpoint, first: &Checkpoint, recipe: &Recipe) -> Result<()> {
    if let Some(difference) = recipe.difference(&Recipe::from_checkpoint(other, path)?) {
        return Err(Error::checkpoint(path, "the recipe of the first checkpoint", difference));
    }
    if other.tokenizer != first.tokenizer {
        return Err(Error::checkpoint(path, "the tokenizer of the first checkpoint", "another one"));
    }
    other.check(path, &first.shapes)?;
    let describe = |has_average: bool| if has_average { "a moving average" } else { "no moving average" };
    let has_average = [first, other].map(|checkpoint| checkpoint.average.is_some());
    match has_average {
        [first, other] if first == other => Ok(()),
        [first, other] => {
            let expected = format!("{}, as the first checkpoint has", describe(first));
            Err(Error::checkpoint(path, expected, describe(other)))
        }
    }
}

/// Sums of the values of each parameter, in order of names.
struct WeightSums(Vec<Vec<f64>>);

impl WeightSums {
    fn new(values: &Values) -> Self {
        WeightSums(values.values().map(|values| values.iter().map(|&x| f64::from(x)).collect()).collect())
    }

    fn add(&mut self, values: &Values) {
        for (sums, values) in self.0.iter_mut().zip(values.values()) {
            sums.iter_mut().zip(values).for_each(|(sum, &x)| *sum += f64::from(x));
        }
    }

    fn write_mean(self, count: usize, mean: &mut Values) {
        for (values, sums) in mean.values_mut().zip(self.0) {
            values.iter_mut().zip(sums).for_each(|(value, sum)| *value = (sum / count as f64) as f32);
        }
    }
}
