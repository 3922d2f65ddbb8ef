//! Every topology against the sum over all of its paths, one by one, and against central differences.
use oracle::{
    differences::central,
    paths::{Arc, sum_over_paths},
};
use proptest::prelude::*;
use rnnt_dp::{Lattices, Regularisers, Topology, forward_backward};

fn topologies() -> [Topology; 2] {
    [Topology::rnnt(), Topology::modified()]
}

/// The oracle's list of arcs for a topology.
fn arcs(topology: &Topology) -> Vec<Arc> {
    let column = |(column, arc): (usize, &rnnt_dp::Arc)| Arc {
        frames: arc.frames,
        labels: arc.labels,
        column,
        may_end: arc.may_end,
    };
    topology.arcs().iter().enumerate().map(column).collect()
}

/// T, U and emissions, some of them impossible.
fn lattices() -> impl Strategy<Value = (usize, usize, Vec<f64>)> {
    (1usize..6, 0usize..5).prop_flat_map(|(t, u)| {
        let emission = prop_oneof![9 => -6.0..0.0f64, 1 => Just(f64::NEG_INFINITY)];
        (Just(t), Just(u), prop::collection::vec(emission, 2 * t * (u + 1)))
    })
}

fn run(t: usize, u: usize, topology: &Topology, emissions: &[f64]) -> rnnt_dp::Posterior {
    let lattices = Lattices::new(vec![t], vec![u]).unwrap();
    forward_backward(&lattices, topology, emissions, &Regularisers::default()).unwrap()
}

proptest! {
    #[test]
    fn equals_the_sum_over_paths((t, u, emissions) in lattices()) {
        for topology in topologies() {
            let found = run(t, u, &topology, &emissions);
            let want = sum_over_paths(&emissions, t, u, 2, &arcs(&topology)).unwrap();
            let loss = -want.log_likelihood;
            prop_assert!(found.losses[0] == loss || (found.losses[0] - loss).abs() < 1e-12 * (1.0 + loss.abs()));
            for (adjoint, occupancy) in found.adjoints.iter().zip(&want.occupancies) {
                prop_assert!((adjoint + occupancy).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn adjoints_are_central_differences(t in 1usize..6, u in 0usize..5, seed in 0usize..1000) {
        let emissions: Vec<f64> =
            (0..2 * t * (u + 1)).map(|i| -(((i + seed) * 7919 % 1009) as f64) / 300.0).collect();
        for topology in topologies() {
            let found = run(t, u, &topology, &emissions);
            if found.losses[0].is_finite() {
                let want = central(|e| Ok(run(t, u, &topology, e).losses[0]), &emissions).unwrap();
                for (found, want) in found.adjoints.iter().zip(&want) {
                    prop_assert!((found - want).abs() < 1e-7, "{found} {want}");
                }
            }
        }
    }

    #[test]
    fn fastemit_scales_label_arcs_alone((t, u, emissions) in lattices(), lambda in 0.0..1.0f64) {
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let plain = run(t, u, &Topology::rnnt(), &emissions);
        let found =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularisers { fastemit: lambda, ..Regularisers::default() }).unwrap();
        prop_assert_eq!(&found.losses, &plain.losses);
        for (found, plain) in found.adjoints.chunks(2).zip(plain.adjoints.chunks(2)) {
            prop_assert!(found[0] == plain[0] && (found[1] - (1.0 + lambda) * plain[1]).abs() < 1e-15);
        }
    }
}
