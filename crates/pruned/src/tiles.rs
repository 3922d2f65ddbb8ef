//! Sizes of class tiles and row blocks; row maximum, shift and sum.
use std::ops::Range;

use kernels::Real;

/// Maximum rows (frames or label positions) of a block, a task's work.
pub(crate) const BLOCK_ROWS: usize = 128;

/// Returns the size of nearly even parts of at most `max_size`; the last may be smaller.
pub(crate) fn even_size(count: usize, max_size: usize) -> usize {
    count.div_ceil(count.div_ceil(max_size).max(1)).max(1)
}

/// Returns the class ranges of tiles of at most `max_size`.
pub(crate) fn tiles(classes: usize, max_size: usize) -> impl Iterator<Item = Range<usize>> {
    let width = even_size(classes, max_size);
    (0..classes).step_by(width).map(move |first| first..(first + width).min(classes))
}

/// Returns the rows of a block of an utterance.
pub(crate) fn block_rows(rows: usize) -> usize {
    even_size(rows, BLOCK_ROWS)
}

/// Splits a slice into parts of given lengths.
pub(crate) fn split_lengths<T>(
    mut values: &mut [T],
    counts: impl IntoIterator<Item = usize>,
) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    for count in counts {
        let (part, rest) = values.split_at_mut(count);
        parts.push(part);
        values = rest;
    }
    parts
}

/// Splits off the first `count` elements of a buffer.
pub(crate) fn split_front<'a, T>(buffer: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    buffer.split_off_mut(..count).expect("the buffer has all planned parts")
}

/// Returns the largest element that is not NaN; -inf for an empty row.
pub(crate) fn max_score<F: Real>(row: &[F]) -> F {
    // In lanes, so that the loop is vectorized.
    let mut lanes = [F::NEG_INFINITY; 16];
    let (chunks, rest) = row.as_chunks::<16>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = if x > *lane { x } else { *lane });
    }
    lanes.iter().chain(rest).fold(F::NEG_INFINITY, |max, &x| if x > max { x } else { max })
}

/// Subtracts the largest score of a row; a maximum of -inf is not subtracted.
pub(crate) fn subtract_max<F: Real>(row: &mut [F], max: F) {
    let shift = if max == F::NEG_INFINITY { F::ZERO } else { max };
    row.iter_mut().for_each(|x| *x = *x - shift);
}

/// Raises the running maximum to that of a row, and subtracts it.
///
/// Returns the factor for earlier sums of `exp(score - max)` (Milakov and Gimelshein 2018).
pub(crate) fn raise_max<F: Real>(row: &mut [F], max: &mut F) -> f64 {
    let (old, new) = (*max, max_score(row));
    if new > old {
        *max = new;
    }
    subtract_max(row, *max);
    if new > old { (old.to_f64() - new.to_f64()).exp() } else { 1.0 }
}

/// Returns the sum in `f64`.
pub(crate) fn sum<F: Real>(row: &[F]) -> f64 {
    let mut lanes = [0.0; 8];
    let (chunks, rest) = row.as_chunks::<8>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x.to_f64());
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|x| x.to_f64()).sum::<f64>()
}

/// Returns the smallest reliable sum of products of two exponentials.
///
/// Smaller sums may have lost digits, because exponentials below the smallest normal number count
/// as 0.
pub(crate) fn min_reliable_sum<F: Real>(classes: usize) -> f64 {
    let smallest = if F::MAX.to_f64() < 1e100 { 5e-30 } else { 1e-290 };
    classes as f64 * smallest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_classes_once() {
        for classes in [1, 2, 1023, 1024, 1025, 4097, 65_536] {
            let all: Vec<_> = tiles(classes, 1024).collect();
            assert_eq!((all[0].start, all[all.len() - 1].end), (0, classes));
            assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(all.iter().all(|tile| !tile.is_empty() && tile.len() <= 1024));
        }
    }

    #[test]
    fn raising_the_maximum_keeps_the_sum() {
        let rows = [[1.0, -2.0, f64::NEG_INFINITY], [f64::NEG_INFINITY; 3], [700.0, 3.0, 2.0]];
        let (mut max, mut total) = (f64::NEG_INFINITY, 0.0);
        for mut row in rows {
            total *= raise_max(&mut row, &mut max);
            total += row.iter().map(|x| x.exp()).sum::<f64>();
        }
        assert_eq!(max, 700.0);
        let expected: f64 = rows.iter().flatten().map(|x| (x - 700.0).exp()).sum();
        assert!((total - expected).abs() < 1e-15);
    }

    #[test]
    fn the_maximum_covers_all_elements_and_ignores_nan() {
        for at in 0..40 {
            let mut row = vec![-1.0f32; 40];
            row[at] = 5.0;
            row[(at + 1) % 40] = f32::NAN;
            assert_eq!(max_score(&row), 5.0);
            assert_eq!(sum(&vec![1.0f32; at]), at as f64);
        }
        assert_eq!(max_score::<f64>(&[]), f64::NEG_INFINITY);
    }
}
