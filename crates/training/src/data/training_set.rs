//! `TrainingSet`: plans, loads and augments batches, from memory or from disk.
use speech::batching::Padding;
use speech::{Features, FrontEnd};

use super::streamed::{StreamedSet, StreamedUtterance};
use super::{Batch, BatchSource, batch};
use crate::Result;
use crate::recipe::{AugmentConfig, Recipe};
use crate::run_plan::RunPlan;
use model::Model;
use model::random::{Purpose, stream};
use recognizer::Example;
use recognizer::bad_items::{BadItems, ExcludedUtterance};

/// The batches of a recipe, augmented anew in each epoch.
pub struct TrainingSet<'a> {
    store: &'a UtteranceStore,
    recipe: &'a Recipe,
    front_end: &'a FrontEnd,
    /// Planned number of input rows of each utterance.
    rows: Vec<usize>,
    /// The memory plan that limits batches, and its model.
    plan: Option<(RunPlan, Model)>,
}

/// An utterance that needs the most memory of its set.
#[derive(Debug)]
pub(crate) struct LargestUtterance {
    /// Id of the utterance.
    pub id: String,
    /// Planned number of input rows.
    pub rows: usize,
    /// Number of labels.
    pub labels: usize,
}

/// The utterances of a training set.
#[derive(Debug)]
pub enum UtteranceStore {
    /// Features in memory.
    Memory(Vec<Example>),
    /// Audio on disk, which is read when a batch needs it.
    Disk(Box<StreamedSet>),
}

impl UtteranceStore {
    /// Returns the number of utterances.
    pub fn count(&self) -> usize {
        match self {
            Self::Memory(examples) => examples.len(),
            Self::Disk(set) => set.count(),
        }
    }

    /// Returns the bytes in memory.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Memory(examples) => examples.iter().map(Example::bytes).sum(),
            Self::Disk(set) => set.bytes(),
        }
    }

    /// Returns the length of an utterance in seconds.
    pub fn seconds(&self, index: usize) -> f64 {
        match self {
            Self::Memory(examples) => examples[index].seconds,
            Self::Disk(set) => set.seconds(index),
        }
    }
}

impl<'a> TrainingSet<'a> {
    /// Creates the batches of a recipe from these utterances.
    pub fn new(store: &'a UtteranceStore, recipe: &'a Recipe, front_end: &'a FrontEnd) -> Self {
        let frames = |index: usize| match store {
            UtteranceStore::Memory(examples) => examples[index].features.frames,
            UtteranceStore::Disk(set) => {
                let rate = f64::from(front_end.config().sample_rate);
                front_end.frames((set.seconds(index) * rate).round() as usize)
            }
        };
        let stride = recipe.encoder.rows.stride;
        let rows = (0..store.count()).map(|index| frames(index).div_ceil(stride)).collect();
        TrainingSet { store, recipe, front_end, rows, plan: None }
    }

    /// Limits batches to the memory plan of a run.
    pub(crate) fn with_plan(mut self, plan: Option<(RunPlan, Model)>) -> Self {
        self.plan = plan;
        self
    }

    /// Returns true if a step of these utterances fits into memory.
    fn fits(&self, utterances: usize, rows: usize) -> bool {
        self.plan.as_ref().is_none_or(|(plan, model)| plan.fits(model, utterances, rows))
    }

    /// Returns the input rows of the longest utterance.
    pub fn longest(&self) -> usize {
        self.rows.iter().copied().max().unwrap_or(0)
    }

    /// Returns the utterances that need the most memory in a loss.
    ///
    /// These are the longest one and, of those in memory, the one with the largest product of input
    /// rows and labels.
    ///
    /// # Errors
    /// Those of reading an entry from disk.
    pub(crate) fn largest(&self) -> Result<Vec<LargestUtterance>> {
        let rows = || self.rows.iter().copied().enumerate();
        match self.store {
            UtteranceStore::Memory(examples) => {
                let longest = rows().map(|(at, rows)| (rows, at)).max();
                let pairs = |(at, rows): (usize, usize)| (rows * (examples[at].labels.len() + 1), at);
                let describe = |(_, at): (usize, usize)| {
                    let Example { id, labels, .. } = &examples[at];
                    LargestUtterance { id: id.clone(), rows: self.rows[at], labels: labels.len() }
                };
                Ok(longest.into_iter().chain(rows().map(pairs).max()).map(describe).collect())
            }
            UtteranceStore::Disk(set) => {
                let mut order: Vec<(usize, usize)> = rows().map(|(at, rows)| (rows, at)).collect();
                order.sort_unstable();
                for (rows, at) in order.into_iter().rev() {
                    if let Some((id, labels)) = set.id_and_labels(at)? {
                        return Ok(vec![LargestUtterance { id, rows, labels: labels.len() }]);
                    }
                }
                Ok(Vec::new())
            }
        }
    }

    /// Returns true if an utterance is too long for a step.
    fn is_too_large(&self, index: usize, features: &Features) -> bool {
        let rows = features.frames.div_ceil(self.recipe.encoder.rows.stride);
        let planned = (self.rows[index] as f64 * self.recipe.augment.stretch()).ceil() as usize;
        rows > planned && !self.fits(1, rows)
    }

    fn augment(&self, epoch: u64, index: usize, features: &Features) -> Features {
        let AugmentConfig { perturb, mask, .. } = &self.recipe.augment;
        let mut rng = stream(self.recipe.seed, Purpose::Augment, epoch, index as u64);
        let normalization = self.recipe.features.normalize;
        let mut features = perturb.apply(features, &self.front_end.mel_scale(), normalization, &mut rng);
        mask.apply(&mut features, &mut rng);
        features
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
            UtteranceStore::Disk(set) => set.take_warning().into_iter().collect(),
        }
    }

    fn batch(&self, epoch: u64, utterances: &[usize]) -> Result<Batch> {
        let (mut absent, mut bad) = (Vec::new(), BadItems::default());
        let (mut ids, mut labels, mut features, mut seconds) = (Vec::new(), Vec::new(), Vec::new(), 0.0);
        for &index in utterances {
            let (id, label_ids, length, augmented) = match self.store {
                UtteranceStore::Memory(examples) => {
                    let Example { id, labels, seconds, features, .. } = &examples[index];
                    (id.clone(), labels.clone(), *seconds, self.augment(epoch, index, features))
                }
                UtteranceStore::Disk(set) => {
                    let utterance = set.read(epoch, index, self.front_end, &mut bad)?;
                    let Some(StreamedUtterance { id, labels, seconds, features }) = utterance else {
                        absent.push(index);
                        continue;
                    };
                    if self.is_too_large(index, &features) {
                        let error =
                            "it is longer than in its manifest, and a step of it exceeds batch.memory";
                        bad.left_out.push(ExcludedUtterance {
                            id,
                            reason: error.to_owned(),
                            has_other_rate: false,
                        });
                        absent.push(index);
                        continue;
                    }
                    (id, labels, seconds, self.augment(epoch, index, &features))
                }
            };
            ids.push(id);
            labels.push(label_ids);
            seconds += length;
            features.push(augmented);
        }
        let features: Vec<&Features> = features.iter().collect();
        let (rows, lengths) = model::collate(&features, &self.recipe.encoder.rows)?;
        Ok(Batch { ids, seconds, absent, bad, ..Batch::new(rows, lengths, labels) })
    }
}
