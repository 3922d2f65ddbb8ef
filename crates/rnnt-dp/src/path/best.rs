//! The best path: the backward recursion with a maximum in place of the sum.
use crate::{
    Error, Lattices, Path, Result, Step, Topology,
    forward_backward::expect,
    log_sums::{Walk, after},
    path::each,
    topology::Landing,
};

/// The path of largest probability of each lattice (Viterbi).
///
/// ```text
/// v(end) = 0      v(m) = max_{arcs m -> n} e(m -> n) + v(n)      log_prob = v(0,0)
/// ```
///
/// Of equally good paths it takes the one that, at the first site where they part, goes on with the arc of the lowest
/// index: with blank as arc 0, labels come as late as they can. Regularisers play no part.
///
/// ```
/// use rnnt_dp::{best_path, Lattices, Topology};
/// let lattices = Lattices::new(vec![2], vec![1])?;
/// let emissions = [-0.1, -2.0, -0.1, 0.0, -0.1, -0.5, -0.1, 0.0]; // blank, label at (0,0) (0,1) (1,0) (1,1)
/// let path = &best_path(&lattices, &Topology::rnnt(), &emissions)?[0];
/// assert_eq!(path.steps.iter().map(|step| step.arc).collect::<Vec<_>>(), [0, 1, 0]);
/// assert!((path.log_prob + 0.7).abs() < 1e-12);
/// # Ok::<(), rnnt_dp::Error>(())
/// ```
///
/// # Shapes
/// `emissions` *N x S*, as for [`forward_backward`](fn@crate::forward_backward).
///
/// # Errors
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance without a path is not
/// an error: its path has no steps and the log-probability -inf.
///
/// # Cost
/// O(N S) time, in parallel over utterances; 16 bytes for each site of an utterance while its turn lasts.
pub fn best_path(lattices: &Lattices, topology: &Topology, emissions: &[f64]) -> Result<Vec<Path>> {
    expect("emissions", lattices.sites() * topology.columns(), emissions.len())?;
    each(lattices, |utterance| {
        let walk = Walk::new(lattices, topology, emissions, utterance);
        walk.check()?;
        viterbi(&walk, utterance, lattices.range(utterance).len())
    })
}

/// Beyond every site.
const END: u32 = u32::MAX;

fn viterbi(walk: &Walk, utterance: usize, sites: usize) -> Result<Path> {
    let mut best = vec![f64::NEG_INFINITY; sites];
    // The arc that is best to leave by, and the site it lands on.
    let mut choices = vec![(0u32, END); sites];
    for (site, arc, landing, emission) in walk.arcs().rev() {
        let score = emission + after(landing, &best);
        if score == f64::INFINITY {
            return Err(Error::Overflow { utterance, loss: -score });
        }
        // Arcs come last first, so that the lowest of equals stays.
        if score > f64::NEG_INFINITY && score >= best[site] {
            best[site] = score;
            choices[site] = (arc as u32, if let Landing::Site(to) = landing { to as u32 } else { END });
        }
    }
    let Some(start) = walk.start().filter(|&start| best[start] > f64::NEG_INFINITY) else {
        return Ok(Path::impossible());
    };
    let (mut steps, mut next) = (Vec::new(), start as u32);
    for (site, at) in walk.sites() {
        if site as u32 == next {
            let (arc, to) = choices[site];
            let log_prob = walk.emission(site, at, arc as usize);
            steps.push(Step { site: at, arc: arc as usize, log_prob });
            next = to;
        }
    }
    Ok(Path { log_prob: best[start], steps })
}
