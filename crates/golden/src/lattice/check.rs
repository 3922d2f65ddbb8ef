//! Comparison of lattice results with a golden file of LAST, within tolerances.
//!
//! It also fails if a stored result is never compared.
//!
//! | run | values | gradients, marginals |
//! |---|---|---|
//! | f64 | 1e-10 relative + 1e-12 | the same |
//! | f32 | 2e-5 relative + 1e-5 max\|weight\| T | 1e-4 relative + 1e-5 |
//!
//! weight: arc weight; T: frames. Both runs are compared with the f64 file. Labels, states and
//! alignments must be equal, and so must infinities and NaN (NaN is stored only where it is the
//! intended result). The errors of LAST's f32 file are computed in the same way, for comparison.
use std::collections::BTreeSet;

use rnnt_loss::Element;

use super::file::LatticeFile;
use crate::error::Result;
use crate::tolerances::FloatType;

/// Kind of a number, which determines its tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Quantity {
    Value,
    Gradient,
    /// Labels and states, which must be equal.
    Exact,
}

/// The largest errors of a run.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MaxErrors {
    /// `|actual - stored| / max(1, |stored|)` of a value.
    pub value: f64,
    /// `|actual - stored| / max(1, |stored|)` of a gradient.
    pub gradient: f64,
    /// Ratio of error to tolerance.
    pub ratio: f64,
}

/// Comparison of a run with a file.
pub(super) struct LatticeCheck<'a> {
    pub file: &'a LatticeFile,
    /// Results of LAST in f32.
    f32_file: &'a LatticeFile,
    float_type: FloatType,
    /// Scale of the tolerances: `max|weight| T`.
    tolerance_scale: f64,
    /// Results that are not compared yet.
    pending: BTreeSet<&'a str>,
    /// Number of compared tensors.
    pub compared_tensors: usize,
    pub errors: MaxErrors,
    /// Errors of LAST in f32.
    pub last_errors: MaxErrors,
    pub failures: Vec<String>,
    /// Results that are not compared, with the reason.
    pub notes: Vec<String>,
}

impl<'a> LatticeCheck<'a> {
    /// Creates a check in which all results (by name) must be compared.
    pub(super) fn new(
        file: &'a LatticeFile,
        f32_file: &'a LatticeFile,
        float_type: FloatType,
        is_result: impl Fn(&str) -> bool,
    ) -> Self {
        Self {
            file,
            f32_file,
            float_type,
            tolerance_scale: 1.0,
            pending: file.names().filter(|name| is_result(name)).collect(),
            compared_tensors: 0,
            errors: MaxErrors::default(),
            last_errors: MaxErrors::default(),
            failures: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Sets the scale of tolerances from arc weights and frames.
    pub(super) fn set_scale(&mut self, weights: &[f64], frames: usize) {
        let largest = weights.iter().map(|w| w.abs()).filter(|w| w.is_finite()).fold(0.0, f64::max);
        self.tolerance_scale = largest * frames as f64;
    }

    /// Compares a tensor that the file must have.
    pub(super) fn compare(&mut self, quantity: Quantity, name: &str, actual: &[f64]) -> Result<()> {
        self.compare_where(quantity, name, actual, |_| true)
    }

    /// Compares values.
    pub(super) fn compare_values<F: Element>(&mut self, name: &str, actual: &[F]) -> Result<()> {
        self.compare(Quantity::Value, name, &to_f64(actual))
    }

    /// Compares a gradient.
    pub(super) fn compare_gradient<F: Element>(&mut self, name: &str, actual: &[F]) -> Result<()> {
        self.compare(Quantity::Gradient, name, &to_f64(actual))
    }

    /// Compares integers, which must be equal.
    pub(super) fn compare_integers(
        &mut self,
        name: &str,
        actual: impl IntoIterator<Item = usize>,
    ) -> Result<()> {
        let actual: Vec<f64> = actual.into_iter().map(|x| x as f64).collect();
        self.compare(Quantity::Exact, name, &actual)
    }

    /// Compares the elements of a tensor selected by index.
    pub(super) fn compare_where(
        &mut self,
        quantity: Quantity,
        name: &str,
        actual: &[f64],
        is_compared: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let stored = &self.file.get(name)?.values;
        if stored.len() != actual.len() {
            let shape = format!("{:?}", self.file.get(name)?.shape);
            return Err(self.file.error(name, &format!("{} values", actual.len()), &shape));
        }
        self.compared_tensors += usize::from(self.pending.remove(name));
        let last_values = &self.f32_file.get(name)?.values;
        // Ratio and index of the largest error above its tolerance.
        let mut largest_violation: Option<(f64, usize)> = None;
        let elements = actual.iter().zip(stored).enumerate();
        for (index, (&actual, &stored)) in elements.filter(|(index, _)| is_compared(*index)) {
            let tolerance = tolerance(quantity, self.float_type, self.tolerance_scale, stored);
            let ratio = self.errors.add(quantity, actual, stored, tolerance);
            if ratio > 1.0 && largest_violation.is_none_or(|(largest_ratio, _)| ratio > largest_ratio) {
                largest_violation = Some((ratio, index));
            }
            if self.float_type == FloatType::F32 && quantity != Quantity::Exact {
                let last_value = last_values.get(index).copied().unwrap_or(f64::NAN);
                self.last_errors.add(quantity, last_value, stored, tolerance);
            }
        }
        if let Some((_, index)) = largest_violation {
            let (actual, stored) = (actual[index], stored[index]);
            self.failures.push(format!("{name}[{index}]: expected {stored}, found {actual}"));
        }
        Ok(())
    }

    /// Excludes tensors from the comparison for a reason.
    pub(super) fn ignore(&mut self, reason: &str, is_ignored: impl Fn(&str) -> bool) {
        self.pending.retain(|name| !is_ignored(name));
        self.notes.push(reason.into());
    }

    /// Fails for uncompared results and for different inputs.
    ///
    /// Inputs of semirings are not compared: LAST computed logarithms in the type of the file.
    pub(super) fn finish(&mut self) {
        for (name, stored) in self.file.with_prefix("in/") {
            let f32_stored = self.f32_file.find(&format!("in/{name}"));
            if f32_stored.is_none_or(|f32_stored| f32_stored.values != stored.values) {
                self.failures.push(format!("in/{name} differs between f64 and f32"));
            }
        }
        if !self.pending.is_empty() {
            let names: Vec<&str> = self.pending.iter().copied().collect();
            self.failures.push(format!("never compared: {}", names.join(", ")));
        }
    }
}

impl MaxErrors {
    /// Adds the error of a number; returns its ratio to the tolerance.
    fn add(&mut self, quantity: Quantity, actual: f64, stored: f64, tolerance: f64) -> f64 {
        if actual == stored || (actual.is_nan() && stored.is_nan()) {
            return 0.0;
        }
        let distance = (actual - stored).abs();
        let distance = if distance.is_nan() { f64::INFINITY } else { distance };
        let error = distance / if stored.is_finite() { stored.abs().max(1.0) } else { 1.0 };
        let max_error = if quantity == Quantity::Gradient { &mut self.gradient } else { &mut self.value };
        *max_error = max_error.max(error);
        let ratio = if distance.is_infinite() { distance } else { distance / tolerance };
        self.ratio = self.ratio.max(ratio);
        ratio
    }
}

/// Tolerance of all numbers in f64, relative to the stored value.
const F64_RELATIVE: f64 = 1e-10;
/// Tolerance in f64 that is added.
const F64_ABSOLUTE: f64 = 1e-12;
/// Tolerance of values in f32, relative to the stored value.
const F32_VALUE_RELATIVE: f64 = 2e-5;
/// Tolerance of values in f32 that is added, relative to the scale.
const F32_VALUE_OF_SCALE: f64 = 1e-5;
/// Tolerance of gradients in f32, relative to the stored gradient.
const F32_GRADIENT_RELATIVE: f64 = 1e-4;
/// Tolerance of gradients in f32 that is added.
const F32_GRADIENT_ABSOLUTE: f64 = 1e-5;

/// Returns the largest allowed distance from a stored value.
///
/// `scale` is the largest arc weight, times the frames.
fn tolerance(quantity: Quantity, float_type: FloatType, scale: f64, stored: f64) -> f64 {
    match (quantity, float_type) {
        (Quantity::Exact, _) => 0.0,
        (_, FloatType::F64) => F64_RELATIVE * stored.abs() + F64_ABSOLUTE,
        (Quantity::Value, FloatType::F32) => F32_VALUE_RELATIVE * stored.abs() + F32_VALUE_OF_SCALE * scale,
        (Quantity::Gradient, FloatType::F32) => F32_GRADIENT_RELATIVE * stored.abs() + F32_GRADIENT_ABSOLUTE,
    }
}

/// Converts values to f64.
pub(super) fn to_f64<F: Element>(values: &[F]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}
