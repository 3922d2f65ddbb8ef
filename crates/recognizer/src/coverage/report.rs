//! The report of a recording: segments, recovered words, gaps, and totals.
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// The contents of every second of a recording; [`Recognizer::cover`](crate::Recognizer::cover).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Coverage {
    /// Length of the recording in seconds.
    pub duration: f64,
    /// Seconds of each kind; they sum to the duration.
    pub seconds: CoverageShares,
    /// Fractions of the duration; 0 for an empty recording.
    pub fractions: CoverageShares,
    /// Segments from 0 to the duration; each begins where the previous one ends.
    pub segments: Vec<CoverageSegment>,
    /// Words of the second search, in order of time.
    pub recovered: Vec<RecoveredWord>,
    /// Gaps that remain, in order of time.
    pub gaps: Vec<CoverageGap>,
}

/// A number for each kind of segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct CoverageShares {
    /// Words of the ordinary search.
    pub words: f64,
    /// Words of the second search.
    pub recovered: f64,
    /// No evidence of speech, and no word.
    pub silence: f64,
    /// Evidence of speech without words.
    pub gap: f64,
}

/// A range of samples with its kind.
pub(super) type LabeledRange = (Range<usize>, CoverageKind);

/// A kind of segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoverageKind {
    /// Words of the ordinary search.
    Words,
    /// Words of the second search.
    Recovered,
    /// No evidence of speech, and no word.
    Silence,
    /// Evidence of speech without words.
    Gap,
}

impl CoverageKind {
    /// Returns whether the segment has words.
    pub fn is_spoken(self) -> bool {
        matches!(self, CoverageKind::Words | CoverageKind::Recovered)
    }
}

/// A part of a recording of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoverageSegment {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// The kind.
    pub kind: CoverageKind,
}

/// A word of the second search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RecoveredWord {
    /// The word.
    pub text: String,
    /// Seconds from the start of the recording to its first token.
    pub start: f64,
    /// Seconds to the end of its last token.
    pub end: f64,
    /// Confidence aggregated over its tokens.
    pub confidence: f64,
    /// Product of the posteriors of its tokens; 1 in recognition lattices.
    pub posterior: f64,
}

/// Evidence of speech without words.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CoverageGap {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// Mean level over the noise floor in dB.
    pub energy_db: f64,
    /// Largest posterior of a label within the gap.
    ///
    /// That of the CTC head or, in a transducer without one, that of the labels that the second
    /// search emits there, 0 without any. `None` in such a model if the gap was not searched again,
    /// and in recognition lattices.
    pub posterior: Option<f64>,
    /// Whether it was searched again.
    pub status: GapStatus,
}

/// Whether a gap was searched again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapStatus {
    /// The second search found no word for it.
    Unrecovered,
    /// It is too short to be searched again.
    Short,
}

impl Coverage {
    /// Creates the report of ranges of samples.
    pub(super) fn new(
        tiles: &[LabeledRange],
        sample_rate: u32,
        recovered: Vec<RecoveredWord>,
        gaps: Vec<CoverageGap>,
    ) -> Self {
        let seconds = |samples: usize| samples as f64 / f64::from(sample_rate);
        let num_samples = tiles.last().map_or(0, |(range, _)| range.end);
        // Sums of integers, so that rounding does not accumulate.
        let count = |kind: CoverageKind| {
            tiles.iter().filter(|(_, other)| *other == kind).map(|(range, _)| range.len()).sum::<usize>()
        };
        let shares = |of_count: &dyn Fn(usize) -> f64| CoverageShares {
            words: of_count(count(CoverageKind::Words)),
            recovered: of_count(count(CoverageKind::Recovered)),
            silence: of_count(count(CoverageKind::Silence)),
            gap: of_count(count(CoverageKind::Gap)),
        };
        let segment = |(range, kind): &LabeledRange| CoverageSegment {
            start: seconds(range.start),
            end: seconds(range.end),
            kind: *kind,
        };
        Coverage {
            duration: seconds(num_samples),
            seconds: shares(&seconds),
            fractions: shares(&|samples| samples as f64 / num_samples.max(1) as f64),
            segments: tiles.iter().map(segment).collect(),
            recovered,
            gaps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_of_all_kinds_sum_to_the_duration() {
        let kinds = [
            CoverageKind::Silence,
            CoverageKind::Words,
            CoverageKind::Gap,
            CoverageKind::Words,
            CoverageKind::Recovered,
        ];
        let edges = [0, 3, 1000, 1007, 7001, 8003];
        let tiles: Vec<LabeledRange> =
            edges.windows(2).zip(kinds).map(|(edge, kind)| (edge[0]..edge[1], kind)).collect();
        let coverage = Coverage::new(&tiles, 16_000, Vec::new(), Vec::new());
        let sum = |CoverageShares { words, recovered, silence, gap }: CoverageShares| {
            words + recovered + silence + gap
        };
        assert!((sum(coverage.seconds) - coverage.duration).abs() < 1e-12);
        assert!((sum(coverage.fractions) - 1.0).abs() < 1e-12);
        assert_eq!((coverage.duration, coverage.seconds.words), (8003.0 / 16_000.0, 6991.0 / 16_000.0));
        assert_eq!((coverage.segments[0].start, coverage.segments[4].end), (0.0, coverage.duration));
        assert!(coverage.segments.windows(2).all(|pair| pair[0].end == pair[1].start));
        let empty = Coverage::new(&[], 16_000, Vec::new(), Vec::new());
        assert_eq!((empty.duration, empty.fractions), (0.0, CoverageShares::default()));
    }
}
