//! Scores the sites of a beam search; finds their best expansions.
//!
//! A site is a frame and the label row (projected predictor output) of a hypothesis; an expansion
//! is a class and, with durations, a duration. z: joint scores; C: classes; D: durations.
use kernels::{Real, par_for, parts, parts_mut};

use super::utterance::Expansion;
use super::{BeamOptions, rows::HypothesisRows};
use crate::affine::resized;
use crate::best_class::invalid_scores;
use crate::largest::select_largest;
use crate::{DecodingModel, Error, SiteIndex, TokenTable};

/// Rows of one parallel task.
const ROWS_PER_TASK: usize = 4;

/// Number of expansions, best blank and normalizer of a site.
#[derive(Debug, Clone, Copy, Default)]
struct SiteSummary {
    /// Number of listed expansions; `None` if the scores are invalid.
    expansion_count: Option<usize>,
    /// The best blank, with its best duration.
    best_blank: Expansion,
    /// `log Σ exp` of the classes.
    log_sum: f64,
}

/// Parameters of the ranking of a row.
#[derive(Debug, Clone, Copy)]
struct RowRanking<'a> {
    token_table: &'a TokenTable,
    blank_penalty: f32,
    /// 1 / temperature.
    inverse_temperature: f32,
}

/// The expansions of the largest values at each site, best first.
///
/// Ties are in the order of classes, then durations.
#[derive(Debug, Default)]
pub(super) struct TopK {
    /// Scores of the joint at each site, less the blank penalty.
    scores: Vec<f32>,
    /// Scores with temperature and fusion; empty if they equal those of the joint.
    adjusted_scores: Vec<f32>,
    summaries: Vec<SiteSummary>,
    /// Best expansions of each site, `expansions_per_site` for each.
    expansions: Vec<Expansion>,
    /// Largest adjusted scores of each site with their classes.
    largest_scores: Vec<(f32, u32)>,
    /// Capacity of a site's list of expansions.
    expansions_per_site: usize,
    /// Width of a row of scores, C + D.
    outputs: usize,
    /// Width of a row of adjusted scores, C.
    classes: usize,
    /// 1 / temperature.
    inverse_temperature: f32,
}

impl TopK {
    /// Evaluates sites and finds the best `count` expansions of each.
    ///
    /// ```text
    /// value(c, d) = log_softmax((z - penalty [c is a blank]) / temperature)_c + fused_c
    ///             + log_softmax(z_durations)_d
    /// ```
    ///
    /// # Errors
    /// The error of the first row with invalid scores, with the index of its site.
    pub(super) fn find(
        &mut self,
        model: &DecodingModel,
        options: &BeamOptions,
        frames: &[&[f32]],
        sites: &[SiteIndex],
        rows: &mut HypothesisRows,
        count: usize,
    ) -> Result<(), (usize, Error)> {
        // Sizes of the lists.
        let token_table = model.token_table();
        (self.outputs, self.classes) = (model.outputs(), token_table.classes());
        let (outputs, classes) = (self.outputs, self.classes);
        self.expansions_per_site = count.min(classes.saturating_mul(token_table.durations().max(1))).max(1);
        let classes_per_site = count.clamp(1, classes);
        // Scores of all sites.
        let scores = resized(&mut self.scores, sites.len() * outputs);
        rows.joint_scores(model, frames, sites, scores);
        self.summaries.clear();
        self.summaries.resize(sites.len(), SiteSummary::default());
        // Values of earlier steps are not read.
        let expansions_len = (sites.len() * self.expansions_per_site).max(self.expansions.len());
        self.expansions.resize(expansions_len, Expansion::default());
        let largest_len = (sites.len() * classes_per_site).max(self.largest_scores.len());
        self.largest_scores.resize(largest_len, (0.0, 0));
        self.inverse_temperature = 1.0 / options.temperature;
        let ranking = RowRanking {
            token_table,
            blank_penalty: options.blank_penalty,
            inverse_temperature: self.inverse_temperature,
        };
        let fusion_scores = rows.fusion_scores();
        let is_adjusted = fusion_scores.is_some() || ranking.inverse_temperature != 1.0;
        let adjusted =
            resized(&mut self.adjusted_scores, if is_adjusted { sites.len() * classes } else { 0 });
        let adjusted = is_adjusted.then(|| parts_mut(adjusted, ROWS_PER_TASK * classes));
        let expansions_per_site = self.expansions_per_site;
        let expansions = &mut self.expansions[..sites.len() * expansions_per_site];
        let largest_scores = &mut self.largest_scores[..sites.len() * classes_per_site];
        // Ranking of each site, a few sites per task.
        let task_parts = (
            (parts_mut(&mut self.summaries, ROWS_PER_TASK), parts(sites, ROWS_PER_TASK)),
            (
                parts_mut(expansions, ROWS_PER_TASK * expansions_per_site),
                parts_mut(largest_scores, ROWS_PER_TASK * classes_per_site),
            ),
            parts_mut(scores, ROWS_PER_TASK * outputs),
            adjusted,
        );
        par_for(task_parts, |_, ((summaries, sites), (expansions, largest_scores), scores, mut adjusted)| {
            let lists = expansions
                .chunks_exact_mut(expansions_per_site)
                .zip(largest_scores.chunks_exact_mut(classes_per_site));
            let scores = scores.chunks_exact_mut(outputs);
            for (i, (((summary, site), (expansions, largest_scores)), scores)) in
                summaries.iter_mut().zip(sites).zip(lists).zip(scores).enumerate()
            {
                let fused = fusion_scores.map(|fused| &fused[site.label_row * classes..][..classes]);
                let adjusted =
                    adjusted.as_deref_mut().map(|adjusted| &mut adjusted[i * classes..][..classes]);
                *summary = ranking.rank_row(scores, fused, adjusted, largest_scores, expansions);
            }
        });
        match self.summaries.iter().position(|summary| summary.expansion_count.is_none()) {
            None => Ok(()),
            Some(site) => {
                let scores = &self.scores[site * outputs..][..outputs];
                Err((site, invalid_scores(scores, token_table, sites[site].frame)))
            }
        }
    }

    /// The best expansions of a site, best first.
    pub(super) fn expansions(&self, site: usize) -> &[Expansion] {
        let count = self.summaries[site].expansion_count.unwrap_or(0);
        &self.expansions[site * self.expansions_per_site..][..count]
    }

    /// The best blank of a site, with its best duration.
    pub(super) fn blank(&self, site: usize) -> Expansion {
        self.summaries[site].best_blank
    }

    /// The expansion by a class with fusion score `fused`, without duration.
    pub(super) fn expansion(&self, site: usize, class: u32, fused: f32) -> Expansion {
        let logit = self.scores[site * self.outputs + class as usize];
        let adjusted_score =
            self.adjusted_scores.get(site * self.classes + class as usize).copied().unwrap_or(logit);
        let log_sum = self.summaries[site].log_sum;
        Expansion {
            value: f64::from(adjusted_score) - log_sum,
            log_prob: f64::from(logit * self.inverse_temperature) - log_sum,
            duration_log_prob: 0.0,
            fused,
            logit,
            class,
            duration: 0,
        }
    }
}

impl RowRanking<'_> {
    /// Writes the best expansions by a row of scores, best first.
    ///
    /// `adjusted` receives the scores with temperature and fusion; without it they equal `scores`.
    /// `largest_scores` is scratch memory for the largest scores with their classes.
    fn rank_row(
        &self,
        scores: &mut [f32],
        fused: Option<&[f32]>,
        adjusted: Option<&mut [f32]>,
        largest_scores: &mut [(f32, u32)],
        expansions: &mut [Expansion],
    ) -> SiteSummary {
        let invalid = SiteSummary::default();
        let (tokens, durations) = scores.split_at_mut(self.token_table.classes());
        if self.blank_penalty != 0.0 {
            self.token_table.blanks().for_each(|blank| tokens[blank as usize] -= self.blank_penalty);
        }
        let tokens = &*tokens;
        // Normalizers of classes and durations. A NaN or +inf makes the sum NaN; -inf everywhere
        // makes it 0.
        let log_sum_exp = |scores: &[f32]| {
            let (max, sum) = f32::row_statistics(scores);
            (sum >= 1.0).then(|| f64::from(max) + sum.ln())
        };
        let (log_sum, adjusted) = match adjusted {
            None => (log_sum_exp(tokens), tokens),
            Some(row) => {
                row.iter_mut()
                    .zip(tokens)
                    .for_each(|(scaled, score)| *scaled = score * self.inverse_temperature);
                let log_sum = log_sum_exp(row);
                if let Some(fused) = fused {
                    kernels::add(row, fused);
                }
                (log_sum, &*row)
            }
        };
        let duration_log_sum = if durations.is_empty() { Some(0.0) } else { log_sum_exp(durations) };
        let (Some(log_sum), Some(duration_log_sum)) = (log_sum, duration_log_sum) else { return invalid };
        let expansion = |class: u32, duration: usize| {
            let index = class as usize;
            let log_prob = f64::from(tokens[index] * self.inverse_temperature) - log_sum;
            let duration_log_prob =
                durations.get(duration).map_or(0.0, |&score| f64::from(score) - duration_log_sum);
            Expansion {
                value: f64::from(adjusted[index]) - log_sum + duration_log_prob,
                log_prob,
                duration_log_prob,
                fused: fused.map_or(0.0, |fused| fused[index]),
                logit: tokens[index],
                class,
                duration: duration as u32,
            }
        };
        // Insertion sort of the largest classes with all durations.
        let class_count = select_largest(adjusted, largest_scores);
        let mut count = 0;
        for &(_, class) in &largest_scores[..class_count] {
            for duration in 0..durations.len().max(1) {
                let new = expansion(class, duration);
                // The larger value first; of equal values, the lower class and duration.
                let is_better_than = |old: &Expansion| {
                    (old.value, new.class, new.duration) < (new.value, old.class, old.duration)
                };
                if count == expansions.len() && !is_better_than(&expansions[count - 1]) {
                    continue;
                }
                let mut position = count.min(expansions.len() - 1);
                while position > 0 && is_better_than(&expansions[position - 1]) {
                    expansions[position] = expansions[position - 1];
                    position -= 1;
                }
                expansions[position] = new;
                count = (count + 1).min(expansions.len());
            }
        }
        // The best blank with its best duration.
        let better = |best: Expansion, new: Expansion| if new.value > best.value { new } else { best };
        let duration_indices = 0..durations.len().max(1);
        let blanks =
            self.token_table.blanks().flat_map(|blank| duration_indices.clone().map(move |d| (blank, d)));
        let best_blank =
            blanks.map(|(blank, duration)| expansion(blank, duration)).reduce(better).unwrap_or_default();
        SiteSummary { expansion_count: Some(count), best_blank, log_sum }
    }
}
