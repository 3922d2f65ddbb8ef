//! Boundaries and symbols of lattices, in the form of fast_rnnt and k2.
use std::ops::Range;

use pyo3::{Bound, PyAny, PyResult, exceptions::PyValueError, pyfunction};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    targets::expect_batch,
};

/// The part of a padded batch that belongs to an utterance.
#[derive(Debug, Clone)]
pub struct Boundary {
    /// Symbols of the utterance.
    pub symbols: Range<usize>,
    /// Frames of the utterance.
    pub frames: Range<usize>,
}

/// Reads the boundaries of a batch, `[B, 4]`.
///
/// The columns are begin symbol, begin frame, end symbol and end frame.
///
/// # Errors
/// Another shape or type; a row that is not `0 <= begin <= end <= S` and `0 <= begin <= end <= T`.
pub fn read_boundaries(
    boundary: &Bound<PyAny>,
    batch: usize,
    symbols: usize,
    frames: usize,
) -> PyResult<Vec<Boundary>> {
    let array = Borrowed::new("boundary", boundary, 2)?;
    let [rows, columns] = array.shape();
    expect_batch("boundary", batch, rows)?;
    if columns != 4 {
        return Err(PyValueError::new_err(format!("boundary: expected 4 columns, found {columns}")));
    }
    let range = |begin: i64, end: i64, limit: usize| {
        let range = usize::try_from(begin).ok()?..usize::try_from(end).ok()?;
        (range.start <= range.end && range.end <= limit).then_some(range)
    };
    let to_boundary = |(utterance, row): (usize, &[i64])| {
        let ranges = (range(row[0], row[2], symbols), range(row[1], row[3], frames));
        match ranges {
            (Some(symbols), Some(frames)) => Ok(Boundary { symbols, frames }),
            _ => Err(PyValueError::new_err(format!(
                "boundary[{utterance}]: expected begin symbol, begin frame, end symbol, end frame with \
                 0 <= begin <= end, up to symbol {symbols} and frame {frames}, found {row:?}"
            ))),
        }
    };
    array.integers()?.chunks_exact(4).enumerate().map(to_boundary).collect()
}

/// Reads the symbols `[B, S]` of a batch, with 0 for padding.
///
/// # Errors
/// Another shape or type; a symbol of an utterance that is not a class.
pub fn read_symbols(
    symbols: &Bound<PyAny>,
    boundaries: &[Boundary],
    max_symbols: usize,
    classes: usize,
) -> PyResult<Vec<i64>> {
    let array = Borrowed::new("symbols", symbols, 2)?;
    let [batch, columns] = array.shape();
    expect_batch("symbols", boundaries.len(), batch)?;
    if columns != max_symbols {
        return Err(PyValueError::new_err(format!(
            "symbols: expected {max_symbols} columns, one less than symbol positions, found {columns}"
        )));
    }
    let mut symbols = array.integers()?;
    for (utterance, (row, boundary)) in symbols.chunks_exact_mut(columns.max(1)).zip(boundaries).enumerate() {
        for (position, symbol) in row.iter_mut().enumerate() {
            if !boundary.symbols.contains(&position) {
                *symbol = 0;
            } else if usize::try_from(*symbol).map_or(true, |class| class >= classes) {
                return Err(PyValueError::new_err(format!(
                    "symbols[{utterance}, {position}]: expected a class from 0 to below {classes}, found \
                     {symbol}"
                )));
            }
        }
    }
    Ok(symbols)
}

/// Checks symbols `[B, S]` and boundaries; returns the symbols with 0 for padding.
///
/// With `one_symbol_per_frame`, an utterance needs at least as many frames as symbols.
#[pyfunction]
pub fn check_symbols(
    symbols: &Bound<PyAny>,
    boundary: &Bound<PyAny>,
    frames: usize,
    classes: usize,
    one_symbol_per_frame: bool,
) -> PyResult<Array> {
    let [batch, max_symbols] = Borrowed::new("symbols", symbols, 2)?.shape();
    let boundaries = read_boundaries(boundary, batch, max_symbols, frames)?;
    let too_short = |boundary: &Boundary| one_symbol_per_frame && boundary.frames.end < boundary.symbols.end;
    if let Some(utterance) = boundaries.iter().position(too_short) {
        let Boundary { symbols, frames } = &boundaries[utterance];
        return Err(PyValueError::new_err(format!(
            "boundary[{utterance}]: expected an end frame of at least the end symbol {}, since a symbol \
             consumes a frame, found {}",
            symbols.end, frames.end
        )));
    }
    let symbols = read_symbols(symbols, &boundaries, max_symbols, classes)?;
    Ok(i64::array(symbols, vec![batch, max_symbols]))
}
