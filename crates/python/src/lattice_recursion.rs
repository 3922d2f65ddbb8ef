//! Log-sums over the paths of lattices, for fast_rnnt and k2.
//!
//! A path leads from (begin symbol, begin frame) to (end symbol, end frame); (s, t) is the number
//! of symbols and frames before it. px: log-score of a symbol; py: log-score of a step in time.
//!
//! ```text
//! regular    p(s,t) = log( exp(p(s-1,t)   + px(s-1,t))   + exp(p(s,t-1) + py(s,t-1)) )
//! modified   p(s,t) = log( exp(p(s-1,t-1) + px(s-1,t-1)) + exp(p(s,t-1) + py(s,t-1)) )
//! ```
//!
//! The recursion is that of `rnnt_dp`, whose frames are the rows s here, since the arrays have the
//! frames in their last axis. In columns t - s, a symbol of the modified kind changes only the row,
//! so that both kinds are the same lattice.
use std::{
    ops::Range,
    sync::{Mutex, PoisonError},
};

use dlpark::ffi::DLDataType;
use panda_core::Real;
use pyo3::{Bound, PyAny, PyResult, Python, exceptions::PyValueError, pyfunction};
use rayon::prelude::*;
use rnnt_dp::{Error, Lattices, Regularizers, Topology, Workspace};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    lattice_boundaries::{Boundary, read_boundaries},
    targets::expect_batch,
    threads,
};

/// Computes log-sums over all paths, and posteriors of px and py.
///
/// The log-sums are `[B]`, float64. px is `[B, S, T+1]` (regular) or `[B, S, T]` (modified), py
/// `[B, S+1, T]`. The posteriors are the derivatives of the log-sums, 0 outside the boundaries; the
/// list is empty without `needs_posteriors`. Memory: some 80 bytes for each (s, t) of an utterance,
/// for each thread.
#[pyfunction]
pub fn lattice_recursion(
    python: Python,
    px: &Bound<PyAny>,
    py: &Bound<PyAny>,
    boundary: &Bound<PyAny>,
    needs_posteriors: bool,
) -> PyResult<(Array, Vec<Array>)> {
    let (px, py) = (Borrowed::new("px", px, 3)?, Borrowed::new("py", py, 3)?);
    let ([batch, symbols, px_columns], [py_batch, positions, frames]) = (px.shape(), py.shape());
    expect_batch("py", batch, py_batch)?;
    if positions != symbols + 1 {
        return Err(PyValueError::new_err(format!(
            "py: expected {} symbol positions, one more than px, found {positions}",
            symbols + 1
        )));
    }
    if px_columns != frames && px_columns != frames + 1 {
        return Err(PyValueError::new_err(format!(
            "px: expected {} columns (regular) or {frames} (modified, constrained) for {frames} frames of \
             py, found {px_columns}",
            frames + 1
        )));
    }
    let boundaries = read_boundaries(boundary, batch, symbols, frames)?;
    macro_rules! call {
        ($type:ty) => {{
            let scores = LatticeScores::<$type> {
                px: px.elements()?,
                py: py.elements()?,
                symbols,
                frames,
                px_columns,
            };
            let elements = if needs_posteriors { [scores.px.len(), scores.py.len()] } else { [0; 2] };
            let mut posteriors = elements.map(|elements| vec![0.0; elements]);
            let outputs = posteriors.each_mut().map(Vec::as_mut_slice);
            let sums = python.detach(|| threads::install(|| log_sums(&scores, &boundaries, outputs)))??;
            let shapes = [vec![batch, symbols, px_columns], vec![batch, positions, frames]];
            let arrays =
                posteriors.into_iter().zip(shapes).map(|(values, shape)| <$type>::array(values, shape));
            let posteriors = if needs_posteriors { arrays.collect() } else { Vec::new() };
            Ok((f64::array(sums, vec![batch]), posteriors))
        }};
    }
    match px.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(px.dtype_error("float32 or float64")),
    }
}

/// The arrays px and py of a batch.
struct LatticeScores<'a, F> {
    px: &'a [F],
    py: &'a [F],
    /// S
    symbols: usize,
    /// T
    frames: usize,
    /// T + 1, or T if a symbol also consumes a frame.
    px_columns: usize,
}

/// A row of a lattice: its elements in px and py of an utterance.
struct Row {
    px: Range<usize>,
    py: Range<usize>,
}

/// Rows and columns of the lattice of an utterance.
struct LatticeShape<'a> {
    boundary: &'a Boundary,
    frames: usize,
    px_columns: usize,
    /// Frames that a symbol consumes.
    symbol_frames: usize,
    /// Column of the end; columns start at 0.
    last_column: usize,
}

impl<'a> LatticeShape<'a> {
    /// Returns the shape of an utterance's lattice; none if the lattice has no path.
    fn new<F>(scores: &LatticeScores<F>, boundary: &'a Boundary) -> Option<Self> {
        let LatticeScores { frames, px_columns, .. } = *scores;
        let symbol_frames = usize::from(px_columns == frames);
        let last_column = boundary.frames.len().checked_sub(symbol_frames * boundary.symbols.len())?;
        Some(Self { boundary, frames, px_columns, symbol_frames, last_column })
    }

    /// Iterates over the rows; the last one has no symbol to emit.
    fn rows(&self) -> impl Iterator<Item = Row> {
        (0..=self.boundary.symbols.len()).map(|row| {
            let (symbol, frame) = self.cell(row, 0);
            let (px, py) = (symbol * self.px_columns + frame, symbol * self.frames + frame);
            let has_symbol = row < self.boundary.symbols.len();
            let px = if has_symbol { px..px + self.last_column + 1 } else { 0..0 };
            Row { px, py: py..py + self.last_column }
        })
    }

    /// Returns symbol and frame of a row and a column.
    fn cell(&self, row: usize, column: usize) -> (usize, usize) {
        let frame = self.boundary.frames.start + self.symbol_frames * row + column;
        (self.boundary.symbols.start + row, frame)
    }

    /// Converts an error of the recursion.
    fn error(&self, utterance: usize, error: &Error) -> pyo3::PyErr {
        PyValueError::new_err(match error {
            Error::Emission { frame: row, label: column, arc, value, .. } => {
                let ((symbol, frame), array) =
                    (self.cell(*row, *column), if *arc == 0 { "px" } else { "py" });
                format!("{array}[{utterance}, {symbol}, {frame}]: expected a number or -inf, found {value}")
            }
            error => format!("px, py: utterance {utterance}: {error}"),
        })
    }
}

/// An utterance whose results a worker writes.
struct Slot<'a, F> {
    utterance: usize,
    boundary: &'a Boundary,
    sum: &'a mut f64,
    /// Posteriors of px and py of the utterance; empty if they are not needed.
    posteriors: [&'a mut [F]; 2],
}

/// Returns the log-sum of each utterance; writes the posteriors unless they are empty.
fn log_sums<F: Real>(
    scores: &LatticeScores<F>,
    boundaries: &[Boundary],
    [mut px_posteriors, mut py_posteriors]: [&mut [F]; 2],
) -> PyResult<Vec<f64>> {
    let mut sums = vec![0.0; boundaries.len()];
    let (px_len, py_len) = (scores.symbols * scores.px_columns, (scores.symbols + 1) * scores.frames);
    let slots = boundaries.iter().zip(&mut sums).enumerate().map(|(utterance, (boundary, sum))| {
        let posteriors = [split_off(&mut px_posteriors, px_len), split_off(&mut py_posteriors, py_len)];
        Slot { utterance, boundary, sum, posteriors }
    });
    let slots = Mutex::new(slots.collect::<Vec<_>>().into_iter());
    let next_slot = || slots.lock().unwrap_or_else(PoisonError::into_inner).next();
    // All utterances run, so that the same error is returned for every number of threads.
    let run_worker = |_| {
        let (mut worker, mut first_error) = (Worker::new(), None);
        while let Some(Slot { utterance, boundary, sum, posteriors }) = next_slot() {
            match worker.log_sum(scores, utterance, boundary, posteriors) {
                Ok(value) => *sum = value,
                Err(error) => _ = first_error.get_or_insert((utterance, error)),
            }
        }
        first_error
    };
    let workers = rayon::current_num_threads().min(boundaries.len());
    let errors = (0..workers).into_par_iter().with_max_len(1).filter_map(run_worker);
    let first_error = errors.min_by_key(|(utterance, _)| *utterance);
    drop(slots);
    first_error.map_or(Ok(sums), |(_, error)| Err(error))
}

/// Splits off the elements of an utterance; nothing from an empty slice.
fn split_off<'a, F>(elements: &mut &'a mut [F], len: usize) -> &'a mut [F] {
    elements.split_off_mut(..len.min(elements.len())).unwrap_or_default()
}

/// Buffers that process utterances one after the other.
struct Worker {
    workspace: Workspace,
    topology: Topology,
    /// px and py of each site.
    emissions: Vec<f64>,
    adjoints: Vec<f64>,
}

impl Worker {
    fn new() -> Self {
        let (workspace, topology) = (Workspace::with_lanes(1), Topology::rnnt());
        Self { workspace, topology, emissions: Vec::new(), adjoints: Vec::new() }
    }

    /// Returns the log-sum of an utterance; writes its posteriors unless they are empty.
    fn log_sum<F: Real>(
        &mut self,
        scores: &LatticeScores<F>,
        utterance: usize,
        boundary: &Boundary,
        posteriors: [&mut [F]; 2],
    ) -> PyResult<f64> {
        let Some(shape) = LatticeShape::new(scores, boundary) else { return Ok(f64::NEG_INFINITY) };
        let columns = shape.last_column + 1;
        let px = &scores.px[utterance * scores.symbols * scores.px_columns..];
        let py = &scores.py[utterance * (scores.symbols + 1) * scores.frames..];
        let lattices = Lattices::new(vec![boundary.symbols.len() + 1], vec![shape.last_column])
            .map_err(|error| shape.error(utterance, &error))?;
        self.emissions.clear();
        self.emissions.resize(2 * lattices.num_sites(), f64::NEG_INFINITY);
        for (row, sites) in shape.rows().zip(self.emissions.chunks_exact_mut(2 * columns)) {
            for (site, px) in sites.chunks_exact_mut(2).zip(&px[row.px]) {
                site[0] = px.to_f64();
            }
            for (site, py) in sites.chunks_exact_mut(2).zip(&py[row.py]) {
                site[1] = py.to_f64();
            }
        }
        // `rnnt_dp` leaves the last site by a blank; here a path ends at that site.
        let last_site = self.emissions.len() - 2;
        self.emissions[last_site] = 0.0;
        self.adjoints.resize(self.emissions.len(), 0.0);
        let mut loss = [0.0];
        self.workspace
            .forward_backward(
                &lattices,
                &self.topology,
                &self.emissions,
                &Regularizers::default(),
                &mut loss,
                &mut self.adjoints,
            )
            .map_err(|error| shape.error(utterance, &error))?;
        let [px_posteriors, py_posteriors] = posteriors;
        if !py_posteriors.is_empty() || !px_posteriors.is_empty() {
            for (row, sites) in shape.rows().zip(self.adjoints.chunks_exact(2 * columns)) {
                // An adjoint is the negative of a posterior; `0.0 -` avoids -0.
                for (posterior, site) in px_posteriors[row.px].iter_mut().zip(sites.chunks_exact(2)) {
                    *posterior = F::from_f64(0.0 - site[0]);
                }
                for (posterior, site) in py_posteriors[row.py].iter_mut().zip(sites.chunks_exact(2)) {
                    *posterior = F::from_f64(0.0 - site[1]);
                }
            }
        }
        Ok(0.0 - loss[0])
    }
}
