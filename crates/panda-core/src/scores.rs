//! The same two directions for scores that exist already, *rows x C*, as other toolkits' losses take them.
//!
//! A site is a row of the matrix; `site_of_row` says which, or [`PADDING`] for rows that no site uses. Those are
//! never read, and their gradient is exactly 0.
use kernels::{par_for, parts, parts_mut};

use crate::{Adjoints, Clamp, Error, Normalized, Real, Result, Selection, error::expect_len};

/// Marks a row without a site.
pub const PADDING: u32 = u32::MAX;
/// Sites a task; any value gives the same bits, because rows do not mix.
const BLOCK: usize = 64;

fn rows_of_sites(site_of_row: &[u32], sites: usize) -> Result<Vec<usize>> {
    let found = site_of_row.iter().filter(|site| **site != PADDING).count();
    expect_len("site_of_row", sites, found)?;
    let mut rows = vec![usize::MAX; sites];
    for (row, &site) in site_of_row.iter().enumerate().filter(|(_, site)| **site != PADDING) {
        match rows.get_mut(site as usize) {
            Some(slot) if *slot == usize::MAX => *slot = row,
            _ => return Err(Error::SiteOfRow { row, site: site as usize, sites }),
        }
    }
    Ok(rows)
}

/// Emissions of the selected classes from ready-made scores.
///
/// # Shapes
/// `scores` *rows x C*, `site_of_row` *rows*, `selection` *N x S*.
///
/// # Errors
/// As [`crate::forward()`]; also a `site_of_row` that is not one row for each site.
pub fn forward<F: Real>(
    scores: &[F],
    classes: usize,
    site_of_row: &[u32],
    sites: usize,
    selection: &Selection,
) -> Result<Normalized<F>> {
    if classes == 0 {
        return Err(Error::Zero { argument: "classes" });
    }
    expect_len("scores", site_of_row.len().saturating_mul(classes), scores.len())?;
    let rows = rows_of_sites(site_of_row, sites)?;
    selection.check(sites, classes)?;
    let per_site = selection.per_site();
    let mut out = Normalized::new(sites, per_site);
    let blocks = (parts_mut(&mut out.max, BLOCK), parts_mut(&mut out.log_sum, BLOCK), parts(&rows, BLOCK));
    par_for(blocks, |_, (max, sum, rows)| {
        for ((max, sum), row) in max.iter_mut().zip(sum).zip(rows) {
            (*max, *sum) = F::row_statistics(&scores[row * classes..][..classes]);
        }
    });
    for site in 0..sites {
        for (slot, class) in selection.active(site) {
            out.emissions[site * per_site + slot] = scores[rows[site] * classes + class as usize].to_f64();
        }
    }
    out.finish(selection)?;
    Ok(out)
}

/// Writes the gradient of the scores over the scores.
///
/// # Shapes
/// As [`forward`]; `normalized` is its result.
///
/// # Errors
/// Shapes that do not fit; adjoints that are not finite.
///
/// # Cost
/// N C exponentials; N row numbers of memory.
pub fn backward_in_place<F: Real>(
    scores: &mut [F],
    classes: usize,
    site_of_row: &[u32],
    selection: &Selection,
    normalized: &Normalized<F>,
    adjoints: &Adjoints,
) -> Result<()> {
    let sites = normalized.max.len();
    if classes == 0 {
        return Err(Error::Zero { argument: "classes" });
    }
    expect_len("scores", site_of_row.len().saturating_mul(classes), scores.len())?;
    selection.check(sites, classes)?;
    normalized.check(sites, selection.per_site())?;
    adjoints.check::<F>(sites, selection)?;
    rows_of_sites(site_of_row, sites)?;
    let step = ScoreGradient { selection, normalized, adjoints };
    par_for((parts_mut(scores, BLOCK * classes), parts(site_of_row, BLOCK)), |_, (scores, sites)| {
        for (z, &site) in scores.chunks_exact_mut(classes).zip(sites) {
            match site {
                PADDING => z.fill(F::ZERO),
                site => step.apply(site as usize, 0, ScoreSource::InPlace(None), z),
            }
        }
    });
    Ok(())
}

/// Where a row of scores is.
pub(crate) enum ScoreSource<'a, F> {
    /// In the memory of the gradient, without the bias.
    InPlace(Option<&'a [F]>),
    /// Saved, with the bias.
    Saved(&'a [F]),
}

/// The gradient of a row of scores, written over the scores.
#[derive(Clone, Copy)]
pub(crate) struct ScoreGradient<'a, F> {
    pub selection: &'a Selection,
    pub normalized: &'a Normalized<F>,
    pub adjoints: &'a Adjoints<'a>,
}

impl<F: Real> ScoreGradient<'_, F> {
    /// `g` is to hold the gradient `a - A p` of the classes from `from` on of a site.
    pub(crate) fn apply(&self, site: usize, from: usize, z: ScoreSource<F>, g: &mut [F]) {
        let per_site = self.selection.per_site();
        let adjoint = |slot: usize| self.adjoints.emissions[site * per_site + slot];
        let total = self.adjoints.total(site, self.selection);
        if total == 0.0 {
            // Also when p would be 0 · anything.
            g.fill(F::ZERO);
        } else {
            let factor = F::from_f64(-total * (-self.normalized.log_sum[site]).exp());
            let max = self.normalized.max[site];
            match z {
                ScoreSource::Saved(z) => F::row_softmax(g, Some(z), None, max, factor),
                ScoreSource::InPlace(bias) => F::row_softmax(g, None, bias, max, factor),
            }
        }
        for (slot, class) in self.selection.active(site) {
            if (from..from + g.len()).contains(&(class as usize)) {
                let p = self.normalized.emissions[site * per_site + slot].exp();
                let exact = adjoint(slot) - total * p;
                let counts = exact.abs() >= F::TINY.to_f64();
                g[class as usize - from] = if counts { F::from_f64(exact) } else { F::ZERO };
            }
        }
        if let Some(Clamp { limit, weights }) = self.adjoints.clamp {
            for g in g {
                *g = F::from_f64(weights[site] * g.to_f64().clamp(-limit, limit));
            }
        }
    }
}
