//! Diagonals of a row-major matrix: neighbours on a diagonal, (t, u) and (t - 1, u + 1), are equally far apart.
#![allow(unsafe_code)]
use std::{marker::PhantomData, ops::Range};

use super::{
    NEVER,
    stride::{Stride, stride},
};
#[cfg(target_arch = "x86_64")]
use super::{avx512, dispatch::has_v4};

/// Brings the sites of a diagonal into `rows`, one of each arc, with [`NEVER`] for NaN, -inf and all but the sites at which
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
    if arcs == 2 && has_v4() {
        // SAFETY: the machine has the features, as just checked.
        return unsafe { avx512::gather(values, stride, sites, soon, [exists(0), exists(1)], rows) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (sites, soon);
    let mut sound = true;
    for (s, row) in rows.chunks_exact_mut(rows.len() / arcs).enumerate() {
        row.fill(NEVER);
        for i in exists(s) {
            let value = values[stride.first - i * stride.back + s];
            sound &= value < f64::INFINITY;
            row[i] = if value > NEVER { value } else { NEVER };
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
    matrix: PhantomData<&'a mut [f64]>,
}

// SAFETY: it stands for unique references to the sites of its diagonals.
unsafe impl Send for Diagonals<'_> {}

impl<'a> Diagonals<'a> {
    /// All of them, and how many numbers a site has.
    pub fn new(values: &'a mut [f64], labels: usize, arcs: usize) -> Self {
        let (len, values) = (values.len(), values.as_mut_ptr());
        Self { values, len, labels, arcs, mine: 0..usize::MAX, matrix: PhantomData }
    }

    /// Those before diagonal `d`, and the others.
    pub fn split_at(self, d: usize) -> (Self, Self) {
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
        #[cfg(not(target_arch = "x86_64"))]
        let (done, _) = (0, soon);
        #[cfg(target_arch = "x86_64")]
        let done = if self.arcs == 2 && has_v4() {
            // SAFETY: the machine has the features, and the sites are inside, as just checked.
            unsafe { avx512::scatter(rows, stride, sites, soon, self.values) }
        } else {
            0
        };
        for i in done..sites {
            for s in 0..self.arcs {
                // SAFETY: inside, as checked above.
                unsafe { self.values.add(stride.first - i * stride.back + s).write(rows[s * width + i]) };
            }
        }
    }
}
