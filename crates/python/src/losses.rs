//! Losses of padded batches, with the gradients of their weighted sum.
use dlpark::ffi::DLDataType;
use pyo3::{Bound, PyResult, Python, pyfunction, types::PyDict};
use rnnt_loss::{
    Gradients, Inputs, LossOutput, Options, PassScales, PruningOutput, Session, SkippedSites, Targets,
};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    inputs::{Arguments, InputArrays, LossElement, NamedArrays},
    options::{LossOptions, value_error},
    targets::{PaddedSizes, expect_batch},
    threads,
};

/// Losses `[B]`, gradients, outputs of the first pass, and skipped sites.
type NamedLosses = (Array, NamedArrays, NamedArrays, SkippedNumbers);

/// The fields of [`SkippedSites`].
type SkippedNumbers = (usize, usize, f64, f64, f64, f64);

/// Fails unless the options are valid.
#[pyfunction]
pub fn check_options(options: &str) -> PyResult<()> {
    let options = LossOptions::parse(options)?.session_options()?;
    Session::<f32>::new(&options).map(drop).map_err(value_error)
}

/// Computes losses, with `weights` also the gradients of their weighted sum.
///
/// `arguments` are arrays by name:
///
/// | inputs | names |
/// |---|---|
/// | scores | `logits` `[B, T, U+1, C]`, with durations `[B, T, U+1, C+D]`; CTC `[B, T, C]` |
/// | a joint network | `encoded` `[B, T, H]`, `predicted` `[B, U+1, H]`, `weight`, `bias` |
/// | CTC | `encoded` `[B, T, H]`, `weight`, `bias` |
/// | pruning | the joint network, and `simple_encoded`, `simple_predicted` and their layers |
/// | all | `targets`, `token_weights` `[B, U]`, `logit_lengths`, `target_lengths`, `weights` `[B]` |
///
/// With pruning, the losses are the sum of both passes, and the outputs of the first pass are
/// `simple_losses`, `pruned_losses` `[B]`, and `bands` `[B, T, 2]`: the first label position, and
/// the last one + 1.
#[pyfunction]
pub fn loss(py: Python, arguments: &Bound<PyDict>, options: &str) -> PyResult<NamedLosses> {
    let (options, arguments) = (LossOptions::parse(options)?, Arguments(arguments));
    let inputs = InputArrays::new(&arguments, &options)?;
    match inputs.dtype() {
        DLDataType::F32 => typed_loss::<f32>(py, &arguments, &inputs, &options),
        DLDataType::F64 => typed_loss::<f64>(py, &arguments, &inputs, &options),
        _ => Err(inputs.dtype_error()),
    }
}

fn typed_loss<F: LossElement>(
    py: Python,
    arguments: &Arguments,
    arrays: &InputArrays,
    options: &LossOptions,
) -> PyResult<NamedLosses> {
    let sizes = &arrays.sizes;
    let targets = arguments.targets(sizes, options)?;
    let weights = arguments.optional("weights", 1)?;
    let weights = weights.map(|weights| read_weights(&weights, sizes.batch)).transpose()?;
    let has_gradients = weights.is_some();
    let inputs = arrays.inputs::<F>(sizes.layout(&targets))?;
    let LossOutput { losses, first_pass, gradients, skipped } =
        compute(py, inputs, &targets, weights, options.session_options()?)?;
    let gradients = if has_gradients { arrays.gradients(gradients) } else { NamedArrays::new() };
    let SkippedSites { sites, zero_sites, mass, bias_error, weight_error, input_error } = skipped;
    let skipped = (sites, zero_sites, mass, bias_error, weight_error, input_error);
    Ok(match first_pass {
        None => (vector(losses), gradients, NamedArrays::new(), skipped),
        Some(first_pass) => {
            let scales = options.pass_scales();
            let total = first_pass.losses.iter().zip(&losses);
            let total = total.map(|(&simple, &pruned)| total_loss(scales, simple, pruned)).collect();
            (vector(total), gradients, first_pass_arrays(first_pass, losses, sizes), skipped)
        }
    })
}

/// Returns the sum of both losses; a loss of scale 0 may be infinite.
fn total_loss(scales: PassScales, simple: f64, pruned: f64) -> f64 {
    let scaled = |scale: f64, loss: f64| if scale == 0.0 { 0.0 } else { scale * loss };
    scaled(scales.simple, simple) + scaled(scales.pruned, pruned)
}

/// Losses of both passes, and the bands of the second.
fn first_pass_arrays(first_pass: PruningOutput, pruned_losses: Vec<f64>, sizes: &PaddedSizes) -> NamedArrays {
    let PruningOutput { losses, ranges } = first_pass;
    let mut bands = vec![0i64; sizes.batch * sizes.frames * 2];
    for (utterance, rows) in bands.chunks_exact_mut(sizes.frames * 2).enumerate() {
        for (frame, row) in rows.chunks_exact_mut(2).enumerate().take(ranges.starts(utterance).len()) {
            let band = ranges.band(utterance, frame);
            row.copy_from_slice(&[band.start as i64, band.end as i64]);
        }
    }
    NamedArrays::from([
        ("simple_losses", vector(losses)),
        ("pruned_losses", vector(pruned_losses)),
        ("bands", i64::array(bands, vec![sizes.batch, sizes.frames, 2])),
    ])
}

/// Computes losses, with `weights` also gradients; releases the lock of the interpreter.
fn compute<F: LossElement>(
    py: Python,
    inputs: Inputs<F>,
    targets: &Targets,
    weights: Option<Vec<f64>>,
    mut options: Options,
) -> PyResult<LossOutput<F>> {
    let outcome = py.detach(|| {
        threads::install(|| match weights {
            Some(weights) => Session::new(&options)?.sum(inputs, targets, &weights),
            None => {
                // Without a backward pass, kept scores have no use.
                options.keep_scores = false;
                let mut session = Session::new(&options)?;
                let pending = session.forward(inputs, targets)?;
                let (losses, first_pass) = (pending.losses().to_vec(), pending.first_pass().cloned());
                let (gradients, skipped) = (Gradients::default(), SkippedSites::default());
                Ok(LossOutput { losses, first_pass, gradients, skipped })
            }
        })
    })?;
    outcome.map_err(value_error)
}

/// Reads one weight per utterance.
pub fn read_weights(weights: &Borrowed, batch: usize) -> PyResult<Vec<f64>> {
    let [found] = weights.shape();
    expect_batch("weights", batch, found)?;
    Ok(weights.elements::<f64>()?.to_vec())
}

/// Returns an array of one axis.
pub fn vector(elements: Vec<f64>) -> Array {
    let shape = vec![elements.len()];
    f64::array(elements, shape)
}
