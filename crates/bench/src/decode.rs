//! Greedy search as the subject of a measurement: encoder rows are given, labels are wanted.
mod raw;
mod synthetic;

use std::sync::Arc;

use decoding::{
    DecodedToken, DecodingModel, GreedyOptions, GreedySearch, Hypotheses, JointNetwork, frame_looping, greedy,
};

use self::raw::{ENCODER, HIDDEN};
use self::synthetic::SyntheticWeights;
use super::answer::Workload;
use super::answer::{CaseShape, DecodingReport};
use super::case::{DecodeWork, GreedyVariant, Method};
use super::error::{Error, Result};
use super::gradients::NamedGradients;

/// As in section 13 of the figures that it is compared with.
const MAX_SYMBOLS: usize = 2;

/// A search over all utterances, batch after batch.
pub struct DecodeWorkload {
    work: DecodeWork,
    lengths: Vec<usize>,
    /// *ΣT x E*
    encoded: Vec<f32>,
    weights: SyntheticWeights,
    how: How,
    /// Labels, frames and durations of each utterance.
    found: Vec<Vec<Label>>,
    /// Sites on the paths, once they are known.
    sites: usize,
}

type Label = (u32, usize, usize);

enum How {
    /// By frames, everything computed when it is needed.
    Frames(DecodingModel),
    /// By labels, likewise.
    Labels(GreedySearch),
    /// By labels, projections computed once.
    Projected(GreedySearch, Arc<JointNetwork>),
}

fn options() -> GreedyOptions {
    GreedyOptions { max_symbols: Some(MAX_SYMBOLS), ..GreedyOptions::default() }
}

fn rough(found: &[DecodedToken]) -> Vec<Label> {
    found.iter().map(|label| (label.label, label.frame, label.duration)).collect()
}

/// A made-up model and batch, and the one who decodes it.
///
/// # Errors
/// Layers that do not fit together.
pub fn prepare(work: &DecodeWork, method: &Method) -> Result<Box<dyn Workload>> {
    let weights = SyntheticWeights::synthetic(work.family);
    let one_frame = GreedyOptions { look_ahead: 1, ..options() };
    let projected = |options| -> Result<How> {
        let (model, network) = weights.network()?;
        Ok(How::Projected(GreedySearch::new(model, options)?, network))
    };
    let how = match method {
        Method::Decode(GreedyVariant::LookAhead) => projected(options())?,
        Method::Decode(GreedyVariant::OneFrame) => projected(one_frame)?,
        Method::Decode(GreedyVariant::Unprojected) => {
            How::Labels(GreedySearch::new(weights.raw()?, one_frame)?)
        }
        _ => How::Frames(weights.raw()?),
    };
    let (lengths, encoded) = (work.lengths(), work.encoded());
    Ok(Box::new(DecodeWorkload { work: *work, lengths, encoded, weights, how, found: Vec::new(), sites: 0 }))
}

/// Rows of each utterance.
fn utterances<'a>(rows: &'a [f32], lengths: &[usize], width: usize) -> Vec<&'a [f32]> {
    let mut rest = rows;
    let utterance = |&length: &usize| {
        let (rows, behind) = rest.split_at(length * width);
        rest = behind;
        rows
    };
    lengths.iter().map(utterance).collect()
}

impl How {
    /// Decodes a batch of encoder rows.
    fn decode(
        &mut self,
        encoded: &[f32],
        lengths: &[usize],
        keep: &mut dyn FnMut(&Hypotheses),
    ) -> Result<()> {
        match self {
            Self::Frames(model) => {
                keep(&frame_looping(model, &utterances(encoded, lengths, ENCODER), &options())?);
            }
            Self::Labels(search) => keep(search.decode(&utterances(encoded, lengths, ENCODER))?),
            Self::Projected(search, network) => {
                let frames = network.project_frames(encoded)?;
                keep(search.decode(&utterances(&frames, lengths, HIDDEN))?);
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
        (self.found.iter().map(Vec::len).sum::<usize>() * size_of::<Label>()) as u64
    }

    fn operations(&self) -> Option<u64> {
        Some(self.work.operations(self.found.iter().map(Vec::len).sum(), self.sites))
    }

    fn step(&mut self) -> Result<NamedGradients> {
        self.found.clear();
        let found = &mut self.found;
        let mut rest = &self.encoded[..];
        for lengths in self.lengths.chunks(self.work.batch) {
            let (encoded, behind) = rest.split_at(lengths.iter().sum::<usize>() * ENCODER);
            rest = behind;
            self.how.decode(encoded, lengths, &mut |batch| {
                found.extend((0..batch.len()).map(|b| rough(batch.labels(b))));
            })?;
        }
        Ok(Vec::new())
    }

    /// Labels, frames and durations must be those of the search that is the definition, an utterance and a site at a time.
    fn check(&mut self) -> Result<()> {
        let (model, network) = self.weights.network()?;
        let frames = network.project_frames(&self.encoded)?;
        let utterances = utterances(&frames, &self.lengths, HIDDEN);
        for (utterance, (frames, found)) in utterances.iter().zip(&self.found).enumerate() {
            let expected = rough(&greedy(&model, frames, &options())?.labels);
            if *found != expected {
                let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
                return Err(Error::Labels { utterance, expected, found });
            }
        }
        let mut search = GreedySearch::new(model, GreedyOptions { record_steps: true, ..options() })?;
        let found = search.decode(&utterances)?;
        self.sites = (0..found.len()).map(|b| found.steps(b).len()).sum();
        Ok(())
    }

    fn decoding_report(&self) -> Option<DecodingReport> {
        Some(DecodingReport {
            family: self.work.family,
            utterances: self.found.len(),
            frames: self.lengths.iter().sum(),
            labels: self.found.iter().map(Vec::len).sum(),
            sites: self.sites,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Family;

    #[test]
    fn every_search_finds_the_same_and_a_quarter_of_the_frames_has_a_label() {
        for family in [Family::Rnnt, Family::Tdt] {
            let work = DecodeWork { family, batch: 2, utterances: 3 };
            for search in [
                GreedyVariant::LookAhead,
                GreedyVariant::OneFrame,
                GreedyVariant::Unprojected,
                GreedyVariant::FrameLooping,
            ] {
                let mut subject = prepare(&work, &Method::Decode(search)).unwrap();
                subject.step().unwrap();
                subject.check().unwrap();
                let report = subject.decoding_report().unwrap();
                let rate = report.labels as f64 / report.frames as f64;
                // Three utterances: about.
                assert!((0.15..0.35).contains(&rate), "{family:?}: {rate}");
                // A site for each label and for each blank, whose frames are passed once.
                assert!(report.sites > report.labels && report.sites <= report.labels + report.frames);
            }
        }
    }
}
