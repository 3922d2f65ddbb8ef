//! Predictor and scorer states of beam hypotheses, cached by label sequence.
//!
//! A row has all that a search computes once per label sequence: the predictor's state, the label
//! row (projected predictor output), the states of language models and phrase lists, and their
//! weighted scores of the next labels (fusion scores). A hypothesis has the index of its row.
//!
//! ```text
//! load    rows from the stored states of streams
//! extend  rows of new labels: cached ones, or one predictor step for all others
//! save    rows to the stored states of streams
//! ```
//! C: classes; R: width of a label row.
use kernels::{par_for, parts, parts_mut};

use super::BeamOptions;
use super::utterance::{BeamUtterance, NO_ROW};
use crate::affine::resized;
use crate::scorer::check_fused;
use crate::{DecodingModel, Error, NetworkScratch, Result, SiteBatch, SiteIndex, States};

/// Cached rows, at most, relative to the rows in use.
const CAPACITY_FACTOR: usize = 3;

/// Rows of the hypotheses of all utterances.
///
/// A blank keeps the row of a hypothesis; a new label takes an unused row. Searches try the same
/// label after the same hypothesis frame by frame, so unused rows are cached and found by their
/// parent row and label.
#[derive(Debug, Default)]
pub(super) struct HypothesisRows {
    /// Rows in use and rows for reuse.
    cache: RowBlock,
    /// Parent and label of each cached row.
    cache_entries: Vec<CacheEntry>,
    /// Rows being computed, in the order of `pending_rows`.
    new_rows: RowBlock,
    /// Hypothesis of each new row.
    pending_rows: Vec<PendingRow>,
    /// Newest label of each new row.
    new_labels: Vec<u32>,
    /// Id of the next row: the number of rows computed so far.
    next_row_id: u64,
    /// Number of steps so far.
    step: u64,
    /// Whether fusion or the internal language model changes the scores of labels.
    has_fusion: bool,
    /// Number of scorer states of a row.
    scorers_per_row: usize,
    /// Scratch memory for the predictor's output.
    predicted: Vec<f32>,
    scratch: NetworkScratch,
}

/// A hypothesis without a row.
#[derive(Debug, Clone, Copy)]
struct PendingRow {
    /// Index of the utterance in the batch.
    utterance: usize,
    /// Index of the hypothesis in the utterance.
    hyp_index: usize,
    /// Index in the cache of the row without the newest label.
    parent_row_index: u32,
    /// Id of the row without the newest label.
    parent_row_id: u64,
}

/// Key of a cached row: the id of its parent and its newest label.
///
/// The parent is the row without the newest label. Indices of rows are reused; ids are unique.
#[derive(Debug, Clone, Copy)]
struct CacheEntry {
    /// Id of the parent.
    parent_row_id: u64,
    /// Newest label of the row.
    label: u32,
    /// Id of this row.
    row_id: u64,
    /// Last step that used the row.
    last_used: u64,
}

/// States and scores of n label sequences, a row each.
#[derive(Debug, Default)]
struct RowBlock {
    /// Predictor states.
    states: States,
    /// Label rows, *n x R*.
    label_rows: Vec<f32>,
    /// Scores of fusion and internal language model, *n x C*; empty without them.
    fusion_scores: Vec<f32>,
    /// Scorer states, *n x scorers_per_row*.
    scorer_states: Vec<u32>,
}

impl HypothesisRows {
    /// Removes all rows and sets the number of scorers.
    pub(super) fn reset(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &[BeamUtterance],
    ) {
        let max_own_fusions = utterances.iter().map(|utterance| utterance.fusion.len()).max().unwrap_or(0);
        self.scorers_per_row = options.fusion.len() + max_own_fusions;
        self.has_fusion = self.scorers_per_row > 0 || options.internal_lm != 0.0;
        for block in [&mut self.cache, &mut self.new_rows] {
            block.states.clear(model.start().0.shape());
            block.label_rows.clear();
            block.fusion_scores.clear();
            block.scorer_states.clear();
        }
        self.pending_rows.clear();
        self.new_labels.clear();
        self.cache_entries.clear();
        (self.next_row_id, self.step) = (0, 0);
    }

    /// Adds a row with the stored states of a hypothesis with [`NO_ROW`].
    ///
    /// The lists have one row per hypothesis. [`HypothesisRows::store`] must follow.
    pub(super) fn load(
        &mut self,
        utterance: usize,
        hyp_index: usize,
        states: &States,
        label_rows: &[f32],
        scorer_states: &[u32],
    ) {
        let width = label_rows.len() / states.rows().max(1);
        let scorers = scorer_states.len() / states.rows().max(1);
        // No row has this parent: the row is never found by its parent and label.
        self.pending_rows.push(PendingRow {
            utterance,
            hyp_index,
            parent_row_index: NO_ROW,
            parent_row_id: u64::MAX,
        });
        self.new_labels.push(0);
        self.new_rows.states.extend(states, [hyp_index]);
        self.new_rows.label_rows.extend_from_slice(&label_rows[hyp_index * width..][..width]);
        self.new_rows.scorer_states.extend_from_slice(&scorer_states[hyp_index * scorers..][..scorers]);
        self.new_rows.scorer_states.resize(self.pending_rows.len() * self.scorers_per_row, 0);
    }

    /// Computes rows for all hypotheses without one, in one predictor step.
    ///
    /// # Errors
    /// Those of [`HypothesisRows::store`].
    pub(super) fn extend(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &mut [BeamUtterance],
    ) -> Result<()> {
        let Self { cache, cache_entries, new_rows, pending_rows, new_labels, .. } = self;
        let scorers = self.scorers_per_row;
        pending_rows.clear();
        new_labels.clear();
        new_rows.scorer_states.clear();
        for (utterance_index, utterance) in utterances.iter_mut().enumerate() {
            for hyp_index in 0..utterance.hyps.len() {
                if utterance.hyps[hyp_index].row != NO_ROW {
                    continue;
                }
                // A cached row of the same label after the same parent.
                let parent_row_index = utterance.parent_rows[hyp_index];
                let node = utterance.hyps[hyp_index].node;
                let label = utterance.tree.last(node).map_or(0, |(label, _)| label);
                let parent_row_id = cache_entries[parent_row_index as usize].row_id;
                let is_same_sequence =
                    |entry: &CacheEntry| (entry.parent_row_id, entry.label) == (parent_row_id, label);
                if let Some(row) = cache_entries.iter().position(is_same_sequence) {
                    utterance.hyps[hyp_index].row = row as u32;
                    continue;
                }
                // Otherwise a new row, with the scorers advanced by the label.
                pending_rows.push(PendingRow {
                    utterance: utterance_index,
                    hyp_index,
                    parent_row_index,
                    parent_row_id,
                });
                new_labels.push(label);
                let state_offset = new_rows.scorer_states.len();
                new_rows.scorer_states.extend_from_slice(
                    &cache.scorer_states[parent_row_index as usize * scorers..][..scorers],
                );
                for (state, fusion) in
                    new_rows.scorer_states[state_offset..].iter_mut().zip(utterance.fusions(options))
                {
                    *state = fusion.scorer.step(*state, label).1;
                }
            }
        }
        if pending_rows.is_empty() {
            return Ok(());
        }
        // One predictor step for all new rows, from the states of their parents.
        new_rows.states.clear(cache.states.shape());
        let parent_rows = pending_rows.iter().map(|pending_row| pending_row.parent_row_index as usize);
        new_rows.states.extend(&cache.states, parent_rows);
        let label_rows = resized(&mut new_rows.label_rows, pending_rows.len() * model.start().1.len());
        model.step(new_labels, &mut new_rows.states, label_rows, &mut self.predicted, &mut self.scratch);
        self.store(model, options, utterances)
    }

    /// Computes the fusion scores of new rows; moves the rows to the cache.
    ///
    /// # Errors
    /// [`Error::Fused`] if the fusion score of a label is NaN or +inf.
    pub(super) fn store(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &mut [BeamUtterance],
    ) -> Result<()> {
        self.compute_fusion_scores(model, options, utterances)?;
        let Self { cache, cache_entries, new_rows, pending_rows, new_labels, next_row_id, step, .. } = self;
        *step += 1;
        // Mark the rows in use.
        let mut rows_in_use = pending_rows.len();
        for hyp in utterances.iter().flat_map(|utterance| utterance.hyps.iter().chain(&utterance.ended_hyps))
        {
            if let Some(entry) = cache_entries.get_mut(hyp.row as usize) {
                entry.last_used = *step;
                rows_in_use += 1;
            }
        }
        let (width, classes) = (model.start().1.len(), model.token_table().classes());
        for (new_row, pending_row) in pending_rows.iter().enumerate() {
            let &PendingRow { utterance, hyp_index, parent_row_id, .. } = pending_row;
            // Replace the least recently used row once the cache is full; otherwise append one.
            let oldest = cache_entries
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.last_used < *step)
                .min_by_key(|(_, entry)| entry.last_used);
            let row = oldest
                .map(|(row, _)| row)
                .filter(|_| cache_entries.len() >= CAPACITY_FACTOR * rows_in_use)
                .unwrap_or(cache_entries.len());
            let entry = CacheEntry {
                parent_row_id,
                label: new_labels[new_row],
                row_id: *next_row_id,
                last_used: *step,
            };
            *next_row_id += 1;
            if row == cache_entries.len() {
                cache_entries.push(entry);
                cache.states.extend(&new_rows.states, [new_row]);
                cache.label_rows.resize((row + 1) * width, 0.0);
                cache.scorer_states.resize((row + 1) * self.scorers_per_row, 0);
                cache.fusion_scores.resize(if self.has_fusion { (row + 1) * classes } else { 0 }, 0.0);
            } else {
                cache_entries[row] = entry;
                cache.states.copy_row(row, &new_rows.states, new_row);
            }
            cache.label_rows[row * width..][..width]
                .copy_from_slice(&new_rows.label_rows[new_row * width..][..width]);
            let scorers = self.scorers_per_row;
            cache.scorer_states[row * scorers..][..scorers]
                .copy_from_slice(&new_rows.scorer_states[new_row * scorers..][..scorers]);
            if self.has_fusion {
                cache.fusion_scores[row * classes..][..classes]
                    .copy_from_slice(&new_rows.fusion_scores[new_row * classes..][..classes]);
            }
            utterances[utterance].hyps[hyp_index].row = row as u32;
        }
        pending_rows.clear();
        Ok(())
    }

    /// Computes the fusion scores of new rows.
    fn compute_fusion_scores(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &[BeamUtterance],
    ) -> Result<()> {
        if !self.has_fusion {
            return Ok(());
        }
        let Self { new_rows, pending_rows, scratch, .. } = self;
        let scorers = self.scorers_per_row;
        let (classes, token_table) = (model.token_table().classes(), model.token_table());
        let fusion_scores = resized(&mut new_rows.fusion_scores, pending_rows.len() * classes);
        if options.internal_lm == 0.0 {
            fusion_scores.fill(0.0);
        } else {
            model.joint().internal_lm(&new_rows.label_rows, fusion_scores, scratch);
            fusion_scores.iter_mut().for_each(|score| *score *= -options.internal_lm);
        }
        let scorer_states = &new_rows.scorer_states;
        let task_parts = (parts_mut(fusion_scores, classes), parts(pending_rows, 1));
        par_for(task_parts, |row, (scores_of_row, pending_row)| {
            let utterance = &utterances[pending_row[0].utterance];
            for (fusion, &state) in utterance.fusions(options).zip(&scorer_states[row * scorers..]) {
                fusion.add_scores(state, scores_of_row);
            }
            token_table.blanks().for_each(|blank| scores_of_row[blank as usize] = 0.0);
        });
        let rows_of_scores = fusion_scores.chunks_exact(classes);
        for (scores_of_row, &PendingRow { utterance, .. }) in rows_of_scores.zip(&*pending_rows) {
            check_fused(scores_of_row).map_err(|error| error.in_utterance(utterances[utterance].index))?;
        }
        Ok(())
    }

    /// Evaluates the joint at sites; a site's label row is the index of a cached row.
    pub(super) fn joint_scores(
        &mut self,
        model: &DecodingModel,
        frames: &[&[f32]],
        sites: &[SiteIndex],
        scores: &mut [f32],
    ) {
        model.joint().scores(
            &SiteBatch { frames, label_rows: &self.cache.label_rows, sites },
            scores,
            &mut self.scratch,
        );
    }

    /// Fusion scores of all classes for each cached row, *n x C*; none without fusion.
    pub(super) fn fusion_scores(&self) -> Option<&[f32]> {
        self.has_fusion.then_some(&self.cache.fusion_scores)
    }

    /// Weighted final scores of a hypothesis.
    ///
    /// # Errors
    /// [`Error::End`] if it is NaN or +inf.
    pub(super) fn final_score(
        &self,
        utterance: &BeamUtterance,
        options: &BeamOptions,
        row: u32,
    ) -> Result<f64> {
        let states = &self.cache.scorer_states[row as usize * self.scorers_per_row..];
        let sum: f64 =
            utterance.fusions(options).zip(states).map(|(fusion, &state)| fusion.finish(state)).sum();
        if sum < f64::INFINITY {
            return Ok(sum);
        }
        Err(Error::End { found: sum }.in_utterance(utterance.index))
    }

    /// Appends the rows of an utterance's hypotheses in order.
    ///
    /// `scorers` is the number of scorer states of a hypothesis that are saved.
    pub(super) fn save(
        &self,
        utterance: &BeamUtterance,
        scorers: usize,
        states: &mut States,
        label_rows: &mut Vec<f32>,
        scorer_states: &mut Vec<u32>,
    ) {
        let hypothesis_rows = || utterance.hyps.iter().map(|hyp| hyp.row as usize);
        let width = self.cache.label_rows.len() / self.cache.states.rows().max(1);
        states.extend(&self.cache.states, hypothesis_rows());
        for row in hypothesis_rows() {
            label_rows.extend_from_slice(&self.cache.label_rows[row * width..][..width]);
            scorer_states
                .extend_from_slice(&self.cache.scorer_states[row * self.scorers_per_row..][..scorers]);
        }
    }
}
