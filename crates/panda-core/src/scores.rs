//! The selected normalizer over given scores (logits), and the score gradient.
//!
//! The scores are a matrix *rows x C*, as losses of other toolkits receive it. `site_of_row` maps
//! each row to a site (lattice node), or to [`PADDING`] for rows without a site. Padding rows are
//! never read, and their gradient is exactly 0.
use kernels::{par_for, parts, parts_mut};

use crate::{Adjoints, Clamp, Error, Normalized, Real, Result, Selection, error::expect_len};

/// Marks a row without a site.
pub const PADDING: u32 = u32::MAX;
/// Rows of a task; any value gives the same bits, because rows are independent.
const SCORE_ROWS_PER_TASK: usize = 64;

/// Returns the row of each site; fails unless each site has exactly one row.
fn invert_site_of_row(site_of_row: &[u32], sites: usize) -> Result<Vec<usize>> {
    let count = site_of_row.iter().filter(|site| **site != PADDING).count();
    expect_len("site_of_row", sites, count)?;
    let mut rows = vec![usize::MAX; sites];
    for (row, &site) in site_of_row.iter().enumerate().filter(|(_, site)| **site != PADDING) {
        match rows.get_mut(site as usize) {
            Some(slot) if *slot == usize::MAX => *slot = row,
            _ => return Err(Error::SiteOfRow { row, site: site as usize, sites }),
        }
    }
    Ok(rows)
}

/// Computes emissions of the selected classes from given scores.
///
/// # Shapes
/// `scores` *rows x C*, `site_of_row` *rows*, `selection` *N x S*.
///
/// # Errors
/// As [`crate::forward()`]; also a `site_of_row` that does not name each site once.
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
    let row_of_site = invert_site_of_row(site_of_row, sites)?;
    selection.check(sites, classes)?;
    let per_site = selection.per_site();
    let mut out = Normalized::new(sites, per_site);
    let blocks = (
        parts_mut(&mut out.max, SCORE_ROWS_PER_TASK),
        parts_mut(&mut out.log_sum, SCORE_ROWS_PER_TASK),
        parts(&row_of_site, SCORE_ROWS_PER_TASK),
    );
    par_for(blocks, |_, (max, sum, rows)| {
        for ((max, sum), row) in max.iter_mut().zip(sum).zip(rows) {
            (*max, *sum) = F::row_statistics(&scores[row * classes..][..classes]);
        }
    });
    for site in 0..sites {
        for (slot, class) in selection.active(site) {
            out.emissions[site * per_site + slot] =
                scores[row_of_site[site] * classes + class as usize].to_f64();
        }
    }
    out.finish(selection)?;
    Ok(out)
}

/// Overwrites the scores by their gradient.
///
/// # Shapes
/// As [`forward`]; `normalized` is its result.
///
/// # Errors
/// Shapes that do not match; adjoints that are not finite.
///
/// # Cost
/// N C exponentials; N row indices of memory.
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
    invert_site_of_row(site_of_row, sites)?;
    let gradient = ScoreGradient { selection, normalized, adjoints };
    par_for(
        (parts_mut(scores, SCORE_ROWS_PER_TASK * classes), parts(site_of_row, SCORE_ROWS_PER_TASK)),
        |_, (scores, sites)| {
            for (z, &site) in scores.chunks_exact_mut(classes).zip(sites) {
                match site {
                    PADDING => z.fill(F::ZERO),
                    site => gradient.write_row(site as usize, 0, ScoreSource::InPlace(None), z),
                }
            }
        },
    );
    Ok(())
}

/// Location of a row of scores.
pub(crate) enum ScoreSource<'a, F> {
    /// In the memory of the gradient, without the bias.
    InPlace(Option<&'a [F]>),
    /// Saved, with the bias.
    Saved(&'a [F]),
}

/// Computes the gradient of a row of scores.
#[derive(Clone, Copy)]
pub(crate) struct ScoreGradient<'a, F> {
    pub selection: &'a Selection,
    pub normalized: &'a Normalized<F>,
    pub adjoints: &'a Adjoints<'a>,
}

impl<F: Real> ScoreGradient<'_, F> {
    /// Writes the gradient `a - A p` of a site's scores for some classes.
    ///
    /// a: adjoint of the class; A: sum of the site's adjoints; p: probability of the class. The
    /// classes of `g` start at `first_class`.
    pub(crate) fn write_row(&self, site: usize, first_class: usize, z: ScoreSource<F>, g: &mut [F]) {
        let per_site = self.selection.per_site();
        let adjoint = |slot: usize| self.adjoints.emissions[site * per_site + slot];
        let total = self.adjoints.total(site, self.selection);
        if total == 0.0 {
            // Also avoids NaN from 0 · p.
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
            if (first_class..first_class + g.len()).contains(&(class as usize)) {
                let p = self.normalized.emissions[site * per_site + slot].exp();
                let exact = adjoint(slot) - total * p;
                let is_significant = exact.abs() >= F::FLUSH_THRESHOLD.to_f64();
                g[class as usize - first_class] = if is_significant { F::from_f64(exact) } else { F::ZERO };
            }
        }
        if let Some(Clamp { limit, weights }) = self.adjoints.clamp {
            for g in g {
                *g = F::from_f64(weights[site] * g.to_f64().clamp(-limit, limit));
            }
        }
    }
}
