//! The second search: transcribes gaps again, in windows of different extent.
use std::f32::consts::SQRT_2;
use std::ops::Range;

use decoding::DecodedToken;
use rayon::prelude::*;
use speech::{Audio, Features, FrameEnergies};

use super::intervals::{extend, split};
use super::label_posteriors::{
    CONTEXT_SECONDS, LabelPosteriors, MAX_PART_SECONDS, RowPosterior, row_samples,
};
use super::seconds_to_samples;
use crate::Result;
use crate::recognizer::Recognizer;
use crate::search::SearchResult;
use crate::silence::{is_flat, max_word_posterior, part_posterior, word_parts};
use crate::transcription::{TimedWord, Transcription};

/// Windows that are searched in a batch.
const WINDOWS_PER_BATCH: usize = 16;
/// Context of a narrow window; it contains no word next to the gap.
const NARROW_CONTEXT_SECONDS: f64 = 0.2;
/// Additional context before a shifted window, next to half an encoder row.
const SHIFT_SECONDS: f64 = 0.3;
/// Largest gain of a quiet gap.
const MAX_GAIN_DB: f64 = 60.0;
/// Smallest distance of two equal words that are found by different searches.
const MIN_REPETITION_SECONDS: f64 = 0.6;

/// A gap to search again.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SearchedGap {
    /// Samples of the gap.
    pub samples: Range<usize>,
    /// Samples where the middle of a recovered word may be.
    pub accepted: Range<usize>,
}

/// A word of the second search.
#[derive(Debug, Clone)]
pub(super) struct FoundWord {
    /// The transcription of this word only.
    pub transcription: Transcription,
    /// Product of the posteriors of its tokens.
    pub posterior: f64,
    /// The sample in its middle.
    middle: usize,
}

impl FoundWord {
    /// Creates a word from its transcription.
    pub(super) fn new(transcription: Transcription, posterior: f64, middle: usize) -> Self {
        FoundWord { transcription, posterior, middle }
    }
}

/// Results of the second search.
#[derive(Debug, Default)]
pub(super) struct Recovery {
    /// Recovered words in order of time.
    pub words: Vec<FoundWord>,
    /// Labels of all windows, with their posteriors.
    pub labels: LabelPosteriors,
}

/// Searches gaps of a recording again.
pub(super) struct GapSearch<'a> {
    pub recognizer: &'a Recognizer,
    pub audio: &'a Audio,
    pub energies: &'a FrameEnergies,
    /// Words of the ordinary search.
    pub words: &'a [TimedWord],
}

/// Audio of a part of a gap, with context.
#[derive(Debug, Clone)]
struct SearchWindow {
    /// Index of the part.
    part: usize,
    samples: Range<usize>,
    /// Whether the gap is amplified to the level of speech.
    is_amplified: bool,
}

impl GapSearch<'_> {
    /// Searches the gaps in several windows and selects the best words.
    ///
    /// A long gap is searched in parts of at most 20 s. The best words have the largest sum of
    /// posteriors, the expected number of correct words; on ties, the first window is chosen.
    ///
    /// # Errors
    /// Those of the front end, the encoder and the search.
    ///
    /// Cost: three times recognition of the gaps with their context.
    pub(super) fn search(&self, gaps: &[SearchedGap]) -> Result<Recovery> {
        let max_len = self.samples(MAX_PART_SECONDS);
        let parts: Vec<SearchedGap> = gaps.iter().flat_map(|gap| gap.split(max_len)).collect();
        let windows: Vec<SearchWindow> =
            (0..parts.len()).flat_map(|index| self.windows(index, &parts[index].samples)).collect();
        let mut best_words: Vec<Vec<FoundWord>> = vec![Vec::new(); parts.len()];
        let mut labels = LabelPosteriors::default();
        let level = self.energies.speech_level();
        for batch in windows.chunks(WINDOWS_PER_BATCH) {
            // 1. Features; a window may be too short for a frame.
            let audio = |window: &SearchWindow| self.window_audio(window, &parts[window.part].samples, level);
            let audio: Vec<Audio> = batch.iter().map(audio).collect();
            self.recognizer.expect_memory(&audio.iter().collect::<Vec<_>>())?;
            let features: Vec<Option<Features>> = audio
                .par_iter()
                .map(|audio| self.recognizer.window_features(audio))
                .collect::<Result<_>>()?;
            // 2. Search.
            let usable: Vec<&Features> = features.iter().flatten().collect();
            let mut results = self.recognizer.recognize(&usable)?.into_iter();
            // 3. Words of the best window of each part.
            for ((window, audio), features) in batch.iter().zip(&audio).zip(&features) {
                let Some(features) = features else { continue };
                let result = results.next().unwrap_or_default();
                let trimmed = self.recognizer.front_end.trimmed_range(&audio.samples).start;
                let first_sample = window.samples.start + trimmed;
                labels.rows.extend(self.label_rows(first_sample, &result));
                let words =
                    self.select_words(&parts[window.part].accepted, first_sample, features, &result)?;
                let total = |words: &[FoundWord]| words.iter().map(|word| word.posterior).sum::<f64>();
                if total(&words) > total(&best_words[window.part]) {
                    best_words[window.part] = words;
                }
            }
        }
        Ok(Recovery { words: best_words.concat(), labels })
    }

    fn samples(&self, seconds: f64) -> usize {
        seconds_to_samples(seconds, self.audio.sample_rate)
    }

    /// Returns the windows of a part: with wide context, narrow, and shifted.
    fn windows(&self, part: usize, samples: &Range<usize>) -> [SearchWindow; 3] {
        let half_row = self.recognizer.transcription_builder().frame_seconds() / 2.0;
        let (wide, narrow) = (CONTEXT_SECONDS, NARROW_CONTEXT_SECONDS);
        let shifted = narrow + SHIFT_SECONDS + half_row;
        [(wide, wide, false), (narrow, narrow, true), (shifted, narrow, true)].map(
            |(left, right, is_amplified)| {
                let (left, right) = (self.samples(left), self.samples(right));
                SearchWindow {
                    part,
                    samples: extend(samples, left, right, self.audio.samples.len()),
                    is_amplified,
                }
            },
        )
    }

    /// Returns the audio of a window; a quiet gap is amplified to `level` in dB.
    fn window_audio(&self, window: &SearchWindow, gap: &Range<usize>, level: f64) -> Audio {
        let mut samples = self.audio.samples[window.samples.clone()].to_vec();
        let gain_db = (level - self.energies.max_level(gap.clone())).min(MAX_GAIN_DB);
        if window.is_amplified && gain_db > 0.0 {
            amplify(&mut samples, gain_db, level);
        }
        Audio { samples, sample_rate: self.audio.sample_rate }
    }

    /// Returns the labels of the model without fusion, with their samples.
    fn label_rows(&self, first_sample: usize, result: &SearchResult) -> Vec<RowPosterior> {
        let samples_of_row = row_samples(self.recognizer, first_sample, self.audio.sample_rate);
        let row = |label: &DecodedToken| {
            let posterior = label.log_prob.exp();
            RowPosterior { samples: samples_of_row(label.frame), any_label: posterior, best_label: posterior }
        };
        model_labels(result).iter().map(row).collect()
    }

    /// Returns the words with an accepted middle, unless they are silence.
    ///
    /// The silence filter applies to these words only, not to those of the context.
    fn select_words(
        &self,
        accepted: &Range<usize>,
        first_sample: usize,
        features: &Features,
        result: &SearchResult,
    ) -> Result<Vec<FoundWord>> {
        let min_posterior = self.recognizer.min_posterior();
        if min_posterior > 0.0 && is_flat(features) {
            return Ok(Vec::new());
        }
        let words = self.found_words(first_sample, &result.best.labels)?;
        let (inside, context): (Vec<_>, Vec<_>) =
            words.into_iter().partition(|word| accepted.contains(&word.middle));
        let accepted_words: Vec<FoundWord> =
            inside.into_iter().filter(|word| !self.is_repeated(word, &context)).collect();
        let evidence = match &result.unfused {
            None => accepted_words.iter().map(|word| word.posterior).fold(0.0, f64::max),
            Some(unfused) if unfused.labels.is_empty() => unfused.max_label_posterior,
            Some(unfused) => {
                let middles = self.middles(first_sample, &unfused.labels);
                let is_accepted =
                    |(part, middle): (Range<usize>, usize)| accepted.contains(&middle).then_some(part);
                let posterior = |part: Range<usize>| {
                    max_word_posterior(self.recognizer.tokenizer(), &unfused.labels[part])
                };
                middles.into_iter().filter_map(is_accepted).map(posterior).fold(0.0, f64::max)
            }
        };
        Ok(if evidence < min_posterior { Vec::new() } else { accepted_words })
    }

    /// Returns the labels and the middle sample of each word.
    fn middles(&self, first_sample: usize, labels: &[DecodedToken]) -> Vec<(Range<usize>, usize)> {
        let samples_of_row = row_samples(self.recognizer, first_sample, self.audio.sample_rate);
        let parts = word_parts(self.recognizer.tokenizer(), labels).into_iter();
        let middle = |part: &Range<usize>| {
            let (first, last) = (labels[part.start].frame, labels[part.end - 1].frame);
            (samples_of_row(first).start + samples_of_row(last).end) / 2
        };
        parts.map(|part| (part.clone(), middle(&part))).collect()
    }

    /// Converts labels to words with their times in the recording.
    fn found_words(&self, first_sample: usize, labels: &[DecodedToken]) -> Result<Vec<FoundWord>> {
        let delay = first_sample as f64 / f64::from(self.audio.sample_rate);
        let builder = self.recognizer.transcription_builder();
        let mut words = Vec::new();
        for (part, middle) in self.middles(first_sample, labels) {
            let labels = &labels[part];
            let transcription = builder.build(self.recognizer.tokenizer(), labels)?.delayed_by(delay);
            if !transcription.words.is_empty() {
                words.push(FoundWord::new(transcription, part_posterior(labels), middle));
            }
        }
        Ok(words)
    }

    /// Returns whether a word repeats a word next to the gap.
    ///
    /// It does not if the context of the window contains that word too: then the model recognizes
    /// both.
    fn is_repeated(&self, word: &FoundWord, context: &[FoundWord]) -> bool {
        let text = |word: &FoundWord| word.transcription.words[0].text.clone();
        let min_distance = self.samples(MIN_REPETITION_SECONDS);
        let is_same = |neighbor: &&TimedWord| {
            let middle = self.samples((neighbor.start + neighbor.end) / 2.0);
            let is_near = |word: &FoundWord| word.middle.abs_diff(middle) < min_distance;
            neighbor.text == text(word)
                && is_near(word)
                && !context.iter().any(|other| text(other) == neighbor.text && is_near(other))
        };
        self.words.iter().any(|neighbor| is_same(&neighbor))
    }
}

impl SearchedGap {
    /// Splits a long gap; the parts accept words up to their common edges.
    fn split(&self, max_len: usize) -> Vec<SearchedGap> {
        let parts = split(&self.samples, max_len);
        let last = parts.len() - 1;
        let part = |(index, samples): (usize, Range<usize>)| {
            let start = if index == 0 { self.accepted.start } else { samples.start };
            let end = if index == last { self.accepted.end } else { samples.end };
            SearchedGap { samples, accepted: start..end }
        };
        parts.into_iter().enumerate().map(part).collect()
    }
}

/// Amplifies samples; louder ones are clipped at the amplitude of a sine of `level` dB.
fn amplify(samples: &mut [f32], gain_db: f64, level: f64) {
    let [gain, power_root] = [gain_db, level].map(|db| 10f64.powf(db / 20.0) as f32);
    let limit = SQRT_2 * power_root;
    samples.iter_mut().for_each(|sample| *sample = (*sample * gain).clamp(-limit, limit));
}

/// Returns the labels of the model only, if separate.
fn model_labels(result: &SearchResult) -> &[DecodedToken] {
    result.unfused.as_ref().map_or(&result.best.labels, |unfused| &unfused.labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_sine_is_amplified_and_loud_audio_clipped() {
        // A sine of amplitude 0.01 (-43 dB) to -13 dB, next to one of 0.5 (-9 dB).
        let sine = |amplitude: f32| (0..4000).map(move |n| amplitude * (n as f32 * 0.7).sin());
        let samples: Vec<f32> = sine(0.01).chain(sine(0.5)).collect();
        let level = |samples: &[f32]| FrameEnergies::new(samples, 8000).max_level(0..3000);
        let (quiet, target) = (level(&samples), level(&samples) + 30.0);
        let mut amplified = samples;
        amplify(&mut amplified, target - quiet, target);
        assert!((level(&amplified) - target).abs() < 0.1, "{} {target}", level(&amplified));
        let max = amplified.iter().fold(0f32, |max, sample| max.max(sample.abs()));
        assert!((max - 0.01 * 10f32.powf(1.5)).abs() < 0.01, "{max}");
    }

    #[test]
    fn parts_of_a_gap_accept_every_sample_once() {
        let gap = SearchedGap { samples: 100..200, accepted: 90..205 };
        let parts = gap.split(40);
        let samples: Vec<_> = parts.iter().map(|part| part.samples.clone()).collect();
        let accepted: Vec<_> = parts.iter().map(|part| part.accepted.clone()).collect();
        assert_eq!(samples, [100..133, 133..166, 166..200]);
        assert_eq!(accepted, [90..133, 133..166, 166..205]);
        assert_eq!(gap.split(100), [gap]);
    }
}
