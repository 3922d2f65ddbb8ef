//! Predictor states in transducer decoding, one row per hypothesis.

/// Sizes of a row of [`States`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StateShape {
    /// Number of labels, such as the context of a stateless predictor.
    pub labels: usize,
    /// Number of values, such as h and c of LSTM layers.
    pub values: usize,
}

/// Predictor states of several hypotheses, one row each.
///
/// Rows are plain data, so that every predictor gathers, splits and merges them alike, and a state
/// can be stored, sent and compared.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct States {
    shape: StateShape,
    rows: usize,
    labels: Vec<u32>,
    values: Vec<f32>,
}

impl States {
    /// Creates states without rows.
    pub fn new(shape: StateShape) -> Self {
        Self { shape, ..Self::default() }
    }

    /// Creates one row; the lengths of the lists are its shape.
    pub fn from_row(labels: Vec<u32>, values: Vec<f32>) -> Self {
        Self { shape: StateShape { labels: labels.len(), values: values.len() }, rows: 1, labels, values }
    }

    /// Sizes of a row.
    pub fn shape(&self) -> StateShape {
        self.shape
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Labels of all n rows, *n x labels*.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// Mutable labels of all rows.
    pub(crate) fn labels_mut(&mut self) -> &mut [u32] {
        &mut self.labels
    }

    /// Values of all n rows, *n x values*.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Mutable values of all rows.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Returns whether the lists match the shape; deserialized states may not.
    pub(crate) fn is_valid(&self) -> bool {
        let StateShape { labels, values } = self.shape;
        self.rows.checked_mul(labels) == Some(self.labels.len())
            && self.rows.checked_mul(values) == Some(self.values.len())
    }

    /// Removes all rows and sets a shape.
    pub fn clear(&mut self, shape: StateShape) {
        (self.shape, self.rows) = (shape, 0);
        self.labels.clear();
        self.values.clear();
    }

    /// Appends rows of `source`, in order and with repetitions (gather).
    ///
    /// # Panics
    /// If the shapes differ or there is no such row.
    pub fn extend(&mut self, source: &States, rows: impl IntoIterator<Item = usize>) {
        assert_eq!(self.shape, source.shape, "states of one shape");
        let StateShape { labels, values } = self.shape;
        for row in rows {
            self.labels.extend_from_slice(&source.labels[row * labels..][..labels]);
            self.values.extend_from_slice(&source.values[row * values..][..values]);
            self.rows += 1;
        }
    }

    /// Copies one row (split).
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> States {
        let mut single = States::new(self.shape);
        single.extend(self, [row]);
        single
    }

    /// Overwrites a row with a row of `source`.
    ///
    /// # Panics
    /// If the shapes differ or there is no such row.
    pub fn copy_row(&mut self, target_row: usize, source: &States, source_row: usize) {
        assert_eq!(self.shape, source.shape, "states of one shape");
        let StateShape { labels, values } = self.shape;
        self.labels[target_row * labels..][..labels]
            .copy_from_slice(&source.labels[source_row * labels..][..labels]);
        self.values[target_row * values..][..values]
            .copy_from_slice(&source.values[source_row * values..][..values]);
    }

    /// Keeps the rows whose index satisfies `keep`, in order (compact).
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let StateShape { labels, values } = self.shape;
        let mut kept_rows = 0;
        for row in 0..self.rows {
            if keep(row) {
                self.labels.copy_within(row * labels..(row + 1) * labels, kept_rows * labels);
                self.values.copy_within(row * values..(row + 1) * values, kept_rows * values);
                kept_rows += 1;
            }
        }
        self.rows = kept_rows;
        self.labels.truncate(kept_rows * labels);
        self.values.truncate(kept_rows * values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_copied_as_a_whole() {
        let state_row = |k: u32| States::from_row(vec![k, k + 1], vec![k as f32]);
        let mut all = States::new(state_row(0).shape());
        (0..4).for_each(|k| all.extend(&state_row(10 * k), [0]));
        assert_eq!((all.rows(), all.row(2)), (4, state_row(20)));
        let mut gathered = States::new(all.shape());
        gathered.extend(&all, [3, 0, 3]);
        assert_eq!(gathered.labels(), [30, 31, 0, 1, 30, 31]);
        gathered.copy_row(1, &all, 2);
        gathered.retain(|row| row != 0);
        assert_eq!((gathered.labels(), gathered.values()), (&[20, 21, 30, 31][..], &[20.0, 30.0][..]));
        assert!(gathered.is_valid() && gathered.rows() == 2);
        gathered.clear(StateShape::default());
        assert_eq!(gathered, States::default());
    }
}
