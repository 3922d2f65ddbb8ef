//! Sites whose hidden rows exist already, in any layout.
use std::ops::Range;

use panda_core::Real;
use panda_core::Sites;

use crate::{
    Layout, Targets,
    add_rows::add_rows,
    compact::{Lists, emptied},
};

/// Some utterances' sites among given hidden rows.
pub(crate) struct RowSites<'a, F> {
    hidden: &'a [F],
    width: usize,
    place: Place,
    count: usize,
}

/// The row of each site.
enum Place {
    /// One after the other, from a row on.
    From(usize),
    Listed(Vec<u32>),
}

impl<'a, F: Real> RowSites<'a, F> {
    /// `hidden` has all rows of the layout.
    pub fn new(
        hidden: &'a [F],
        width: usize,
        layout: Layout,
        targets: &Targets,
        utterances: Range<usize>,
        spare: Lists,
    ) -> Self {
        let lattices = targets.lattices();
        let (first, last) = (lattices.range(utterances.start), lattices.range(utterances.end - 1));
        let count = last.end - first.start;
        let place = match layout {
            Layout::Packed => Place::From(first.start),
            Layout::Padded { frames, positions } => {
                let mut rows = emptied(spare.first, count);
                for b in utterances {
                    let row =
                        |site: rnnt_dp::Site| ((b * frames + site.frame) * positions + site.label) as u32;
                    rows.extend(lattices.sites_of(b).map(row));
                }
                Place::Listed(rows)
            }
        };
        Self { hidden, width, place, count }
    }

    /// Bytes of a site in each list.
    pub fn listed(layout: Layout) -> [usize; 3] {
        [if layout == Layout::Packed { 0 } else { 4 }, 0, 0]
    }

    /// The lists, to be filled anew.
    pub fn into_lists(self) -> Lists {
        match self.place {
            Place::From(_) => Lists::default(),
            Place::Listed(first) => Lists { first, ..Lists::default() },
        }
    }

    fn row(&self, site: usize) -> usize {
        match &self.place {
            Place::From(first) => first + site,
            Place::Listed(rows) => rows[site] as usize,
        }
    }

    /// The row of a site.
    pub fn hidden(&self, site: usize) -> &[F] {
        &self.hidden[self.row(site) * self.width..][..self.width]
    }
}

impl<F: Real> Sites<F> for RowSites<'_, F> {
    /// Of the hidden rows, padding included.
    type Gradient = Vec<Vec<F>>;

    fn len(&self) -> usize {
        self.count
    }

    fn width(&self) -> usize {
        self.width
    }

    fn largest(&self) -> f64 {
        (0..self.count)
            .flat_map(|site| self.hidden(site))
            .map(|value| value.to_f64().abs())
            .fold(0.0, f64::max)
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width)) {
            out.copy_from_slice(self.hidden(site));
        }
    }

    fn pull_back(&self, _sites: &[usize], _hidden: &[F], _gradient: &mut [F]) {}

    fn zero_gradient(&self) -> Vec<Vec<F>> {
        vec![kernels::zeros(self.hidden.len())]
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut Vec<Vec<F>>) {
        let [into] = into.as_mut_slice() else { unreachable!("one kind of rows") };
        add_rows(gradient, self.width, |row| self.row(sites[row]), into);
    }
}
