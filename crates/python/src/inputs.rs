//! Inputs of losses: arrays by name, checked, and their gradients.
//!
//! Axes: B utterances, T frames, U+1 label positions, H joint width, C classes, D durations.
use std::collections::BTreeMap;

use dlpark::ffi::DLDataType;
use pruned::{Heads, Linear, LinearGradient, Matrices, MatrixGradient};
use pyo3::{
    Bound, PyAny, PyResult,
    exceptions::PyValueError,
    types::{PyAnyMethods, PyDict, PyDictMethods},
};
use rnnt_loss::{
    Element, Gradients, Head, HeadGradient, HiddenInputs, Inputs, JointInputs, Layout, PassScales,
    PrunedInputs, ScoreInputs, SimpleGradient, SimpleInputs, Targets,
};

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    options::{LossOptions, value_error},
    targets::{PaddedSizes, expect_batch, read_targets, with_token_weights},
};

/// Returned arrays by name, a dictionary in Python.
pub type NamedArrays = BTreeMap<&'static str, Array>;

/// An element type of losses, in both directions.
pub trait LossElement: Element + ArrayElement {}

impl LossElement for f32 {}
impl LossElement for f64 {}

/// Arrays of a call by name; absent ones are missing or None.
pub struct Arguments<'a, 'py>(pub &'a Bound<'py, PyDict>);

impl<'py> Arguments<'_, 'py> {
    /// Returns an array of Python, if present.
    pub fn array(&self, name: &'static str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|array| !array.is_none()))
    }

    /// Borrows an array of `rank` axes, if present.
    pub fn optional(&self, name: &'static str, rank: usize) -> PyResult<Option<Borrowed>> {
        self.array(name)?.map(|array| Borrowed::new(name, &array, rank)).transpose()
    }

    /// Borrows an array of `rank` axes.
    ///
    /// # Errors
    /// It is absent.
    pub fn required(&self, name: &'static str, rank: usize, options: &LossOptions) -> PyResult<Borrowed> {
        self.optional(name, rank)?.ok_or_else(|| {
            let loss = options.name();
            PyValueError::new_err(format!("{name}: expected an array for loss '{loss}', found None"))
        })
    }

    /// Reads the targets, with the weights of the labels if present.
    ///
    /// # Errors
    /// Those of [`read_targets`]; weights of another shape, or not finite.
    pub fn targets(&self, sizes: &PaddedSizes, options: &LossOptions) -> PyResult<Targets> {
        let [labels, frames, lengths] =
            ["targets", "logit_lengths", "target_lengths"].map(|name| self.present(name));
        let targets = read_targets(&labels?, &frames?, &lengths?, sizes, options)?;
        match self.optional("token_weights", 2)? {
            Some(weights) => with_token_weights(targets, &weights, self.max_labels()?),
            None => Ok(targets),
        }
    }

    /// Number of labels of the padded targets.
    pub fn max_labels(&self) -> PyResult<usize> {
        let [_, max_labels] = Borrowed::new("targets", &self.present("targets")?, 2)?.shape();
        Ok(max_labels)
    }

    /// Returns an array that every call has.
    fn present(&self, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        self.array(name)?
            .ok_or_else(|| PyValueError::new_err(format!("{name}: expected an array, found None")))
    }

    /// Fails if an array is present.
    fn refuse(&self, name: &'static str, options: &LossOptions) -> PyResult<()> {
        if self.array(name)?.is_none() {
            return Ok(());
        }
        let loss = options.name();
        Err(PyValueError::new_err(format!("{name}: expected None for loss '{loss}', found an array")))
    }
}

/// Checked inputs of a loss.
pub struct InputArrays {
    kind: Kind,
    /// Sizes of the padded arrays.
    pub sizes: PaddedSizes,
}

enum Kind {
    /// Scores (logits) `[B, T, U+1, C]`, with durations `[B, T, U+1, C+D]`; CTC `[B, T, C]`.
    Scores(Borrowed),
    /// CTC: hidden rows of the frames `[B, T, H]` and a head.
    Hidden { hidden: Borrowed, head: HeadArrays },
    /// A joint network `act(encoded + predicted)` and its head.
    Joint(JointArrays),
    /// A joint network over the sites that a simple joiner retains.
    Pruned { joint: JointArrays, simple: Box<SimpleArrays>, scales: PassScales },
}

/// Projected rows and the head.
struct JointArrays {
    /// Projected encoder rows `[B, T, H]`.
    encoded: Borrowed,
    /// Projected predictor rows `[B, U+1, H]`.
    predicted: Borrowed,
    head: HeadArrays,
}

/// Weight `[C, H]` and bias `[C]` of a head; the last D rows are those of the durations.
struct HeadArrays {
    weight: Borrowed,
    bias: Option<Borrowed>,
    /// Classes without durations.
    classes: usize,
    durations: usize,
}

/// The simple joiner: scores of frames and label positions, or linear layers over rows.
struct SimpleArrays {
    encoded: Borrowed,
    predicted: Borrowed,
    layers: Option<[LayerArrays; 2]>,
}

/// Weight and bias of a linear layer.
struct LayerArrays {
    weight: Borrowed,
    bias: Option<Borrowed>,
}

impl InputArrays {
    /// Borrows and checks the inputs of a loss.
    ///
    /// # Errors
    /// Shapes that do not match; an array that the loss does not have or needs; too few classes.
    pub fn new(arguments: &Arguments, options: &LossOptions) -> PyResult<Self> {
        if arguments.array("logits")?.is_some() {
            return Self::from_scores(arguments, options);
        }
        let encoded = arguments.required("encoded", 3, options)?;
        if options.is_ctc() {
            arguments.refuse("predicted", options)?;
        }
        if !options.is_pruned() {
            arguments.refuse("simple_encoded", options)?;
        }
        let [batch, frames, width] = encoded.shape();
        if options.is_ctc() {
            let head = HeadArrays::new(arguments, options, width)?;
            let sizes = PaddedSizes { batch, frames, positions: None, classes: head.classes };
            return Ok(Self { kind: Kind::Hidden { hidden: encoded, head }, sizes });
        }
        let predicted = arguments.required("predicted", 3, options)?;
        let [predicted_batch, positions, predicted_width] = predicted.shape();
        expect_batch("predicted", batch, predicted_batch)?;
        expect_width("predicted", width, predicted_width)?;
        expect_positions("predicted", positions)?;
        let head = HeadArrays::new(arguments, options, width)?;
        let sizes = PaddedSizes { batch, frames, positions: Some(positions), classes: head.classes };
        let joint = JointArrays { encoded, predicted, head };
        let kind = if options.is_pruned() {
            let simple = Box::new(SimpleArrays::new(arguments, options, &joint)?);
            Kind::Pruned { joint, simple, scales: options.pass_scales() }
        } else {
            Kind::Joint(joint)
        };
        Ok(Self { kind, sizes })
    }

    fn from_scores(arguments: &Arguments, options: &LossOptions) -> PyResult<Self> {
        let rank = if options.is_ctc() { 3 } else { 4 };
        let scores = arguments.required("logits", rank, options)?;
        let (batch, frames, positions, columns) = if options.is_ctc() {
            let [batch, frames, columns] = scores.shape();
            (batch, frames, None, columns)
        } else {
            let [batch, frames, positions, columns] = scores.shape();
            expect_positions("logits", positions)?;
            (batch, frames, Some(positions), columns)
        };
        let classes = token_classes("logits", columns, options)?;
        Ok(Self { kind: Kind::Scores(scores), sizes: PaddedSizes { batch, frames, positions, classes } })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DLDataType {
        self.first().dtype()
    }

    /// Returns the error of an unsupported type.
    pub fn dtype_error(&self) -> pyo3::PyErr {
        self.first().dtype_error("float32 or float64")
    }

    fn first(&self) -> &Borrowed {
        match &self.kind {
            Kind::Scores(scores) => scores,
            Kind::Hidden { hidden, .. } => hidden,
            Kind::Joint(joint) | Kind::Pruned { joint, .. } => &joint.encoded,
        }
    }

    /// Returns the inputs of a session.
    ///
    /// # Errors
    /// Arrays of different types, or not contiguous; a weight that is not finite.
    pub fn inputs<F: LossElement>(&self, layout: Layout) -> PyResult<Inputs<'_, F>> {
        Ok(match &self.kind {
            Kind::Scores(scores) => {
                let classes = self.sizes.classes;
                ScoreInputs { scores: scores.elements()?, classes, layout }.into()
            }
            Kind::Hidden { hidden, head } => {
                let (head, durations) = head.heads()?;
                HiddenInputs { hidden: hidden.elements()?, head, durations, layout }.into()
            }
            Kind::Joint(joint) => joint.inputs(layout)?.into(),
            Kind::Pruned { joint, simple, scales } => {
                PrunedInputs { simple: simple.inputs()?, joint: joint.inputs(layout)?, scales: *scales }
                    .into()
            }
        })
    }

    /// Returns the gradients by the names of the arguments.
    ///
    /// Those of biases exist in any case.
    pub fn gradients<F: LossElement>(&self, gradients: Gradients<F>) -> NamedArrays {
        let Gradients { encoded, predicted, hidden, scores, head, durations, simple } = gradients;
        match &self.kind {
            Kind::Scores(array) => NamedArrays::from([("logits", array.array_like(scores))]),
            Kind::Hidden { hidden: array, head: arrays } => {
                let [weight, bias] = arrays.gradient(head, durations);
                NamedArrays::from([("encoded", array.array_like(hidden)), ("weight", weight), ("bias", bias)])
            }
            Kind::Joint(joint) => joint.gradients(encoded, predicted, head, durations),
            Kind::Pruned { joint, simple: arrays, .. } => {
                let mut named = joint.gradients(encoded, predicted, head, durations);
                named.extend(simple.into_iter().flat_map(|simple| arrays.gradients(simple)));
                named
            }
        }
    }
}

/// Returns the inputs of an utterance of a padded batch.
///
/// Those of a simple joiner are left out.
pub fn utterance_inputs<'a, F: LossElement>(
    inputs: &Inputs<'a, F>,
    batch: usize,
    utterance: usize,
) -> Inputs<'a, F> {
    let part = |rows: &'a [F]| {
        let size = rows.len() / batch;
        &rows[utterance * size..][..size]
    };
    match *inputs {
        Inputs::Scores(inputs) => ScoreInputs { scores: part(inputs.scores), ..inputs }.into(),
        Inputs::Hidden(inputs) => HiddenInputs { hidden: part(inputs.hidden), ..inputs }.into(),
        Inputs::Joint(joint) | Inputs::Pruned(PrunedInputs { joint, .. }) => {
            let (encoded, predicted) = (part(joint.encoded), part(joint.predicted));
            JointInputs { encoded, predicted, ..joint }.into()
        }
    }
}

impl JointArrays {
    fn inputs<F: LossElement>(&self, layout: Layout) -> PyResult<JointInputs<'_, F>> {
        let (head, durations) = self.head.heads()?;
        let (encoded, predicted) = (self.encoded.elements()?, self.predicted.elements()?);
        Ok(JointInputs { encoded, predicted, head, durations, dropout: None, layout })
    }

    fn gradients<F: LossElement>(
        &self,
        encoded: Vec<F>,
        predicted: Vec<F>,
        tokens: HeadGradient<F>,
        durations: HeadGradient<F>,
    ) -> NamedArrays {
        let [weight, bias] = self.head.gradient(tokens, durations);
        NamedArrays::from([
            ("encoded", self.encoded.array_like(encoded)),
            ("predicted", self.predicted.array_like(predicted)),
            ("weight", weight),
            ("bias", bias),
        ])
    }
}

impl HeadArrays {
    fn new(arguments: &Arguments, options: &LossOptions, width: usize) -> PyResult<Self> {
        let weight = arguments.required("weight", 2, options)?;
        let bias = arguments.optional("bias", 1)?;
        let [rows, weight_width] = weight.shape();
        expect_width("weight", width, weight_width)?;
        expect_bias("bias", bias.as_ref(), rows)?;
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
        [self.weight.array_like(weight), F::array(bias, vec![rows])]
    }
}

impl SimpleArrays {
    fn new(arguments: &Arguments, options: &LossOptions, joint: &JointArrays) -> PyResult<Self> {
        let encoded = arguments.required("simple_encoded", 3, options)?;
        let predicted = arguments.required("simple_predicted", 3, options)?;
        let layers = [
            LayerArrays::new(arguments, "simple_encoded_weight", "simple_encoded_bias", options)?,
            LayerArrays::new(arguments, "simple_predicted_weight", "simple_predicted_bias", options)?,
        ];
        let layers = match layers {
            [None, None] => None,
            [Some(encoded), Some(predicted)] => Some([encoded, predicted]),
            _ => {
                return Err(PyValueError::new_err(
                    "simple_encoded_weight, simple_predicted_weight: expected both or none, found one",
                ));
            }
        };
        let classes = joint.head.classes;
        let widths =
            layers.as_ref().map(|layers| layers.each_ref().map(|layer| layer.weight.shape::<2>()[1]));
        let [encoded_width, predicted_width] = widths.unwrap_or([classes; 2]);
        let ([batch, frames, _], [_, positions, _]) =
            (joint.encoded.shape::<3>(), joint.predicted.shape::<3>());
        expect_shape("simple_encoded", &[batch, frames, encoded_width], &encoded)?;
        expect_shape("simple_predicted", &[batch, positions, predicted_width], &predicted)?;
        if let Some([encoded_layer, predicted_layer]) = &layers {
            expect_shape("simple_encoded_weight", &[classes, encoded_width], &encoded_layer.weight)?;
            expect_shape("simple_predicted_weight", &[classes, predicted_width], &predicted_layer.weight)?;
            expect_bias("simple_encoded_bias", encoded_layer.bias.as_ref(), classes)?;
            expect_bias("simple_predicted_bias", predicted_layer.bias.as_ref(), classes)?;
        }
        Ok(Self { encoded, predicted, layers })
    }

    fn inputs<F: LossElement>(&self) -> PyResult<SimpleInputs<'_, F>> {
        let (encoded, predicted) = (self.encoded.elements()?, self.predicted.elements()?);
        Ok(match &self.layers {
            None => {
                let [_, _, classes] = self.encoded.shape();
                SimpleInputs::Matrices(Matrices::new(encoded, predicted, classes).map_err(first_pass_error)?)
            }
            Some([encoded_layer, predicted_layer]) => {
                let (am, lm) = (encoded_layer.linear(encoded)?, predicted_layer.linear(predicted)?);
                SimpleInputs::Heads(Heads::new(am, lm).map_err(first_pass_error)?)
            }
        })
    }

    fn gradients<F: LossElement>(&self, gradient: SimpleGradient<F>) -> NamedArrays {
        match gradient {
            SimpleGradient::Matrices(MatrixGradient { am, lm }) => NamedArrays::from([
                ("simple_encoded", self.encoded.array_like(am)),
                ("simple_predicted", self.predicted.array_like(lm)),
            ]),
            SimpleGradient::Heads(heads) => {
                let LinearGradient { rows: am_rows, weight: am_weight, bias: am_bias } = heads.am;
                let LinearGradient { rows: lm_rows, weight: lm_weight, bias: lm_bias } = heads.lm;
                let classes = am_bias.len();
                let weight = |weight: Vec<F>| {
                    let shape = vec![classes, weight.len() / classes.max(1)];
                    F::array(weight, shape)
                };
                NamedArrays::from([
                    ("simple_encoded", self.encoded.array_like(am_rows)),
                    ("simple_predicted", self.predicted.array_like(lm_rows)),
                    ("simple_encoded_weight", weight(am_weight)),
                    ("simple_encoded_bias", F::array(am_bias, vec![classes])),
                    ("simple_predicted_weight", weight(lm_weight)),
                    ("simple_predicted_bias", F::array(lm_bias, vec![classes])),
                ])
            }
        }
    }
}

impl LayerArrays {
    /// Borrows a layer; `None` without a weight.
    fn new(
        arguments: &Arguments,
        weight: &'static str,
        bias: &'static str,
        options: &LossOptions,
    ) -> PyResult<Option<Self>> {
        match arguments.optional(weight, 2)? {
            Some(weight) => Ok(Some(Self { weight, bias: arguments.optional(bias, 1)? })),
            None => arguments.refuse(bias, options).map(|()| None),
        }
    }

    fn linear<'a, F: LossElement>(&'a self, rows: &'a [F]) -> PyResult<Linear<'a, F>> {
        let [_, width] = self.weight.shape();
        let bias = self.bias.as_ref().map(|bias| bias.elements::<F>()).transpose()?;
        Linear::new(rows, self.weight.elements()?, bias, width).map_err(first_pass_error)
    }
}

fn first_pass_error(error: pruned::Error) -> pyo3::PyErr {
    value_error(error.into())
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

fn expect_width(argument: &str, expected: usize, found: usize) -> PyResult<()> {
    if expected == found {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "{argument}: expected rows of {expected} numbers, as encoded, found {found}"
    )))
}

fn expect_positions(argument: &str, positions: usize) -> PyResult<()> {
    if positions > 0 {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{argument}: expected at least one label position, found 0")))
}

fn expect_bias(argument: &str, bias: Option<&Borrowed>, expected: usize) -> PyResult<()> {
    match bias.map(|bias| bias.shape()) {
        Some([found]) if found != expected => {
            Err(PyValueError::new_err(format!("{argument}: expected {expected} elements, found {found}")))
        }
        _ => Ok(()),
    }
}

fn expect_shape<const RANK: usize>(
    argument: &str,
    expected: &[usize; RANK],
    array: &Borrowed,
) -> PyResult<()> {
    let shape = array.shape::<RANK>();
    if *expected == shape {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{argument}: expected shape {expected:?}, found {shape:?}")))
}
