//! What can go wrong with an n-gram.
use kernels::Excerpt;

/// The result type of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of reading, estimating or using an n-gram.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line is not UTF-8.
    #[error("line {line}: expected UTF-8, found other bytes")]
    Utf8 {
        /// Line, from 1.
        line: usize,
    },
    /// A line of an ARPA file is not what comes next.
    #[error("line {line}: expected {expected}, found {found}")]
    Line {
        /// Line, from 1; one more than there are where the file ends too early.
        line: usize,
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A section of an ARPA file has not as many n-grams as its head says.
    #[error("line {line}: expected {expected} {order}-grams, as the head says, found {found}")]
    Count {
        /// Line at which it shows.
        line: usize,
        /// Order of the n-grams.
        order: usize,
        /// How many the head promises.
        expected: usize,
        /// How many there are; one more than promised stands for all.
        found: usize,
    },
    /// The context of an n-gram is not among those of the order below.
    #[error(
        "line {line}: expected the context of `{}` among the n-grams of the order below, found none",
        Excerpt(ngram)
    )]
    Context {
        /// Line of the n-gram.
        line: usize,
        /// Its words.
        ngram: String,
    },
    /// An n-gram is there twice.
    #[error(
        "line {line}: expected every n-gram once, found `{}` again, first in line {first}",
        Excerpt(ngram)
    )]
    Twice {
        /// Line of the second one.
        line: usize,
        /// Line of the first one.
        first: usize,
        /// Its words.
        ngram: String,
    },
    /// A word of the n-gram is not in the vocabulary, and that was forbidden.
    #[error("n-gram: expected tokens of the vocabulary alone, found `{}`", Excerpt(token))]
    Token {
        /// The word, as the file writes it.
        token: String,
    },
    /// No word of the n-gram is in the vocabulary.
    #[error("n-gram: expected tokens of the vocabulary, found none among its {found} words")]
    NoToken {
        /// Number of its words.
        found: usize,
    },
    /// A class has a name that cannot be told apart in an ARPA file.
    #[error("name of class {class}: expected {expected}, found `{}`", Excerpt(name))]
    Name {
        /// Class id.
        class: usize,
        /// What it may be.
        expected: &'static str,
        /// The name, as an ARPA file writes it.
        name: String,
    },
    /// An option has a value outside its range.
    #[error("{option}: expected {expected}, found {found}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        found: String,
    },
    /// There is nothing to estimate an n-gram from.
    #[error("text: expected at least one token, found none")]
    NoText,
    /// A token id of a text has no name.
    #[error("text {sequence}, token {index}: expected the id of one of {names} names, found {id}")]
    Id {
        /// Index of the text.
        sequence: usize,
        /// Index of the token in it.
        index: usize,
        /// The id.
        id: u32,
        /// Number of names.
        names: usize,
    },
    /// Tokens do not say where words begin or end.
    #[error("names: expected tokens with the mark U+2581, or a space, found neither")]
    NoBoundary,
}
