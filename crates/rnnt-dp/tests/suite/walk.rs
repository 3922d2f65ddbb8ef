//! Semiring sums over lattice paths compared with path sums and losses.
//!
//! Sums from the start and from the end must be equal, and semirings must satisfy their laws. `t`,
//! `u`: numbers of frames and labels.
use oracle::paths::sum_over_paths;
use proptest::prelude::*;
use rnnt_dp::{
    Lattices, Regularizers, Topology, TopologyArc, best_path, forward_backward,
    semiring::{
        Average, AverageWeight, Cartesian, Count, Expectation, Log, LogLogExpectation, LogToProbability,
        Probability, Semiring, Tropical,
    },
    walk::{self, Graph, Lattice, Transition},
};

/// Random arcs, or a named topology.
fn topologies() -> impl Strategy<Value = Topology> {
    let arc = (0usize..4, 0usize..3, any::<bool>())
        .prop_filter("the arc moves", |(frames, labels, _)| frames + labels > 0)
        .prop_map(|(frames, labels, may_end)| TopologyArc { frames, labels, may_end });
    let names = ["regular", "modified", "constrained", "regular+2,3", "modified+2", "tdt:0,1,3", "tdt:1,2"];
    prop_oneof![
        prop::collection::vec(arc, 1..5).prop_map(|arcs| Topology::new(arcs).unwrap()),
        prop::sample::select(names.to_vec()).prop_map(|name| name.parse().unwrap()),
    ]
}

/// A full lattice, or one with a band at each frame.
fn lattices() -> impl Strategy<Value = Lattices> {
    let band = |u: usize| (0..=u, 1..=u + 2).prop_map(move |(low, len)| low..(low + len).min(u + 1));
    (1usize..6, 0usize..4).prop_flat_map(move |(t, u)| {
        prop::option::of(prop::collection::vec(band(u), t)).prop_map(move |bands| match bands {
            None => Lattices::new(vec![t], vec![u]).unwrap(),
            Some(bands) => Lattices::banded(vec![u], vec![bands]).unwrap(),
        })
    })
}

/// Random emissions, more of them blocked for a larger fraction.
fn emissions(count: usize, seed: u64, blocked_fraction: f64) -> Vec<f64> {
    oracle::noise::normal(seed, 3, count, 1.5)
        .into_iter()
        .map(|e| if e < -4.0 * (1.0 - blocked_fraction) { f64::NEG_INFINITY } else { e - 1.0 })
        .collect()
}

/// Returns the sum over all paths, computed from either end.
fn total<S: Semiring>(
    graph: &impl Graph,
    weight: impl Fn(&Transition) -> S::Weight,
    is_equal: impl Fn(S::Weight, S::Weight) -> bool,
) -> S::Weight {
    let (mut alpha, mut beta) = (vec![S::ZERO; graph.states()], vec![S::ONE; graph.states()]);
    let from_start = walk::forward::<S, _>(graph, &weight, &mut alpha);
    walk::backward::<S, _>(graph, &weight, &mut beta);
    let from_end = graph.start().map_or(S::ZERO, |start| beta[start]);
    assert!(is_equal(from_start, from_end), "forward and backward sums differ");
    from_end
}

fn is_near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() < 1e-10 * (1.0 + b.abs())
}

fn is_near_mean(a: AverageWeight, b: AverageWeight) -> bool {
    is_near(a.log_prob, b.log_prob) && is_near(a.value, b.value)
}

proptest! {
    /// Sum, number and best of all paths of a plain topology.
    #[test]
    fn sums_over_paths_match_brute_force(
        t in 1usize..5,
        u in 0usize..4,
        topology in topologies(),
        seed: u64,
        blocked_fraction in 0.0..0.8f64,
    ) {
        prop_assume!(topology.is_plain());
        let arcs = topology.arcs();
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let emissions = emissions(lattices.num_sites() * arcs.len(), seed, blocked_fraction);
        let column = |(column, arc): (usize, &TopologyArc)| oracle::paths::PathArc {
            frames: arc.frames,
            labels: arc.labels,
            column,
            may_end: arc.may_end,
        };
        let path_arcs: Vec<_> = arcs.iter().enumerate().map(column).collect();
        let expected = sum_over_paths(&emissions, t, u, arcs.len(), &path_arcs).unwrap();
        let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
        let log = |arc: &Transition| arc.log_prob;
        prop_assert!(is_near(total::<Log>(&lattice, log, is_near), expected.log_likelihood));
        let real = total::<Probability>(&lattice, |arc| arc.log_prob.exp(), is_near);
        prop_assert!(is_near(real.ln(), expected.log_likelihood));
        prop_assert_eq!(total::<Count>(&lattice, |_| 1, |a, b| a == b), expected.count as u64);
        let best = &best_path(&lattices, &topology, &emissions).unwrap()[0];
        prop_assert_eq!(total::<Tropical>(&lattice, log, is_near), best.log_prob);
        prop_assert!(
            is_near(best.steps.iter().map(|step| step.log_prob).sum::<f64>(), best.log_prob)
                || best.steps.is_empty()
        );
    }

    /// Loss, and a mean over all paths from the adjoints.
    #[test]
    fn forward_backward_matches_the_walk_in_the_log_semiring(
        lattices in lattices(), topology in topologies(), seed: u64, blocked_fraction in 0.0..0.8f64,
    ) {
        let emissions = emissions(lattices.num_sites() * topology.num_columns(), seed, blocked_fraction);
        let computed = forward_backward(&lattices, &topology, &emissions, &Regularizers::default()).unwrap();
        let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
        // The value of an arc is the sum of a value for each of its columns.
        let value = |site: usize, column: usize| ((site * 7 + column * 3) % 5) as f64 - 1.5;
        let arc_weight = |arc: &Transition| {
            let source = lattice.site(arc.source);
            let values = topology.emission_terms(arc.arc).iter().map(|term| {
                let term_site = rnnt_dp::Site { label: source.label + term.label_offset, ..source };
                value(lattices.site_index(0, term_site).unwrap_or(0), term.column)
            });
            AverageWeight { log_prob: arc.log_prob, value: values.sum() }
        };
        let mean = total::<Average>(&lattice, arc_weight, is_near_mean);
        prop_assert!(is_near(-mean.log_prob, computed.losses[0]), "{mean:?} {:?}", computed.losses);
        let columns = topology.num_columns();
        let expected: f64 =
            computed.adjoints.iter().enumerate().map(|(i, a)| -a * value(i / columns, i % columns)).sum();
        if computed.losses[0].is_finite() {
            prop_assert!((mean.value - expected).abs() < 1e-9, "{mean:?} {expected}");
        }
    }

    /// The arcs of all states, concatenated, are the arcs of the graph.
    #[test]
    fn arcs_are_ordered_by_their_states(lattices in lattices(), topology in topologies(), seed: u64) {
        let emissions = emissions(lattices.num_sites() * topology.num_columns(), seed, 0.0);
        let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
        let all_arcs: Vec<_> = lattice.arcs().collect();
        let concatenated: Vec<_> = (0..lattice.states()).flat_map(|state| lattice.arcs_from(state)).collect();
        prop_assert_eq!(&all_arcs, &concatenated);
        prop_assert!(all_arcs.iter().all(|arc| arc.target.is_none_or(|to| to > arc.source && to < lattice.states())));
        let mut reversed: Vec<_> = lattice.arcs().rev().collect();
        reversed.reverse();
        prop_assert_eq!(all_arcs, reversed);
        for (state, site) in lattices.utterance_sites(0).enumerate() {
            prop_assert_eq!(lattices.site(0, state), site);
        }
    }

    #[test]
    fn semirings_satisfy_their_laws(a in weights(), b in weights(), c in weights()) {
        check_laws::<Log>([a, b, c], is_near);
        check_laws::<Tropical>([a, b, c], is_near);
        check_laws::<Probability>([a, b, c].map(f64::exp), is_near);
        check_laws::<Count>([a, b, c].map(|x| (x.abs() * 3.0).min(1e6) as u64), |a, b| a == b);
        let mean = |log_prob: f64, value: f64| AverageWeight {
            log_prob,
            value: if log_prob > f64::NEG_INFINITY { value } else { 0.0 },
        };
        let is_equal = |a: AverageWeight, b: AverageWeight| {
            is_near(a.log_prob, b.log_prob) && (a.log_prob == f64::NEG_INFINITY || is_near(a.value, b.value))
        };
        check_laws::<Average>([mean(a, b.max(-9.0)), mean(b, c.max(-9.0)), mean(c, a.max(-9.0))], is_equal);
        let pairs = [(a, b), (b, c), (c, a)];
        let near_pair = |a: (f64, f64), b: (f64, f64)| is_near(a.0, b.0) && is_near(a.1, b.1);
        check_laws::<Cartesian<Log, Tropical>>(pairs, near_pair);
        check_laws::<LogLogExpectation>(pairs.map(|(w, v)| LogLogExpectation::weighted(w, v)), near_pair);
        type Signed = Expectation<Log, Probability, LogToProbability>;
        check_laws::<Signed>(pairs.map(|(w, v)| Signed::weighted(w, v.max(-9.0))), near_pair);
    }
}

fn weights() -> impl Strategy<Value = f64> {
    prop_oneof![6 => -8.0..3.0f64, 1 => Just(f64::NEG_INFINITY), 1 => Just(0.0)]
}

/// Checks identities, commutativity, associativity and distributivity.
fn check_laws<S: Semiring>([a, b, c]: [S::Weight; 3], is_equal: impl Fn(S::Weight, S::Weight) -> bool) {
    let (plus, times) = (S::plus, S::times);
    assert!(is_equal(plus(S::ZERO, a), a) && is_equal(plus(a, S::ZERO), a));
    assert!(is_equal(times(S::ONE, a), a) && is_equal(times(a, S::ONE), a));
    assert!(is_equal(times(S::ZERO, a), S::ZERO));
    assert!(is_equal(plus(a, b), plus(b, a)));
    assert!(is_equal(plus(plus(a, b), c), plus(a, plus(b, c))));
    assert!(is_equal(times(times(a, b), c), times(a, times(b, c))));
    assert!(is_equal(times(a, plus(b, c)), plus(times(a, b), times(a, c))));
}

/// Path counts above the maximum of `u64` saturate.
#[test]
fn counts_saturate() {
    let (topology, lattices) = (Topology::rnnt(), Lattices::new(vec![200], vec![200]).unwrap());
    let emissions = vec![-1.0; lattices.num_sites() * 2];
    let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
    assert_eq!(total::<Count>(&lattice, |_| 1, |a, b| a == b), u64::MAX);
}
