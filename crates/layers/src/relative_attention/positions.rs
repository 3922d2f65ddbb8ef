//! Distances of queries and keys, and the sinusoids that represent them.
use kernels::{Real, par_for, parts_mut};

use crate::attention_limits::AttentionLimits;

/// Base of the wavelengths: these grow from 2π to 10000 · 2π.
const WAVELENGTH_BASE: f64 = 10_000.0;
/// Distances that one task processes.
const DISTANCES_PER_TASK: usize = 16;

/// The distances, query minus key, from `past` down to `-future`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DistanceRange {
    /// Largest distance of a key before its query.
    pub past: usize,
    /// Largest distance of a key after its query.
    pub future: usize,
}

impl DistanceRange {
    /// Returns the distances within the limits.
    ///
    /// Utterances have at most `rows` rows.
    pub fn new(limits: AttentionLimits, rows: usize) -> Self {
        let empty = DistanceRange { past: 0, future: 0 };
        (0..rows).fold(empty, |range, query| {
            let keys = limits.keys(query, rows);
            DistanceRange {
                past: range.past.max(query.saturating_sub(keys.start)),
                future: range.future.max(keys.end.saturating_sub(query + 1)),
            }
        })
    }

    /// Returns the number of distances.
    pub fn count(&self) -> usize {
        self.past + self.future + 1
    }

    /// Computes sines and cosines of each distance, `[count, W]`.
    ///
    /// Distance m has sin(m w_j) at 2j and cos(m w_j) at 2j + 1; w_j is `10000^(-2j/W)`. Angles are
    /// computed in `f64`, as they have thousands of radians.
    pub fn sinusoids<F: Real>(&self, width: usize) -> Vec<F> {
        let frequencies: Vec<f64> =
            (0..width.div_ceil(2)).map(|j| WAVELENGTH_BASE.powf(-((2 * j) as f64) / width as f64)).collect();
        let mut table = kernels::alloc(self.count() * width, F::ZERO);
        par_for(parts_mut(&mut table, (DISTANCES_PER_TASK * width).max(1)), |task, rows| {
            for (index, row) in (task * DISTANCES_PER_TASK..).zip(rows.chunks_exact_mut(width)) {
                let distance = self.past as f64 - index as f64;
                for (pair, frequency) in row.chunks_mut(2).zip(&frequencies) {
                    let (sin, cos) = (distance * frequency).sin_cos();
                    pair.iter_mut().zip([sin, cos]).for_each(|(out, value)| *out = F::from_f64(value));
                }
            }
        });
        table
    }
}

/// Rows of positions for attention, `[n, W]`, one for each of n distances.
#[derive(Debug, Clone, Copy)]
pub struct PositionRows<'a, F> {
    /// The rows.
    pub rows: &'a [F],
    /// The distances of the rows, the largest first.
    pub distances: DistanceRange,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_queries_and_keys_in_the_limits() {
        for limits in [
            AttentionLimits::Full,
            AttentionLimits::Window { left: Some(3), right: Some(1) },
            AttentionLimits::Window { left: None, right: Some(2) },
            AttentionLimits::Chunks { chunk: 4, left: Some(8) },
            AttentionLimits::Chunks { chunk: 3, left: None },
        ] {
            for rows in [0, 1, 2, 5, 13, 40] {
                let pairs = (0..rows).flat_map(|i| limits.keys(i, rows).map(move |j| i as i64 - j as i64));
                let (past, future) = pairs.fold((0, 0), |(past, future), m| (past.max(m), future.max(-m)));
                let range = DistanceRange::new(limits, rows);
                assert_eq!((range.past as i64, range.future as i64), (past, future), "{limits:?}, {rows}");
            }
        }
        let window = AttentionLimits::Window { left: Some(3), right: Some(1) };
        assert_eq!(DistanceRange::new(window, 1000).count(), 5);
    }

    #[test]
    fn sinusoids_have_the_sign_of_the_distance_and_the_precision_of_f64() {
        let range = DistanceRange { past: 5000, future: 2 };
        let (table, narrow) = (range.sinusoids::<f64>(6), range.sinusoids::<f32>(6));
        assert_eq!(table.len(), 5003 * 6);
        for (index, distance) in [(0, 5000.0), (4999, 1.0), (5000, 0.0), (5002, -2.0)] {
            for j in 0..3 {
                let angle: f64 = distance * 10_000f64.powf(-(2.0 * j as f64) / 6.0);
                let expected = [angle.sin(), angle.cos()];
                for (k, expected) in expected.iter().enumerate() {
                    assert!((table[index * 6 + 2 * j + k] - expected).abs() < 1e-12);
                    assert!((f64::from(narrow[index * 6 + 2 * j + k]) - expected).abs() < 1e-7);
                }
            }
        }
    }
}
