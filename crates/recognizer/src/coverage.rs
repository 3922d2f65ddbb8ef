//! `Coverage`: accounts for every second of a recording.
//!
//! evidence of speech (energy, CTC head) → gaps without words → second search → report
mod intervals;
mod label_posteriors;
mod recovery;
pub(crate) mod report;
mod tiling;

use std::ops::Range;

use kernels::ShortFloat;
use speech::{Audio, Features, FrameEnergies};

pub use report::{
    Coverage, CoverageGap, CoverageKind, CoverageSegment, CoverageShares, GapStatus, RecoveredWord,
};

use crate::recognizer::Recognizer;
use crate::transcription::Transcription;
use crate::{Error, Result};
use intervals::{complement, extend, union};
use label_posteriors::LabelPosteriors;
use recovery::{FoundWord, GapSearch, Recovery, SearchedGap};
use report::LabeledRange;
use tiling::{TilingInput, tile};

/// Shortest gap next to a word, and shortest part that is checked.
const MIN_GAP_SECONDS: f64 = 0.1;
/// Shortest silence between words.
const MIN_PAUSE_SECONDS: f64 = 0.2;

/// Options of [`Recognizer::cover`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CoverageOptions {
    /// Seconds from which a gap is searched again.
    pub search_seconds: f64,
    /// Distance in seconds up to which evidence belongs to a token's word.
    ///
    /// A transducer emits a label late, and the end of its sound is unknown.
    pub tolerance_seconds: f64,
}

impl Default for CoverageOptions {
    /// Returns 0.3 s for both: the shortest words in isolation ("no") last about 0.3 s.
    fn default() -> Self {
        CoverageOptions { search_seconds: 0.3, tolerance_seconds: 0.3 }
    }
}

impl CoverageOptions {
    fn check(&self) -> Result<()> {
        let CoverageOptions { search_seconds, tolerance_seconds } = *self;
        for (name, seconds) in [("search_seconds", search_seconds), ("tolerance_seconds", tolerance_seconds)]
        {
            if !(0.0..=3600.0).contains(&seconds) {
                let expected = "a number of seconds from 0 to 3600";
                return Err(Error::shape(name, expected, ShortFloat(seconds).to_string()));
            }
        }
        Ok(())
    }
}

impl Recognizer {
    /// Recognizes a recording and accounts for every second of it.
    ///
    /// [`Self::transcribe`] and [`Self::cover`].
    ///
    /// # Errors
    /// Those of [`Self::transcribe`] and [`Self::cover`].
    ///
    /// ```no_run
    /// use recognizer::{CoverageOptions, Recognizer};
    ///
    /// let recognizer = Recognizer::load("model.safetensors".as_ref())?;
    /// let audio = speech::read_audio("call.flac".as_ref())?;
    /// let transcription = recognizer.transcribe_covered(&audio, &CoverageOptions::default())?;
    /// for gap in transcription.coverage.iter().flat_map(|coverage| &coverage.gaps) {
    ///     println!("{:.2} to {:.2} s: {:.0} dB", gap.start, gap.end, gap.energy_db);
    /// }
    /// # Ok::<(), recognizer::Error>(())
    /// ```
    pub fn transcribe_covered(&self, audio: &Audio, options: &CoverageOptions) -> Result<Transcription> {
        self.cover(audio, self.transcribe(audio)?, options)
    }

    /// Searches the gaps of a transcription again and adds its [`Coverage`].
    ///
    /// 1. Evidence of speech is energy over the noise floor ([`FrameEnergies`]) and, in models with
    ///    a CTC head, rows with `1 - p(blank) >= 0.5`, except in digital silence.
    /// 2. Evidence farther than `tolerance_seconds` from every token is a gap.
    /// 3. Gaps of at least `search_seconds` are searched again in three windows: with 1 s of
    ///    context; with 0.2 s, amplified to the level of speech; and shifted by 0.3 s and half an
    ///    encoder row. Words whose middle is in the gap or up to the tolerance from it are inserted
    ///    in order of time, unless the silence filter discards them or they repeat a neighbor.
    ///
    /// Words of `transcription` never change. If words are recovered, they are marked
    /// ([`TimedWord::is_recovered`](crate::TimedWord::is_recovered)), n-best texts are dropped, and
    /// the text is that of the words. `transcription` may be of any search, or of
    /// [`Self::transcribe_chunks`].
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) for an invalid time; those of [`Self::transcribe`].
    ///
    /// Cost: with a CTC head, encoding of the audio without words; three times recognition of the
    /// gaps and their context.
    pub fn cover(
        &self,
        audio: &Audio,
        mut transcription: Transcription,
        options: &CoverageOptions,
    ) -> Result<Transcription> {
        options.check()?;
        let (samples, sample_rate) = (audio.samples.len(), audio.sample_rate);
        let [tolerance, search_len, min_gap, min_pause] =
            [options.tolerance_seconds, options.search_seconds, MIN_GAP_SECONDS, MIN_PAUSE_SECONDS]
                .map(|seconds| seconds_to_samples(seconds, sample_rate));
        // 1. Evidence of speech.
        let words = token_ranges(&transcription, samples, sample_rate);
        let energies = FrameEnergies::new(&audio.samples, sample_rate);
        let mut unchecked =
            complement(&union(words.iter().map(|word| extend(word, tolerance, tolerance, samples))), samples);
        unchecked.retain(|region| region.len() >= min_gap.max(1));
        let posteriors = LabelPosteriors::from_ctc_head(self, audio, &unchecked)?;
        let mut evidence = energies.speech_ranges();
        if let Some(posteriors) = &posteriors {
            evidence =
                union(evidence.into_iter().chain(posteriors.evidence(&energies, samples, sample_rate)));
        }
        // 2. Gaps without words.
        let mut input =
            TilingInput { samples, words, recovered: Vec::new(), evidence, tolerance, min_gap, min_pause };
        let tiles = tile(&input);
        let gaps: Vec<Range<usize>> = gaps(&tiles).collect();
        let is_searched = |gap: &Range<usize>| gap.len() >= search_len;
        let searched: Vec<SearchedGap> = (0..gaps.len())
            .filter(|&index| is_searched(&gaps[index]))
            .map(|index| searched_gap(index, &gaps, &input))
            .collect();
        // 3. The second search.
        let search = GapSearch { recognizer: self, audio, energies: &energies, words: &transcription.words };
        let Recovery { words: found, labels } = search.search(&searched)?;
        input.recovered =
            found.iter().flat_map(|word| token_ranges(&word.transcription, samples, sample_rate)).collect();
        let tiles = tile(&input);
        // 4. The report.
        let seconds = |sample: usize| sample as f64 / f64::from(sample_rate);
        let posterior_of = |gap: &Range<usize>, is_searched: bool| match &posteriors {
            Some(posteriors) => Some(posteriors.max_label(gap)),
            None => (is_searched && self.model().lattice().is_none()).then(|| labels.max_label(gap)),
        };
        let report_gap = |gap: Range<usize>| {
            let is_searched = searched
                .iter()
                .any(|searched| searched.samples.start < gap.end && gap.start < searched.samples.end);
            CoverageGap {
                start: seconds(gap.start),
                end: seconds(gap.end),
                energy_db: energies.mean_excess(gap.clone()),
                posterior: posterior_of(&gap, is_searched),
                status: if is_searched { GapStatus::Unrecovered } else { GapStatus::Short },
            }
        };
        let report_gaps = self::gaps(&tiles).map(report_gap).collect();
        let recovered = found.iter().map(FoundWord::report).collect();
        insert(&mut transcription, found);
        transcription.coverage = Some(Coverage::new(&tiles, sample_rate, recovered, report_gaps));
        Ok(transcription)
    }

    /// Returns the features of a window; `None` if it is too short for a frame.
    pub(crate) fn window_features(&self, audio: &Audio) -> Result<Option<Features>> {
        match self.front_end.log_mel(audio) {
            Ok(features) => Ok(Some(features)),
            Err(speech::Error::ShortSignal { .. } | speech::Error::EmptySignal) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl FoundWord {
    fn report(&self) -> RecoveredWord {
        let word = &self.transcription.words[0];
        RecoveredWord {
            text: word.text.clone(),
            start: word.start,
            end: word.end,
            confidence: word.confidence,
            posterior: self.posterior,
        }
    }
}

/// Converts seconds to samples, rounded.
fn seconds_to_samples(seconds: f64, sample_rate: u32) -> usize {
    (seconds * f64::from(sample_rate)).round() as usize
}

/// Returns the samples of each token, at least one.
fn token_ranges(transcription: &Transcription, samples: usize, sample_rate: u32) -> Vec<Range<usize>> {
    let range = |start, end| {
        let start = seconds_to_samples(start, sample_rate).min(samples.saturating_sub(1));
        start..seconds_to_samples(end, sample_rate).max(start + 1).min(samples)
    };
    // A space is not spoken.
    let tokens = transcription.tokens.iter().filter(|token| !token.text.trim().is_empty());
    tokens.map(|token| range(token.start, token.end)).collect()
}

/// Returns the gaps among ranges with their kinds.
fn gaps(tiles: &[LabeledRange]) -> impl Iterator<Item = Range<usize>> {
    tiles.iter().filter(|(_, kind)| *kind == CoverageKind::Gap).map(|(range, _)| range.clone())
}

/// Returns a gap and where its words are accepted.
///
/// A label may be emitted outside the sound of its word: accepted are the samples up to the
/// tolerance from the gap, but at most half the way to the next token or gap.
fn searched_gap(index: usize, gaps: &[Range<usize>], input: &TilingInput) -> SearchedGap {
    let gap = &gaps[index];
    let neighbors = || input.words.iter().chain(&gaps[..index]).chain(&gaps[index + 1..]);
    let previous_end = neighbors().map(|range| range.end).filter(|end| *end <= gap.start).max();
    let next_start = neighbors().map(|range| range.start).filter(|start| *start >= gap.end).min();
    let left = previous_end.map_or(input.tolerance, |end| ((gap.start - end) / 2).min(input.tolerance));
    let right = next_start.map_or(input.tolerance, |start| ((start - gap.end) / 2).min(input.tolerance));
    SearchedGap { samples: gap.clone(), accepted: extend(gap, left, right, input.samples) }
}

/// Inserts recovered words in order of time; the words before keep their order.
fn insert(transcription: &mut Transcription, found: Vec<FoundWord>) {
    if found.is_empty() {
        return;
    }
    for FoundWord { transcription: word, .. } in found {
        for mut word in word.words {
            word.is_recovered = true;
            let index = transcription.words.iter().position(|later| later.start > word.start);
            transcription.words.insert(index.unwrap_or(transcription.words.len()), word);
        }
        let Some(start) = word.tokens.first().map(|token| token.start) else { continue };
        let index = transcription.tokens.iter().position(|later| later.start > start);
        let index = index.unwrap_or(transcription.tokens.len());
        transcription.tokens.splice(index..index, word.tokens);
    }
    transcription.text = crate::words::join_words(transcription.words.iter().map(|word| word.text.as_str()));
    transcription.nbest.clear();
}

#[cfg(test)]
mod tests;
