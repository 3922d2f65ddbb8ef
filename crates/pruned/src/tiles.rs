//! Class tiles and row blocks of the pruned first pass; row maxima and sums.
//!
//! A tile is a range of classes whose scores exist at the same time; a block is the range of rows
//! that a task processes. Lanes are independent partial results, so that loops are vectorized.
use std::ops::Range;

use kernels::Real;

/// Maximum rows (frames or label positions) of a block.
pub(crate) const BLOCK_ROWS: usize = 128;

/// Independent running maxima of [`max_score`].
const MAX_LANES: usize = 16;
/// Independent partial sums of [`row_sum`].
const SUM_LANES: usize = 8;

/// Returns the size of nearly even parts of at most `max_size`; the last may be smaller.
pub(crate) fn even_size(count: usize, max_size: usize) -> usize {
    count.div_ceil(count.div_ceil(max_size).max(1)).max(1)
}

/// Returns the class ranges of tiles of at most `max_size`.
pub(crate) fn class_tiles(classes: usize, max_size: usize) -> impl Iterator<Item = Range<usize>> {
    let width = even_size(classes, max_size);
    (0..classes).step_by(width).map(move |start| start..(start + width).min(classes))
}

/// Returns the rows of a block of an utterance.
pub(crate) fn block_rows(rows: usize) -> usize {
    even_size(rows, BLOCK_ROWS)
}

/// Splits a slice into parts of given lengths.
pub(crate) fn split_lengths<T>(
    mut values: &mut [T],
    lengths: impl IntoIterator<Item = usize>,
) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    for length in lengths {
        let (part, remaining) = values.split_at_mut(length);
        parts.push(part);
        values = remaining;
    }
    parts
}

/// Splits off the first `count` elements of a buffer.
pub(crate) fn take_front<'a, T>(buffer: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    buffer.split_off_mut(..count).expect("the buffer has all planned parts")
}

/// Returns the largest element that is not NaN; -inf for an empty row.
pub(crate) fn max_score<F: Real>(row: &[F]) -> F {
    // In lanes, so that the loop is vectorized.
    let mut lanes = [F::NEG_INFINITY; MAX_LANES];
    let (chunks, remainder) = row.as_chunks::<MAX_LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = if x > *lane { x } else { *lane });
    }
    lanes.iter().chain(remainder).fold(F::NEG_INFINITY, |max, &x| if x > max { x } else { max })
}

/// Subtracts the largest score `max` from a row; a maximum of -inf is not subtracted.
pub(crate) fn subtract_max<F: Real>(row: &mut [F], max: F) {
    let shift = if max == F::NEG_INFINITY { F::ZERO } else { max };
    row.iter_mut().for_each(|x| *x = *x - shift);
}

/// Raises the running maximum to that of a row, and subtracts it.
///
/// Returns the factor for earlier sums of `exp(score - max)` (Milakov and Gimelshein 2018).
pub(crate) fn raise_max<F: Real>(row: &mut [F], max: &mut F) -> f64 {
    let (old_max, row_max) = (*max, max_score(row));
    if row_max > old_max {
        *max = row_max;
    }
    subtract_max(row, *max);
    if row_max > old_max { (old_max.to_f64() - row_max.to_f64()).exp() } else { 1.0 }
}

/// Returns the sum of a row in `f64`, in a fixed order.
pub(crate) fn row_sum<F: Real>(row: &[F]) -> f64 {
    let mut lanes = [0.0; SUM_LANES];
    let (chunks, remainder) = row.as_chunks::<SUM_LANES>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x.to_f64());
    }
    lanes.iter().sum::<f64>() + remainder.iter().map(|x| x.to_f64()).sum::<f64>()
}

/// Returns the smallest reliable sum of products of two exponentials.
///
/// Smaller sums may have lost digits, because exponentials below the smallest normal number count
/// as 0. In a reliable sum, these are less than half a unit in the last place.
pub(crate) fn min_reliable_sum<F: Real>(classes: usize) -> f64 {
    // 1e100 is above the largest `f32`.
    let is_f32 = F::MAX.to_f64() < 1e100;
    let min_sum_per_class = if is_f32 { 5e-30 } else { 1e-290 };
    classes as f64 * min_sum_per_class
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_cover_all_classes_once() {
        const MAX_SIZE: usize = 1024;
        for classes in [1, 2, 1023, 1024, 1025, 4097, 65_536] {
            let tiles: Vec<_> = class_tiles(classes, MAX_SIZE).collect();
            assert_eq!((tiles[0].start, tiles[tiles.len() - 1].end), (0, classes));
            assert!(tiles.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(tiles.iter().all(|tile| !tile.is_empty() && tile.len() <= MAX_SIZE));
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
        for index in 0..40 {
            let mut row = vec![-1.0f32; 40];
            row[index] = 5.0;
            row[(index + 1) % 40] = f32::NAN;
            assert_eq!(max_score(&row), 5.0);
            assert_eq!(row_sum(&vec![1.0f32; index]), index as f64);
        }
        assert_eq!(max_score::<f64>(&[]), f64::NEG_INFINITY);
    }
}
