//! How well an n-gram foresees a text.
use super::Ngram;
use crate::Scorer;

/// Probability of texts under an n-gram.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Perplexity {
    /// Natural logarithm of the probability of all known tokens and of all ends.
    pub log_prob: f64,
    /// Number of tokens, unknown ones among them.
    pub tokens: usize,
    /// Number of texts, each of which ends once.
    pub texts: usize,
    /// Number of unknown tokens.
    pub unknown: usize,
}

impl Perplexity {
    /// exp(-log p / number of events): known tokens and ends are events, as in SRILM; unknown tokens stand in contexts alone. 1 of nothing.
    pub fn value(&self) -> f64 {
        let events = self.tokens - self.unknown + self.texts;
        (-self.log_prob / events.max(1) as f64).exp()
    }

    /// Share of unknown tokens; 0 of nothing.
    pub fn unknown_rate(&self) -> f64 {
        self.unknown as f64 / self.tokens.max(1) as f64
    }
}

impl Ngram {
    /// Probability of texts of class ids, each from its start to its end.
    ///
    /// ```
    /// use decoding::ngram::{OutOfVocabulary, Ngram, estimate};
    ///
    /// let (texts, names) = ([vec![0, 1], vec![0]], ["a", "b"]);
    /// let ngram = Ngram::new(&estimate(&texts, &names, 2)?.table, &names, OutOfVocabulary::Reject)?;
    /// assert!(ngram.perplexity(texts.iter().map(Vec::as_slice)).value() < 3.0);
    /// # Ok::<(), decoding::ngram::Error>(())
    /// ```
    pub fn perplexity<'a>(&self, texts: impl IntoIterator<Item = &'a [u32]>) -> Perplexity {
        let mut sum = Perplexity::default();
        for text in texts {
            let mut state = self.start();
            for &class in text {
                let (score, next) = self.step(state, class);
                if self.is_unknown(class) {
                    sum.unknown += 1;
                } else {
                    sum.log_prob += f64::from(score);
                }
                state = next;
            }
            sum.log_prob += f64::from(self.finish(state));
            sum.tokens += text.len();
            sum.texts += 1;
        }
        sum
    }
}
