//! Excludes sites of low occupancy from the gradient.
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

/// Sites excluded from a gradient, with bounds on the error.
///
/// For an exact gradient, all fields except `zeros` are 0.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SkippedSites {
    /// Number of excluded sites with nonzero adjoints.
    pub sites: usize,
    /// Number of sites with adjoints of zero, or negligible in `f32`.
    ///
    /// They are always excluded.
    pub zeros: usize,
    /// `D`: summed occupancy of the excluded sites, times the weights of their utterances.
    pub mass: f64,
    /// Bound on the errors of the bias gradient, summed over classes.
    pub bias: f64,
    /// Bound on the error of the weight gradient.
    ///
    /// It bounds any element, and the sum over classes of each class's largest error.
    pub weight: f64,
    /// Bound on the error of any element of the inputs' gradients.
    pub inputs: f64,
}

impl SkippedSites {
    /// Computes the bounds; `bound` is the factor 2 in the module documentation.
    pub(crate) fn new(lost: SkippedMass, bound: f64, largest_hidden: f64, largest_weight: f64) -> Self {
        let SkippedMass { sites, mass } = lost;
        Self {
            sites,
            zeros: 0,
            mass,
            bias: bound * mass,
            weight: bound * mass * largest_hidden,
            inputs: bound * mass * largest_weight,
        }
    }

    /// Adds another group of the same batch.
    pub(crate) fn add(&mut self, other: Self) {
        self.sites += other.sites;
        self.zeros += other.zeros;
        self.mass += other.mass;
        self.bias += other.bias;
        self.weight += other.weight;
        self.inputs += other.inputs;
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
    pub(crate) fn weighted_sum(parts: &[Self], weights: &[f64]) -> Self {
        // An utterance without a path has no occupancy, and its weight may be infinite.
        let lost = parts.iter().zip(weights).filter(|(part, _)| part.sites > 0);
        let mass = lost.map(|(part, weight)| part.mass * weight.abs()).sum();
        Self { sites: parts.iter().map(|part| part.sites).sum(), mass }
    }
}

/// Zeroes the adjoints of the sites of lowest occupancy.
///
/// Adjoints have `columns` columns, `tokens` of them for tokens; those of durations have the same
/// occupancy.
pub(crate) fn skip(
    lattices: &Lattices,
    (columns, tokens): (usize, usize),
    adjoints: &mut [f64],
    epsilon: f64,
) -> Vec<SkippedMass> {
    let mut utterances = lattices.split_mut(adjoints, columns);
    let mut lost = vec![SkippedMass::default(); lattices.batch()];
    par_for((items_mut(&mut utterances), items_mut(&mut lost)), |b, (adjoints, lost)| {
        let allowed = epsilon * (lattices.frames(b) + lattices.labels(b)) as f64;
        *lost = skip_utterance(adjoints, (columns, tokens), allowed);
    });
    lost
}

/// Lower bits of an `f64` that a bucket ignores: buckets are quarters of an octave.
const BUCKET_SHIFT: u32 = 50;
/// Number of buckets, down to 2^-128 of the limit; the last one contains all smaller masses.
const BUCKETS: usize = 512;

fn skip_utterance(adjoints: &mut [f64], (columns, tokens): (usize, usize), allowed: f64) -> SkippedMass {
    let sum = |columns: &[f64]| columns.iter().map(|a| a.abs()).sum::<f64>();
    // Weights of tokens may have decreased their adjoints.
    let mass = |site: &[f64]| sum(&site[..tokens]).max(sum(&site[tokens..]));
    let masses = || adjoints.chunks_exact(columns).map(mass);
    // Number of buckets below that of `allowed`, so that the largest masses come first.
    let top = allowed.to_bits() >> BUCKET_SHIFT;
    let bucket = |mass: f64| (top.saturating_sub(mass.to_bits() >> BUCKET_SHIFT) as usize).min(BUCKETS - 1);
    // Sums of small masses by bucket; then the exact threshold within one bucket.
    let mut buckets = [0.0; BUCKETS];
    for mass in masses().filter(|mass| *mass <= allowed) {
        buckets[bucket(mass)] += mass;
    }
    let mut sum = 0.0;
    let border = buckets.iter().rposition(|bucket| {
        let fits = sum + bucket <= allowed;
        sum += if fits { *bucket } else { 0.0 };
        !fits
    });
    let mut threshold = f64::INFINITY;
    if let Some(border) = border {
        let at_border = |mass: &f64| *mass <= allowed && bucket(*mass) == border;
        let mut masses: Vec<f64> = masses().filter(at_border).collect();
        masses.sort_unstable_by(f64::total_cmp);
        threshold = masses[0];
        for pair in masses.chunk_by(|a, b| a == b) {
            let added = pair[0] * pair.len() as f64;
            if sum + added > allowed {
                threshold = pair[0];
                break;
            }
            sum += added;
        }
    }
    let mut part = SkippedMass::default();
    for site in adjoints.chunks_exact_mut(columns) {
        let mass = mass(site);
        if mass > 0.0 && mass < threshold && mass <= allowed {
            part.sites += 1;
            part.mass += mass;
            site.fill(0.0);
        }
    }
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excludes_the_most_sites_within_the_limit() {
        let masses: Vec<f64> = (0..200).map(|i| 1.5f64.powi((i * 37) % 200 - 150)).collect();
        let mut sorted = masses.clone();
        sorted.sort_by(f64::total_cmp);
        for allowed in [0.0, 1e-30, 1e-20, 1e-6, 0.1, 1.0, 1e9, 1e12] {
            let mut adjoints: Vec<f64> = masses.iter().flat_map(|m| [-0.25 * m, -0.75 * m]).collect();
            let part = skip_utterance(&mut adjoints, (2, 2), allowed);
            let (mut count, mut sum) = (0, 0.0);
            while count < sorted.len() && sum + sorted[count] <= allowed {
                sum += sorted[count];
                count += 1;
            }
            assert_eq!(part.sites, count, "{allowed}");
            assert!((part.mass - sum).abs() <= 1e-12 * sum && part.mass <= allowed * (1.0 + 1e-12));
            let excluded = adjoints.chunks(2).zip(&masses).filter(|(a, _)| a[0] == 0.0);
            assert!(excluded.into_iter().all(|(_, m)| *m <= sorted[count.max(1) - 1]));
        }
    }

    #[test]
    fn sites_of_equal_mass_are_treated_alike() {
        let mut adjoints = [0.5; 10];
        assert_eq!(skip_utterance(&mut adjoints, (1, 1), 2.0), SkippedMass::default());
        assert_eq!(skip_utterance(&mut adjoints, (1, 1), 5.0), SkippedMass { sites: 10, mass: 5.0 });
        assert_eq!(adjoints, [0.0; 10]);
    }
}
