//! An utterance of a beam search that arrives in chunks.
use serde::{Deserialize, Serialize};

use super::utterance::{BeamHypothesis, BeamUtterance};
use crate::greedy::LARGEST;
use crate::scorer::as_many;
use crate::tree::{ROOT, Tree};
use crate::{DecodedToken, DecodingModel, Error, Fusion, Result, States};

/// What is known of an utterance between two chunks of it: plain data, which may be kept, sent to another process, and continued in
/// any batch. A new one is made by [`BeamSearch::stream`](crate::BeamSearch::stream).
///
/// Its size is that of the hypotheses: [`BeamStream::take_stable`] takes out what no chunk can change.
#[derive(Debug, Serialize, Deserialize)]
pub struct BeamStream {
    /// Fingerprint of the model.
    model: u64,
    /// A row for each hypothesis: the predictor's state, the label row, states of the automata.
    pub(super) states: States,
    pub(super) rows: Vec<f32>,
    pub(super) automata: Vec<u32>,
    pub(super) hyps: Vec<BeamHypothesis>,
    pub(super) tree: Tree,
    /// Frames that were decoded.
    pub(super) frames: usize,
    /// Language models of the search.
    shared: usize,
    /// Lists of this utterance alone.
    #[serde(skip)]
    pub(super) lists: Vec<Fusion>,
}

impl Clone for BeamStream {
    fn clone(&self) -> Self {
        let mut tree = Tree::default();
        tree.clone_from(&self.tree);
        Self {
            model: self.model,
            states: self.states.clone(),
            rows: self.rows.clone(),
            automata: self.automata.clone(),
            hyps: self.hyps.clone(),
            tree,
            frames: self.frames,
            shared: self.shared,
            lists: self.lists.clone(),
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
            automata: fusion.iter().map(|fusion| fusion.scorer.start()).collect(),
            hyps: vec![BeamHypothesis { node: ROOT, row: 0, time: 0, symbols: 0, log_prob: 0.0 }],
            tree: Tree::default(),
            frames: 0,
            shared: fusion.len(),
            lists: Vec::new(),
        }
    }

    /// Starts anew in place, with lists of its own; memory stays.
    pub(super) fn reset(&mut self, model: &DecodingModel, fusion: &[Fusion], lists: Vec<Fusion>) {
        self.lists = lists;
        let (states, row) = model.start();
        self.states.clone_from(states);
        self.rows.clear();
        self.rows.extend_from_slice(row);
        self.automata.clear();
        self.automata.extend(fusion.iter().chain(&self.lists).map(|fusion| fusion.scorer.start()));
        self.hyps.clear();
        self.hyps.push(BeamHypothesis { node: ROOT, row: 0, time: 0, symbols: 0, log_prob: 0.0 });
        self.tree.clear();
        (self.frames, self.shared) = (0, fusion.len());
    }

    /// The same stream with lists of its own, beside those of the search; their matches begin anew.
    pub fn with_lists(mut self, lists: Vec<Fusion>) -> Self {
        let each = self.automata.len() / self.hyps.len().max(1);
        let of_row = |row: usize| {
            let all = self.automata.iter().skip(row * each).take(each);
            all.take(self.shared).copied().chain(lists.iter().map(|list| list.scorer.start()))
        };
        self.automata = (0..self.hyps.len()).flat_map(of_row).collect();
        self.lists = lists;
        self
    }

    /// The same stream with its lists, which a state that was written down has not with it; their matches go on.
    ///
    /// # Errors
    /// [`Error::Stream`] if they are not as many as it had.
    pub fn restore_lists(mut self, lists: Vec<Fusion>) -> Result<Self> {
        let each = self.automata.len() / self.hyps.len().max(1);
        self.lists = as_many(lists, each.saturating_sub(self.shared))?;
        Ok(self)
    }

    /// Frames that were decoded so far.
    pub fn frames(&self) -> usize {
        self.frames
    }

    /// Takes out so many labels of the best hypothesis, or all that it has; what begins otherwise is forgotten.
    pub(super) fn commit(&mut self, best: &BeamHypothesis, labels: usize) -> Vec<DecodedToken> {
        let Self { tree, hyps, .. } = self;
        let depth = tree.taken().saturating_add(labels);
        let goal = tree.above(best.node, depth);
        let depth = tree.sequence(goal).len;
        let keeps: Vec<bool> = hyps.iter().map(|hyp| tree.same(tree.above(hyp.node, depth), goal)).collect();
        let mut nodes: Vec<u32> = hyps.iter().map(|hyp| hyp.node).collect();
        retain(&mut nodes, &keeps);
        retain(hyps, &keeps);
        retain(&mut self.rows, &keeps);
        retain(&mut self.automata, &keeps);
        self.states.retain(|row| keeps[row]);
        let taken = tree.take_to(goal, &mut nodes);
        hyps.iter_mut().zip(nodes).for_each(|(hyp, node)| hyp.node = node);
        taken
    }

    /// Takes out the labels that all hypotheses share, which no later chunk can change: results do not have them any more. Memory
    /// stays bounded if somebody does so now and then.
    pub fn take_stable(&mut self) -> Vec<DecodedToken> {
        let mut nodes: Vec<u32> = self.hyps.iter().map(|hyp| hyp.node).collect();
        let shared = self.tree.take_shared(&mut nodes);
        self.hyps.iter_mut().zip(nodes).for_each(|(hyp, node)| hyp.node = node);
        shared
    }

    /// How many labels [`Self::take_stable`] has taken out so far.
    pub fn taken(&self) -> usize {
        self.tree.taken()
    }

    /// Fails unless the state is one of this model's, with these automata.
    pub(super) fn check(&self, model: &DecodingModel, shared: usize) -> Result<()> {
        let (states, row) = model.start();
        let wrong = |expected: String, found: String| Err(Error::Stream { expected, found });
        if self.model != model.fingerprint() {
            return wrong("a state of this model".into(), "one of another model".into());
        }
        let count = self.hyps.len();
        let fits = count > 0
            && self.states.is_sound()
            && self.states.rows() == count
            && self.states.shape() == states.shape();
        if !fits || self.rows.len() != count * row.len() {
            return wrong(format!("{count} rows of {:?} and {}", states.shape(), row.len()), "others".into());
        }
        let ids = model.predictor().ids() as u32;
        if let Some(label) =
            self.states.labels().iter().find(|&&label| label != crate::NO_LABEL && label >= ids)
        {
            return wrong(format!("labels below {ids}"), label.to_string());
        }
        if !self.states.values().iter().chain(&self.rows).all(|x| x.is_finite()) {
            return wrong("finite numbers".into(), "NaN or infinity".into());
        }
        let automata = shared + self.lists.len();
        if self.automata.len() != count * automata || self.shared != shared {
            let expected = format!("states of {automata} language models and lists for {count} hypotheses");
            return wrong(expected, self.automata.len().to_string());
        }
        let sound = |hyp: &BeamHypothesis| {
            // Only a big blank reaches beyond the chunks.
            let times = self.frames..=self.frames.saturating_add(model.token_table().max_blank_frames() - 1);
            self.frames.max(self.tree.taken()) <= LARGEST
                && self.tree.has(hyp.node)
                && times.contains(&hyp.time)
                && hyp.symbols == 0
                && hyp.log_prob.is_finite()
        };
        if !self.tree.is_sound(ids as usize) || !self.hyps.iter().all(sound) {
            return wrong("a tree of labels, and hypotheses at its nodes".into(), "others".into());
        }
        Ok(())
    }

    /// Puts the state of a lane, whose chunk is over, in the place of this one.
    pub(super) fn put(&mut self, lane: &mut BeamUtterance) {
        lane.sweep();
        self.tree.clone_from(&lane.tree);
        self.hyps.clone_from(&lane.hyps);
        self.frames = lane.end;
    }
}

/// Keeps some of as many rows.
fn retain<T>(all: &mut Vec<T>, keeps: &[bool]) {
    let (width, mut at) = (all.len() / keeps.len(), 0..);
    all.retain(|_| at.next().is_some_and(|at| keeps[at / width]));
}
