//! Tests that forward-backward of lattices allocates nothing for a repeated batch.
use panda::rnnt_dp::{Lattices, Regularizers, Topology, Workspace};

use crate::counting_allocator::{allocation_count, exclusive};

#[test]
fn only_the_first_call_allocates() {
    let _guard = exclusive();
    let lattices = Lattices::new(vec![40, 7, 23], vec![9, 12, 0]).unwrap();
    let emissions: Vec<f64> = (0..lattices.num_sites() * 2).map(|i| -((i * 7 % 11) as f64) / 3.0).collect();
    let (mut losses, mut adjoints) = (vec![0.0; 3], vec![0.0; emissions.len()]);
    let (topology, regularizers) =
        (Topology::rnnt(), Regularizers { fastemit: 0.1, ..Regularizers::default() });
    let mut workspace = Workspace::new();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    // The only thread of the pool does all the work; its allocations are counted.
    let counts = pool.install(|| {
        let mut call = || {
            allocation_count(|| {
                workspace
                    .forward_backward(
                        &lattices,
                        &topology,
                        &emissions,
                        &regularizers,
                        &mut losses,
                        &mut adjoints,
                    )
                    .unwrap();
            })
        };
        [call(), call(), call()]
    });
    assert!(counts[0] > 0, "the first call must allocate");
    assert_eq!(counts[1..], [0, 0]);
}
