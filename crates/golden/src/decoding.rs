//! Golden test of decoders: compares hypotheses with other programs' for equal weights.
//!
//! A case has the weights of a small transducer, encoder outputs, and the expected hypotheses of
//! greedy search, streaming, beam search and forced alignment. `searches` runs the decoders.
mod searches;

use std::path::{Path, PathBuf};

use decoding::{DecodingModel, DecodingModelConfig, JointNetwork};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::sync::Arc;

use super::error::{Error, Result};

/// Tolerance of scores: absolute below 1, relative above. Labels and times must be equal.
const SCORE_TOLERANCE: f64 = 1e-4;
/// Tolerance of scores summed over a hypothesis.
const SUM_TOLERANCE: f64 = 1e-3;

/// JSON file of a case: sizes of the model, lengths, and expected results.
#[derive(Debug, Deserialize)]
struct Sidecar {
    model: DecodingModelConfig,
    lengths: Vec<usize>,
    decodes: Vec<DecoderSpec>,
}

/// A decoder with its options, and the expected hypotheses of each utterance.
#[derive(Debug, Deserialize)]
struct DecoderSpec {
    id: String,
    #[serde(flatten)]
    kind: DecoderKind,
}

/// Kind of a decoder, its options and the expected hypotheses.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum DecoderKind {
    Greedy {
        max_symbols: Option<usize>,
        utterances: Vec<ExpectedGreedy>,
    },
    GreedyLmFusion {
        max_symbols: Option<usize>,
        alpha: f32,
        utterances: Vec<ExpectedGreedy>,
    },
    ChunkedGreedy {
        max_symbols: Option<usize>,
        chunk: usize,
        utterances: Vec<Vec<ExpectedChunk>>,
    },
    ForcedAlignment {
        utterances: Vec<Option<ExpectedAlignment>>,
    },
    ModifiedBeam {
        beam: usize,
        blank_penalty: f32,
        temperature: f32,
        utterances: Vec<Vec<ExpectedNBestEntry>>,
    },
    #[serde(other)]
    Unknown,
}

/// Expected hypothesis of greedy search.
#[derive(Debug, Deserialize)]
struct ExpectedGreedy {
    tokens: Vec<u32>,
    timestamps: Vec<usize>,
    token_logp: Vec<f64>,
    token_logit: Vec<f64>,
    score_logit_sum: f64,
    score_logp_sum: f64,
    joint_steps: usize,
    #[serde(default)]
    durations: Option<Vec<usize>>,
    #[serde(default)]
    duration_logp: Vec<f64>,
    #[serde(default)]
    end_time: Option<usize>,
    /// Frame, class, log-probability and, with durations, number of frames to advance.
    #[serde(default)]
    steps: Vec<Vec<f64>>,
    /// Confidences of each measure.
    #[serde(default)]
    confidence: std::collections::BTreeMap<String, Vec<f64>>,
}

/// Expected labels of a chunk of a stream.
#[derive(Debug, Deserialize)]
struct ExpectedChunk {
    tokens: Vec<u32>,
    timestamps: Vec<usize>,
    time_jump: usize,
}

/// Expected hypothesis of an n-best list.
#[derive(Debug, Deserialize)]
struct ExpectedNBestEntry {
    tokens: Vec<u32>,
    timestamps: Vec<usize>,
    log_prob: f64,
    norm_score: f64,
}

/// Expected forced alignment of an utterance.
#[derive(Debug, Deserialize)]
struct ExpectedAlignment {
    labels: Vec<u32>,
    total_logp: f64,
    best_logp: f64,
    timestamps: Vec<usize>,
    path_stable_in_f32: bool,
}

/// A golden case of decoding.
pub(super) struct DecodingCase {
    pub name: String,
    path: PathBuf,
    sidecar: Sidecar,
    bytes: Vec<u8>,
    model: DecodingModel,
    network: Arc<JointNetwork>,
    /// Projected frames `[B, T, H]`.
    frames: Vec<f32>,
}

/// Result of one decoder.
pub(super) struct DecodeResult {
    pub id: String,
    pub kind: &'static str,
    /// Largest error of a score: absolute below 1, relative above.
    pub max_error: f64,
    /// First failure.
    pub failure: Option<String>,
}

impl DecodingCase {
    /// Reads the file `tensors`.
    ///
    /// `value` is the content of the sidecar `json`, the JSON file of the same name.
    pub(crate) fn read(json: &Path, tensors: &Path, name: &str, value: serde_json::Value) -> Result<Self> {
        let sidecar: Sidecar =
            serde_json::from_value(value).map_err(|source| Error::Sidecar { path: json.into(), source })?;
        let bytes = speech::files::read_regular(tensors)
            .map_err(|source| Error::File { path: tensors.into(), source })?;
        let case_error = |argument: &str, expected: &str, found: String| Error::Case {
            path: tensors.into(),
            argument: argument.into(),
            expected: expected.into(),
            found,
        };
        let model = DecodingModel::from_safetensors(&bytes, &sidecar.model);
        let (model, network) = model.map_err(|error| {
            case_error("model", "weights that fit the sidecar's model", error.to_string())
        })?;
        let encoder_outputs =
            read_f32(&bytes, "enc").ok_or_else(|| case_error("enc", "a tensor of f32", "none".into()))?;
        let frames = network
            .project_frames(&encoder_outputs)
            .map_err(|error| case_error("enc", "whole rows of the encoder's width", error.to_string()))?;
        decoding::unpad(&frames, model.frame_width(), &sidecar.lengths)
            .map_err(|error| case_error("enc", "rows for the lengths of the sidecar", error.to_string()))?;
        Ok(Self { name: name.into(), path: tensors.into(), sidecar, bytes, model, network, frames })
    }

    /// Returns a tensor by its name.
    fn read_f32(&self, name: &str) -> Result<Vec<f32>> {
        read_f32(&self.bytes, name).ok_or_else(|| Error::Case {
            path: self.path.clone(),
            argument: name.into(),
            expected: "a tensor of f32".into(),
            found: "none".into(),
        })
    }

    /// Runs the decoders of the case; returns their results and the ids of unknown kinds.
    pub(crate) fn run(&self) -> Result<(Vec<DecodeResult>, Vec<String>)> {
        let (mut results, mut unknown_ids) = (Vec::new(), Vec::new());
        for decoder in &self.sidecar.decodes {
            let mut check = DecodingCheck::default();
            let kind = match &decoder.kind {
                DecoderKind::Greedy { max_symbols, utterances } => {
                    searches::check_greedy(self, *max_symbols, utterances, &mut check);
                    "greedy"
                }
                DecoderKind::GreedyLmFusion { max_symbols, alpha, utterances } => {
                    searches::check_greedy_with_lm(self, *max_symbols, *alpha, utterances, &mut check)?;
                    "greedy_lm_fusion"
                }
                DecoderKind::ChunkedGreedy { max_symbols, chunk, utterances } => {
                    searches::check_chunked_greedy(self, *max_symbols, *chunk, utterances, &mut check);
                    "chunked_greedy"
                }
                DecoderKind::ForcedAlignment { utterances } => {
                    searches::check_forced_alignment(self, utterances, &mut check)?;
                    "forced_alignment"
                }
                DecoderKind::ModifiedBeam { beam, blank_penalty, temperature, utterances } => {
                    let options = decoding::BeamOptions {
                        width: *beam,
                        nbest: *beam,
                        blank_penalty: *blank_penalty,
                        temperature: *temperature,
                        ..decoding::BeamOptions::default()
                    };
                    searches::check_modified_beam(self, options, utterances, &mut check);
                    "modified_beam"
                }
                DecoderKind::Unknown => {
                    unknown_ids.push(format!("{} {}", self.name, decoder.id));
                    continue;
                }
            };
            results.push(DecodeResult {
                id: decoder.id.clone(),
                kind,
                max_error: check.max_error,
                failure: check.failure,
            });
        }
        Ok((results, unknown_ids))
    }
}

/// Returns an f32 tensor of a safetensors file; none if missing.
fn read_f32(bytes: &[u8], name: &str) -> Option<Vec<f32>> {
    let file = SafeTensors::deserialize(bytes).ok()?;
    let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
    Some(view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
}

/// Collects the largest error and the first failure.
#[derive(Default)]
struct DecodingCheck {
    max_error: f64,
    failure: Option<String>,
    location: String,
}

impl DecodingCheck {
    /// Sets the utterance or hypothesis that the next failures are about.
    fn set_location(&mut self, location: String) {
        self.location = location;
    }

    fn fail(&mut self, name: &str, message: String) {
        if self.failure.is_none() {
            self.failure = Some(format!("{} {name}: {message}", self.location));
        }
    }

    fn expect_equal<T: PartialEq + std::fmt::Debug>(&mut self, name: &str, actual: T, expected: T) {
        if actual != expected {
            self.fail(name, format!("expected {expected:?}, found {actual:?}"));
        }
    }

    fn expect_close(
        &mut self,
        name: &str,
        actual: impl IntoIterator<Item = f64>,
        expected: &[f64],
        tolerance: f64,
    ) {
        let actual: Vec<f64> = actual.into_iter().collect();
        if actual.len() != expected.len() {
            return self.fail(name, format!("expected {} values, found {}", expected.len(), actual.len()));
        }
        for (index, (&actual, &expected)) in actual.iter().zip(expected).enumerate() {
            let error = (actual - expected).abs() / expected.abs().max(1.0);
            // `max` ignores NaN.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            self.max_error = self.max_error.max(error);
            if error > tolerance {
                self.fail(name, format!("[{index}]: expected {expected}, found {actual}"));
            }
        }
    }

    /// Returns the value of a result, or fails with its error.
    fn expect_ok<T>(&mut self, result: std::result::Result<T, impl std::fmt::Display>) -> Option<T> {
        result.map_err(|error| self.fail("error", error.to_string())).ok()
    }
}
