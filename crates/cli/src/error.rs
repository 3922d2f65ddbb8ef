//! Error type of the `panda` program; its messages are printed to the user.
use kernels::Excerpt;

/// Error of a command; its message is printed to the user.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// Error of training, a checkpoint or a recipe.
    #[error(transparent)]
    Training(#[from] training::Error),
    /// Error of a report.
    #[error(transparent)]
    Report(#[from] report::Error),
    /// Error of a search.
    #[error(transparent)]
    Decoding(#[from] decoding::Error),
    /// Error of audio or a manifest.
    #[error(transparent)]
    Speech(#[from] speech::Error),
    /// Error of the loss.
    #[error(transparent)]
    Loss(#[from] rnnt_loss::Error),
    /// Error of an n-gram.
    #[error(transparent)]
    Ngram(#[from] decoding::ngram::Error),
    /// Error that another argument avoids.
    #[error("{source}; {advice}")]
    WithAdvice {
        /// The error.
        source: recognizer::Error,
        /// The argument and its effect.
        advice: &'static str,
    },
    /// Invalid environment variable.
    #[error("{}", Excerpt(_0))]
    Environment(String),
    /// MPI without the required thread support.
    #[error(
        "MPI: expected support for MPI_THREAD_FUNNELED, found less; use an MPI library that is built with threads"
    )]
    #[cfg(feature = "mpi")]
    Mpi,
    /// Different numbers of processes in the launcher and in MPI.
    #[cfg(feature = "mpi")]
    #[error(
        "MPI: expected the {expected} processes of the launcher, found {found}; use the launcher of the MPI library that panda was built with"
    )]
    Launcher {
        /// Number of processes that the launcher reports.
        expected: usize,
        /// Number of processes that MPI reports.
        found: usize,
    },
    /// Part that does not fit the other parts of a merge.
    #[error("{}: expected {}, found {}", path.display(), Excerpt(expected), Excerpt(found))]
    MergePart {
        /// File of the part.
        path: std::path::PathBuf,
        /// Expected contents.
        expected: String,
        /// Contents of the file.
        found: String,
    },
    /// Line that does not have the kind of its part.
    #[error("{}:{line}: expected {expected}, found {}", path.display(), Excerpt(found))]
    MergePartLine {
        /// File of the part.
        path: std::path::PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Expected contents.
        expected: String,
        /// Contents of the line.
        found: String,
    },
    /// Sentence mark within a line.
    #[error(
        "{}:{line}: expected sentence marks (<s>, </s>) at the ends of a text only, found {} within it; put each sentence on a separate line",
        path.display(),
        Excerpt(format_args!("{mark:?}"))
    )]
    SentenceMark {
        /// Text file or manifest.
        path: std::path::PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Word that contains the mark.
        mark: String,
    },
    /// Captions of several recordings in one stream.
    #[error("{format}: expected one recording, or a folder by --output, found several in one stream")]
    Captions {
        /// Name of the format.
        format: &'static str,
    },
    /// Two recordings with the same transcript path.
    #[error("{}: expected one recording of this name, found {} and {}", output.display(), other.display(), file.display())]
    DuplicateName {
        /// Transcript path.
        output: std::path::PathBuf,
        /// Second recording.
        file: std::path::PathBuf,
        /// First recording.
        other: std::path::PathBuf,
    },
    /// Output folder or unsupported format for streaming.
    #[error(
        "streaming audio (--stream, or -): expected txt, json or ctm on standard output, found another --format or an --output"
    )]
    StreamingOutput,
    /// Several run folders, or none, for `--last` or `--best`.
    #[error("--last, --best: expected one run folder, found {found}")]
    RunFolderCount {
        /// Number of given folders.
        found: usize,
    },
    /// Standard input together with files.
    #[error("-: expected only standard input, found other recordings in addition")]
    StdinWithFiles,
    /// Audio file on standard input, instead of raw samples.
    #[error("standard input: expected raw 16-bit samples at the model's rate, found {found}")]
    EncodedStdin {
        /// Format of the file.
        found: &'static str,
    },
    /// Argument out of its range.
    #[error("{argument}: expected a number {expected}, found {found}")]
    Argument {
        /// Name of the argument.
        argument: &'static str,
        /// Valid range.
        expected: &'static str,
        /// Given value.
        found: f64,
    },
    /// Argument that the search, format or input does not support.
    #[error("{argument}: expected {expected}, found {found}")]
    Unsupported {
        /// Name of the argument.
        argument: &'static str,
        /// Searches, formats or inputs that support it.
        expected: &'static str,
        /// Search, format or input of this call.
        found: &'static str,
    },
    /// Arguments that the search does not use.
    #[error("{arguments}: expected {expected}, found {found}")]
    SearchArgument {
        /// Names of the arguments.
        arguments: String,
        /// Searches that use them.
        expected: &'static str,
        /// Search of this call.
        found: &'static str,
    },
    /// Arguments that the model's tokens do not match.
    #[error("{arguments}: {source}")]
    TokenArguments {
        /// Names of the arguments.
        arguments: String,
        /// What does not match.
        source: recognizer::Error,
    },
    /// Failure to install signal handlers.
    #[error("cannot watch for signals: {0}")]
    Signal(#[from] std::io::Error),
    /// Standard output is a closed pipe.
    #[error("standard output: closed")]
    OutputClosed,
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
    /// Converts a write error of standard output.
    pub(crate) fn standard_output(source: std::io::Error) -> Self {
        match source.kind() {
            std::io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::Output(source),
        }
    }

    /// Returns true if the reader closed the output pipe.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Self::OutputClosed => true,
            Self::Training(training::Error::Model(model::Error::Io { source, .. })) => {
                source.kind() == std::io::ErrorKind::BrokenPipe
            }
            _ => false,
        }
    }
}

/// A result with this program's [`Error`].
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Formats an error and its causes in one line.
///
/// Causes that the text contains already are not repeated.
pub(crate) fn message_with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Errors of parsers quote their input, which messages shorten.
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
    fn causes_are_printed_once() {
        let source = rnnt_loss::Error::Scores { utterance: 1, frame: 2, label: 3, found: "NaN or +inf" };
        let (utterances, found) = (vec!["a".to_owned()], None);
        let source = Some(Box::new(source.into()));
        let quantity = "score of every class";
        let error = training::Error::Diverged { step: 7, what: quantity.into(), found, utterances, source };
        let text = message_with_causes(&Error::Training(error));
        assert!(text.starts_with("step 7: expected a finite score of every class; utterances"), "{text}");
        assert!(text.contains("; because of utterance 1, frame 2, label position 3"), "{text}");
        assert_eq!(text.matches("because of").count(), 1, "{text}");

        let source = std::io::Error::other("no space left");
        let error = model::Error::Io { path: "x".into(), action: "write", source };
        assert_eq!(message_with_causes(&Error::from(error)), "x: could not write: no space left");
    }
}
