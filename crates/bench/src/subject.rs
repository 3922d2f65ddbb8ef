//! Who is measured.
use super::answer::{DecodingReport, PruningReport, Shape, SkipReport, TrainingReport};
use super::error::Result;
use super::gradients::Gradients;

/// A system with its inputs in place.
pub trait Subject {
    /// Sizes of the work.
    fn shape(&self) -> Shape;
    /// Bytes of what a step returns.
    fn result_bytes(&self) -> u64;
    /// Floating-point operations of a step's matrix products, known after a step.
    fn operations(&self) -> Option<u64>;
    /// Forward and backward, once.
    fn step(&mut self) -> Result<Gradients>;
    /// What the last step's skipping cost, compared with a step that skips nothing.
    fn skip_report(&mut self) -> Result<Option<SkipReport>> {
        Ok(None)
    }
    /// Whether the last step's outcome is right, where that can be known; outside of all that is measured.
    ///
    /// # Errors
    /// It is not.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
    /// What the last step decoded.
    fn decoding_report(&self) -> Option<DecodingReport> {
        None
    }
    /// Steps before the first that is timed; the peak is that of all of them.
    fn warm_up(&self) -> usize {
        1
    }
    /// How long the parts of a step take, measured now, and what it cannot do without.
    ///
    /// # Errors
    /// As [`Self::step`].
    fn training_report(&mut self) -> Result<Option<TrainingReport>> {
        Ok(None)
    }
    /// What the last step's pruning left.
    fn pruning_report(&self) -> Option<PruningReport> {
        None
    }
}
