//! `GreedyStream`: state of a greedy transducer search between chunks of an utterance.
use serde::{Deserialize, Serialize};

use crate::scorer::expect_count;
use crate::{DecodingModel, Error, Fusion, Result, States};

/// Largest number of frames or labels in a deserialized state; sums cannot overflow.
pub(crate) const MAX_COUNT: usize = 1 << 40;

/// State of a greedy search between two chunks of an utterance.
///
/// It is plain data, which may be stored, sent to another process and continued in any batch.
/// [`GreedySearch::stream`](crate::GreedySearch::stream) creates one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GreedyStream {
    #[serde(rename = "model")]
    pub(super) model_fingerprint: u64,
    /// The predictor's state, one row.
    pub(super) states: States,
    /// The label row after the newest label.
    #[serde(rename = "row")]
    pub(super) label_row: Vec<f32>,
    /// Decoded frames.
    pub(super) frames: usize,
    /// Frames of the next chunk that a duration has skipped.
    #[serde(rename = "jump")]
    pub(super) skipped_frames: usize,
    /// Emitted labels.
    pub(super) labels: usize,
    /// Frame of the newest label.
    #[serde(rename = "newest")]
    pub(super) newest_label_frame: Option<usize>,
    /// Frame at which the limit on labels was reached.
    #[serde(rename = "capped")]
    pub(super) capped_at: Option<usize>,
    /// Number of fusions of the search.
    #[serde(rename = "shared")]
    shared_fusions: usize,
    /// Scorer states: fusions of the search, then those of the stream.
    #[serde(rename = "automata")]
    pub(super) scorer_states: Vec<u32>,
    /// Fusions of this stream only.
    #[serde(skip)]
    pub(super) fusion: Vec<Fusion>,
}

impl GreedyStream {
    pub(super) fn new(model: &DecodingModel, shared: &[Fusion]) -> Self {
        let (states, label_row) = model.start();
        Self {
            model_fingerprint: model.fingerprint(),
            states: states.clone(),
            label_row: label_row.to_vec(),
            frames: 0,
            skipped_frames: 0,
            labels: 0,
            newest_label_frame: None,
            capped_at: None,
            shared_fusions: shared.len(),
            scorer_states: shared.iter().map(|fusion| fusion.scorer.start()).collect(),
            fusion: Vec::new(),
        }
    }

    /// Resets the state in place; fusions of the stream and memory are kept.
    pub(super) fn reset(&mut self, model: &DecodingModel, shared: &[Fusion]) {
        let (states, label_row) = model.start();
        self.model_fingerprint = model.fingerprint();
        self.states.clone_from(states);
        self.label_row.clear();
        self.label_row.extend_from_slice(label_row);
        (self.frames, self.skipped_frames, self.labels) = (0, 0, 0);
        (self.newest_label_frame, self.capped_at) = (None, None);
        self.shared_fusions = shared.len();
        self.scorer_states.clear();
        self.scorer_states.extend(shared.iter().chain(&self.fusion).map(|fusion| fusion.scorer.start()));
    }

    /// Sets fusions of this stream, in addition to those of the search.
    ///
    /// Their scorers begin in the start state.
    pub fn with_fusion(mut self, fusion: Vec<Fusion>) -> Self {
        self.scorer_states.truncate(self.shared_fusions);
        self.scorer_states.extend(fusion.iter().map(|fusion| fusion.scorer.start()));
        self.fusion = fusion;
        self
    }

    /// Restores the fusions of a deserialized stream.
    ///
    /// The serialized state does not contain them. Their scorers continue in the stored
    /// states.
    ///
    /// # Errors
    /// [`Error::Stream`] if the number of fusions differs from the stream's.
    pub fn restore_fusion(mut self, fusion: Vec<Fusion>) -> Result<Self> {
        self.fusion = expect_count(fusion, self.scorer_states.len().saturating_sub(self.shared_fusions))?;
        Ok(self)
    }

    /// Number of decoded frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Number of emitted labels.
    pub fn labels(&self) -> usize {
        self.labels
    }

    /// Frames since the newest label or the start, for endpoint detection.
    pub fn trailing_frames(&self) -> usize {
        self.newest_label_frame.map_or(self.frames, |frame| self.frames.saturating_sub(frame + 1))
    }

    /// Frames of the next chunk that a duration skips.
    pub fn skipped_frames(&self) -> usize {
        self.skipped_frames
    }

    /// Returns whether the limit on labels was reached.
    pub fn is_capped(&self) -> bool {
        self.capped_at.is_some()
    }

    /// Fails unless the state belongs to this model and number of fusions.
    pub(super) fn check(&self, model: &DecodingModel, shared_fusions: usize) -> Result<()> {
        let (states, label_row) = model.start();
        let error = |expected: String, found: String| Err(Error::Stream { expected, found });
        if self.model_fingerprint != model.fingerprint() {
            return error("a state of this model".into(), "a state of another model".into());
        }
        let has_valid_states =
            self.states.is_valid() && self.states.rows() == 1 && self.states.shape() == states.shape();
        if !has_valid_states || self.label_row.len() != label_row.len() {
            return error(format!("{:?} and a row of {}", states.shape(), label_row.len()), "others".into());
        }
        let ids = model.predictor().label_ids() as u32;
        if let Some(label) =
            self.states.labels().iter().find(|&&label| label != crate::NO_LABEL && label >= ids)
        {
            return error(format!("labels below {ids}"), label.to_string());
        }
        let counts = [self.frames, self.skipped_frames, self.labels, self.capped_at.unwrap_or(0)];
        let is_label_beyond_end = self.newest_label_frame.is_some_and(|frame| frame >= self.frames);
        if is_label_beyond_end || counts.iter().any(|&count| count > MAX_COUNT) {
            return error("frames and labels that can be counted".into(), format!("{counts:?}"));
        }
        if !self.states.values().iter().chain(&self.label_row).all(|value| value.is_finite()) {
            return error("finite numbers".into(), "NaN or infinity".into());
        }
        let scorers = shared_fusions + self.fusion.len();
        if self.scorer_states.len() != scorers || self.shared_fusions != shared_fusions {
            let expected = format!("states of {scorers} language models and lists");
            return error(expected, self.scorer_states.len().to_string());
        }
        Ok(())
    }
}
