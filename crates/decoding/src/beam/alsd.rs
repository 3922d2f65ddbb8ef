//! Transducer beam search ALSD: the loop over steps.
//!
//! Alignment-length-synchronous decoding (Saon et al., ICASSP 2020): all hypotheses in the beam
//! have taken the same number of steps, each a label or a blank. `beam.rs` explains the steps that
//! all beam searches share.
use super::utterance::{BeamHypothesis, BeamPosition, Candidate};
use super::{BeamBuffers, BeamTask, nbest};
use crate::Result;

impl BeamBuffers {
    /// Runs ALSD over the loaded utterances.
    ///
    /// ```text
    /// for each step i (a hypothesis with u labels is at frame t = i - u):
    ///   joint scores of all hypotheses with t < T, the number of frames
    ///   candidates: each with its blank, and its best labels while it has less than `max_labels`
    ///   a blank at t = T - 1 ends a hypothesis, which leaves the beam
    ///   the best `width` candidates; those with equal labels merge, their probabilities are added
    ///   predictor states after the new labels
    /// ```
    pub(super) fn run_alsd(&mut self, task: BeamTask, max_labels: Option<usize>) -> Result<()> {
        let BeamTask { model, options, .. } = task;
        let (token_table, width) = (model.token_table(), options.width);
        // Utterances without frames have ended.
        for utterance in
            self.utterances.iter_mut().filter(|utterance| utterance.end_frame == utterance.first_frame)
        {
            utterance.ended_hyps.append(&mut utterance.hyps);
            if options.end_scores {
                for i in 0..utterance.ended_hyps.len() {
                    let row = utterance.ended_hyps[i].row;
                    utterance.ended_hyps[i].log_prob += self.rows.final_score(utterance, options, row)?;
                }
            }
        }
        loop {
            self.collect_sites(|utterance, hyp| hyp.frame < utterance.end_frame);
            if self.sites.is_empty() {
                break;
            }
            self.score_sites(task, width)?;
            for utterance in &mut self.utterances {
                let end_frame = utterance.end_frame;
                let label_limit = max_labels.unwrap_or((end_frame - utterance.first_frame).saturating_mul(2));
                // Ended hypotheses compete for one step only.
                utterance.hyps.retain(|hyp| hyp.frame < end_frame);
                utterance.best_candidates.clear(width);
                for hyp_index in 0..utterance.hyps.len() {
                    let (hyp, site) = (utterance.hyps[hyp_index], utterance.first_site + hyp_index);
                    // A blank at the last frame ends the hypothesis.
                    let blank = self.top_k.blank(site);
                    let log_prob = hyp.log_prob + blank.value;
                    if hyp.frame + 1 == end_frame && log_prob > f64::NEG_INFINITY {
                        let mut ended_hyp = BeamHypothesis { frame: end_frame, log_prob, ..hyp };
                        if options.end_scores {
                            ended_hyp.log_prob += self.rows.final_score(utterance, options, hyp.row)?;
                        }
                        utterance.ended_hyps.push(ended_hyp);
                    }
                    // Other hypotheses continue with a blank or, below the limit, a label; at most
                    // the best `width` classes of a hypothesis can be chosen.
                    let may_extend = utterance.tree.sequence(hyp.node).len < label_limit;
                    let blank = [blank];
                    for expansion in if may_extend { self.top_k.expansions(site) } else { &blank } {
                        let log_prob = hyp.log_prob + expansion.value;
                        let candidate = Candidate { hyp_index, expansion: Some(*expansion), log_prob };
                        if !utterance.best_candidates.push(candidate) {
                            // Expansions are in descending order: the rest are not better.
                            break;
                        }
                    }
                }
                // The best candidates become the hypotheses of the next step.
                utterance.advance_hypotheses(
                    token_table,
                    |hyp, expansion| match token_table.is_blank(expansion.class) {
                        true => BeamPosition { frame: hyp.frame + 1, symbols: 0 },
                        false => BeamPosition { frame: hyp.frame, symbols: hyp.symbols + 1 },
                    },
                    |position, other| position.frame == other.frame,
                );
                // Keep as many ended hypotheses as the result has.
                let score = |hyp: &_| nbest::ranking_score(hyp, &utterance.tree, model, options);
                let mut ended_hyps = utterance.ended_hyps.clone();
                ended_hyps.sort_by(|a, b| score(b).total_cmp(&score(a)));
                ended_hyps.truncate(options.nbest);
                utterance.ended_hyps = ended_hyps;
            }
            self.extend(task)?;
        }
        for utterance in &mut self.utterances {
            utterance.hyps.clear();
            utterance.hyps.append(&mut utterance.ended_hyps);
            utterance.hyps.retain(|hyp| hyp.log_prob > f64::NEG_INFINITY);
        }
        Ok(())
    }
}
