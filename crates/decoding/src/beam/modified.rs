//! Modified beam search of transducers: the loop over frames.
//!
//! As in k2's recipes, a frame emits at most one label, and all hypotheses are at the same frame. A
//! hypothesis with a big blank, which covers several frames, waits: it is expanded again at the
//! frame after the blank. `beam.rs` explains the steps that all beam searches share.
use super::utterance::{BeamPosition, BeamUtterance, Candidate};
use super::{BeamBuffers, BeamTask};
use crate::Result;

/// Duration index of a model without durations; the search supports no others.
const NO_DURATION: usize = 0;

impl BeamBuffers {
    /// Runs modified beam search over the loaded chunks.
    ///
    /// ```text
    /// for each frame t:
    ///   joint scores of the hypotheses at t
    ///   the best `width` of (hypotheses at t) x classes and of the waiting hypotheses
    ///   merge those with equal labels at equal frames: their probabilities are added
    ///   predictor states after the new labels
    /// ```
    pub(super) fn run_modified(&mut self, task: BeamTask) -> Result<()> {
        let (token_table, width) = (task.model.token_table(), task.options.width);
        let longest = self.utterances.iter().map(BeamUtterance::frame_count).max().unwrap_or(0);
        for chunk_frame in 0..longest {
            self.collect_sites(|utterance, hyp| {
                chunk_frame < utterance.frame_count() && hyp.frame == utterance.first_frame + chunk_frame
            });
            if self.sites.is_empty() {
                continue;
            }
            self.score_sites(task, width)?;
            for utterance in
                self.utterances.iter_mut().filter(|utterance| chunk_frame < utterance.frame_count())
            {
                // Sites are those of the hypotheses that do not wait, in the same order.
                let (frame, mut site) = (utterance.first_frame + chunk_frame, utterance.first_site);
                // Nothing changes if all hypotheses of the utterance wait.
                if utterance.hyps.iter().all(|hyp| hyp.frame > frame) {
                    continue;
                }
                // Candidates: waiting hypotheses unchanged, the others with their best classes.
                utterance.best_candidates.clear(width);
                for (hyp_index, hyp) in utterance.hyps.iter().enumerate() {
                    if hyp.frame > frame {
                        let candidate = Candidate { hyp_index, expansion: None, log_prob: hyp.log_prob };
                        utterance.best_candidates.push(candidate);
                        continue;
                    }
                    for expansion in self.top_k.expansions(site) {
                        let log_prob = hyp.log_prob + expansion.value;
                        let candidate = Candidate { hyp_index, expansion: Some(*expansion), log_prob };
                        if !utterance.best_candidates.push(candidate) {
                            // Expansions are in descending order: the rest are not better.
                            break;
                        }
                    }
                    site += 1;
                }
                // The best candidates become the next hypotheses. Those with equal labels merge if
                // they continue at the same frame: one with a big blank may be later.
                utterance.advance_hypotheses(
                    token_table,
                    |hyp, expansion| {
                        // Every class advances by at least one frame, in the regular topology too.
                        let advance = token_table.frame_advance(expansion.class, NO_DURATION).max(1);
                        BeamPosition { frame: hyp.frame.saturating_add(advance), symbols: 0 }
                    },
                    |position, other| position.frame == other.frame,
                );
            }
            self.extend(task)?;
        }
        Ok(())
    }
}
