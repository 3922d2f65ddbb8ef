//! Alignment-length-synchronous decoding in batches: each step of a hypothesis is a label or a blank.
use super::utterance::{BeamHypothesis, BeamPosition, Candidate};
use super::{BeamBuffers, BeamTask};
use crate::{Result, SiteIndex};

/// Candidates that are compared for equal labels, for each hypothesis that is kept. Those that are equal are several
/// where a frame may have several labels, and would otherwise crowd out others before they are one.
const CANDIDATES: usize = 4;

impl BeamBuffers {
    /// ```text
    /// while hypotheses are inside of their utterances:
    ///   scores of all of these
    ///   the best `4 width` of hypotheses x classes x durations, and of those that have ended;
    ///   equal labels at equal frames with as many labels there are added up, wherever beyond the end they are
    ///   the best `width` of these sums; predictor of the new labels
    /// ```
    /// Two ways to equal labels at a frame, one with a label on that frame already and one without, have different
    /// continuations while `max_symbols` is in reach.
    pub(super) fn malsd(&mut self, task: BeamTask, max_symbols: usize) -> Result<()> {
        let (token_table, width) = (task.model.token_table(), task.options.width);
        loop {
            self.visit_shared();
            if self.sites.is_empty() {
                return Ok(());
            }
            self.look(task, width)?;
            for lane in &mut self.lanes {
                let end = lane.end;
                if lane.hyps.iter().all(|hyp| hyp.time >= end) {
                    continue;
                }
                lane.best.clear(width.saturating_mul(CANDIDATES));
                for (i, hyp) in lane.hyps.iter().enumerate() {
                    if hyp.time >= end {
                        lane.best.offer(Candidate { hyp: i, entry: None, log_prob: hyp.log_prob });
                        continue;
                    }
                    let site = lane.sites[i] as usize;
                    let blank = [self.short.blank(site)];
                    let full = hyp.symbols >= max_symbols;
                    for entry in if full { &blank } else { self.short.entries(site) } {
                        let log_prob = hyp.log_prob + entry.value;
                        if !lane.best.offer(Candidate { hyp: i, entry: Some(*entry), log_prob }) {
                            break;
                        }
                    }
                }
                lane.choose_best(
                    token_table,
                    width,
                    |hyp, entry| {
                        let frames = token_table.frames(entry.class, entry.duration as usize);
                        if token_table.is_blank(entry.class) {
                            return BeamPosition { time: hyp.time.saturating_add(frames.max(1)), symbols: 0 };
                        }
                        let symbols = if frames == 0 { hyp.symbols + 1 } else { 0 };
                        BeamPosition { time: hyp.time.saturating_add(frames), symbols }
                    },
                    |place, other| {
                        let ended = place.time >= end && other.time >= end;
                        ended || (place.time, place.symbols) == (other.time, other.symbols)
                    },
                );
            }
            self.extend(task)?;
        }
    }

    /// Lists the sites of all hypotheses inside of their utterances. Hypotheses that differ only in their labels on the frame
    /// share one.
    fn visit_shared(&mut self) {
        self.sites.clear();
        for lane in &mut self.lanes {
            lane.sites.clear();
            for i in 0..lane.hyps.len() {
                let BeamHypothesis { time, row, .. } = lane.hyps[i];
                let is_same = |&other: &usize| (lane.hyps[other].time, lane.hyps[other].row) == (time, row);
                let site = match (0..i).find(is_same) {
                    Some(other) => lane.sites[other],
                    // No site: never read.
                    None if time >= lane.end => u32::MAX,
                    None => {
                        let (utterance, frame) = (lane.utterance, time - lane.before);
                        self.sites.push(SiteIndex { utterance, frame, row: row as usize });
                        (self.sites.len() - 1) as u32
                    }
                };
                lane.sites.push(site);
            }
        }
    }
}
