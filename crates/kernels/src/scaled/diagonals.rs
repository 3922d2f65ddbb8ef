//! Diagonals of a row-major matrix: neighbours on a diagonal, (t, u) and (t - 1, u + 1), are equally far apart.
#![allow(unsafe_code)]
use std::{marker::PhantomData, ops::Range};

use super::{LOG_ZERO, Stride, stride};
use crate::simd::SimdLevel;

#[cfg(target_arch = "x86_64")]
use super::avx512;

/// Brings the sites of a diagonal into `rows`, one of each arc, with [`LOG_ZERO`] for NaN, -inf and all but the sites at which
/// the arc `exists`. Returns whether all numbers are below +inf. A row of the matrix that is needed `soon` starts there.
pub fn gather(
    values: &[f64],
    stride: Stride,
    sites: usize,
    soon: usize,
    exists: impl Fn(usize) -> Range<usize>,
    arcs: usize,
    rows: &mut [f64],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    if let (2, SimdLevel::Avx512(proof)) = (arcs, SimdLevel::best()) {
        return avx512::gather(proof, values, stride, sites, soon, [exists(0), exists(1)], rows);
    }
    let _ = (sites, soon);
    gather_plain(values, stride, exists, arcs, rows)
}

/// ```text
/// for each arc, for each site where it exists:  copy its emission
/// ```
fn gather_plain(
    values: &[f64],
    stride: Stride,
    exists: impl Fn(usize) -> Range<usize>,
    arcs: usize,
    rows: &mut [f64],
) -> bool {
    let mut sound = true;
    for (s, row) in rows.chunks_exact_mut(rows.len() / arcs).enumerate() {
        row.fill(LOG_ZERO);
        for i in exists(s) {
            let value = values[stride.first - i * stride.back + s];
            sound &= value < f64::INFINITY;
            row[i] = if value > LOG_ZERO { value } else { LOG_ZERO };
        }
    }
    sound
}

/// Some diagonals of a row-major matrix, to be written. Others may be written elsewhere at the same time.
#[derive(Debug)]
pub struct Diagonals<'a> {
    values: *mut f64,
    len: usize,
    labels: usize,
    arcs: usize,
    mine: Range<usize>,
    machine: SimdLevel,
    matrix: PhantomData<&'a mut [f64]>,
}

// SAFETY: it stands for unique references to the sites of its diagonals.
unsafe impl Send for Diagonals<'_> {}

impl<'a> Diagonals<'a> {
    /// All of them, and how many numbers a site has.
    pub fn new(values: &'a mut [f64], labels: usize, arcs: usize) -> Self {
        let (len, values) = (values.len(), values.as_mut_ptr());
        Self {
            values,
            len,
            labels,
            arcs,
            mine: 0..usize::MAX,
            machine: SimdLevel::best(),
            matrix: PhantomData,
        }
    }

    /// Those before diagonal `d`, and the others.
    pub fn split_at(self, d: usize) -> (Self, Self) {
        // Nobody writes what was given away before.
        let d = d.clamp(self.mine.start, self.mine.end);
        let early = Self { mine: self.mine.start..d, ..self };
        (early, Self { mine: d..self.mine.end, ..self })
    }

    /// Writes `rows`, one of each arc, to diagonal d, whose sites have the labels from `low` on. A row that is written `soon` starts
    /// there.
    pub fn scatter(&mut self, rows: &[f64], d: usize, low: usize, sites: usize, soon: usize) {
        let width = rows.len() / self.arcs;
        // Then what is written are sites of this diagonal, and no others.
        assert!(self.mine.contains(&d) && low + sites <= self.labels + 1 && low + sites <= d + 1 && low <= d);
        let stride = stride(d, low, self.labels, self.arcs);
        assert!(stride.inside(self.arcs, sites, self.len) && sites <= width);
        let done = match (self.arcs, self.machine) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the sites are inside, as just checked.
            (2, SimdLevel::Avx512(proof)) => unsafe {
                avx512::scatter(proof, rows, stride, sites, soon, self.values)
            },
            _ => 0,
        };
        for i in done..sites {
            for s in 0..self.arcs {
                // SAFETY: inside, as checked above.
                unsafe { self.values.add(stride.first - i * stride.back + s).write(rows[s * width + i]) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::LANES, *};

    /// Where the arc `s` exists among so many sites, all over the place.
    fn range(sites: usize, s: usize, case: usize) -> Range<usize> {
        let from = [0, 1, sites / 2, sites][(case + s) % 4].min(sites);
        from..[sites, sites.saturating_sub(1), sites / 2][(case + 2 * s) % 3].max(from)
    }

    #[test]
    #[should_panic(expected = "mine.contains")]
    fn what_was_given_away_is_not_given_again() {
        let mut values = vec![0.0; 2 * 12 * 4];
        let (early, _late) = Diagonals::new(&mut values, 3, 2).split_at(5);
        let (mut again, _) = early.split_at(10);
        again.scatter(&[1.0; 16], 7, 0, 1, 0);
    }

    /// Diagonals of up to three registers of sites, read and written by every copy, against one site after another.
    #[test]
    fn every_copy_moves_the_sites_of_a_diagonal() {
        let frames: usize = 30;
        for labels in [0usize, 1, 6, 7, 8, 15, 16, 23, 24] {
            for d in 0..frames + labels {
                let low = (d + 1).saturating_sub(frames);
                let sites = d.min(labels) + 1 - low;
                let width = sites.next_multiple_of(LANES);
                let mut values: Vec<f64> =
                    (0..2 * frames * (labels + 1)).map(|i| -((i * 37 % 101) as f64)).collect();
                values[d % (2 * labels + 2)] = f64::NEG_INFINITY;
                let place = stride(d, low, labels, 2);
                for bad in [None, Some(f64::NAN), Some(f64::INFINITY)] {
                    let mut values = values.clone();
                    if let Some(bad) = bad {
                        values[place.first - sites / 2 * place.back + d % 2] = bad;
                    }
                    let mut expected = vec![LOG_ZERO; 2 * width];
                    for s in 0..2 {
                        for i in range(sites, s, d) {
                            let (t, u) = (d - low - i, low + i);
                            expected[s * width + i] = values[(t * (labels + 1) + u) * 2 + s].max(LOG_ZERO);
                        }
                    }
                    let exists = |s| range(sites, s, d);
                    let mut found = vec![f64::NAN; 2 * width];
                    let sound = gather_plain(&values, place, exists, 2, &mut found);
                    assert_eq!(found, expected, "U {labels}, d {d}");
                    let asked = expected.contains(&f64::INFINITY);
                    assert!(sound || bad.is_some() && (asked || values.iter().any(|v| v.is_nan())));
                    for machine in SimdLevel::all() {
                        #[cfg(target_arch = "x86_64")]
                        if let SimdLevel::Avx512(proof) = machine {
                            found.fill(f64::NAN);
                            let exists = [exists(0), exists(1)];
                            let all = avx512::gather(proof, &values, place, sites, 0, exists, &mut found);
                            assert_eq!(found, expected, "{machine:?}, U {labels}, d {d}");
                            // It asks all sites of the diagonal.
                            assert_eq!(all, bad.is_none());
                        }
                        let mut back = vec![7.0; values.len()];
                        let rows: Vec<f64> = (0..2 * width).map(|i| i as f64).collect();
                        let mut all = Diagonals::new(&mut back, labels, 2);
                        all.machine = machine;
                        all.scatter(&rows, d, low, sites, 0);
                        for (at, &found) in back.iter().enumerate() {
                            let (t, u, s) = (at / 2 / (labels + 1), at / 2 % (labels + 1), at % 2);
                            let expected = if t + u == d { (s * width + u - low) as f64 } else { 7.0 };
                            assert_eq!(found, expected, "{machine:?}, U {labels}, d {d}, ({t}, {u}, {s})");
                        }
                    }
                }
            }
        }
    }
}
