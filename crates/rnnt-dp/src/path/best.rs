//! Viterbi alignment: the best path of each lattice.
//!
//! It is the arc walk in the tropical semiring (maximum and plus).
use crate::{
    AlignmentPath, Error, Lattices, Result, Topology,
    forward_backward::expect_len,
    path::map_utterances,
    semiring::Tropical,
    walk::{self, Graph, Lattice},
};

/// Returns the most probable path of each lattice (Viterbi).
///
/// ```text
/// v(end) = 0      v(m) = max_{arcs m -> n} e(m -> n) + v(n)      log_prob = v(0,0)
/// ```
/// m, n: sites; e: emission of an arc; v: largest sum of emissions from a site to the end.
///
/// Ties are resolved at the first site where paths differ, in favor of the arc of lowest index:
/// with the blank as arc 0, labels are emitted late. Regularizers do not apply.
///
/// ```
/// use rnnt_dp::{best_path, Lattices, Topology};
/// let lattices = Lattices::new(vec![2], vec![1])?;
/// // Blank, label at (0,0) (0,1) (1,0) (1,1).
/// let emissions = [-0.1, -2.0, -0.1, 0.0, -0.1, -0.5, -0.1, 0.0];
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
/// A wrong length; an emission that is NaN or +inf, or so large that sums overflow. An utterance
/// without a path is not an error: its path has no steps and the log-probability -inf.
///
/// # Cost
/// O(N S) time, in parallel over utterances; 8 bytes for each site of the utterances that run.
pub fn best_path(lattices: &Lattices, topology: &Topology, emissions: &[f64]) -> Result<Vec<AlignmentPath>> {
    expect_len("emissions", lattices.num_sites() * topology.num_columns(), emissions.len())?;
    map_utterances(lattices, |utterance| {
        let lattice = Lattice::new(lattices, topology, emissions, utterance)?;
        let mut beta = vec![0.0; lattice.states()];
        walk::backward::<Tropical, _>(&lattice, |arc| arc.log_prob, &mut beta);
        if beta.contains(&f64::INFINITY) {
            return Err(Error::Overflow { utterance, loss: f64::NEG_INFINITY });
        }
        let steps = walk::best_path(&lattice, &beta);
        let log_prob = lattice.start().map_or(f64::NEG_INFINITY, |start| beta[start]);
        Ok(steps
            .map_or_else(AlignmentPath::impossible, |steps| AlignmentPath::new(&lattice, log_prob, &steps)))
    })
}
