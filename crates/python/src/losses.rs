//! Losses of padded batches, with the gradients of their weighted sum.
//!
//! Axes: B utterances, T frames, U+1 label positions, H joint width, C classes, D durations.
use dlpark::ffi::DLDataType;
use pyo3::{Bound, PyAny, PyResult, Python, exceptions::PyValueError, pyfunction};
use rnnt_loss::{
    Element, Gradients, Head, HeadGradient, HiddenInputs, Inputs, JointInputs, Options, ScoreInputs, Session,
    Targets,
};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    options::{LossOptions, value_error},
    targets::{PaddedSizes, expect_batch, read_targets},
    threads,
};

/// Losses `[B]` (float64), and the gradients of their weighted sum by argument; empty without.
type LossAndGradients = (Array, Vec<Array>);

/// An element type of losses, in both directions.
trait LossElement: Element + ArrayElement {}

impl LossElement for f32 {}
impl LossElement for f64 {}

/// Fails unless the options are valid.
#[pyfunction]
pub fn check_options(options: &str) -> PyResult<()> {
    let options = LossOptions::parse(options)?.session_options()?;
    Session::<f32>::new(&options).map(drop).map_err(value_error)
}

/// Losses of a joint network `act(encoded + predicted)` and its head.
///
/// Returns the losses, and the gradients of encoded, predicted, weight and bias.
#[pyfunction]
#[pyo3(signature = (encoded, predicted, weight, bias, targets, logit_lengths, target_lengths, weights, options))]
#[expect(clippy::too_many_arguments, reason = "the arguments of the operation in torch")]
pub fn joint_loss(
    py: Python,
    encoded: &Bound<PyAny>,
    predicted: &Bound<PyAny>,
    weight: &Bound<PyAny>,
    bias: Option<&Bound<PyAny>>,
    targets: &Bound<PyAny>,
    logit_lengths: &Bound<PyAny>,
    target_lengths: &Bound<PyAny>,
    weights: Option<&Bound<PyAny>>,
    options: &str,
) -> PyResult<LossAndGradients> {
    let options = LossOptions::parse(options)?;
    options.expect_ctc(false)?;
    let encoded = Borrowed::new("encoded", encoded, 3)?;
    let predicted = Borrowed::new("predicted", predicted, 3)?;
    let head = HeadArrays::new(weight, bias, &options)?;
    let ([batch, frames, width], [predicted_batch, positions, predicted_width]) =
        (encoded.shape(), predicted.shape());
    expect_batch("predicted", batch, predicted_batch)?;
    expect_width("predicted", width, predicted_width)?;
    expect_width("weight", width, head.width())?;
    if positions == 0 {
        return Err(PyValueError::new_err("predicted: expected at least one label position, found 0"));
    }
    let sizes = PaddedSizes { batch, frames, positions: Some(positions), classes: head.classes };
    let targets = read_targets(targets, logit_lengths, target_lengths, &sizes, &options)?;
    let weights = weights.map(|weights| read_weights(weights, batch)).transpose()?;
    let layout = sizes.layout(&targets);
    let session_options = options.session_options()?;
    macro_rules! call {
        ($type:ty) => {{
            let (token_head, durations) = head.heads::<$type>()?;
            let inputs = JointInputs {
                encoded: encoded.elements()?,
                predicted: predicted.elements()?,
                head: token_head,
                durations,
                dropout: None,
                layout,
            };
            let (losses, gradients) =
                compute::<$type>(py, inputs.into(), &targets, weights, session_options)?;
            let gradients = gradients.map_or_else(Vec::new, |gradients| {
                let Gradients { encoded, predicted, head: tokens, durations, .. } = gradients;
                let [weight, bias] = head.gradient(tokens, durations);
                let encoded = <$type>::array(encoded, vec![batch, frames, width]);
                vec![encoded, <$type>::array(predicted, vec![batch, positions, width]), weight, bias]
            });
            Ok((losses, gradients))
        }};
    }
    match encoded.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(encoded.dtype_error("float32 or float64")),
    }
}

/// CTC losses of hidden rows of the frames and a head.
///
/// Returns the losses, and the gradients of hidden, weight and bias.
#[pyfunction]
#[pyo3(signature = (hidden, weight, bias, targets, logit_lengths, target_lengths, weights, options))]
#[expect(clippy::too_many_arguments, reason = "the arguments of the operation in torch")]
pub fn hidden_loss(
    py: Python,
    hidden: &Bound<PyAny>,
    weight: &Bound<PyAny>,
    bias: Option<&Bound<PyAny>>,
    targets: &Bound<PyAny>,
    logit_lengths: &Bound<PyAny>,
    target_lengths: &Bound<PyAny>,
    weights: Option<&Bound<PyAny>>,
    options: &str,
) -> PyResult<LossAndGradients> {
    let options = LossOptions::parse(options)?;
    options.expect_ctc(true)?;
    let hidden = Borrowed::new("encoded", hidden, 3)?;
    let head = HeadArrays::new(weight, bias, &options)?;
    let [batch, frames, width] = hidden.shape();
    expect_width("weight", width, head.width())?;
    let sizes = PaddedSizes { batch, frames, positions: None, classes: head.classes };
    let targets = read_targets(targets, logit_lengths, target_lengths, &sizes, &options)?;
    let weights = weights.map(|weights| read_weights(weights, batch)).transpose()?;
    let layout = sizes.layout(&targets);
    let session_options = options.session_options()?;
    macro_rules! call {
        ($type:ty) => {{
            let (token_head, durations) = head.heads::<$type>()?;
            let inputs = HiddenInputs { hidden: hidden.elements()?, head: token_head, durations, layout };
            let (losses, gradients) =
                compute::<$type>(py, inputs.into(), &targets, weights, session_options)?;
            let gradients = gradients.map_or_else(Vec::new, |gradients| {
                let [weight, bias] = head.gradient(gradients.head, gradients.durations);
                vec![<$type>::array(gradients.hidden, vec![batch, frames, width]), weight, bias]
            });
            Ok((losses, gradients))
        }};
    }
    match hidden.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(hidden.dtype_error("float32 or float64")),
    }
}

/// Losses of scores (logits) `[B, T, U+1, C]`, with durations `[B, T, U+1, C+D]`; CTC `[B, T, C]`.
///
/// Returns the losses, and the gradient of the scores.
#[pyfunction]
#[pyo3(signature = (scores, targets, logit_lengths, target_lengths, weights, options))]
pub fn score_loss(
    py: Python,
    scores: &Bound<PyAny>,
    targets: &Bound<PyAny>,
    logit_lengths: &Bound<PyAny>,
    target_lengths: &Bound<PyAny>,
    weights: Option<&Bound<PyAny>>,
    options: &str,
) -> PyResult<LossAndGradients> {
    let options = LossOptions::parse(options)?;
    let scores = Borrowed::new("logits", scores, if options.is_ctc() { 3 } else { 4 })?;
    let (batch, frames, positions, columns) = if options.is_ctc() {
        let [batch, frames, columns] = scores.shape();
        (batch, frames, None, columns)
    } else {
        let [batch, frames, positions, columns] = scores.shape();
        (batch, frames, Some(positions), columns)
    };
    if positions == Some(0) {
        return Err(PyValueError::new_err("logits: expected at least one label position, found 0"));
    }
    let classes = token_classes("logits", columns, &options)?;
    let sizes = PaddedSizes { batch, frames, positions, classes };
    let targets = read_targets(targets, logit_lengths, target_lengths, &sizes, &options)?;
    let weights = weights.map(|weights| read_weights(weights, batch)).transpose()?;
    let layout = sizes.layout(&targets);
    let session_options = options.session_options()?;
    let shape: Vec<usize> =
        [Some(batch), Some(frames), positions, Some(columns)].into_iter().flatten().collect();
    macro_rules! call {
        ($type:ty) => {{
            let inputs = ScoreInputs { scores: scores.elements()?, classes, layout };
            let (losses, gradients) =
                compute::<$type>(py, inputs.into(), &targets, weights, session_options)?;
            let gradients = gradients.map(|gradients| <$type>::array(gradients.scores, shape));
            Ok((losses, gradients.into_iter().collect()))
        }};
    }
    match scores.dtype() {
        DLDataType::F32 => call!(f32),
        DLDataType::F64 => call!(f64),
        _ => Err(scores.dtype_error("float32 or float64")),
    }
}

/// Computes losses, with `weights` also the gradients of their weighted sum.
///
/// The lock of the interpreter is released.
fn compute<F: LossElement>(
    py: Python,
    inputs: Inputs<F>,
    targets: &Targets,
    weights: Option<Vec<f64>>,
    mut options: Options,
) -> PyResult<(Array, Option<Gradients<F>>)> {
    let outcome = py.detach(|| {
        threads::install(|| match weights {
            Some(weights) => {
                let out = Session::new(&options)?.sum(inputs, targets, &weights)?;
                Ok((out.losses, Some(out.gradients)))
            }
            None => {
                // Without a backward pass, kept scores have no use.
                options.keep_scores = false;
                Ok((Session::new(&options)?.forward(inputs, targets)?.losses().to_vec(), None))
            }
        })
    })?;
    let (losses, gradients) = outcome.map_err(value_error)?;
    let shape = vec![losses.len()];
    Ok((f64::array(losses, shape), gradients))
}

/// Weight and bias of a head; the last rows are those of the durations.
struct HeadArrays {
    weight: Borrowed,
    bias: Option<Borrowed>,
    /// Classes without durations.
    classes: usize,
    durations: usize,
}

impl HeadArrays {
    fn new(weight: &Bound<PyAny>, bias: Option<&Bound<PyAny>>, options: &LossOptions) -> PyResult<Self> {
        let weight = Borrowed::new("weight", weight, 2)?;
        let bias = bias.map(|bias| Borrowed::new("bias", bias, 1)).transpose()?;
        let [rows, _] = weight.shape();
        if let Some(bias) = &bias
            && bias.shape() != [rows]
        {
            let [found] = bias.shape();
            return Err(PyValueError::new_err(format!("bias: expected {rows} elements, found {found}")));
        }
        let classes = token_classes("weight", rows, options)?;
        Ok(Self { weight, bias, classes, durations: options.duration_classes() })
    }

    /// Joint width H.
    fn width(&self) -> usize {
        let [_, width] = self.weight.shape();
        width
    }

    /// Returns the heads of the tokens and of the durations.
    fn heads<F: LossElement>(&self) -> PyResult<(Head<'_, F>, Option<Head<'_, F>>)> {
        let width = self.width();
        let (tokens, durations) = self.weight.elements::<F>()?.split_at(self.classes * width);
        let bias = self.bias.as_ref().map(|bias| bias.elements::<F>()).transpose()?;
        let (token_bias, duration_bias) = bias.map(|bias| bias.split_at(self.classes)).unzip();
        let head = |weight, bias| {
            Head::new(weight, bias, width).map_err(|error| PyValueError::new_err(error.to_string()))
        };
        let durations = (self.durations > 0).then(|| head(durations, duration_bias)).transpose()?;
        Ok((head(tokens, token_bias)?, durations))
    }

    /// Joins the gradients of both heads; returns those of weight and bias.
    fn gradient<F: LossElement>(&self, tokens: HeadGradient<F>, durations: HeadGradient<F>) -> [Array; 2] {
        let HeadGradient { mut weight, mut bias } = tokens;
        weight.extend(durations.weight);
        bias.extend(durations.bias);
        let rows = self.classes + self.durations;
        [F::array(weight, vec![rows, self.width()]), F::array(bias, vec![rows])]
    }
}

/// Returns the number of classes without durations.
fn token_classes(argument: &str, columns: usize, options: &LossOptions) -> PyResult<usize> {
    let durations = options.duration_classes();
    let needed = durations + 1 + options.big_blanks.len();
    if columns < needed {
        return Err(PyValueError::new_err(format!(
            "{argument}: expected at least {needed} classes, found {columns}"
        )));
    }
    let classes = columns - durations;
    let mut blanks = std::iter::once(("blank", options.blank))
        .chain(options.big_blanks.iter().map(|&blank| ("big_blanks", blank)));
    if let Some((argument, found)) = blanks.find(|&(_, blank)| blank as usize >= classes) {
        return Err(PyValueError::new_err(format!(
            "{argument}: expected a class from 0 to {}, found {found}",
            classes - 1
        )));
    }
    Ok(classes)
}

/// Reads one weight per utterance.
pub fn read_weights(weights: &Bound<PyAny>, batch: usize) -> PyResult<Vec<f64>> {
    let weights = Borrowed::new("weights", weights, 1)?;
    let [found] = weights.shape();
    expect_batch("weights", batch, found)?;
    Ok(weights.elements::<f64>()?.to_vec())
}

fn expect_width(argument: &str, expected: usize, found: usize) -> PyResult<()> {
    if expected == found {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{argument}: expected rows of {expected} numbers, as encoded, found {found}"
    )))
}
