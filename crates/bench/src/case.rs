//! What a suite consists of, and what parent and child process say to each other.
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A suite, ready to be run.
pub struct Plan {
    /// Name on the command line.
    pub suite: &'static str,
    /// Title of the picture.
    pub title: &'static str,
    /// What the horizontal axis of the picture shows.
    pub axis: &'static str,
    /// The cases, in the order in which they are run.
    pub cases: Vec<Case>,
}

/// One piece of work that several systems do in turn.
pub struct Case {
    /// Name in the table.
    pub name: String,
    /// Place on the horizontal axis and what is written there; a case without one is in the table only.
    pub mark: Option<(f64, String)>,
    /// The work.
    pub work: CaseWork,
    /// Who does it, ours first; see [`Case::rival`].
    pub systems: Vec<System>,
}

impl Case {
    /// Whose gradients a system's are compared with: the last one's. Where sites are pruned, systems come in pairs, ours
    /// and a rival over the same sites.
    pub fn rival(&self, place: usize) -> Option<usize> {
        let rival = match self.work {
            CaseWork::Pruned(_) => place | 1,
            // Only a training step has gradients, and the one that keeps all weights is second.
            CaseWork::Recognition(_) => place.max(1),
            // There are none, or none of a rival's.
            CaseWork::Decode(_) | CaseWork::Train(_) => place,
            _ => self.systems.len() - 1,
        };
        (rival != place).then_some(rival)
    }
}

/// Someone who can do a piece of work.
#[derive(Clone)]
pub struct System {
    /// Name in table, picture and JSON.
    pub name: String,
    /// How it is done.
    pub method: Method,
    /// Threads of its process.
    pub threads: usize,
}

/// A way to do a piece of work.
#[derive(Clone, Serialize, Deserialize)]
pub enum Method {
    /// [`rnnt_loss::Session`]; [`rnnt_dp`] where emissions are given; [`lattice::LatticeSession`] on recognition lattices.
    Ours {
        /// Its memory.
        budget: Budget,
        /// [`rnnt_loss::Options::skip`]
        skip: f64,
        /// Whether products of the head are in bf16.
        #[serde(default)]
        bf16: bool,
    },
    /// Scores of all padded sites as one candle tensor, gradients by autograd; where emissions are given, textbook loops.
    Textbook,
    /// [`rnnt_loss::Session`] under [`rnnt_loss::Loss::Pruned`].
    Pruned(Budget),
    /// Our first pass, then scores of the retained sites as one candle tensor, gradients by autograd.
    PrunedTextbook,
    /// A greedy search.
    Decode(GreedyVariant),
    /// The best path of a recognition lattice.
    BestPath,
    /// The sum over all paths of a recognition lattice.
    Denominator,
    /// [`training::Learner`] with LAMB.
    Train {
        /// Whether it also averages the weights.
        ema: bool,
    },
}

/// How a greedy search goes about it; all find the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GreedyVariant {
    /// [`decoding::GreedySearch`] as it is.
    LookAhead,
    /// The same, one frame at a time.
    OneFrame,
    /// The same, with projections and first products computed when they are needed.
    Unprojected,
    /// [`decoding::frame_looping`], with projections and first products computed when they are needed.
    FrameLooping,
}

/// Memory of the loss: its budget and whether scores are kept.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum Budget {
    /// No score is kept.
    Recompute,
    /// Every score is kept.
    Unlimited,
    /// So many bytes.
    Bytes(usize),
}

/// A piece of work: what goes in and what is wanted.
#[derive(Clone, Serialize, Deserialize)]
pub enum CaseWork {
    /// Transducer loss and gradients from projected rows and a head, all made up.
    Loss(LossWork),
    /// The same with a trivial joiner, which may choose the sites.
    Pruned(PrunedWork),
    /// Loss and adjoints of lattices whose emissions are given.
    Lattices {
        /// B, T, U; the lengths are ragged.
        sizes: [usize; 3],
    },
    /// Greedy search on encoder rows, all made up.
    Decode(DecodeWork),
    /// Globally normalised loss, its gradients and best paths of recognition lattices, all made up.
    Recognition(RecognitionWork),
    /// A step of training, the batch made up.
    Train(TrainWork),
    /// Transducer loss and gradients on what a trained model says about recordings.
    Model {
        /// A checkpoint of `panda train`.
        checkpoint: PathBuf,
        /// A JSONL manifest.
        manifest: PathBuf,
        /// At most so many of its utterances.
        utterances: usize,
    },
}

/// Sizes of a made-up batch.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct LossWork {
    /// B
    pub batch: usize,
    /// T of the longest utterance.
    pub frames: usize,
    /// U of the longest utterance.
    pub labels: usize,
    /// H
    pub hidden: usize,
    /// C
    pub classes: usize,
    /// Which model the scores could be from.
    pub model: Posteriors,
    /// Lengths of the utterances.
    pub lengths: LengthSpread,
}

/// How the lengths of a batch are spread.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LengthSpread {
    /// From T down to .907 T frames and from U down to .542 U labels (arXiv 2211.16270).
    Ragged,
    /// All T and U.
    Even,
}

/// A batch of which pruning may retain a part.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct PrunedWork {
    /// The batch.
    pub loss: LossWork,
    /// Label positions that a frame keeps.
    pub s_range: usize,
    /// What the trivial joiner's scores come from.
    pub scores: FirstPassScores,
}

/// Utterances to be decoded.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct DecodeWork {
    /// The kind of model.
    pub family: Family,
    /// B
    pub batch: usize,
    /// Utterances in all.
    pub utterances: usize,
}

/// Recognition lattices over the last few of 32 labels, H = E = F = 512, at most one label a frame.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct RecognitionWork {
    /// B
    pub batch: usize,
    /// T of each utterance.
    pub frames: usize,
    /// U of each utterance.
    pub labels: usize,
    /// Labels that a context state remembers.
    pub context: usize,
}

/// A model in the shape of [`model::ModelConfig::mlperf`], and its batch.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct TrainWork {
    /// B
    pub batch: usize,
    /// Rows of the encoder's input, of 3 frames each, of every utterance; it makes one out of two.
    pub rows: usize,
    /// U of every utterance.
    pub labels: usize,
    /// Labels that the model knows.
    pub tokens: usize,
    /// Widths of encoder, predictor and joint.
    pub widths: [usize; 3],
}

/// A kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// The regular transducer.
    Rnnt,
    /// Token and duration transducer, durations from 0 to 4.
    Tdt,
}

impl Family {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rnnt => "RNN-T",
            Self::Tdt => "TDT",
        }
    }
}

/// Where the scores of the first pass come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstPassScores {
    /// Matrices *B x T x C* and *B x (U+1) x C* that are inputs: [`pruned::Matrices`].
    Matrices,
    /// Two linear layers over the rows: [`pruned::Heads`].
    Heads,
}

/// How much a made-up model knows of its labels and their times.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Posteriors {
    /// Which label comes next, but not when: every path has its share, as early in training.
    Flat,
    /// Also when, as a trained model does: next to all occupancy lies on few sites.
    Peaked,
}

/// What a child process is told, as one JSON argument.
#[derive(Serialize, Deserialize)]
pub struct Spec {
    /// The work.
    pub work: CaseWork,
    /// The way to do it.
    pub method: Method,
    /// Threads of the process.
    pub threads: usize,
    /// Seconds to spend in timed steps, about.
    pub seconds: f64,
    /// Where gradients are to be written, if they are wanted.
    pub gradients: Option<PathBuf>,
}
