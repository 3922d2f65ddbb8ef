//! Modified beam search: all hypotheses of an utterance are at one frame, or wait for it.
use super::utterance::{BeamPosition, Candidate};
use super::{BeamBuffers, BeamTask};
use crate::Result;

impl BeamBuffers {
    /// ```text
    /// for each frame t:
    ///   scores of all hypotheses at t
    ///   the best `width` of hypotheses x classes, and of those that wait; equal labels at equal frames are added up
    ///   predictor of the new labels
    /// ```
    pub(super) fn modified(&mut self, task: BeamTask) -> Result<()> {
        let (token_table, width) = (task.model.token_table(), task.options.width);
        let longest = self.lanes.iter().map(|lane| lane.end - lane.before).max().unwrap_or(0);
        for at in 0..longest {
            self.visit(|lane, hyp| at < lane.end - lane.before && hyp.time == lane.before + at);
            if self.sites.is_empty() {
                continue;
            }
            self.look(task, width)?;
            for lane in self.lanes.iter_mut().filter(|lane| at < lane.end - lane.before) {
                let (time, mut site) = (lane.before + at, lane.first);
                // Who waits alone is not looked at either.
                if lane.hyps.iter().all(|hyp| hyp.time > time) {
                    continue;
                }
                lane.best.clear(width);
                for (i, hyp) in lane.hyps.iter().enumerate() {
                    if hyp.time > time {
                        lane.best.offer(Candidate { hyp: i, entry: None, log_prob: hyp.log_prob });
                        continue;
                    }
                    for entry in self.short.entries(site) {
                        let log_prob = hyp.log_prob + entry.value;
                        if !lane.best.offer(Candidate { hyp: i, entry: Some(*entry), log_prob }) {
                            break;
                        }
                    }
                    site += 1;
                }
                lane.choose(
                    token_table,
                    |hyp, entry| BeamPosition {
                        time: hyp.time.saturating_add(token_table.frames(entry.class, 0).max(1)),
                        symbols: 0,
                    },
                    |place, other| place.time == other.time,
                );
            }
            self.extend(task)?;
        }
        Ok(())
    }
}
