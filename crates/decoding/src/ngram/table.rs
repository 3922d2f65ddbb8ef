//! N-gram tables with probabilities, the contents of an ARPA file.
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
    pub(super) orders: Vec<Entries>,
}

/// The n-grams of one order, sorted by their ids.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entries {
    /// Words of an n-gram: the order.
    pub width: usize,
    /// Word ids, one row per n-gram.
    pub ids: Vec<u32>,
    /// log10 of the probabilities.
    pub prob: Vec<f32>,
    /// log10 of the back-off weights.
    pub backoff: Vec<f32>,
}

impl NgramTable {
    /// Order N, the number of words of the longest n-grams.
    pub fn order(&self) -> usize {
        self.orders.len()
    }

    /// Number of n-grams of each order, 1-grams first.
    pub fn counts(&self) -> Vec<usize> {
        self.orders.iter().map(Entries::len).collect()
    }

    /// Words of the 1-grams, including `<s>`, `</s>` and `<unk>`.
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

impl Entries {
    /// Creates an empty list of n-grams of `width` words.
    pub fn new(width: usize) -> Self {
        Self { width, ids: Vec::new(), prob: Vec::new(), backoff: Vec::new() }
    }

    /// Number of n-grams.
    pub fn len(&self) -> usize {
        self.prob.len()
    }

    /// Word ids of an n-gram.
    pub fn row(&self, index: usize) -> &[u32] {
        &self.ids[index * self.width..][..self.width]
    }

    /// Appends an n-gram.
    pub fn push(&mut self, ids: impl IntoIterator<Item = u32>, prob: f32, backoff: f32) {
        self.ids.extend(ids);
        self.prob.push(prob);
        self.backoff.push(backoff);
    }

    /// Sorted copy, and the original index of each row.
    pub fn sorted(&self) -> (Self, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        // The sort is stable: an error reports the first of equal rows first.
        order.sort_by(|&a, &b| self.row(a).cmp(self.row(b)));
        let mut sorted = Self::new(self.width);
        for &index in &order {
            sorted.push(self.row(index).iter().copied(), self.prob[index], self.backoff[index]);
        }
        (sorted, order)
    }

    /// Index of a row.
    pub fn find(&self, row: &[u32]) -> Option<usize> {
        find(&self.ids, self.width, row)
    }
}

/// Index of a row among sorted rows of a width.
pub(super) fn find(rows: &[u32], width: usize, row: &[u32]) -> Option<usize> {
    let (mut low, mut high) = (0, rows.len() / width);
    while low < high {
        let middle = (low + high) / 2;
        match rows[middle * width..][..width].cmp(row) {
            Ordering::Less => low = middle + 1,
            Ordering::Greater => high = middle,
            Ordering::Equal => return Some(middle),
        }
    }
    None
}

/// Range of the sorted longer rows that begin with each row.
pub(super) fn children(rows: &[u32], width: usize, longer: &[u32]) -> Vec<Range<usize>> {
    let longer: Vec<&[u32]> = longer.chunks_exact(width + 1).collect();
    let mut next = 0;
    let range_of = |row: &[u32]| {
        next += longer[next..].iter().take_while(|long| &long[..width] < row).count();
        let begin = next;
        next += longer[next..].iter().take_while(|long| &long[..width] == row).count();
        begin..next
    };
    rows.chunks_exact(width).map(range_of).collect()
}
