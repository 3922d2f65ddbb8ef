//! How much of some batches is padding.
use std::ops::AddAssign;

/// Rows of batches, real and padded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Padding {
    /// All rows: longest length times utterances, summed over batches.
    pub rows: usize,
    /// Those that belong to an utterance.
    pub real: usize,
}

impl Padding {
    /// Of a plan: batches of indices into `lengths`. An index without a length counts as an utterance of none.
    ///
    /// ```
    /// let padding = speech::batching::Padding::of(&[3, 1, 4], &[vec![0, 1], vec![2]]);
    /// assert_eq!((padding.rows, padding.real, padding.share()), (10, 8, 0.2));
    /// ```
    pub fn of(lengths: &[usize], batches: &[Vec<usize>]) -> Self {
        let mut all = Padding::default();
        let length = |&at: &usize| lengths.get(at).copied().unwrap_or(0);
        for batch in batches {
            let longest = batch.iter().map(length).max().unwrap_or(0);
            all += Padding { rows: longest * batch.len(), real: batch.iter().map(length).sum() };
        }
        all
    }

    /// Share of the rows that are padding; 0 without rows.
    pub fn share(self) -> f64 {
        if self.rows == 0 { 0.0 } else { (self.rows - self.real) as f64 / self.rows as f64 }
    }
}

impl AddAssign for Padding {
    fn add_assign(&mut self, other: Self) {
        self.rows += other.rows;
        self.real += other.real;
    }
}
