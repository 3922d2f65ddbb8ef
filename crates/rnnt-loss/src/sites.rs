//! Hidden rows at the sites (lattice nodes) of a loss.
//!
//! A joint network computes them on demand; otherwise the caller provides them.
use std::ops::Range;

use panda_core::Real;
use panda_core::Sites;

use crate::{
    Layout, Targets,
    joint_sites::{JointSites, SiteGradients, add_rows},
    site_buffers::{SiteIndices, clear_with_capacity},
};

/// Sites of either kind, as one type for the engine.
pub(crate) enum GroupSites<'a, F> {
    Joint(JointSites<'a, F>),
    Hidden(HiddenSites<'a, F>),
}

macro_rules! dispatch {
    ($self:ident, $sites:ident => $body:expr) => {
        match $self {
            Self::Joint($sites) => $body,
            Self::Hidden($sites) => $body,
        }
    };
}

impl<F: Real> GroupSites<'_, F> {
    /// Bound on the derivative of a hidden unit by its inputs.
    pub fn max_slope(&self) -> f64 {
        match self {
            Self::Joint(sites) => sites.max_slope(),
            Self::Hidden(_) => 1.0,
        }
    }

    /// Releases the row indices of the sites.
    pub fn into_indices(self) -> SiteIndices {
        dispatch!(self, sites => sites.into_indices())
    }
}

impl<F: Real> Sites<F> for GroupSites<'_, F> {
    type Gradient = SiteGradients<F>;

    fn len(&self) -> usize {
        dispatch!(self, sites => sites.len())
    }

    fn width(&self) -> usize {
        dispatch!(self, sites => sites.width())
    }

    fn max_abs(&self) -> f64 {
        dispatch!(self, sites => sites.max_abs())
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        dispatch!(self, group => group.fill(sites, hidden));
    }

    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        dispatch!(self, group => group.pull_back(sites, hidden, gradient));
    }

    fn zero_gradient(&self) -> SiteGradients<F> {
        dispatch!(self, sites => sites.zero_gradient())
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], sums: &mut SiteGradients<F>) {
        dispatch!(self, group => group.scatter(sites, gradient, sums));
    }
}

/// Sites of a group of utterances among hidden rows.
pub(crate) struct HiddenSites<'a, F> {
    hidden: &'a [F],
    width: usize,
    first_row: usize,
    num_sites: usize,
    /// Row of each site; none in packed layouts, where rows are consecutive from `first_row`.
    rows: Option<Vec<u32>>,
}

impl<'a, F: Real> HiddenSites<'a, F> {
    /// Takes all hidden rows of a layout, and the result of [`hidden_row_indices`].
    pub fn new(
        hidden: &'a [F],
        width: usize,
        layout: Layout,
        targets: &Targets,
        utterances: Range<usize>,
        indices: SiteIndices,
    ) -> Self {
        let lattices = targets.lattices();
        let (first, last) = (lattices.site_range(utterances.start), lattices.site_range(utterances.end - 1));
        let rows = (layout != Layout::Packed).then_some(indices.rows);
        Self { hidden, width, first_row: first.start, num_sites: last.end - first.start, rows }
    }

    /// Bytes per site in each list of indices.
    pub fn index_bytes(layout: Layout) -> [usize; 3] {
        [if layout == Layout::Packed { 0 } else { 4 }, 0, 0]
    }

    /// Releases the row indices of the sites.
    pub fn into_indices(self) -> SiteIndices {
        self.rows.map_or_else(SiteIndices::default, |rows| SiteIndices { rows, ..SiteIndices::default() })
    }

    fn row(&self, site: usize) -> usize {
        self.rows.as_ref().map_or_else(|| self.first_row + site, |rows| rows[site] as usize)
    }

    fn hidden(&self, site: usize) -> &[F] {
        &self.hidden[self.row(site) * self.width..][..self.width]
    }
}

/// Rows of the sites among hidden rows; none in packed layouts.
pub(crate) fn hidden_row_indices(
    layout: Layout,
    targets: &Targets,
    utterances: Range<usize>,
    spare: SiteIndices,
) -> SiteIndices {
    let Layout::Padded { frames, positions } = layout else { return SiteIndices::default() };
    let lattices = targets.lattices();
    let count = lattices.site_range(utterances.end - 1).end - lattices.site_range(utterances.start).start;
    let mut rows = clear_with_capacity(spare.rows, count);
    for b in utterances {
        let row = |site: rnnt_dp::Site| ((b * frames + site.frame) * positions + site.label) as u32;
        rows.extend(lattices.utterance_sites(b).map(row));
    }
    SiteIndices { rows, ..SiteIndices::default() }
}

impl<F: Real> Sites<F> for HiddenSites<'_, F> {
    /// Gradients of the hidden rows, including padding.
    type Gradient = SiteGradients<F>;

    fn len(&self) -> usize {
        self.num_sites
    }

    fn width(&self) -> usize {
        self.width
    }

    fn max_abs(&self) -> f64 {
        (0..self.num_sites)
            .flat_map(|site| self.hidden(site))
            .map(|value| value.to_f64().abs())
            .fold(0.0, f64::max)
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        for (&site, out) in sites.iter().zip(hidden.chunks_exact_mut(self.width)) {
            out.copy_from_slice(self.hidden(site));
        }
    }

    // The hidden rows are inputs, so that their gradient is not changed.
    fn pull_back(&self, _sites: &[usize], _hidden: &[F], _gradient: &mut [F]) {}

    fn zero_gradient(&self) -> SiteGradients<F> {
        SiteGradients { hidden: kernels::zeros(self.hidden.len()), ..SiteGradients::default() }
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], sums: &mut SiteGradients<F>) {
        add_rows(gradient, self.width, |row| self.row(sites[row]), &mut sums.hidden);
    }
}
