//! `BeamStream`: state of a beam search between chunks of an utterance.
use serde::{Deserialize, Serialize};

use super::utterance::{BeamHypothesis, BeamUtterance};
use crate::greedy::MAX_COUNT;
use crate::scorer::expect_count;
use crate::tree::{LabelTree, ROOT};
use crate::{DecodedToken, DecodingModel, Error, Fusion, Result, States};

/// State of a beam search between two chunks of an utterance.
///
/// It is plain data, which may be stored, sent to another process and continued in any batch.
/// [`BeamSearch::stream`](crate::BeamSearch::stream) creates one. Its size grows with the labels of
/// the hypotheses; [`BeamStream::take_stable`] removes those that no chunk can change.
#[derive(Debug, Serialize, Deserialize)]
pub struct BeamStream {
    /// Fingerprint of the model.
    model: u64,
    /// Predictor states, one row per hypothesis.
    pub(super) states: States,
    /// Label row of each hypothesis: the projected predictor output.
    pub(super) rows: Vec<f32>,
    /// Scorer states of each hypothesis: fusions of the search, then those of the stream.
    #[serde(rename = "automata")]
    pub(super) scorer_states: Vec<u32>,
    pub(super) hyps: Vec<BeamHypothesis>,
    pub(super) tree: LabelTree,
    /// Decoded frames.
    pub(super) frames: usize,
    /// Number of fusions of the search.
    shared: usize,
    /// Fusions of this stream only.
    #[serde(skip)]
    pub(super) fusion: Vec<Fusion>,
}

impl Clone for BeamStream {
    fn clone(&self) -> Self {
        let mut tree = LabelTree::default();
        tree.clone_from(&self.tree);
        Self {
            model: self.model,
            states: self.states.clone(),
            rows: self.rows.clone(),
            scorer_states: self.scorer_states.clone(),
            hyps: self.hyps.clone(),
            tree,
            frames: self.frames,
            shared: self.shared,
            fusion: self.fusion.clone(),
        }
    }
}

impl BeamStream {
    pub(super) fn new(model: &DecodingModel, fusion: &[Fusion]) -> Self {
        let (states, row) = model.start();
        Self {
            model: model.fingerprint(),
            states: states.clone(),
            rows: row.to_vec(),
            scorer_states: fusion.iter().map(|fusion| fusion.scorer.start()).collect(),
            hyps: vec![BeamHypothesis { node: ROOT, row: 0, time: 0, symbols: 0, log_prob: 0.0 }],
            tree: LabelTree::default(),
            frames: 0,
            shared: fusion.len(),
            fusion: Vec::new(),
        }
    }

    /// Resets the state in place and sets the fusions of the stream; memory is kept.
    pub(super) fn reset(&mut self, model: &DecodingModel, shared: &[Fusion], fusion: Vec<Fusion>) {
        self.fusion = fusion;
        let (states, row) = model.start();
        self.states.clone_from(states);
        self.rows.clear();
        self.rows.extend_from_slice(row);
        self.scorer_states.clear();
        self.scorer_states.extend(shared.iter().chain(&self.fusion).map(|fusion| fusion.scorer.start()));
        self.hyps.clear();
        self.hyps.push(BeamHypothesis { node: ROOT, row: 0, time: 0, symbols: 0, log_prob: 0.0 });
        self.tree.clear();
        (self.frames, self.shared) = (0, shared.len());
    }

    /// Sets fusions of this stream, in addition to those of the search.
    ///
    /// Their scorers begin in the start state.
    pub fn with_fusion(mut self, fusion: Vec<Fusion>) -> Self {
        let scorers = self.scorer_states.len() / self.hyps.len().max(1);
        let states_of_row = |row: usize| {
            let states = self.scorer_states.iter().skip(row * scorers).take(scorers);
            states.take(self.shared).copied().chain(fusion.iter().map(|fusion| fusion.scorer.start()))
        };
        self.scorer_states = (0..self.hyps.len()).flat_map(states_of_row).collect();
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
        let scorers = self.scorer_states.len() / self.hyps.len().max(1);
        self.fusion = expect_count(fusion, scorers.saturating_sub(self.shared))?;
        Ok(self)
    }

    /// Number of decoded frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Removes and returns labels of the best hypothesis; drops hypotheses with another prefix.
    pub(super) fn commit(&mut self, best: &BeamHypothesis, labels: usize) -> Vec<DecodedToken> {
        let Self { tree, hyps, .. } = self;
        let depth = tree.taken().saturating_add(labels);
        let committed = tree.ancestor_at(best.node, depth);
        let depth = tree.sequence(committed).len;
        let keep: Vec<bool> = hyps
            .iter()
            .map(|hyp| tree.is_same_sequence(tree.ancestor_at(hyp.node, depth), committed))
            .collect();
        let mut nodes: Vec<u32> = hyps.iter().map(|hyp| hyp.node).collect();
        retain_rows(&mut nodes, &keep);
        retain_rows(hyps, &keep);
        retain_rows(&mut self.rows, &keep);
        retain_rows(&mut self.scorer_states, &keep);
        self.states.retain(|row| keep[row]);
        let labels = tree.take_prefix(committed, &mut nodes);
        hyps.iter_mut().zip(nodes).for_each(|(hyp, node)| hyp.node = node);
        labels
    }

    /// Removes and returns the labels that all hypotheses share.
    ///
    /// No later chunk can change them, and later results do not contain them. Regular calls bound
    /// the memory of the stream.
    pub fn take_stable(&mut self) -> Vec<DecodedToken> {
        let mut nodes: Vec<u32> = self.hyps.iter().map(|hyp| hyp.node).collect();
        let shared = self.tree.take_common_prefix(&mut nodes);
        self.hyps.iter_mut().zip(nodes).for_each(|(hyp, node)| hyp.node = node);
        shared
    }

    /// Number of labels that were removed so far.
    pub fn taken(&self) -> usize {
        self.tree.taken()
    }

    /// Fails unless the state belongs to this model and number of fusions.
    pub(super) fn check(&self, model: &DecodingModel, shared: usize) -> Result<()> {
        let (states, row) = model.start();
        let error = |expected: String, found: String| Err(Error::Stream { expected, found });
        if self.model != model.fingerprint() {
            return error("a state of this model".into(), "a state of another model".into());
        }
        let count = self.hyps.len();
        let has_valid_states = count > 0
            && self.states.is_valid()
            && self.states.rows() == count
            && self.states.shape() == states.shape();
        if !has_valid_states || self.rows.len() != count * row.len() {
            return error(format!("{count} rows of {:?} and {}", states.shape(), row.len()), "others".into());
        }
        let ids = model.predictor().label_ids() as u32;
        if let Some(label) =
            self.states.labels().iter().find(|&&label| label != crate::NO_LABEL && label >= ids)
        {
            return error(format!("labels below {ids}"), label.to_string());
        }
        if !self.states.values().iter().chain(&self.rows).all(|value| value.is_finite()) {
            return error("finite numbers".into(), "NaN or infinity".into());
        }
        let scorers = shared + self.fusion.len();
        if self.scorer_states.len() != count * scorers || self.shared != shared {
            let expected = format!("states of {scorers} language models and lists for {count} hypotheses");
            return error(expected, self.scorer_states.len().to_string());
        }
        let is_valid = |hyp: &BeamHypothesis| {
            // Only a big blank extends beyond the chunk.
            let times = self.frames..=self.frames.saturating_add(model.token_table().max_blank_frames() - 1);
            self.frames.max(self.tree.taken()) <= MAX_COUNT
                && self.tree.contains(hyp.node)
                && times.contains(&hyp.time)
                && hyp.symbols == 0
                && hyp.log_prob.is_finite()
        };
        if !self.tree.is_valid(ids as usize) || !self.hyps.iter().all(is_valid) {
            return error("a tree of labels, and hypotheses at its nodes".into(), "others".into());
        }
        Ok(())
    }

    /// Saves the state of an utterance after its chunk.
    pub(super) fn save(&mut self, utterance: &mut BeamUtterance) {
        utterance.sweep();
        self.tree.clone_from(&utterance.tree);
        self.hyps.clone_from(&utterance.hyps);
        self.frames = utterance.end_frame;
    }
}

/// Keeps the rows that are marked; `values` has one row per mark.
fn retain_rows<T>(values: &mut Vec<T>, keep: &[bool]) {
    let (width, mut indices) = (values.len() / keep.len(), 0..);
    values.retain(|_| indices.next().is_some_and(|index| keep[index / width]));
}
