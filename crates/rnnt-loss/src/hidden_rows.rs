//! Hidden rows of a transducer or CTC loss, computed or stored.
//!
//! A hidden row is the input of the heads at a site (a lattice node; for CTC a frame).
//! [`HiddenRows`] is what the normalizers of `panda_core` read and whose gradient they compute: a
//! joint network computes the rows on demand, or the caller stores them in a matrix.
use std::ops::Range;

use panda_core::Real;
use panda_core::Sites;

use crate::{
    Layout, Targets,
    joint_hidden_rows::{JointHiddenRows, RowGradients, add_rows},
    site_buffers::{RowIndices, clear_with_capacity},
};

/// Hidden rows of a group of utterances, of either kind.
pub(crate) enum HiddenRows<'a, F> {
    Joint(JointHiddenRows<'a, F>),
    Stored(StoredHiddenRows<'a, F>),
}

/// Evaluates an expression for the rows of either kind.
macro_rules! dispatch {
    ($self:ident, $rows:ident => $body:expr) => {
        match $self {
            Self::Joint($rows) => $body,
            Self::Stored($rows) => $body,
        }
    };
}

impl<F: Real> HiddenRows<'_, F> {
    /// Bound on the derivative of a hidden unit by its inputs.
    pub(crate) fn max_slope(&self) -> f64 {
        match self {
            Self::Joint(rows) => rows.max_slope(),
            Self::Stored(_) => 1.0,
        }
    }

    /// Releases the row indices of the sites.
    pub(crate) fn into_indices(self) -> RowIndices {
        dispatch!(self, rows => rows.into_indices())
    }
}

impl<F: Real> Sites<F> for HiddenRows<'_, F> {
    type Gradient = RowGradients<F>;

    fn len(&self) -> usize {
        dispatch!(self, rows => rows.len())
    }

    fn width(&self) -> usize {
        dispatch!(self, rows => rows.width())
    }

    fn max_abs(&self) -> f64 {
        dispatch!(self, rows => rows.max_abs())
    }

    fn fill(&self, sites: &[usize], hidden: &mut [F]) {
        dispatch!(self, rows => rows.fill(sites, hidden));
    }

    fn pull_back(&self, sites: &[usize], hidden: &[F], gradient: &mut [F]) {
        dispatch!(self, rows => rows.pull_back(sites, hidden, gradient));
    }

    fn zero_gradient(&self) -> RowGradients<F> {
        dispatch!(self, rows => rows.zero_gradient())
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], sums: &mut RowGradients<F>) {
        dispatch!(self, rows => rows.scatter(sites, gradient, sums));
    }
}

/// Rows of a group of utterances in a matrix of hidden rows.
pub(crate) struct StoredHiddenRows<'a, F> {
    /// Hidden rows of all utterances, *rows x width*.
    hidden: &'a [F],
    width: usize,
    /// Row of the group's first site in packed layouts.
    first_row: usize,
    num_sites: usize,
    /// Row of each site; none in packed layouts, where rows are consecutive from `first_row`.
    row_indices: Option<Vec<u32>>,
}

impl<'a, F: Real> StoredHiddenRows<'a, F> {
    /// Takes all hidden rows of a layout, and the result of [`stored_row_indices`].
    pub(crate) fn new(
        hidden: &'a [F],
        width: usize,
        layout: Layout,
        targets: &Targets,
        utterances: Range<usize>,
        indices: RowIndices,
    ) -> Self {
        let lattices = targets.lattices();
        let first_site = lattices.site_range(utterances.start).start;
        let num_sites = lattices.site_range(utterances.end - 1).end - first_site;
        let row_indices = (layout != Layout::Packed).then_some(indices.rows);
        Self { hidden, width, first_row: first_site, num_sites, row_indices }
    }

    /// Bytes per site in each list of [`RowIndices`].
    pub(crate) fn index_bytes(layout: Layout) -> [usize; 3] {
        [if layout == Layout::Packed { 0 } else { size_of::<u32>() }, 0, 0]
    }

    /// Releases the row indices of the sites.
    pub(crate) fn into_indices(self) -> RowIndices {
        self.row_indices.map_or_else(RowIndices::default, |rows| RowIndices { rows, ..RowIndices::default() })
    }

    fn row(&self, site: usize) -> usize {
        self.row_indices.as_ref().map_or_else(|| self.first_row + site, |rows| rows[site] as usize)
    }

    fn hidden(&self, site: usize) -> &[F] {
        &self.hidden[self.row(site) * self.width..][..self.width]
    }
}

/// Lists the row of each site in a matrix of hidden rows; empty for packed layouts.
pub(crate) fn stored_row_indices(
    layout: Layout,
    targets: &Targets,
    utterances: Range<usize>,
    spare: RowIndices,
) -> RowIndices {
    let Layout::Padded { frames, positions } = layout else { return RowIndices::default() };
    let lattices = targets.lattices();
    let num_sites = lattices.site_range(utterances.end - 1).end - lattices.site_range(utterances.start).start;
    let mut rows = clear_with_capacity(spare.rows, num_sites);
    for b in utterances {
        let row = |site: rnnt_dp::Site| ((b * frames + site.frame) * positions + site.label) as u32;
        rows.extend(lattices.utterance_sites(b).map(row));
    }
    RowIndices { rows, ..RowIndices::default() }
}

impl<F: Real> Sites<F> for StoredHiddenRows<'_, F> {
    /// Gradients of the hidden rows, including padding.
    type Gradient = RowGradients<F>;

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

    fn zero_gradient(&self) -> RowGradients<F> {
        RowGradients { hidden: kernels::zeros(self.hidden.len()), ..RowGradients::default() }
    }

    fn scatter(&self, sites: &[usize], gradient: &[F], sums: &mut RowGradients<F>) {
        add_rows(gradient, self.width, |row| self.row(sites[row]), &mut sums.hidden);
    }
}
