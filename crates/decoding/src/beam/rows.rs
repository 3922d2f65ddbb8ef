//! Predictor and scorer states of beam hypotheses, one row per label sequence.
//!
//! A label row is the projected predictor output after a label sequence. A fusion score is the
//! weighted score of a label by language models and phrase lists.
use kernels::{par_for, parts, parts_mut};

use super::BeamOptions;
use super::utterance::{BeamUtterance, NO_ROW};
use crate::affine::resized;
use crate::scorer::check_fused;
use crate::{DecodingModel, Error, NetworkScratch, Result, SiteBatch, SiteIndex, States};

/// Rows that are kept for reuse, relative to the rows in use.
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
    /// Rows being computed, in the order of `pending`.
    new_rows: RowBlock,
    /// Hypothesis of each new row.
    pending: Vec<PendingRow>,
    /// Newest label of each new row.
    labels: Vec<u32>,
    /// Serial number of the next row: the number of rows computed so far.
    next_serial: u64,
    /// Number of steps so far.
    step: u64,
    /// Whether fusion or the internal language model changes the scores of labels.
    has_fusion: bool,
    /// Number of scorers of a row.
    scorers: usize,
    /// Scratch memory for the predictor's output.
    predicted: Vec<f32>,
    scratch: NetworkScratch,
}

/// A hypothesis without a row.
#[derive(Debug, Clone, Copy)]
struct PendingRow {
    utterance: usize,
    /// Index of the hypothesis in the utterance.
    hyp: usize,
    /// Index of the parent's row.
    parent_row: u32,
    /// Serial number of the parent's row.
    parent_serial: u64,
}

/// Parent and label of a cached row.
///
/// Indices of rows are reused; serial numbers are unique.
#[derive(Debug, Clone, Copy)]
struct CacheEntry {
    /// Serial number of the parent's row.
    parent_serial: u64,
    /// Newest label of the row.
    label: u32,
    /// Serial number of this row.
    serial: u64,
    /// Last step that used the row.
    last_used: u64,
}

/// States and scores of n label sequences.
#[derive(Debug, Default)]
struct RowBlock {
    /// Predictor states.
    states: States,
    /// Label rows, *n x R*.
    label_rows: Vec<f32>,
    /// Scores of fusion and internal language model, *n x C*; empty without them.
    fused: Vec<f32>,
    /// Scorer states.
    scorer_states: Vec<u32>,
}

impl HypothesisRows {
    /// Removes all rows and sets the number of scorers.
    pub fn reset(&mut self, model: &DecodingModel, options: &BeamOptions, utterances: &[BeamUtterance]) {
        let additional = utterances.iter().map(|utterance| utterance.fusion.len()).max().unwrap_or(0);
        self.scorers = options.fusion.len() + additional;
        self.has_fusion = self.scorers > 0 || options.internal_lm != 0.0;
        for block in [&mut self.cache, &mut self.new_rows] {
            block.states.clear(model.start().0.shape());
            block.label_rows.clear();
            block.fused.clear();
            block.scorer_states.clear();
        }
        self.pending.clear();
        self.labels.clear();
        self.cache_entries.clear();
        (self.next_serial, self.step) = (0, 0);
    }

    /// Adds a row for a hypothesis with [`NO_ROW`]; [`HypothesisRows::store`] must follow.
    pub fn load(
        &mut self,
        utterance: usize,
        hyp: usize,
        states: &States,
        label_rows: &[f32],
        scorer_states: &[u32],
    ) {
        let width = label_rows.len() / states.rows().max(1);
        let scorers = scorer_states.len() / states.rows().max(1);
        self.pending.push(PendingRow { utterance, hyp, parent_row: NO_ROW, parent_serial: u64::MAX });
        self.labels.push(0);
        self.new_rows.states.extend(states, [hyp]);
        self.new_rows.label_rows.extend_from_slice(&label_rows[hyp * width..][..width]);
        self.new_rows.scorer_states.extend_from_slice(&scorer_states[hyp * scorers..][..scorers]);
        self.new_rows.scorer_states.resize(self.pending.len() * self.scorers, 0);
    }

    /// Computes rows for all hypotheses without one, in one predictor step.
    ///
    /// # Errors
    /// Those of [`HypothesisRows::store`].
    pub fn extend(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &mut [BeamUtterance],
    ) -> Result<()> {
        let Self { cache, cache_entries, new_rows, pending, labels, scorers, .. } = self;
        pending.clear();
        labels.clear();
        new_rows.scorer_states.clear();
        for (utterance_index, utterance) in utterances.iter_mut().enumerate() {
            for hyp in 0..utterance.hyps.len() {
                if utterance.hyps[hyp].row != NO_ROW {
                    continue;
                }
                let parent_row = utterance.parent_rows[hyp];
                let label = utterance.tree.last(utterance.hyps[hyp].node).map_or(0, |(label, _)| label);
                let parent_serial = cache_entries[parent_row as usize].serial;
                let is_cached =
                    |entry: &CacheEntry| (entry.parent_serial, entry.label) == (parent_serial, label);
                if let Some(row) = cache_entries.iter().position(is_cached) {
                    utterance.hyps[hyp].row = row as u32;
                    continue;
                }
                pending.push(PendingRow { utterance: utterance_index, hyp, parent_row, parent_serial });
                labels.push(label);
                let first_state = new_rows.scorer_states.len();
                new_rows
                    .scorer_states
                    .extend_from_slice(&cache.scorer_states[parent_row as usize * *scorers..][..*scorers]);
                for (state, fusion) in
                    new_rows.scorer_states[first_state..].iter_mut().zip(utterance.fusions(options))
                {
                    *state = fusion.scorer.step(*state, label).1;
                }
            }
        }
        if pending.is_empty() {
            return Ok(());
        }
        new_rows.states.clear(cache.states.shape());
        new_rows.states.extend(&cache.states, pending.iter().map(|pending| pending.parent_row as usize));
        let label_rows = resized(&mut new_rows.label_rows, pending.len() * model.start().1.len());
        model.step(labels, &mut new_rows.states, label_rows, &mut self.predicted, &mut self.scratch);
        self.store(model, options, utterances)
    }

    /// Stores new rows in unused ones.
    ///
    /// # Errors
    /// [`Error::Fused`] if the fusion score of a label is NaN or +inf.
    pub fn store(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &mut [BeamUtterance],
    ) -> Result<()> {
        self.fuse(model, options, utterances)?;
        let Self { cache, cache_entries, new_rows, pending, labels, next_serial, step, .. } = self;
        *step += 1;
        // Mark the rows in use.
        let mut live = pending.len();
        for hyp in utterances.iter().flat_map(|utterance| utterance.hyps.iter().chain(&utterance.ended)) {
            if let Some(entry) = cache_entries.get_mut(hyp.row as usize) {
                entry.last_used = *step;
                live += 1;
            }
        }
        let (width, classes) = (model.start().1.len(), model.token_table().classes());
        for (new_row, &PendingRow { utterance, hyp, parent_serial, .. }) in pending.iter().enumerate() {
            // Replace the least recently used row once the cache is full; otherwise append one.
            let oldest = cache_entries
                .iter()
                .enumerate()
                .filter(|(_, entry)| entry.last_used < *step)
                .min_by_key(|(_, entry)| entry.last_used);
            let row = oldest
                .map(|(row, _)| row)
                .filter(|_| cache_entries.len() >= CAPACITY_FACTOR * live)
                .unwrap_or(cache_entries.len());
            let entry =
                CacheEntry { parent_serial, label: labels[new_row], serial: *next_serial, last_used: *step };
            *next_serial += 1;
            if row == cache_entries.len() {
                cache_entries.push(entry);
                cache.states.extend(&new_rows.states, [new_row]);
                cache.label_rows.resize((row + 1) * width, 0.0);
                cache.scorer_states.resize((row + 1) * self.scorers, 0);
                cache.fused.resize(if self.has_fusion { (row + 1) * classes } else { 0 }, 0.0);
            } else {
                cache_entries[row] = entry;
                cache.states.copy_row(row, &new_rows.states, new_row);
            }
            cache.label_rows[row * width..][..width]
                .copy_from_slice(&new_rows.label_rows[new_row * width..][..width]);
            let scorers = self.scorers;
            cache.scorer_states[row * scorers..][..scorers]
                .copy_from_slice(&new_rows.scorer_states[new_row * scorers..][..scorers]);
            if self.has_fusion {
                cache.fused[row * classes..][..classes]
                    .copy_from_slice(&new_rows.fused[new_row * classes..][..classes]);
            }
            utterances[utterance].hyps[hyp].row = row as u32;
        }
        pending.clear();
        Ok(())
    }

    /// Computes the fusion scores of new rows.
    fn fuse(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        utterances: &[BeamUtterance],
    ) -> Result<()> {
        if !self.has_fusion {
            return Ok(());
        }
        let Self { new_rows, pending, scratch, scorers, .. } = self;
        let (classes, token_table) = (model.token_table().classes(), model.token_table());
        let fused = resized(&mut new_rows.fused, pending.len() * classes);
        if options.internal_lm == 0.0 {
            fused.fill(0.0);
        } else {
            model.joint().internal_lm(&new_rows.label_rows, fused, scratch);
            fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
        }
        let scorer_states = &new_rows.scorer_states;
        par_for((parts_mut(fused, classes), parts(pending, 1)), |row, (fused, pending)| {
            let utterance = &utterances[pending[0].utterance];
            for (fusion, &state) in utterance.fusions(options).zip(&scorer_states[row * *scorers..]) {
                fusion.add_scores(state, fused);
            }
            token_table.blanks().for_each(|blank| fused[blank as usize] = 0.0);
        });
        for (fused, &PendingRow { utterance, .. }) in fused.chunks_exact(classes).zip(&*pending) {
            check_fused(fused).map_err(|error| error.in_utterance(utterances[utterance].index))?;
        }
        Ok(())
    }

    /// Evaluates the joint at sites.
    pub fn scores(
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

    /// Fusion scores of all classes for each row, *n x C*.
    pub fn fused(&self) -> Option<&[f32]> {
        self.has_fusion.then_some(&self.cache.fused)
    }

    /// Weighted final scores of a hypothesis.
    ///
    /// # Errors
    /// [`Error::End`] if it is NaN or +inf.
    pub fn finish(&self, utterance: &BeamUtterance, options: &BeamOptions, row: u32) -> Result<f64> {
        let states = &self.cache.scorer_states[row as usize * self.scorers..];
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
    pub fn save(
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
            scorer_states.extend_from_slice(&self.cache.scorer_states[row * self.scorers..][..scorers]);
        }
    }
}
