//! Comparison of a run with an MLPerf case, within tolerances.
//!
//! It also fails if a stored tensor is never read.
use std::collections::BTreeSet;
use std::fmt::Debug;

use rnnt_loss::Element;

use super::file::MlPerfFile;
use crate::case::StoredTensor;
use crate::error::Result;

/// Tolerance of the values of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tolerance {
    /// Maximum of `|actual - stored|`.
    Absolute(f64),
    /// Maximum of `|actual - stored| / |stored|`.
    Relative(f64),
    /// Maximum of `|actual - stored|`, divided by the largest absolute value of the tensor.
    RelativeToMax(f64),
    /// Values must be equal.
    Exact,
}

/// Comparison of a run with a file.
pub(super) struct MlPerfCheck<'a> {
    pub file: &'a MlPerfFile,
    /// Tensors that are not read yet.
    unread: BTreeSet<&'a str>,
    /// Number of compared tensors and entries.
    pub compared_quantities: usize,
    /// Largest ratio of error to tolerance.
    pub ratio: f64,
    pub failures: Vec<String>,
}

impl<'a> MlPerfCheck<'a> {
    pub(super) fn new(file: &'a MlPerfFile) -> Self {
        let unread = file.tensors.keys().map(String::as_str).collect();
        MlPerfCheck { file, unread, compared_quantities: 0, ratio: 0.0, failures: Vec::new() }
    }

    /// Returns a stored tensor and marks it as read.
    fn read_stored(&mut self, name: &str) -> Result<&'a StoredTensor> {
        self.unread.remove(name);
        self.file.tensors.get(name).ok_or_else(|| self.file.error(name, "a tensor of this name", "none"))
    }

    /// Returns an input tensor.
    pub(super) fn input<F: Element>(&mut self, name: &str) -> Result<Vec<F>> {
        Ok(self.read_stored(name)?.values.iter().map(|&value| F::from_f64(value)).collect())
    }

    /// Returns an input of `row_count` nonempty rows of equal width.
    pub(super) fn input_rows<F: Element>(&mut self, name: &str, row_count: usize) -> Result<Vec<Vec<F>>> {
        let values = self.input(name)?;
        if row_count == 0 || values.is_empty() || !values.len().is_multiple_of(row_count) {
            let actual = format!("{} numbers", values.len());
            return Err(self.file.error(name, &format!("{row_count} rows of numbers"), &actual));
        }
        Ok(values.chunks_exact(values.len() / row_count).map(<[F]>::to_vec).collect())
    }

    /// Returns an input of nonnegative integers.
    pub(super) fn input_integers(&mut self, name: &str) -> Result<Vec<usize>> {
        let values = self.input::<f64>(name)?;
        let is_invalid = |&&value: &&f64| value < 0.0 || value.fract() != 0.0 || value > f64::from(u32::MAX);
        match values.iter().find(is_invalid) {
            Some(value) => Err(self.file.error(name, "integers of at least 0", &value.to_string())),
            None => Ok(values.iter().map(|&value| value as usize).collect()),
        }
    }

    /// Excludes tensors from the comparison, such as results in another type.
    pub(super) fn ignore(&mut self, is_ignored: impl Fn(&str) -> bool) {
        self.unread.retain(|name| !is_ignored(name));
    }

    /// Compares a result.
    pub(super) fn compare<F: Element>(
        &mut self,
        name: &str,
        actual: &[F],
        tolerance: Tolerance,
    ) -> Result<()> {
        let stored = self.read_stored(name)?;
        if stored.values.len() != actual.len() {
            let shape = format!("{:?}", stored.shape);
            return Err(self.file.error(name, &format!("{} numbers", actual.len()), &shape));
        }
        self.compared_quantities += 1;
        let max_magnitude = stored.values.iter().fold(0.0, |max, value| value.abs().max(max));
        // Ratio and index of the largest error above its tolerance.
        let mut largest_violation: Option<(f64, usize)> = None;
        for (index, (actual, &stored)) in actual.iter().zip(&stored.values).enumerate() {
            let ratio = tolerance_ratio(actual.to_f64(), stored, max_magnitude, tolerance);
            self.ratio = self.ratio.max(ratio);
            if ratio > 1.0 && largest_violation.is_none_or(|(largest_ratio, _)| ratio > largest_ratio) {
                largest_violation = Some((ratio, index));
            }
        }
        if let Some((_, index)) = largest_violation {
            let (actual, stored) = (actual[index].to_f64(), stored.values[index]);
            self.failures.push(format!("{name}[{index}]: expected {stored}, found {actual}"));
        }
        Ok(())
    }

    /// Compares integers.
    pub(super) fn compare_integers(&mut self, name: &str, actual: &[usize]) -> Result<()> {
        let actual: Vec<f64> = actual.iter().map(|&value| value as f64).collect();
        self.compare(name, &actual, Tolerance::Exact)
    }

    /// Compares a value of a sidecar.
    pub(super) fn expect_equal<T: PartialEq + Debug>(&mut self, name: &str, actual: &T, stored: &T) {
        self.compared_quantities += 1;
        if actual != stored {
            self.ratio = f64::INFINITY;
            self.failures.push(format!("{name}: expected {stored:?}, found {actual:?}"));
        }
    }

    /// Fails if a tensor was never read, or if nothing was compared.
    pub(super) fn finish(&mut self) {
        if self.failures.is_empty() && !self.unread.is_empty() {
            let names: Vec<&str> = self.unread.iter().copied().collect();
            self.failures.push(format!("never read: {}", names.join(", ")));
        }
        if self.failures.is_empty() && self.compared_quantities == 0 {
            self.failures.push("nothing was compared".into());
        }
    }
}

/// Returns the ratio of an error to its tolerance; infinite for NaN.
///
/// `largest` is the largest absolute value of the tensor.
pub fn tolerance_ratio(actual: f64, stored: f64, largest: f64, tolerance: Tolerance) -> f64 {
    if actual == stored {
        return 0.0;
    }
    let max_error = match tolerance {
        Tolerance::Absolute(tolerance) => tolerance,
        Tolerance::Relative(tolerance) => tolerance * stored.abs(),
        Tolerance::RelativeToMax(tolerance) => tolerance * largest,
        Tolerance::Exact => 0.0,
    };
    let ratio = (actual - stored).abs() / max_error;
    if ratio.is_nan() { f64::INFINITY } else { ratio }
}
