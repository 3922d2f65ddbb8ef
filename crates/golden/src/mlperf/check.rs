//! A run, its findings held against a case, and whether everything was looked at.
use std::collections::BTreeSet;
use std::fmt::Debug;

use rnnt_loss::Element;

use super::file::File;
use crate::case::Stored;
use crate::error::Result;

/// How close a number must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bar {
    /// `|found - stored|` of each number.
    Absolute(f64),
    /// The same, divided by that number.
    Relative(f64),
    /// The same, divided by the tensor's largest number.
    OfLargest(f64),
    /// The very same.
    Same,
}

/// The state of a run.
pub struct Check<'a> {
    pub file: &'a File,
    unread: BTreeSet<&'a str>,
    /// Tensors and entries that were compared.
    pub compared: usize,
    /// Largest share of a bar.
    pub share: f64,
    pub failures: Vec<String>,
}

impl<'a> Check<'a> {
    pub fn new(file: &'a File) -> Self {
        let unread = file.tensors.keys().map(String::as_str).collect();
        Check { file, unread, compared: 0, share: 0.0, failures: Vec::new() }
    }

    fn stored(&mut self, name: &str) -> Result<&'a Stored> {
        self.unread.remove(name);
        self.file.tensors.get(name).ok_or_else(|| self.file.wrong(name, "a tensor of this name", "none"))
    }

    /// A tensor that the run is given.
    pub fn input<F: Element>(&mut self, name: &str) -> Result<Vec<F>> {
        Ok(self.stored(name)?.values.iter().map(|&value| F::from_f64(value)).collect())
    }

    /// An input of so many rows of one width, which is not 0.
    pub fn rows<F: Element>(&mut self, name: &str, rows: usize) -> Result<Vec<Vec<F>>> {
        let values = self.input(name)?;
        if rows == 0 || values.is_empty() || !values.len().is_multiple_of(rows) {
            let found = format!("{} numbers", values.len());
            return Err(self.file.wrong(name, &format!("{rows} rows of numbers"), &found));
        }
        Ok(values.chunks_exact(values.len() / rows).map(<[F]>::to_vec).collect())
    }

    /// An input of whole numbers that are no less than zero.
    pub fn whole(&mut self, name: &str) -> Result<Vec<usize>> {
        let values = self.input::<f64>(name)?;
        let wrong = |&&value: &&f64| value < 0.0 || value.fract() != 0.0 || value > f64::from(u32::MAX);
        match values.iter().find(wrong) {
            Some(value) => Err(self.file.wrong(name, "whole numbers of at least 0", &value.to_string())),
            None => Ok(values.iter().map(|&value| value as usize).collect()),
        }
    }

    /// An answer in another type, which this run is not held against.
    pub fn leave_out(&mut self, which: impl Fn(&str) -> bool) {
        self.unread.retain(|name| !which(name));
    }

    /// Compares an answer.
    pub fn compare<F: Element>(&mut self, name: &str, found: &[F], bar: Bar) -> Result<()> {
        let stored = self.stored(name)?;
        if stored.values.len() != found.len() {
            let shape = format!("{:?}", stored.shape);
            return Err(self.file.wrong(name, &format!("{} numbers", found.len()), &shape));
        }
        self.compared += 1;
        let largest = stored.values.iter().fold(0.0, |largest, value| value.abs().max(largest));
        let mut wrong: Option<(f64, usize)> = None;
        for (at, (found, &stored)) in found.iter().zip(&stored.values).enumerate() {
            let share = share(found.to_f64(), stored, largest, bar);
            self.share = self.share.max(share);
            if share > 1.0 && wrong.is_none_or(|(worst, _)| share > worst) {
                wrong = Some((share, at));
            }
        }
        if let Some((_, at)) = wrong {
            let (found, stored) = (found[at].to_f64(), stored.values[at]);
            self.failures.push(format!("{name}[{at}]: expected {stored}, found {found}"));
        }
        Ok(())
    }

    /// Compares whole numbers.
    pub fn same(&mut self, name: &str, found: &[usize]) -> Result<()> {
        let found: Vec<f64> = found.iter().map(|&value| value as f64).collect();
        self.compare(name, &found, Bar::Same)
    }

    /// Compares what a sidecar says.
    pub fn equal<T: PartialEq + Debug>(&mut self, what: &str, found: &T, stored: &T) {
        self.compared += 1;
        if found != stored {
            self.share = f64::INFINITY;
            self.failures.push(format!("{what}: expected {stored:?}, found {found:?}"));
        }
    }

    /// Fails for whatever was not looked at.
    pub fn finish(&mut self) {
        if self.failures.is_empty() && !self.unread.is_empty() {
            let names: Vec<&str> = self.unread.iter().copied().collect();
            self.failures.push(format!("never looked at: {}", names.join(", ")));
        }
        if self.failures.is_empty() && self.compared == 0 {
            self.failures.push("nothing was compared".into());
        }
    }
}

/// How much of its bar an error takes; infinite for what is no number.
pub fn share(found: f64, stored: f64, largest: f64, bar: Bar) -> f64 {
    if found == stored {
        return 0.0;
    }
    let bar = match bar {
        Bar::Absolute(bar) => bar,
        Bar::Relative(bar) => bar * stored.abs(),
        Bar::OfLargest(bar) => bar * largest,
        Bar::Same => 0.0,
    };
    let share = (found - stored).abs() / bar;
    if share.is_nan() { f64::INFINITY } else { share }
}
