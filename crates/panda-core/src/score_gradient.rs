//! The gradient of the scores of a site, from its adjoints.
use crate::{Adjoints, Clamp, Normalized, Real, Selection};

/// Where a row of scores is.
pub(crate) enum Scores<'a, F> {
    /// Where the gradient goes, without the bias.
    Here(Option<&'a [F]>),
    /// Somewhere else, complete.
    Kept(&'a [F]),
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
    pub(crate) fn apply(&self, site: usize, from: usize, z: Scores<F>, g: &mut [F]) {
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
                Scores::Kept(z) => F::row_softmax(g, Some(z), None, max, factor),
                Scores::Here(bias) => F::row_softmax(g, None, bias, max, factor),
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
