//! Bad items: utterances that training, evaluation and alignment cannot use.
//!
//! "Line" is the utterance's line of the manifest.
//!
//! | item | handling |
//! |---|---|
//! | a recording that is missing, unreadable, damaged, truncated, or at another sample rate | excluded |
//! | a recording that differs from the `num_samples` or the `crc32` of its line | excluded |
//! | a text that the tokenizer cannot encode, where labels are needed | excluded |
//! | a recording longer or shorter than the `seconds` of its line | used |
//!
//! All of them are reported by name. More than [`max_bad_count`] excluded items are
//! [`Error::TooManyBad`].
use kernels::Excerpt;
use serde::{Deserialize, Serialize};
use speech::{Tokenizer, Utterance};

use crate::{Error, Result};

/// Default fraction of a set that may be excluded.
pub const DEFAULT_MAX_BAD: f64 = 0.01;
/// Items of a set with an individual warning.
pub const MAX_NAMED_ITEMS: usize = 10;
/// Tolerated difference of a recording from its line, in seconds.
const LENGTH_TOLERANCE_SECONDS: f64 = 0.1;
/// Tolerated difference as a fraction of the recording.
const LENGTH_TOLERANCE_FRACTION: f64 = 0.02;

/// An excluded utterance with the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExcludedUtterance {
    /// Id from the manifest.
    pub id: String,
    /// The problem: the message of the error.
    pub reason: String,
    /// Whether the recording has another sample rate and resampling is off.
    #[serde(skip)]
    pub has_other_rate: bool,
}

/// A recording that is used although its length differs from its line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LengthMismatch {
    /// Id from the manifest.
    pub id: String,
    /// Seconds in its line.
    pub expected_seconds: f64,
    /// Seconds of the recording.
    pub found_seconds: f64,
}

/// The bad items of a set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BadItems {
    /// Excluded utterances.
    #[serde(rename = "left_out", default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<ExcludedUtterance>,
    /// Recordings that are used as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_length: Vec<LengthMismatch>,
}

impl ExcludedUtterance {
    /// Creates an item from the error of its utterance.
    pub fn new(id: &str, error: &Error) -> Self {
        use speech::Error::{FileRate, SampleRate, Utterance};
        let inner = match error {
            Error::Model(model::Error::Speech(Utterance { source, .. })) => source.as_ref(),
            Error::Model(model::Error::Speech(error)) => error,
            _ => return Self { id: id.to_owned(), reason: error.to_string(), has_other_rate: false },
        };
        let text = inner.to_string();
        let reason = text.strip_prefix(&format!("utterance `{id}`: ")).unwrap_or(&text).to_owned();
        Self {
            id: id.to_owned(),
            reason,
            has_other_rate: matches!(inner, SampleRate { .. } | FileRate { .. }),
        }
    }

    fn warning(&self, set: &str) -> String {
        format!("{set}: {}: {}; left out", Excerpt(&self.id), self.reason)
    }
}

impl LengthMismatch {
    /// Creates an item if the difference exceeds the tolerance.
    pub fn new(id: &str, expected_seconds: f64, found_seconds: f64) -> Option<Self> {
        let differs = (found_seconds - expected_seconds).abs()
            > LENGTH_TOLERANCE_SECONDS.max(LENGTH_TOLERANCE_FRACTION * found_seconds);
        differs.then(|| Self { id: id.to_owned(), expected_seconds, found_seconds })
    }
}

impl BadItems {
    /// Returns whether there are no bad items.
    pub fn is_empty(&self) -> bool {
        self.excluded.is_empty() && self.other_length.is_empty()
    }

    /// Appends the items of another list.
    pub fn extend(&mut self, other: BadItems) {
        self.excluded.extend(other.excluded);
        self.other_length.extend(other.other_length);
    }

    /// Returns warnings about a set: the first items by name, the others as a count.
    pub fn warnings(&self, set: &str) -> Vec<String> {
        let mut lines: Vec<String> =
            self.excluded.iter().take(MAX_NAMED_ITEMS).map(|item| item.warning(set)).collect();
        if let Some(remaining) =
            self.excluded.len().checked_sub(MAX_NAMED_ITEMS).filter(|&remaining| remaining > 0)
        {
            lines.push(format!("{set}: {remaining} more utterances cannot be used; left out"));
        }
        if let Some(LengthMismatch { id, expected_seconds, found_seconds }) = self.other_length.first() {
            lines.push(format!(
                "{set}: {} recordings differ in length from the manifest, the first {}: {found_seconds:.2} s \
                 instead of {expected_seconds:.2} s",
                self.other_length.len(),
                Excerpt(id)
            ));
        }
        lines
    }

    /// Checks that at most a fraction of `count` items is excluded.
    ///
    /// At least one item must remain.
    ///
    /// # Errors
    /// [`Error::TooManyBad`].
    pub fn check(&self, set: &str, count: usize, max_bad: f64) -> Result<()> {
        let bad = self.excluded.len();
        // At least one item must remain.
        let allowed = max_bad_count(count, max_bad).min(count.saturating_sub(1));
        match self.excluded.first() {
            Some(first) if bad > allowed => Err(Error::TooManyBad {
                set: set.to_owned(),
                bad,
                of: count,
                allowed,
                first_id: first.id.as_str().into(),
                first_reason: first.reason.as_str().into(),
                has_other_rate: first.has_other_rate,
            }),
            _ => Ok(()),
        }
    }
}

/// Returns the items of a set that may be excluded.
///
/// The fraction is rounded up, so that one bad item is tolerated unless the fraction is 0.
pub fn max_bad_count(count: usize, max_bad: f64) -> usize {
    // 0.07 of 100 must not become 8 by rounding: 0.07 · 100 exceeds 7 in `f64`.
    (max_bad * count as f64 - 1e-9).ceil().max(0.0) as usize
}

/// Returns whether an error concerns one item only.
///
/// Other errors concern the machine, the program, or a file of the whole set.
pub fn is_item_error(error: &Error) -> bool {
    matches!(error, Error::Model(model::Error::Speech(error)) if concerns_utterance(error))
}

fn concerns_utterance(error: &speech::Error) -> bool {
    use speech::Error::{File, Index, Io, Resampling, Setting, Stream, Tokenizers, Utterance, Write};
    match error {
        Utterance { source, .. } | File { source, .. } => concerns_utterance(source),
        Io { source, .. } => !speech::is_system_error(source),
        Write { .. } | Index { .. } | Setting { .. } | Stream { .. } | Resampling(_) | Tokenizers(_) => false,
        _ => true,
    }
}

/// Returns the utterances whose texts a tokenizer cannot encode.
///
/// # Errors
/// Those of the tokenizer that do not concern a single text.
pub fn unusable_texts(utterances: &[Utterance], tokenizer: &Tokenizer) -> Result<BadItems> {
    let mut bad = BadItems::default();
    for utterance in utterances {
        record_bad(&utterance.id, tokenizer.encode(&utterance.text).map_err(Error::from), &mut bad)?;
    }
    Ok(bad)
}

/// Returns the item of a set, or records its error; other errors are returned.
pub fn record_bad<T>(id: &str, result: Result<T>, bad: &mut BadItems) -> Result<Option<T>> {
    match result {
        Ok(item) => Ok(Some(item)),
        Err(error) if is_item_error(&error) => {
            bad.excluded.push(ExcludedUtterance::new(id, &error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    /// Bad items `u0`, `u1` and so on.
    fn bad_items(count: usize) -> BadItems {
        let item = |n| ExcludedUtterance {
            id: format!("u{n}"),
            reason: "no such file".into(),
            has_other_rate: false,
        };
        BadItems { excluded: (0..count).map(item).collect(), other_length: Vec::new() }
    }

    #[test]
    fn a_fraction_is_rounded_up_and_one_item_must_remain() {
        let allowed = |count, fraction| max_bad_count(count, fraction);
        assert_eq!(
            [allowed(40, 0.01), allowed(100, 0.01), allowed(101, 0.01), allowed(1, 0.01)],
            [1, 1, 2, 1]
        );
        assert_eq!([allowed(100, 0.07), allowed(9, 0.0), allowed(9, 1.0), allowed(0, 0.5)], [7, 0, 9, 0]);
        for (bad, count, fraction, is_valid) in [
            (0, 40, 0.0, true),
            (1, 40, 0.01, true),
            (2, 40, 0.01, false),
            (1, 40, 0.0, false),
            (39, 40, 1.0, true),
            (40, 40, 1.0, false),
            (1, 1, 0.01, false),
            (0, 0, 0.01, true),
        ] {
            assert_eq!(
                bad_items(bad).check("set", count, fraction).is_ok(),
                is_valid,
                "{bad} of {count}, {fraction}"
            );
        }
        let error = bad_items(3).check("data.train", 40, 0.01).unwrap_err().to_string();
        for part in ["data.train", "at most 1 of 40", "found 3", "u0: no such file", "max_bad"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn warnings_name_the_first_items_and_count_the_others() {
        let lines = bad_items(5000).warnings("data.train");
        assert_eq!(lines.len(), MAX_NAMED_ITEMS + 1);
        assert_eq!(lines[0], "data.train: u0: no such file; left out");
        assert!(lines[MAX_NAMED_ITEMS].contains("4990 more"), "{lines:?}");
        assert!(BadItems::default().warnings("x").is_empty());
    }

    #[test]
    fn lengths_within_the_tolerance_are_accepted() {
        assert!(
            LengthMismatch::new("a", 3.0, 3.09).is_none() && LengthMismatch::new("a", 100.0, 101.9).is_none()
        );
        assert!(LengthMismatch::new("a", 3.0, 3.2).is_some() && LengthMismatch::new("a", 3.2, 3.0).is_some());
    }

    #[test]
    fn errors_of_the_machine_are_not_item_errors() {
        // EMFILE of Linux.
        const TOO_MANY_OPEN_FILES: i32 = 24;
        let io_error = |source| speech::Error::Io { path: "x.wav".into(), source };
        let in_utterance =
            |error| Error::from(speech::Error::Utterance { utterance: "u".into(), source: Box::new(error) });
        let is_io_item_error = |error: std::io::Error| is_item_error(&in_utterance(io_error(error)));
        assert!(
            is_io_item_error(ErrorKind::NotFound.into()) && is_io_item_error(ErrorKind::IsADirectory.into())
        );
        assert!(
            !is_io_item_error(ErrorKind::OutOfMemory.into())
                && !is_io_item_error(std::io::Error::from_raw_os_error(TOO_MANY_OPEN_FILES))
        );
        assert!(!is_item_error(&Error::Stopped));
        let unknown_symbol =
            speech::Error::UnknownSymbol { symbol: "eleven".into(), text: "three eleven".into() };
        let item = ExcludedUtterance::new("u", &in_utterance(unknown_symbol));
        assert!(item.reason.starts_with("tokenizer: text \"three eleven\""), "{item:?}");
        let other_rate =
            speech::Error::SampleRate { utterance: "u".into(), path: "x".into(), expected: 1, found: 2 };
        let item = ExcludedUtterance::new("u", &Error::from(other_rate));
        assert!(item.reason.starts_with("expected 1 Hz") && item.has_other_rate, "{item:?}");
    }
}
