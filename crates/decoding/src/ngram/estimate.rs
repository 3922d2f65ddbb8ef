//! Estimates n-gram language models: interpolated modified Kneser-Ney smoothing.
//!
//! Chen and Goodman 1998; counts and interpolation as in Heafield et al. 2013. n_r: number of
//! n-grams with count r, by order; h: context; w: word.
use super::arpa::LOG10_ZERO;
use super::table::{MAX_ORDER, NgramTable, OrderEntries, continuations, find};
use super::vocabulary::{self, BEGIN, END, UNKNOWN, arpa_word};
use super::{Error, Result};

// Word ids of the first words of a table.
const UNKNOWN_ID: u32 = 0;
const BEGIN_ID: u32 = 1;
const END_ID: u32 = 2;

/// An estimated n-gram with its discounts.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The n-gram.
    pub table: NgramTable,
    /// Discounts of each order, 1-grams first.
    pub discounts: Vec<Discounts>,
}

/// Discounts of counts of 1, of 2, and of 3 and more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Discounts {
    /// The discounts.
    pub values: [f64; 3],
    /// Formula of the discounts.
    pub kind: DiscountKind,
}

/// Formula of discounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscountKind {
    /// Modified Kneser-Ney: three discounts from n_1 to n_4.
    Modified,
    /// Absolute discounting with Y = n_1 / (n_1 + 2 n_2) (Ney, Essen and Kneser 1994).
    ///
    /// Used if n_3 or n_4 is 0, or a modified discount is not above 0.
    Absolute,
    /// One half for all counts, used if n_1 or n_2 is 0.
    Half,
}

/// Estimates an n-gram of order N by interpolated modified Kneser-Ney smoothing.
///
/// `texts` are token ids; each text is enclosed in `<s>` and `</s>`. Let c(h w) be the number of
/// occurrences of h w if it has N words or begins with `<s>`, and otherwise the number of different
/// words that precede it. Then
///
/// p(w | h) = (c(h w) - D(c(h w))) / Σ_v c(h v) + γ(h) p(w | h'), &emsp; γ(h) = Σ_v D(c(h v)) / Σ_v
/// c(h v),
///
/// where h' is h without its first word, and the empty context is interpolated with 1 / V, with V
/// the names, `</s>` and `<unk>`: the probabilities of every context sum to 1, and unseen words
/// have a share. For each order, with n_r the number of n-grams with c = r and Y = n_1 / (n_1 + 2
/// n_2), D(1) = 1 - 2 Y n_2 / n_1, D(2) = 2 - 3 Y n_3 / n_2, D(3 and more) = 3 - 4 Y n_4 / n_3. In
/// tiny texts some n_r are 0; see [`DiscountKind`].
///
/// All names that are not empty become 1-grams, seen or not; a token named `<unk>` is that of the
/// table. Time order · n·log n for n tokens; memory about 30 bytes per n-gram. The result is
/// deterministic.
///
/// # Errors
/// [`Error::Option`] for an order outside 1 to 16; [`Error::NoText`]; [`Error::Id`] for a token
/// without a name; [`Error::Name`] for a duplicate name, `<s>` or `</s>`.
///
/// ```
/// let estimate = decoding::ngram::estimate(&[vec![0, 1], vec![0]], &["yes", "no"], 2)?;
/// // yes, no and <s>, </s>, <unk>; <s> yes, yes no, yes </s>, no </s>
/// assert_eq!(estimate.table.counts(), [5, 4]);
/// # Ok::<(), decoding::ngram::Error>(())
/// ```
pub fn estimate<S: AsRef<str>>(texts: &[Vec<u32>], names: &[S], order: usize) -> Result<Estimate> {
    if !(1..=MAX_ORDER).contains(&order) {
        let expected = format!("1 to {MAX_ORDER}");
        return Err(Error::Option { option: "order", expected, found: order.to_string() });
    }
    let (words, ids) = vocabulary(names)?;
    // Counts of each order: occurrences of the longest n-grams, continuations of the others.
    let corpus = MarkedTexts::new(texts, &ids)?;
    let mut counts_by_order: Vec<OrderCounts> =
        (1..=order).map(|width| OrderCounts::new(&corpus, width, words.len())).collect();
    for k in (1..order).rev() {
        let (shorter, longer) = counts_by_order.split_at_mut(k);
        shorter[k - 1].count_continuations(&longer[0]);
    }
    // `<s>` is never predicted.
    counts_by_order[0].counts[BEGIN_ID as usize] = 0;
    // Discounts, then probabilities of each order from those of the order below.
    let discounts: Vec<Discounts> =
        counts_by_order.iter().map(|order| Discounts::from_counts(&order.counts)).collect();
    counts_by_order[0].interpolate_uniform(&discounts[0]);
    for k in 1..order {
        let (shorter, longer) = counts_by_order.split_at_mut(k);
        longer[0].interpolate(&mut shorter[k - 1], &discounts[k]);
    }
    let orders = counts_by_order.iter().map(OrderCounts::to_entries).collect();
    Ok(Estimate { table: NgramTable { words, orders }, discounts })
}

/// Words of the table, and the word id of each name.
fn vocabulary<S: AsRef<str>>(names: &[S]) -> Result<(Vec<String>, Vec<Option<u32>>)> {
    vocabulary::ids(names)?;
    let mut words = [UNKNOWN, BEGIN, END].map(String::from).to_vec();
    let mut word = |name: &S| match arpa_word(name.as_ref()) {
        name if name.is_empty() => None,
        name if name == UNKNOWN => Some(UNKNOWN_ID),
        name => {
            words.push(name.into());
            Some(words.len() as u32 - 1)
        }
    };
    let ids = names.iter().map(&mut word).collect();
    Ok((words, ids))
}

/// All texts in one sequence, each enclosed in `<s>` and `</s>`.
struct MarkedTexts {
    words: Vec<u32>,
    /// End of the text to which each position belongs.
    text_ends: Vec<usize>,
}

impl MarkedTexts {
    fn new(texts: &[Vec<u32>], ids: &[Option<u32>]) -> Result<Self> {
        if texts.iter().all(Vec::is_empty) {
            return Err(Error::NoText);
        }
        let mut corpus = Self { words: Vec::new(), text_ends: Vec::new() };
        for (sequence, tokens) in texts.iter().enumerate() {
            corpus.words.push(BEGIN_ID);
            for (index, &id) in tokens.iter().enumerate() {
                let word = ids.get(id as usize).copied().flatten();
                corpus.words.push(word.ok_or(Error::Id { sequence, index, id, names: ids.len() })?);
            }
            corpus.words.push(END_ID);
            corpus.text_ends.resize(corpus.words.len(), corpus.words.len());
        }
        Ok(corpus)
    }
}

/// Counts and probabilities of the n-grams of one order, sorted.
struct OrderCounts {
    /// Order of the n-grams.
    width: usize,
    /// Word ids, one row per n-gram.
    ids: Vec<u32>,
    counts: Vec<u64>,
    /// Probability of the last word of each n-gram after the others.
    probs: Vec<f64>,
    /// γ of the n-grams with continuations.
    backoffs: Vec<f64>,
}

impl OrderCounts {
    /// Counts the n-grams of a width; all words are 1-grams.
    fn new(corpus: &MarkedTexts, width: usize, vocabulary_len: usize) -> Self {
        let ngram = |position: usize| &corpus.words[position..position + width];
        let mut positions: Vec<usize> = (0..corpus.words.len())
            .filter(|&position| position + width <= corpus.text_ends[position])
            .collect();
        positions.sort_unstable_by(|&a, &b| ngram(a).cmp(ngram(b)));
        let runs = positions.chunk_by(|&a, &b| ngram(a) == ngram(b));
        let (ids, counts) = if width == 1 {
            let mut counts = vec![0; vocabulary_len];
            runs.for_each(|run| counts[corpus.words[run[0]] as usize] = run.len() as u64);
            ((0..vocabulary_len as u32).collect(), counts)
        } else {
            let (ngrams, counts): (Vec<&[u32]>, Vec<u64>) =
                runs.map(|run| (ngram(run[0]), run.len() as u64)).unzip();
            (ngrams.concat(), counts)
        };
        let zeros = vec![0.0; counts.len()];
        Self { width, ids, counts, probs: zeros.clone(), backoffs: zeros }
    }

    /// Word ids of an n-gram.
    fn ngram(&self, index: usize) -> &[u32] {
        &self.ids[index * self.width..][..self.width]
    }

    /// Returns the index of a longer n-gram without its first word.
    fn suffix_index(&self, longer: &[u32]) -> usize {
        find(&self.ids, self.width, &longer[1..]).expect("the suffix of an n-gram is an n-gram")
    }

    /// Replaces counts by the number of different words before each n-gram.
    ///
    /// N-grams that begin with `<s>` keep their counts.
    fn count_continuations(&mut self, longer: &Self) {
        for index in 0..self.counts.len() {
            if self.ngram(index)[0] != BEGIN_ID {
                self.counts[index] = 0;
            }
        }
        for index in 0..longer.counts.len() {
            let suffix = self.suffix_index(longer.ngram(index));
            self.counts[suffix] += 1;
        }
    }

    /// Interpolates 1-grams with the uniform distribution.
    fn interpolate_uniform(&mut self, discounts: &Discounts) {
        let total: u64 = self.counts.iter().sum();
        let gamma = discounts.gamma(&self.counts);
        let share = gamma / (self.counts.len() - 1) as f64;
        let prob = |&count| discounts.discounted(count) / total as f64 + share;
        self.probs = self.counts.iter().map(prob).collect();
    }

    /// Interpolates with the next lower order, whose back-off weights are set.
    fn interpolate(&mut self, shorter: &mut Self, discounts: &Discounts) {
        let ranges = continuations(&shorter.ids, shorter.width, &self.ids);
        for (context, range) in ranges.into_iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let counts = &self.counts[range.clone()];
            let total: u64 = counts.iter().sum();
            let gamma = discounts.gamma(counts);
            shorter.backoffs[context] = gamma;
            for index in range {
                let lower_prob = shorter.probs[shorter.suffix_index(self.ngram(index))];
                self.probs[index] =
                    discounts.discounted(self.counts[index]) / total as f64 + gamma * lower_prob;
            }
        }
    }

    /// Converts probabilities and back-off weights to decimal logarithms.
    fn to_entries(&self) -> OrderEntries {
        let mut entries = OrderEntries::new(self.width);
        for index in 0..self.counts.len() {
            let ngram = self.ngram(index);
            let log10_prob =
                if ngram == [BEGIN_ID] { LOG10_ZERO } else { self.probs[index].log10().min(0.0) as f32 };
            // N-grams without continuations have no back-off weight.
            let log10_backoff =
                if self.backoffs[index] > 0.0 { self.backoffs[index].log10() as f32 } else { 0.0 };
            entries.push(ngram.iter().copied(), log10_prob, log10_backoff);
        }
        entries
    }
}

impl Discounts {
    /// Computes the discounts from the counts of one order.
    fn from_counts(counts: &[u64]) -> Self {
        let n = |r: u64| counts.iter().filter(|&&count| count == r).count() as f64;
        let (n1, n2, n3, n4) = (n(1), n(2), n(3), n(4));
        if n1 == 0.0 || n2 == 0.0 {
            return Self { values: [0.5; 3], kind: DiscountKind::Half };
        }
        let y = n1 / (n1 + 2.0 * n2);
        let values = [1.0 - 2.0 * y * n2 / n1, 2.0 - 3.0 * y * n3 / n2, 3.0 - 4.0 * y * n4 / n3];
        if n3 == 0.0 || n4 == 0.0 || values.iter().any(|&value| value <= 0.0) {
            return Self { values: [y; 3], kind: DiscountKind::Absolute };
        }
        Self { values, kind: DiscountKind::Modified }
    }

    /// Discount of a count.
    fn discount(&self, count: u64) -> f64 {
        match count {
            0 => 0.0,
            1..=3 => self.values[count as usize - 1],
            _ => self.values[2],
        }
    }

    /// Discounted count, never negative.
    fn discounted(&self, count: u64) -> f64 {
        count as f64 - self.discount(count)
    }

    /// Share of the discounts in the counts of a context.
    fn gamma(&self, counts: &[u64]) -> f64 {
        let sum: f64 = counts.iter().map(|&count| self.discount(count)).sum();
        sum / counts.iter().sum::<u64>() as f64
    }
}

#[cfg(test)]
mod tests;
