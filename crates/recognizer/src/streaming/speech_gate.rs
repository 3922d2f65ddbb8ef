//! The silence filter of a recording that is still arriving.
use std::ops::Range;

use decoding::{DecodedToken, GreedyStream};
use speech::Tokenizer;

use super::MAX_HELD;
use crate::Result;
use crate::silence;
use crate::unfused::{Unfused, UnfusedSearch};
use crate::words::groups;

/// Decides whether the words of a stream are speech; once open, it stays open.
///
/// It opens at the first complete word with the least posterior: a word of the stream's own search, or, where language models,
/// phrases or penalties take part in that, a word that a greedy search without them finds in the same rows.
pub(super) struct SpeechGate {
    least: f64,
    is_open: bool,
    /// The first sample, and whether any other sample differs from it.
    first_sample: Option<f32>,
    varies: bool,
    unfused: Option<UnfusedStream>,
}

/// The greedy search next to a fused one.
struct UnfusedStream {
    search: UnfusedSearch,
    stream: GreedyStream,
    /// What it found since the last decision; complete words that were judged are dropped.
    found: Unfused,
    /// Whether it found a label since the last decision.
    has_labels: bool,
}

impl SpeechGate {
    /// A gate for words of at least the posterior `least`; 0 opens it at once.
    pub fn new(least: f64, unfused: Option<UnfusedSearch>) -> Self {
        let stream = |search: UnfusedSearch| {
            let stream = search.stream();
            UnfusedStream { search, stream, found: Unfused::default(), has_labels: false }
        };
        let unfused = unfused.filter(|_| least > 0.0).map(stream);
        SpeechGate { least, is_open: least <= 0.0, first_sample: None, varies: false, unfused }
    }

    /// Whether words are passed on.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether there was any sample.
    pub fn has_samples(&self) -> bool {
        self.first_sample.is_some()
    }

    /// Takes samples: constant audio contains no speech.
    pub fn push_samples(&mut self, samples: &[f32]) {
        let Some(&first) = samples.first() else { return };
        let first = *self.first_sample.get_or_insert(first);
        self.varies |= samples.iter().any(|&sample| sample != first);
    }

    /// Takes the encoder rows that the search took.
    ///
    /// # Errors
    /// Those of the greedy search.
    pub fn push_rows(&mut self, rows: &[f32]) -> Result<()> {
        if let Some(unfused) = self.unfused.as_mut().filter(|_| !self.is_open) {
            let next = unfused.search.advance(&mut unfused.stream, rows)?;
            unfused.has_labels |= !next.labels.is_empty();
            unfused.found.labels.extend(next.labels);
            unfused.found.label_posterior = unfused.found.label_posterior.max(next.label_posterior);
        }
        Ok(())
    }

    /// Opens if there is speech among the complete `words` of `labels`.
    ///
    /// At a `decision` (a pause, the end, too many labels that wait), the last word of the greedy search is complete, too,
    /// and where it has none, the largest probability of any label counts.
    pub fn update(
        &mut self,
        tokenizer: &Tokenizer,
        labels: &[DecodedToken],
        words: &[Range<usize>],
        decision: bool,
    ) {
        if self.is_open {
            return;
        }
        let posterior = match &mut self.unfused {
            None => {
                words.iter().map(|word| silence::surest(tokenizer, &labels[word.clone()])).fold(0.0, f64::max)
            }
            Some(unfused) => unfused.take_evidence(tokenizer, decision),
        };
        self.is_open = self.varies && posterior >= self.least;
    }
}

impl UnfusedStream {
    /// The evidence of complete words, which are dropped; see [`SpeechGate::update`].
    fn take_evidence(&mut self, tokenizer: &Tokenizer, decision: bool) -> f64 {
        let ids: Vec<u32> = self.found.labels.iter().map(|label| label.label).collect();
        let words = groups(tokenizer, &ids);
        let end = match words.last() {
            Some(last) if !decision && ids.len() <= MAX_HELD => last.start,
            _ => ids.len(),
        };
        let complete: Vec<DecodedToken> = self.found.labels.drain(..end).collect();
        let posterior = match decision && !self.has_labels {
            true => self.found.label_posterior,
            false => silence::surest(tokenizer, &complete),
        };
        if decision {
            (self.has_labels, self.found.label_posterior) = (false, 0.0);
        }
        posterior
    }
}
