//! What can go wrong in a command.
use kernels::Excerpt;

/// Errors of the program; the message is what the user sees.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Training, a checkpoint or a recipe.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// A report.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// A search.
    #[error(transparent)]
    Decoding(#[from] decoding::Error),
    /// Audio or a manifest.
    #[error(transparent)]
    Speech(#[from] speech::Error),
    /// The loss.
    #[error(transparent)]
    Loss(#[from] rnnt_loss::Error),
    /// An n-gram.
    #[error(transparent)]
    Ngram(#[from] decoding::ngram::Error),
    /// What another argument would have avoided.
    #[error("{source}; {advice}")]
    Advised {
        /// The error.
        source: recognizer::Error,
        /// The argument.
        advice: &'static str,
    },
    /// A language model that cannot be used.
    #[error("{}: {source}", path.display())]
    Arpa {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        source: decoding::ngram::Error,
    },
    /// A list of phrases that cannot be used.
    #[error("{}: {source}", path.display())]
    Phrases {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        source: decoding::PhraseError,
    },
    /// A variable of the environment that says nothing to us.
    #[error("{}", Excerpt(_0))]
    Environment(String),
    /// MPI does not begin.
    #[error(
        "expected an MPI that lets one thread of several call it (MPI_THREAD_FUNNELED), found one that does not"
    )]
    #[cfg(feature = "mpi")]
    Mpi,
    /// Processes that do not find each other.
    #[cfg(feature = "mpi")]
    #[error(
        "expected the {expected} processes that the launcher has started, found {found}: is it of the MPI that panda was built with?"
    )]
    Launcher {
        /// What the launcher says.
        expected: usize,
        /// What MPI says.
        found: usize,
    },
    /// Parts that are not parts of one list.
    #[error("{}: expected {}, found {}", path.display(), Excerpt(expected), Excerpt(found))]
    Part {
        /// The part.
        path: std::path::PathBuf,
        /// What would have fitted.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A line that is not of its part's kind.
    #[error("{}:{line}: expected {expected}, found {}", path.display(), Excerpt(found))]
    PartLine {
        /// The part.
        path: std::path::PathBuf,
        /// The line, from 1.
        line: usize,
        /// What such a line contains.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A sentence mark within a line.
    #[error(
        "{}:{line}: expected sentence marks (<s>, </s>) at the ends of a text only, found {} within it; put each sentence on a line of its own",
        path.display(),
        Excerpt(format_args!("{mark:?}"))
    )]
    SentenceMark {
        /// The file.
        path: std::path::PathBuf,
        /// The line, from 1.
        line: usize,
        /// The word that contains the mark.
        mark: String,
    },
    /// Captions of several recordings in one place.
    #[error("{format}: expected one recording, or a folder by --output, found several in one stream")]
    Captions {
        /// The format.
        format: &'static str,
    },
    /// Two recordings whose texts would have one name.
    #[error("{}: expected one recording of this name, found {} and {}", output.display(), other.display(), file.display())]
    SameName {
        /// Where the text should go.
        output: std::path::PathBuf,
        /// One recording.
        file: std::path::PathBuf,
        /// The other.
        other: std::path::PathBuf,
    },
    /// A folder for what is shown at once.
    #[error(
        "sound as it arrives (--stream, or -): expected txt, json or ctm on standard output, found another --format or an --output"
    )]
    LiveOutput,
    /// Several run folders, or none, where the epochs of one are to be chosen from.
    #[error("--last, --best: expected one run folder, found {found}")]
    OneRun {
        /// How many were given.
        found: usize,
    },
    /// Standard input and files.
    #[error("-: expected standard input alone, found other recordings beside it")]
    OneInput,
    /// A file on standard input, where raw samples should be.
    #[error("standard input: expected raw 16-bit samples at the model's rate, found {found}")]
    NotRaw {
        /// What it is.
        found: &'static str,
    },
    /// An argument out of its range.
    #[error("{argument}: expected a number {expected}, found {found}")]
    Argument {
        /// Its name.
        argument: &'static str,
        /// Its range.
        expected: &'static str,
        /// What was given.
        found: f64,
    },
    /// An option for a search that does not know it.
    #[error("{argument}: expected {expected}, found {search}")]
    Search {
        /// The option.
        argument: &'static str,
        /// What knows it.
        expected: &'static str,
        /// The search.
        search: &'static str,
    },
    /// A search that recognition lattices do not have.
    #[error(
        "{argument}: expected none for a recognition lattice (loss.kind = \"gnat\"), which is searched with --beam alone"
    )]
    Lattice {
        /// What was asked for.
        argument: &'static str,
    },
    /// Signals could not be watched.
    #[error("cannot watch for signals: {0}")]
    Signal(#[from] std::io::Error),
    /// Standard output is a pipe that nobody reads any more.
    #[error("standard output: closed")]
    Closed,
    /// Standard output cannot be written.
    #[error("standard output: could not write: {0}")]
    Output(#[source] std::io::Error),
}

impl From<model::Error> for Error {
    fn from(error: model::Error) -> Self {
        Error::Training(error.into())
    }
}

impl From<recognizer::Error> for Error {
    fn from(error: recognizer::Error) -> Self {
        Error::Training(error.into())
    }
}

impl Error {
    /// The error of a failed write to standard output.
    pub fn standard_output(source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Output(source),
        }
    }

    /// Whether somebody has closed the pipe that was written to.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Closed => true,
            Self::Training(training::Error::Model(model::Error::Io { source, .. })) => {
                source.kind() == std::io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }
}

/// A result with this program's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// An error's message and those of its causes that it does not contain, in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Errors of parsers contain what they have read, which messages cut.
        let (message, shown) = (error.to_string(), Excerpt(error).to_string());
        if !text.contains(&message) && !text.contains(&shown) {
            text += &format!("; because of {shown}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once() {
        let source = rnnt_loss::Error::Scores { utterance: 1, frame: 2, label: 3, found: "NaN or +inf" };
        let (utterances, found) = (vec!["a".to_owned()], None);
        let source = Some(Box::new(source.into()));
        let what = "score of every class";
        let error = training::Error::Diverged { step: 7, what: what.into(), found, utterances, source };
        let text = chain(&Error::Training(error));
        assert!(text.starts_with("step 7: expected a finite score of every class; utterances"), "{text}");
        assert!(text.contains("; because of utterance 1, frame 2, label position 3"), "{text}");
        assert_eq!(text.matches("because of").count(), 1, "{text}");

        let source = std::io::Error::other("no space left");
        let error = model::Error::Io { path: "x".into(), action: "write", source };
        assert_eq!(chain(&Error::from(error)), "x: could not write: no space left");
    }
}
