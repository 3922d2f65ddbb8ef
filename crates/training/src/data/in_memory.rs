//! A training set whose features are in memory, augmented anew in each epoch.
use speech::batching::Padding;
use speech::{Features, MelScale};

use super::{Batch, Example, Source, batch};
use crate::Result;
use crate::random::{Purpose, stream};
use crate::recipe::{Augment, Recipe};

/// Batches of examples in memory, as a recipe wants them.
#[derive(Debug)]
pub struct InMemory<'a> {
    examples: &'a [Example],
    recipe: &'a Recipe,
    scale: MelScale,
}

impl<'a> InMemory<'a> {
    /// Batches of these examples, on a front end's frequency axis.
    pub fn new(examples: &'a [Example], recipe: &'a Recipe, scale: MelScale) -> Self {
        InMemory { examples, recipe, scale }
    }

    fn augmented(&self, epoch: u64, index: usize) -> Features {
        let Augment { perturb, mask, .. } = &self.recipe.augment;
        let mut rng = stream(self.recipe.seed, Purpose::Augment, epoch, index as u64);
        let features = &self.examples[index].features;
        let mut plane = perturb.apply(features, &self.scale, self.recipe.features.normalise, &mut rng);
        mask.apply(&mut plane, &mut rng);
        plane
    }
}

impl Source for InMemory<'_> {
    fn plan(&self, epoch: u64) -> Result<Vec<Vec<usize>>> {
        let mut rng = stream(self.recipe.seed, Purpose::Order, epoch, 0);
        let rows = batch::rows(self.examples, &self.recipe.encoder.rows);
        let seconds: Vec<f64> = self.examples.iter().map(|example| example.seconds).collect();
        batch::train_plan(&rows, &seconds, &self.recipe.batch, &mut rng)
    }

    fn padding(&self, plan: &[Vec<usize>]) -> f64 {
        Padding::of(&batch::rows(self.examples, &self.recipe.encoder.rows), plan).share()
    }

    fn batch(&self, epoch: u64, utterances: &[usize]) -> Result<Batch> {
        let planes: Vec<Features> = utterances.iter().map(|&index| self.augmented(epoch, index)).collect();
        let planes: Vec<&Features> = planes.iter().collect();
        let (rows, lengths) = batch::collate(&planes, &self.recipe.encoder.rows)?;
        let chosen = || utterances.iter().map(|&index| &self.examples[index]);
        Ok(Batch {
            ids: chosen().map(|example| example.id.clone()).collect(),
            seconds: chosen().map(|example| example.seconds).sum(),
            rows,
            lengths,
            labels: chosen().map(|example| example.labels.clone()).collect(),
        })
    }
}
