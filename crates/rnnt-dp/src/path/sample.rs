//! Paths drawn from the posterior.
use crate::{
    Lattices, Path, Result, Topology, log_sums,
    path::each,
    walk::{self, Lattice},
};

/// `count` independent paths of each lattice, exactly from its posterior `P(path | labels)`.
///
/// From a site `m`, a path goes on by the arc `m -> n` with probability `exp(e(m -> n) + β(n) - β(m))`. The
/// randomness of a path is a stream of its own, named by (`seed`, index of the utterance, index of the path):
/// neither threads, nor the other utterances, nor `count` change it.
///
/// ```
/// use rnnt_dp::{sample_paths, Lattices, Topology};
/// let lattices = Lattices::new(vec![3], vec![1])?; // the label comes at any of three frames
/// let paths = sample_paths(&lattices, &Topology::rnnt(), &[0.5f64.ln(); 12], 300, 1)?;
/// let late = paths[0].iter().filter(|path| path.steps[2].arc == 1).count();
/// assert!((50..150).contains(&late)); // a third of them
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
///
/// # Shapes
/// `emissions` *N x S*, as for [`forward_backward`](fn@crate::forward_backward). Returns `count` paths an
/// utterance, none for one without a path.
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
) -> Result<Vec<Vec<Path>>> {
    let sums = log_sums(lattices, topology, emissions)?;
    each(lattices, |utterance| {
        let lattice = Lattice::unchecked(lattices, topology, emissions, utterance);
        let beta = &sums.log_beta[lattices.range(utterance)];
        let draw = |path| {
            let mut stream = Draws::new(seed, utterance, path);
            let steps = walk::sample(&lattice, beta, |weights| stream.pick(weights))?;
            let log_prob = steps.iter().fold(0.0, |sum, step| sum + step.log_prob);
            Some(Path::new(&lattice, log_prob, &steps))
        };
        Ok((0..count).map_while(draw).collect())
    })
}

/// A stream of random numbers: SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug, Clone)]
pub struct Draws(u64);

impl Draws {
    /// The stream of a path.
    pub fn new(seed: u64, utterance: usize, path: usize) -> Self {
        Self([utterance, path].into_iter().fold(mix(seed), |state, index| mix(state ^ index as u64)))
    }

    /// An index, with a probability that is proportional to its weight. Some weight is positive.
    pub fn pick(&mut self, weights: &[f64]) -> usize {
        self.0 = self.0.wrapping_add(GOLDEN);
        let unit = (mix(self.0) >> 11) as f64 / (1u64 << 53) as f64;
        // The weights sum to 1 but for rounding.
        let mut rest = unit * weights.iter().sum::<f64>();
        let mut last = 0;
        for (index, &weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
            last = index;
            if rest < weight {
                break;
            }
            rest -= weight;
        }
        last
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
