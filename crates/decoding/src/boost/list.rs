//! Reads phrase lists for boosting from text files.
use kernels::Excerpt;

use super::Phrase;

/// Default score of a phrase, a natural logarithm: the phrase is e times as probable.
pub const DEFAULT_PHRASE_SCORE: f32 = 1.0;

/// An error in a list of phrases.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PhraseError {
    /// A line is not UTF-8.
    #[error("phrases, line {line}: expected UTF-8, found other bytes")]
    Utf8 {
        /// Line, from 1.
        line: usize,
    },
    /// A phrase without tokens.
    #[error("phrases, line {line}: expected a phrase, found none")]
    Empty {
        /// Line, or number of the phrase, from 1.
        line: usize,
    },
    /// A token that is not a label.
    #[error("phrases, line {line}: expected labels among {classes} classes, found class {class}")]
    Class {
        /// Line, or number of the phrase, from 1.
        line: usize,
        /// Class id.
        class: u32,
        /// Number of classes.
        classes: usize,
    },
    /// A score that is not a number, not finite, or too large.
    #[error("phrases, line {line}: expected a finite score, and a bonus between -1e9 and 1e9, found {found}")]
    Score {
        /// Line, or number of the phrase, from 1.
        line: usize,
        /// The score given.
        found: String,
    },
    /// A depth scaling that is NaN, infinite, or negative.
    #[error("depth_scaling: expected a finite number of at least 0, found {found}")]
    DepthScaling {
        /// The value given.
        found: f32,
    },
}

/// A list of phrases read from text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PhraseList {
    /// Phrases that the tokenizer can encode.
    pub phrases: Vec<Phrase>,
    /// Phrases that it cannot encode.
    pub skipped: Vec<SkippedPhrase>,
}

/// A phrase that the tokenizer cannot encode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedPhrase {
    /// Line, from 1.
    pub line: usize,
    /// Message of the tokenizer.
    pub reason: String,
}

/// Reads a list of phrases: one per line, optionally followed by a tab and a score.
///
/// `score` is the default. The score is that of the whole phrase and is spread evenly over its
/// tokens. Blank lines and lines that begin with `#` are ignored; a phrase may contain any white
/// space except tabs. `encode` returns the tokens of a phrase, or the reason why there are none;
/// such a phrase is skipped.
///
/// # Errors
/// [`PhraseError::Utf8`], [`PhraseError::Empty`] for a score without a phrase or a phrase without
/// tokens, [`PhraseError::Score`] for a score that is not finite; each with its line.
///
/// ```
/// let encode = |text: &str| Ok(text.bytes().map(u32::from).collect());
/// let list = decoding::read_phrases(b"# names\nab\t2.5\nc\n", 1.0, encode)?;
/// let phrases = list.phrases;
/// assert_eq!((phrases[0].score, &phrases[1].tokens[..]), (1.25, &[99][..]));
/// # Ok::<(), decoding::PhraseError>(())
/// ```
pub fn read_phrases(
    bytes: &[u8],
    score: f32,
    mut encode: impl FnMut(&str) -> Result<Vec<u32>, String>,
) -> Result<PhraseList, PhraseError> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut list = PhraseList::default();
    for (line, text) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        let text = std::str::from_utf8(text).map_err(|_| PhraseError::Utf8 { line })?;
        if text.trim().is_empty() && !text.contains('\t') || text.starts_with('#') {
            continue;
        }
        let (phrase, phrase_score) = match text.split_once('\t') {
            Some((phrase, score)) => (phrase.trim(), Some(score.trim())),
            None => (text.trim(), None),
        };
        if phrase.is_empty() {
            return Err(PhraseError::Empty { line });
        }
        let invalid_score = |found| PhraseError::Score { line, found };
        let score = match phrase_score {
            None => score,
            Some(text) => text.parse().map_err(|_| invalid_score(format!("`{}`", Excerpt(text))))?,
        };
        if !score.is_finite() {
            return Err(invalid_score(score.to_string()));
        }
        match encode(phrase) {
            Ok(tokens) if tokens.is_empty() => return Err(PhraseError::Empty { line }),
            Ok(tokens) => list.phrases.push(Phrase::with_total(tokens, score)),
            Err(reason) => list.skipped.push(SkippedPhrase { line, reason }),
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests;
