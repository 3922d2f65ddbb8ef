//! One checkpoint out of several of a run: the mean of their weights.
use std::path::{Path, PathBuf};

use crate::files::OutputFile;
use crate::metrics::Metrics;
use crate::run_files::epoch_checkpoints;
use crate::run_folder::RunFolder;
use crate::{Error, Recipe, Result};
use model::checkpoint::{Checkpoint, Progress, Values};
use recognizer::Metric;

/// What an averaged checkpoint was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct AverageReport {
    /// The checkpoints, in the order in which they were added up.
    pub from: Vec<PathBuf>,
    /// Numbers in the result.
    pub parameters: usize,
    /// Whether moving averages were averaged as well, which evaluation then uses.
    pub moving: bool,
}

/// Writes the mean of some checkpoints' weights as a checkpoint that can be evaluated; of their moving averages too, if they have
/// them. It has no optimizer's memory, so that no run can go on from it.
///
/// ```text
/// w = (w₁ + ... + w_k) / k        in f64, in the order of the list
/// ```
/// Recipes may differ in `[data]` only. Cost: the weights once in f64, and one checkpoint at a time.
///
/// # Errors
/// [`Error::NoCheckpoints`]; [`Error::Checkpoint`](model::Error::Checkpoint) naming the first one of another recipe, tokenizer or shape, or with
/// a moving average where others have none; [`Error::OutputIsInput`]; whatever [`Checkpoint::read`] and [`Error::Io`](model::Error::Io) say.
pub fn average(checkpoints: &[PathBuf], output: &Path) -> Result<AverageReport> {
    let inputs: Vec<&Path> = checkpoints.iter().map(PathBuf::as_path).collect();
    let Some((first, others)) = inputs.split_first() else {
        return Err(Error::NoCheckpoints);
    };
    let place = OutputFile::new(output, &inputs)?;
    let mut whole = Checkpoint::read(first)?;
    whole.check(first, &whole.shapes)?;
    let recipe = Recipe::from_checkpoint(&whole, first)?;
    let mut weights = WeightSums::new(&whole.weights);
    let mut moving = whole.average.as_ref().map(WeightSums::new);
    let mut progress = whole.progress.clone();
    for path in others {
        let other = Checkpoint::read(path)?;
        expect_alike(path, &other, &whole, &recipe)?;
        weights.add(&other.weights);
        if let (Some(sums), Some(average)) = (&mut moving, &other.average) {
            sums.add(average);
        }
        if other.progress.step > progress.step {
            progress = other.progress.clone();
        }
        if other.data != whole.data {
            whole.data = None;
        }
    }
    let count = inputs.len();
    whole.progress = Progress { epoch: progress.epoch, step: progress.step, ..Progress::default() };
    whole.optimizer_state.clear();
    weights.mean(count, &mut whole.weights);
    if let (Some(sums), Some(average)) = (moving, &mut whole.average) {
        sums.mean(count, average);
    }
    place.write(&whole.to_bytes(output)?)?;
    Ok(AverageReport {
        from: checkpoints.to_vec(),
        parameters: whole.weights.values().map(Vec::len).sum(),
        moving: whole.average.is_some(),
    })
}

/// The checkpoints of the last `count` epochs that a run kept, or of those `count` of them with the lowest error rate on the dev set, of
/// words or of characters as the run's own recipe says, later ones first where that is equal; in the order of the epochs.
///
/// # Errors
/// [`Error::NoCheckpoints`] for a `count` of 0; [`Error::Kept`] if there are fewer; [`Error::Io`](model::Error::Io) if the folder or its metrics cannot be read.
pub fn select_checkpoints(folder: &Path, count: usize, best: bool) -> Result<Vec<PathBuf>> {
    let mut epochs = epoch_checkpoints(folder)?;
    if best {
        let rows = RunFolder::read_metrics_in(folder, u64::MAX)?;
        // A folder without a recipe has been made by hand.
        let recipe = folder.join("recipe.toml");
        let metric = match recipe.exists() {
            true => Recipe::read(&recipe, None)?.0.training.run.metric,
            false => Metric::default(),
        };
        let rate = |row: &Metrics| match metric {
            Metric::Wer => row.dev_wer,
            Metric::Cer => row.dev_cer,
        };
        let of = |epoch: u64| rows.iter().find(|row| row.epoch == epoch).and_then(rate);
        let mut rated: Vec<(f64, u64)> = epochs.iter().filter_map(|&(n, _)| Some((of(n)?, n))).collect();
        rated.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        rated.truncate(count);
        epochs.retain(|(epoch, _)| rated.iter().any(|(_, n)| n == epoch));
    }
    if count == 0 {
        return Err(Error::NoCheckpoints);
    }
    if epochs.len() < count {
        let expected = match best {
            true => format!("{count} epochs with a checkpoint and an error rate"),
            false => format!("{count} epochs with a checkpoint"),
        };
        return Err(Error::Kept { path: folder.to_owned(), expected, found: epochs.len() });
    }
    Ok(epochs.split_off(epochs.len() - count).into_iter().map(|(_, path)| path).collect())
}

/// Fails where two checkpoints are not of one model.
fn expect_alike(path: &Path, other: &Checkpoint, first: &Checkpoint, recipe: &Recipe) -> Result<()> {
    if let Some(difference) = recipe.difference(&Recipe::from_checkpoint(other, path)?) {
        return Err(Error::checkpoint(path, "the recipe of the first checkpoint", difference));
    }
    if other.tokenizer != first.tokenizer {
        return Err(Error::checkpoint(path, "the tokenizer of the first checkpoint", "another one"));
    }
    other.check(path, &first.shapes)?;
    let says = |average: bool| if average { "a moving average" } else { "no moving average" };
    match (first.average.is_some(), other.average.is_some()) {
        (here, there) if here == there => Ok(()),
        (here, there) => {
            let expected = format!("{}, as the first checkpoint has", says(here));
            Err(Error::checkpoint(path, expected, says(there)))
        }
    }
}

/// Sums of values by name.
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

    fn mean(self, count: usize, into: &mut Values) {
        for (values, sums) in into.values_mut().zip(self.0) {
            values.iter_mut().zip(sums).for_each(|(value, sum)| *value = (sum / count as f64) as f32);
        }
    }
}
