//! Reads the columns of a run's `metrics.csv`, of any version.
use std::path::Path;

use speech::files::open_regular;

use crate::{Error, Result};

/// Numeric columns of a table with one row per epoch.
#[derive(Debug, Default)]
pub struct Columns {
    /// Epoch of each row.
    pub epochs: Vec<f64>,
    /// Name and values of each other column; none for cells without a finite number.
    pub columns: Vec<(String, Vec<Option<f64>>)>,
}

impl Columns {
    /// Reads a table; an absent file has no columns.
    ///
    /// # Errors
    /// [`Error::Metrics`] if the file is not a table.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let metrics_error = |source| Error::Metrics { path: path.to_owned(), source };
        let file = open_regular(path).map_err(|error| metrics_error(error.into()))?;
        let mut reader = csv::Reader::from_reader(file);
        let names: Vec<String> = reader.headers().map_err(metrics_error)?.iter().map(str::to_owned).collect();
        let mut columns: Vec<(String, Vec<Option<f64>>)> =
            names.into_iter().map(|name| (name, Vec::new())).collect();
        let mut row_count = 0;
        for row in reader.records() {
            let row = row.map_err(metrics_error)?;
            for (cell, (_, values)) in row.iter().zip(&mut columns) {
                values.push(cell.trim().parse().ok().filter(|value: &f64| value.is_finite()));
            }
            row_count += 1;
        }
        let epochs = columns.iter().position(|(name, _)| name == "epoch");
        let epochs = epochs.map_or(Vec::new(), |index| columns.remove(index).1);
        let epochs = (0..row_count).map(|row| epochs.get(row).copied().flatten().unwrap_or(row as f64 + 1.0));
        Ok(Self { epochs: epochs.collect(), columns })
    }

    /// Returns the values of a column without empty cells.
    pub fn values(&self, name: &str) -> Vec<f64> {
        let column = self.columns.iter().find(|(column_name, _)| column_name == name);
        column.map_or(Vec::new(), |(_, values)| values.iter().copied().flatten().collect())
    }
}
