//! N-gram tables of language models: the contents of an ARPA file.
use std::cmp::Ordering;
use std::ops::Range;

/// Most words of an n-gram.
pub(super) const MAX_ORDER: usize = 16;

/// Probabilities and back-off weights of n-grams of words.
///
/// It is read from an ARPA file or [estimated](super::estimate()); [`Ngram`](super::Ngram) and
/// [`WordNgram`](super::WordNgram) are built from it.
#[derive(Debug, Clone, PartialEq)]
pub struct NgramTable {
    /// Words in the order of the 1-grams.
    pub(super) words: Vec<String>,
    /// N-grams of order k at k - 1.
    pub(super) orders: Vec<OrderEntries>,
}

/// The n-grams of one order, sorted by their ids.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OrderEntries {
    /// Number of words of an n-gram: the order.
    pub width: usize,
    /// Word ids, one row per n-gram.
    pub ids: Vec<u32>,
    /// log10 of the probabilities.
    pub log10_probs: Vec<f32>,
    /// log10 of the back-off weights.
    pub log10_backoffs: Vec<f32>,
}

impl NgramTable {
    /// Order N, the number of words of the longest n-grams.
    pub fn order(&self) -> usize {
        self.orders.len()
    }

    /// Number of n-grams of each order, 1-grams first.
    pub fn counts(&self) -> Vec<usize> {
        self.orders.iter().map(OrderEntries::len).collect()
    }

    /// Words of the 1-grams, including `<s>`, `</s>` and `<unk>`.
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

impl OrderEntries {
    /// Creates an empty list of n-grams of `width` words.
    pub(super) fn new(width: usize) -> Self {
        Self { width, ids: Vec::new(), log10_probs: Vec::new(), log10_backoffs: Vec::new() }
    }

    /// Number of n-grams.
    pub(super) fn len(&self) -> usize {
        self.log10_probs.len()
    }

    /// Word ids of an n-gram.
    pub(super) fn ngram(&self, index: usize) -> &[u32] {
        &self.ids[index * self.width..][..self.width]
    }

    /// Appends an n-gram.
    pub(super) fn push(&mut self, ids: impl IntoIterator<Item = u32>, log10_prob: f32, log10_backoff: f32) {
        self.ids.extend(ids);
        self.log10_probs.push(log10_prob);
        self.log10_backoffs.push(log10_backoff);
    }

    /// Returns a sorted copy, and the original index of each n-gram.
    pub(super) fn sorted(&self) -> (Self, Vec<usize>) {
        let mut indices: Vec<usize> = (0..self.len()).collect();
        // The sort is stable: an error reports the first of equal n-grams first.
        indices.sort_by(|&a, &b| self.ngram(a).cmp(self.ngram(b)));
        let mut sorted = Self::new(self.width);
        for &index in &indices {
            let (log10_prob, log10_backoff) = (self.log10_probs[index], self.log10_backoffs[index]);
            sorted.push(self.ngram(index).iter().copied(), log10_prob, log10_backoff);
        }
        (sorted, indices)
    }

    /// Returns the index of an n-gram.
    pub(super) fn find(&self, ngram: &[u32]) -> Option<usize> {
        find(&self.ids, self.width, ngram)
    }
}

/// Returns the index of an n-gram among sorted ones of `width` words.
pub(super) fn find(ids: &[u32], width: usize, ngram: &[u32]) -> Option<usize> {
    let (mut low, mut high) = (0, ids.len() / width);
    while low < high {
        let middle = (low + high) / 2;
        match ids[middle * width..][..width].cmp(ngram) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Some(middle),
        }
    }
    None
}

/// Returns the range of the longer n-grams that begin with each n-gram.
///
/// `ids` are sorted n-grams of `width` words, `longer_ids` sorted n-grams of one word more.
pub(super) fn continuations(ids: &[u32], width: usize, longer_ids: &[u32]) -> Vec<Range<usize>> {
    let longer_ngrams: Vec<&[u32]> = longer_ids.chunks_exact(width + 1).collect();
    let mut next = 0;
    let range_of = |context: &[u32]| {
        next += longer_ngrams[next..].iter().take_while(|longer| &longer[..width] < context).count();
        let begin = next;
        next += longer_ngrams[next..].iter().take_while(|longer| &longer[..width] == context).count();
        begin..next
    };
    ids.chunks_exact(width).map(range_of).collect()
}
