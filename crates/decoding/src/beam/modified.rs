//! Modified beam search of k2's recipes: at most one label per frame.
//!
//! All hypotheses are at the same frame. A hypothesis with a big blank, which covers several
//! frames, is expanded again at the frame after it.
use super::utterance::{BeamPosition, BeamUtterance, Candidate};
use super::{BeamBuffers, BeamTask};
use crate::Result;

impl BeamBuffers {
    /// Runs modified beam search.
    ///
    /// ```text
    /// for each frame t:
    ///   scores of all hypotheses at t
    ///   the best `width` of hypotheses x classes, and of those that wait
    ///   sum of equal labels at equal frames
    ///   predictor of the new labels
    /// ```
    pub(super) fn modified(&mut self, task: BeamTask) -> Result<()> {
        let (token_table, width) = (task.model.token_table(), task.options.width);
        let longest = self.utterances.iter().map(BeamUtterance::frames).max().unwrap_or(0);
        for chunk_frame in 0..longest {
            self.collect_sites(|utterance, hyp| {
                chunk_frame < utterance.frames() && hyp.time == utterance.first_frame + chunk_frame
            });
            if self.sites.is_empty() {
                continue;
            }
            self.score_sites(task, width)?;
            for utterance in self.utterances.iter_mut().filter(|utterance| chunk_frame < utterance.frames()) {
                let (time, mut site) = (utterance.first_frame + chunk_frame, utterance.first_site);
                // Nothing changes if all hypotheses of the utterance wait.
                if utterance.hyps.iter().all(|hyp| hyp.time > time) {
                    continue;
                }
                // Candidates: waiting hypotheses unchanged, the others with their best classes.
                utterance.best.clear(width);
                for (i, hyp) in utterance.hyps.iter().enumerate() {
                    if hyp.time > time {
                        utterance.best.push(Candidate { hyp: i, expansion: None, log_prob: hyp.log_prob });
                        continue;
                    }
                    for expansion in self.top_k.entries(site) {
                        let log_prob = hyp.log_prob + expansion.value;
                        if !utterance.best.push(Candidate { hyp: i, expansion: Some(*expansion), log_prob }) {
                            break;
                        }
                    }
                    site += 1;
                }
                // The best candidates become the next hypotheses.
                utterance.choose(
                    token_table,
                    |hyp, expansion| BeamPosition {
                        time: hyp.time.saturating_add(token_table.frame_advance(expansion.class, 0).max(1)),
                        symbols: 0,
                    },
                    |position, other| position.time == other.time,
                );
            }
            self.extend(task)?;
        }
        Ok(())
    }
}
