//! Gathers and scatters anti-diagonals of the T x (U + 1) lattice.
//!
//! A site is a lattice node (t, u) with one number for each arc; diagonal d has the sites with
//! t + u = d. In a row-major matrix of sites, (t, u) and (t - 1, u + 1) have a fixed distance, so a
//! diagonal is a strided read or write.
#![allow(unsafe_code)]
use std::{marker::PhantomData, ops::Range};

use super::{DiagonalPositions, LANES, LOG_ZERO, diagonal_positions};
use crate::simd::SimdLevel;

#[cfg(target_arch = "x86_64")]
use super::avx512;

/// Gathers the sites of a diagonal, one row for each arc.
///
/// `arc_sites` returns the sites of the diagonal at which an arc exists. NaN, -inf, and other sites
/// become [`LOG_ZERO`]. Returns whether all numbers are below +inf (false also for NaN). The matrix
/// from index `prefetch` on is prefetched.
pub fn gather(
    values: &[f64],
    positions: DiagonalPositions,
    sites: usize,
    prefetch: usize,
    arc_sites: impl Fn(usize) -> Range<usize>,
    arcs: usize,
    rows: &mut [f64],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let (2, SimdLevel::Avx512(token)) = (arcs, SimdLevel::best()) {
        return avx512::gather(token, values, positions, sites, prefetch, [arc_sites(0), arc_sites(1)], rows);
    }
    prefetch_row(values.as_ptr(), values.len(), prefetch, arcs * sites);
    gather_plain(values, positions, arc_sites, arcs, rows)
}

/// Numbers of a matrix that a near cache holds without prefetching.
#[cfg(target_arch = "x86_64")]
const CACHED_NUMBERS: usize = 1 << 13;

/// Prefetches `count` numbers of a matrix from an index on.
///
/// The matrix has `len` numbers; any index is allowed.
fn prefetch_row(matrix: *const f64, len: usize, index: usize, count: usize) {
    #[cfg(target_arch = "x86_64")]
    if len > CACHED_NUMBERS {
        for line in (0..count).step_by(LANES) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a prefetch of any address is allowed.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(matrix.wrapping_add(index + line).cast()) };
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (matrix, len, index, count);
}

/// Portable version of [`gather`].
///
/// ```text
/// for each arc, for each site where it exists:  copy its emission
/// ```
fn gather_plain(
    values: &[f64],
    positions: DiagonalPositions,
    arc_sites: impl Fn(usize) -> Range<usize>,
    arcs: usize,
    rows: &mut [f64],
) -> bool {
    let mut is_valid = true;
    for (arc, row) in rows.chunks_exact_mut(rows.len() / arcs).enumerate() {
        row.fill(LOG_ZERO);
        for i in arc_sites(arc) {
            let value = values[positions.first - i * positions.distance + arc];
            is_valid &= value < f64::INFINITY;
            row[i] = if value > LOG_ZERO { value } else { LOG_ZERO };
        }
    }
    is_valid
}

/// Mutable diagonals of a row-major matrix; other diagonals may be written at the same time.
#[derive(Debug)]
pub struct Diagonals<'a> {
    values: *mut f64,
    len: usize,
    labels: usize,
    arcs: usize,
    /// Diagonals that this value may write.
    owned: Range<usize>,
    level: SimdLevel,
    matrix: PhantomData<&'a mut [f64]>,
}

// SAFETY: it represents unique references to the sites of its diagonals.
unsafe impl Send for Diagonals<'_> {}

impl<'a> Diagonals<'a> {
    /// Borrows all diagonals of a matrix.
    ///
    /// Each frame of it has *(labels + 1) x arcs* numbers.
    pub fn new(values: &'a mut [f64], labels: usize, arcs: usize) -> Self {
        let (len, values) = (values.len(), values.as_mut_ptr());
        Self {
            values,
            len,
            labels,
            arcs,
            owned: 0..usize::MAX,
            level: SimdLevel::best(),
            matrix: PhantomData,
        }
    }

    /// Splits the diagonals at diagonal `d`.
    pub fn split_at(self, d: usize) -> (Self, Self) {
        // `d` is limited to the owned diagonals, so neither half contains any other diagonal.
        let d = d.clamp(self.owned.start, self.owned.end);
        let early = Self { owned: self.owned.start..d, ..self };
        (early, Self { owned: d..self.owned.end, ..self })
    }

    /// Writes `rows`, one for each arc, to diagonal d.
    ///
    /// The sites of the diagonal start at label `low`.
    ///
    /// The matrix from index `prefetch` on is prefetched.
    pub fn scatter(&mut self, rows: &[f64], d: usize, low: usize, sites: usize, prefetch: usize) {
        let width = rows.len() / self.arcs;
        // Hence all written sites belong to this diagonal.
        assert!(
            self.owned.contains(&d) && low + sites <= self.labels + 1 && low + sites <= d + 1 && low <= d
        );
        let positions = diagonal_positions(d, low, self.labels, self.arcs);
        assert!(positions.is_within(self.arcs, sites, self.len) && sites <= width);
        let written_sites = match (self.arcs, self.level) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the sites are inside, as checked above.
            (2, SimdLevel::Avx512(token)) => unsafe {
                avx512::scatter(token, rows, positions, sites, prefetch, self.values)
            },
            _ => {
                prefetch_row(self.values, self.len, prefetch, self.arcs * sites);
                0
            }
        };
        for i in written_sites..sites {
            for arc in 0..self.arcs {
                // SAFETY: inside, as checked above.
                unsafe {
                    self.values
                        .add(positions.first - i * positions.distance + arc)
                        .write(rows[arc * width + i])
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns varied ranges of sites at which an arc exists.
    fn arc_range(sites: usize, arc: usize, case: usize) -> Range<usize> {
        let start = [0, 1, sites / 2, sites][(case + arc) % 4].min(sites);
        start..[sites, sites.saturating_sub(1), sites / 2][(case + 2 * arc) % 3].max(start)
    }

    #[test]
    #[should_panic(expected = "owned.contains")]
    fn diagonals_are_split_only_once() {
        let mut values = vec![0.0; 2 * 12 * 4];
        let (early, _late) = Diagonals::new(&mut values, 3, 2).split_at(5);
        let (mut again, _) = early.split_at(10);
        again.scatter(&[1.0; 16], 7, 0, 1, 0);
    }

    /// Compares diagonals of up to three registers with single sites.
    #[test]
    fn every_level_moves_the_sites_of_a_diagonal() {
        let frames: usize = 30;
        for labels in [0usize, 1, 6, 7, 8, 15, 16, 23, 24] {
            for d in 0..frames + labels {
                let low = (d + 1).saturating_sub(frames);
                let sites = d.min(labels) + 1 - low;
                let width = sites.next_multiple_of(LANES);
                let mut values: Vec<f64> =
                    (0..2 * frames * (labels + 1)).map(|i| -((i * 37 % 101) as f64)).collect();
                values[d % (2 * labels + 2)] = f64::NEG_INFINITY;
                let positions = diagonal_positions(d, low, labels, 2);
                for bad in [None, Some(f64::NAN), Some(f64::INFINITY)] {
                    let mut values = values.clone();
                    if let Some(bad) = bad {
                        values[positions.first - sites / 2 * positions.distance + d % 2] = bad;
                    }
                    let mut expected = vec![LOG_ZERO; 2 * width];
                    for arc in 0..2 {
                        for i in arc_range(sites, arc, d) {
                            let (t, u) = (d - low - i, low + i);
                            expected[arc * width + i] =
                                values[(t * (labels + 1) + u) * 2 + arc].max(LOG_ZERO);
                        }
                    }
                    let arc_sites = |arc| arc_range(sites, arc, d);
                    let mut actual = vec![f64::NAN; 2 * width];
                    let is_valid = gather_plain(&values, positions, arc_sites, 2, &mut actual);
                    assert_eq!(actual, expected, "U {labels}, d {d}");
                    let has_infinity = expected.contains(&f64::INFINITY);
                    assert!(is_valid || bad.is_some() && (has_infinity || values.iter().any(|v| v.is_nan())));
                    for level in SimdLevel::all() {
                        #[cfg(target_arch = "x86_64")]
                        if let SimdLevel::Avx512(token) = level {
                            actual.fill(f64::NAN);
                            let arc_sites = [arc_sites(0), arc_sites(1)];
                            let is_valid =
                                avx512::gather(token, &values, positions, sites, 0, arc_sites, &mut actual);
                            assert_eq!(actual, expected, "{level:?}, U {labels}, d {d}");
                            // This version checks all sites of the diagonal.
                            assert_eq!(is_valid, bad.is_none());
                        }
                        let mut scattered = vec![7.0; values.len()];
                        let rows: Vec<f64> = (0..2 * width).map(|i| i as f64).collect();
                        let mut diagonals = Diagonals::new(&mut scattered, labels, 2);
                        diagonals.level = level;
                        diagonals.scatter(&rows, d, low, sites, 0);
                        for (index, &actual) in scattered.iter().enumerate() {
                            let (site, arc) = (index / 2, index % 2);
                            let (t, u) = (site / (labels + 1), site % (labels + 1));
                            let expected = if t + u == d { (arc * width + u - low) as f64 } else { 7.0 };
                            assert_eq!(actual, expected, "{level:?}, U {labels}, d {d}, ({t}, {u}, {arc})");
                        }
                    }
                }
            }
        }
    }
}
