//! Golden cases of decoding: what other programs recognise with the same weights.
mod searches;

use std::path::{Path, PathBuf};

use decoding::{DecodingModel, DecodingModelConfig, JointNetwork};
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use std::sync::Arc;

use super::error::{Error, Result};

/// Scores may be off by so much, absolutely or relatively; sums of them by ten times as much. Labels and times must be the same.
const SCORES: f64 = 1e-4;
const SUMS: f64 = 1e-3;

/// The sidecar of a case.
#[derive(Debug, Deserialize)]
struct Sidecar {
    model: DecodingModelConfig,
    lengths: Vec<usize>,
    decodes: Vec<Decode>,
}

/// One way to decode the case, and what came out for each utterance.
#[derive(Debug, Deserialize)]
struct Decode {
    id: String,
    #[serde(flatten)]
    kind: DecodeKind,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum DecodeKind {
    Greedy {
        max_symbols: Option<usize>,
        utterances: Vec<GreedyCase>,
    },
    GreedyLmFusion {
        max_symbols: Option<usize>,
        alpha: f32,
        utterances: Vec<GreedyCase>,
    },
    ChunkedGreedy {
        max_symbols: Option<usize>,
        chunk: usize,
        utterances: Vec<Vec<Chunk>>,
    },
    ForcedAlignment {
        utterances: Vec<Option<AlignedCase>>,
    },
    ModifiedBeam {
        beam: usize,
        blank_penalty: f32,
        temperature: f32,
        utterances: Vec<Vec<RankedCase>>,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Deserialize)]
struct GreedyCase {
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
    /// Frame, class, log-probability and, with durations, frames that it moved on.
    #[serde(default)]
    steps: Vec<Vec<f64>>,
    /// Of each measure.
    #[serde(default)]
    confidence: std::collections::BTreeMap<String, Vec<f64>>,
}

#[derive(Debug, Deserialize)]
struct Chunk {
    tokens: Vec<u32>,
    timestamps: Vec<usize>,
    time_jump: usize,
}

/// One of the n best.
#[derive(Debug, Deserialize)]
struct RankedCase {
    tokens: Vec<u32>,
    timestamps: Vec<usize>,
    log_prob: f64,
    norm_score: f64,
}

#[derive(Debug, Deserialize)]
struct AlignedCase {
    labels: Vec<u32>,
    total_logp: f64,
    best_logp: f64,
    timestamps: Vec<usize>,
    path_stable_in_f32: bool,
}

/// A case as it lies on disk.
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

/// The outcome of one decode.
pub(super) struct DecodeLine {
    pub id: String,
    pub kind: &'static str,
    /// Largest error of a score, relative where the score is above 1.
    pub worst: f64,
    /// What is wrong, if anything.
    pub failure: Option<String>,
}

impl DecodingCase {
    /// Reads a case from its sidecar's value; the tensors lie beside it.
    pub fn read(json: &Path, tensors: &Path, name: &str, value: serde_json::Value) -> Result<Self> {
        let sidecar: Sidecar =
            serde_json::from_value(value).map_err(|source| Error::Sidecar { path: json.into(), source })?;
        let bytes = speech::files::read_regular(tensors)
            .map_err(|source| Error::File { path: tensors.into(), source })?;
        let wrong = |argument: &str, expected: &str, found: String| Error::Case {
            path: tensors.into(),
            argument: argument.into(),
            expected: expected.into(),
            found,
        };
        let model = DecodingModel::from_safetensors(&bytes, &sidecar.model);
        let (model, network) = model
            .map_err(|error| wrong("model", "sound weights of the model described", error.to_string()))?;
        let enc = floats(&bytes, "enc").ok_or_else(|| wrong("enc", "a tensor of f32", "none".into()))?;
        let frames = network
            .project_frames(&enc)
            .map_err(|error| wrong("enc", "whole rows of the encoder's width", error.to_string()))?;
        decoding::unpad(&frames, model.width(), &sidecar.lengths)
            .map_err(|error| wrong("enc", "rows for the lengths of the sidecar", error.to_string()))?;
        Ok(Self { name: name.into(), path: tensors.into(), sidecar, bytes, model, network, frames })
    }

    /// A tensor by its name.
    fn floats(&self, name: &str) -> Result<Vec<f32>> {
        floats(&self.bytes, name).ok_or_else(|| Error::Case {
            path: self.path.clone(),
            argument: name.into(),
            expected: "a tensor of f32".into(),
            found: "none".into(),
        })
    }

    /// Decodes in every way that the case has; kinds that are not known come back by their ids.
    pub fn run(&self) -> Result<(Vec<DecodeLine>, Vec<String>)> {
        let (mut lines, mut unknown) = (Vec::new(), Vec::new());
        for decode in &self.sidecar.decodes {
            let mut check = Check::default();
            let kind = match &decode.kind {
                DecodeKind::Greedy { max_symbols, utterances } => {
                    searches::greedy(self, *max_symbols, utterances, &mut check);
                    "greedy"
                }
                DecodeKind::GreedyLmFusion { max_symbols, alpha, utterances } => {
                    searches::fused(self, *max_symbols, *alpha, utterances, &mut check)?;
                    "greedy_lm_fusion"
                }
                DecodeKind::ChunkedGreedy { max_symbols, chunk, utterances } => {
                    searches::chunked(self, *max_symbols, *chunk, utterances, &mut check);
                    "chunked_greedy"
                }
                DecodeKind::ForcedAlignment { utterances } => {
                    searches::aligned(self, utterances, &mut check)?;
                    "forced_alignment"
                }
                DecodeKind::ModifiedBeam { beam, blank_penalty, temperature, utterances } => {
                    let options = decoding::BeamOptions {
                        width: *beam,
                        nbest: *beam,
                        blank_penalty: *blank_penalty,
                        temperature: *temperature,
                        ..decoding::BeamOptions::default()
                    };
                    searches::beam(self, options, utterances, &mut check);
                    "modified_beam"
                }
                DecodeKind::Unknown => {
                    unknown.push(format!("{} {}", self.name, decode.id));
                    continue;
                }
            };
            lines.push(DecodeLine {
                id: decode.id.clone(),
                kind,
                worst: check.worst,
                failure: check.failure,
            });
        }
        Ok((lines, unknown))
    }
}

fn floats(bytes: &[u8], name: &str) -> Option<Vec<f32>> {
    let file = SafeTensors::deserialize(bytes).ok()?;
    let view = file.tensor(name).ok().filter(|view| view.dtype() == Dtype::F32)?;
    Some(view.data().as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect())
}

/// Collects the worst error and the first failure.
#[derive(Default)]
struct Check {
    worst: f64,
    failure: Option<String>,
    place: String,
}

impl Check {
    /// Names what comes next.
    fn at(&mut self, place: String) {
        self.place = place;
    }

    fn fail(&mut self, what: &str, message: String) {
        if self.failure.is_none() {
            self.failure = Some(format!("{} {what}: {message}", self.place));
        }
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: T, expected: T) {
        if found != expected {
            self.fail(what, format!("expected {expected:?}, found {found:?}"));
        }
    }

    fn close(&mut self, what: &str, found: impl IntoIterator<Item = f64>, expected: &[f64], bar: f64) {
        let found: Vec<f64> = found.into_iter().collect();
        if found.len() != expected.len() {
            return self.fail(what, format!("expected {} values, found {}", expected.len(), found.len()));
        }
        for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            let error = (found - expected).abs() / expected.abs().max(1.0);
            // A NaN must not be lost.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            self.worst = self.worst.max(error);
            if error > bar {
                self.fail(what, format!("[{at}]: expected {expected}, found {found}"));
            }
        }
    }

    fn outcome<T>(&mut self, outcome: std::result::Result<T, impl std::fmt::Display>) -> Option<T> {
        outcome.map_err(|error| self.fail("refused", error.to_string())).ok()
    }
}
