//! Errors of training and of the files of a run.
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use kernels::{Excerpt, ShortFloat};

use speech::memory;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of training, which names the argument or the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An output that would overwrite one of its inputs.
    #[error("{}: expected an output other than the inputs, found the input {}", output.display(), input.display())]
    OutputIsInput {
        /// The output.
        output: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// An output that would overwrite a file of a run.
    #[error("{}: expected another name or folder, found a name that the run in this folder uses for a file", output.display())]
    OutputOfRun {
        /// The output.
        output: PathBuf,
    },
    /// Two outputs with the same file.
    #[error("{}: expected a separate file for each output, found that of the other output, {}", output.display(), other.display())]
    OutputTwice {
        /// The output.
        output: PathBuf,
        /// The other output.
        other: PathBuf,
    },
    /// A run folder that contains a run.
    #[error("{}: expected a new folder, found a run; --resume continues it, --force replaces it", path.display())]
    RunExists {
        /// The run folder.
        path: PathBuf,
    },
    /// A recipe in the run folder that no run has written.
    #[error("{}: expected no such file, or one written by a run, found another; select another folder with --run", path.display())]
    ForeignRecipe {
        /// The recipe.
        path: PathBuf,
    },
    /// A run folder that another process uses.
    #[error("{}: expected a folder that no other process uses, found another process that trains in it", path.display())]
    RunLocked {
        /// The run folder.
        path: PathBuf,
    },
    /// A run without its checkpoint `last.safetensors`.
    #[error(
        "{}: expected the checkpoint of the run, found only {}; restore it, copy a checkpoint such as best.safetensors to its name, \
         or start again with --force",
        path.display(),
        found.display()
    )]
    NoCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// Another file of the run.
        found: PathBuf,
    },
    /// An average of no checkpoints.
    #[error("average: expected at least one checkpoint, found none")]
    NoCheckpoints,
    /// A run with fewer epoch checkpoints than requested.
    #[error("{}: expected {expected}, found {found}; training.keep sets how many a run keeps", path.display())]
    TooFewCheckpoints {
        /// The run folder.
        path: PathBuf,
        /// What was requested.
        expected: String,
        /// Number of such epochs.
        found: usize,
    },
    /// A run whose checkpoint cannot be read.
    #[error("{source}; to resume from an earlier state, {}start again with --force", if *best {
        "copy best.safetensors to its name, or "
    } else {
        ""
    })]
    Resume {
        /// What is wrong with the checkpoint.
        source: Box<Error>,
        /// True if `best.safetensors` is valid.
        best: bool,
    },
    /// A resumed run whose recipe has another number of epochs.
    #[error(
        "training.epochs: expected {old}, as in the checkpoint, found {epochs} in the recipe; add --epochs {epochs} to change the number"
    )]
    Epochs {
        /// Epochs of the checkpoint's recipe.
        old: u64,
        /// Epochs of the recipe.
        epochs: u64,
    },
    /// A run of fewer epochs than it has begun.
    #[error(
        "--epochs: expected at least {begun}, the number of epochs that the run has begun, found {epochs}; epoch checkpoints (training.keep) have earlier weights"
    )]
    EpochsDone {
        /// Number of epochs that are complete or begun.
        begun: u64,
        /// Requested number of epochs.
        epochs: u64,
    },
    /// A resumed run whose data differs from that of its checkpoint.
    #[error(
        "{set}: expected the data of the checkpoint, found {}; --changed-data continues with it",
        Excerpt(found)
    )]
    DataChanged {
        /// `data.train`, `data.dev` or `data.test`.
        set: &'static str,
        /// The first difference.
        found: String,
    },
    /// A score, loss, gradient or weight that is no longer finite.
    #[error("step {step}: expected a finite {what}{}; utterances {}", format_value(*found), format_names(utterances))]
    Diverged {
        /// Optimizer step.
        step: u64,
        /// The first value that is not finite.
        what: Cow<'static, str>,
        /// The value, if known.
        found: Option<f64>,
        /// Ids of the batch.
        utterances: Vec<String>,
        /// The error of the loss, with the position; none for values that the training loop checks.
        source: Option<Box<Error>>,
    },
    /// An error in another process of a run.
    #[error("rank {rank}: {message}")]
    Rank {
        /// The rank of the process.
        rank: usize,
        /// Its message.
        message: String,
    },
    /// An all-reduce that failed.
    #[error(transparent)]
    Distributed(distributed::Error),
    /// A memory budget that is too small for a run.
    #[error("memory: expected at least {} ({smallest} bytes), the smallest budget of this run, found {} ({budget} bytes)", memory::format_bytes(*smallest), memory::format_bytes(*budget))]
    Budget {
        /// The budget in bytes.
        budget: usize,
        /// The smallest budget of this run in bytes.
        smallest: usize,
    },
    /// A custom part without a memory plan, with a memory budget.
    #[error(
        "memory: expected parts with a memory plan, found {what}, which has none; leave out batch.memory, or implement the plan"
    )]
    NoPlan {
        /// The part.
        what: String,
    },
    /// An encoder cache that is damaged, or of another run.
    #[error("{}: expected {expected}, found {found}; remove the file to compute it again", path.display())]
    EncoderCache {
        /// The file.
        path: PathBuf,
        /// What is expected.
        expected: String,
        /// What was found.
        found: Cow<'static, str>,
    },
    /// An error in the contents of a file.
    #[error("{}: {source}", path.display())]
    Inside {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<Error>,
    },
    /// The stop flag was set before there was anything to save.
    #[error("stopped")]
    Stopped,
    /// An error of the model, its files or its input.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// An error of recognition or of reading recordings.
    #[error(transparent)]
    Recognizer(recognizer::Error),
}

model::convert_model_errors!(Error: model::LayerError, candle_core::Error, rnnt_loss::Error, speech::Error);

impl From<recognizer::Error> for Error {
    fn from(error: recognizer::Error) -> Self {
        match error {
            recognizer::Error::Model(error) => Error::Model(error),
            recognizer::Error::Stopped => Error::Stopped,
            error => Error::Recognizer(error),
        }
    }
}

/// Formats names in quotes, each abbreviated if it is long.
fn format_names(utterances: &[String]) -> String {
    let quoted: Vec<String> =
        utterances.iter().map(|id| Excerpt(format_args!("{id:?}")).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}

fn format_value(found: Option<f64>) -> String {
    found.map_or(String::new(), |found| format!(", found {}", ShortFloat(found)))
}

impl Error {
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        model::Error::shape(argument, expected, found).into()
    }

    /// Returns a closure for `map_err` that adds file and action.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| model::Error::io(path, action)(source).into()
    }

    pub(crate) fn checkpoint(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        model::Error::checkpoint(path, expected, found).into()
    }
}
