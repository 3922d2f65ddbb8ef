//! Greedy and beam search of transducers, over exported weights or Python functions.
//!
//! `weights` has models of exported weights, `callbacks` models given as functions, `scorers`
//! language models and phrases.
//!
//! Axes: B utterances, T frames, E width of an encoder row, C classes, D durations.
mod callbacks;
mod scorers;
mod weights;

pub use scorers::LabelScorer;
pub use weights::WeightModel;

use ::decoding::{
    BeamKind, BeamOptions, BeamSearch, Confidence, DecodedToken, DecodingModel, Fusion, GreedyOptions,
    GreedySearch, Hypothesis, RankedHypothesis, unpad,
};
use pyo3::{Bound, IntoPyObject, Py, PyAny, PyErr, PyResult, Python, exceptions::PyValueError, pyfunction};
use rnnt_loss::{Activation, Loss, TokenNormalization, Topology};
use serde::Deserialize;

use crate::{arrays::Borrowed, options::LossOptions, targets::expect_batch, threads};

/// Decodes encoder rows `[B, T, E]` with a model of exported weights.
///
/// Returns the hypotheses of each utterance, best first.
#[pyfunction]
pub fn decode_weights(
    py: Python,
    model: &WeightModel,
    encoder: &Bound<PyAny>,
    lengths: Vec<usize>,
    fusion: Vec<(Py<LabelScorer>, f32)>,
    options: &str,
) -> PyResult<Vec<Vec<HypothesisFields>>> {
    let options = SearchOptions::parse(options)?;
    let encoder = Borrowed::new("encoder", encoder, 3)?;
    let [batch, _, width] = encoder.shape();
    expect_batch("lengths", batch, lengths.len())?;
    if width != model.encoder_width() {
        let expected = model.encoder_width();
        return Err(PyValueError::new_err(format!(
            "encoder: expected rows of {expected} numbers, found {width}"
        )));
    }
    let rows = encoder.elements::<f32>()?;
    let fusion = to_fusion(&fusion);
    let outcome = py.detach(|| {
        threads::install(|| {
            let utterances = unpad(rows, width, &lengths)?;
            let projected = model.project(&utterances)?;
            let frames: Vec<&[f32]> = match &projected {
                Some(projected) => projected.iter().map(Vec::as_slice).collect(),
                None => utterances,
            };
            search(model.model().clone(), &frames, fusion, options)
        })
    })?;
    outcome.map_err(value_error)
}

/// Decodes utterances of `lengths` frames with a model given as Python functions.
///
/// `callbacks` has the methods `predict(labels, states)` and `score(utterances, frames, outputs)`,
/// which the calling thread runs. `start` is output and state row before any label.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "the parts of a model, and of a search")]
pub fn decode_callbacks(
    py: Python,
    callbacks: Py<PyAny>,
    start: (Bound<PyAny>, Bound<PyAny>),
    classes: usize,
    model_options: &str,
    lengths: Vec<usize>,
    fusion: Vec<(Py<LabelScorer>, f32)>,
    options: &str,
) -> PyResult<Vec<Vec<HypothesisFields>>> {
    let options = SearchOptions::parse(options)?;
    let transducer = TransducerOptions::parse(model_options)?;
    let start_output = Borrowed::new("outputs", &start.0, 1)?.elements::<f32>()?.to_vec();
    let start_state = Borrowed::new("states", &start.1, 1)?.elements::<f32>()?.to_vec();
    let fusion = to_fusion(&fusion);
    // The functions read the encoder rows themselves; only the number of frames matters here.
    let rows = vec![0.0; lengths.iter().copied().max().unwrap_or(0)];
    let outcome = py.detach(|| {
        let (model, server) =
            callbacks::new_model(callbacks, start_output, start_state, classes, &transducer)?;
        let frames: Vec<&[f32]> = lengths.iter().map(|&length| &rows[..length]).collect();
        callbacks::search_and_serve(|| search(model, &frames, fusion, options), server)
    })?;
    outcome.map_err(value_error)
}

/// Converts an error of decoding.
fn value_error(error: ::decoding::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns scorers with their weights.
fn to_fusion(fusion: &[(Py<LabelScorer>, f32)]) -> Vec<Fusion> {
    fusion.iter().map(|(scorer, weight)| Fusion { scorer: scorer.get().scorer(), weight: *weight }).collect()
}

/// Blanks, topology and activation of a transducer.
struct TransducerOptions {
    topology: Topology,
    blank: u32,
    big_blanks: Vec<u32>,
    has_factored_blank: bool,
    activation: Activation,
}

impl TransducerOptions {
    /// Reads the options of the loss that the model was trained with.
    ///
    /// # Errors
    /// Invalid options; a loss that is not that of a transducer.
    fn parse(text: &str) -> PyResult<Self> {
        let options = LossOptions::parse(text)?;
        let session_options = options.session_options()?;
        let Some(topology) = session_options.loss.topology().cloned() else {
            return Err(PyValueError::new_err("loss: expected that of a transducer, found 'ctc'"));
        };
        let has_factored_blank = matches!(
            session_options.loss,
            Loss::Transducer { tokens: TokenNormalization::FactoredBlank, .. }
        );
        Ok(Self {
            topology,
            blank: options.blank,
            big_blanks: options.big_blanks,
            has_factored_blank,
            activation: session_options.activation,
        })
    }
}

/// Options of a search, as JSON text.
#[derive(Debug, Deserialize)]
#[serde(tag = "search", rename_all = "lowercase")]
enum SearchOptions {
    Greedy(GreedyFields),
    Beam(BeamFields),
}

/// Fields of [`GreedyOptions`].
#[derive(Debug, Deserialize)]
struct GreedyFields {
    max_symbols: Option<usize>,
    max_labels: Option<usize>,
    look_ahead: usize,
    confidence: Option<Confidence>,
    internal_lm: f32,
}

/// Fields of [`BeamOptions`] and of all [`BeamKind`]s.
#[derive(Debug, Deserialize)]
struct BeamFields {
    kind: String,
    width: usize,
    nbest: usize,
    normalize_by_length: bool,
    blank_penalty: f32,
    temperature: f32,
    internal_lm: f32,
    end_scores: bool,
    max_symbols: usize,
    max_labels: Option<usize>,
    expansions: usize,
    beta: usize,
    /// None keeps all classes.
    gamma: Option<f64>,
    prefix: usize,
}

impl SearchOptions {
    fn parse(text: &str) -> PyResult<Self> {
        serde_json::from_str(text).map_err(|error| PyValueError::new_err(format!("options: {error}")))
    }
}

impl GreedyFields {
    fn into_options(self, fusion: Vec<Fusion>) -> GreedyOptions {
        let Self { max_symbols, max_labels, look_ahead, confidence, internal_lm } = self;
        GreedyOptions {
            max_symbols,
            max_labels,
            look_ahead,
            confidence,
            record_steps: false,
            fusion,
            internal_lm,
        }
    }
}

impl BeamFields {
    fn into_options(self, fusion: Vec<Fusion>) -> BeamOptions {
        let kind = match self.kind.as_str() {
            "alsd" => BeamKind::Alsd { max_labels: self.max_labels },
            "malsd" => BeamKind::Malsd { max_symbols: self.max_symbols },
            "maes" => BeamKind::Maes {
                expansions: self.expansions,
                beta: self.beta,
                gamma: self.gamma.unwrap_or(f64::INFINITY),
                prefix: self.prefix,
            },
            _ => BeamKind::Modified,
        };
        BeamOptions {
            kind,
            width: self.width,
            nbest: self.nbest,
            normalize_by_length: self.normalize_by_length,
            blank_penalty: self.blank_penalty,
            temperature: self.temperature,
            fusion,
            internal_lm: self.internal_lm,
            end_scores: self.end_scores,
        }
    }
}

/// Searches all utterances; returns the hypotheses of each, best first.
fn search(
    model: DecodingModel,
    frames: &[&[f32]],
    fusion: Vec<Fusion>,
    options: SearchOptions,
) -> ::decoding::Result<Vec<Vec<HypothesisFields>>> {
    match options {
        SearchOptions::Greedy(fields) => {
            let mut search = GreedySearch::new(model, fields.into_options(fusion))?;
            let hypotheses = search.decode(frames)?;
            Ok(hypotheses.iter().map(|hypothesis| vec![HypothesisFields::from_greedy(&hypothesis)]).collect())
        }
        SearchOptions::Beam(fields) => {
            let mut search = BeamSearch::new(model, fields.into_options(fusion))?;
            let results = search.decode(frames)?.iter();
            Ok(results
                .map(|nbest| nbest.hypotheses.iter().map(HypothesisFields::from_beam).collect())
                .collect())
        }
    }
}

/// A hypothesis, in Python a dictionary; lists have one entry for each label.
#[derive(IntoPyObject)]
pub struct HypothesisFields {
    labels: Vec<u32>,
    frames: Vec<usize>,
    durations: Vec<usize>,
    log_probs: Vec<f64>,
    duration_log_probs: Vec<f64>,
    fusion_scores: Vec<f32>,
    confidences: Vec<f64>,
    log_prob: f64,
    score: f64,
    end_frame: usize,
    is_capped: bool,
}

impl HypothesisFields {
    fn from_greedy(hypothesis: &Hypothesis) -> Self {
        let score = hypothesis.score();
        let fields = Self::from_labels(&hypothesis.labels, score, score);
        Self { end_frame: hypothesis.end_frame, is_capped: hypothesis.is_capped, ..fields }
    }

    fn from_beam(hypothesis: &RankedHypothesis) -> Self {
        Self::from_labels(&hypothesis.labels, hypothesis.log_prob, hypothesis.score)
    }

    fn from_labels(labels: &[DecodedToken], log_prob: f64, score: f64) -> Self {
        Self {
            labels: labels.iter().map(|token| token.label).collect(),
            frames: labels.iter().map(|token| token.frame).collect(),
            durations: labels.iter().map(|token| token.duration).collect(),
            log_probs: labels.iter().map(|token| token.log_prob).collect(),
            duration_log_probs: labels.iter().map(|token| token.duration_log_prob).collect(),
            fusion_scores: labels.iter().map(|token| token.fused).collect(),
            confidences: labels.iter().map(|token| token.confidence).collect(),
            log_prob,
            score,
            end_frame: 0,
            is_capped: false,
        }
    }
}
