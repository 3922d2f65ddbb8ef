//! Errors of training and of the files of a run.
use std::borrow::Cow;
use std::path::{Path, PathBuf};

use kernels::{Brief, Excerpt};

use speech::memory;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of training; the message names the argument or file, what was expected and what was found.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A result that would take the place of what it is made from.
    #[error("{}: expected another file to write to, found the input {}", output.display(), input.display())]
    OutputIsInput {
        /// Where it should go.
        output: PathBuf,
        /// The input.
        input: PathBuf,
    },
    /// A result that would take the place of a file of a run.
    #[error("{}: expected another name or folder, found one that a run in this folder uses for its own file", output.display())]
    OutputOfRun {
        /// Where it should go.
        output: PathBuf,
    },
    /// Two results in one place.
    #[error("{}: expected a place of its own for each output, found the other one, {}", output.display(), other.display())]
    OutputTwice {
        /// Where one of them should go.
        output: PathBuf,
        /// Where the other one goes.
        other: PathBuf,
    },
    /// A run folder that already holds a run.
    #[error("{}: expected a new folder, found a run; --resume goes on with it, --force begins anew in its place", path.display())]
    RunExists {
        /// The run folder.
        path: PathBuf,
    },
    /// A folder with a recipe that no run has put there, and whose place that of a run would take.
    #[error("{}: expected none, or one that a run has written, found somebody's own; name another folder by --run", path.display())]
    ForeignRecipe {
        /// The recipe.
        path: PathBuf,
    },
    /// A run folder in which another process trains.
    #[error("{}: expected a folder of our own, found another process that trains in it", path.display())]
    RunLocked {
        /// The run folder.
        path: PathBuf,
    },
    /// A run that cannot go on, as its checkpoint is gone while other files of it are there.
    #[error(
        "{}: expected the checkpoint of the run, found only {}; put it back, copy a checkpoint such as best.safetensors in its place, \
         or begin anew with --force",
        path.display(),
        found.display()
    )]
    NoCheckpoint {
        /// The checkpoint.
        path: PathBuf,
        /// Another file of the run.
        found: PathBuf,
    },
    /// An average of nothing.
    #[error("average: expected at least one checkpoint, found none")]
    NoCheckpoints,
    /// A run that has kept fewer checkpoints of epochs than are asked for.
    #[error("{}: expected {expected}, found {found}; training.keep says how many a run keeps", path.display())]
    Kept {
        /// The run folder.
        path: PathBuf,
        /// What was asked for.
        expected: String,
        /// How many there are.
        found: usize,
    },
    /// A run that cannot go on, as its checkpoint cannot be read.
    #[error("{source}; to go on from an earlier state, {}begin anew with --force", if *best {
        "copy best.safetensors in its place, or "
    } else {
        ""
    })]
    Resume {
        /// What is wrong with it.
        source: Box<Error>,
        /// Whether there is a sound `best.safetensors`.
        best: bool,
    },
    /// A run that goes on with another number of epochs, which only the recipe says.
    #[error(
        "training.epochs: expected {old}, as the checkpoint has, found {epochs} in the recipe; --epochs {epochs} goes on to so many"
    )]
    Epochs {
        /// Epochs of the checkpoint's recipe.
        old: u64,
        /// Epochs of the recipe.
        epochs: u64,
    },
    /// A run of fewer epochs than are done.
    #[error(
        "--epochs: expected at least {begun}, the epochs that the run has begun, found {epochs}; epoch checkpoints (training.keep) hold earlier weights"
    )]
    EpochsDone {
        /// Epochs that are done or begun.
        begun: u64,
        /// Epochs that were asked for.
        epochs: u64,
    },
    /// A run that goes on with data that are not those of its checkpoint.
    #[error(
        "{set}: expected the data of the checkpoint, found {}; --changed-data goes on with it",
        Excerpt(found)
    )]
    DataChanged {
        /// `data.train`, `data.dev` or `data.test`.
        set: &'static str,
        /// The first difference.
        found: String,
    },
    /// A score, loss, gradient or weight that is no longer finite.
    #[error("step {step}: expected a finite {what}{}; utterances {}", value(*found), names(utterances))]
    Diverged {
        /// Optimiser step.
        step: u64,
        /// What went wrong first.
        what: Cow<'static, str>,
        /// Its value, where it is known.
        found: Option<f64>,
        /// Ids of the batch.
        utterances: Vec<String>,
        /// The error of the loss that noticed it, with the place; none for what the loop itself looks at.
        source: Option<Box<Error>>,
    },
    /// What another process of a run says.
    #[error("rank {rank}: {message}")]
    Rank {
        /// Which one.
        rank: usize,
        /// What it says.
        message: String,
    },
    /// An all-reduce that failed.
    #[error(transparent)]
    Distributed(distributed::Error),
    /// A budget that is too small for a run.
    #[error("memory: expected at least {} ({smallest} bytes), the smallest budget of this run, found {} ({budget} bytes)", memory::format_bytes(*smallest), memory::format_bytes(*budget))]
    Budget {
        /// What the run may take.
        budget: usize,
        /// The least that would do.
        smallest: usize,
    },
    /// A part of a run that does not say what memory it takes.
    #[error("memory: expected parts that say what they take, found {what}, which does not")]
    NoPlan {
        /// The part.
        what: String,
    },
    /// Something wrong with what is inside of a file.
    #[error("{}: {source}", path.display())]
    Inside {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<Error>,
    },
    /// The stop flag became true before there was anything to save.
    #[error("stopped")]
    Stopped,
    /// An error of the model, its files or its input.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// An error of recognition or of reading recordings.
    #[error(transparent)]
    Recognizer(recognizer::Error),
}

model::convert_model_errors!(Error: candle_core::Error, rnnt_loss::Error, speech::Error);

impl From<recognizer::Error> for Error {
    fn from(error: recognizer::Error) -> Self {
        match error {
            recognizer::Error::Model(error) => Error::Model(error),
            recognizer::Error::Stopped => Error::Stopped,
            error => Error::Recognizer(error),
        }
    }
}

/// Names in quotes, each cut if it is long.
fn names(utterances: &[String]) -> String {
    let quoted: Vec<String> =
        utterances.iter().map(|id| Excerpt(format_args!("{id:?}")).to_string()).collect();
    format!("[{}]", quoted.join(", "))
}

fn value(found: Option<f64>) -> String {
    found.map_or(String::new(), |found| format!(", found {}", Brief(found)))
}

impl Error {
    pub(crate) fn shape(
        argument: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        model::Error::shape(argument, expected, found).into()
    }

    /// For `map_err`: attaches file and action to a system error.
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| model::Error::io(path, action)(source).into()
    }

    pub(crate) fn checkpoint(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        model::Error::checkpoint(path, expected, found).into()
    }
}
