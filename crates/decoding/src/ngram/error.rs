//! Errors of n-gram language models: reading, estimation, use as scorers.
use kernels::Excerpt;

/// The result type of this module.
pub type Result<T> = std::result::Result<T, Error>;

/// An error in reading, estimating or using an n-gram.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A line is not UTF-8.
    #[error("line {line}: expected UTF-8, found other bytes")]
    Utf8 {
        /// Line, from 1.
        line: usize,
    },
    /// An unexpected line in an ARPA file.
    #[error("line {line}: expected {expected}, found {found}")]
    Line {
        /// Line, from 1; one past the last line at the end of the file.
        line: usize,
        /// The expected content.
        expected: String,
        /// The content of the line.
        found: String,
    },
    /// The number of n-grams in a section differs from the header.
    #[error("line {line}: expected {expected} {order}-grams, as declared in the header, found {found}")]
    Count {
        /// Line of the first surplus n-gram, or after the section.
        line: usize,
        /// Order of the n-grams.
        order: usize,
        /// Number in the header.
        expected: usize,
        /// Number found; counting stops after one surplus n-gram.
        found: usize,
    },
    /// The context of an n-gram is missing in the next lower order.
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
    /// An n-gram occurs twice.
    #[error(
        "line {line}: expected every n-gram once, found `{}` again, first in line {first}",
        Excerpt(ngram)
    )]
    Duplicate {
        /// Line of the second occurrence.
        line: usize,
        /// Line of the first occurrence.
        first: usize,
        /// Its words.
        ngram: String,
    },
    /// A word of the table is not in the vocabulary.
    ///
    /// Only with [`OutOfVocabulary::Reject`](super::OutOfVocabulary::Reject).
    #[error("n-gram: expected only tokens of the vocabulary, found `{}`", Excerpt(token))]
    Token {
        /// The word in the file.
        token: String,
    },
    /// No word of the table is in the vocabulary.
    #[error("n-gram: expected tokens of the vocabulary, found none among its {found} words")]
    NoToken {
        /// Number of words of the table.
        found: usize,
    },
    /// The name of a class is ambiguous in an ARPA file.
    #[error("name of class {class}: expected {expected}, found `{}`", Excerpt(name))]
    Name {
        /// Class id.
        class: usize,
        /// The valid names.
        expected: &'static str,
        /// The name in an ARPA file.
        name: String,
    },
    /// An option has a value outside its range.
    #[error("{option}: expected {expected}, found {found}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The valid range.
        expected: String,
        /// The value given.
        found: String,
    },
    /// All texts are empty.
    #[error("text: expected at least one token, found none")]
    NoText,
    /// A token id without a name.
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
    /// The tokens do not mark word boundaries.
    #[error("names: expected tokens with the mark U+2581, or a space, found neither; use a token n-gram")]
    NoBoundary,
}
