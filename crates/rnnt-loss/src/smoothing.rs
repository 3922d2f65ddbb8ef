//! Label smoothing and z-loss, out of log-sums alone: no tensor of sites x classes.
//!
//! ```text
//! e'(c) = (1 - ε) log p(c) + ε (1/C) Σ_k log p(k)        (1/C) Σ_k log p(k) = h · (1/C) Σ_k W_k + (1/C) Σ_k b_k - logZ
//! loss' = loss + z · mean over sites of logZ²
//! ```
//!
//! The mean score is the score, hence the log-sum, of a head of one class: the mean of all classes. A lattice explains its
//! labels with `e'`, so that with a the adjoint of `e'`
//!
//! ```text
//! da/d log p(c) = (1 - ε) a      d/d mean score = ε Σ a      d/d logZ = -ε Σ a + 2 z logZ / N
//! ```
//!
//! (Szegedy et al., arXiv 1512.00567, section 7; de Brébisson and Vincent, arXiv 1604.08859.)
use panda_core::Real;
use panda_core::{Head, Normalized};
use rnnt_dp::Lattices;

use crate::{HeadGradient, Result};

/// The mean of all classes of a head.
pub(crate) struct MeanClass<F> {
    weight: Vec<F>,
    bias: Option<[F; 1]>,
}

impl<F: Real> MeanClass<F> {
    pub fn new(head: &Head<F>) -> Self {
        let (classes, width) = (head.classes() as f64, head.hidden());
        let mut sum = vec![0.0; width];
        for row in head.weight().chunks_exact(width) {
            sum.iter_mut().zip(row).for_each(|(sum, w)| *sum += w.to_f64());
        }
        let mean = |sum: f64| F::from_f64(sum / classes);
        let bias = head.bias().map(|bias| [mean(bias.iter().map(|b| b.to_f64()).sum())]);
        Self { weight: sum.into_iter().map(mean).collect(), bias }
    }

    pub fn head(&self) -> Result<Head<'_, F>> {
        Ok(Head::new(&self.weight, self.bias.as_ref().map(<[F; 1]>::as_slice), self.weight.len())?)
    }

    /// Spreads its gradient over that of all classes.
    pub fn spread(mean: &HeadGradient<F>, into: &mut HeadGradient<F>) {
        let HeadGradient { weight, bias } = into;
        let share = F::from_f64(1.0 / bias.len() as f64);
        for row in weight.chunks_exact_mut(mean.weight.len()) {
            row.iter_mut().zip(&mean.weight).for_each(|(w, m)| *w += share * *m);
        }
        bias.iter_mut().for_each(|b| *b += share * mean.bias[0]);
    }
}

/// `logZ` of every site.
pub(crate) fn log_z<F: Real>(normalized: &Normalized<F>) -> impl Iterator<Item = f64> + '_ {
    normalized.max.iter().zip(&normalized.log_sum).map(|(max, log_sum)| max.to_f64() + log_sum)
}

/// Mixes the mean log-probability into the first `tokens` of `columns`.
pub(crate) fn smooth<F: Real>(
    emissions: &mut [f64],
    (columns, tokens): (usize, usize),
    epsilon: f64,
    all: &Normalized<F>,
    mean: &Normalized<F>,
) {
    let means = log_z(mean).zip(log_z(all)).map(|(mean, log_z)| mean - log_z);
    for (row, mean) in emissions.chunks_exact_mut(columns).zip(means) {
        row[..tokens].iter_mut().for_each(|e| *e = (1.0 - epsilon) * *e + epsilon * mean);
    }
}

/// Turns adjoints of smoothed columns into those of the log-probabilities, and writes those of the mean scores.
pub(crate) fn unsmooth(
    adjoints: &mut [f64],
    (columns, tokens): (usize, usize),
    epsilon: f64,
    of_means: &mut [f64],
) {
    for (row, mean) in adjoints.chunks_exact_mut(columns).zip(of_means) {
        let sum: f64 = row[..tokens].iter().sum();
        row[..tokens].iter_mut().for_each(|a| *a *= 1.0 - epsilon);
        *mean = epsilon * sum;
    }
}

/// Adds the z-loss to the losses. What becomes infinite is an error: it would pass for an utterance without a path.
pub(crate) fn add_z_loss<F: Real>(
    losses: &mut [f64],
    factor: f64,
    all: &Normalized<F>,
    lattices: &Lattices,
) -> Result<()> {
    for (utterance, loss) in losses.iter_mut().enumerate() {
        let sites = lattices.site_range(utterance);
        let (possible, count) = (loss.is_finite(), sites.len() as f64);
        *loss += factor * sites.map(|site| all.log_z(site).powi(2)).sum::<f64>() / count;
        if possible && !loss.is_finite() {
            return Err(rnnt_dp::Error::Overflow { utterance, loss: *loss }.into());
        }
    }
    Ok(())
}

/// Its adjoints of `logZ`, times a weight for each utterance.
pub(crate) fn z_loss_adjoints<F: Real>(
    into: &mut [f64],
    factor: f64,
    all: &Normalized<F>,
    lattices: &Lattices,
    weights: impl Fn(usize) -> f64,
) {
    for utterance in 0..lattices.batch() {
        let sites = lattices.site_range(utterance);
        let scale = 2.0 * factor * weights(utterance) / sites.len() as f64;
        sites.for_each(|site| into[site] += scale * all.log_z(site));
    }
}
