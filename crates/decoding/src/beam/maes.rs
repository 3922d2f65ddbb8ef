//! Transducer beam search mAES: the loop over frames.
//!
//! Modified adaptive expansion search (Kim et al., arXiv 2010.14606): all hypotheses are at the
//! same frame, on which each may emit several labels. `beam.rs` explains the steps that all beam
//! searches share.
use super::nbest;
use super::rows::HypothesisRows;
use super::top_k::TopK;
use super::utterance::{BeamHypothesis, BeamUtterance, Expansion, NO_ROW, decoded_token};
use super::{BeamBuffers, BeamTask};
use crate::{Result, SiteIndex};

/// Parameters of [`BeamKind::Maes`](crate::BeamKind::Maes), which documents them.
pub(super) struct MaesOptions {
    pub expansions: usize,
    pub beta: usize,
    pub gamma: f64,
    pub prefix: usize,
}

impl BeamBuffers {
    /// Runs mAES over the loaded chunks.
    ///
    /// ```text
    /// for each frame t:
    ///   for s = 0 .. expansions - 1, all hypotheses with s labels on t:
    ///     the best `width + beta` classes of each that are at most `gamma` below its best, and
    ///     labels that lead to a hypothesis of the start of t, at most `prefix` labels longer
    ///     a blank ends the frame; a label leads to s + 1; predictor states after the new labels
    ///   hypotheses with `expansions` labels on t take their blank
    ///   merge hypotheses with equal labels (their probabilities are added), keep the best `width`
    /// ```
    /// Hypotheses with equal labels but different numbers of labels on the frame have different
    /// continuations and are summed only when the frame has ended. With equal numbers they descend
    /// from the same hypothesis at the start of t, so that they are one.
    pub(super) fn run_maes(&mut self, task: BeamTask, options: &MaesOptions) -> Result<()> {
        let width = task.options.width;
        let longest = self.utterances.iter().map(BeamUtterance::frame_count).max().unwrap_or(0);
        for chunk_frame in 0..longest {
            let has_frame = |utterance: &BeamUtterance| chunk_frame < utterance.frame_count();
            for utterance in &mut self.utterances {
                utterance.frame_nodes.clear();
                utterance.frame_nodes.extend(utterance.hyps.iter().map(|hyp| hyp.node));
            }
            // Expand the hypotheses with 0, 1, .. labels on the frame.
            for symbols in 0..=options.expansions {
                self.collect_sites(|utterance, _| has_frame(utterance));
                if self.sites.is_empty() {
                    break;
                }
                let is_at_limit = symbols == options.expansions;
                self.score_sites(task, if is_at_limit { 1 } else { width.saturating_add(options.beta) })?;
                let scores = ExpansionScores { top_k: &self.top_k, rows: &self.rows, sites: &self.sites };
                for utterance in self.utterances.iter_mut().filter(|utterance| has_frame(utterance)) {
                    match is_at_limit {
                        true => append_blanks(utterance, &self.top_k),
                        false => expand(utterance, task, &scores, options, symbols),
                    }
                }
                // Labels must stay in the trees here, as `frame_nodes` refers to them.
                self.rows.extend(task.model, task.options, &mut self.utterances)?;
            }
            // The frame has ended: sum equal labels and keep the best hypotheses.
            for utterance in self.utterances.iter_mut().filter(|utterance| has_frame(utterance)) {
                utterance.hyps = nbest::merge_equal(&utterance.ended_hyps, &utterance.tree);
                utterance.ended_hyps.clear();
                utterance.hyps.sort_by(|a, b| b.log_prob.total_cmp(&a.log_prob));
                utterance.hyps.truncate(width);
                utterance.hyps.iter_mut().for_each(|hyp| (hyp.frame, hyp.symbols) = (hyp.frame + 1, 0));
                utterance.sweep_tree_if_large();
            }
        }
        Ok(())
    }
}

/// Scores of the sites at which hypotheses are expanded.
struct ExpansionScores<'a> {
    top_k: &'a TopK,
    rows: &'a HypothesisRows,
    sites: &'a [SiteIndex],
}

/// Advances hypotheses at the limit of labels per frame by a blank.
fn append_blanks(utterance: &mut BeamUtterance, top_k: &TopK) {
    for (i, mut hyp) in std::mem::take(&mut utterance.hyps).into_iter().enumerate() {
        hyp.log_prob += top_k.blank(utterance.first_site + i).value;
        if hyp.log_prob > f64::NEG_INFINITY {
            utterance.ended_hyps.push(hyp);
        }
    }
}

/// Expands hypotheses with `symbols` labels on the frame.
///
/// A new label keeps a hypothesis on the frame, a blank ends it.
fn expand(
    utterance: &mut BeamUtterance,
    task: BeamTask,
    scores: &ExpansionScores,
    options: &MaesOptions,
    symbols: usize,
) {
    let token_table = task.model.token_table();
    let parents = std::mem::take(&mut utterance.hyps);
    utterance.parent_rows.clear();
    let mut chosen: Vec<Expansion> = Vec::new();
    for (i, hyp) in parents.iter().enumerate() {
        let site = utterance.first_site + i;
        // The best classes within `gamma` of the best.
        let best_expansions = scores.top_k.expansions(site);
        let threshold = best_expansions.first().map_or(f64::NEG_INFINITY, |best| best.value - options.gamma);
        chosen.clear();
        chosen.extend(best_expansions.iter().take_while(|expansion| expansion.value >= threshold));
        // Labels that lead toward a hypothesis of the start of the frame.
        let has_all_classes = chosen.len() == token_table.classes();
        for &start in utterance.frame_nodes.iter().filter(|_| !has_all_classes) {
            let Some(class) = next_label(utterance, hyp.node, start, options, symbols) else { continue };
            if chosen.iter().all(|expansion| expansion.class != class) {
                let score_index = scores.sites[site].label_row * token_table.classes() + class as usize;
                let fused = scores.rows.fusion_scores().map_or(0.0, |fused| fused[score_index]);
                chosen.push(scores.top_k.expansion(site, class, fused));
            }
        }
        // A blank ends the frame; a label stays on it.
        for expansion in &chosen {
            let log_prob = hyp.log_prob + expansion.value;
            if log_prob == f64::NEG_INFINITY {
                continue;
            }
            if token_table.is_blank(expansion.class) {
                utterance.ended_hyps.push(BeamHypothesis { log_prob, ..*hyp });
                continue;
            }
            let node = utterance.tree.push(hyp.node, decoded_token(expansion, token_table, hyp.frame));
            let symbols = hyp.symbols + 1;
            utterance.hyps.push(BeamHypothesis { node, row: NO_ROW, frame: hyp.frame, symbols, log_prob });
            utterance.parent_rows.push(hyp.row);
        }
    }
}

/// Returns the next label from `node` toward `start`, within the options.
///
/// `None` if the labels of `node` are not a proper prefix, or too many labels are missing.
fn next_label(
    utterance: &BeamUtterance,
    node: u32,
    start: u32,
    options: &MaesOptions,
    symbols: usize,
) -> Option<u32> {
    let tree = &utterance.tree;
    let missing = tree.sequence(start).len.checked_sub(tree.sequence(node).len)?;
    if missing == 0 || missing + symbols > options.prefix.min(options.expansions) {
        return None;
    }
    let next = (1..missing).try_fold(start, |node, _| tree.last(node).map(|(_, parent)| parent))?;
    let (label, parent) = tree.last(next)?;
    tree.is_same_sequence(parent, node).then_some(label)
}
