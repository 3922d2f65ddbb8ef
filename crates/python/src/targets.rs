//! Targets of a batch: padded label sequences and lengths, checked with the names of Python.
use pyo3::{PyResult, exceptions::PyValueError};
use rnnt_loss::{Layout, Targets};

use crate::{
    inputs::Arguments,
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

/// Reads `targets` `[B, U]`, `logit_lengths` `[B]` and `target_lengths` `[B]`; padding is not read.
///
/// Also reads the weights of the labels, `token_weights` `[B, U]`, if present.
///
/// # Errors
/// Shapes or types that do not match; lengths out of range; a label that is the blank or not a
/// class; a weight that is not finite.
pub fn read_targets(arguments: &Arguments, sizes: &PaddedSizes, options: &LossOptions) -> PyResult<Targets> {
    let padded = arguments.required("targets", 2, options)?;
    let [batch, max_labels] = padded.shape();
    expect_batch("targets", sizes.batch, batch)?;
    let max_target_length = sizes.positions.map_or(max_labels, |positions| max_labels.min(positions - 1));
    let frames = read_lengths(arguments, "logit_lengths", sizes.batch, 1..=sizes.frames, options)?;
    let lengths = read_lengths(arguments, "target_lengths", sizes.batch, 0..=max_target_length, options)?;
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
    let targets = targets.with_big_blanks(options.big_blanks.clone()).map_err(value_error)?;
    match read_token_weights(arguments, [batch, max_labels], &lengths)? {
        Some(weights) => targets.with_token_weights(weights).map_err(value_error),
        None => Ok(targets),
    }
}

/// Reads one weight per label, if present.
fn read_token_weights(
    arguments: &Arguments,
    expected: [usize; 2],
    lengths: &[usize],
) -> PyResult<Option<Vec<Vec<f64>>>> {
    let Some(padded) = arguments.optional("token_weights", 2)? else { return Ok(None) };
    let found = padded.shape();
    if expected != found {
        return Err(PyValueError::new_err(format!(
            "token_weights: expected shape {expected:?}, as targets, found {found:?}"
        )));
    }
    let (elements, [_, max_labels]) = (padded.elements::<f64>()?, expected);
    let row = |(utterance, &length): (usize, &usize)| elements[utterance * max_labels..][..length].to_vec();
    Ok(Some(lengths.iter().enumerate().map(row).collect()))
}

/// Reads one length per utterance.
fn read_lengths(
    arguments: &Arguments,
    argument: &'static str,
    batch: usize,
    range: std::ops::RangeInclusive<usize>,
    options: &LossOptions,
) -> PyResult<Vec<usize>> {
    let lengths = arguments.required(argument, 1, options)?;
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
