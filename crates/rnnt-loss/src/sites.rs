//! Sites of a group of utterances: made by a joint network or given as hidden rows.
use std::ops::Range;

use panda_core::Real;
use panda_core::Sites;

use crate::{
    Layout, Targets,
    joint_sites::{JointSites, SiteGradients, add_rows},
    site_buffers::{SiteIndices, clear_with_capacity},
};

/// Sites of either kind: one type for the engine, which is compiled once.
pub(crate) enum GroupSites<'a, F> {
    Joint(JointSites<'a, F>),
    Rows(RowSites<'a, F>),
}

macro_rules! each {
    ($self:ident, $sites:ident => $what:expr) => {
        match $self {
            Self::Joint($sites) => $what,
            Self::Rows($sites) => $what,
        }
    };
}

impl<F: Real> GroupSites<'_, F> {
    /// A bound on the slope of a hidden unit by what it was made of.
    pub fn max_slope(&self) -> f64 {
        match self {
            Self::Joint(sites) => sites.max_slope(),
            Self::Rows(_) => 1.0,
        }
    }

    /// The rows of the sites.
    pub fn into_indices(self) -> SiteIndices {
        each!(self, sites => sites.into_indices())
    }
}

impl<F: Real> Sites<F> for GroupSites<'_, F> {
    type Gradient = SiteGradients<F>;

    fn len(&self) -> usize {
        each!(self, sites => sites.len())
    }

    fn width(&self) -> usize {
        each!(self, sites => sites.width())
    }

    fn max_abs(&self) -> f64 {
        each!(self, sites => sites.max_abs())
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        each!(self, all => all.fill(sites, hidden));
    }

    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        each!(self, all => all.pull_back(sites, hidden, gradient));
    }

    fn zero_gradient(&self) -> SiteGradients<F> {
        each!(self, sites => sites.zero_gradient())
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut SiteGradients<F>) {
        each!(self, all => all.scatter(sites, gradient, into));
    }
}

/// Some utterances' sites among given hidden rows.
pub(crate) struct RowSites<'a, F> {
    hidden: &'a [F],
    width: usize,
    first: usize,
    count: usize,
    /// The row of each site; one after the other from `first` on in packed layouts.
    rows: Option<Vec<u32>>,
}

impl<'a, F: Real> RowSites<'a, F> {
    /// `hidden` has all rows of the layout; `indices` are those of [`row_indices`].
    pub fn new(
        (hidden, width): (&'a [F], usize),
        layout: Layout,
        targets: &Targets,
        utterances: Range<usize>,
        indices: SiteIndices,
    ) -> Self {
        let lattices = targets.lattices();
        let (first, last) = (lattices.site_range(utterances.start), lattices.site_range(utterances.end - 1));
        let rows = (layout != Layout::Packed).then_some(indices.first);
        Self { hidden, width, first: first.start, count: last.end - first.start, rows }
    }

    /// Bytes of a site in each list.
    pub fn index_bytes(layout: Layout) -> [usize; 3] {
        [if layout == Layout::Packed { 0 } else { 4 }, 0, 0]
    }

    /// The rows of the sites.
    pub fn into_indices(self) -> SiteIndices {
        self.rows.map_or_else(SiteIndices::default, |first| SiteIndices { first, ..SiteIndices::default() })
    }

    fn row(&self, site: usize) -> usize {
        self.rows.as_ref().map_or_else(|| self.first + site, |rows| rows[site] as usize)
    }

    fn hidden(&self, site: usize) -> &[F] {
        &self.hidden[self.row(site) * self.width..][..self.width]
    }
}

/// Rows of the sites of some utterances among hidden rows; none in packed layouts.
pub(crate) fn row_indices(
    layout: Layout,
    targets: &Targets,
    utterances: Range<usize>,
    spare: SiteIndices,
) -> SiteIndices {
    let Layout::Padded { frames, positions } = layout else { return SiteIndices::default() };
    let lattices = targets.lattices();
    let count = lattices.site_range(utterances.end - 1).end - lattices.site_range(utterances.start).start;
    let mut rows = clear_with_capacity(spare.first, count);
    for b in utterances {
        let row = |site: rnnt_dp::Site| ((b * frames + site.frame) * positions + site.label) as u32;
        rows.extend(lattices.utterance_sites(b).map(row));
    }
    SiteIndices { first: rows, ..SiteIndices::default() }
}

impl<F: Real> Sites<F> for RowSites<'_, F> {
    /// Of the hidden rows, padding included.
    type Gradient = SiteGradients<F>;

    fn len(&self) -> usize {
        self.count
    }

    fn width(&self) -> usize {
        self.width
    }

    fn max_abs(&self) -> f64 {
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

    fn zero_gradient(&self) -> SiteGradients<F> {
        SiteGradients { hidden: kernels::zeros(self.hidden.len()), ..SiteGradients::default() }
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], into: &mut SiteGradients<F>) {
        add_rows(gradient, self.width, |row| self.row(sites[row]), &mut into.hidden);
    }
}
