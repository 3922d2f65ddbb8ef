//! The speech gate of a stream, its silence filter.
//!
//! It withholds the words of a stream until one has a sufficient posterior.
use std::ops::Range;

use decoding::{DecodedToken, GreedyStream};
use speech::Tokenizer;

use super::MAX_PENDING_LABELS;
use crate::Result;
use crate::silence;
use crate::unfused::{UnfusedResult, UnfusedSearch};
use crate::words::word_ranges;

/// Decides whether the words of a stream are speech; once open, it stays open.
///
/// It opens at the first complete word whose posterior is at least `min_posterior`. This is a word
/// of the stream's search or, if language models, phrases or penalties take part in it, a word of a
/// greedy search without them on the same rows.
pub(super) struct SpeechGate {
    /// Smallest posterior of a word that opens the gate.
    min_posterior: f64,
    is_open: bool,
    /// The first sample.
    first_sample: Option<f32>,
    /// Whether any other sample differs from the first.
    has_varying_samples: bool,
    /// The greedy search of the model only, if the gate needs it.
    unfused: Option<UnfusedStream>,
}

/// A greedy search of the model only, next to the stream's search.
struct UnfusedStream {
    search: UnfusedSearch,
    stream: GreedyStream,
    /// The result since the last decision (`must_decide`), without the words already checked.
    pending_result: UnfusedResult,
    /// Whether the search has found a label since the last decision (`must_decide`).
    has_labels: bool,
}

impl SpeechGate {
    /// Creates a gate for words of at least `min_posterior`; 0 opens it at once.
    pub(super) fn new(min_posterior: f64, unfused: Option<UnfusedSearch>) -> Self {
        let start_stream = |search: UnfusedSearch| {
            let stream = search.stream();
            UnfusedStream { search, stream, pending_result: UnfusedResult::default(), has_labels: false }
        };
        let unfused = unfused.filter(|_| min_posterior > 0.0).map(start_stream);
        SpeechGate {
            min_posterior,
            is_open: min_posterior <= 0.0,
            first_sample: None,
            has_varying_samples: false,
            unfused,
        }
    }

    /// Returns whether words are accepted.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns whether there was any sample.
    pub(super) fn has_samples(&self) -> bool {
        self.first_sample.is_some()
    }

    /// Processes samples: constant audio contains no speech.
    pub(super) fn push_samples(&mut self, samples: &[f32]) {
        let Some(&first) = samples.first() else { return };
        let first = *self.first_sample.get_or_insert(first);
        self.has_varying_samples |= samples.iter().any(|&sample| sample != first);
    }

    /// Processes the encoder rows of the search.
    ///
    /// # Errors
    /// Those of the greedy search.
    pub(super) fn push_rows(&mut self, rows: &[f32]) -> Result<()> {
        if let Some(unfused) = self.unfused.as_mut().filter(|_| !self.is_open) {
            let next = unfused.search.advance(&mut unfused.stream, rows)?;
            unfused.has_labels |= !next.labels.is_empty();
            unfused.pending_result.labels.extend(next.labels);
            unfused.pending_result.max_label_posterior =
                unfused.pending_result.max_label_posterior.max(next.max_label_posterior);
        }
        Ok(())
    }

    /// Opens the gate if the complete `words` of `labels` contain speech.
    ///
    /// With a greedy search of the model only, its words count instead of `words`. `must_decide` is
    /// true at a pause, at the end, and with too many pending labels:
    ///
    /// - The last word of the greedy search then counts as complete.
    /// - If that search found no label since the last decision, its largest label probability
    ///   counts instead of a word.
    pub(super) fn update(
        &mut self,
        tokenizer: &Tokenizer,
        labels: &[DecodedToken],
        words: &[Range<usize>],
        must_decide: bool,
    ) {
        if self.is_open {
            return;
        }
        let posterior = match &mut self.unfused {
            None => words
                .iter()
                .map(|word| silence::max_word_posterior(tokenizer, &labels[word.clone()]))
                .fold(0.0, f64::max),
            Some(unfused) => unfused.take_posterior(tokenizer, must_decide),
        };
        self.is_open = self.has_varying_samples && posterior >= self.min_posterior;
    }
}

impl UnfusedStream {
    /// Returns the largest posterior of the complete words and removes them.
    ///
    /// [`SpeechGate::update`] defines `must_decide`.
    fn take_posterior(&mut self, tokenizer: &Tokenizer, must_decide: bool) -> f64 {
        let ids: Vec<u32> = self.pending_result.labels.iter().map(|label| label.label).collect();
        let words = word_ranges(tokenizer, &ids);
        let end = match words.last() {
            Some(last) if !must_decide && ids.len() <= MAX_PENDING_LABELS => last.start,
            _ => ids.len(),
        };
        let complete: Vec<DecodedToken> = self.pending_result.labels.drain(..end).collect();
        let posterior = match must_decide && !self.has_labels {
            true => self.pending_result.max_label_posterior,
            false => silence::max_word_posterior(tokenizer, &complete),
        };
        if must_decide {
            (self.has_labels, self.pending_result.max_label_posterior) = (false, 0.0);
        }
        posterior
    }
}
