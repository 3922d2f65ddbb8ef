//! `StepReport`: the losses and times of an optimizer step.

/// One optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct StepReport {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Batch of the epoch, from 0.
    pub batch: u64,
    /// Batches of the epoch.
    pub batches: u64,
    /// Step of the run, from 0.
    pub step: u64,
    /// Steps of the whole run, an estimate until the last epoch.
    ///
    /// Later epochs count like this one; the order of an epoch determines its number of batches.
    pub steps: u64,
    /// Mean transducer loss of the batch.
    pub loss: f64,
    /// Mean CTC loss of the batch.
    pub ctc_loss: f64,
    /// Mean loss of the batch with the simple joiner; 0 without pruning.
    pub simple_loss: f64,
    /// Learning rate.
    pub learning_rate: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Length of the audio of the batch in seconds.
    pub audio_seconds: f64,
    /// Wall time of the step in seconds.
    pub seconds: f64,
}
