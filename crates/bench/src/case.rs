//! Descriptions of benchmark cases: sizes, task, and the systems to compare.
//!
//! The parent process sends a case to a child process as a `CaseSpec` in JSON.
use std::path::PathBuf;

use kernels::packed::NumberFormat;
use serde::{Deserialize, Serialize};

/// The number format of a packed encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EncoderFormat {
    F32,
    Bf16,
    Q8,
}

impl From<EncoderFormat> for NumberFormat {
    fn from(format: EncoderFormat) -> Self {
        match format {
            EncoderFormat::F32 => NumberFormat::F32,
            EncoderFormat::Bf16 => NumberFormat::Bf16,
            EncoderFormat::Q8 => NumberFormat::Q8,
        }
    }
}

/// The cases of a suite, and the titles of its plot.
pub(crate) struct Plan {
    /// Name on the command line.
    pub suite: &'static str,
    /// Title of the plot.
    pub title: &'static str,
    /// Name of the horizontal axis of the plot.
    pub axis: &'static str,
    /// Cases in the order of execution.
    pub cases: Vec<Case>,
}

/// One piece of work that several systems run in turn.
pub(crate) struct Case {
    /// Name in the table.
    pub name: String,
    /// Place on the horizontal axis of the plot; none for cases of the table only.
    pub mark: Option<PlotMark>,
    /// The work.
    pub work: CaseWork,
    /// Systems to compare, panda first; see [`Case::baseline`].
    pub systems: Vec<System>,
}

impl Case {
    /// Returns the index of the system to compare a system's gradients with.
    ///
    /// By default, it is the last system. The systems of a pruned case come in pairs over the same
    /// sites, panda first.
    pub(crate) fn baseline(&self, index: usize) -> Option<usize> {
        let baseline = match self.work {
            // The pairs are systems 0 and 1, and 2 and 3.
            CaseWork::Pruned(_) => index | 1,
            // Only the two training steps have gradients; the second one keeps all weights.
            CaseWork::Recognition(_) => index.max(1),
            // No gradients to compare.
            CaseWork::Decode(_) | CaseWork::Train(_) | CaseWork::Encode(_) => index,
            _ => self.systems.len() - 1,
        };
        (baseline != index).then_some(baseline)
    }
}

/// Place of a case on the horizontal axis of the plot.
#[derive(Clone)]
pub(crate) struct PlotMark {
    /// Position; the axis is logarithmic.
    pub x: f64,
    /// Label of the axis at this position.
    pub label: String,
}

/// An implementation that takes part in a comparison.
#[derive(Clone)]
pub(crate) struct System {
    /// Name in table, plot and JSON.
    pub name: String,
    /// Implementation.
    pub method: Method,
    /// Threads of its process.
    pub threads: usize,
}

/// Implementation of a piece of work.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum Method {
    /// This project.
    ///
    /// [`rnnt_loss::Session`] for losses, [`rnnt_dp`] for given emissions,
    /// [`lattice::LatticeSession`] for recognition lattices.
    Panda {
        /// Memory of the loss.
        budget: Budget,
        /// [`rnnt_loss::Options::skip`]
        skip: f64,
        /// True if matrix products of the head are in bf16.
        #[serde(default)]
        bf16: bool,
    },
    /// Dense baseline: logits of all padded sites in one candle tensor, autograd.
    ///
    /// For given emissions: textbook loops.
    Baseline,
    /// [`rnnt_loss::Session`] with [`rnnt_loss::Loss::Pruned`].
    Pruned(Budget),
    /// First pass of this project, logits of the retained sites in candle.
    PrunedBaseline,
    /// Greedy search.
    Decode(GreedyVariant),
    /// Best path of a recognition lattice.
    BestPath,
    /// Sum over all paths of a recognition lattice.
    Denominator,
    /// [`model::encoders::PackedFastConformer`].
    Encode {
        /// Number format of weights and products.
        format: EncoderFormat,
    },
    /// [`training::Learner`] with LAMB.
    Train {
        /// True if it also averages the weights.
        ema: bool,
    },
}

/// Variant of greedy search; all variants return the same labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GreedyVariant {
    /// [`decoding::GreedySearch`] with its default look-ahead.
    LookAhead,
    /// [`decoding::GreedySearch`], one frame at a time.
    OneFrame,
    /// One frame at a time, without precomputed projections.
    Unprojected,
    /// [`decoding::frame_looping`], without precomputed projections.
    FrameLooping,
}

/// Memory of the loss: limit, and whether scores are kept for backward.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Budget {
    /// Keep no scores.
    Recompute,
    /// Keep all scores.
    Unlimited,
    /// Limit in bytes.
    Bytes(usize),
}

/// Inputs and task of a case.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) enum CaseWork {
    /// Transducer loss and gradients of synthetic projected rows and a head.
    Loss(LossSizes),
    /// The same with a simple joiner, whose first pass selects the sites.
    ///
    /// A simple joiner adds frame and label scores without activation; a site is a lattice node.
    /// [`Method::Panda`] and [`Method::Baseline`] compute the loss over all sites.
    Pruned(PrunedWork),
    /// Loss and adjoints of lattices with given emissions.
    Lattices {
        /// Utterances, frames and labels (B, T, U); the lengths are ragged.
        sizes: [usize; 3],
    },
    /// Greedy search on synthetic encoder outputs.
    Decode(DecodeWork),
    /// Loss with gradients, best paths or denominators of synthetic recognition lattices.
    Recognition(RecognitionWork),
    /// A training step on a synthetic batch.
    Train(TrainWork),
    /// A FastConformer encoder on one synthetic utterance.
    Encode(EncodeWork),
    /// Transducer loss and gradients of a trained model on recordings.
    Model {
        /// A checkpoint of `panda train`.
        checkpoint: PathBuf,
        /// A JSONL manifest.
        manifest: PathBuf,
        /// Maximum number of utterances.
        utterances: usize,
    },
}

/// Sizes of a synthetic batch.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct LossSizes {
    /// Utterances, B.
    pub batch: usize,
    /// Frames of the longest utterance, T.
    pub frames: usize,
    /// Labels of the longest utterance, U.
    pub labels: usize,
    /// Width of the joint network, H.
    pub hidden: usize,
    /// Classes, C.
    pub classes: usize,
    /// Shape of the posteriors.
    #[serde(rename = "model")]
    pub posteriors: Posteriors,
    /// Lengths of the utterances.
    pub lengths: LengthSpread,
}

/// Distribution of the lengths of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum LengthSpread {
    /// From T to .907 T frames and from U to .542 U labels (arXiv 2211.16270).
    Ragged,
    /// T frames and U labels for all utterances.
    Even,
}

/// Sizes of a batch for a pruned loss.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct PrunedWork {
    /// Batch.
    pub loss: LossSizes,
    /// Retained label positions per frame.
    pub s_range: usize,
    /// Source of the scores of the simple joiner.
    pub scores: FirstPassScores,
}

/// Utterances to decode.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct DecodeWork {
    /// Kind of model.
    pub family: Family,
    /// Utterances, B.
    pub batch: usize,
    /// Total number of utterances.
    pub utterances: usize,
}

/// Recognition lattices with 32 labels, at most one per frame.
///
/// Joint network, context embeddings and frame features have width 512.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct RecognitionWork {
    /// Utterances, B.
    pub batch: usize,
    /// Frames of each utterance, T.
    pub frames: usize,
    /// Labels of each utterance, U.
    pub labels: usize,
    /// Number of labels in a context state.
    pub context: usize,
}

/// Sizes of a model like [`model::ModelConfig::mlperf`], and of its batch.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct TrainWork {
    /// Utterances, B.
    pub batch: usize,
    /// Encoder input rows per utterance, of 3 frames each; the encoder halves their number.
    pub rows: usize,
    /// Labels of each utterance, U.
    pub labels: usize,
    /// Vocabulary size without the blank.
    pub tokens: usize,
    /// Widths of encoder, predictor and joint.
    pub widths: [usize; 3],
}

/// Sizes of a FastConformer encoder and of its utterance.
///
/// It has 8 heads, 9 taps, 256 channels of the subsampling, and full attention.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct EncodeWork {
    /// Number of layers.
    pub layers: usize,
    /// Width of encoder rows, W; the inner width of feed-forward modules is 4 W.
    pub width: usize,
    /// Mel bins of a frame.
    pub mels: usize,
    /// Frames of an utterance, of 10 ms each.
    pub frames: usize,
    /// Number of utterances.
    pub batch: usize,
}

/// Kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Family {
    /// Regular transducer.
    Rnnt,
    /// Token-and-duration transducer with durations from 0 to 4.
    Tdt,
}

impl Family {
    /// Returns the name of the model in texts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rnnt => "RNN-T",
            Self::Tdt => "TDT",
        }
    }
}

/// Source of the scores of the first pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum FirstPassScores {
    /// Input matrices `[B, T, C]` and `[B, U+1, C]`: [`pruned::Matrices`].
    Matrices,
    /// Two linear layers over the rows: [`pruned::Heads`].
    Heads,
}

/// Shape of the path posteriors of a synthetic model.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Posteriors {
    /// The next label is known, but not its time: all paths have similar posteriors.
    ///
    /// Typical of early training.
    Flat,
    /// The times are known, too: most occupancy is on few sites.
    ///
    /// Typical of a trained model.
    Peaked,
}

/// Description of a case for a child process, as one JSON argument.
#[derive(Serialize, Deserialize)]
pub(crate) struct CaseSpec {
    /// The work.
    pub work: CaseWork,
    /// Implementation.
    pub method: Method,
    /// Threads of the process.
    pub threads: usize,
    /// Approximate time of all timed steps in seconds.
    pub seconds: f64,
    /// Folder to write gradients to, if they are compared.
    pub gradients: Option<PathBuf>,
}
