//! A workspace that has seen a batch asks for no more memory.
use panda::rnnt_dp::{Lattices, Regularizers, Topology, Workspace};

use crate::counting::{calls, turn};

#[test]
fn only_the_first_call_allocates() {
    let _turn = turn();
    let lattices = Lattices::new(vec![40, 7, 23], vec![9, 12, 0]).unwrap();
    let emissions: Vec<f64> = (0..lattices.sites() * 2).map(|i| -((i * 7 % 11) as f64) / 3.0).collect();
    let (mut losses, mut adjoints) = (vec![0.0; 3], vec![0.0; emissions.len()]);
    let (topology, regularisers) =
        (Topology::rnnt(), Regularizers { fastemit: 0.1, ..Regularizers::default() });
    let mut workspace = Workspace::new();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    // The pool's one thread does all the work, and its allocations are those that count.
    let found = pool.install(|| {
        let mut call = || {
            calls(|| {
                workspace
                    .forward_backward(
                        &lattices,
                        &topology,
                        &emissions,
                        &regularisers,
                        &mut losses,
                        &mut adjoints,
                    )
                    .unwrap();
            })
        };
        [call(), call(), call()]
    });
    assert!(found[0] > 0, "the count must count");
    assert_eq!(found[1..], [0, 0]);
}
