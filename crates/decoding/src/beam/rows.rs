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
    rows: RowBlock,
    /// Rows being computed.
    new: RowBlock,
    /// Origin of each row.
    origins: Vec<RowOrigin>,
    /// Number of computed rows: the serial number of the next one.
    count: u64,
    /// Number of steps so far.
    step: u64,
    pending: Vec<PendingRow>,
    labels: Vec<u32>,
    /// Whether fusion or the internal language model changes the scores of labels.
    has_fusion: bool,
    /// Number of scorers of a row.
    scorers: usize,
    predicted: Vec<f32>,
    scratch: NetworkScratch,
}

/// A hypothesis without a row.
#[derive(Debug, Clone, Copy)]
struct PendingRow {
    utterance: usize,
    hyp: usize,
    /// Index of the parent's row.
    origin: u32,
    /// Serial number of the parent's row.
    number: u64,
}

/// Parent and label of a row.
///
/// Indices of rows are reused; serial numbers are unique.
#[derive(Debug, Clone, Copy)]
struct RowOrigin {
    /// Serial number of the parent's row.
    origin: u64,
    label: u32,
    /// Serial number of this row.
    number: u64,
    /// Last step that used the row.
    last_used: u64,
}

/// A block of rows.
#[derive(Debug, Default)]
struct RowBlock {
    states: States,
    /// Label rows, *n x R*.
    rows: Vec<f32>,
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
        for block in [&mut self.rows, &mut self.new] {
            block.states.clear(model.start().0.shape());
            block.rows.clear();
            block.fused.clear();
            block.scorer_states.clear();
        }
        self.pending.clear();
        self.labels.clear();
        self.origins.clear();
        (self.count, self.step) = (0, 0);
    }

    /// Adds a row for a hypothesis with [`NO_ROW`]; [`HypothesisRows::store`] must follow.
    pub fn load(
        &mut self,
        (utterance, hyp): (usize, usize),
        states: &States,
        rows: &[f32],
        scorer_states: &[u32],
    ) {
        let width = rows.len() / states.rows().max(1);
        let scorers = scorer_states.len() / states.rows().max(1);
        self.pending.push(PendingRow { utterance, hyp, origin: NO_ROW, number: u64::MAX });
        self.labels.push(0);
        self.new.states.extend(states, [hyp]);
        self.new.rows.extend_from_slice(&rows[hyp * width..][..width]);
        self.new.scorer_states.extend_from_slice(&scorer_states[hyp * scorers..][..scorers]);
        self.new.scorer_states.resize(self.pending.len() * self.scorers, 0);
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
        let Self { rows, new, origins, pending, labels, scorers, .. } = self;
        pending.clear();
        labels.clear();
        new.scorer_states.clear();
        for (at, utterance) in utterances.iter_mut().enumerate() {
            for i in 0..utterance.hyps.len() {
                if utterance.hyps[i].row != NO_ROW {
                    continue;
                }
                let origin = utterance.origins[i];
                let label = utterance.tree.last(utterance.hyps[i].node).map_or(0, |(label, _)| label);
                let number = origins[origin as usize].number;
                let is_cached = |row: &RowOrigin| (row.origin, row.label) == (number, label);
                if let Some(row) = origins.iter().position(is_cached) {
                    utterance.hyps[i].row = row as u32;
                    continue;
                }
                pending.push(PendingRow { utterance: at, hyp: i, origin, number });
                labels.push(label);
                let before = new.scorer_states.len();
                new.scorer_states
                    .extend_from_slice(&rows.scorer_states[origin as usize * *scorers..][..*scorers]);
                for (state, fusion) in new.scorer_states[before..].iter_mut().zip(utterance.fusions(options))
                {
                    *state = fusion.scorer.step(*state, label).1;
                }
            }
        }
        if pending.is_empty() {
            return Ok(());
        }
        new.states.clear(rows.states.shape());
        new.states.extend(&rows.states, pending.iter().map(|pending| pending.origin as usize));
        let rows = resized(&mut new.rows, pending.len() * model.start().1.len());
        model.step(labels, &mut new.states, rows, (&mut self.predicted, &mut self.scratch));
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
        let Self { rows, new, origins, pending, labels, count, step, .. } = self;
        *step += 1;
        let mut live = pending.len();
        for hyp in utterances.iter().flat_map(|utterance| utterance.hyps.iter().chain(&utterance.ended)) {
            if let Some(row) = origins.get_mut(hyp.row as usize) {
                row.last_used = *step;
                live += 1;
            }
        }
        let (width, classes) = (model.start().1.len(), model.token_table().classes());
        for (from, &PendingRow { utterance, hyp, number, .. }) in pending.iter().enumerate() {
            let oldest = origins
                .iter()
                .enumerate()
                .filter(|(_, row)| row.last_used < *step)
                .min_by_key(|(_, row)| row.last_used);
            let free = oldest
                .map(|(row, _)| row)
                .filter(|_| origins.len() >= CAPACITY_FACTOR * live)
                .unwrap_or(origins.len());
            let row = RowOrigin { origin: number, label: labels[from], number: *count, last_used: *step };
            *count += 1;
            if free == origins.len() {
                origins.push(row);
                rows.states.extend(&new.states, [from]);
                rows.rows.resize((free + 1) * width, 0.0);
                rows.scorer_states.resize((free + 1) * self.scorers, 0);
                rows.fused.resize(if self.has_fusion { (free + 1) * classes } else { 0 }, 0.0);
            } else {
                origins[free] = row;
                rows.states.set(free, &new.states, from);
            }
            rows.rows[free * width..][..width].copy_from_slice(&new.rows[from * width..][..width]);
            let scorers = self.scorers;
            rows.scorer_states[free * scorers..][..scorers]
                .copy_from_slice(&new.scorer_states[from * scorers..][..scorers]);
            if self.has_fusion {
                rows.fused[free * classes..][..classes]
                    .copy_from_slice(&new.fused[from * classes..][..classes]);
            }
            utterances[utterance].hyps[hyp].row = free as u32;
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
        let Self { new, pending, scratch, scorers, .. } = self;
        let (classes, token_table) = (model.token_table().classes(), model.token_table());
        let fused = resized(&mut new.fused, pending.len() * classes);
        if options.internal_lm == 0.0 {
            fused.fill(0.0);
        } else {
            model.joint().internal_lm(&new.rows, fused, scratch);
            fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
        }
        let scorer_states = &new.scorer_states;
        par_for((parts_mut(fused, classes), parts(pending, 1)), |at, (fused, pending)| {
            let utterance = &utterances[pending[0].utterance];
            for (fusion, &state) in utterance.fusions(options).zip(&scorer_states[at * *scorers..]) {
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
        model.joint().scores(&SiteBatch { frames, rows: &self.rows.rows, sites }, scores, &mut self.scratch);
    }

    /// Fusion scores of all classes for each row, *n x C*.
    pub fn fused(&self) -> Option<&[f32]> {
        self.has_fusion.then_some(&self.rows.fused)
    }

    /// Weighted final scores of a hypothesis.
    ///
    /// # Errors
    /// [`Error::End`] if it is NaN or +inf.
    pub fn finish(&self, utterance: &BeamUtterance, options: &BeamOptions, row: u32) -> Result<f64> {
        let states = &self.rows.scorer_states[row as usize * self.scorers..];
        let sum: f64 =
            utterance.fusions(options).zip(states).map(|(fusion, &state)| fusion.finish(state)).sum();
        if sum < f64::INFINITY {
            return Ok(sum);
        }
        Err(Error::End { found: sum }.in_utterance(utterance.index))
    }

    /// Appends the rows of an utterance's hypotheses in order.
    pub fn save(
        &self,
        utterance: &BeamUtterance,
        scorers: usize,
        to: (&mut States, &mut Vec<f32>, &mut Vec<u32>),
    ) {
        let (states, rows, scorer_states) = to;
        let hypothesis_rows = || utterance.hyps.iter().map(|hyp| hyp.row as usize);
        let width = self.rows.rows.len() / self.rows.states.rows().max(1);
        states.extend(&self.rows.states, hypothesis_rows());
        for row in hypothesis_rows() {
            rows.extend_from_slice(&self.rows.rows[row * width..][..width]);
            let row = &self.rows.scorer_states[row * self.scorers..][..scorers];
            scorer_states.extend_from_slice(row);
        }
    }
}
