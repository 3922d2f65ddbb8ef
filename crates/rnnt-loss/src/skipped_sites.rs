//! Leaving sites of little occupancy out of the gradient, with a bound on what that costs.
//!
//! A site with adjoints `a` has a score gradient of `|g|_1 <= |A| + Σ_s |a_s| <= 2 m`, `m = Σ_s |a_s|`, which is its
//! occupancy (times 1 + λ under FastEmit). With `D` the sum of `m` over all sites that are left out,
//!
//! ```text
//! Σ_c |Δdb_c| <= 2 D      Σ_c max_k |ΔdW_ck| <= 2 D max|h|      |Δdf|, |Δdg| <= 2 D max|W|
//! ```
//!
//! since the slope of tanh and of the positive part is at most 1 (with dropout, the scale of what is left). Where there are
//! several heads, 2 becomes 4 (tokens and durations) or 3 (a blank of its own): see `columns::gradient_bound`.
use kernels::{items_mut, par_for};
use rnnt_dp::Lattices;

/// What was left out of a gradient, and how much that can have changed it. All but `zeros` is zero for an exact gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct SkippedSites {
    /// Sites left out although they had an adjoint.
    pub sites: usize,
    /// Sites whose adjoints are zero, or so small that `f32` products would lose them: they are always left out.
    pub zeros: usize,
    /// `D`: their summed occupancy, each times the weight of its utterance.
    pub mass: f64,
    /// Bound on the sum over classes of the errors in the bias's gradient.
    pub bias: f64,
    /// Bound on the error of any element of the weight's gradient, and on the sum over classes of each class's largest.
    pub weight: f64,
    /// Bound on the error of any element of the gradients of what the hidden rows were made of.
    pub inputs: f64,
}

impl SkippedSites {
    /// `bound` is 2 above.
    pub(crate) fn new(lost: Lost, bound: f64, largest_hidden: f64, largest_weight: f64) -> Self {
        let Lost { sites, mass } = lost;
        Self {
            sites,
            zeros: 0,
            mass,
            bias: bound * mass,
            weight: bound * mass * largest_hidden,
            inputs: bound * mass * largest_weight,
        }
    }

    /// Another group of the same batch.
    pub(crate) fn add(&mut self, other: Self) {
        self.sites += other.sites;
        self.zeros += other.zeros;
        self.mass += other.mass;
        self.bias += other.bias;
        self.weight += other.weight;
        self.inputs += other.inputs;
    }
}

/// What an utterance loses.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Lost {
    pub sites: usize,
    pub mass: f64,
}

impl Lost {
    /// What all utterances lose together, each times its weight.
    pub fn weighted(parts: &[Self], weights: &[f64]) -> Self {
        // An impossible utterance has nothing to lose, whatever its weight.
        let lost = parts.iter().zip(weights).filter(|(part, _)| part.sites > 0);
        let mass = lost.map(|(part, weight)| part.mass * weight.abs()).sum();
        Self { sites: parts.iter().map(|part| part.sites).sum(), mass }
    }
}

/// Zeroes the adjoints, so many columns a site, of the sites that matter least. Tokens and durations have the same occupancy.
pub(crate) fn skip(
    lattices: &Lattices,
    (columns, tokens): (usize, usize),
    adjoints: &mut [f64],
    epsilon: f64,
) -> Vec<Lost> {
    let mut utterances = lattices.split_mut(adjoints, columns);
    let mut lost = vec![Lost::default(); lattices.batch()];
    par_for((items_mut(&mut utterances), items_mut(&mut lost)), |b, (adjoints, lost)| {
        let allowed = epsilon * (lattices.frames(b) + lattices.labels(b)) as f64;
        *lost = skip_utterance(adjoints, (columns, tokens), allowed);
    });
    lost
}

/// Buckets of a quarter of an octave: exponent and two bits of the fraction.
const SHIFT: u32 = 50;
/// Down to 2^-128 of what is allowed; what is smaller is in the last one.
const BUCKETS: usize = 512;

fn skip_utterance(adjoints: &mut [f64], (columns, tokens): (usize, usize), allowed: f64) -> Lost {
    let sum = |columns: &[f64]| columns.iter().map(|a| a.abs()).sum::<f64>();
    // Weights of tokens may have made theirs smaller.
    let mass = |site: &[f64]| sum(&site[..tokens]).max(sum(&site[tokens..]));
    let masses = || adjoints.chunks_exact(columns).map(mass);
    // Largest first: how many buckets below the one of `allowed`.
    let top = allowed.to_bits() >> SHIFT;
    let bucket = |mass: f64| (top.saturating_sub(mass.to_bits() >> SHIFT) as usize).min(BUCKETS - 1);
    // Sums of the sites that could be left out, by size; then the border, exactly.
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
            let more = pair[0] * pair.len() as f64;
            if sum + more > allowed {
                threshold = pair[0];
                break;
            }
            sum += more;
        }
    }
    let mut part = Lost::default();
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
    fn leaves_out_as_much_as_is_allowed_and_no_more() {
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
            let gone = adjoints.chunks(2).zip(&masses).filter(|(a, _)| a[0] == 0.0);
            assert!(gone.into_iter().all(|(_, m)| *m <= sorted[count.max(1) - 1]));
        }
    }

    #[test]
    fn equal_sites_stay_together() {
        let mut adjoints = [0.5; 10];
        assert_eq!(skip_utterance(&mut adjoints, (1, 1), 2.0), Lost::default());
        assert_eq!(skip_utterance(&mut adjoints, (1, 1), 5.0), Lost { sites: 10, mass: 5.0 });
        assert_eq!(adjoints, [0.0; 10]);
    }
}
