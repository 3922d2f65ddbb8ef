//! Models given as Python functions.
//!
//! A search over them runs in a separate thread and sends requests; the calling thread attaches
//! to the interpreter for each one and replies. Functions thus have the thread's state (gradient
//! modes, context variables, locks), and no thread of the shared pool waits for the interpreter.
//! After an exception, scores are NaN, which ends the search.
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
    mpsc::{Receiver, Sender, channel},
};

use ::decoding::{
    DecodingModel, JointScorer, NetworkScratch, Predictor, SiteBatch, StateShape, States, factor_blank,
};
use pyo3::{
    Py, PyAny, PyErr, PyResult, Python,
    exceptions::{PyRuntimeError, PyValueError},
    types::PyAnyMethods,
};
use rayon::ThreadPoolBuilder;

use super::{TransducerOptions, value_error};
use crate::arrays::{ArrayElement, Borrowed};

/// A call of a Python function.
enum Request {
    /// A predictor step: labels `[n]` and states *n x S*.
    Predict { labels: Vec<i64>, states: Vec<f32> },
    /// Scores of sites: their utterances and frames `[n]`, predictor outputs *n x P*.
    Score { utterances: Vec<i64>, frames: Vec<i64>, outputs: Vec<f32> },
}

/// Results of a call, outputs and states or only scores; none after an exception.
type Reply = Option<Vec<Vec<f32>>>;

/// The search's side of the connection to the calling thread.
struct Connection {
    requests: Sender<Request>,
    replies: Mutex<Receiver<Reply>>,
    /// False before the search, and after an exception.
    is_open: AtomicBool,
}

impl Connection {
    /// Requests a call; none if the connection is closed.
    fn call(&self, request: Request) -> Reply {
        if !self.is_open.load(Ordering::Acquire) {
            return None;
        }
        let replies = self.replies.lock().unwrap_or_else(PoisonError::into_inner);
        let reply = match self.requests.send(request) {
            Ok(()) => replies.recv().ok().flatten(),
            Err(_) => None,
        };
        if reply.is_none() {
            self.is_open.store(false, Ordering::Release);
        }
        reply
    }
}

/// A predictor given as a function.
struct CallbackPredictor {
    connection: Arc<Connection>,
    start: (States, Vec<f32>),
    label_ids: usize,
}

impl Predictor for CallbackPredictor {
    fn width(&self) -> usize {
        self.start.1.len()
    }

    fn label_ids(&self) -> usize {
        self.label_ids
    }

    fn start(&self) -> (States, Vec<f32>) {
        self.start.clone()
    }

    fn shape(&self) -> StateShape {
        self.start.0.shape()
    }

    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], _: &mut NetworkScratch) {
        let labels = labels.iter().map(|&label| label.into()).collect();
        match self.connection.call(Request::Predict { labels, states: states.values().to_vec() }).as_deref() {
            Some([outputs, new_states]) => {
                out.copy_from_slice(outputs);
                states.values_mut().copy_from_slice(new_states);
            }
            _ => out.fill(0.0),
        }
    }
}

/// A joint network given as a function; a label row is a row of the predictor's output.
struct CallbackJoint {
    connection: Arc<Connection>,
    /// Width P of the predictor's output.
    output_width: usize,
    classes: usize,
    durations: usize,
    factored_blank: Option<u32>,
}

impl JointScorer for CallbackJoint {
    /// Frame rows are placeholders: the function reads the frames by their index.
    fn frame_width(&self) -> usize {
        1
    }

    fn prediction_width(&self) -> usize {
        self.output_width
    }

    fn label_row_width(&self) -> usize {
        self.output_width
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn durations(&self) -> usize {
        self.durations
    }

    fn project(&self, predicted: &[f32], rows: &mut [f32], _: &mut NetworkScratch) {
        rows.copy_from_slice(predicted);
    }

    fn scores(&self, sites: &SiteBatch, out: &mut [f32], _: &mut NetworkScratch) {
        let width = self.output_width;
        let output = |label_row: usize| &sites.label_rows[label_row * width..][..width];
        let request = Request::Score {
            utterances: sites.sites.iter().map(|site| site.utterance as i64).collect(),
            frames: sites.sites.iter().map(|site| site.frame as i64).collect(),
            outputs: sites.sites.iter().flat_map(|site| output(site.label_row)).copied().collect(),
        };
        match self.connection.call(request).as_deref() {
            Some([scores]) => out.copy_from_slice(scores),
            _ => out.fill(f32::NAN),
        }
        if let Some(blank) = self.factored_blank {
            let rows = out.chunks_exact_mut(self.classes + self.durations);
            rows.for_each(|row| factor_blank(&mut row[..self.classes], blank));
        }
    }
}

/// The calling thread's side of the connection.
pub struct Server {
    callbacks: Py<PyAny>,
    requests: Receiver<Request>,
    replies: Sender<Reply>,
    /// Widths of outputs, states and scores.
    widths: [usize; 3],
}

/// Creates a model of functions, and the server that calls them.
///
/// # Errors
/// Those of [`DecodingModel::new`].
pub fn new_model(
    callbacks: Py<PyAny>,
    start_output: Vec<f32>,
    start_state: Vec<f32>,
    classes: usize,
    options: &TransducerOptions,
) -> PyResult<(DecodingModel, Server)> {
    let durations = options.topology.num_durations();
    let widths = [start_output.len(), start_state.len(), classes + durations];
    let (requests, incoming_requests) = channel();
    let (replies, incoming_replies) = channel();
    let is_open = AtomicBool::new(false);
    let connection = Arc::new(Connection { requests, replies: Mutex::new(incoming_replies), is_open });
    let predictor = CallbackPredictor {
        connection: connection.clone(),
        start: (States::from_row(Vec::new(), start_state), start_output),
        label_ids: classes,
    };
    let joint = CallbackJoint {
        connection: connection.clone(),
        output_width: widths[0],
        classes,
        durations,
        factored_blank: options.has_factored_blank.then_some(options.blank),
    };
    let TransducerOptions { blank, big_blanks, topology, .. } = options;
    // The connection is closed while the model evaluates itself for its fingerprint.
    let model = DecodingModel::new(Arc::new(predictor), Arc::new(joint), *blank, big_blanks, topology);
    connection.is_open.store(true, Ordering::Release);
    let server = Server { callbacks, requests: incoming_requests, replies, widths };
    Ok((model.map_err(value_error)?, server))
}

/// Runs a search in another thread, its functions in this one.
///
/// `search` owns the model: the server ends when the model is dropped.
///
/// # Errors
/// The exception of a function.
pub fn search_and_serve<T: Send>(search: impl FnOnce() -> T + Send, server: Server) -> PyResult<T> {
    // The parallel loops of the search need a pool; their work is small next to the functions.
    let pool = ThreadPoolBuilder::new().num_threads(1).thread_name(|_| "panda-search".to_owned()).build();
    let pool = pool.map_err(|error| PyRuntimeError::new_err(format!("threads: {error}")))?;
    let mut result = None;
    let served = pool.in_place_scope(|scope| {
        scope.spawn(|_| result = Some(search()));
        server.serve()
    });
    served?;
    result.ok_or_else(|| PyRuntimeError::new_err("search: expected a result, found none"))
}

impl Server {
    /// Calls functions until the search ends; returns the first exception.
    fn serve(self) -> PyResult<()> {
        let mut outcome = Ok(());
        for request in &self.requests {
            let reply = match Python::attach(|py| self.call(py, request)) {
                Ok(values) => Some(values),
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    None
                }
            };
            // The search may have panicked; the scope then resumes its panic.
            if self.replies.send(reply).is_err() {
                break;
            }
        }
        outcome
    }

    fn call(&self, py: Python, request: Request) -> PyResult<Vec<Vec<f32>>> {
        let callbacks = self.callbacks.bind(py);
        let [output_width, state_width, score_width] = self.widths;
        match request {
            Request::Predict { labels, states } => {
                let count = labels.len();
                let labels = i64::array(labels, vec![count]);
                let states = f32::array(states, vec![count, state_width]);
                let results = callbacks.call_method1("predict", (labels, states))?;
                let (outputs, states) = results.extract::<(Py<PyAny>, Py<PyAny>)>()?;
                Ok(vec![
                    read_rows("outputs", outputs.bind(py), [count, output_width])?,
                    read_rows("states", states.bind(py), [count, state_width])?,
                ])
            }
            Request::Score { utterances, frames, outputs } => {
                let count = utterances.len();
                let utterances = i64::array(utterances, vec![count]);
                let frames = i64::array(frames, vec![count]);
                let outputs = f32::array(outputs, vec![count, output_width]);
                let scores = callbacks.call_method1("score", (utterances, frames, outputs))?;
                Ok(vec![read_rows("scores", &scores, [count, score_width])?])
            }
        }
    }
}

/// Copies rows of a shape.
fn read_rows(
    argument: &'static str,
    rows: &pyo3::Bound<PyAny>,
    expected: [usize; 2],
) -> Result<Vec<f32>, PyErr> {
    let rows = Borrowed::new(argument, rows, 2)?;
    let shape: [usize; 2] = rows.shape();
    if shape != expected {
        return Err(PyValueError::new_err(format!(
            "{argument}: expected an array of shape {expected:?}, found {shape:?}"
        )));
    }
    Ok(rows.elements::<f32>()?.to_vec())
}
