//! Operations on sorted, disjoint ranges of samples.
use std::ops::Range;

/// Returns the union of ranges in any order; touching ranges are joined.
pub(super) fn union(ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut ranges: Vec<Range<usize>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<usize>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Returns the samples of `0..samples` outside a union.
pub(super) fn complement(union: &[Range<usize>], samples: usize) -> Vec<Range<usize>> {
    let starts = std::iter::once(0).chain(union.iter().map(|range| range.end));
    let ends = union.iter().map(|range| range.start).chain([samples]);
    let gaps = starts.zip(ends).map(|(start, end)| start..end.min(samples));
    gaps.filter(|gap| !gap.is_empty()).collect()
}

/// Returns whether a range of a union contains a sample.
pub(super) fn contains(union: &[Range<usize>], sample: usize) -> bool {
    let index = union.partition_point(|range| range.end <= sample);
    union.get(index).is_some_and(|range| range.start <= sample)
}

/// Extends a range at both ends, within `0..samples`.
pub(super) fn extend(range: &Range<usize>, left: usize, right: usize, samples: usize) -> Range<usize> {
    range.start.saturating_sub(left)..range.end.saturating_add(right).min(samples)
}

/// Splits a range into similar parts of at most `max_len` samples.
pub(super) fn split(range: &Range<usize>, max_len: usize) -> Vec<Range<usize>> {
    let count = range.len().div_ceil(max_len.max(1)).max(1);
    let edge = |index: usize| range.start + range.len() * index / count;
    (0..count).map(|index| edge(index)..edge(index + 1)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SAMPLES: usize = 60;

    proptest! {
        #[test]
        fn operations_are_those_of_sets(ranges in prop::collection::vec((0..SAMPLES, 0..9_usize), 0..9)) {
            let ranges: Vec<Range<usize>> =
                ranges.iter().map(|&(start, len)| start..(start + len).min(SAMPLES)).collect();
            let joined = union(ranges.clone());
            prop_assert!(joined.windows(2).all(|pair| pair[0].end < pair[1].start));
            let outside = complement(&joined, SAMPLES);
            for sample in 0..SAMPLES {
                let is_inside = ranges.iter().any(|range| range.contains(&sample));
                prop_assert_eq!(contains(&joined, sample), is_inside);
                prop_assert_eq!(contains(&outside, sample), !is_inside);
            }
        }

        #[test]
        fn parts_tile_a_range(start in 0..50_usize, len in 1..200_usize, max_len in 1..60_usize) {
            let range = start..start + len;
            let parts = split(&range, max_len);
            prop_assert_eq!((parts[0].start, parts[parts.len() - 1].end), (range.start, range.end));
            prop_assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(parts.iter().all(|part| (1..=max_len).contains(&part.len())));
        }
    }

    #[test]
    fn extended_ranges_are_within_the_recording() {
        assert_eq!((extend(&(5..8), 2, 3, 20), extend(&(5..8), 9, 30, 20)), (3..11, 0..20));
    }
}
