//! What a run writes down about an epoch.
use serde::{Deserialize, Serialize};

/// One epoch in `metrics.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Epochs done.
    pub epoch: u64,
    /// Optimiser steps done.
    pub step: u64,
    /// Mean transducer loss of an utterance; in pruned training that of the joint network.
    pub loss: f64,
    /// Mean CTC loss of an utterance; 0 without that head.
    pub ctc_loss: f64,
    /// Mean loss of an utterance under the trivial joiner; 0 without pruning.
    #[serde(default)]
    pub simple_loss: f64,
    /// Step size of the last step.
    pub learning_rate: f64,
    /// Mean norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Utterances that no path explains, for one of the losses.
    pub skipped: u64,
    /// Batches that were skipped since their loss or gradient was no number.
    #[serde(default)]
    pub nonfinite: u64,
    /// Share of the rows of the epoch's batches that are padding.
    #[serde(default)]
    pub padding: f64,
    /// Bytes that the run may take at most, as it was planned; 0 without a plan.
    #[serde(default)]
    pub planned_bytes: u64,
    /// Most bytes of memory that the process has held so far; 0 where the system does not say.
    #[serde(default)]
    pub resident_bytes: u64,
    /// Wall time of the epoch's training in seconds; after a resumption, of the part that was left.
    pub seconds: f64,
    /// Word error rate on the dev set, where it was evaluated.
    pub dev_wer: Option<f64>,
    /// Character error rate on the dev set, where it was evaluated.
    #[serde(default)]
    pub dev_cer: Option<f64>,
}

/// Sums over the utterances of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LossSums {
    /// Utterances.
    pub utterances: u64,
    /// Those that were left out since no path explains them.
    pub skipped: u64,
    /// Transducer losses; in pruned training those of the joint network.
    pub loss: f64,
    /// CTC losses.
    pub ctc_loss: f64,
    /// Losses under the trivial joiner.
    pub simple_loss: f64,
    /// Length of the audio in seconds.
    pub audio_seconds: f64,
}

impl std::ops::AddAssign for LossSums {
    fn add_assign(&mut self, other: Self) {
        self.utterances += other.utterances;
        self.skipped += other.skipped;
        self.loss += other.loss;
        self.ctc_loss += other.ctc_loss;
        self.simple_loss += other.simple_loss;
        self.audio_seconds += other.audio_seconds;
    }
}

/// Returns the most bytes that this process has held in memory so far; none where the system does not report it.
pub fn peak_resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}
