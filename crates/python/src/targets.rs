//! Targets of a batch: padded label sequences and lengths, checked with the names of Python.
use pyo3::{Bound, PyAny, PyResult, exceptions::PyValueError};
use rnnt_loss::{Layout, Targets};

use crate::{
    arrays::Borrowed,
    options::{LossOptions, value_error},
};

/// Sizes of the padded arrays that the lengths must not exceed.
pub struct PaddedSizes {
    /// Utterances B.
    pub batch: usize,
    /// Frames T.
    pub frames: usize,
    /// Label positions U + 1; none for CTC.
    pub positions: Option<usize>,
    /// Classes C, with blanks and without durations.
    pub classes: usize,
}

impl PaddedSizes {
    /// Memory layout of the arrays.
    pub fn layout(&self, targets: &Targets) -> Layout {
        let longest = (0..targets.batch()).map(|b| targets.labels(b).len()).max().unwrap_or(0);
        Layout::Padded { frames: self.frames, positions: self.positions.unwrap_or(longest + 1) }
    }
}

/// Reads targets `[B, U]`, `logit_lengths` `[B]` and `target_lengths` `[B]`; padding is not read.
///
/// # Errors
/// Shapes or types that do not match; lengths out of range; a label that is the blank or not a
/// class.
pub fn read_targets(
    targets: &Bound<PyAny>,
    logit_lengths: &Bound<PyAny>,
    target_lengths: &Bound<PyAny>,
    sizes: &PaddedSizes,
    options: &LossOptions,
) -> PyResult<Targets> {
    let padded = Borrowed::new("targets", targets, 2)?;
    let [batch, max_labels] = padded.shape();
    expect_batch("targets", sizes.batch, batch)?;
    let max_target_length = sizes.positions.map_or(max_labels, |positions| max_labels.min(positions - 1));
    let frames = read_lengths("logit_lengths", logit_lengths, sizes.batch, 1..=sizes.frames)?;
    let lengths = read_lengths("target_lengths", target_lengths, sizes.batch, 0..=max_target_length)?;
    let padded = padded.integers()?;
    let blanks = |label: i64| {
        let is_big_blank = options.big_blanks.iter().any(|&blank| i64::from(blank) == label);
        i64::from(options.blank) == label || is_big_blank
    };
    let mut labels = Vec::with_capacity(batch);
    for (utterance, &length) in lengths.iter().enumerate() {
        let row = &padded[utterance * max_labels..][..length];
        let is_bad = |&label: &i64| label < 0 || label >= sizes.classes as i64 || blanks(label);
        if let Some(position) = row.iter().position(is_bad) {
            let (found, last) = (row[position], sizes.classes - 1);
            let expected = match blanks(found) {
                true => "a label".to_owned(),
                false => format!("a class from 0 to {last}"),
            };
            let blank = if blanks(found) { ", a blank" } else { "" };
            return Err(PyValueError::new_err(format!(
                "targets[{utterance}, {position}]: expected {expected}, found {found}{blank}"
            )));
        }
        labels.push(row.iter().map(|&label| label as u32).collect());
    }
    let targets = Targets::new(options.blank, frames, labels).map_err(value_error)?;
    targets.with_big_blanks(options.big_blanks.clone()).map_err(value_error)
}

/// Reads weights of the labels `[B, U]`; padding is not read.
///
/// # Errors
/// Another shape than `[B, max_labels]`; a weight that is not finite.
pub fn with_token_weights(targets: Targets, weights: &Borrowed, max_labels: usize) -> PyResult<Targets> {
    let (expected, found) = ([targets.batch(), max_labels], weights.shape());
    if expected != found {
        return Err(PyValueError::new_err(format!(
            "token_weights: expected shape {expected:?}, as targets, found {found:?}"
        )));
    }
    let elements = weights.elements::<f64>()?;
    let row = |utterance| elements[utterance * max_labels..][..targets.labels(utterance).len()].to_vec();
    let rows = (0..targets.batch()).map(row).collect();
    targets.with_token_weights(rows).map_err(value_error)
}

/// Reads one length per utterance.
///
/// # Errors
/// Another number of lengths or type; a length out of range.
pub fn read_lengths(
    argument: &'static str,
    lengths: &Bound<PyAny>,
    batch: usize,
    range: std::ops::RangeInclusive<usize>,
) -> PyResult<Vec<usize>> {
    let lengths = Borrowed::new(argument, lengths, 1)?;
    let [found] = lengths.shape();
    expect_batch(argument, batch, found)?;
    let lengths = lengths.integers()?;
    let is_bad = |&length: &i64| usize::try_from(length).map_or(true, |length| !range.contains(&length));
    if let Some(utterance) = lengths.iter().position(is_bad) {
        let (first, last, found) = (range.start(), range.end(), lengths[utterance]);
        return Err(PyValueError::new_err(format!(
            "{argument}[{utterance}]: expected a number from {first} to {last}, found {found}"
        )));
    }
    Ok(lengths.into_iter().map(|length| length as usize).collect())
}

/// Fails unless an argument has one row per utterance.
pub fn expect_batch(argument: &str, expected: usize, found: usize) -> PyResult<()> {
    if expected == found {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{argument}: expected {expected} utterances, found {found}")))
}
