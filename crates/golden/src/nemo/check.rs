//! Comparison of a part with the files of a golden folder.
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use crate::case::{StoredTensor, read_tensors};
use crate::error::{Error, Result};
use crate::mlperf::{Tolerance, tolerance_ratio};

/// Comparison of a part with the files of a folder.
pub(super) struct NemoCheck {
    /// The folder with the stored files.
    pub folder: PathBuf,
    /// Number of compared tensors and values.
    pub compared_quantities: usize,
    /// Largest ratio of error to tolerance.
    pub ratio: f64,
    pub failures: Vec<String>,
}

impl NemoCheck {
    pub(super) fn new(folder: &Path) -> Self {
        NemoCheck { folder: folder.to_owned(), compared_quantities: 0, ratio: 0.0, failures: Vec::new() }
    }

    /// Reads all tensors of a file.
    pub(super) fn tensors(&self, name: &str) -> Result<BTreeMap<String, StoredTensor>> {
        read_tensors(&self.folder.join(name))
    }

    /// Reads a JSON file; Python's infinities become null.
    pub(super) fn json(&self, name: &str) -> Result<serde_json::Value> {
        let path = self.folder.join(name);
        let text = speech::files::read_regular(&path)
            .map_err(|source| Error::File { path: path.clone(), source })?;
        let text =
            String::from_utf8_lossy(&text).replace("-Infinity", "null").replace(": Infinity", ": null");
        serde_json::from_str(&text).map_err(|source| Error::Sidecar { path, source })
    }

    /// Compares numbers.
    pub(super) fn compare(&mut self, name: &str, actual: &[f64], stored: &[f64], tolerance: Tolerance) {
        self.compared_quantities += 1;
        if actual.len() != stored.len() {
            let (expected, found) = (stored.len(), actual.len());
            self.failures.push(format!("{name}: expected {expected} numbers, found {found}"));
            return;
        }
        let max_magnitude = stored.iter().fold(0.0, |max: f64, value| value.abs().max(max));
        let mut largest: (f64, usize) = (0.0, 0);
        for (index, (&actual, &stored)) in actual.iter().zip(stored).enumerate() {
            let ratio = tolerance_ratio(actual, stored, max_magnitude, tolerance);
            if ratio > largest.0 {
                largest = (ratio, index);
            }
        }
        let (ratio, index) = largest;
        self.ratio = self.ratio.max(ratio);
        if ratio > 1.0 {
            let (actual, stored) = (actual[index], stored[index]);
            self.failures.push(format!("{name}[{index}]: expected {stored}, found {actual}"));
        }
    }

    /// Compares values that must be equal.
    pub(super) fn expect_equal<T: PartialEq + Debug>(&mut self, name: &str, actual: &T, stored: &T) {
        self.compared_quantities += 1;
        if actual != stored {
            self.ratio = f64::INFINITY;
            self.failures.push(format!("{name}: expected {stored:?}, found {actual:?}"));
        }
    }

    /// Fails if nothing was compared.
    pub(super) fn finish(&mut self) {
        if self.failures.is_empty() && self.compared_quantities == 0 {
            self.failures.push("nothing was compared".into());
        }
    }
}
