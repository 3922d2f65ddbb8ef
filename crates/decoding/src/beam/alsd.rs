//! Alignment-length-synchronous decoding as it was described first.
use super::utterance::{BeamPosition, Candidate};
use super::{BeamBuffers, BeamTask, nbest};
use crate::Result;

impl BeamBuffers {
    /// ```text
    /// for each step i:                                          a hypothesis with u labels is at frame t = i - u
    ///   scores of all hypotheses with t < T
    ///   candidates: each with its blank, and with its best labels while it has less than `max_labels`
    ///   a blank at t = T - 1 ends a hypothesis, which is put aside
    ///   the best `width` candidates; equal labels are added up; predictor of the new labels
    /// ```
    pub(super) fn alsd(&mut self, task: BeamTask, max_labels: Option<usize>) -> Result<()> {
        let BeamTask { model, options, .. } = task;
        let (token_table, width) = (model.token_table(), options.width);
        // Who is at its end already has no frames.
        for lane in self.lanes.iter_mut().filter(|lane| lane.end == lane.before) {
            lane.aside.append(&mut lane.hyps);
            if options.end_scores {
                for at in 0..lane.aside.len() {
                    let row = lane.aside[at].row;
                    lane.aside[at].log_prob += self.rows.finish(lane, options, row)?;
                }
            }
        }
        loop {
            self.visit(|lane, hyp| hyp.time < lane.end);
            if self.sites.is_empty() {
                break;
            }
            self.look(task, width)?;
            for lane in &mut self.lanes {
                let (end, most) =
                    (lane.end, max_labels.unwrap_or((lane.end - lane.before).saturating_mul(2)));
                // The ended ones have competed for a step.
                lane.hyps.retain(|hyp| hyp.time < end);
                lane.best.clear(width);
                for i in 0..lane.hyps.len() {
                    let (hyp, site) = (lane.hyps[i], lane.first + i);
                    let blank = self.short.blank(site);
                    let log_prob = hyp.log_prob + blank.value;
                    if hyp.time + 1 == end && log_prob > f64::NEG_INFINITY {
                        let mut ended = hyp;
                        (ended.time, ended.log_prob) = (end, log_prob);
                        if options.end_scores {
                            ended.log_prob += self.rows.finish(lane, options, hyp.row)?;
                        }
                        lane.aside.push(ended);
                    }
                    // Of a hypothesis' classes, no more than its best `width` can be chosen.
                    let more = lane.tree.sequence(hyp.node).len < most;
                    let blank = [blank];
                    for entry in if more { self.short.entries(site) } else { &blank } {
                        let log_prob = hyp.log_prob + entry.value;
                        if !lane.best.offer(Candidate { hyp: i, entry: Some(*entry), log_prob }) {
                            break;
                        }
                    }
                }
                lane.choose(
                    token_table,
                    |hyp, entry| match token_table.is_blank(entry.class) {
                        true => BeamPosition { time: hyp.time + 1, symbols: 0 },
                        false => BeamPosition { time: hyp.time, symbols: hyp.symbols + 1 },
                    },
                    |place, other| place.time == other.time,
                );
                let score = |hyp: &_| nbest::score(hyp, &lane.tree, (model, options));
                let mut ended = lane.aside.clone();
                ended.sort_by(|a, b| score(b).total_cmp(&score(a)));
                ended.truncate(options.nbest);
                lane.aside = ended;
            }
            self.extend(task)?;
        }
        for lane in &mut self.lanes {
            lane.hyps.clear();
            lane.hyps.append(&mut lane.aside);
            lane.hyps.retain(|hyp| hyp.log_prob > f64::NEG_INFINITY);
        }
        Ok(())
    }
}
