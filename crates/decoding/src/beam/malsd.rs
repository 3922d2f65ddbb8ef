//! Batched alignment-length-synchronous decoding (mALSD), as in NeMo.
//!
//! Hypotheses advance independently of each other, and ended ones stay in the beam. ALSD: Saon et
//! al., ICASSP 2020.
use super::utterance::{BeamHypothesis, BeamPosition, Candidate};
use super::{BeamBuffers, BeamTask};
use crate::{Result, SiteIndex};

/// Candidates kept before merging, as a multiple of the beam width.
///
/// With several labels per frame, candidates with equal labels would otherwise crowd out others.
const CANDIDATES_PER_WIDTH: usize = 4;

impl BeamBuffers {
    /// Runs mALSD.
    ///
    /// ```text
    /// while hypotheses are before the end of their utterances:
    ///   scores of these
    ///   the best `4 width` of hypotheses x classes x durations, and of ended hypotheses
    ///   merge equal labels that have ended, or have the same frame and number of labels on it
    ///   the best `width` of these sums; predictor of the new labels
    /// ```
    /// Hypotheses with equal labels at a frame but different numbers of labels on it have different
    /// continuations, as `max_symbols` limits that number.
    pub(super) fn malsd(&mut self, task: BeamTask, max_symbols: usize) -> Result<()> {
        let (token_table, width) = (task.model.token_table(), task.options.width);
        loop {
            self.collect_shared_sites();
            if self.sites.is_empty() {
                return Ok(());
            }
            self.score_sites(task, width)?;
            for utterance in &mut self.utterances {
                let end = utterance.end_frame;
                if utterance.hyps.iter().all(|hyp| hyp.time >= end) {
                    continue;
                }
                // Candidates: ended hypotheses unchanged, the others with their best expansions.
                utterance.best.clear(width.saturating_mul(CANDIDATES_PER_WIDTH));
                for (i, hyp) in utterance.hyps.iter().enumerate() {
                    if hyp.time >= end {
                        utterance.best.push(Candidate { hyp: i, expansion: None, log_prob: hyp.log_prob });
                        continue;
                    }
                    let site = utterance.sites[i] as usize;
                    let blank = [self.top_k.blank(site)];
                    let is_full = hyp.symbols >= max_symbols;
                    for expansion in if is_full { &blank } else { self.top_k.entries(site) } {
                        let log_prob = hyp.log_prob + expansion.value;
                        if !utterance.best.push(Candidate { hyp: i, expansion: Some(*expansion), log_prob }) {
                            // Expansions are sorted, so that the others are worse.
                            break;
                        }
                    }
                }
                // Sum candidates with equal labels and positions, then keep the best.
                utterance.choose_best(
                    token_table,
                    width,
                    |hyp, expansion| {
                        let frames = token_table.frame_advance(expansion.class, expansion.duration as usize);
                        if token_table.is_blank(expansion.class) {
                            return BeamPosition { time: hyp.time.saturating_add(frames.max(1)), symbols: 0 };
                        }
                        let symbols = if frames == 0 { hyp.symbols + 1 } else { 0 };
                        BeamPosition { time: hyp.time.saturating_add(frames), symbols }
                    },
                    |position, other| {
                        let ended = position.time >= end && other.time >= end;
                        ended || (position.time, position.symbols) == (other.time, other.symbols)
                    },
                );
            }
            self.extend(task)?;
        }
    }

    /// Collects the sites of hypotheses before the end of their utterances.
    ///
    /// Hypotheses that differ only in the number of labels on the frame share a site.
    fn collect_shared_sites(&mut self) {
        self.sites.clear();
        for utterance in &mut self.utterances {
            utterance.sites.clear();
            for i in 0..utterance.hyps.len() {
                let BeamHypothesis { time, row, .. } = utterance.hyps[i];
                let is_same =
                    |&other: &usize| (utterance.hyps[other].time, utterance.hyps[other].row) == (time, row);
                let site = match (0..i).find(is_same) {
                    Some(other) => utterance.sites[other],
                    // Ended: its site is never read.
                    None if time >= utterance.end_frame => u32::MAX,
                    None => {
                        let (index, frame) = (utterance.index, time - utterance.first_frame);
                        self.sites.push(SiteIndex { utterance: index, frame, label_row: row as usize });
                        (self.sites.len() - 1) as u32
                    }
                };
                utterance.sites.push(site);
            }
        }
    }
}
