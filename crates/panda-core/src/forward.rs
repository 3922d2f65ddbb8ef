//! Forward: emissions and the two halves of logZ, one block of sites a task, one class tile at a time.
use rayon::prelude::*;

use crate::{
    Error, Head, Real, Result, Selection, Sites, Tiling,
    error::expect_len,
    kernel::{Accumulate, View, ViewMut, product},
};

/// What forward returns and backward needs: `N (S + 2)` numbers.
///
/// `log Σ exp z` is kept as `max` and `log_sum` = `log Σ exp(z - max)`, because `(z - max) - log_sum` keeps
/// digits that `z - logZ` loses when all scores share a large offset.
#[derive(Debug, Clone, PartialEq)]
pub struct Normalized<F> {
    /// Largest score of each site, *N*.
    pub max: Vec<F>,
    /// `log Σ_c exp(z[i,c] - max[i])`, *N*.
    pub log_sum: Vec<f64>,
    /// `z[i, id[i,s]] - logZ[i]`, *N x S*; 0 at inactive entries.
    pub emissions: Vec<f64>,
}

impl<F: Real> Normalized<F> {
    /// `logZ[i]`
    ///
    /// # Panics
    /// If there is no such site.
    pub fn log_z(&self, site: usize) -> f64 {
        self.max[site].to_f64() + self.log_sum[site]
    }

    fn new(sites: usize, per_site: usize) -> Self {
        Self {
            max: vec![F::NEG_INFINITY; sites],
            log_sum: vec![0.0; sites],
            emissions: vec![0.0; sites * per_site],
        }
    }

    pub(crate) fn check(&self, sites: usize, per_site: usize) -> Result<()> {
        expect_len("normalized.max", sites, self.max.len())?;
        expect_len("normalized.log_sum", sites, self.log_sum.len())?;
        expect_len("normalized.emissions", sites.saturating_mul(per_site), self.emissions.len())
    }

    /// Runs `block(first site, max, sums, scores)` over blocks of `rows` sites in parallel, then turns sums into
    /// logs and selected scores into emissions. `sums` arrive as 0, `scores` as -inf.
    pub(crate) fn collect(
        sites: usize,
        selection: &Selection,
        rows: usize,
        block: impl Fn(usize, &mut [F], &mut [f64], &mut [F]) + Sync,
    ) -> Result<Self> {
        let per_site = selection.per_site();
        let mut out = Self::new(sites, per_site);
        // A chunk size of zero is not allowed, and with S = 0 there is nothing to cut.
        let mut no_emissions = vec![0.0; if per_site == 0 { sites } else { 0 }];
        let emissions = if per_site == 0 { &mut no_emissions } else { &mut out.emissions };
        let chunks = out.max.par_chunks_mut(rows).zip(out.log_sum.par_chunks_mut(rows));
        chunks.zip(emissions.par_chunks_mut(rows * per_site.max(1))).enumerate().for_each(
            |(index, ((max, sums), emissions))| {
                let first = index * rows;
                let mut scores = vec![F::NEG_INFINITY; max.len() * per_site];
                block(first, max, sums, &mut scores);
                for (row, sum) in sums.iter_mut().enumerate() {
                    *sum = sum.ln();
                    for (slot, _) in selection.active(first + row) {
                        let score = scores[row * per_site + slot].to_f64();
                        emissions[row * per_site + slot] = (score - max[row].to_f64()) - *sum;
                    }
                }
            },
        );
        out.reject_bad_rows()?;
        Ok(out)
    }

    /// The first site whose denominator is no positive number, if any, is an error.
    fn reject_bad_rows(&self) -> Result<()> {
        match self.log_sum.iter().zip(&self.max).position(|(l, m)| !l.is_finite() || !m.to_f64().is_finite())
        {
            None => Ok(()),
            Some(site) if self.max[site] == F::NEG_INFINITY && self.log_sum[site] == f64::NEG_INFINITY => {
                Err(Error::AllMasked { site })
            }
            Some(site) => Err(Error::NotFinite { site }),
        }
    }
}

/// Emissions of the selected classes, exact over all classes.
///
/// ```text
/// for each block of sites:            m = -inf, s = 0
///     for each tile of classes:       Z = h Wᵀ + b
///         m' = max(m, max Z);  s = s exp(m - m') + Σ exp(Z - m');  m = m'
///         remember Z at the selected classes of the tile
///     logZ = m + log s;  r = (Z_selected - m) - log s
/// ```
///
/// # Shapes
/// `sites` N rows of width H, `head` *C x H*, `selection` *N x S*. N = 0, S = 0 and C = 1 are legal.
///
/// # Errors
/// Shapes that do not fit, a selected class out of range, an infinite weight, a site whose scores hold NaN or +inf
/// ([`Error::NotFinite`]) or are all -inf ([`Error::AllMasked`]).
///
/// # Cost
/// 2 N H C floating-point operations and N C exponentials; beside the result, `rows (H + classes)` elements a
/// running task. `f32` products accumulate in `f32`, sums of exponentials in `f64`.
pub fn forward<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    tiling: &Tiling,
) -> Result<Normalized<F>> {
    let tiling = check(sites, head, selection, tiling)?;
    let per_site = selection.per_site();
    Normalized::collect(sites.len(), selection, tiling.rows, |first, max, sums, scores| {
        let rows = max.len();
        let mut hidden = vec![F::ZERO; rows * head.hidden];
        let mut tile = vec![F::ZERO; rows * tiling.classes.min(head.classes)];
        sites.fill(first..first + rows, &mut hidden);
        for from in (0..head.classes).step_by(tiling.classes) {
            let width = tiling.classes.min(head.classes - from);
            let tile = &mut tile[..rows * width];
            score_tile(head, &hidden, from, width, tile);
            for (row, z) in tile.chunks_exact(width).enumerate() {
                accumulate(z, &mut max[row], &mut sums[row]);
                for (slot, class) in selection.active(first + row) {
                    if (from..from + width).contains(&(class as usize)) {
                        scores[row * per_site + slot] = z[class as usize - from];
                    }
                }
            }
        }
    })
}

/// Fails unless the arguments fit; returns the cut that fits them.
pub(crate) fn check<F: Real, S: Sites<F>>(
    sites: &S,
    head: &Head<F>,
    selection: &Selection,
    tiling: &Tiling,
) -> Result<Tiling> {
    tiling.check()?;
    expect_len("head.hidden", sites.width(), head.hidden)?;
    selection.check(sites.len(), head.classes)?;
    head.reject_infinite_weights()?;
    Ok(tiling.fitted(sites.len(), head.classes))
}

/// `Z = h W_tileᵀ + b_tile` for classes `from .. from + width`; both directions use it, so they agree bitwise.
pub(crate) fn score_tile<F: Real>(head: &Head<F>, hidden: &[F], from: usize, width: usize, tile: &mut [F]) {
    let rows = tile.len() / width;
    let weight =
        View::new(&head.weight[from * head.hidden..(from + width) * head.hidden], width, head.hidden);
    let how = match head.bias {
        None => Accumulate::Replace,
        Some(bias) => {
            tile.chunks_exact_mut(width).for_each(|z| z.copy_from_slice(&bias[from..from + width]));
            Accumulate::Add
        }
    };
    let hidden = View::new(hidden, rows, head.hidden);
    product(ViewMut::new(tile, rows, width), hidden, weight.transposed(), F::ONE, how);
}

/// One step of the online maximum and sum. A NaN in `z` makes the sum NaN; -inf adds nothing.
pub(crate) fn accumulate<F: Real>(z: &[F], max: &mut F, sum: &mut f64) {
    let tile_max = F::row_max(z);
    if tile_max > *max {
        if *max > F::NEG_INFINITY {
            *sum *= (max.to_f64() - tile_max.to_f64()).exp();
        }
        *max = tile_max;
    }
    if *max > F::NEG_INFINITY {
        *sum += F::row_exp_sum(z, *max);
    } else if z.iter().any(|z| z.to_f64().is_nan()) {
        // Every other score so far is -inf, and exp(-inf + inf) would be NaN for those too.
        *sum = f64::NAN;
    }
}
