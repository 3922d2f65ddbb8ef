//! What a predictor remembers of many hypotheses, row by row.

/// What one row of [`States`] holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StateShape {
    /// Labels, such as the context of a stateless predictor.
    pub labels: usize,
    /// Numbers, such as h and c of each layer of an LSTM.
    pub values: usize,
}

/// The states of some hypotheses: plain rows, so that selecting, gathering, splitting and merging are the same for every
/// predictor, and a state can be kept, sent and compared.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct States {
    shape: StateShape,
    rows: usize,
    labels: Vec<u32>,
    values: Vec<f32>,
}

impl States {
    /// No rows of a shape.
    pub fn new(shape: StateShape) -> Self {
        Self { shape, ..Self::default() }
    }

    /// One row.
    ///
    /// # Panics
    /// Never: whatever the lists hold is the shape.
    pub fn from_row(labels: Vec<u32>, values: Vec<f32>) -> Self {
        Self { shape: StateShape { labels: labels.len(), values: values.len() }, rows: 1, labels, values }
    }

    /// What a row holds.
    pub fn shape(&self) -> StateShape {
        self.shape
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The labels of all rows, *n x labels*.
    pub fn labels(&self) -> &[u32] {
        &self.labels
    }

    /// The labels of all rows, to be written.
    pub fn labels_mut(&mut self) -> &mut [u32] {
        &mut self.labels
    }

    /// The numbers of all rows, *n x values*.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The numbers of all rows, to be written.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// Whether lists and shape belong together, which a state that came from outside must show.
    pub fn is_sound(&self) -> bool {
        let StateShape { labels, values } = self.shape;
        self.rows.checked_mul(labels) == Some(self.labels.len())
            && self.rows.checked_mul(values) == Some(self.values.len())
    }

    /// Forgets all rows and takes a shape.
    pub fn clear(&mut self, shape: StateShape) {
        (self.shape, self.rows) = (shape, 0);
        self.labels.clear();
        self.values.clear();
    }

    /// Appends rows of others, in this order; a row may come several times (gather, merge).
    ///
    /// # Panics
    /// If the shapes differ or there is no such row.
    pub fn extend(&mut self, from: &States, rows: impl IntoIterator<Item = usize>) {
        assert_eq!(self.shape, from.shape, "states of one shape");
        let StateShape { labels, values } = self.shape;
        for row in rows {
            self.labels.extend_from_slice(&from.labels[row * labels..][..labels]);
            self.values.extend_from_slice(&from.values[row * values..][..values]);
            self.rows += 1;
        }
    }

    /// One row as states of its own (split).
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> States {
        let mut one = States::new(self.shape);
        one.extend(self, [row]);
        one
    }

    /// Puts row `from` of others in the place of row `to` (select).
    ///
    /// # Panics
    /// If the shapes differ or there is no such row.
    pub fn set(&mut self, to: usize, other: &States, from: usize) {
        assert_eq!(self.shape, other.shape, "states of one shape");
        let StateShape { labels, values } = self.shape;
        self.labels[to * labels..][..labels].copy_from_slice(&other.labels[from * labels..][..labels]);
        self.values[to * values..][..values].copy_from_slice(&other.values[from * values..][..values]);
    }

    /// Keeps the rows for which `keep` says so, in their order (compact).
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let StateShape { labels, values } = self.shape;
        let mut kept = 0;
        for row in 0..self.rows {
            if keep(row) {
                self.labels.copy_within(row * labels..(row + 1) * labels, kept * labels);
                self.values.copy_within(row * values..(row + 1) * values, kept * values);
                kept += 1;
            }
        }
        self.rows = kept;
        self.labels.truncate(kept * labels);
        self.values.truncate(kept * values);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_move_as_a_whole() {
        let row = |k: u32| States::from_row(vec![k, k + 1], vec![k as f32]);
        let mut all = States::new(row(0).shape());
        (0..4).for_each(|k| all.extend(&row(10 * k), [0]));
        assert_eq!((all.rows(), all.row(2)), (4, row(20)));
        let mut some = States::new(all.shape());
        some.extend(&all, [3, 0, 3]);
        assert_eq!(some.labels(), [30, 31, 0, 1, 30, 31]);
        some.set(1, &all, 2);
        some.retain(|row| row != 0);
        assert_eq!((some.labels(), some.values()), (&[20, 21, 30, 31][..], &[20.0, 30.0][..]));
        assert!(some.is_sound() && some.rows() == 2);
        some.clear(StateShape::default());
        assert_eq!(some, States::default());
    }
}
