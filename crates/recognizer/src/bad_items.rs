//! Utterances that cannot be used: one rule for training, evaluation and alignment.
//!
//! | item | result |
//! |---|---|
//! | a recording that is missing, unreadable, damaged, truncated, or at another sample rate | left out |
//! | a recording without the `num_samples` or the `crc32` of its line | left out |
//! | a text that the tokenizer cannot encode, where labels are needed | left out |
//! | a recording longer or shorter than the `seconds` of its line | used as it is |
//!
//! All of them are reported by name. More than [`max_bad_count`] items left out are [`Error::TooManyBad`].
use kernels::Excerpt;
use serde::{Deserialize, Serialize};
use speech::{Tokenizer, Utterance};

use crate::{Error, Result};

/// Share of a set that may be left out by default.
pub const DEFAULT_MAX_BAD: f64 = 0.01;
/// Items of a set that are warned about one by one.
pub const MAX_NAMED_ITEMS: usize = 10;
/// Tolerated difference between a recording and its line, in seconds and as a share of the recording.
const TOLERANCE_SECONDS: f64 = 0.1;
const TOLERANCE_SHARE: f64 = 0.02;

/// An utterance that is left out, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExcludedUtterance {
    /// Id from the manifest.
    pub id: String,
    /// What is wrong with it.
    pub reason: String,
    /// True if the recording has another sample rate and resampling is off.
    #[serde(skip)]
    pub has_other_rate: bool,
}

/// A recording that is used although it is not as long as its line says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LengthMismatch {
    /// Id from the manifest.
    pub id: String,
    /// Seconds of its line.
    pub expected_seconds: f64,
    /// Seconds of the recording.
    pub found_seconds: f64,
}

/// The bad items of a set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BadItems {
    /// Utterances that are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<ExcludedUtterance>,
    /// Recordings that are used as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_length: Vec<LengthMismatch>,
}

impl ExcludedUtterance {
    /// An item from the error that it causes.
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
    /// An item if the difference is beyond the tolerance.
    pub fn new(id: &str, expected_seconds: f64, found_seconds: f64) -> Option<Self> {
        let differs =
            (found_seconds - expected_seconds).abs() > TOLERANCE_SECONDS.max(TOLERANCE_SHARE * found_seconds);
        differs.then(|| Self { id: id.to_owned(), expected_seconds, found_seconds })
    }
}

impl BadItems {
    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.left_out.is_empty() && self.other_length.is_empty()
    }

    /// Appends the items of another list.
    pub fn extend(&mut self, other: BadItems) {
        self.left_out.extend(other.left_out);
        self.other_length.extend(other.other_length);
    }

    /// The warnings about a set: the first items by name, the others as a count.
    pub fn warnings(&self, set: &str) -> Vec<String> {
        let mut lines: Vec<String> =
            self.left_out.iter().take(MAX_NAMED_ITEMS).map(|one| one.warning(set)).collect();
        if let Some(more) = self.left_out.len().checked_sub(MAX_NAMED_ITEMS).filter(|&more| more > 0) {
            lines.push(format!("{set}: {more} more utterances cannot be used; left out"));
        }
        if let Some(LengthMismatch { id, expected_seconds, found_seconds }) = self.other_length.first() {
            lines.push(format!(
                "{set}: {} recordings are not as long as the manifest says, the first of them {}: {found_seconds:.2} s \
                 instead of {expected_seconds:.2} s",
                self.other_length.len(),
                Excerpt(id)
            ));
        }
        lines
    }

    /// Checks that no more than a share of `of` items is left out, and that something is left.
    ///
    /// # Errors
    /// [`Error::TooManyBad`].
    pub fn check(&self, set: &str, of: usize, max_bad: f64) -> Result<()> {
        let bad = self.left_out.len();
        // One has to be left.
        let allowed = max_bad_count(of, max_bad).min(of.saturating_sub(1));
        match self.left_out.first() {
            Some(first) if bad > allowed => Err(Error::TooManyBad {
                set: set.to_owned(),
                bad,
                of,
                allowed,
                first: Box::new(first.clone()),
            }),
            _ => Ok(()),
        }
    }
}

/// Items of a set that may be left out: the share, rounded up, so that one bad item ends no run unless the share is 0.
pub fn max_bad_count(of: usize, max_bad: f64) -> usize {
    // A share such as 0.07 of 100 is not to become 8 by its rounding.
    (max_bad * of as f64 - 1e-9).ceil().max(0.0) as usize
}

/// Whether an error is about one item, and not about the machine, the program, or a file of the whole set.
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

/// The utterances whose texts a tokenizer cannot encode.
///
/// # Errors
/// Those of the tokenizer that are not about one text.
pub fn unusable_texts(utterances: &[Utterance], tokenizer: &Tokenizer) -> Result<BadItems> {
    let mut bad = BadItems::default();
    for one in utterances {
        record_bad(&one.id, tokenizer.encode(&one.text).map_err(Error::from), &mut bad)?;
    }
    Ok(bad)
}

/// An item of a set, or what keeps it from being used; other errors stay errors.
pub fn record_bad<T>(id: &str, result: Result<T>, bad: &mut BadItems) -> Result<Option<T>> {
    match result {
        Ok(item) => Ok(Some(item)),
        Err(error) if is_item_error(&error) => {
            bad.left_out.push(ExcludedUtterance::new(id, &error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn left_out(count: usize) -> BadItems {
        let one = |n| ExcludedUtterance {
            id: format!("u{n}"),
            reason: "no such file".into(),
            has_other_rate: false,
        };
        BadItems { left_out: (0..count).map(one).collect(), other_length: Vec::new() }
    }

    #[test]
    fn a_share_is_rounded_up_and_nothing_left_is_too_many() {
        let allowed = |of, share| super::max_bad_count(of, share);
        assert_eq!(
            [allowed(40, 0.01), allowed(100, 0.01), allowed(101, 0.01), allowed(1, 0.01)],
            [1, 1, 2, 1]
        );
        assert_eq!([allowed(100, 0.07), allowed(9, 0.0), allowed(9, 1.0), allowed(0, 0.5)], [7, 0, 9, 0]);
        for (bad, of, share, fine) in [
            (0, 40, 0.0, true),
            (1, 40, 0.01, true),
            (2, 40, 0.01, false),
            (1, 40, 0.0, false),
            (39, 40, 1.0, true),
            (40, 40, 1.0, false),
            (1, 1, 0.01, false),
            (0, 0, 0.01, true),
        ] {
            assert_eq!(left_out(bad).check("set", of, share).is_ok(), fine, "{bad} of {of}, {share}");
        }
        let error = left_out(3).check("data.train", 40, 0.01).unwrap_err().to_string();
        for part in ["data.train", "at most 1 of 40", "found 3", "u0: no such file", "max_bad"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn warnings_name_some_and_count_the_others() {
        let lines = left_out(5000).warnings("data.train");
        assert_eq!(lines.len(), MAX_NAMED_ITEMS + 1);
        assert_eq!(lines[0], "data.train: u0: no such file; left out");
        assert!(lines[MAX_NAMED_ITEMS].contains("4990 more"), "{lines:?}");
        assert!(BadItems::default().warnings("x").is_empty());
    }

    #[test]
    fn lengths_within_the_tolerance_are_no_items() {
        assert!(
            LengthMismatch::new("a", 3.0, 3.09).is_none() && LengthMismatch::new("a", 100.0, 101.9).is_none()
        );
        assert!(LengthMismatch::new("a", 3.0, 3.2).is_some() && LengthMismatch::new("a", 3.2, 3.0).is_some());
    }

    #[test]
    fn errors_of_the_machine_are_errors() {
        let io = |source| speech::Error::Io { path: "x.wav".into(), source };
        let named =
            |error| Error::from(speech::Error::Utterance { utterance: "u".into(), source: Box::new(error) });
        let of = |error: std::io::Error| is_item_error(&named(io(error)));
        assert!(of(ErrorKind::NotFound.into()) && of(ErrorKind::IsADirectory.into()));
        assert!(!of(ErrorKind::OutOfMemory.into()) && !of(std::io::Error::from_raw_os_error(24)));
        assert!(!is_item_error(&Error::Stopped));
        let unknown = speech::Error::UnknownSymbol { symbol: "eleven".into(), text: "three eleven".into() };
        let one = ExcludedUtterance::new("u", &named(unknown));
        assert!(one.reason.starts_with("tokenizer: text \"three eleven\""), "{one:?}");
        let rate =
            speech::Error::SampleRate { utterance: "u".into(), path: "x".into(), expected: 1, found: 2 };
        let one = ExcludedUtterance::new("u", &Error::from(rate));
        assert!(one.reason.starts_with("expected 1 Hz") && one.has_other_rate, "{one:?}");
    }
}
