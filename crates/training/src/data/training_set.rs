//! What an epoch hears of a training set, from memory or from disk.
use speech::batching::Padding;
use speech::{Features, FrontEnd};

use super::streamed::{Streamed, StreamedUtterance};
use super::{Batch, BatchSource, batch};
use crate::Result;
use crate::recipe::{Augment, Recipe};
use crate::run_plan::RunPlan;
use model::Model;
use model::random::{Purpose, stream};
use recognizer::Example;
use recognizer::bad_items::{BadItems, ExcludedUtterance};

/// Batches of a recipe, augmented anew in each epoch.
pub struct TrainingSet<'a> {
    store: &'a UtteranceStore,
    recipe: &'a Recipe,
    front_end: &'a FrontEnd,
    /// Input rows of each utterance, as they are planned.
    rows: Vec<usize>,
    /// The plan that batches keep to, and the model that it is for.
    plan: Option<(RunPlan, Model)>,
}

/// An utterance as large as few others.
#[derive(Debug)]
pub struct Largest {
    /// Its name.
    pub id: String,
    /// Its input rows, as they are planned.
    pub rows: usize,
    /// Its labels.
    pub labels: usize,
}

/// Where the utterances are.
#[derive(Debug)]
pub enum UtteranceStore {
    /// Their features are in memory.
    Memory(Vec<Example>),
    /// They are read when they are wanted.
    Disk(Box<Streamed>),
}

impl UtteranceStore {
    /// Utterances.
    pub fn count(&self) -> usize {
        match self {
            Self::Memory(examples) => examples.len(),
            Self::Disk(streamed) => streamed.count(),
        }
    }

    /// Bytes of what is in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Memory(examples) => examples.iter().map(Example::bytes).sum(),
            Self::Disk(streamed) => streamed.bytes(),
        }
    }

    /// Length of one in seconds.
    pub fn seconds(&self, index: usize) -> f64 {
        match self {
            Self::Memory(examples) => examples[index].seconds,
            Self::Disk(streamed) => streamed.seconds(index),
        }
    }
}

impl<'a> TrainingSet<'a> {
    /// Batches of these utterances, with the front end of the recipe.
    pub fn new(store: &'a UtteranceStore, recipe: &'a Recipe, front_end: &'a FrontEnd) -> Self {
        let frames = |index: usize| match store {
            UtteranceStore::Memory(examples) => examples[index].features.frames,
            UtteranceStore::Disk(streamed) => {
                let rate = f64::from(front_end.config().sample_rate);
                front_end.frames((streamed.seconds(index) * rate).round() as usize)
            }
        };
        let stride = recipe.encoder.rows.stride;
        let rows = (0..store.count()).map(|index| frames(index).div_ceil(stride)).collect();
        TrainingSet { store, recipe, front_end, rows, plan: None }
    }

    /// From now on, batches keep to the plan of a run.
    pub(crate) fn with_plan(mut self, plan: Option<(RunPlan, Model)>) -> Self {
        self.plan = plan;
        self
    }

    /// Whether a step of so many utterances of at most so many rows fits.
    fn fits(&self, utterances: usize, rows: usize) -> bool {
        self.plan.as_ref().is_none_or(|(plan, model)| plan.holds(model, utterances, rows))
    }

    /// Input rows of the longest utterance.
    pub fn longest(&self) -> usize {
        self.rows.iter().copied().max().unwrap_or(0)
    }

    /// The longest utterance, and, of those in memory, the one with the most pairs of input rows and labels: one of them asks most
    /// of a loss.
    ///
    /// # Errors
    /// Those of reading an entry of those that are read when they are wanted.
    pub fn largest(&self) -> Result<Vec<Largest>> {
        let rows = || self.rows.iter().copied().enumerate();
        match self.store {
            UtteranceStore::Memory(examples) => {
                let longest = rows().map(|(at, rows)| (rows, at)).max();
                let pairs = |(at, rows): (usize, usize)| (rows * (examples[at].labels.len() + 1), at);
                let of = |(_, at): (usize, usize)| {
                    let Example { id, labels, .. } = &examples[at];
                    Largest { id: id.clone(), rows: self.rows[at], labels: labels.len() }
                };
                Ok(longest.into_iter().chain(rows().map(pairs).max()).map(of).collect())
            }
            UtteranceStore::Disk(streamed) => {
                let mut order: Vec<(usize, usize)> = rows().map(|(at, rows)| (rows, at)).collect();
                order.sort_unstable();
                for (rows, at) in order.into_iter().rev() {
                    if let Some((id, labels)) = streamed.said(at)? {
                        return Ok(vec![Largest { id, rows, labels: labels.len() }]);
                    }
                }
                Ok(Vec::new())
            }
        }
    }

    /// Whether an utterance that is longer than was planned does not fit into a step of its own.
    fn is_too_large(&self, index: usize, plane: &Features) -> bool {
        let rows = plane.frames.div_ceil(self.recipe.encoder.rows.stride);
        let planned = (self.rows[index] as f64 * self.recipe.augment.stretch()).ceil() as usize;
        rows > planned && !self.fits(1, rows)
    }

    fn augmented(&self, epoch: u64, index: usize, plane: &Features) -> Features {
        let Augment { perturb, mask, .. } = &self.recipe.augment;
        let mut rng = stream(self.recipe.seed, Purpose::Augment, epoch, index as u64);
        let normalise = self.recipe.features.normalise;
        let mut plane = perturb.apply(plane, &self.front_end.mel_scale(), normalise, &mut rng);
        mask.apply(&mut plane, &mut rng);
        plane
    }
}

impl BatchSource for TrainingSet<'_> {
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>> {
        let mut rng = stream(self.recipe.seed, Purpose::Order, epoch, 0);
        let seconds: Vec<f64> = (0..self.store.count()).map(|index| self.store.seconds(index)).collect();
        let fits = |utterances, rows| self.fits(utterances, rows);
        batch::train_plan(&self.rows, &seconds, &self.recipe.batch, &fits, &mut rng)
    }

    fn padding(&self, plan: &[Vec<usize>]) -> f64 {
        Padding::new(&self.rows, plan).fraction()
    }

    fn workers(&self) -> usize {
        self.recipe.data.workers
    }

    fn warnings(&self) -> Vec<String> {
        match self.store {
            UtteranceStore::Memory(_) => Vec::new(),
            UtteranceStore::Disk(streamed) => streamed.warning().into_iter().collect(),
        }
    }

    fn batch(&self, epoch: u64, utterances: &[usize]) -> Result<Batch> {
        let (mut absent, mut bad) = (Vec::new(), BadItems::default());
        let (mut ids, mut labels, mut planes, mut seconds) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
        for &index in utterances {
            let (id, said, length, plane) = match self.store {
                UtteranceStore::Memory(examples) => {
                    let Example { id, labels, seconds, features, .. } = &examples[index];
                    (id.clone(), labels.clone(), *seconds, self.augmented(epoch, index, features))
                }
                UtteranceStore::Disk(streamed) => {
                    let heard = streamed.read(epoch, index, self.front_end, &mut bad)?;
                    let Some(StreamedUtterance { id, labels, seconds, features }) = heard else {
                        absent.push(index);
                        continue;
                    };
                    if self.is_too_large(index, &features) {
                        let error = "a step of it takes more than batch.memory, which is planned by the lengths of the manifest";
                        bad.left_out.push(ExcludedUtterance {
                            id,
                            reason: error.to_owned(),
                            has_other_rate: false,
                        });
                        absent.push(index);
                        continue;
                    }
                    (id, labels, seconds, self.augmented(epoch, index, &features))
                }
            };
            planes.push(plane);
            ids.push(id);
            labels.push(said);
            seconds += length;
        }
        let planes: Vec<&Features> = planes.iter().collect();
        let (rows, lengths) = model::collate(&planes, &self.recipe.encoder.rows)?;
        Ok(Batch { ids, seconds, absent, bad, ..Batch::new(rows, lengths, labels) })
    }
}
