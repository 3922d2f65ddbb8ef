//! How close is close enough, and whether everything was looked at.
//!
//! | run | values | gradients, marginals |
//! |---|---|---|
//! | f64 | 1e-10 relative + 1e-12 | the same |
//! | f32 | 2e-5 relative + 1e-5 max\|weight\| T | 1e-4 relative + 1e-5 |
//!
//! Both are compared with the f64 file. Labels, states and alignments must be the same, infinities and NaN too (NaN is stored only
//! where it is the intended answer). LAST's own f32 file is measured by the same bars, for the reader to compare.
use std::collections::BTreeSet;

use rnnt_loss::Element;

use super::file::File;
use crate::bars::Width;
use crate::error::Result;

/// What a number is, which says how close it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    Value,
    Gradient,
    /// Numbers of labels and states.
    Same,
}

/// The largest errors of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Worst {
    /// `|found - stored| / max(1, |stored|)` of a value.
    pub value: f64,
    /// The same of a gradient.
    pub gradient: f64,
    /// Largest share of a bar.
    pub share: f64,
}

/// A run, its findings held against a file.
pub struct Check<'a> {
    pub file: &'a File,
    /// What LAST computed in f32.
    single: &'a File,
    width: Width,
    /// `max|weight| T`
    scale: f64,
    unread: BTreeSet<&'a str>,
    /// Tensors that were compared.
    pub compared: usize,
    pub worst: Worst,
    /// LAST's own errors in f32.
    pub last: Worst,
    pub failures: Vec<String>,
    /// What was not compared, and why.
    pub notes: Vec<String>,
}

impl<'a> Check<'a> {
    /// Everything whose name `is_answer` has to be compared.
    pub fn new(files: (&'a File, &'a File), width: Width, is_answer: impl Fn(&str) -> bool) -> Self {
        let (file, single) = files;
        Self {
            file,
            single,
            width,
            scale: 1.0,
            unread: file.names().filter(|name| is_answer(name)).collect(),
            compared: 0,
            worst: Worst::default(),
            last: Worst::default(),
            failures: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Largest weight of an arc, and how many frames there are.
    pub fn scale_by(&mut self, weights: &[f64], frames: usize) {
        let largest = weights.iter().map(|w| w.abs()).filter(|w| w.is_finite()).fold(0.0, f64::max);
        self.scale = largest * frames as f64;
    }

    /// Compares a tensor that the file must have.
    pub fn compare(&mut self, kind: Quantity, name: &str, found: &[f64]) -> Result<()> {
        self.compare_where(kind, name, found, |_| true)
    }

    pub fn values<F: Element>(&mut self, name: &str, found: &[F]) -> Result<()> {
        self.compare(Quantity::Value, name, &wide(found))
    }

    pub fn gradient<F: Element>(&mut self, name: &str, found: &[F]) -> Result<()> {
        self.compare(Quantity::Gradient, name, &wide(found))
    }

    pub fn same(&mut self, name: &str, found: impl IntoIterator<Item = usize>) -> Result<()> {
        let found: Vec<f64> = found.into_iter().map(|x| x as f64).collect();
        self.compare(Quantity::Same, name, &found)
    }

    /// Compares the places of a tensor that count.
    pub fn compare_where(
        &mut self,
        kind: Quantity,
        name: &str,
        found: &[f64],
        counts: impl Fn(usize) -> bool,
    ) -> Result<()> {
        let stored = &self.file.get(name)?.values;
        if stored.len() != found.len() {
            let shape = format!("{:?}", self.file.get(name)?.shape);
            return Err(self.file.wrong(name, &format!("{} values", found.len()), &shape));
        }
        self.compared += usize::from(self.unread.remove(name));
        let last = &self.single.get(name)?.values;
        let mut wrong: Option<(f64, usize)> = None;
        for (at, (&found, &stored)) in found.iter().zip(stored).enumerate().filter(|(at, _)| counts(*at)) {
            let share = self.worst.add(kind, found, stored, bar(kind, self.width, self.scale, stored));
            if share > 1.0 && wrong.is_none_or(|(worst, _)| share > worst) {
                wrong = Some((share, at));
            }
            if self.width == Width::Single && kind != Quantity::Same {
                let last = last.get(at).copied().unwrap_or(f64::NAN);
                self.last.add(kind, last, stored, bar(kind, self.width, self.scale, stored));
            }
        }
        if let Some((_, at)) = wrong {
            let (found, stored) = (found[at], stored[at]);
            self.failures.push(format!("{name}[{at}]: expected {stored}, found {found}"));
        }
        Ok(())
    }

    /// Leaves tensors out for a reason.
    pub fn leave_out(&mut self, reason: &str, left_out: impl Fn(&str) -> bool) {
        self.unread.retain(|name| !left_out(name));
        self.notes.push(reason.into());
    }

    /// Fails for whatever was not looked at, and for lattices whose two files were not given the same. (Semirings are given
    /// logarithms, which LAST took in the file's own type.)
    pub fn finish(&mut self) {
        for (name, stored) in self.file.under("in/") {
            if self.single.find(&format!("in/{name}")).is_none_or(|single| single.values != stored.values) {
                self.failures.push(format!("in/{name} differs between f64 and f32"));
            }
        }
        if !self.unread.is_empty() {
            let names: Vec<&str> = self.unread.iter().copied().collect();
            self.failures.push(format!("never compared: {}", names.join(", ")));
        }
    }
}

impl Worst {
    /// Counts a number in; returns its share of the bar.
    fn add(&mut self, kind: Quantity, found: f64, stored: f64, bar: f64) -> f64 {
        if found == stored || (found.is_nan() && stored.is_nan()) {
            return 0.0;
        }
        let distance = (found - stored).abs();
        let distance = if distance.is_nan() { f64::INFINITY } else { distance };
        let error = distance / if stored.is_finite() { stored.abs().max(1.0) } else { 1.0 };
        let worst = if kind == Quantity::Gradient { &mut self.gradient } else { &mut self.value };
        *worst = worst.max(error);
        let share = if distance.is_infinite() { distance } else { distance / bar };
        self.share = self.share.max(share);
        share
    }
}

fn bar(kind: Quantity, width: Width, scale: f64, stored: f64) -> f64 {
    match (kind, width) {
        (Quantity::Same, _) => 0.0,
        (_, Width::Double) => 1e-10 * stored.abs() + 1e-12,
        (Quantity::Value, Width::Single) => 2e-5 * stored.abs() + 1e-5 * scale,
        (Quantity::Gradient, Width::Single) => 1e-4 * stored.abs() + 1e-5,
    }
}

/// In f64.
pub fn wide<F: Element>(values: &[F]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}
