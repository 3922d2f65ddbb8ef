//! How the work is cut, by the shape of an utterance alone, and arithmetic on rows of a tile.
use std::ops::Range;

use kernels::Real;

/// Rows of a block.
pub(crate) const ROWS: usize = 128;

/// Parts of at most `most` that are as even as can be: the length of each but the last.
pub(crate) fn even(count: usize, most: usize) -> usize {
    count.div_ceil(count.div_ceil(most).max(1)).max(1)
}

/// Class ranges of the tiles, each of at most `most`.
pub(crate) fn tiles(classes: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let width = even(classes, most);
    (0..classes).step_by(width).map(move |first| first..(first + width).min(classes))
}

/// Rows of a block of an utterance.
pub(crate) fn block(rows: usize) -> usize {
    even(rows, ROWS)
}

/// Cuts a slice into parts of given lengths.
pub(crate) fn cut<T>(mut values: &mut [T], counts: impl IntoIterator<Item = usize>) -> Vec<&mut [T]> {
    let mut parts = Vec::new();
    for count in counts {
        let (part, rest) = values.split_at_mut(count);
        parts.push(part);
        values = rest;
    }
    parts
}

/// Cuts the first so many elements off a room.
pub(crate) fn part<'a, T>(room: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    room.split_off_mut(..count).expect("what a room is for was counted")
}

/// The largest element that is not NaN; -inf for nothing.
pub(crate) fn largest<F: Real>(row: &[F]) -> F {
    // Lanes, so that it is vectorised.
    let mut lanes = [F::NEG_INFINITY; 16];
    let (wide, rest) = row.as_chunks::<16>();
    for chunk in wide {
        lanes.iter_mut().zip(chunk).for_each(|(lane, &x)| *lane = if x > *lane { x } else { *lane });
    }
    lanes.iter().chain(rest).fold(F::NEG_INFINITY, |most, &x| if x > most { x } else { most })
}

/// Subtracts the largest score of a row, which is -inf where all are.
pub(crate) fn subtract<F: Real>(row: &mut [F], max: F) {
    let shift = if max == F::NEG_INFINITY { F::ZERO } else { max };
    row.iter_mut().for_each(|x| *x = *x - shift);
}

/// Raises the largest score so far to that of a row and subtracts it there. Returns by what sums of
/// `exp(score - max)` so far must be multiplied (Milakov and Gimelshein 2018).
pub(crate) fn raise<F: Real>(row: &mut [F], max: &mut F) -> f64 {
    let (old, new) = (*max, largest(row));
    if new > old {
        *max = new;
    }
    subtract(row, *max);
    if new > old { (old.to_f64() - new.to_f64()).exp() } else { 1.0 }
}

/// Sum in f64.
pub(crate) fn sum<F: Real>(row: &[F]) -> f64 {
    let mut lanes = [0.0; 8];
    let (wide, rest) = row.as_chunks::<8>();
    for chunk in wide {
        lanes.iter_mut().zip(chunk).for_each(|(lane, x)| *lane += x.to_f64());
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|x| x.to_f64()).sum::<f64>()
}

/// Below it, a sum of products of two exponentials over so many classes has lost digits, as exponentials below the
/// smallest normal number count as 0.
pub(crate) fn trusted<F: Real>(classes: usize) -> f64 {
    let smallest = if F::LARGEST.to_f64() < 1e100 { 5e-30 } else { 1e-290 };
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
    fn raising_keeps_the_sum() {
        let rows = [[1.0, -2.0, f64::NEG_INFINITY], [f64::NEG_INFINITY; 3], [700.0, 3.0, 2.0]];
        let (mut max, mut total) = (f64::NEG_INFINITY, 0.0);
        for mut row in rows {
            total *= raise(&mut row, &mut max);
            total += row.iter().map(|x| x.exp()).sum::<f64>();
        }
        assert_eq!(max, 700.0);
        let want: f64 = rows.iter().flatten().map(|x| (x - 700.0).exp()).sum();
        assert!((total - want).abs() < 1e-15);
    }

    #[test]
    fn largest_looks_everywhere_and_over_nan() {
        for at in 0..40 {
            let mut row = vec![-1.0f32; 40];
            row[at] = 5.0;
            row[(at + 1) % 40] = f32::NAN;
            assert_eq!(largest(&row), 5.0);
            assert_eq!(sum(&vec![1.0f32; at]), at as f64);
        }
        assert_eq!(largest::<f64>(&[]), f64::NEG_INFINITY);
    }
}
