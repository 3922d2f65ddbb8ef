//! Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1998; counted and interpolated as by Heafield et al. 2013).
use super::table::{Entries, MOST_ORDER, NgramTable, children, find};
use super::vocabulary::{self, BEGIN, END, UNKNOWN, arpa_word};
use super::{Error, Result};

const UNKNOWN_ID: u32 = 0;
const BEGIN_ID: u32 = 1;
const END_ID: u32 = 2;

/// An n-gram of texts, and what was taken from their counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// The n-gram.
    pub table: NgramTable,
    /// Of each order, 1-grams first.
    pub discounts: Vec<Discounts>,
}

/// What is taken from counts of 1, of 2, and of 3 and more, and given to the order below.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Discounts {
    /// The three numbers.
    pub values: [f64; 3],
    /// Where they are from.
    pub kind: DiscountKind,
}

/// Where discounts are from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DiscountKind {
    /// Three of their own, by n_1 to n_4.
    Modified,
    /// One for all, Y = n_1 / (n_1 + 2 n_2) (Ney, Essen and Kneser 1994): n_3 or n_4 is 0, or would make a discount that is not
    /// above 0.
    Absolute,
    /// One half for all: n_1 or n_2 is 0.
    Half,
}

/// Estimates an n-gram of order N from texts of token ids by interpolated modified Kneser-Ney.
///
/// Each text stands between one `<s>` and one `</s>`. With c(h w) the number of times that h w is there if it has N words or begins
/// with `<s>`, and else the number of different words before it,
///
/// p(w | h) = (c(h w) - D(c(h w))) / Σ_v c(h v) + γ(h) p(w | h'), &emsp; γ(h) = Σ_v D(c(h v)) / Σ_v c(h v),
///
/// where h' is h without its first word, and below the empty context lies 1 / V for each of the V names, `</s>` and `<unk>`: every
/// context's probabilities sum to 1, and what was never seen has its share. Of each order, with n_r the number of n-grams that have
/// c = r and Y = n_1 / (n_1 + 2 n_2), D(1) = 1 - 2 Y n_2 / n_1, D(2) = 2 - 3 Y n_3 / n_2, D(3 and more) = 3 - 4 Y n_4 / n_3;
/// tiny texts lack some of the n_r, see [`DiscountKind`].
///
/// All names that are not empty become 1-grams, seen or not; a token named `<unk>` is that of the table. Sorting takes time
/// order · n·log n for n tokens; memory some 30 bytes an n-gram. The result depends on nothing but the arguments.
///
/// # Errors
/// [`Error::Option`] for an order that is not between 1 and 16; [`Error::NoText`]; [`Error::Id`] for a token without a name;
/// [`Error::Name`] for one with another's, or with `<s>` or `</s>`.
///
/// ```
/// let estimate = decoding::ngram::estimate(&[vec![0, 1], vec![0]], &["yes", "no"], 2)?;
/// // yes, no and <s>, </s>, <unk>; <s> yes, yes no, yes </s>, no </s>
/// assert_eq!(estimate.table.counts(), [5, 4]);
/// # Ok::<(), decoding::ngram::Error>(())
/// ```
pub fn estimate<S: AsRef<str>>(texts: &[Vec<u32>], names: &[S], order: usize) -> Result<Estimate> {
    if !(1..=MOST_ORDER).contains(&order) {
        let expected = format!("1 to {MOST_ORDER}");
        return Err(Error::Option { option: "order", expected, found: order.to_string() });
    }
    let (words, ids) = vocabulary(names)?;
    let corpus = MarkedTexts::new(texts, &ids)?;
    let mut levels: Vec<OrderCounts> =
        (1..=order).map(|width| OrderCounts::counted(&corpus, width, words.len())).collect();
    for k in (1..order).rev() {
        let (shorter, longer) = levels.split_at_mut(k);
        shorter[k - 1].continuations(&longer[0]);
    }
    // It begins every text and is never foreseen.
    levels[0].counts[BEGIN_ID as usize] = 0;
    let discounts: Vec<Discounts> = levels.iter().map(|level| Discounts::of(&level.counts)).collect();
    levels[0].unigrams(&discounts[0]);
    for k in 1..order {
        let (shorter, longer) = levels.split_at_mut(k);
        longer[0].interpolate(&mut shorter[k - 1], &discounts[k]);
    }
    let orders = levels.iter().map(OrderCounts::entries).collect();
    Ok(Estimate { table: NgramTable { words, orders }, discounts })
}

/// Words of the table, and the word of each name.
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

/// All texts one after another, each between its marks.
struct MarkedTexts {
    text: Vec<u32>,
    /// Of each position, where its text ends.
    end: Vec<usize>,
}

impl MarkedTexts {
    fn new(texts: &[Vec<u32>], ids: &[Option<u32>]) -> Result<Self> {
        if texts.iter().all(Vec::is_empty) {
            return Err(Error::NoText);
        }
        let mut corpus = Self { text: Vec::new(), end: Vec::new() };
        for (sequence, tokens) in texts.iter().enumerate() {
            corpus.text.push(BEGIN_ID);
            for (index, &id) in tokens.iter().enumerate() {
                let word = ids.get(id as usize).copied().flatten();
                corpus.text.push(word.ok_or(Error::Id { sequence, index, id, names: ids.len() })?);
            }
            corpus.text.push(END_ID);
            corpus.end.resize(corpus.text.len(), corpus.text.len());
        }
        Ok(corpus)
    }
}

/// The n-grams of one order, sorted.
struct OrderCounts {
    width: usize,
    ids: Vec<u32>,
    counts: Vec<u64>,
    prob: Vec<f64>,
    /// γ of those that something follows.
    backoff: Vec<f64>,
}

impl OrderCounts {
    /// How many times each n-gram is there; 1-grams are all there.
    fn counted(corpus: &MarkedTexts, width: usize, words: usize) -> Self {
        let gram = |at: usize| &corpus.text[at..at + width];
        let mut places: Vec<usize> =
            (0..corpus.text.len()).filter(|&at| at + width <= corpus.end[at]).collect();
        places.sort_unstable_by(|&a, &b| gram(a).cmp(gram(b)));
        let runs = places.chunk_by(|&a, &b| gram(a) == gram(b));
        let (ids, counts) = if width == 1 {
            let mut counts = vec![0; words];
            runs.for_each(|run| counts[corpus.text[run[0]] as usize] = run.len() as u64);
            ((0..words as u32).collect(), counts)
        } else {
            let (rows, counts): (Vec<&[u32]>, Vec<u64>) =
                runs.map(|run| (gram(run[0]), run.len() as u64)).unzip();
            (rows.concat(), counts)
        };
        let zeros = vec![0.0; counts.len()];
        Self { width, ids, counts, prob: zeros.clone(), backoff: zeros }
    }

    fn row(&self, at: usize) -> &[u32] {
        &self.ids[at * self.width..][..self.width]
    }

    /// Index of what is left of a longer row without its first word.
    fn suffix(&self, longer: &[u32]) -> usize {
        find(&self.ids, self.width, &longer[1..]).expect("the end of an n-gram is one too")
    }

    /// Counts the different words before each n-gram that can have several.
    fn continuations(&mut self, longer: &Self) {
        let inner = |level: &Self, at: usize| level.row(at)[0] != BEGIN_ID;
        for at in (0..self.counts.len()).filter(|&at| inner(self, at)).collect::<Vec<_>>() {
            self.counts[at] = 0;
        }
        for at in 0..longer.counts.len() {
            let suffix = self.suffix(longer.row(at));
            self.counts[suffix] += 1;
        }
    }

    /// Interpolated with equal shares.
    fn unigrams(&mut self, discounts: &Discounts) {
        let total: u64 = self.counts.iter().sum();
        let gamma = discounts.gamma(&self.counts);
        let share = gamma / (self.counts.len() - 1) as f64;
        let prob = |&count| discounts.rest(count) / total as f64 + share;
        self.prob = self.counts.iter().map(prob).collect();
    }

    /// Interpolated with the order below, which gets its weights.
    fn interpolate(&mut self, shorter: &mut Self, discounts: &Discounts) {
        let contexts = children(&shorter.ids, shorter.width, &self.ids);
        for (context, children) in contexts.into_iter().enumerate().filter(|(_, range)| !range.is_empty()) {
            let counts = &self.counts[children.clone()];
            let total: u64 = counts.iter().sum();
            let gamma = discounts.gamma(counts);
            shorter.backoff[context] = gamma;
            for at in children {
                let below = shorter.prob[shorter.suffix(self.row(at))];
                self.prob[at] = discounts.rest(self.counts[at]) / total as f64 + gamma * below;
            }
        }
    }

    fn entries(&self) -> Entries {
        let mut entries = Entries::new(self.width);
        for at in 0..self.counts.len() {
            let row = self.row(at);
            let prob = if row == [BEGIN_ID] { -99.0 } else { self.prob[at].log10().min(0.0) as f32 };
            // Where nothing follows nothing is weighed.
            let backoff = if self.backoff[at] > 0.0 { self.backoff[at].log10() as f32 } else { 0.0 };
            entries.push(row.iter().copied(), prob, backoff);
        }
        entries
    }
}

impl Discounts {
    fn of(counts: &[u64]) -> Self {
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

    /// What a count gives away.
    fn discount(&self, count: u64) -> f64 {
        match count {
            0 => 0.0,
            1..=3 => self.values[count as usize - 1],
            _ => self.values[2],
        }
    }

    /// What it keeps: no count is below its discount.
    fn rest(&self, count: u64) -> f64 {
        count as f64 - self.discount(count)
    }

    /// The share that the counts of a context give away.
    fn gamma(&self, counts: &[u64]) -> f64 {
        let given: f64 = counts.iter().map(|&count| self.discount(count)).sum();
        given / counts.iter().sum::<u64>() as f64
    }
}

#[cfg(test)]
mod tests;
