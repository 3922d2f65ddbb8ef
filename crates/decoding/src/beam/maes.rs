//! Modified adaptive expansion search: frame by frame, several labels a frame, only as many as are worth it.
use super::nbest;
use super::rows::HypothesisRows;
use super::top_k::TopK;
use super::utterance::{BeamHypothesis, BeamUtterance, Extension, FRESH, emitted};
use super::{BeamBuffers, BeamTask};
use crate::{Result, SiteIndex};

/// See [`BeamKind::Maes`](crate::BeamKind::Maes).
pub(super) struct Limits {
    pub expansions: usize,
    pub beta: usize,
    pub gamma: f64,
    pub prefix: usize,
}

impl BeamBuffers {
    /// ```text
    /// for each frame t, from the hypotheses of t on:
    ///   for s = 0 .. expansions - 1, all hypotheses with s labels on t:
    ///     the best `width + beta` classes of each that are at most `gamma` below its best, and labels on the way to
    ///     a hypothesis of t that is at most `prefix` labels longer
    ///     a blank ends the frame; a label leads to s + 1; predictor of the new labels
    ///   hypotheses with `expansions` labels on t take their blank
    ///   add up equal labels, keep the best `width`
    /// ```
    /// Hypotheses with equal labels and a different number of labels on the frame have different continuations
    /// while the limit is in reach, and are added up only when their frame has ended. Those with the same number
    /// come from the same hypothesis of t, so that they are one.
    pub(super) fn maes(&mut self, task: BeamTask, limits: &Limits) -> Result<()> {
        let width = task.options.width;
        let longest = self.lanes.iter().map(|lane| lane.end - lane.before).max().unwrap_or(0);
        for at in 0..longest {
            let inside = |lane: &BeamUtterance| at < lane.end - lane.before;
            for lane in &mut self.lanes {
                lane.starts.clear();
                lane.starts.extend(lane.hyps.iter().map(|hyp| hyp.node));
            }
            for symbols in 0..=limits.expansions {
                self.visit(|lane, _| inside(lane));
                if self.sites.is_empty() {
                    break;
                }
                let is_last = symbols == limits.expansions;
                self.look(task, if is_last { 1 } else { width.saturating_add(limits.beta) })?;
                let scores = ExpansionScores { short: &self.short, rows: &self.rows, sites: &self.sites };
                for lane in self.lanes.iter_mut().filter(|lane| inside(lane)) {
                    match is_last {
                        true => take_blanks(lane, &self.short),
                        false => expand(lane, task, &scores, (limits, symbols)),
                    }
                }
                // No label must leave the trees here: `starts` holds nodes.
                self.rows.extend(task.model, task.options, &mut self.lanes)?;
            }
            for lane in self.lanes.iter_mut().filter(|lane| inside(lane)) {
                lane.hyps = nbest::merged(&lane.aside, &lane.tree);
                lane.aside.clear();
                lane.hyps.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
                lane.hyps.truncate(width);
                lane.hyps.iter_mut().for_each(|hyp| (hyp.time, hyp.symbols) = (hyp.time + 1, 0));
                lane.prune();
            }
        }
        Ok(())
    }
}

/// Scores of the sites of an expansion.
struct ExpansionScores<'a> {
    short: &'a TopK,
    rows: &'a HypothesisRows,
    sites: &'a [SiteIndex],
}

/// Hypotheses that may have no more labels on the frame.
fn take_blanks(lane: &mut BeamUtterance, short: &TopK) {
    for (i, mut hyp) in std::mem::take(&mut lane.hyps).into_iter().enumerate() {
        hyp.log_prob += short.blank(lane.first + i).value;
        if hyp.log_prob > f64::NEG_INFINITY {
            lane.aside.push(hyp);
        }
    }
}

/// One expansion: hypotheses with a new label stay, those with a blank are put aside.
fn expand(
    lane: &mut BeamUtterance,
    task: BeamTask,
    scores: &ExpansionScores,
    (limits, symbols): (&Limits, usize),
) {
    let token_table = task.model.token_table();
    let from = std::mem::take(&mut lane.hyps);
    lane.origins.clear();
    let mut entries: Vec<Extension> = Vec::new();
    for (i, hyp) in from.iter().enumerate() {
        let site = lane.first + i;
        let listed = scores.short.entries(site);
        let bar = listed.first().map_or(f64::NEG_INFINITY, |best| best.value - limits.gamma);
        entries.clear();
        entries.extend(listed.iter().take_while(|entry| entry.value >= bar));
        let is_complete = entries.len() == token_table.classes();
        for &start in lane.starts.iter().filter(|_| !is_complete) {
            let Some(class) = next_label(lane, hyp.node, start, (limits, symbols)) else { continue };
            if entries.iter().all(|entry| entry.class != class) {
                let at = scores.sites[site].row * token_table.classes() + class as usize;
                let fused = scores.rows.fused().map_or(0.0, |fused| fused[at]);
                entries.push(scores.short.entry(site, class, fused));
            }
        }
        for entry in &entries {
            let log_prob = hyp.log_prob + entry.value;
            if log_prob == f64::NEG_INFINITY {
                continue;
            }
            if token_table.is_blank(entry.class) {
                lane.aside.push(BeamHypothesis { log_prob, ..*hyp });
                continue;
            }
            let node = lane.tree.push(hyp.node, emitted(entry, token_table, hyp.time));
            let symbols = hyp.symbols + 1;
            lane.hyps.push(BeamHypothesis { node, row: FRESH, time: hyp.time, symbols, log_prob });
            lane.origins.push(hyp.row);
        }
    }
}

/// The label that leads from a hypothesis towards `start`, if that continues it by few enough labels.
fn next_label(
    lane: &BeamUtterance,
    node: u32,
    start: u32,
    (limits, symbols): (&Limits, usize),
) -> Option<u32> {
    let tree = &lane.tree;
    let missing = tree.sequence(start).len.checked_sub(tree.sequence(node).len)?;
    if missing == 0 || missing + symbols > limits.prefix.min(limits.expansions) {
        return None;
    }
    let next = (1..missing).try_fold(start, |node, _| tree.last(node).map(|(_, parent)| parent))?;
    let (label, parent) = tree.last(next)?;
    tree.same(parent, node).then_some(label)
}
