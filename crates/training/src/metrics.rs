//! `Metrics`, a row of `metrics.csv`; `LossSums` of a step; `peak_resident_bytes`.
use serde::{Deserialize, Serialize};

/// A row of `metrics.csv`: one epoch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Number of complete epochs.
    pub epoch: u64,
    /// Number of optimizer steps.
    pub step: u64,
    /// Mean transducer loss of an utterance; in pruned training that of the joint network.
    pub loss: f64,
    /// Mean CTC loss of an utterance; 0 without that head.
    pub ctc_loss: f64,
    /// Mean loss of an utterance with the simple joiner; 0 without pruning.
    #[serde(default)]
    pub simple_loss: f64,
    /// Learning rate of the last step.
    pub learning_rate: f64,
    /// Mean norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Utterances without a path, for one of the losses.
    pub skipped: u64,
    /// Steps that were skipped because their loss or gradient was not finite.
    #[serde(default)]
    pub nonfinite: u64,
    /// Fraction of the rows of the epoch's batches that is padding.
    #[serde(default)]
    pub padding: f64,
    /// Bytes of the memory plan; 0 without a plan.
    #[serde(default)]
    pub planned_bytes: u64,
    /// Peak bytes in memory of the process so far; 0 where the system does not report it.
    #[serde(default)]
    pub resident_bytes: u64,
    /// Wall time of the epoch's training in seconds; after a resumption, of its remaining part.
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
    /// Utterances without a path; they are not in the sums of losses.
    pub skipped: u64,
    /// Transducer losses; in pruned training those of the joint network.
    pub loss: f64,
    /// CTC losses.
    pub ctc_loss: f64,
    /// Losses with the simple joiner.
    pub simple_loss: f64,
    /// Length of the audio of the utterances in seconds.
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

/// Returns the peak memory of this process in bytes, if available.
pub fn peak_resident_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok()?.checked_mul(1024)
}
