//! Recognition lattices of padded batches: sums over paths, best paths, posteriors of arcs.
//!
//! Axes: B utterances, T frames, F features, U labels, C context states, V labels of the
//! vocabulary, E width of an embedding, H joint width, X rows of a table.
use ::lattice::{
    AlignmentLattice, Context, Embeddings, Error, Frames, FullNGram, JointWeightFn, Labels, LatticeOutput,
    LatticePath, LatticeSession, LocallyNormalized, NextStateTable, Normalize, Options, Parameters, PathSum,
    RecognitionLattice, SharedRnn, TableWeightFn, WeightFn,
};
use dlpark::ffi::DLDataType;
use panda_core::Real;
use pyo3::{Bound, PyAny, PyErr, PyResult, Python, exceptions::PyValueError, pyfunction};
use serde::Deserialize;

use crate::{
    arrays::{Array, ArrayElement, Borrowed},
    losses::read_weights,
    targets::{expect_batch, read_lengths},
    threads,
};

/// Sums over paths `[B]` (float64), and the gradients of their weighted sum; empty without.
type SumsAndGradients = (Array, Vec<Array>);

/// An element type of lattices, in both directions.
trait LatticeElement: Real + ArrayElement {}

impl LatticeElement for f32 {}
impl LatticeElement for f64 {}

/// Name and number of axes of each parameter of a joint network.
const JOINT_PARAMETERS: [(&str, usize); 7] = [
    ("weight_fn/project_context_embeddings/kernel", 2),
    ("weight_fn/project_frame/kernel", 2),
    ("weight_fn/joint_bias", 1),
    ("weight_fn/Dense_0/kernel", 2),
    ("weight_fn/Dense_0/bias", 1),
    ("weight_fn/Dense_1/kernel", 2),
    ("weight_fn/Dense_1/bias", 1),
];
/// Name and number of axes of a table of context embeddings.
const EMBEDDINGS: (&str, usize) = ("weight_fn_cacher/context_embeddings", 2);
/// Name and number of axes of each parameter of an LSTM.
const RNN_PARAMETERS: [(&str, usize); 13] = [
    ("weight_fn_cacher/Embed_0/embedding", 2),
    ("weight_fn_cacher/rnn_cell/ii/kernel", 2),
    ("weight_fn_cacher/rnn_cell/if/kernel", 2),
    ("weight_fn_cacher/rnn_cell/ig/kernel", 2),
    ("weight_fn_cacher/rnn_cell/io/kernel", 2),
    ("weight_fn_cacher/rnn_cell/hi/kernel", 2),
    ("weight_fn_cacher/rnn_cell/hf/kernel", 2),
    ("weight_fn_cacher/rnn_cell/hg/kernel", 2),
    ("weight_fn_cacher/rnn_cell/ho/kernel", 2),
    ("weight_fn_cacher/rnn_cell/hi/bias", 1),
    ("weight_fn_cacher/rnn_cell/hf/bias", 1),
    ("weight_fn_cacher/rnn_cell/hg/bias", 1),
    ("weight_fn_cacher/rnn_cell/ho/bias", 1),
];

/// Weight function of a lattice.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WeightKind {
    /// A joint network over a table of context embeddings.
    Joint,
    /// A joint network over embeddings from an LSTM.
    JointRnn,
    /// A table `[X, C, 1 + V]`.
    Table,
    /// A table `[B, X, C, 1 + V]`.
    UtteranceTable,
}

impl WeightKind {
    /// Name and number of axes of each parameter.
    fn parameters(self) -> Vec<(&'static str, usize)> {
        match self {
            Self::Joint => [&JOINT_PARAMETERS[..], &[EMBEDDINGS]].concat(),
            Self::JointRnn => [&JOINT_PARAMETERS[..], &RNN_PARAMETERS].concat(),
            Self::Table => vec![("table", 3)],
            Self::UtteranceTable => vec![("table", 4)],
        }
    }
}

/// Local normalization of the arcs from a state.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum NormalizeName {
    Hat,
    LogSoftmax,
}

/// Components of a lattice as JSON text: an operation of torch takes numbers and text only.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LatticeText {
    vocab_size: usize,
    /// Labels that a state remembers; none for a table of next states.
    context_size: Option<usize>,
    /// Largest number of labels of a frame; none if a label ends the frame.
    max_expansions: Option<usize>,
    weights: WeightKind,
    normalize: Option<NormalizeName>,
    budget: Option<usize>,
}

impl LatticeText {
    fn parse(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map_err(|error| PyValueError::new_err(format!("lattice: {error}")))
    }

    fn alignment(&self) -> PyResult<AlignmentLattice> {
        match self.max_expansions {
            None => Ok(AlignmentLattice::FrameDependent),
            Some(expansions) => AlignmentLattice::frame_label_dependent(expansions).map_err(lattice_error),
        }
    }

    fn context(&self, next_states: Option<&Bound<PyAny>>) -> PyResult<Box<dyn Context>> {
        match (self.context_size, next_states) {
            (Some(order), None) => Ok(Box::new(n_gram(self.vocab_size, order)?)),
            (None, Some(table)) => {
                let table = Borrowed::new("next_states", table, 2)?;
                let [states, labels] = table.shape();
                expect_dims("next_states", &[states, self.vocab_size], &[states, labels])?;
                let context = NextStateTable::new(&table.integers()?, states, labels);
                Ok(Box::new(context.map_err(lattice_error)?))
            }
            _ => Err(PyValueError::new_err("next_states: expected a table, or a context size, not both")),
        }
    }

    fn session_options(&self) -> Options {
        self.budget.map_or_else(Options::default, Options::new)
    }
}

/// Converts an error of a lattice.
fn lattice_error(error: Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Creates the context of the last labels.
fn n_gram(vocab_size: usize, context_size: usize) -> PyResult<FullNGram> {
    FullNGram::new(vocab_size, context_size).map_err(|error| {
        let message = error.to_string();
        // The names of Python.
        let message = message.replace("vocabulary:", "vocab_size:").replace("order:", "context_size:");
        PyValueError::new_err(message)
    })
}

/// Labels of a batch, and their lengths.
struct LabelArray {
    /// Padding is 0.
    ids: Vec<u32>,
    shape: [usize; 2],
    lengths: Vec<usize>,
}

impl LabelArray {
    /// Reads labels `[B, U]` and `num_labels` `[B]`; padding is not read.
    fn new(
        labels: &Bound<PyAny>,
        num_labels: &Bound<PyAny>,
        batch: usize,
        vocab_size: usize,
    ) -> PyResult<Self> {
        let labels = Borrowed::new("labels", labels, 2)?;
        let [found, padded] = labels.shape();
        expect_batch("labels", batch, found)?;
        let lengths = read_lengths("num_labels", num_labels, batch, 0..=padded)?;
        let labels = labels.integers()?;
        let mut ids = vec![0; labels.len()];
        for (utterance, &length) in lengths.iter().enumerate() {
            let row = utterance * padded..utterance * padded + length;
            let pairs = ids[row.clone()].iter_mut().zip(&labels[row]);
            for (position, (id, &label)) in pairs.enumerate() {
                if label < 1 || label > vocab_size as i64 {
                    return Err(PyValueError::new_err(format!(
                        "labels[{utterance}, {position}]: expected a label from 1 to {vocab_size}, found {label}"
                    )));
                }
                *id = label as u32;
            }
        }
        Ok(Self { ids, shape: [batch, padded], lengths })
    }

    fn labels(&self) -> ::lattice::Result<Labels<'_>> {
        Labels::new(&self.ids, &self.shape, &self.lengths)
    }
}

/// Elements of the parameters of a weight function.
#[expect(clippy::large_enum_variant, reason = "there is one per call, and it only borrows")]
enum WeightArrays<'a, F> {
    Table { values: &'a [F], shape: &'a [usize] },
    Joint(JointWeightFn<'a, F>),
}

/// A lattice and a batch, with checked shapes.
struct LatticeCall {
    text: LatticeText,
    context: Box<dyn Context>,
    alignment: AlignmentLattice,
    /// Frames `[B, T, F]`.
    frames: Borrowed,
    num_frames: Vec<usize>,
    labels: Option<LabelArray>,
    /// In the order of [`WeightKind::parameters`].
    parameters: Vec<Borrowed>,
}

impl LatticeCall {
    fn new(
        frames: &Bound<PyAny>,
        num_frames: &Bound<PyAny>,
        labels: Option<&Bound<PyAny>>,
        num_labels: Option<&Bound<PyAny>>,
        parameters: &[Bound<PyAny>],
        next_states: Option<&Bound<PyAny>>,
        text: &str,
    ) -> PyResult<Self> {
        let text = LatticeText::parse(text)?;
        let (context, alignment) = (text.context(next_states)?, text.alignment()?);
        let frames = Borrowed::new("frames", frames, 3)?;
        let [batch, padded, _] = frames.shape();
        let num_frames = read_lengths("num_frames", num_frames, batch, 0..=padded)?;
        let labels = match (labels, num_labels) {
            (Some(labels), Some(num_labels)) => {
                Some(LabelArray::new(labels, num_labels, batch, text.vocab_size)?)
            }
            (None, None) => None,
            _ => return Err(PyValueError::new_err("num_labels: expected an array exactly with labels")),
        };
        let names = text.weights.parameters();
        if names.len() != parameters.len() {
            let (expected, found) = (names.len(), parameters.len());
            return Err(PyValueError::new_err(format!("parameters: expected {expected}, found {found}")));
        }
        let pairs = names.iter().zip(parameters);
        let parameters =
            pairs.map(|(&(name, rank), array)| Borrowed::new(name, array, rank)).collect::<PyResult<_>>()?;
        let call = Self { text, context, alignment, frames, num_frames, labels, parameters };
        call.check_shapes()?;
        Ok(call)
    }

    /// Checks the shapes of the parameters of a joint network.
    fn check_shapes(&self) -> PyResult<()> {
        let (c, v) = (self.context.states(), self.context.vocabulary());
        let dims = |index: usize| self.parameters[index].dims();
        if !matches!(self.text.weights, WeightKind::Joint | WeightKind::JointRnn) {
            return Ok(());
        }
        let [_, _, f] = self.frames.shape();
        let (e, h) = (dims(0)[0], dims(2)[0]);
        let mut expected = vec![vec![e, h], vec![f, h], vec![h], vec![h, 1], vec![1], vec![h, v], vec![v]];
        if self.text.weights == WeightKind::Joint {
            expected.push(vec![c, e]);
        } else {
            if self.text.context_size.is_none() {
                return Err(PyValueError::new_err(
                    "weight_fn_cacher/rnn_cell: expected a context of the last labels, found a table",
                ));
            }
            let label_width = dims(JOINT_PARAMETERS.len())[1];
            expected.push(vec![v + 1, label_width]);
            expected.extend(std::iter::repeat_n(vec![label_width, e], 4));
            expected.extend(std::iter::repeat_n(vec![e, e], 4));
            expected.extend(std::iter::repeat_n(vec![e], 4));
        }
        let names = self.text.weights.parameters();
        let arrays = names.iter().zip(&expected).zip(&self.parameters);
        arrays
            .into_iter()
            .try_for_each(|((&(name, _), expected), array)| expect_dims(name, expected, array.dims()))
    }

    /// Borrows the elements of the parameters.
    fn weight_arrays<F: LatticeElement>(&self) -> PyResult<WeightArrays<'_, F>> {
        let elements: Vec<&[F]> =
            self.parameters.iter().map(|array| array.elements()).collect::<PyResult<_>>()?;
        let has_rnn = match self.text.weights {
            WeightKind::Table | WeightKind::UtteranceTable => {
                return Ok(WeightArrays::Table { values: elements[0], shape: self.parameters[0].dims() });
            }
            WeightKind::Joint => false,
            WeightKind::JointRnn => true,
        };
        let (joint, cacher) = elements.split_at(JOINT_PARAMETERS.len());
        let (states, vocabulary) = (self.context.states(), self.context.vocabulary());
        let embeddings = if has_rnn {
            let gates = |first: usize| std::array::from_fn(|gate| cacher[first + gate]);
            Embeddings::Rnn(SharedRnn {
                vocabulary,
                order: self.text.context_size.unwrap_or(0),
                embedding: cacher[0],
                input: gates(1),
                recurrent: gates(5),
                bias: gates(9),
            })
        } else {
            Embeddings::Table(cacher[0])
        };
        Ok(WeightArrays::Joint(JointWeightFn {
            embeddings,
            states,
            vocabulary,
            project_context: joint[0],
            project_frame: joint[1],
            joint_bias: joint[2],
            blank_kernel: joint[3],
            blank_bias: joint[4],
            label_kernel: joint[5],
            label_bias: joint[6],
        }))
    }

    /// Calls `work` with the lattice and the batch; the lock of the interpreter is released.
    fn run<F: LatticeElement, T: Send>(
        &self,
        py: Python,
        work: impl FnOnce(
            &mut LatticeSession<F>,
            &RecognitionLattice<F>,
            &Frames<F>,
            Option<&Labels>,
        ) -> ::lattice::Result<T>
        + Send,
    ) -> PyResult<T> {
        let (values, shape) = (self.frames.elements::<F>()?, self.frames.dims());
        let weights = self.weight_arrays::<F>()?;
        let (context, alignment, options) = (&*self.context, self.alignment, self.text.session_options());
        let (num_frames, labels, normalize) = (&self.num_frames[..], &self.labels, self.text.normalize);
        let outcome = py.detach(|| {
            threads::install(|| {
                let frames = Frames::new(values, shape, num_frames)?;
                let labels = labels.as_ref().map(LabelArray::labels).transpose()?;
                let run = |lattice: &RecognitionLattice<F>| {
                    work(&mut LatticeSession::new(options), lattice, &frames, labels.as_ref())
                };
                match weights {
                    WeightArrays::Joint(joint) => with_lattice(context, alignment, joint, normalize, run),
                    WeightArrays::Table { values, shape } => {
                        let table = TableWeightFn::new(values, shape)?;
                        with_lattice(context, alignment, table, normalize, run)
                    }
                }
            })
        })?;
        outcome.map_err(lattice_error)
    }

    /// Returns the gradients of the frames and of the parameters.
    fn gradients<F: LatticeElement>(&self, frames: Vec<F>, mut parameters: Parameters<F>) -> Vec<Array> {
        let names = self.text.weights.parameters();
        let arrays = names.iter().zip(&self.parameters).map(|(&(name, _), array)| {
            // LAST's wrapper of normalized weights has one more level.
            let gradient = match self.text.normalize {
                Some(_) if name.starts_with("weight_fn/") => parameters.remove(&format!("weight_fn/{name}")),
                _ => parameters.remove(name),
            };
            F::array(gradient.expect("the weight function returns each gradient"), array.dims().to_vec())
        });
        let arrays: Vec<Array> = arrays.collect();
        std::iter::once(F::array(frames, self.frames.dims().to_vec())).chain(arrays).collect()
    }
}

/// Calls `run` with the lattice of a weight function.
fn with_lattice<F: LatticeElement, T>(
    context: &dyn Context,
    alignment: AlignmentLattice,
    weights: impl WeightFn<F>,
    normalize: Option<NormalizeName>,
    run: impl FnOnce(&RecognitionLattice<F>) -> ::lattice::Result<T>,
) -> ::lattice::Result<T> {
    let normalize = match normalize {
        None => return run(&RecognitionLattice::new(context, alignment, &weights)?),
        Some(NormalizeName::Hat) => Normalize::Hat,
        Some(NormalizeName::LogSoftmax) => Normalize::LogSoftmax,
    };
    run(&RecognitionLattice::new(context, alignment, &LocallyNormalized::new(weights, normalize))?)
}

/// Sums over paths: losses, or log-sums over all paths or those of the labels.
///
/// Returns the sums, and the gradients of frames and parameters. Losses that are +inf have no
/// gradient.
#[pyfunction]
#[pyo3(signature = (frames, num_frames, labels, num_labels, parameters, next_states, weights, lattice, paths))]
#[expect(clippy::too_many_arguments, reason = "the arguments of the operation in torch")]
pub fn lattice_loss(
    py: Python,
    frames: &Bound<PyAny>,
    num_frames: &Bound<PyAny>,
    labels: Option<&Bound<PyAny>>,
    num_labels: Option<&Bound<PyAny>>,
    parameters: Vec<Bound<PyAny>>,
    next_states: Option<&Bound<PyAny>>,
    weights: Option<&Bound<PyAny>>,
    lattice: &str,
    paths: &str,
) -> PyResult<SumsAndGradients> {
    let sum = match paths {
        "ratio" => PathSum::Loss,
        "all" => PathSum::Denominator,
        "labels" => PathSum::Numerator,
        found => {
            return Err(PyValueError::new_err(format!(
                "paths: expected 'ratio', 'all' or 'labels', found '{found}'"
            )));
        }
    };
    let call = LatticeCall::new(frames, num_frames, labels, num_labels, &parameters, next_states, lattice)?;
    let [batch, _, _] = call.frames.shape();
    let weights =
        weights.map(|weights| read_weights(&Borrowed::new("weights", weights, 1)?, batch)).transpose()?;
    match call.frames.dtype() {
        DLDataType::F32 => sums::<f32>(py, &call, sum, weights),
        DLDataType::F64 => sums::<f64>(py, &call, sum, weights),
        _ => Err(call.frames.dtype_error("float32 or float64")),
    }
}

/// [`lattice_loss`] for one type of elements.
fn sums<F: LatticeElement>(
    py: Python,
    call: &LatticeCall,
    sum: PathSum,
    weights: Option<Vec<f64>>,
) -> PyResult<SumsAndGradients> {
    let alignment = call.alignment;
    let (sums, gradients) = call.run::<F, _>(py, move |session, lattice, frames, labels| {
        let Some(mut weights) = weights else {
            return Ok((session.distances(sum, lattice, frames, labels)?, None));
        };
        if let (PathSum::Loss, Some(labels)) = (sum, labels) {
            // Strings that are too long have no path.
            for (utterance, weight) in weights.iter_mut().enumerate() {
                let label_count = labels.utterance(utterance).map_or(usize::MAX, <[u32]>::len);
                if !alignment.has_path(frames.length(utterance), label_count) {
                    *weight = 0.0;
                }
            }
        }
        let mut output = session.sum_paths(sum, lattice, frames, labels, &weights)?;
        let is_blocked = |(&loss, &weight): (&f64, &f64)| loss == f64::INFINITY && weight != 0.0;
        if sum == PathSum::Loss && output.sums.iter().zip(&weights).any(is_blocked) {
            // Weights of -inf block all paths of some utterances; the others are summed again.
            let pairs = weights.iter_mut().zip(&output.sums);
            pairs.filter(|(_, loss)| **loss == f64::INFINITY).for_each(|(weight, _)| *weight = 0.0);
            output = session.sum_paths(sum, lattice, frames, labels, &weights)?;
        }
        let LatticeOutput { sums, frames, parameters } = output;
        Ok((sums, Some((frames, parameters))))
    })?;
    let gradients =
        gradients.map_or_else(Vec::new, |(frames, parameters)| call.gradients(frames, parameters));
    let shape = vec![sums.len()];
    Ok((f64::array(sums, shape), gradients))
}

/// Best path of each utterance, of all or of the labels.
///
/// Returns labels `[B, L]`, padded with 0, the frame of each label `[B, L]`, padded with -1, the
/// numbers of labels `[B]`, and the weights of the paths `[B]` (float64). L is the largest number
/// of labels in T frames. A path of weight -inf has no labels.
#[pyfunction]
#[pyo3(signature = (frames, num_frames, labels, num_labels, parameters, next_states, lattice))]
#[expect(clippy::too_many_arguments, reason = "the arguments of the operation in torch")]
pub fn lattice_best_paths(
    py: Python,
    frames: &Bound<PyAny>,
    num_frames: &Bound<PyAny>,
    labels: Option<&Bound<PyAny>>,
    num_labels: Option<&Bound<PyAny>>,
    parameters: Vec<Bound<PyAny>>,
    next_states: Option<&Bound<PyAny>>,
    lattice: &str,
) -> PyResult<(Array, Array, Array, Array)> {
    let call = LatticeCall::new(frames, num_frames, labels, num_labels, &parameters, next_states, lattice)?;
    let paths = match call.frames.dtype() {
        DLDataType::F32 => call.run::<f32, _>(py, find_best_paths)?,
        DLDataType::F64 => call.run::<f64, _>(py, find_best_paths)?,
        _ => return Err(call.frames.dtype_error("float32 or float64")),
    };
    let [batch, padded, _] = call.frames.shape();
    let width = padded * call.alignment.expansions().unwrap_or(1);
    let (mut label_rows, mut frame_rows) = (vec![0i64; batch * width], vec![-1i64; batch * width]);
    let mut counts = vec![0i64; batch];
    for (utterance, path) in paths.iter().enumerate().filter(|(_, path)| path.weight > f64::NEG_INFINITY) {
        let (labels, frames) = (path.labels(), path.frames());
        let start = utterance * width;
        label_rows[start..].iter_mut().zip(&labels).for_each(|(out, &label)| *out = label.into());
        frame_rows[start..].iter_mut().zip(&frames).for_each(|(out, &frame)| *out = frame as i64);
        counts[utterance] = labels.len() as i64;
    }
    let weights = paths.iter().map(|path| path.weight).collect();
    Ok((
        i64::array(label_rows, vec![batch, width]),
        i64::array(frame_rows, vec![batch, width]),
        i64::array(counts, vec![batch]),
        f64::array(weights, vec![batch]),
    ))
}

fn find_best_paths<F: LatticeElement>(
    session: &mut LatticeSession<F>,
    lattice: &RecognitionLattice<F>,
    frames: &Frames<F>,
    labels: Option<&Labels>,
) -> ::lattice::Result<Vec<LatticePath>> {
    match labels {
        None => session.best_paths(lattice, frames),
        Some(labels) => session.best_alignments(lattice, frames, labels),
    }
}

/// Posteriors of all arcs: of blanks `[B, T, C]` and of labels `[B, T, C, V]`.
#[pyfunction]
#[pyo3(signature = (frames, num_frames, parameters, next_states, lattice))]
pub fn lattice_marginals(
    py: Python,
    frames: &Bound<PyAny>,
    num_frames: &Bound<PyAny>,
    parameters: Vec<Bound<PyAny>>,
    next_states: Option<&Bound<PyAny>>,
    lattice: &str,
) -> PyResult<(Array, Array)> {
    let call = LatticeCall::new(frames, num_frames, None, None, &parameters, next_states, lattice)?;
    match call.frames.dtype() {
        DLDataType::F32 => marginals::<f32>(py, &call),
        DLDataType::F64 => marginals::<f64>(py, &call),
        _ => Err(call.frames.dtype_error("float32 or float64")),
    }
}

/// [`lattice_marginals`] for one type of elements.
fn marginals<F: LatticeElement>(py: Python, call: &LatticeCall) -> PyResult<(Array, Array)> {
    let (blank, labels) =
        call.run::<F, _>(py, |session, lattice, frames, _| session.marginals(lattice, frames))?;
    let [batch, padded, _] = call.frames.shape();
    let (states, vocabulary) = (call.context.states(), call.context.vocabulary());
    let blank = F::array(blank, vec![batch, padded, states]);
    Ok((blank, F::array(labels, vec![batch, padded, states, vocabulary])))
}

/// Number of states of the context of the last `context_size` labels.
#[pyfunction]
pub fn n_gram_states(vocab_size: usize, context_size: usize) -> PyResult<usize> {
    Ok(n_gram(vocab_size, context_size)?.states())
}

/// States before, between and after labels, in an n-gram context.
#[pyfunction]
pub fn n_gram_walk(
    state: usize,
    labels: Vec<usize>,
    vocab_size: usize,
    context_size: usize,
) -> PyResult<Vec<usize>> {
    let context = n_gram(vocab_size, context_size)?;
    let last = context.states() - 1;
    if state > last {
        return Err(PyValueError::new_err(format!(
            "state: expected a state from 0 to {last}, found {state}"
        )));
    }
    let mut states = vec![state];
    for (position, &label) in labels.iter().enumerate() {
        if label > vocab_size {
            return Err(PyValueError::new_err(format!(
                "labels[{position}]: expected a label from 0 to {vocab_size}, found {label}"
            )));
        }
        states.push(context.next_state(states[position], label));
    }
    Ok(states)
}

/// Next states `[C, V]` of a context whose states are some label histories.
#[pyfunction]
pub fn history_table(vocab_size: usize, histories: Vec<Vec<u32>>) -> PyResult<Vec<Vec<usize>>> {
    if vocab_size == 0 {
        return Err(PyValueError::new_err("vocab_size: expected at least 1 label, found 0"));
    }
    let context = NextStateTable::from_histories(vocab_size, &histories).map_err(|error| match error {
        Error::Label { utterance, position, vocabulary, found } => PyValueError::new_err(format!(
            "histories[{utterance}][{position}]: expected a label from 1 to {vocabulary}, found {found}"
        )),
        error => lattice_error(error),
    })?;
    let next_states = |state| (1..=vocab_size).map(|label| context.next_state(state, label)).collect();
    Ok((0..context.states()).map(next_states).collect())
}

/// Fails unless an array has the expected shape.
fn expect_dims(argument: &str, expected: &[usize], found: &[usize]) -> PyResult<()> {
    if expected == found {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{argument}: expected shape {expected:?}, found {found:?}")))
}
