//! Sums and best paths over log-probabilities that the caller has normalized.
//!
//! Axes: B utterances, T frames, U+1 label positions.
use pyo3::{Bound, PyAny, PyResult, Python, exceptions::PyValueError, pyfunction};
use rnnt_dp::{
    Regularizers, Topology,
    ctc::{TieBreak, best_path},
    forward_backward,
};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    options::LossOptions,
    targets::{PaddedSizes, read_targets},
    threads,
};

/// Log-probabilities that a site of an RNN-T lattice has: of the blank and of the next label.
const COLUMNS: usize = 2;

/// RNN-T losses of log-probabilities, and the derivative of each loss.
///
/// `emissions` `[B, T, U+1, 2]` (float64) are the log-probabilities of the blank and of the next
/// label, which need not sum to 1. Returns losses `[B]` and derivatives like `emissions`, 0 where
/// there is no arc.
#[pyfunction]
pub fn emission_loss(
    py: Python,
    emissions: &Bound<PyAny>,
    targets: &Bound<PyAny>,
    logit_lengths: &Bound<PyAny>,
    target_lengths: &Bound<PyAny>,
    classes: usize,
    options: &str,
) -> PyResult<(Array, Array)> {
    let options = LossOptions::parse(options)?;
    let emissions = Borrowed::new("emissions", emissions, 4)?;
    let shape: [usize; 4] = emissions.shape();
    let [batch, frames, positions, columns] = shape;
    if positions == 0 || columns != COLUMNS {
        return Err(PyValueError::new_err(format!(
            "emissions: expected label positions and {COLUMNS} columns, found {shape:?}"
        )));
    }
    let sizes = PaddedSizes { batch, frames, positions: Some(positions), classes };
    let targets = read_targets(targets, logit_lengths, target_lengths, &sizes, &options)?;
    let (padded, lattices) = (emissions.elements::<f64>()?, targets.lattices());
    // The padded rows of each frame that has sites, and their number of elements.
    let frame_rows = || {
        (0..batch).flat_map(|utterance| {
            let elements = (lattices.num_labels(utterance) + 1) * COLUMNS;
            (0..lattices.num_frames(utterance)).map(move |frame| {
                let start = (utterance * frames + frame) * positions * COLUMNS;
                start..start + elements
            })
        })
    };
    let mut packed = Vec::with_capacity(lattices.num_sites() * COLUMNS);
    frame_rows().for_each(|row| packed.extend_from_slice(&padded[row]));
    let posterior = py.detach(|| {
        threads::install(|| forward_backward(lattices, &Topology::rnnt(), &packed, &Regularizers::default()))
    })?;
    let posterior = posterior.map_err(value_error)?;
    let (mut adjoints, mut remaining) = (vec![0.0; padded.len()], &*posterior.adjoints);
    for row in frame_rows() {
        let (site_adjoints, rest) = remaining.split_at(row.len());
        adjoints[row].copy_from_slice(site_adjoints);
        remaining = rest;
    }
    Ok((f64::array(posterior.losses, vec![batch]), f64::array(adjoints, shape.to_vec())))
}

/// Best CTC alignment of a label sequence (Viterbi).
///
/// `emissions` `[T, U+1]` (float64) are the log-probabilities of the blank and of each label.
/// Returns the column of each frame (int64), no frames if there is no alignment.
#[pyfunction]
pub fn ctc_best_path(py: Python, emissions: &Bound<PyAny>, labels: &Bound<PyAny>) -> PyResult<Array> {
    let emissions = Borrowed::new("emissions", emissions, 2)?;
    let labels = Borrowed::new("labels", labels, 1)?.integers()?;
    let [frames, columns] = emissions.shape();
    if frames == 0 || columns != labels.len() + 1 {
        return Err(PyValueError::new_err(format!(
            "emissions: expected at least one frame and {} columns, found {frames} and {columns}",
            labels.len() + 1
        )));
    }
    let emissions = emissions.elements::<f64>()?;
    // Labels are only compared with each other.
    let labels: Vec<u32> = labels.iter().map(|&label| label as u32).collect();
    let path = py.detach(|| best_path(&labels, emissions, TieBreak::Early)).map_err(value_error)?;
    let columns: Vec<i64> = path.columns.iter().map(|&column| column as i64).collect();
    let frames = columns.len();
    Ok(i64::array(columns, vec![frames]))
}

/// Converts an error of a lattice sum.
fn value_error(error: rnnt_dp::Error) -> pyo3::PyErr {
    PyValueError::new_err(error.to_string())
}
