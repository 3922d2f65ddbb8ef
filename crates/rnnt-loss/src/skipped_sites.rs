//! Excludes sites of low occupancy from the gradient of a transducer loss.
//!
//! A site is a lattice node, its occupancy the probability that a path visits it. The error is
//! bounded: a site whose selected classes s have adjoints `a_s` (derivatives of the loss with
//! respect to their log-probabilities) has a score gradient of `|g|_1 <= |Σ_s a_s| + Σ_s |a_s| <= 2
//! m`, where `m = Σ_s |a_s|` is its occupancy (times 1 + λ with FastEmit). With `D` the sum of `m`
//! over all excluded sites,
//!
//! ```text
//! Σ_c |Δdb_c| <= 2 D      Σ_c max_k |ΔdW_ck| <= 2 D max|h|      |Δdf|, |Δdg| <= 2 D max|W|
//! ```
//!
//! where `b` and `W` belong to the head, `f` and `g` are encoder and predictor rows, and `h` hidden
//! rows; the slope of tanh and ReLU is at most 1 (with dropout, its scale). With several heads, 2
//! becomes 4 (tokens and durations) or 3 (factored blank): see `columns::gradient_bound`.
use kernels::{items_mut, par_for};
use rnnt_dp::Lattices;

use crate::column_counts::ColumnCounts;

/// Sites excluded from a gradient, with bounds on the error.
///
/// For an exact gradient, all fields except `zero_sites` are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SkippedSites {
    /// Number of excluded sites with nonzero adjoints.
    pub sites: usize,
    /// Number of sites with adjoints of zero, or negligible in `f32`.
    ///
    /// They are always excluded.
    pub zero_sites: usize,
    /// `D`: summed occupancy of the excluded sites, times the weights of their utterances.
    pub mass: f64,
    /// Bound on the errors of the bias gradient, summed over classes.
    pub bias_error: f64,
    /// Bound on the error of the weight gradient.
    ///
    /// It bounds any element, and the sum over classes of each class's largest error.
    pub weight_error: f64,
    /// Bound on the error of any element of the inputs' gradients.
    pub input_error: f64,
}

impl SkippedSites {
    /// Computes the bounds; `gradient_bound` is the factor 2 in the module documentation.
    pub(crate) fn new(skipped: SkippedMass, gradient_bound: f64, max_hidden: f64, max_weight: f64) -> Self {
        let SkippedMass { sites, mass } = skipped;
        Self {
            sites,
            zero_sites: 0,
            mass,
            bias_error: gradient_bound * mass,
            weight_error: gradient_bound * mass * max_hidden,
            input_error: gradient_bound * mass * max_weight,
        }
    }

    /// Adds another group of the same batch.
    pub(crate) fn add(&mut self, other: Self) {
        self.sites += other.sites;
        self.zero_sites += other.zero_sites;
        self.mass += other.mass;
        self.bias_error += other.bias_error;
        self.weight_error += other.weight_error;
        self.input_error += other.input_error;
    }
}

/// Excluded sites of an utterance and their occupancy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct SkippedMass {
    pub sites: usize,
    pub mass: f64,
}

impl SkippedMass {
    /// Sum over utterances, each times its weight.
    pub(crate) fn weighted_sum(utterances: &[Self], weights: &[f64]) -> Self {
        // An utterance without a path has no occupancy, and its weight may be infinite.
        let skipped = utterances.iter().zip(weights).filter(|(utterance, _)| utterance.sites > 0);
        let mass = skipped.map(|(utterance, weight)| utterance.mass * weight.abs()).sum();
        Self { sites: utterances.iter().map(|utterance| utterance.sites).sum(), mass }
    }
}

/// Zeroes the adjoints of the sites of lowest occupancy.
///
/// In each utterance, the occupancies of these sites sum to at most `epsilon · (T + U)`.
pub(crate) fn skip_sites(
    lattices: &Lattices,
    columns: ColumnCounts,
    adjoints: &mut [f64],
    epsilon: f64,
) -> Vec<SkippedMass> {
    let mut utterances = lattices.split_mut(adjoints, columns.all);
    let mut skipped = vec![SkippedMass::default(); lattices.batch()];
    par_for((items_mut(&mut utterances), items_mut(&mut skipped)), |b, (adjoints, skipped)| {
        let max_mass = epsilon * (lattices.num_frames(b) + lattices.num_labels(b)) as f64;
        *skipped = skip_utterance(adjoints, columns, max_mass);
    });
    skipped
}

/// Lower bits of an `f64` that a bucket ignores: buckets are quarters of an octave.
const BUCKET_SHIFT: u32 = 50;
/// Number of buckets, down to 2^-128 of the limit; the last one contains all smaller masses.
const BUCKETS: usize = 512;

/// Zeroes the sites of smallest mass, up to the sum `max_mass`.
fn skip_utterance(adjoints: &mut [f64], columns: ColumnCounts, max_mass: f64) -> SkippedMass {
    let ColumnCounts { all: columns, tokens } = columns;
    // Columns of durations have the same mass as those of tokens, unless weights of tokens have
    // decreased the latter.
    let abs_sum = |columns: &[f64]| columns.iter().map(|a| a.abs()).sum::<f64>();
    let mass = |site: &[f64]| abs_sum(&site[..tokens]).max(abs_sum(&site[tokens..]));
    let masses = || adjoints.chunks_exact(columns).map(mass);
    // Number of buckets below that of `max_mass`, so that the largest masses come first.
    let limit_bucket = max_mass.to_bits() >> BUCKET_SHIFT;
    let bucket_of =
        |mass: f64| (limit_bucket.saturating_sub(mass.to_bits() >> BUCKET_SHIFT) as usize).min(BUCKETS - 1);
    // Sums of small masses by bucket, and the first bucket that does not fit as a whole.
    let mut bucket_masses = [0.0; BUCKETS];
    for mass in masses().filter(|mass| *mass <= max_mass) {
        bucket_masses[bucket_of(mass)] += mass;
    }
    let mut skipped_mass = 0.0;
    let split_bucket = bucket_masses.iter().rposition(|bucket_mass| {
        let fits = skipped_mass + bucket_mass <= max_mass;
        skipped_mass += if fits { *bucket_mass } else { 0.0 };
        !fits
    });
    // The exact threshold within that bucket.
    let mut threshold = f64::INFINITY;
    if let Some(split_bucket) = split_bucket {
        let is_in_split_bucket = |mass: &f64| *mass <= max_mass && bucket_of(*mass) == split_bucket;
        let mut masses: Vec<f64> = masses().filter(is_in_split_bucket).collect();
        masses.sort_unstable_by(f64::total_cmp);
        threshold = masses[0];
        for equal_masses in masses.chunk_by(|a, b| a == b) {
            let added = equal_masses[0] * equal_masses.len() as f64;
            if skipped_mass + added > max_mass {
                threshold = equal_masses[0];
                break;
            }
            skipped_mass += added;
        }
    }
    // Exclude the sites below the threshold.
    let mut skipped = SkippedMass::default();
    for site in adjoints.chunks_exact_mut(columns) {
        let mass = mass(site);
        if mass > 0.0 && mass < threshold && mass <= max_mass {
            skipped.sites += 1;
            skipped.mass += mass;
            site.fill(0.0);
        }
    }
    skipped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_the_most_sites_within_the_limit() {
        let masses: Vec<f64> = (0..200).map(|i| 1.5f64.powi((i * 37) % 200 - 150)).collect();
        let mut sorted = masses.clone();
        sorted.sort_by(f64::total_cmp);
        for max_mass in [0.0, 1e-30, 1e-20, 1e-6, 0.1, 1.0, 1e9, 1e12] {
            let mut adjoints: Vec<f64> = masses.iter().flat_map(|m| [-0.25 * m, -0.75 * m]).collect();
            let skipped = skip_utterance(&mut adjoints, ColumnCounts { all: 2, tokens: 2 }, max_mass);
            let (mut count, mut sum) = (0, 0.0);
            while count < sorted.len() && sum + sorted[count] <= max_mass {
                sum += sorted[count];
                count += 1;
            }
            assert_eq!(skipped.sites, count, "{max_mass}");
            assert!((skipped.mass - sum).abs() <= 1e-12 * sum && skipped.mass <= max_mass * (1.0 + 1e-12));
            let excluded = adjoints.chunks(2).zip(&masses).filter(|(a, _)| a[0] == 0.0);
            assert!(excluded.into_iter().all(|(_, m)| *m <= sorted[count.max(1) - 1]));
        }
    }

    #[test]
    fn sites_of_equal_mass_are_treated_alike() {
        let (mut adjoints, columns) = ([0.5; 10], ColumnCounts { all: 1, tokens: 1 });
        assert_eq!(skip_utterance(&mut adjoints, columns, 2.0), SkippedMass::default());
        assert_eq!(skip_utterance(&mut adjoints, columns, 5.0), SkippedMass { sites: 10, mass: 5.0 });
        assert_eq!(adjoints, [0.0; 10]);
    }
}
