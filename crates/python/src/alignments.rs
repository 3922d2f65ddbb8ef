//! Alignments and posteriors of padded batches: which frame emits each label.
//!
//! Regularizers are off, so that probabilities are those of the model. Utterances are processed one
//! at a time; memory in addition to the results does not grow with the batch.
use dlpark::ffi::DLDataType;
use pyo3::{Bound, PyResult, Python, exceptions::PyValueError, pyfunction, types::PyDict};
use rnnt_dp::{Regularizers, Topology, ctc};
use rnnt_loss::{DEFAULT_BUDGET, Error, Inputs, Options, PendingLoss, Session, Targets};

use crate::{
    arrays::ArrayElement,
    inputs::{Arguments, InputArrays, LossElement, NamedArrays, utterance_inputs},
    losses::vector,
    options::{LossOptions, value_error},
    threads,
};

/// Returns the best path of each utterance, label by label.
///
/// `arguments` are those of `loss`, without weights and a simple joiner. The result has `frames`
/// (-1 in padding and without a path), `durations`, `log_probs` and `confidences` `[B, U]`;
/// `scores`, log-probabilities of the paths, and `losses` `[B]`.
#[pyfunction]
pub fn align(py: Python, arguments: &Bound<PyDict>, options: &str) -> PyResult<NamedArrays> {
    let call = Call::new(arguments, options)?;
    match call.inputs.dtype() {
        DLDataType::F32 => call.align::<f32>(py),
        DLDataType::F64 => call.align::<f64>(py),
        _ => Err(call.inputs.dtype_error()),
    }
}

/// Returns the posteriors of the emission columns of each site.
///
/// `arguments` are those of [`align`]. The result has `posteriors` `[B, T, U+1, S]` with the
/// columns blank, next label, then big blanks or durations, and `losses` `[B]`. For CTC
/// `posteriors` are `[B, T, U+1]`: the blank, then the labels.
#[pyfunction]
pub fn posteriors(py: Python, arguments: &Bound<PyDict>, options: &str) -> PyResult<NamedArrays> {
    let call = Call::new(arguments, options)?;
    match call.inputs.dtype() {
        DLDataType::F32 => call.posteriors::<f32>(py),
        DLDataType::F64 => call.posteriors::<f64>(py),
        _ => Err(call.inputs.dtype_error()),
    }
}

/// A checked call.
struct Call {
    inputs: InputArrays,
    targets: Targets,
    options: Options,
    big_blanks: Vec<u32>,
    /// Number of labels of the padded targets.
    max_labels: usize,
}

/// A label of the best path.
struct LabelStep {
    frame: usize,
    duration: usize,
    log_prob: f64,
    confidence: f64,
}

/// The best path of an utterance; without labels if there is none.
struct BestPath {
    labels: Vec<LabelStep>,
    score: f64,
}

impl Call {
    fn new(arguments: &Bound<PyDict>, options: &str) -> PyResult<Self> {
        let (options, arguments) =
            (LossOptions::parse(options)?.without_regularization(), Arguments(arguments));
        if options.is_pruned() {
            return Err(PyValueError::new_err(
                "loss: expected a loss over all sites, such as 'rnnt', found 'pruned'",
            ));
        }
        let inputs = InputArrays::new(&arguments, &options)?;
        let targets = arguments.targets(&inputs.sizes, &options)?;
        let max_labels = arguments.max_labels()?;
        let big_blanks = options.big_blanks.clone();
        let options = options.session_options()?;
        // Without kept scores, only a budget below the default limits the blocking; others must not
        // fail for a long utterance.
        let budget = if options.budget < DEFAULT_BUDGET { options.budget } else { usize::MAX };
        let options = Options { budget, keep_scores: false, ..options };
        Ok(Self { inputs, targets, options, big_blanks, max_labels })
    }

    fn align<F: LossElement>(&self, py: Python) -> PyResult<NamedArrays> {
        let batch = self.targets.batch();
        let shape = || vec![batch, self.max_labels];
        let entries = batch * self.max_labels;
        let (mut frames, mut durations) = (vec![-1i64; entries], vec![0i64; entries]);
        let (mut log_probs, mut confidences) = (vec![0.0; entries], vec![0.0; entries]);
        let mut scores = Vec::with_capacity(batch);
        let (topology, max_labels) = (self.options.loss.topology(), self.max_labels);
        let losses = self.for_each_utterance(py, |utterance, pending: &PendingLoss<F>, targets| {
            let path = match topology {
                Some(topology) => best_path(topology, pending, targets)?,
                None => ctc_best_path(targets.labels(0), &ctc_emissions(pending, targets))?,
            };
            scores.push(path.score);
            for (position, step) in path.labels.iter().enumerate() {
                let entry = utterance * max_labels + position;
                (frames[entry], durations[entry]) = (step.frame as i64, step.duration as i64);
                (log_probs[entry], confidences[entry]) = (step.log_prob, step.confidence);
            }
            Ok(())
        })?;
        Ok(NamedArrays::from([
            ("frames", i64::array(frames, shape())),
            ("durations", i64::array(durations, shape())),
            ("log_probs", f64::array(log_probs, shape())),
            ("confidences", f64::array(confidences, shape())),
            ("scores", vector(scores)),
            ("losses", vector(losses)),
        ]))
    }

    fn posteriors<F: LossElement>(&self, py: Python) -> PyResult<NamedArrays> {
        let (batch, frames) = (self.targets.batch(), self.inputs.sizes.frames);
        let columns = self.options.loss.topology().map(Topology::num_columns);
        let positions = self.inputs.sizes.positions.unwrap_or(self.max_labels + 1);
        let width = columns.unwrap_or(1);
        let mut posteriors = vec![0.0; batch * frames * positions * width];
        let size = frames * positions * width;
        let losses = self.for_each_utterance(py, |utterance, pending: &PendingLoss<F>, targets| {
            let out = &mut posteriors[utterance * size..][..size];
            let columns_per_frame = (targets.labels(0).len() + 1) * width;
            let ctc_adjoints;
            let adjoints: &[f64] = match columns {
                Some(_) => pending.adjoints(),
                None => {
                    let (labels, emissions) = (targets.labels(0), ctc_emissions(pending, targets));
                    ctc_adjoints = ctc::forward_backward(labels, &emissions, &Regularizers::default())?;
                    &ctc_adjoints.adjoints
                }
            };
            // Rounding may lift a posterior slightly above 1.
            let posterior = |adjoint: &f64| (0.0 - adjoint).min(1.0);
            let rows = out.chunks_exact_mut(positions * width).zip(adjoints.chunks_exact(columns_per_frame));
            for (row, adjoints) in rows {
                row.iter_mut().zip(adjoints).for_each(|(out, adjoint)| *out = posterior(adjoint));
            }
            Ok(())
        })?;
        let shape = [Some(batch), Some(frames), Some(positions), columns].into_iter().flatten().collect();
        Ok(NamedArrays::from([("posteriors", f64::array(posteriors, shape)), ("losses", vector(losses))]))
    }

    /// Visits each utterance with its forward pass; returns the losses.
    ///
    /// The lock of the interpreter is released.
    fn for_each_utterance<F: LossElement>(
        &self,
        py: Python,
        mut visit: impl FnMut(usize, &PendingLoss<F>, &Targets) -> rnnt_loss::Result<()> + Send,
    ) -> PyResult<Vec<f64>> {
        let batch = self.targets.batch();
        let inputs: Inputs<F> = self.inputs.inputs(self.inputs.sizes.layout(&self.targets))?;
        let (all_targets, big_blanks, options) = (&self.targets, &self.big_blanks, &self.options);
        let outcome = py.detach(|| {
            threads::install(|| {
                let (mut session, mut losses) = (Session::<F>::new(options)?, Vec::with_capacity(batch));
                for utterance in 0..batch {
                    let (frames, labels) =
                        (all_targets.frames(utterance), all_targets.labels(utterance).to_vec());
                    let targets = Targets::new(all_targets.blank(), vec![frames], vec![labels])?
                        .with_big_blanks(big_blanks.clone())?;
                    let mut run = || {
                        let pending =
                            session.forward(utterance_inputs(&inputs, batch, utterance), &targets)?;
                        losses.push(pending.losses()[0]);
                        visit(utterance, &pending, &targets)
                    };
                    run().map_err(|error| in_utterance(error, utterance))?;
                }
                Ok(losses)
            })
        })?;
        outcome.map_err(value_error)
    }
}

/// Returns the best path of a batch of one utterance.
fn best_path<F: LossElement>(
    topology: &Topology,
    pending: &PendingLoss<F>,
    targets: &Targets,
) -> rnnt_loss::Result<BestPath> {
    let lattices = targets.lattices();
    let paths = rnnt_dp::best_path(lattices, topology, &pending.emissions())?;
    let confidences = rnnt_dp::confidences(lattices, topology, pending.adjoints(), &paths)?;
    let steps = paths[0].label_steps(topology).zip(&confidences[0]);
    let labels = steps.map(|(step, &confidence)| LabelStep {
        frame: step.site.frame,
        duration: topology.arcs()[step.arc].frames,
        log_prob: step.log_prob,
        confidence,
    });
    Ok(BestPath { labels: labels.collect(), score: paths[0].log_prob })
}

/// Returns the best CTC path: a label's duration is the number of its frames.
fn ctc_best_path(labels: &[u32], emissions: &[f64]) -> rnnt_loss::Result<BestPath> {
    let path = ctc::best_path(labels, emissions, ctc::TieBreak::Late)?;
    let confidences = ctc::confidences(labels, emissions, &path)?;
    let width = labels.len() + 1;
    let steps = path.spans().into_iter().zip(confidences).enumerate();
    let labels = steps.map(|(position, (span, confidence))| LabelStep {
        frame: *span.start(),
        duration: span.clone().count(),
        log_prob: span.map(|frame| emissions[frame * width + position + 1]).sum(),
        confidence,
    });
    Ok(BestPath { labels: labels.collect(), score: path.log_prob })
}

/// Emissions of CTC, *T x (U+1)*: the blank and each label.
///
/// A session has a column for each distinct label, in ascending order.
fn ctc_emissions<F: LossElement>(pending: &PendingLoss<F>, targets: &Targets) -> Vec<f64> {
    let labels = targets.labels(0);
    let mut classes = labels.to_vec();
    classes.sort_unstable();
    classes.dedup();
    let columns: Vec<usize> =
        labels.iter().map(|label| 1 + classes.partition_point(|class| class < label)).collect();
    let emissions = pending.emissions();
    let rows = emissions.chunks_exact(classes.len() + 1);
    rows.flat_map(|row| std::iter::once(row[0]).chain(columns.iter().map(|&column| row[column]))).collect()
}

/// Converts the utterance index of an error in a batch of one.
fn in_utterance(mut error: Error, index: usize) -> Error {
    match &mut error {
        Error::Scores { utterance, .. }
        | Error::Frame { utterance, .. }
        | Error::Lattice(
            rnnt_dp::Error::Emission { utterance, .. } | rnnt_dp::Error::Overflow { utterance, .. },
        ) => *utterance += index,
        _ => {}
    }
    error
}
