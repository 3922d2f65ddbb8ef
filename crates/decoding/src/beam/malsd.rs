//! Transducer beam search mALSD: the loop over steps.
//!
//! Batched alignment-length-synchronous decoding, as in NeMo (ALSD: Saon et al., ICASSP 2020).
//! Hypotheses advance independently of each other, and ended ones stay in the beam. `beam.rs`
//! explains the steps that all beam searches share.
use super::utterance::{BeamHypothesis, BeamPosition, Candidate};
use super::{BeamBuffers, BeamTask};
use crate::{Result, SiteIndex};

/// Candidates kept before merging, as a multiple of the beam width.
///
/// With several labels per frame, candidates with equal labels would otherwise crowd out others.
const CANDIDATES_PER_WIDTH: usize = 4;

impl BeamBuffers {
    /// Runs mALSD over the loaded utterances.
    ///
    /// ```text
    /// while hypotheses are before the end of their utterances:
    ///   joint scores of these hypotheses
    ///   the best of hypotheses x classes x durations, and of ended hypotheses: at most
    ///       `CANDIDATES_PER_WIDTH * width`
    ///   merge those with equal labels (their probabilities are added) that have ended, or have the
    ///       same frame and number of labels on it
    ///   the best `width` of the merged hypotheses; predictor states after the new labels
    /// ```
    /// Hypotheses with equal labels at a frame but different numbers of labels on it have different
    /// continuations, as `max_symbols` limits that number.
    pub(super) fn run_malsd(&mut self, task: BeamTask, max_symbols: usize) -> Result<()> {
        let (token_table, width) = (task.model.token_table(), task.options.width);
        loop {
            self.collect_shared_sites();
            if self.sites.is_empty() {
                return Ok(());
            }
            self.score_sites(task, width)?;
            for utterance in &mut self.utterances {
                let end_frame = utterance.end_frame;
                if utterance.hyps.iter().all(|hyp| hyp.frame >= end_frame) {
                    continue;
                }
                // Candidates: ended hypotheses unchanged, the others with their best expansions.
                utterance.best_candidates.clear(width.saturating_mul(CANDIDATES_PER_WIDTH));
                for (hyp_index, hyp) in utterance.hyps.iter().enumerate() {
                    if hyp.frame >= end_frame {
                        let candidate = Candidate { hyp_index, expansion: None, log_prob: hyp.log_prob };
                        utterance.best_candidates.push(candidate);
                        continue;
                    }
                    let site = utterance.site_of_hyp[hyp_index] as usize;
                    let blank = [self.top_k.blank(site)];
                    let is_frame_full = hyp.symbols >= max_symbols;
                    for expansion in if is_frame_full { &blank } else { self.top_k.expansions(site) } {
                        let log_prob = hyp.log_prob + expansion.value;
                        let candidate = Candidate { hyp_index, expansion: Some(*expansion), log_prob };
                        if !utterance.best_candidates.push(candidate) {
                            // Expansions are in descending order: the rest are not better.
                            break;
                        }
                    }
                }
                // Sum candidates with equal labels and positions, then keep the best.
                utterance.advance_best_hypotheses(
                    token_table,
                    width,
                    |hyp, expansion| {
                        let advance = token_table.frame_advance(expansion.class, expansion.duration as usize);
                        if token_table.is_blank(expansion.class) {
                            return BeamPosition {
                                frame: hyp.frame.saturating_add(advance.max(1)),
                                symbols: 0,
                            };
                        }
                        let symbols = if advance == 0 { hyp.symbols + 1 } else { 0 };
                        BeamPosition { frame: hyp.frame.saturating_add(advance), symbols }
                    },
                    |position, other| {
                        let both_ended = position.frame >= end_frame && other.frame >= end_frame;
                        both_ended || (position.frame, position.symbols) == (other.frame, other.symbols)
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
            utterance.site_of_hyp.clear();
            for i in 0..utterance.hyps.len() {
                let BeamHypothesis { frame, row, .. } = utterance.hyps[i];
                let has_same_site =
                    |&other: &usize| (utterance.hyps[other].frame, utterance.hyps[other].row) == (frame, row);
                let site = match (0..i).find(has_same_site) {
                    Some(other) => utterance.site_of_hyp[other],
                    // Ended: its site is never read.
                    None if frame >= utterance.end_frame => u32::MAX,
                    None => {
                        self.sites.push(SiteIndex {
                            utterance: utterance.index,
                            frame: frame - utterance.first_frame,
                            label_row: row as usize,
                        });
                        (self.sites.len() - 1) as u32
                    }
                };
                utterance.site_of_hyp.push(site);
            }
        }
    }
}
