//! The best classes of rows of scores.
use kernels::{Real, par_for, parts, parts_mut};

use super::utterance::Extension;
use super::{BeamOptions, rows::HypothesisRows};
use crate::affine::sized;
use crate::best_class::invalid_scores;
use crate::largest::largest;
use crate::{DecodingModel, Error, SiteIndex, TokenTable};

/// Rows of a task.
const ROWS: usize = 4;

/// What a row has beside its best classes.
#[derive(Debug, Clone, Copy, Default)]
struct ListHead {
    /// How many entries there are; none if its scores are no scores.
    count: Option<usize>,
    /// The best blank.
    blank: Extension,
    /// `log Σ exp` of the classes.
    log_sum: f64,
}

/// How scores are read.
#[derive(Debug, Clone, Copy)]
struct Reading<'a> {
    token_table: &'a TokenTable,
    blank_penalty: f32,
    /// One by the temperature.
    sharpness: f32,
}

/// For each site the entries with the largest values, best first; equal values in the order of their classes, then durations.
#[derive(Debug, Default)]
pub(super) struct TopK {
    scores: Vec<f32>,
    /// Scores as they are compared, where they are not those of the joint.
    compared: Vec<f32>,
    heads: Vec<ListHead>,
    entries: Vec<Extension>,
    tops: Vec<(f32, u32)>,
    /// Room for the entries of a site.
    each: usize,
    /// Width of a row of scores, and of one that is compared.
    outputs: usize,
    classes: usize,
    /// One by the temperature.
    sharpness: f32,
}

impl TopK {
    /// Evaluates sites and finds so many entries of each.
    ///
    /// ```text
    /// value(c, d) = log_softmax((z - penalty [c is a blank]) / temperature)_c + fused_c + log_softmax(z_durations)_d
    /// ```
    ///
    /// # Errors
    /// With the index of the site, about the first row that has no scores.
    pub fn find(
        &mut self,
        (model, options): (&DecodingModel, &BeamOptions),
        (frames, at): (&[&[f32]], &[SiteIndex]),
        rows: &mut HypothesisRows,
        count: usize,
    ) -> Result<(), (usize, Error)> {
        let token_table = model.token_table();
        (self.outputs, self.classes) = (model.outputs(), token_table.classes());
        let (outputs, classes) = (self.outputs, self.classes);
        self.each = count.min(classes.saturating_mul(token_table.durations().max(1))).max(1);
        let top = count.clamp(1, classes);
        let scores = sized(&mut self.scores, at.len() * outputs);
        rows.scores(model, frames, at, scores);
        self.heads.clear();
        self.heads.resize(at.len(), ListHead::default());
        // What an earlier step left there is not read.
        self.entries.resize((at.len() * self.each).max(self.entries.len()), Extension::default());
        self.tops.resize((at.len() * top).max(self.tops.len()), (0.0, 0));
        self.sharpness = 1.0 / options.temperature;
        let reading =
            Reading { token_table, blank_penalty: options.blank_penalty, sharpness: self.sharpness };
        let fused = rows.fused();
        let differs = fused.is_some() || reading.sharpness != 1.0;
        let compared = sized(&mut self.compared, if differs { at.len() * classes } else { 0 });
        let compared = differs.then(|| parts_mut(compared, ROWS * classes));
        let (each, found) = (self.each, &mut self.entries[..at.len() * self.each]);
        let tops = &mut self.tops[..at.len() * top];
        let sides = (
            (parts_mut(&mut self.heads, ROWS), parts(at, ROWS)),
            (parts_mut(found, ROWS * each), parts_mut(tops, ROWS * top)),
            parts_mut(scores, ROWS * outputs),
            compared,
        );
        par_for(sides, |_, ((heads, at), (entries, tops), scores, mut compared)| {
            let lists = entries.chunks_exact_mut(each).zip(tops.chunks_exact_mut(top));
            let scores = scores.chunks_exact_mut(outputs);
            for (i, (((head, site), (entries, tops)), scores)) in
                heads.iter_mut().zip(at).zip(lists).zip(scores).enumerate()
            {
                let fused = fused.map(|fused| &fused[site.row * classes..][..classes]);
                let compared =
                    compared.as_deref_mut().map(|compared| &mut compared[i * classes..][..classes]);
                *head = reading.row(scores, fused, compared, tops, entries);
            }
        });
        match self.heads.iter().position(|head| head.count.is_none()) {
            None => Ok(()),
            Some(site) => {
                let scores = &self.scores[site * outputs..][..outputs];
                Err((site, invalid_scores(scores, token_table, at[site].frame)))
            }
        }
    }

    /// The best entries of a site.
    pub fn entries(&self, site: usize) -> &[Extension] {
        &self.entries[site * self.each..][..self.heads[site].count.unwrap_or(0)]
    }

    /// The best blank of a site, with its best duration.
    pub fn blank(&self, site: usize) -> Extension {
        self.heads[site].blank
    }

    /// The entry of a class to which automata add `fused`, without durations.
    pub fn entry(&self, site: usize, class: u32, fused: f32) -> Extension {
        let logit = self.scores[site * self.outputs + class as usize];
        let compared = self.compared.get(site * self.classes + class as usize).copied().unwrap_or(logit);
        let log_sum = self.heads[site].log_sum;
        Extension {
            value: f64::from(compared) - log_sum,
            log_prob: f64::from(logit * self.sharpness) - log_sum,
            duration_log_prob: 0.0,
            fused,
            logit,
            class,
            duration: 0,
        }
    }
}

impl Reading<'_> {
    fn row(
        &self,
        scores: &mut [f32],
        fused: Option<&[f32]>,
        compared: Option<&mut [f32]>,
        tops: &mut [(f32, u32)],
        entries: &mut [Extension],
    ) -> ListHead {
        let invalid = ListHead::default();
        let (tokens, durations) = scores.split_at_mut(self.token_table.classes());
        if self.blank_penalty != 0.0 {
            self.token_table.blanks().for_each(|blank| tokens[blank as usize] -= self.blank_penalty);
        }
        let tokens = &*tokens;
        // A NaN or +inf makes the sum NaN, and -inf everywhere makes it 0.
        let read = |scores: &[f32]| {
            let (max, sum) = f32::row_statistics(scores);
            (sum >= 1.0).then(|| f64::from(max) + sum.ln())
        };
        let (log_sum, compared) = match compared {
            None => (read(tokens), tokens),
            Some(room) => {
                room.iter_mut().zip(tokens).for_each(|(scaled, score)| *scaled = score * self.sharpness);
                let log_sum = read(room);
                if let Some(fused) = fused {
                    kernels::add(room, fused);
                }
                (log_sum, &*room)
            }
        };
        let of_durations = if durations.is_empty() { Some(0.0) } else { read(durations) };
        let (Some(log_sum), Some(of_durations)) = (log_sum, of_durations) else { return invalid };
        let entry = |class: u32, duration: usize| {
            let at = class as usize;
            let log_prob = f64::from(tokens[at] * self.sharpness) - log_sum;
            let duration_log_prob = durations.get(duration).map_or(0.0, |&z| f64::from(z) - of_durations);
            Extension {
                value: f64::from(compared[at]) - log_sum + duration_log_prob,
                log_prob,
                duration_log_prob,
                fused: fused.map_or(0.0, |fused| fused[at]),
                logit: tokens[at],
                class,
                duration: duration as u32,
            }
        };
        let top = largest(compared, tops);
        let mut count = 0;
        for &(_, class) in &tops[..top] {
            for duration in 0..durations.len().max(1) {
                let new = entry(class, duration);
                let after = |old: &Extension| {
                    (old.value, new.class, new.duration) < (new.value, old.class, old.duration)
                };
                if count == entries.len() && !after(&entries[count - 1]) {
                    continue;
                }
                let mut place = count.min(entries.len() - 1);
                while place > 0 && after(&entries[place - 1]) {
                    entries[place] = entries[place - 1];
                    place -= 1;
                }
                entries[place] = new;
                count = (count + 1).min(entries.len());
            }
        }
        let better = |best: Extension, new: Extension| if new.value > best.value { new } else { best };
        let durations = 0..durations.len().max(1);
        let blanks = self.token_table.blanks().flat_map(|blank| durations.clone().map(move |d| (blank, d)));
        let blank = blanks.map(|(blank, duration)| entry(blank, duration)).reduce(better).unwrap_or_default();
        ListHead { count: Some(count), blank, log_sum }
    }
}
