//! Transducer losses of regular and modified lattices compared with path sums.
//!
//! Gradients are also compared with central differences. T frames, U labels; `t`, `u`: their
//! numbers.
use oracle::{
    differences::central_difference,
    paths::{PathArc, sum_over_paths},
};
use proptest::prelude::*;
use rnnt_dp::{Lattices, Regularizers, Topology, forward_backward};

fn topologies() -> [Topology; 2] {
    [Topology::rnnt(), Topology::modified()]
}

/// Arcs of a topology in the form of the oracle.
fn arcs(topology: &Topology) -> Vec<PathArc> {
    let column = |(column, arc): (usize, &rnnt_dp::TopologyArc)| PathArc {
        frames: arc.frames,
        labels: arc.labels,
        column,
        may_end: arc.may_end,
    };
    topology.arcs().iter().enumerate().map(column).collect()
}

/// T, U and emissions *N x 2*, including impossible ones.
fn lattices() -> impl Strategy<Value = (usize, usize, Vec<f64>)> {
    // A tenth of the emissions is blocked.
    (1usize..6, 0usize..5).prop_flat_map(|(t, u)| {
        let emission = prop_oneof![9 => -6.0..0.0f64, 1 => Just(f64::NEG_INFINITY)];
        (Just(t), Just(u), prop::collection::vec(emission, 2 * t * (u + 1)))
    })
}

/// Returns loss and adjoints of one lattice.
fn run(t: usize, u: usize, topology: &Topology, emissions: &[f64]) -> rnnt_dp::Posterior {
    let lattices = Lattices::new(vec![t], vec![u]).unwrap();
    forward_backward(&lattices, topology, emissions, &Regularizers::default()).unwrap()
}

proptest! {
    #[test]
    fn sums_over_paths_match_brute_force((t, u, emissions) in lattices()) {
        for topology in topologies() {
            let computed = run(t, u, &topology, &emissions);
            let expected = sum_over_paths(&emissions, t, u, 2, &arcs(&topology)).unwrap();
            let loss = -expected.log_likelihood;
            prop_assert!(
                computed.losses[0] == loss || (computed.losses[0] - loss).abs() < 1e-12 * (1.0 + loss.abs())
            );
            for (adjoint, occupancy) in computed.adjoints.iter().zip(&expected.occupancies) {
                prop_assert!((adjoint + occupancy).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn adjoints_match_central_differences(t in 1usize..6, u in 0usize..5, seed in 0usize..1000) {
        let emissions: Vec<f64> =
            (0..2 * t * (u + 1)).map(|i| -(((i + seed) * 7919 % 1009) as f64) / 300.0).collect();
        for topology in topologies() {
            let computed = run(t, u, &topology, &emissions);
            if computed.losses[0].is_finite() {
                let expected =
                    central_difference(|e| Ok(run(t, u, &topology, e).losses[0]), &emissions).unwrap();
                for (computed, expected) in computed.adjoints.iter().zip(&expected) {
                    prop_assert!((computed - expected).abs() < 1e-7, "{computed} {expected}");
                }
            }
        }
    }

    #[test]
    fn fastemit_scales_only_label_arcs((t, u, emissions) in lattices(), lambda in 0.0..1.0f64) {
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let plain = run(t, u, &Topology::rnnt(), &emissions);
        let computed = forward_backward(
            &lattices,
            &Topology::rnnt(),
            &emissions,
            &Regularizers { fastemit: lambda, ..Regularizers::default() },
        )
        .unwrap();
        prop_assert_eq!(&computed.losses, &plain.losses);
        for (computed, plain) in computed.adjoints.chunks(2).zip(plain.adjoints.chunks(2)) {
            prop_assert!(computed[0] == plain[0] && (computed[1] - (1.0 + lambda) * plain[1]).abs() < 1e-15);
        }
    }
}
