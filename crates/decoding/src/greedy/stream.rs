//! An utterance that arrives in chunks: what a search knows of it between two of them.
use serde::{Deserialize, Serialize};

use crate::scorer::as_many;
use crate::{DecodingModel, Error, Fusion, Result, States};

/// Frames and labels that a state from outside may count, far from where sums end.
pub(crate) const LARGEST: usize = 1 << 40;

/// What is known of an utterance between two chunks of it: plain data, which may be kept, sent to another process, and continued in
/// any batch. A new one is made by [`GreedySearch::stream`](crate::GreedySearch::stream).
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct GreedyStream {
    /// Fingerprint of the model.
    pub(super) model: u64,
    /// The predictor's state, one row.
    pub(super) states: States,
    /// The label row after the newest label.
    pub(super) row: Vec<f32>,
    /// Frames that were decoded.
    pub(super) frames: usize,
    /// Frames at the start of the next chunk that a duration has passed already.
    pub(super) jump: usize,
    /// Labels so far.
    pub(super) labels: usize,
    /// Frame of the newest label.
    pub(super) newest: Option<usize>,
    /// The frame at which there were as many labels as there may be.
    pub(super) capped: Option<usize>,
    /// Language models of the search.
    shared: usize,
    /// Their states, and those of the lists behind them.
    pub(super) automata: Vec<u32>,
    /// Lists of this utterance alone.
    #[serde(skip)]
    pub(super) lists: Vec<Fusion>,
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
            automata: fusion.iter().map(|fusion| fusion.scorer.start()).collect(),
            lists: Vec::new(),
        }
    }

    /// Starts anew in place; memory and lists stay.
    pub(super) fn reset(&mut self, model: &DecodingModel, fusion: &[Fusion]) {
        let (states, row) = model.start();
        self.model = model.fingerprint();
        self.states.clone_from(states);
        self.row.clear();
        self.row.extend_from_slice(row);
        (self.frames, self.jump, self.labels, self.newest, self.capped) = (0, 0, 0, None, None);
        self.shared = fusion.len();
        self.automata.clear();
        self.automata.extend(fusion.iter().chain(&self.lists).map(|fusion| fusion.scorer.start()));
    }

    /// The same stream with lists of its own, beside those of the search; their matches begin anew.
    pub fn with_lists(mut self, lists: Vec<Fusion>) -> Self {
        self.automata.truncate(self.shared);
        self.automata.extend(lists.iter().map(|list| list.scorer.start()));
        self.lists = lists;
        self
    }

    /// The same stream with its lists, which a state that was written down has not with it; their matches go on.
    ///
    /// # Errors
    /// [`Error::Stream`] if they are not as many as it had.
    pub fn restore_lists(mut self, lists: Vec<Fusion>) -> Result<Self> {
        self.lists = as_many(lists, self.automata.len().saturating_sub(self.shared))?;
        Ok(self)
    }

    /// Frames that were decoded so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Labels so far.
    pub fn labels(&self) -> usize {
        self.labels
    }

    /// Frames since the newest label, or since the start: what token_table for the end of an utterance ask for.
    pub fn trailing_frames(&self) -> usize {
        self.newest.map_or(self.frames, |newest| self.frames.saturating_sub(newest + 1))
    }

    /// Frames of the next chunk that will be passed over, since a duration reaches into it.
    pub fn jump(&self) -> usize {
        self.jump
    }

    /// Whether it has as many labels as it may have, so that no more come.
    pub fn is_capped(&self) -> bool {
        self.capped.is_some()
    }

    /// Fails unless the state is one of this model's, with these automata.
    pub(super) fn check(&self, model: &DecodingModel, shared: usize) -> Result<()> {
        let (states, row) = model.start();
        let wrong = |expected: String, found: String| Err(Error::Stream { expected, found });
        if self.model != model.fingerprint() {
            return wrong("a state of this model".into(), "one of another model".into());
        }
        let fits = self.states.is_sound() && self.states.rows() == 1 && self.states.shape() == states.shape();
        if !fits || self.row.len() != row.len() {
            return wrong(format!("{:?} and a row of {}", states.shape(), row.len()), "others".into());
        }
        let ids = model.predictor().ids() as u32;
        if let Some(label) =
            self.states.labels().iter().find(|&&label| label != crate::NO_LABEL && label >= ids)
        {
            return wrong(format!("labels below {ids}"), label.to_string());
        }
        let counts = [self.frames, self.jump, self.labels, self.capped.unwrap_or(0)];
        let beyond = self.newest.is_some_and(|newest| newest >= self.frames);
        if beyond || counts.iter().any(|&count| count > LARGEST) {
            return wrong("frames and labels that can be counted".into(), format!("{counts:?}"));
        }
        if !self.states.values().iter().chain(&self.row).all(|x| x.is_finite()) {
            return wrong("finite numbers".into(), "NaN or infinity".into());
        }
        let automata = shared + self.lists.len();
        if self.automata.len() != automata || self.shared != shared {
            let expected = format!("states of {automata} language models and lists");
            return wrong(expected, self.automata.len().to_string());
        }
        Ok(())
    }
}
