//! Divides a recording into words, silence and gaps.
use std::ops::Range;

use super::intervals::{contains, extend, union};
use super::report::{CoverageKind, LabeledRange};

/// Inputs of [`tile`], in samples.
#[derive(Debug, Clone, Default)]
pub(super) struct TilingInput {
    /// Length of the recording.
    pub samples: usize,
    /// Token times of the words of the ordinary search.
    pub words: Vec<Range<usize>>,
    /// Token times of the recovered words.
    pub recovered: Vec<Range<usize>>,
    /// Evidence of speech.
    pub evidence: Vec<Range<usize>>,
    /// Distance from a token up to which evidence belongs to its word.
    pub tolerance: usize,
    /// Shortest gap next to a word.
    pub min_gap: usize,
    /// Shortest silence between words.
    pub min_pause: usize,
}

/// Returns ranges that contain every sample once; the kinds of adjacent ranges differ.
///
/// 1. A sample within a token is of its word.
/// 2. Evidence up to `tolerance` from a token is of its word; other evidence is a gap.
/// 3. Other samples are silence.
/// 4. A gap shorter than `min_gap` next to a word, and silence shorter than `min_pause` between two
///    words, belong to the word.
///
/// If a sample is near a word of each search, it is of the one of the ordinary search.
pub(super) fn tile(input: &TilingInput) -> Vec<LabeledRange> {
    let TilingInput { samples, tolerance, min_gap, min_pause, .. } = *input;
    let extended = |ranges: &[Range<usize>]| {
        union(ranges.iter().map(|range| extend(range, tolerance, tolerance, samples)))
    };
    let (words, recovered) = (union(input.words.clone()), union(input.recovered.clone()));
    let (near_words, near_recovered) = (extended(&words), extended(&recovered));
    let evidence = union(input.evidence.clone());
    let kind_at = |sample: usize| {
        let is_evidence = contains(&evidence, sample);
        if contains(&words, sample) {
            CoverageKind::Words
        } else if contains(&recovered, sample) {
            CoverageKind::Recovered
        } else if is_evidence && contains(&near_words, sample) {
            CoverageKind::Words
        } else if is_evidence && contains(&near_recovered, sample) {
            CoverageKind::Recovered
        } else if is_evidence {
            CoverageKind::Gap
        } else {
            CoverageKind::Silence
        }
    };
    let lists = [&words, &recovered, &near_words, &near_recovered, &evidence];
    let mut edges: Vec<usize> = lists
        .into_iter()
        .flatten()
        .flat_map(|range| [range.start, range.end])
        .filter(|edge| *edge < samples)
        .chain([0, samples])
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let tiles = edges.windows(2).map(|edge| (edge[0]..edge[1], kind_at(edge[0]))).collect();
    let mut tiles = join(tiles);
    assign_short_tiles(&mut tiles, |kind| *kind == CoverageKind::Gap, min_gap, |left, right| left.or(right));
    let mut tiles = join(tiles);
    let between_words =
        |left: Option<CoverageKind>, right: Option<CoverageKind>| left.filter(|_| right.is_some());
    assign_short_tiles(&mut tiles, |kind| *kind == CoverageKind::Silence, min_pause, between_words);
    join(tiles)
}

/// Joins adjacent ranges of the same kind.
fn join(tiles: Vec<LabeledRange>) -> Vec<LabeledRange> {
    let mut joined: Vec<LabeledRange> = Vec::with_capacity(tiles.len());
    for (range, kind) in tiles {
        match joined.last_mut() {
            Some((last, last_kind)) if *last_kind == kind => last.end = range.end,
            _ => joined.push((range, kind)),
        }
    }
    joined
}

/// Changes the kind of short ranges to that of `choose`.
///
/// A short range has less than `min_len` samples. The arguments of `choose` are the kinds of the
/// words before and after it.
fn assign_short_tiles(
    tiles: &mut [LabeledRange],
    is_affected: impl Fn(&CoverageKind) -> bool,
    min_len: usize,
    choose: impl Fn(Option<CoverageKind>, Option<CoverageKind>) -> Option<CoverageKind>,
) {
    let spoken = |tile: Option<&LabeledRange>| tile.map(|(_, kind)| *kind).filter(|kind| kind.is_spoken());
    for index in 0..tiles.len() {
        let (range, kind) = &tiles[index];
        if !is_affected(kind) || range.len() >= min_len {
            continue;
        }
        let left = spoken(index.checked_sub(1).and_then(|left| tiles.get(left)));
        if let Some(kind) = choose(left, spoken(tiles.get(index + 1))) {
            tiles[index].1 = kind;
        }
    }
}

#[cfg(test)]
mod tests {
    use CoverageKind::{Gap, Recovered, Silence, Words};
    use proptest::prelude::*;

    use super::*;

    const SAMPLES: usize = 80;

    fn any_ranges() -> impl Strategy<Value = Vec<Range<usize>>> {
        let range = (0..SAMPLES, 1..12_usize).prop_map(|(start, len)| start..(start + len).min(SAMPLES));
        prop::collection::vec(range, 0..6)
    }

    /// Returns whether a range is at most `distance` from a sample.
    fn is_near(ranges: &[Range<usize>], sample: usize, distance: usize) -> bool {
        ranges.iter().any(|range| range.start <= sample + distance && sample < range.end + distance)
    }

    proptest! {
        /// The kinds, sample by sample, without limits of length.
        #[test]
        fn kinds_follow_the_rules(
            words in any_ranges(), recovered in any_ranges(), evidence in any_ranges(), tolerance in 0..6_usize,
        ) {
            let input = TilingInput {
                samples: SAMPLES, words, recovered, evidence, tolerance, ..TilingInput::default()
            };
            let tiles = tile(&input);
            for (range, kind) in &tiles {
                for sample in range.clone() {
                    let is_evidence = is_near(&input.evidence, sample, 0);
                    let expected = if is_near(&input.words, sample, 0) { Words }
                        else if is_near(&input.recovered, sample, 0) { Recovered }
                        else if !is_evidence { Silence }
                        else if is_near(&input.words, sample, tolerance) { Words }
                        else if is_near(&input.recovered, sample, tolerance) { Recovered }
                        else { Gap };
                    prop_assert_eq!(*kind, expected, "{} {:?}", sample, tiles);
                }
            }
        }

        #[test]
        fn tiles_cover_every_sample_once(
            words in any_ranges(), recovered in any_ranges(), evidence in any_ranges(),
            tolerance in 0..6_usize, min_gap in 0..8_usize, min_pause in 0..8_usize,
        ) {
            let input = TilingInput {
                samples: SAMPLES, words, recovered, evidence, tolerance, min_gap, min_pause,
            };
            let tiles = tile(&input);
            prop_assert_eq!((tiles[0].0.start, tiles[tiles.len() - 1].0.end), (0, SAMPLES));
            prop_assert!(tiles.windows(2).all(|pair| pair[0].0.end == pair[1].0.start && pair[0].1 != pair[1].1));
            for (range, kind) in &tiles {
                // Words are never lost, and a gap has evidence only.
                for sample in range.clone() {
                    prop_assert!(*kind != Gap || is_near(&input.evidence, sample, 0));
                    prop_assert!(*kind == Words || !is_near(&input.words, sample, 0));
                }
            }
            for neighbors in tiles.windows(3) {
                let [(_, left), (range, kind), (_, right)] = neighbors else { unreachable!() };
                let is_pause = *kind == Silence && left.is_spoken() && right.is_spoken();
                prop_assert!(!is_pause || range.len() >= min_pause);
                prop_assert!(*kind != Gap || range.len() >= min_gap || !(left.is_spoken() || right.is_spoken()));
            }
        }
    }

    #[test]
    fn an_empty_recording_has_no_tiles() {
        assert_eq!(tile(&TilingInput::default()), []);
    }
}
