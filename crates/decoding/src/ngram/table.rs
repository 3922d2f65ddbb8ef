//! An n-gram as an ARPA file lists it.
use std::cmp::Ordering;
use std::ops::Range;

/// Most words of an n-gram.
pub(super) const MOST_ORDER: usize = 16;

/// Probabilities and back-off weights of n-grams of words, as an ARPA file lists them; what [`Ngram`](super::Ngram) and
/// [`WordNgram`](super::WordNgram) are made of.
#[derive(Debug, Clone, PartialEq)]
pub struct NgramTable {
    /// In the order of the 1-grams.
    pub(super) words: Vec<String>,
    /// N-grams of order k at k - 1.
    pub(super) orders: Vec<Entries>,
}

/// The n-grams of one order, sorted by their ids.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entries {
    /// Number of words of each.
    pub width: usize,
    /// Row by row.
    pub ids: Vec<u32>,
    /// log10 of the probability.
    pub prob: Vec<f32>,
    /// log10 of the back-off weight.
    pub backoff: Vec<f32>,
}

impl NgramTable {
    /// The longest n-grams' number of words.
    pub fn order(&self) -> usize {
        self.orders.len()
    }

    /// Number of n-grams of each order, 1-grams first.
    pub fn counts(&self) -> Vec<usize> {
        self.orders.iter().map(Entries::len).collect()
    }

    /// The 1-grams as they are written, `<s>` and its like among them.
    pub fn words(&self) -> &[String] {
        &self.words
    }
}

impl Entries {
    pub fn new(width: usize) -> Self {
        Self { width, ids: Vec::new(), prob: Vec::new(), backoff: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.prob.len()
    }

    pub fn row(&self, at: usize) -> &[u32] {
        &self.ids[at * self.width..][..self.width]
    }

    pub fn push(&mut self, ids: impl IntoIterator<Item = u32>, prob: f32, backoff: f32) {
        self.ids.extend(ids);
        self.prob.push(prob);
        self.backoff.push(backoff);
    }

    /// Sorted copy, and where each row was.
    pub fn sorted(&self) -> (Self, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.len()).collect();
        // Equal rows stay in their order: an error names the first one first.
        order.sort_by(|&a, &b| self.row(a).cmp(self.row(b)));
        let mut sorted = Self::new(self.width);
        for &at in &order {
            sorted.push(self.row(at).iter().copied(), self.prob[at], self.backoff[at]);
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

/// For each of the sorted rows, which of the sorted longer ones begin with it.
pub(super) fn children(rows: &[u32], width: usize, longer: &[u32]) -> Vec<Range<usize>> {
    let longer: Vec<&[u32]> = longer.chunks_exact(width + 1).collect();
    let mut next = 0;
    let of_row = |row: &[u32]| {
        next += longer[next..].iter().take_while(|long| &long[..width] < row).count();
        let first = next;
        next += longer[next..].iter().take_while(|long| &long[..width] == row).count();
        first..next
    };
    rows.chunks_exact(width).map(of_row).collect()
}
