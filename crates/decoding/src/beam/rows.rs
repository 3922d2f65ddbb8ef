//! What networks and automata know of hypotheses: one row for each label sequence, wherever hypotheses move.
use kernels::{par_for, parts, parts_mut};

use super::BeamOptions;
use super::utterance::{BeamUtterance, FRESH};
use crate::affine::sized;
use crate::scorer::check_fused;
use crate::{DecodingModel, Error, NetworkScratch, Result, SiteBatch, SiteIndex, States};

/// How many times as many rows there are as hypotheses hold.
const ROOM: usize = 3;

/// Rows of all utterances. A hypothesis that a blank moves on keeps its row; one with a new label gets a row that nobody holds.
///
/// Searches try the same label behind the same hypothesis frame after frame: rows that nobody holds stay for a while, and are found
/// again by the row and the label that they were made of.
#[derive(Debug, Default)]
pub(super) struct HypothesisRows {
    held: RowBlock,
    /// Rows that are being made.
    new: RowBlock,
    made: Vec<Made>,
    /// Rows that were made so far, and steps.
    count: u64,
    step: u64,
    fresh: Vec<Fresh>,
    labels: Vec<u32>,
    /// Whether labels have other scores than the joint's.
    fuses: bool,
    /// Automata of a row.
    automata: usize,
    predicted: Vec<f32>,
    scratch: NetworkScratch,
}

/// A hypothesis that has no row.
#[derive(Debug, Clone, Copy)]
struct Fresh {
    lane: usize,
    hyp: usize,
    /// The row that it comes from, and its number.
    origin: u32,
    number: u64,
}

/// What a row was made of.
#[derive(Debug, Clone, Copy)]
struct Made {
    /// The number of the row of the hypothesis before.
    origin: u64,
    label: u32,
    /// Its own number: how many were made before it.
    number: u64,
    /// The last step in which somebody held it.
    held: u64,
}

/// Rows, and what each holds.
#[derive(Debug, Default)]
struct RowBlock {
    states: States,
    /// Label rows, *n x R*.
    rows: Vec<f32>,
    /// What automata and the internal language model add to each class, *n x C*, if anything does.
    fused: Vec<f32>,
    /// States of the automata.
    automata: Vec<u32>,
}

impl HypothesisRows {
    /// Forgets everything; lanes say which automata there are.
    pub fn reset(&mut self, model: &DecodingModel, options: &BeamOptions, lanes: &[BeamUtterance]) {
        let lists = lanes.iter().map(|lane| lane.lists.len()).max().unwrap_or(0);
        self.automata = options.fusion.len() + lists;
        self.fuses = self.automata > 0 || options.internal_lm != 0.0;
        for block in [&mut self.held, &mut self.new] {
            block.states.clear(model.start().0.shape());
            block.rows.clear();
            block.fused.clear();
            block.automata.clear();
        }
        self.fresh.clear();
        self.labels.clear();
        self.made.clear();
        (self.count, self.step) = (0, 0);
    }

    /// Adds a row for the next hypothesis of a lane, which has [`FRESH`]; [`HypothesisRows::place`] must follow.
    pub fn load(&mut self, (lane, hyp): (usize, usize), states: &States, rows: &[f32], automata: &[u32]) {
        let width = rows.len() / states.rows().max(1);
        let each = automata.len() / states.rows().max(1);
        self.fresh.push(Fresh { lane, hyp, origin: FRESH, number: u64::MAX });
        self.labels.push(0);
        self.new.states.extend(states, [hyp]);
        self.new.rows.extend_from_slice(&rows[hyp * width..][..width]);
        self.new.automata.extend_from_slice(&automata[hyp * each..][..each]);
        self.new.automata.resize(self.fresh.len() * self.automata, 0);
    }

    /// Makes rows for all hypotheses that have none: one predictor step.
    ///
    /// # Errors
    /// As [`HypothesisRows::place`].
    pub fn extend(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        lanes: &mut [BeamUtterance],
    ) -> Result<()> {
        let Self { held, new, made, fresh, labels, automata: each, .. } = self;
        fresh.clear();
        labels.clear();
        new.automata.clear();
        for (at, lane) in lanes.iter_mut().enumerate() {
            for i in 0..lane.hyps.len() {
                if lane.hyps[i].row != FRESH {
                    continue;
                }
                let origin = lane.origins[i];
                let label = lane.tree.last(lane.hyps[i].node).map_or(0, |(label, _)| label);
                let number = made[origin as usize].number;
                let again = |made: &Made| (made.origin, made.label) == (number, label);
                if let Some(row) = made.iter().position(again) {
                    lane.hyps[i].row = row as u32;
                    continue;
                }
                fresh.push(Fresh { lane: at, hyp: i, origin, number });
                labels.push(label);
                let before = new.automata.len();
                new.automata.extend_from_slice(&held.automata[origin as usize * *each..][..*each]);
                for (state, fusion) in new.automata[before..].iter_mut().zip(lane.fusions(options)) {
                    *state = fusion.scorer.step(*state, label).1;
                }
            }
        }
        if fresh.is_empty() {
            return Ok(());
        }
        new.states.clear(held.states.shape());
        new.states.extend(&held.states, fresh.iter().map(|fresh| fresh.origin as usize));
        let rows = sized(&mut new.rows, fresh.len() * model.start().1.len());
        model.step(labels, &mut new.states, rows, (&mut self.predicted, &mut self.scratch));
        self.place(model, options, lanes)
    }

    /// Gives new rows a place among those that nobody holds.
    ///
    /// # Errors
    /// [`Error::Fused`] if an scorer has no score for a label.
    pub fn place(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        lanes: &mut [BeamUtterance],
    ) -> Result<()> {
        self.fuse(model, options, lanes)?;
        let Self { held, new, made, fresh, labels, count, step, .. } = self;
        *step += 1;
        let mut live = fresh.len();
        for hyp in lanes.iter().flat_map(|lane| lane.hyps.iter().chain(&lane.aside)) {
            if let Some(row) = made.get_mut(hyp.row as usize) {
                row.held = *step;
                live += 1;
            }
        }
        let (width, classes) = (model.start().1.len(), model.token_table().classes());
        for (from, &Fresh { lane, hyp, number, .. }) in fresh.iter().enumerate() {
            let oldest =
                made.iter().enumerate().filter(|(_, row)| row.held < *step).min_by_key(|(_, row)| row.held);
            let free = oldest.map(|(row, _)| row).filter(|_| made.len() >= ROOM * live).unwrap_or(made.len());
            let row = Made { origin: number, label: labels[from], number: *count, held: *step };
            *count += 1;
            if free == made.len() {
                made.push(row);
                held.states.extend(&new.states, [from]);
                held.rows.resize((free + 1) * width, 0.0);
                held.automata.resize((free + 1) * self.automata, 0);
                held.fused.resize(if self.fuses { (free + 1) * classes } else { 0 }, 0.0);
            } else {
                made[free] = row;
                held.states.set(free, &new.states, from);
            }
            held.rows[free * width..][..width].copy_from_slice(&new.rows[from * width..][..width]);
            let each = self.automata;
            held.automata[free * each..][..each].copy_from_slice(&new.automata[from * each..][..each]);
            if self.fuses {
                held.fused[free * classes..][..classes]
                    .copy_from_slice(&new.fused[from * classes..][..classes]);
            }
            lanes[lane].hyps[hyp].row = free as u32;
        }
        fresh.clear();
        Ok(())
    }

    /// What is added to the classes behind new rows.
    fn fuse(&mut self, model: &DecodingModel, options: &BeamOptions, lanes: &[BeamUtterance]) -> Result<()> {
        if !self.fuses {
            return Ok(());
        }
        let Self { new, fresh, scratch, automata: each, .. } = self;
        let (classes, token_table) = (model.token_table().classes(), model.token_table());
        let fused = sized(&mut new.fused, fresh.len() * classes);
        if options.internal_lm == 0.0 {
            fused.fill(0.0);
        } else {
            model.joint().internal_lm(&new.rows, fused, scratch);
            fused.iter_mut().for_each(|score| *score *= -options.internal_lm);
        }
        let automata = &new.automata;
        par_for((parts_mut(fused, classes), parts(fresh, 1)), |at, (fused, fresh)| {
            let lane = &lanes[fresh[0].lane];
            for (fusion, &state) in lane.fusions(options).zip(&automata[at * *each..]) {
                fusion.add_scores(state, fused);
            }
            token_table.blanks().for_each(|blank| fused[blank as usize] = 0.0);
        });
        for (fused, &Fresh { lane, .. }) in fused.chunks_exact(classes).zip(&*fresh) {
            check_fused(fused).map_err(|error| error.of(lanes[lane].utterance))?;
        }
        Ok(())
    }

    /// Scores of sites.
    pub fn scores(&mut self, model: &DecodingModel, frames: &[&[f32]], at: &[SiteIndex], scores: &mut [f32]) {
        model.joint().scores(&SiteBatch { frames, rows: &self.held.rows, at }, scores, &mut self.scratch);
    }

    /// What is added to the classes behind each row, *n x C*.
    pub fn fused(&self) -> Option<&[f32]> {
        self.fuses.then_some(&self.held.fused)
    }

    /// What automata add at the end of a hypothesis.
    ///
    /// # Errors
    /// [`Error::End`] if it is NaN or +inf.
    pub fn finish(&self, lane: &BeamUtterance, options: &BeamOptions, row: u32) -> Result<f64> {
        let states = &self.held.automata[row as usize * self.automata..];
        let sum: f64 = lane.fusions(options).zip(states).map(|(fusion, &state)| fusion.finish(state)).sum();
        if sum < f64::INFINITY {
            return Ok(sum);
        }
        Err(Error::End { found: sum }.in_utterance(lane.utterance))
    }

    /// Appends the rows of a lane's hypotheses, in their order.
    pub fn save(
        &self,
        lane: &BeamUtterance,
        automata: usize,
        to: (&mut States, &mut Vec<f32>, &mut Vec<u32>),
    ) {
        let (states, rows, states_of_automata) = to;
        let all = || lane.hyps.iter().map(|hyp| hyp.row as usize);
        let width = self.held.rows.len() / self.held.states.rows().max(1);
        states.extend(&self.held.states, all());
        for row in all() {
            rows.extend_from_slice(&self.held.rows[row * width..][..width]);
            let all = &self.held.automata[row * self.automata..][..automata];
            states_of_automata.extend_from_slice(all);
        }
    }
}
