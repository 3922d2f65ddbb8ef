//! Sums and best paths over log-probabilities that the caller has normalized.
//!
//! Axes: B utterances, T frames, U+1 label positions.
use pyo3::{Bound, PyAny, PyResult, Python, exceptions::PyValueError, pyfunction};
use rnnt_dp::{Regularizers, Topology, forward_backward};

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
    let path = py.detach(|| best_columns(emissions, &labels));
    let frames = path.len();
    Ok(i64::array(path, vec![frames]))
}

/// Returns the column of each frame; empty without a possible alignment.
///
/// State s of the 2U + 1 states `blank, label, blank, ..` is entered from itself, from s - 1, and
/// from s - 2 if both are labels and differ. Ties are resolved as in torchaudio: in favor of the
/// later state of the path before, and of a label in the last frame.
fn best_columns(emissions: &[f64], labels: &[i64]) -> Vec<i64> {
    let (width, states) = (labels.len() + 1, 2 * labels.len() + 1);
    let column = |state: usize| if state.is_multiple_of(2) { 0 } else { state / 2 + 1 };
    let may_skip: Vec<bool> = (0..states)
        .map(|state| state % 2 == 1 && state >= 3 && labels[state / 2] != labels[state / 2 - 1])
        .collect();
    let mut scores = vec![f64::NEG_INFINITY; states];
    (0..states.min(2)).for_each(|state| scores[state] = emissions[column(state)]);
    let mut next_scores = scores.clone();
    // How many states earlier the best path was in the frame before.
    let mut steps = vec![0u8; emissions.len() / width * states];
    for (row, steps) in emissions.chunks_exact(width).zip(steps.chunks_exact_mut(states)).skip(1) {
        for state in 0..states {
            let (mut best, mut step) = (scores[state], 0);
            if state >= 1 && scores[state - 1] > best {
                (best, step) = (scores[state - 1], 1);
            }
            if may_skip[state] && scores[state - 2] > best {
                (best, step) = (scores[state - 2], 2);
            }
            next_scores[state] = best + row[column(state)];
            steps[state] = step;
        }
        std::mem::swap(&mut scores, &mut next_scores);
    }
    let ends_in_blank = states == 1 || scores[states - 1] > scores[states - 2];
    let mut state = if ends_in_blank { states - 1 } else { states - 2 };
    if scores[state] == f64::NEG_INFINITY {
        return Vec::new();
    }
    let mut path: Vec<i64> = steps
        .chunks_exact(states)
        .rev()
        .map(|steps| {
            let emitted = column(state) as i64;
            state -= usize::from(steps[state]);
            emitted
        })
        .collect();
    path.reverse();
    path
}

/// Converts an error of a lattice sum.
fn value_error(error: rnnt_dp::Error) -> pyo3::PyErr {
    PyValueError::new_err(error.to_string())
}
