//! A lattice by anti-diagonals.
//!
//! An arc leads from diagonal `d = t + u` to diagonal `d + frames + labels`, so that the sites of a diagonal do not
//! depend on each other, and the landings of neighbours are neighbours. A row is a diagonal, ordered by u and filled up
//! to whole vector registers; diagonal T + U is the end of all paths, one site.
//!
//! ```text
//! t\u  0 1 2        d = 0   (0,0)
//!  0   a b c            1   (1,0) (0,1)
//!  1   d e f            2         (1,1) (0,2)
//!                       3               (1,2)
//!                       4                end
//! ```
use std::ops::Range;

use crate::{
    Arc,
    kernel::{LANES, NEVER},
};

/// Where the sites of one utterance are.
#[derive(Debug, Default)]
pub(crate) struct Skew {
    frames: usize,
    labels: usize,
    arcs: Vec<Arc>,
    /// First place of each diagonal, and the end of the last.
    offsets: Vec<usize>,
    /// Where the emission of arc s at site (t, u), d = t + u, is among the rows, plus t; at `d S + s`. So a stretch of
    /// this list belongs to the row-major emissions of a frame.
    places: Vec<usize>,
}

impl Skew {
    pub fn set(&mut self, frames: usize, labels: usize, arcs: &[Arc]) {
        (self.frames, self.labels) = (frames, labels);
        self.arcs.clear();
        self.arcs.extend_from_slice(arcs);
        self.offsets.clear();
        self.places.clear();
        let mut offset = 0;
        for d in 0..=self.end() {
            self.offsets.push(offset);
            // The first place belongs to u = low(d), or t = d - low(d).
            let first = arcs.len() * offset + d - self.low(d);
            let width = self.width(d);
            self.places.extend((0..arcs.len()).map(|s| first + s * width));
            offset += width;
        }
    }

    pub fn labels(&self) -> usize {
        self.labels
    }

    pub fn arcs(&self) -> &[Arc] {
        &self.arcs
    }

    /// T + U: the diagonal on which paths end.
    pub fn end(&self) -> usize {
        self.frames + self.labels
    }

    /// Whether an arc fits into the lattice at all.
    pub fn fits(&self, arc: &Arc) -> bool {
        arc.frames <= self.frames && arc.labels <= self.labels
    }

    /// Smallest u on a diagonal.
    pub fn low(&self, d: usize) -> usize {
        (d + 1).saturating_sub(self.frames).min(self.labels)
    }

    /// Number of sites on a diagonal.
    fn sites(&self, d: usize) -> usize {
        d.min(self.labels) + 1 - self.low(d)
    }

    /// Number of places on a diagonal: its sites, filled up.
    pub fn width(&self, d: usize) -> usize {
        self.sites(d).next_multiple_of(LANES)
    }

    /// First place of a diagonal.
    pub fn offset(&self, d: usize) -> usize {
        self.offsets[d]
    }

    /// Number of places on all diagonals, and a margin: a row that paths land on is read from the first landing on, and
    /// as far as the row they leave is wide.
    pub fn places(&self) -> usize {
        self.offset(self.end())
            + self.width(self.end())
            + self.labels
            + (self.labels + 1).next_multiple_of(LANES)
    }

    /// u of the sites of a frame from which an arc leads to a site or to the end.
    fn leaving(&self, t: usize, arc: &Arc) -> Range<usize> {
        match self.labels.checked_sub(arc.labels) {
            Some(last) if t + arc.frames < self.frames => 0..last + 1,
            Some(last) if t + arc.frames == self.frames && arc.may_end => last..last + 1,
            _ => 0..0,
        }
    }

    /// Brings the emissions of some diagonals, row-major, into their rows: for each diagonal one of each arc, with
    /// [`NEVER`] for -inf and where no arc is. Returns whether the emissions are below +inf, those of no arc included.
    pub fn gather(&self, diagonals: Range<usize>, emissions: &[f64], rows: &mut [f64]) -> bool {
        let arcs = self.arcs.len();
        let start = arcs * self.offset(diagonals.start);
        // In order, and so much faster than the strides below would be on memory out of cache.
        rows.fill(NEVER);
        let mut sound = true;
        for t in diagonals.start.saturating_sub(self.labels)..diagonals.end.min(self.frames) {
            let (from, to) = (diagonals.start.saturating_sub(t), (diagonals.end - t).min(self.labels + 1));
            let frame = &emissions[(t * (self.labels + 1) + from) * arcs..][..(to - from) * arcs];
            let places = &self.places[(t + from) * arcs..];
            for (&emission, &place) in frame.iter().zip(places) {
                sound &= emission < f64::INFINITY;
                rows[place - (t + start)] = if emission > NEVER { emission } else { NEVER };
            }
            for (s, arc) in self.arcs.iter().enumerate() {
                let leaving = self.leaving(t, arc);
                for u in (from..leaving.start.min(to)).chain(leaving.end.max(from)..to) {
                    rows[places[(u - from) * arcs + s] - (t + start)] = NEVER;
                }
            }
        }
        sound
    }

    /// Brings rows of some frames back into row-major order.
    pub fn scatter(&self, rows: &[f64], frames: Range<usize>, out: &mut [f64]) {
        let arcs = self.arcs.len();
        for (t, out) in frames.zip(out.chunks_exact_mut((self.labels + 1) * arcs)) {
            for (to, &place) in out.iter_mut().zip(&self.places[t * arcs..]) {
                *to = rows[place - t];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Topology;

    #[test]
    fn rows_come_back_as_they_were_but_for_arcs_that_do_not_exist() {
        for (frames, labels) in [(1, 0), (1, 9), (7, 0), (3, 4), (20, 11), (5, 30)] {
            let mut skew = Skew::default();
            skew.set(frames, labels, Topology::rnnt().arcs());
            let emissions: Vec<f64> = (0..2 * frames * (labels + 1)).map(|i| i as f64).collect();
            let middle = skew.end().div_ceil(2);
            let mut rows = vec![f64::NAN; 2 * skew.offset(skew.end())];
            let (early, late) = rows.split_at_mut(2 * skew.offset(middle));
            assert!(skew.gather(0..middle, &emissions, early));
            assert!(skew.gather(middle..skew.end(), &emissions, late));
            assert!(rows.iter().all(|e| !e.is_nan()), "every place is written");
            let mut back = vec![0.0; emissions.len()];
            let (first, second) = back.split_at_mut(2 * (frames / 2) * (labels + 1));
            skew.scatter(&rows, 0..frames / 2, first);
            skew.scatter(&rows, frames / 2..frames, second);
            for (i, (&found, &emission)) in back.iter().zip(&emissions).enumerate() {
                let (t, u, arc) = (i / 2 / (labels + 1), i / 2 % (labels + 1), i % 2);
                let exists = if arc == 0 { t + 1 < frames || u == labels } else { u < labels };
                assert_eq!(found, if exists { emission } else { NEVER }, "T {frames} U {labels} ({t},{u})");
            }
        }
    }
}
