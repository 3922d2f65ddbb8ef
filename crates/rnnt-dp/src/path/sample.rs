//! Samples transducer alignment paths from their posterior.
//!
//! β of the log semiring gives the posterior of each arc from a site; a path is sampled arc by arc.
//! [`PathRng`] is the random stream of a path, here and in CTC and recognition lattices.
use crate::{
    AlignmentPath, Lattices, Result, Topology, log_sums,
    path::map_utterances,
    walk::{self, Lattice},
};

/// Returns `count` independent paths of each lattice, sampled from its posterior.
///
/// The distribution is exactly `P(path | labels)`.
///
/// From a site `m`, a path takes the arc `m -> n` with probability `exp(e(m -> n) + β(n) - β(m))`.
/// Each path has a separate random stream, determined by `seed` and the indices of utterance and
/// path. Threads, other utterances and `count` do not change it.
///
/// ```
/// use rnnt_dp::{sample_paths, Lattices, Topology};
/// let lattices = Lattices::new(vec![3], vec![1])?; // the label is emitted at any of three frames
/// let paths = sample_paths(&lattices, &Topology::rnnt(), &[0.5f64.ln(); 12], 300, 1)?;
/// let late = paths[0].iter().filter(|path| path.steps[2].arc == 1).count();
/// assert!((50..150).contains(&late)); // a third of them
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
///
/// # Shapes
/// `emissions` *N x S*, as in [`forward_backward`](fn@crate::forward_backward). Returns `count`
/// paths per utterance, none for one without a path.
///
/// # Errors
/// As [`log_sums`](fn@crate::log_sums).
///
/// # Cost
/// That of `log_sums`, and O(`count` (T + U)) for the paths, in parallel over utterances.
pub fn sample_paths(
    lattices: &Lattices,
    topology: &Topology,
    emissions: &[f64],
    count: usize,
    seed: u64,
) -> Result<Vec<Vec<AlignmentPath>>> {
    let sums = log_sums(lattices, topology, emissions)?;
    map_utterances(lattices, |utterance| {
        let lattice = Lattice::new_unchecked(lattices, topology, emissions, utterance);
        let beta = &sums.log_beta[lattices.site_range(utterance)];
        let sample = |path| {
            let mut rng = PathRng::new(seed, utterance, path);
            let steps = walk::sample_path(&lattice, beta, |weights| rng.weighted_index(weights))?;
            let log_prob = steps.iter().fold(0.0, |sum, step| sum + step.log_prob);
            Some(AlignmentPath::new(&lattice, log_prob, &steps))
        };
        Ok((0..count).map_while(sample).collect())
    })
}

/// A stream of random numbers for one path: SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub struct PathRng(u64);

impl PathRng {
    /// Creates the stream of a path.
    pub fn new(seed: u64, utterance: usize, path: usize) -> Self {
        Self([utterance, path].into_iter().fold(mix(seed), |state, index| mix(state ^ index as u64)))
    }

    /// Samples an index with probability proportional to its weight.
    ///
    /// At least one weight must be positive.
    pub fn weighted_index(&mut self, weights: &[f64]) -> usize {
        self.0 = self.0.wrapping_add(INCREMENT);
        // The upper 53 of 64 bits, the precision of `f64`, as a number from 0 to 1.
        let uniform = (mix(self.0) >> 11) as f64 / (1u64 << 53) as f64;
        // The weights sum to 1 up to rounding.
        let mut remaining = uniform * weights.iter().sum::<f64>();
        let mut sampled = 0;
        for (index, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            sampled = index;
            if remaining < weight {
                break;
            }
            remaining -= weight;
        }
        sampled
    }
}

/// Increment of SplitMix64, 2^64 divided by the golden ratio.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a state into a random number (SplitMix64).
fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(INCREMENT);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
