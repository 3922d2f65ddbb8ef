//! `metrics.csv` as it is: whatever columns it has.
use std::path::Path;

use speech::files::open_regular;

use crate::{Error, Result};

/// Columns of numbers over the epochs.
#[derive(Debug, Default)]
pub struct Columns {
    /// The epoch of each row.
    pub epochs: Vec<f64>,
    /// Name and values of each other column; an empty cell, or one that is no finite number, is none.
    pub columns: Vec<(String, Vec<Option<f64>>)>,
}

impl Columns {
    /// Reads a table; nothing if there is no such file yet.
    ///
    /// # Errors
    /// [`Error::Metrics`] if it is no table.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::default());
        }
        let broken = |source| Error::Metrics { path: path.to_owned(), source };
        let file = open_regular(path).map_err(|error| broken(error.into()))?;
        let mut reader = csv::Reader::from_reader(file);
        let names: Vec<String> = reader.headers().map_err(broken)?.iter().map(str::to_owned).collect();
        let mut columns: Vec<(String, Vec<Option<f64>>)> =
            names.into_iter().map(|name| (name, Vec::new())).collect();
        let mut rows = 0;
        for row in reader.records() {
            let row = row.map_err(broken)?;
            for (cell, column) in row.iter().zip(&mut columns) {
                column.1.push(cell.trim().parse().ok().filter(|value: &f64| value.is_finite()));
            }
            rows += 1;
        }
        let epochs = columns.iter().position(|column| column.0 == "epoch");
        let epochs = epochs.map_or(Vec::new(), |index| columns.remove(index).1);
        let epochs = (0..rows).map(|row| epochs.get(row).copied().flatten().unwrap_or(row as f64 + 1.0));
        Ok(Self { epochs: epochs.collect(), columns })
    }

    /// The values of a column, those that are there.
    pub fn values(&self, name: &str) -> Vec<f64> {
        let column = self.columns.iter().find(|column| column.0 == name);
        column.map_or(Vec::new(), |column| column.1.iter().copied().flatten().collect())
    }
}
