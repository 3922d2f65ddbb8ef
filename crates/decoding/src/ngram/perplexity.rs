//! Perplexity of texts under an n-gram language model.
use super::Ngram;
use crate::Scorer;

/// Log-probability and perplexity of texts under an n-gram.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Perplexity {
    /// Natural log-probability of all known tokens and all ends.
    pub log_prob: f64,
    /// Number of tokens, including unknown ones.
    pub tokens: usize,
    /// Number of texts.
    pub texts: usize,
    /// Number of unknown tokens.
    pub unknown: usize,
}

impl Perplexity {
    /// Perplexity, `exp(-log p / number of events)`; 1 for empty input.
    ///
    /// Events are known tokens and ends of texts, as in SRILM; unknown tokens occur in contexts
    /// only.
    pub fn value(&self) -> f64 {
        let events = self.tokens - self.unknown + self.texts;
        (-self.log_prob / events.max(1) as f64).exp()
    }

    /// Share of unknown tokens; 0 for empty input.
    pub fn unknown_rate(&self) -> f64 {
        self.unknown as f64 / self.tokens.max(1) as f64
    }
}

impl Ngram {
    /// Computes the perplexity of complete texts of class ids.
    ///
    /// ```
    /// use decoding::ngram::{OutOfVocabulary, Ngram, estimate};
    ///
    /// let (texts, names) = ([vec![0, 1], vec![0]], ["a", "b"]);
    /// let table = estimate(&texts, &names, 2)?.table;
    /// let ngram = Ngram::new(&table, &names, OutOfVocabulary::Reject)?;
    /// assert!(ngram.perplexity(texts.iter().map(Vec::as_slice)).value() < 3.0);
    /// # Ok::<(), decoding::ngram::Error>(())
    /// ```
    pub fn perplexity<'a>(&self, texts: impl IntoIterator<Item = &'a [u32]>) -> Perplexity {
        let mut perplexity = Perplexity::default();
        for text in texts {
            let mut state = self.start();
            for &class in text {
                let (score, next) = self.step(state, class);
                if self.is_unknown(class) {
                    perplexity.unknown += 1;
                } else {
                    perplexity.log_prob += f64::from(score);
                }
                state = next;
            }
            perplexity.log_prob += f64::from(self.finish(state));
            perplexity.tokens += text.len();
            perplexity.texts += 1;
        }
        perplexity
    }
}
