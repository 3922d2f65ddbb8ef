//! Reads the columns of a run's `metrics.csv` for its report.
//!
//! Files of all versions of the program are read: columns are found by name.
use std::path::Path;

use speech::files::open_regular;

use crate::{Error, Result};

/// A numeric column with one cell per epoch.
#[derive(Debug)]
pub(crate) struct Column {
    /// Name in the header.
    pub name: String,
    /// Values; none for cells without a finite number.
    pub values: Vec<Option<f64>>,
}

/// Numeric columns of a table with one row per epoch.
#[derive(Debug, Default)]
pub(crate) struct Columns {
    /// Epoch of each row.
    pub epochs: Vec<f64>,
    /// The other columns.
    pub columns: Vec<Column>,
}

impl Columns {
    /// Reads a table; an absent file has no columns.
    ///
    /// # Errors
    /// [`Error::Metrics`] if the file is not a table.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let metrics_error = |source| Error::Metrics { path: path.to_owned(), source };
        let file = open_regular(path).map_err(|error| metrics_error(error.into()))?;
        let mut reader = csv::Reader::from_reader(file);
        // All columns of the table.
        let header = reader.headers().map_err(metrics_error)?;
        let mut columns: Vec<Column> =
            header.iter().map(|name| Column { name: name.to_owned(), values: Vec::new() }).collect();
        let mut row_count = 0;
        for row in reader.records() {
            let row = row.map_err(metrics_error)?;
            for (cell, column) in row.iter().zip(&mut columns) {
                column.values.push(cell.trim().parse().ok().filter(|value: &f64| value.is_finite()));
            }
            row_count += 1;
        }
        // The column of epochs; rows without one are numbered.
        let epoch_index = columns.iter().position(|column| column.name == "epoch");
        let cells = epoch_index.map_or(Vec::new(), |index| columns.remove(index).values);
        let epochs = (0..row_count).map(|row| cells.get(row).copied().flatten().unwrap_or(row as f64 + 1.0));
        Ok(Self { epochs: epochs.collect(), columns })
    }

    /// Returns the values of a column without empty cells.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        let column = self.columns.iter().find(|column| column.name == name);
        column.map_or(Vec::new(), |column| column.values.iter().copied().flatten().collect())
    }
}
