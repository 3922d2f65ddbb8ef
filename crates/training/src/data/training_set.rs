//! `TrainingSet`: plans, loads and augments batches, from memory or from disk.
use rayon::prelude::*;
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

/// Values that are converted to bytes at once.
const VALUES_PER_BLOCK: usize = 1 << 12;

/// The batches of a recipe, augmented anew in each epoch.
pub struct TrainingSet<'a> {
    store: &'a UtteranceStore,
    recipe: &'a Recipe,
    front_end: &'a FrontEnd,
    /// Planned number of input rows of each utterance.
    row_counts: Vec<usize>,
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
        let frames_of = |index: usize| match store {
            UtteranceStore::Memory(examples) => examples[index].features.frames,
            UtteranceStore::Disk(set) => {
                let rate = f64::from(front_end.config().sample_rate);
                front_end.frames((set.seconds(index) * rate).round() as usize)
            }
        };
        let stride = recipe.encoder.rows.stride;
        let row_counts = (0..store.count()).map(|index| frames_of(index).div_ceil(stride)).collect();
        TrainingSet { store, recipe, front_end, row_counts, plan: None }
    }

    /// Limits batches to the memory plan of a run.
    pub(crate) fn with_plan(mut self, plan: Option<(RunPlan, Model)>) -> Self {
        self.plan = plan;
        self
    }

    /// Returns the length of an utterance in seconds.
    pub(super) fn seconds(&self, index: usize) -> f64 {
        self.store.seconds(index)
    }

    /// Returns name and labels of an utterance without its features; none if it is bad.
    ///
    /// # Errors
    /// Those of reading an entry from disk.
    pub(super) fn id_and_labels(&self, index: usize) -> Result<Option<(String, Vec<u32>)>> {
        match self.store {
            UtteranceStore::Memory(examples) => {
                let Example { id, labels, .. } = &examples[index];
                Ok(Some((id.clone(), labels.clone())))
            }
            UtteranceStore::Disk(set) => Ok(set.id_and_labels(index)?),
        }
    }

    /// Returns a hash of the content of each utterance, in parallel.
    ///
    /// It is that of the features, or of the entry with path, size and time of the audio files.
    ///
    /// # Errors
    /// Those of reading an entry from disk, other than of a bad one.
    pub(super) fn content_hashes(&self) -> Result<Vec<[u8; 16]>> {
        let hash = |index: usize| match self.store {
            UtteranceStore::Memory(examples) => Ok(features_hash(&examples[index].features)),
            UtteranceStore::Disk(set) => Ok(set.content_hash(index)?),
        };
        (0..self.store.count()).into_par_iter().map(hash).collect()
    }

    /// Divides all utterances into batches of similar length.
    pub(super) fn plan_by_length(&self, fits: &dyn Fn(usize, usize) -> bool) -> Vec<Vec<usize>> {
        let size = self.recipe.batch.size();
        let fits = |count: usize, longest: usize| size.fits(count, longest) && fits(count, longest);
        speech::batching::plan_batches_with(&self.row_counts, &fits, None)
    }

    /// Returns true if a step of such utterances fits into memory.
    fn fits(&self, num_utterances: usize, rows: usize) -> bool {
        self.plan.as_ref().is_none_or(|(plan, model)| plan.fits(model, num_utterances, rows))
    }

    /// Returns the input rows of the longest utterance.
    pub fn longest(&self) -> usize {
        self.row_counts.iter().copied().max().unwrap_or(0)
    }

    /// Returns the utterances that need the most memory in a loss.
    ///
    /// These are the longest one and, of those in memory, the one with the largest product of input
    /// rows and labels.
    ///
    /// # Errors
    /// Those of reading an entry from disk.
    pub(crate) fn largest(&self) -> Result<Vec<LargestUtterance>> {
        let indexed_rows = || self.row_counts.iter().copied().enumerate();
        match self.store {
            UtteranceStore::Memory(examples) => {
                let longest = indexed_rows().map(|(index, rows)| (rows, index)).max();
                // The number of sites without time reduction.
                let size_and_index =
                    |(index, rows): (usize, usize)| (rows * (examples[index].labels.len() + 1), index);
                let describe = |(_, index): (usize, usize)| {
                    let Example { id, labels, .. } = &examples[index];
                    LargestUtterance { id: id.clone(), rows: self.row_counts[index], labels: labels.len() }
                };
                Ok(longest
                    .into_iter()
                    .chain(indexed_rows().map(size_and_index).max())
                    .map(describe)
                    .collect())
            }
            UtteranceStore::Disk(set) => {
                let mut by_length: Vec<(usize, usize)> =
                    indexed_rows().map(|(index, rows)| (rows, index)).collect();
                by_length.sort_unstable();
                for (rows, index) in by_length.into_iter().rev() {
                    if let Some((id, labels)) = set.id_and_labels(index)? {
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
        let max_planned_rows =
            (self.row_counts[index] as f64 * self.recipe.augment.stretch()).ceil() as usize;
        rows > max_planned_rows && !self.fits(1, rows)
    }

    /// Perturbs and masks features, at random by utterance and epoch.
    fn augment(&self, epoch: u64, index: usize, features: &Features) -> Features {
        let AugmentConfig { perturb, mask, .. } = &self.recipe.augment;
        let mut rng = stream(self.recipe.seed, Purpose::Augment, epoch, index as u64);
        let normalization = self.recipe.features.normalize;
        let mut features = perturb.apply(features, &self.front_end.mel_scale(), normalization, &mut rng);
        mask.apply(&mut features, &mut rng);
        features
    }
}

/// Returns a hash of the shape and the values of features.
fn features_hash(features: &Features) -> [u8; 16] {
    let mut hash = md5::Context::new();
    hash.consume(format!("{} {}", features.frames, features.dim));
    for block in features.data.chunks(VALUES_PER_BLOCK) {
        hash.consume(block.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
    }
    hash.finalize().0
}

impl BatchSource for TrainingSet<'_> {
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>> {
        let mut rng = stream(self.recipe.seed, Purpose::BatchOrder, epoch, 0);
        let seconds: Vec<f64> = (0..self.store.count()).map(|index| self.store.seconds(index)).collect();
        let fits = |num_utterances, rows| self.fits(num_utterances, rows);
        batch::plan_training_batches(&self.row_counts, &seconds, &self.recipe.batch, &fits, &mut rng)
    }

    fn padding(&self, plan: &[Vec<usize>]) -> f64 {
        Padding::new(&self.row_counts, plan).fraction()
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
        let (mut ids, mut labels, mut features) = (Vec::new(), Vec::new(), Vec::new());
        let mut audio_seconds = 0.0;
        for &index in utterances {
            let (id, utterance_labels, seconds, augmented_features) = match self.store {
                UtteranceStore::Memory(examples) => {
                    let Example { id, labels, seconds, features, .. } = &examples[index];
                    (id.clone(), labels.clone(), *seconds, self.augment(epoch, index, features))
                }
                UtteranceStore::Disk(set) => {
                    let utterance = set.read_augmented(epoch, index, self.front_end, &mut bad)?;
                    let Some(StreamedUtterance { id, labels, seconds, features }) = utterance else {
                        absent.push(index);
                        continue;
                    };
                    if self.is_too_large(index, &features) {
                        let reason =
                            "it is longer than in its manifest, and a step of it exceeds batch.memory";
                        bad.excluded.push(ExcludedUtterance {
                            id,
                            reason: reason.to_owned(),
                            has_other_rate: false,
                        });
                        absent.push(index);
                        continue;
                    }
                    (id, labels, seconds, self.augment(epoch, index, &features))
                }
            };
            ids.push(id);
            labels.push(utterance_labels);
            audio_seconds += seconds;
            features.push(augmented_features);
        }
        let features: Vec<&Features> = features.iter().collect();
        let (rows, lengths) = model::collate(&features, &self.recipe.encoder.rows)?;
        Ok(Batch { ids, audio_seconds, absent, bad, ..Batch::new(rows, lengths, labels) })
    }
}
