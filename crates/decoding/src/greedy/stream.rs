//! `GreedyStream`: state of a greedy search between chunks of an utterance.
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
    /// Fingerprint of the model.
    pub(super) model: u64,
    /// The predictor's state, one row.
    pub(super) states: States,
    /// The label row after the newest label.
    pub(super) row: Vec<f32>,
    /// Decoded frames.
    pub(super) frames: usize,
    /// Frames of the next chunk that a duration has skipped.
    pub(super) jump: usize,
    /// Emitted labels.
    pub(super) labels: usize,
    /// Frame of the newest label.
    pub(super) newest: Option<usize>,
    /// Frame at which the limit on labels was reached.
    pub(super) capped: Option<usize>,
    /// Number of fusions of the search.
    shared: usize,
    /// Scorer states: fusions of the search, then those of the stream.
    #[serde(rename = "automata")]
    pub(super) scorer_states: Vec<u32>,
    /// Fusions of this stream only.
    #[serde(skip)]
    pub(super) fusion: Vec<Fusion>,
}

impl GreedyStream {
    pub(super) fn new(model: &DecodingModel, fusion: &[Fusion]) -> Self {
        let (states, row) = model.start();
        Self {
            model: model.fingerprint(),
            states: states.clone(),
            row: row.to_vec(),
            frames: 0,
            jump: 0,
            labels: 0,
            newest: None,
            capped: None,
            shared: fusion.len(),
            scorer_states: fusion.iter().map(|fusion| fusion.scorer.start()).collect(),
            fusion: Vec::new(),
        }
    }

    /// Resets the state in place; fusions of the stream and memory are kept.
    pub(super) fn reset(&mut self, model: &DecodingModel, fusion: &[Fusion]) {
        let (states, row) = model.start();
        self.model = model.fingerprint();
        self.states.clone_from(states);
        self.row.clear();
        self.row.extend_from_slice(row);
        (self.frames, self.jump, self.labels, self.newest, self.capped) = (0, 0, 0, None, None);
        self.shared = fusion.len();
        self.scorer_states.clear();
        self.scorer_states.extend(fusion.iter().chain(&self.fusion).map(|fusion| fusion.scorer.start()));
    }

    /// Sets fusions of this stream, in addition to those of the search.
    ///
    /// Their scorers begin in the start state.
    pub fn with_fusion(mut self, fusion: Vec<Fusion>) -> Self {
        self.scorer_states.truncate(self.shared);
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
        self.fusion = expect_count(fusion, self.scorer_states.len().saturating_sub(self.shared))?;
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
        self.newest.map_or(self.frames, |newest| self.frames.saturating_sub(newest + 1))
    }

    /// Frames of the next chunk that a duration skips.
    pub fn skipped_frames(&self) -> usize {
        self.jump
    }

    /// Returns whether the limit on labels was reached.
    pub fn is_capped(&self) -> bool {
        self.capped.is_some()
    }

    /// Fails unless the state belongs to this model and number of fusions.
    pub(super) fn check(&self, model: &DecodingModel, shared: usize) -> Result<()> {
        let (states, row) = model.start();
        let error = |expected: String, found: String| Err(Error::Stream { expected, found });
        if self.model != model.fingerprint() {
            return error("a state of this model".into(), "a state of another model".into());
        }
        let has_valid_states =
            self.states.is_valid() && self.states.rows() == 1 && self.states.shape() == states.shape();
        if !has_valid_states || self.row.len() != row.len() {
            return error(format!("{:?} and a row of {}", states.shape(), row.len()), "others".into());
        }
        let ids = model.predictor().label_ids() as u32;
        if let Some(label) =
            self.states.labels().iter().find(|&&label| label != crate::NO_LABEL && label >= ids)
        {
            return error(format!("labels below {ids}"), label.to_string());
        }
        let counts = [self.frames, self.jump, self.labels, self.capped.unwrap_or(0)];
        let is_newest_beyond_end = self.newest.is_some_and(|newest| newest >= self.frames);
        if is_newest_beyond_end || counts.iter().any(|&count| count > MAX_COUNT) {
            return error("frames and labels that can be counted".into(), format!("{counts:?}"));
        }
        if !self.states.values().iter().chain(&self.row).all(|value| value.is_finite()) {
            return error("finite numbers".into(), "NaN or infinity".into());
        }
        let scorers = shared + self.fusion.len();
        if self.scorer_states.len() != scorers || self.shared != shared {
            let expected = format!("states of {scorers} language models and lists");
            return error(expected, self.scorer_states.len().to_string());
        }
        Ok(())
    }
}
