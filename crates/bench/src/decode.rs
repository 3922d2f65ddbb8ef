//! Benchmark of greedy transducer search on given encoder outputs.
mod synthetic;
mod unprojected_joint;

use std::sync::Arc;

use decoding::{
    DecodedToken, DecodingModel, GreedyOptions, GreedySearch, Hypotheses, JointNetwork, frame_looping, greedy,
};

use self::synthetic::SyntheticWeights;
use self::unprojected_joint::{ENCODER_WIDTH, JOINT_WIDTH};
use super::case::{DecodeWork, GreedyVariant, Method};
use super::error::{Error, Result};
use super::gradients::NamedGradients;
use super::workload::Workload;
use super::workload::{CaseShape, DecodingReport};

/// Labels per frame, as in the PyTorch figures to compare with.
const MAX_SYMBOLS: usize = 2;

/// Greedy search over all utterances, one batch at a time.
pub(crate) struct DecodeWorkload {
    work: DecodeWork,
    lengths: Vec<usize>,
    /// Encoder outputs `[ΣT, E]`.
    encoded: Vec<f32>,
    weights: SyntheticWeights,
    search: Search,
    /// Decoded labels of each utterance.
    labels: Vec<Vec<PlacedLabel>>,
    /// Number of sites on the paths, after [`Workload::check`].
    sites: usize,
}

/// Label with the frame that emits it and its duration.
type PlacedLabel = (u32, usize, usize);

/// A search with its model; the variants differ in what they compute per site.
enum Search {
    /// Frame looping without precomputed projections.
    ByFrame(DecodingModel),
    /// Label looping without precomputed projections.
    ByLabel(GreedySearch),
    /// Label looping with precomputed projections.
    ProjectedByLabel(GreedySearch, Arc<JointNetwork>),
}

fn greedy_options() -> GreedyOptions {
    GreedyOptions { max_symbols: Some(MAX_SYMBOLS), ..GreedyOptions::default() }
}

/// Returns labels, frames and durations of a hypothesis.
fn to_labels(tokens: &[DecodedToken]) -> Vec<PlacedLabel> {
    tokens.iter().map(|label| (label.label, label.frame, label.duration)).collect()
}

/// Creates a synthetic model, its batch, and a search.
///
/// # Errors
/// Layers that do not fit together.
pub(crate) fn prepare(work: &DecodeWork, method: &Method) -> Result<Box<dyn Workload>> {
    let weights = SyntheticWeights::new(work.family);
    let one_frame = GreedyOptions { look_ahead: 1, ..greedy_options() };
    let projected = |options| -> Result<Search> {
        let (model, network) = weights.network()?;
        Ok(Search::ProjectedByLabel(GreedySearch::new(model, options)?, network))
    };
    let search = match method {
        Method::Decode(GreedyVariant::LookAhead) => projected(greedy_options())?,
        Method::Decode(GreedyVariant::OneFrame) => projected(one_frame)?,
        Method::Decode(GreedyVariant::Unprojected) => {
            Search::ByLabel(GreedySearch::new(weights.unprojected()?, one_frame)?)
        }
        _ => Search::ByFrame(weights.unprojected()?),
    };
    let (lengths, encoded) = (work.lengths(), work.encoded());
    let labels = Vec::new();
    Ok(Box::new(DecodeWorkload { work: *work, lengths, encoded, weights, search, labels, sites: 0 }))
}

/// Splits rows by utterance.
fn split_utterances<'a>(rows: &'a [f32], lengths: &[usize], width: usize) -> Vec<&'a [f32]> {
    let mut remaining = rows;
    let utterance = |&length: &usize| {
        let (rows, following) = remaining.split_at(length * width);
        remaining = following;
        rows
    };
    lengths.iter().map(utterance).collect()
}

impl Search {
    /// Decodes a batch of encoder outputs and passes hypotheses to `collect`.
    fn decode(
        &mut self,
        encoded: &[f32],
        lengths: &[usize],
        collect: &mut dyn FnMut(&Hypotheses),
    ) -> Result<()> {
        match self {
            Self::ByFrame(model) => {
                collect(&frame_looping(
                    model,
                    &split_utterances(encoded, lengths, ENCODER_WIDTH),
                    &greedy_options(),
                )?);
            }
            Self::ByLabel(search) => {
                collect(search.decode(&split_utterances(encoded, lengths, ENCODER_WIDTH))?)
            }
            Self::ProjectedByLabel(search, network) => {
                let frames = network.project_frames(encoded)?;
                collect(search.decode(&split_utterances(&frames, lengths, JOINT_WIDTH))?);
            }
        }
        Ok(())
    }
}

impl Workload for DecodeWorkload {
    fn shape(&self) -> CaseShape {
        self.work.shape()
    }

    fn result_bytes(&self) -> u64 {
        (self.labels.iter().map(Vec::len).sum::<usize>() * size_of::<PlacedLabel>()) as u64
    }

    fn operations(&self) -> Option<u64> {
        Some(self.work.operations(self.labels.iter().map(Vec::len).sum(), self.sites))
    }

    fn step(&mut self) -> Result<NamedGradients> {
        self.labels.clear();
        let labels = &mut self.labels;
        let mut remaining = &self.encoded[..];
        // One batch at a time.
        for lengths in self.lengths.chunks(self.work.batch) {
            let (encoded, following) = remaining.split_at(lengths.iter().sum::<usize>() * ENCODER_WIDTH);
            remaining = following;
            self.search.decode(encoded, lengths, &mut |batch| {
                labels.extend((0..batch.len()).map(|b| to_labels(batch.labels(b))));
            })?;
        }
        Ok(Vec::new())
    }

    /// Compares labels, frames and durations with the reference implementation.
    ///
    /// The reference decodes one utterance and one site at a time.
    fn check(&mut self) -> Result<()> {
        let (model, network) = self.weights.network()?;
        let frames = network.project_frames(&self.encoded)?;
        let utterances = split_utterances(&frames, &self.lengths, JOINT_WIDTH);
        for (utterance, (frames, labels)) in utterances.iter().zip(&self.labels).enumerate() {
            let expected = to_labels(&greedy(&model, frames, &greedy_options())?.labels);
            if *labels != expected {
                let (expected, found) = (format!("{expected:?}"), format!("{labels:?}"));
                return Err(Error::Labels { utterance, expected, found });
            }
        }
        // Count the sites on the paths.
        let mut search = GreedySearch::new(model, GreedyOptions { record_steps: true, ..greedy_options() })?;
        let hypotheses = search.decode(&utterances)?;
        self.sites = (0..hypotheses.len()).map(|b| hypotheses.steps(b).len()).sum();
        Ok(())
    }

    fn decoding_report(&self) -> Option<DecodingReport> {
        Some(DecodingReport {
            family: self.work.family,
            utterances: self.labels.len(),
            frames: self.lengths.iter().sum(),
            labels: self.labels.iter().map(Vec::len).sum(),
            sites: self.sites,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Family;

    #[test]
    fn variants_agree_and_a_quarter_of_the_frames_has_a_label() {
        for family in [Family::Rnnt, Family::Tdt] {
            let work = DecodeWork { family, batch: 2, utterances: 3 };
            for search in [
                GreedyVariant::LookAhead,
                GreedyVariant::OneFrame,
                GreedyVariant::Unprojected,
                GreedyVariant::FrameLooping,
            ] {
                let mut workload = prepare(&work, &Method::Decode(search)).unwrap();
                workload.step().unwrap();
                workload.check().unwrap();
                let report = workload.decoding_report().unwrap();
                let rate = report.labels as f64 / report.frames as f64;
                // The rate of three utterances is approximate.
                assert!((0.15..0.35).contains(&rate), "{family:?}: {rate}");
                // One site per label and per blank; a frame has at most one blank.
                assert!(report.sites > report.labels && report.sites <= report.labels + report.frames);
            }
        }
    }
}
