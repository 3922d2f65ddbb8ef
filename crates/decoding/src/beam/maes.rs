//! Modified adaptive expansion search: frame by frame, several labels a frame, only as many as are worth it.
use rnnt_dp::semiring::{Log, Semiring};

use super::lane::{FRESH, Hyp, Lane, emitted};
use super::short::Shortlists;
use super::{Task, Work};
use crate::Result;

/// See [`BeamKind::Maes`](crate::BeamKind::Maes).
pub(super) struct Limits {
    pub expansions: usize,
    pub beta: usize,
    pub gamma: f64,
    pub prefix: usize,
}

/// A way from a hypothesis to one that is a few labels longer.
struct Way {
    lane: usize,
    to: usize,
    missing: usize,
    /// Log-probability of going there on the frame.
    log_prob: f64,
    /// The hypothesis that has gone as far as is known, among those of the lane.
    at: usize,
}

impl Work {
    /// ```text
    /// for each frame t:
    ///   log p(h) += p(g) p(rest | t, g)       for hypotheses g that are prefixes of h, up to `prefix` labels shorter
    ///   `expansions` times, from the hypotheses of t on:
    ///     of each the best `width + beta` classes, at most `gamma` below its best
    ///     blanks are put aside; labels go on, unless they make a hypothesis of t's; predictor of these
    ///   who has gone on to the last expansion takes a blank
    ///   keep the best `width`
    /// ```
    pub(super) fn maes(&mut self, task: Task, limits: &Limits) -> Result<()> {
        let longest = self.lanes.iter().map(|lane| lane.end - lane.before).max().unwrap_or(0);
        for at in 0..longest {
            let inside = |lane: &Lane| at < lane.end - lane.before;
            let all = |lane: &Lane, _: &Hyp| inside(lane);
            self.visit(all);
            if self.sites.is_empty() {
                return Ok(());
            }
            let count = task.options.width.saturating_add(limits.beta);
            self.look(task, count)?;
            if self.add_prefixes(task, limits, inside)? {
                self.visit(all);
                self.look(task, count)?;
            }
            for lane in &mut self.lanes {
                lane.starts.clear();
                lane.starts.extend(lane.hyps.iter().map(|hyp| hyp.node));
            }
            for expansion in 0..limits.expansions {
                for lane in self.lanes.iter_mut().filter(|lane| inside(lane)) {
                    expand(lane, task, &self.short, limits.gamma);
                }
                // No label must leave the trees here: `starts` knows it.
                self.rows.extend(task.model, task.options, &mut self.lanes)?;
                if expansion + 1 < limits.expansions {
                    self.visit(all);
                    if self.sites.is_empty() {
                        break;
                    }
                    self.look(task, count)?;
                }
            }
            self.visit(all);
            if !self.sites.is_empty() {
                self.look(task, 1)?;
            }
            for lane in self.lanes.iter_mut().filter(|lane| inside(lane)) {
                for (i, hyp) in lane.hyps.iter_mut().enumerate() {
                    hyp.log_prob += self.short.blank(lane.first + i).value;
                }
                lane.aside.append(&mut lane.hyps);
                lane.aside.retain(|hyp| hyp.log_prob > f64::NEG_INFINITY);
                lane.aside.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
                lane.aside.truncate(task.options.width);
                lane.hyps.append(&mut lane.aside);
                lane.hyps.iter_mut().for_each(|hyp| (hyp.time, hyp.symbols) = (hyp.time + 1, 0));
                lane.prune();
            }
        }
        Ok(())
    }

    /// Adds to hypotheses what leads to them from shorter ones on this frame; says whether it has looked at other sites for that.
    fn add_prefixes(&mut self, task: Task, limits: &Limits, inside: impl Fn(&Lane) -> bool) -> Result<bool> {
        let mut ways = Vec::new();
        for (at, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| inside(lane)) {
            let lengths = || lane.hyps.iter().map(|hyp| lane.tree.sequence(hyp.node).len);
            let spread = lengths().max().unwrap_or(0) - lengths().min().unwrap_or(0);
            for missing in 1..=limits.prefix.min(spread) {
                for (to, hyp) in lane.hyps.iter().enumerate() {
                    let Some(prefix) = above(lane, hyp.node, missing) else { continue };
                    let same = |other: &Hyp| lane.tree.same(other.node, prefix);
                    if let Some(at_first) = lane.hyps.iter().position(same) {
                        let log_prob = lane.hyps[at_first].log_prob;
                        ways.push(Way { lane: at, to, missing, log_prob, at: at_first });
                    }
                }
            }
        }
        let counts: Vec<usize> = self.lanes.iter().map(|lane| lane.hyps.len()).collect();
        let longest = ways.iter().map(|way| way.missing).max().unwrap_or(0);
        for gone in 0..longest {
            if gone > 0 {
                self.go_on(task, &mut ways, gone)?;
            }
            for way in ways.iter_mut().filter(|way| way.missing > gone) {
                let lane = &self.lanes[way.lane];
                let node = above(lane, lane.hyps[way.to].node, way.missing - gone - 1);
                let label = node.and_then(|node| lane.tree.last(node)).map_or(0, |(label, _)| label);
                way.log_prob += self.short.value(lane.first + way.at, label);
            }
        }
        for (lane, count) in self.lanes.iter_mut().zip(counts) {
            lane.hyps.truncate(count);
        }
        for way in ways {
            let hyp = &mut self.lanes[way.lane].hyps[way.to];
            hyp.log_prob = Log::plus(hyp.log_prob, way.log_prob);
        }
        Ok(longest > 1)
    }

    /// Puts a hypothesis behind those of a lane for each way that goes on, and looks at all.
    fn go_on(&mut self, task: Task, ways: &mut [Way], gone: usize) -> Result<()> {
        for way in ways.iter_mut().filter(|way| way.missing > gone) {
            let lane = &mut self.lanes[way.lane];
            let (hyp, from) = (lane.hyps[way.to], lane.hyps[way.at]);
            let Some(node) = above(lane, hyp.node, way.missing - gone) else { continue };
            way.at = lane.hyps.len();
            lane.origins.resize(way.at, FRESH);
            lane.hyps.push(Hyp { node, row: FRESH, ..from });
            lane.origins.push(from.row);
        }
        self.rows.extend(task.model, task.options, &mut self.lanes)?;
        let lanes: Vec<bool> =
            (0..self.lanes.len()).map(|at| ways.iter().any(|way| way.lane == at)).collect();
        self.visit(|lane, _| lanes[lane.utterance]);
        self.look(task, 1)
    }
}

/// The node so many labels before another one.
fn above(lane: &Lane, node: u32, labels: usize) -> Option<u32> {
    (0..labels).try_fold(node, |node, _| lane.tree.last(node).map(|(_, parent)| parent))
}

/// One expansion of a lane: its hypotheses with labels stay, those with a blank are put aside.
fn expand(lane: &mut Lane, task: Task, short: &Shortlists, gamma: f64) {
    let rules = task.model.rules();
    let from = std::mem::take(&mut lane.hyps);
    lane.origins.clear();
    for (i, hyp) in from.iter().enumerate() {
        let entries = short.entries(lane.first + i);
        let bar = entries.first().map_or(f64::NEG_INFINITY, |best| best.value - gamma);
        for entry in entries.iter().take_while(|entry| entry.value >= bar) {
            let log_prob = hyp.log_prob + entry.value;
            if log_prob == f64::NEG_INFINITY {
                break;
            }
            if rules.is_blank(entry.class) {
                lane.aside.push(Hyp { log_prob, ..*hyp });
            } else if !lane.starts.iter().any(|&start| lane.tree.is_child(start, hyp.node, entry.class)) {
                let node = lane.tree.push(hyp.node, emitted(entry, rules, hyp.time));
                let symbols = hyp.symbols + 1;
                lane.hyps.push(Hyp { node, row: FRESH, time: hyp.time, symbols, log_prob });
                lane.origins.push(hyp.row);
            }
        }
    }
}
