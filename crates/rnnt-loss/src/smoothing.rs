//! Label smoothing and z-loss from log-sums, without scores of all sites.
//!
//! ```text
//! e'(c) = (1 - ε) log p(c) + ε (1/C) Σ_k log p(k)
//! (1/C) Σ_k log p(k) = h · (1/C) Σ_k W_k + (1/C) Σ_k b_k - logZ
//! loss' = loss + z · mean over sites of logZ²
//! ```
//!
//! h: hidden row of the site; `W_k`, `b_k`: weight and bias of class k. The mean score is the score
//! of a head whose only class has the mean weight and bias; with one class it equals the log-sum.
//! The lattice uses `e'`, so that with `a` the adjoint of `e'`
//!
//! ```text
//! da/d log p(c) = (1 - ε) a      d/d mean score = ε Σ a      d/d logZ = -ε Σ a + 2 z logZ / N
//! ```
//!
//! (Szegedy et al., arXiv 1512.00567, section 7; de Brébisson and Vincent, arXiv 1604.08859.)
use panda_core::Real;
use panda_core::{Head, Normalized};
use rnnt_dp::Lattices;

use crate::{HeadGradient, Result, column_counts::ColumnCounts};

/// The mean of all classes of a head.
pub(crate) struct MeanClass<F> {
    weight: Vec<F>,
    bias: Option<[F; 1]>,
}

impl<F: Real> MeanClass<F> {
    /// Computes the means in `f64`.
    pub(crate) fn new(head: &Head<F>) -> Self {
        let (classes, width) = (head.classes() as f64, head.hidden());
        let mut weight_sums = vec![0.0; width];
        for row in head.weight().chunks_exact(width) {
            weight_sums.iter_mut().zip(row).for_each(|(sum, w)| *sum += w.to_f64());
        }
        let mean = |sum: f64| F::from_f64(sum / classes);
        let bias = head.bias().map(|bias| [mean(bias.iter().map(|b| b.to_f64()).sum())]);
        Self { weight: weight_sums.into_iter().map(mean).collect(), bias }
    }

    /// The head with one class.
    pub(crate) fn head(&self) -> Result<Head<'_, F>> {
        Ok(Head::new(&self.weight, self.bias.as_ref().map(<[F; 1]>::as_slice), self.weight.len())?)
    }

    /// Adds an equal share of the mean's gradient to each class.
    pub(crate) fn distribute(mean: &HeadGradient<F>, gradient: &mut HeadGradient<F>) {
        let HeadGradient { weight, bias } = gradient;
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

/// Mixes the mean log-probability into the columns of tokens.
pub(crate) fn smooth<F: Real>(
    emissions: &mut [f64],
    columns: ColumnCounts,
    epsilon: f64,
    tokens: &Normalized<F>,
    mean: &Normalized<F>,
) {
    let means = log_z(mean).zip(log_z(tokens)).map(|(mean, log_z)| mean - log_z);
    for (row, mean) in emissions.chunks_exact_mut(columns.all).zip(means) {
        row[..columns.tokens].iter_mut().for_each(|e| *e = (1.0 - epsilon) * *e + epsilon * mean);
    }
}

/// Converts adjoints of smoothed columns to those of log-probabilities and mean scores.
pub(crate) fn unsmooth(adjoints: &mut [f64], columns: ColumnCounts, epsilon: f64, mean_adjoints: &mut [f64]) {
    for (row, mean) in adjoints.chunks_exact_mut(columns.all).zip(mean_adjoints) {
        let total: f64 = row[..columns.tokens].iter().sum();
        row[..columns.tokens].iter_mut().for_each(|a| *a *= 1.0 - epsilon);
        *mean = epsilon * total;
    }
}

/// Adds the z-loss to the losses.
///
/// Overflow is an error, as +inf means an utterance without a path.
pub(crate) fn add_z_loss<F: Real>(
    losses: &mut [f64],
    factor: f64,
    tokens: &Normalized<F>,
    lattices: &Lattices,
) -> Result<()> {
    for (utterance, loss) in losses.iter_mut().enumerate() {
        let sites = lattices.site_range(utterance);
        let (has_path, count) = (loss.is_finite(), sites.len() as f64);
        *loss += factor * sites.map(|site| tokens.log_z(site).powi(2)).sum::<f64>() / count;
        if has_path && !loss.is_finite() {
            return Err(rnnt_dp::Error::Overflow { utterance, loss: *loss }.into());
        }
    }
    Ok(())
}

/// Adds the z-loss adjoints of `logZ`, times the weights of the utterances.
pub(crate) fn add_z_loss_adjoints<F: Real>(
    adjoints: &mut [f64],
    factor: f64,
    tokens: &Normalized<F>,
    lattices: &Lattices,
    weights: impl Fn(usize) -> f64,
) {
    for utterance in 0..lattices.batch() {
        let sites = lattices.site_range(utterance);
        let scale = 2.0 * factor * weights(utterance) / sites.len() as f64;
        sites.for_each(|site| adjoints[site] += scale * tokens.log_z(site));
    }
}
