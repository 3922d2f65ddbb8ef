//! Scaled recursions of the transducer loss compared with `log_sums`.
//!
//! `log_sums` has the same recursions over logarithms. Losses and adjoints must be accurate for any
//! size of lattice and of emissions. `t`, `u`: numbers of frames and labels.
use proptest::prelude::*;
use rnnt_dp::{
    Lattices, LogSums, Posterior, Regularizers, Topology, TopologyArc, Workspace, forward_backward, log_sums,
};

/// Topologies with long arcs, or with a single arc.
fn topologies() -> Vec<Topology> {
    let arc = |frames, labels, may_end| TopologyArc { frames, labels, may_end };
    let custom = |arcs| Topology::new(arcs).unwrap();
    vec![
        Topology::rnnt(),
        Topology::modified(),
        custom(vec![arc(2, 0, true), arc(1, 1, false), arc(0, 2, false), arc(1, 0, true)]),
        custom(vec![arc(1, 1, true)]),
        custom(vec![arc(0, 1, false), arc(1, 0, true), arc(4, 1, true), arc(12, 0, true), arc(0, 1, true)]),
    ]
}

/// Loss and adjoints of one lattice from its log-sums.
fn posteriors_from_log_sums(
    t: usize,
    u: usize,
    topology: &Topology,
    emissions: &[f64],
    sums: &LogSums,
) -> (f64, Vec<f64>) {
    let log_p = sums.log_beta[0];
    let mut adjoints = vec![0.0; emissions.len()];
    for site in 0..t * (u + 1) {
        for (arc_index, arc) in topology.arcs().iter().enumerate() {
            let (frame, label) = (site / (u + 1) + arc.frames, site % (u + 1) + arc.labels);
            let target_beta = if frame < t && label <= u {
                sums.log_beta[frame * (u + 1) + label]
            } else if (frame, label) == (t, u) && arc.may_end {
                0.0
            } else {
                continue;
            };
            let index = site * topology.arcs().len() + arc_index;
            if log_p.is_finite() {
                let log = sums.log_alpha[site] + emissions[index] + target_beta - log_p;
                adjoints[index] = -log.exp();
            }
        }
    }
    (-log_p, adjoints)
}

/// Returns loss and adjoints from scaled numbers, and from log-sums.
fn run(t: usize, u: usize, topology: &Topology, emissions: &[f64]) -> (Posterior, (f64, Vec<f64>)) {
    let lattices = Lattices::new(vec![t], vec![u]).unwrap();
    let computed = forward_backward(&lattices, topology, emissions, &Regularizers::default()).unwrap();
    let sums = log_sums(&lattices, topology, emissions).unwrap();
    (computed, posteriors_from_log_sums(t, u, topology, emissions, &sums))
}

/// Returns a generator of numbers from 0 to 1.
fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(2) + 1;
    move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

proptest! {
    #[test]
    fn losses_and_adjoints_match_on_any_lattice(
        t in 1usize..40,
        u in 0usize..40,
        seed: u64,
        scale in prop_oneof![Just(1.0), Just(6.0), Just(100.0), Just(1e4), Just(1e5)],
        blocked_fraction in prop_oneof![Just(0.0), Just(0.02), Just(0.2)],
        gain in prop_oneof![3 => Just(0.0), 1 => Just(0.5)],
    ) {
        for topology in topologies() {
            let mut noise = noise(seed);
            let mut emission =
                || if noise() < blocked_fraction { f64::NEG_INFINITY } else { (gain - noise()) * scale };
            let emissions: Vec<f64> = (0..t * (u + 1) * topology.arcs().len()).map(|_| emission()).collect();
            let (computed, (loss, adjoints)) = run(t, u, &topology, &emissions);
            prop_assert!(
                computed.losses[0] == loss || (computed.losses[0] - loss).abs() <= 1e-12 * (1.0 + loss.abs()),
                "{} {loss}",
                computed.losses[0]
            );
            // The log-sums round relative to their size.
            let tolerance = 1e-13 + 1e-14 * scale * (t + u) as f64;
            for (i, (computed, expected)) in computed.adjoints.iter().zip(&adjoints).enumerate() {
                prop_assert!((computed - expected).abs() <= tolerance, "entry {i}: {computed} {expected}");
            }
            for (computed, emission) in computed.adjoints.iter().zip(&emissions) {
                prop_assert!(*emission > f64::NEG_INFINITY || *computed == 0.0);
            }
        }
    }

    #[test]
    fn losses_near_zero_are_accurate(t in 1usize..60, u in 0usize..20, seed: u64, size in 3i32..40) {
        // A certain path with random order of labels and blanks; all other arcs are unlikely.
        let mut noise = noise(seed);
        let mut emissions = vec![-90.0; 2 * t * (u + 1)];
        let (mut frame, mut label, mut expected) = (0, 0, 0.0);
        while frame < t {
            let is_blank = label == u || (frame + 1 < t && noise() < 0.5);
            let emission = -noise() * 2f64.powi(-size);
            expected -= emission;
            emissions[2 * (frame * (u + 1) + label) + usize::from(!is_blank)] = emission;
            if is_blank { frame += 1 } else { label += 1 }
        }
        let (computed, _) = run(t, u, &Topology::rnnt(), &emissions);
        prop_assert!(
            (computed.losses[0] - expected).abs() <= 1e-13 * expected,
            "{} {expected}",
            computed.losses[0]
        );
    }

    #[test]
    fn occupancies_are_sums_of_posteriors(
        t in 1usize..12,
        u in 0usize..12,
        seed: u64,
        fastemit in 0.0..1.0f64,
    ) {
        for topology in topologies() {
            let mut noise = noise(seed);
            let emissions: Vec<f64> =
                (0..t * (u + 1) * topology.arcs().len()).map(|_| -6.0 * noise()).collect();
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let computed = forward_backward(
                &lattices,
                &topology,
                &emissions,
                &Regularizers { fastemit, ..Regularizers::default() },
            )
            .unwrap();
            let sums = log_sums(&lattices, &topology, &emissions).unwrap();
            for (site, gamma) in computed.occupancies(&lattices).unwrap().into_iter().enumerate() {
                let log = sums.log_alpha[site] + sums.log_beta[site] + computed.losses[0];
                let expected = if computed.losses[0].is_finite() { log.exp() } else { 0.0 };
                prop_assert!((gamma - expected).abs() < 1e-12, "{gamma} {expected}");
            }
        }
    }
}

#[test]
fn a_long_lattice_is_accurate() {
    let (t, u) = (4000, 800);
    let mut noise = noise(1);
    let emissions: Vec<f64> = (0..2 * t * (u + 1)).map(|_| f64::from((-8.0 * noise()) as f32)).collect();
    let (computed, (loss, adjoints)) = run(t, u, &Topology::rnnt(), &emissions);
    assert!((computed.losses[0] - loss).abs() <= 1e-12 * loss, "{} {loss}", computed.losses[0]);
    let max_difference =
        computed.adjoints.iter().zip(&adjoints).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(max_difference < 1e-10, "{max_difference:e}");
    // The reference rounds relative to its log-sums. The visits of diagonals are a finer check:
    // every path visits each diagonal once.
    let lattices = Lattices::new(vec![t], vec![u]).unwrap();
    let mut visits = vec![0.0; t + u];
    for (site, gamma) in lattices.utterance_sites(0).zip(computed.occupancies(&lattices).unwrap()) {
        visits[site.frame + site.label] += gamma;
    }
    let max_visit_error = visits.iter().map(|v| (v - 1.0).abs()).fold(0.0, f64::max);
    assert!(max_visit_error < 1e-11, "{max_visit_error:e}");
    println!(
        "loss {loss}: adjoints differ by {max_difference:.1e}, visits of a diagonal from 1 by {max_visit_error:.1e}"
    );
}

#[test]
fn extreme_emissions_neither_overflow_nor_underflow() {
    let (t, u) = (4000, 30);
    for emission in [-1e5, -700.0, 5.0] {
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let emissions = vec![emission; lattices.num_sites() * 2];
        let out =
            forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default()).unwrap();
        // C(T+U-1, U) paths of T + U arcs.
        let log_paths: f64 = (1..=u).map(|i| ((t - 1 + i) as f64 / i as f64).ln()).sum();
        let expected = -emission * (t + u) as f64 - log_paths;
        assert!((out.losses[0] - expected).abs() < 1e-12 * expected.abs(), "{} {expected}", out.losses[0]);
        assert!((out.adjoints.iter().sum::<f64>() + (t + u) as f64).abs() < 1e-9);
    }
}

#[test]
fn results_do_not_depend_on_threads_or_batch() {
    let (frames, labels) = (vec![50, 3, 120, 1, 64, 17], vec![20, 40, 9, 0, 31, 17]);
    let lattices = Lattices::new(frames.clone(), labels.clone()).unwrap();
    for topology in topologies() {
        let mut noise = noise(7);
        let columns = topology.arcs().len();
        let emissions: Vec<f64> = (0..lattices.num_sites() * columns).map(|_| -9.0 * noise()).collect();
        let outcomes = [1, 2, 3, 8].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let call = || forward_backward(&lattices, &topology, &emissions, &Regularizers::default());
            pool.install(call).unwrap()
        });
        assert!(outcomes.iter().all(|outcome| outcome == &outcomes[0]));
        for b in 0..lattices.batch() {
            let single = Lattices::new(vec![frames[b]], vec![labels[b]]).unwrap();
            let range = lattices.site_range(b).start * columns..lattices.site_range(b).end * columns;
            let computed =
                forward_backward(&single, &topology, &emissions[range.clone()], &Regularizers::default());
            let computed = computed.unwrap();
            assert_eq!(computed.losses[0], outcomes[0].losses[b]);
            assert_eq!(computed.adjoints, outcomes[0].adjoints[range]);
        }
    }
}

#[test]
fn a_workspace_keeps_no_state() {
    let lattices = Lattices::new(vec![9, 30], vec![4, 12]).unwrap();
    let good: Vec<f64> = (0..lattices.num_sites() * 2).map(|i| -((i * 7 % 11) as f64) / 3.0).collect();
    let mut workspace = Workspace::new();
    let mut call = |emissions: &[f64]| {
        let (mut losses, mut adjoints) = (vec![0.0; 2], vec![f64::NAN; emissions.len()]);
        let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
        let outcome = workspace.forward_backward(
            &lattices,
            &topology,
            emissions,
            &regularizers,
            &mut losses,
            &mut adjoints,
        );
        outcome.map(|()| (losses, adjoints))
    };
    let first = call(&good).unwrap();
    for bad in [1e308, 1e285, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1e308, 700.0] {
        let _ = call(&vec![bad; good.len()]);
        assert_eq!(call(&good).unwrap(), first, "after {bad}");
    }
}
