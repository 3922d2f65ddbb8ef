//! `BeamStream`: state of a transducer beam search between chunks of an utterance.
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
    #[serde(rename = "model")]
    model_fingerprint: u64,
    /// Predictor states, one row per hypothesis.
    pub(super) states: States,
    /// Label row of each hypothesis: the projected predictor output.
    #[serde(rename = "rows")]
    pub(super) label_rows: Vec<f32>,
    /// Scorer states of each hypothesis: fusions of the search, then those of the stream.
    #[serde(rename = "automata")]
    pub(super) scorer_states: Vec<u32>,
    pub(super) hyps: Vec<BeamHypothesis>,
    pub(super) tree: LabelTree,
    /// Decoded frames.
    pub(super) frames: usize,
    /// Number of fusions of the search.
    #[serde(rename = "shared")]
    shared_fusions: usize,
    /// Fusions of this stream only.
    #[serde(skip)]
    pub(super) fusion: Vec<Fusion>,
}

impl Clone for BeamStream {
    fn clone(&self) -> Self {
        let mut tree = LabelTree::default();
        tree.clone_from(&self.tree);
        Self {
            model_fingerprint: self.model_fingerprint,
            states: self.states.clone(),
            label_rows: self.label_rows.clone(),
            scorer_states: self.scorer_states.clone(),
            hyps: self.hyps.clone(),
            tree,
            frames: self.frames,
            shared_fusions: self.shared_fusions,
            fusion: self.fusion.clone(),
        }
    }
}

impl BeamStream {
    pub(super) fn new(model: &DecodingModel, shared: &[Fusion]) -> Self {
        let (states, label_row) = model.start();
        Self {
            model_fingerprint: model.fingerprint(),
            states: states.clone(),
            label_rows: label_row.to_vec(),
            scorer_states: shared.iter().map(|fusion| fusion.scorer.start()).collect(),
            hyps: vec![BeamHypothesis { node: ROOT, row: 0, frame: 0, symbols: 0, log_prob: 0.0 }],
            tree: LabelTree::default(),
            frames: 0,
            shared_fusions: shared.len(),
            fusion: Vec::new(),
        }
    }

    /// Resets the state in place and sets the fusions of the stream; memory is kept.
    pub(super) fn reset(&mut self, model: &DecodingModel, shared: &[Fusion], fusion: Vec<Fusion>) {
        self.fusion = fusion;
        let (states, label_row) = model.start();
        self.states.clone_from(states);
        self.label_rows.clear();
        self.label_rows.extend_from_slice(label_row);
        self.scorer_states.clear();
        self.scorer_states.extend(shared.iter().chain(&self.fusion).map(|fusion| fusion.scorer.start()));
        self.hyps.clear();
        self.hyps.push(BeamHypothesis { node: ROOT, row: 0, frame: 0, symbols: 0, log_prob: 0.0 });
        self.tree.clear();
        (self.frames, self.shared_fusions) = (0, shared.len());
    }

    /// Sets fusions of this stream, in addition to those of the search.
    ///
    /// Their scorers begin in the start state.
    pub fn with_fusion(mut self, fusion: Vec<Fusion>) -> Self {
        let scorers = self.scorer_states.len() / self.hyps.len().max(1);
        let states_of_hyp = |hyp_index: usize| {
            let states = self.scorer_states.iter().skip(hyp_index * scorers).take(scorers);
            states.take(self.shared_fusions).copied().chain(fusion.iter().map(|fusion| fusion.scorer.start()))
        };
        self.scorer_states = (0..self.hyps.len()).flat_map(states_of_hyp).collect();
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
        self.fusion = expect_count(fusion, scorers.saturating_sub(self.shared_fusions))?;
        Ok(self)
    }

    /// Number of decoded frames.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Removes and returns labels of the best hypothesis; drops hypotheses with another prefix.
    pub(super) fn commit(&mut self, best: &BeamHypothesis, labels: usize) -> Vec<DecodedToken> {
        let Self { tree, hyps, .. } = self;
        // The committed labels, as a node.
        let max_depth = tree.removed_labels().saturating_add(labels);
        let committed_node = tree.ancestor_at(best.node, max_depth);
        let depth = tree.sequence(committed_node).len;
        // Keep the hypotheses that begin with them.
        let keep: Vec<bool> = hyps
            .iter()
            .map(|hyp| tree.is_same_sequence(tree.ancestor_at(hyp.node, depth), committed_node))
            .collect();
        let mut nodes: Vec<u32> = hyps.iter().map(|hyp| hyp.node).collect();
        retain_rows(&mut nodes, &keep);
        retain_rows(hyps, &keep);
        retain_rows(&mut self.label_rows, &keep);
        retain_rows(&mut self.scorer_states, &keep);
        self.states.retain(|row| keep[row]);
        // Remove the labels from the tree.
        let labels = tree.take_prefix(committed_node, &mut nodes);
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
        self.tree.removed_labels()
    }

    /// Fails unless the state belongs to this model and number of fusions.
    pub(super) fn check(&self, model: &DecodingModel, shared_fusions: usize) -> Result<()> {
        let (states, label_row) = model.start();
        let error = |expected: String, found: String| Err(Error::Stream { expected, found });
        if self.model_fingerprint != model.fingerprint() {
            return error("a state of this model".into(), "a state of another model".into());
        }
        // Sizes of the states.
        let count = self.hyps.len();
        let has_valid_states = count > 0
            && self.states.is_valid()
            && self.states.rows() == count
            && self.states.shape() == states.shape();
        let width = label_row.len();
        if !has_valid_states || self.label_rows.len() != count * width {
            return error(format!("{count} rows of {:?} and {width}", states.shape()), "others".into());
        }
        // Labels and values of the predictor states.
        let ids = model.predictor().label_ids() as u32;
        if let Some(label) =
            self.states.labels().iter().find(|&&label| label != crate::NO_LABEL && label >= ids)
        {
            return error(format!("labels below {ids}"), label.to_string());
        }
        if !self.states.values().iter().chain(&self.label_rows).all(|value| value.is_finite()) {
            return error("finite numbers".into(), "NaN or infinity".into());
        }
        // Scorer states.
        let scorers = shared_fusions + self.fusion.len();
        if self.scorer_states.len() != count * scorers || self.shared_fusions != shared_fusions {
            let expected = format!("states of {scorers} language models and lists for {count} hypotheses");
            return error(expected, self.scorer_states.len().to_string());
        }
        // Hypotheses and the tree of their labels.
        let is_valid = |hyp: &BeamHypothesis| {
            // Only a big blank extends beyond the chunk.
            let valid_frames =
                self.frames..=self.frames.saturating_add(model.token_table().max_blank_frames() - 1);
            self.frames.max(self.tree.removed_labels()) <= MAX_COUNT
                && self.tree.contains(hyp.node)
                && valid_frames.contains(&hyp.frame)
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
        utterance.sweep_tree();
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
