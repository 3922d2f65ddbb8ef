//! What a step minimizes.
use model::{LossSessions, Losses, Model, TrainingPass};

use crate::Result;
use crate::data::Batch;

/// What is minimised, from batches of rows and labels.
pub trait TrainingObjective: Send + Sync {
    /// Losses of a batch that is all or a part of the `of` utterances of an optimizer step; see [`Losses::mean`]. With a training pass, dropout
    /// is on.
    ///
    /// # Errors
    /// [`model::Error::Shape`] or [`model::Error::Loss`] if the batch does not fit the model.
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        of: usize,
        step: u64,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Losses>;
}

/// What the model's own configuration says.
impl TrainingObjective for LossSessions {
    fn losses(
        &self,
        model: &Model,
        batch: &Batch,
        of: usize,
        step: u64,
        pass: Option<&mut TrainingPass>,
    ) -> Result<Losses> {
        Ok(model.losses(self, batch.labeled(), of, step, pass)?)
    }
}
