//! The arc walk in every semiring: against the sum over all paths, one by one, against the scaled recursions, and by its laws.
use oracle::paths::sum_over_paths;
use proptest::prelude::*;
use rnnt_dp::{
    Arc, Lattices, Regularisers, Topology, best_path, forward_backward,
    semiring::{
        Average, Cartesian, Count, Expectation, Exponential, Log, LogLogExpectation, Mean, Probability,
        Semiring, Tropical,
    },
    walk::{self, Graph, Lattice, Transition},
};

/// Arcs of any kind, or a topology that has a name.
fn topologies() -> impl Strategy<Value = Topology> {
    let arc = (0usize..4, 0usize..3, any::<bool>())
        .prop_filter("it moves", |(frames, labels, _)| frames + labels > 0)
        .prop_map(|(frames, labels, may_end)| Arc { frames, labels, may_end });
    let names = ["regular", "modified", "constrained", "regular+2,3", "modified+2", "tdt:0,1,3", "tdt:1,2"];
    prop_oneof![
        prop::collection::vec(arc, 1..5).prop_map(|arcs| Topology::new(arcs).unwrap()),
        prop::sample::select(names.to_vec()).prop_map(|name| name.parse().unwrap()),
    ]
}

/// Full, or a band at each frame.
fn lattices() -> impl Strategy<Value = Lattices> {
    let band = |u: usize| (0..=u, 1..=u + 2).prop_map(move |(low, len)| low..(low + len).min(u + 1));
    (1usize..6, 0usize..4).prop_flat_map(move |(t, u)| {
        prop::option::of(prop::collection::vec(band(u), t)).prop_map(move |bands| match bands {
            None => Lattices::new(vec![t], vec![u]).unwrap(),
            Some(bands) => Lattices::banded(vec![u], vec![bands]).unwrap(),
        })
    })
}

fn emissions(count: usize, seed: u64, blocked: f64) -> Vec<f64> {
    oracle::noise::normal(seed, 3, count, 1.5)
        .into_iter()
        .map(|e| if e < -4.0 * (1.0 - blocked) { f64::NEG_INFINITY } else { e - 1.0 })
        .collect()
}

/// The sum over all paths from either end; both must be the same.
fn total<S: Semiring>(
    graph: &impl Graph,
    weigh: impl Fn(&Transition) -> S::Weight,
    same: impl Fn(S::Weight, S::Weight) -> bool,
) -> S::Weight {
    let (mut alpha, mut beta) = (vec![S::ZERO; graph.states()], vec![S::ONE; graph.states()]);
    let from_start = walk::forward::<S, _>(graph, &weigh, &mut alpha);
    walk::backward::<S, _>(graph, &weigh, &mut beta);
    let from_end = graph.start().map_or(S::ZERO, |start| beta[start]);
    assert!(same(from_start, from_end), "the directions differ");
    from_end
}

fn near(a: f64, b: f64) -> bool {
    a == b || (a - b).abs() < 1e-10 * (1.0 + b.abs())
}

fn near_mean(a: Mean, b: Mean) -> bool {
    near(a.log_prob, b.log_prob) && near(a.value, b.value)
}

proptest! {
    /// Sum, number and best of the paths of whole lattices whose arcs are columns, by their definition.
    #[test]
    fn equals_the_sum_over_paths(t in 1usize..5, u in 0usize..4, topology in topologies(), seed: u64, blocked in 0.0..0.8f64) {
        prop_assume!(topology.is_plain());
        let arcs = topology.arcs();
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let emissions = emissions(lattices.sites() * arcs.len(), seed, blocked);
        let column = |(column, arc): (usize, &Arc)| {
            oracle::paths::Arc { frames: arc.frames, labels: arc.labels, column, may_end: arc.may_end }
        };
        let all: Vec<_> = arcs.iter().enumerate().map(column).collect();
        let want = sum_over_paths(&emissions, t, u, arcs.len(), &all).unwrap();
        let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
        let log = |arc: &Transition| arc.log_prob;
        prop_assert!(near(total::<Log>(&lattice, log, near), want.log_likelihood));
        let real = total::<Probability>(&lattice, |arc| arc.log_prob.exp(), near);
        prop_assert!(near(real.ln(), want.log_likelihood));
        prop_assert_eq!(total::<Count>(&lattice, |_| 1, |a, b| a == b), want.count as u64);
        let best = &best_path(&lattices, &topology, &emissions).unwrap()[0];
        prop_assert_eq!(total::<Tropical>(&lattice, log, near), best.log_prob);
        prop_assert!(near(best.steps.iter().map(|step| step.log_prob).sum::<f64>(), best.log_prob) || best.steps.is_empty());
    }

    /// The scaled kernel and bands, against the walk: the loss, and a mean over all paths, which adjoints tell too.
    #[test]
    fn forward_backward_is_the_walk_in_the_log_semiring(
        lattices in lattices(), topology in topologies(), seed: u64, blocked in 0.0..0.8f64,
    ) {
        let emissions = emissions(lattices.sites() * topology.columns(), seed, blocked);
        let found = forward_backward(&lattices, &topology, &emissions, &Regularisers::default()).unwrap();
        let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
        // What an arc is worth: of the columns that it is the sum of, something for each.
        let worth = |site: usize, column: usize| ((site * 7 + column * 3) % 5) as f64 - 1.5;
        let of_arc = |arc: &Transition| {
            let at = lattice.site(arc.from);
            let each = topology.parts(arc.arc).iter().map(|part| {
                let further = rnnt_dp::Site { label: at.label + part.labels, ..at };
                worth(lattices.place(0, further).unwrap_or(0), part.column)
            });
            Mean { log_prob: arc.log_prob, value: each.sum() }
        };
        let mean = total::<Average>(&lattice, of_arc, near_mean);
        prop_assert!(near(-mean.log_prob, found.losses[0]), "{mean:?} {:?}", found.losses);
        let columns = topology.columns();
        let expected: f64 = found.adjoints.iter().enumerate().map(|(i, a)| -a * worth(i / columns, i % columns)).sum();
        if found.losses[0].is_finite() {
            prop_assert!((mean.value - expected).abs() < 1e-9, "{mean:?} {expected}");
        }
    }

    /// The arcs of each state are those of all, in their order, and lead on.
    #[test]
    fn arcs_leave_their_states_in_order(lattices in lattices(), topology in topologies(), seed: u64) {
        let emissions = emissions(lattices.sites() * topology.columns(), seed, 0.0);
        let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
        let all: Vec<_> = lattice.arcs().collect();
        let each: Vec<_> = (0..lattice.states()).flat_map(|state| lattice.leaving(state)).collect();
        prop_assert_eq!(&all, &each);
        prop_assert!(all.iter().all(|arc| arc.to.is_none_or(|to| to > arc.from && to < lattice.states())));
        let mut back: Vec<_> = lattice.arcs().rev().collect();
        back.reverse();
        prop_assert_eq!(all, back);
        for (state, site) in lattices.sites_of(0).enumerate() {
            prop_assert_eq!(lattices.site(0, state), site);
        }
    }

    #[test]
    fn semirings_keep_their_laws(a in weights(), b in weights(), c in weights()) {
        laws::<Log>([a, b, c], near);
        laws::<Tropical>([a, b, c], near);
        laws::<Probability>([a, b, c].map(f64::exp), near);
        laws::<Count>([a, b, c].map(|x| (x.abs() * 3.0).min(1e6) as u64), |a, b| a == b);
        let mean = |log_prob: f64, value: f64| Mean { log_prob, value: if log_prob > f64::NEG_INFINITY { value } else { 0.0 } };
        let same = |a: Mean, b: Mean| near(a.log_prob, b.log_prob) && (a.log_prob == f64::NEG_INFINITY || near(a.value, b.value));
        laws::<Average>([mean(a, b.max(-9.0)), mean(b, c.max(-9.0)), mean(c, a.max(-9.0))], same);
        let pairs = [(a, b), (b, c), (c, a)];
        let near_pair = |a: (f64, f64), b: (f64, f64)| near(a.0, b.0) && near(a.1, b.1);
        laws::<Cartesian<Log, Tropical>>(pairs, near_pair);
        laws::<LogLogExpectation>(pairs.map(|(w, v)| LogLogExpectation::weighted(w, v)), near_pair);
        type Signed = Expectation<Log, Probability, Exponential>;
        laws::<Signed>(pairs.map(|(w, v)| Signed::weighted(w, v.max(-9.0))), near_pair);
    }
}

fn weights() -> impl Strategy<Value = f64> {
    prop_oneof![6 => -8.0..3.0f64, 1 => Just(f64::NEG_INFINITY), 1 => Just(0.0)]
}

fn laws<S: Semiring>([a, b, c]: [S::Weight; 3], same: impl Fn(S::Weight, S::Weight) -> bool) {
    let (plus, times) = (S::plus, S::times);
    assert!(same(plus(S::ZERO, a), a) && same(plus(a, S::ZERO), a));
    assert!(same(times(S::ONE, a), a) && same(times(a, S::ONE), a));
    assert!(same(times(S::ZERO, a), S::ZERO));
    assert!(same(plus(a, b), plus(b, a)));
    assert!(same(plus(plus(a, b), c), plus(a, plus(b, c))));
    assert!(same(times(times(a, b), c), times(a, times(b, c))));
    assert!(same(times(a, plus(b, c)), plus(times(a, b), times(a, c))));
}

/// More paths than `u64` counts are as many as it counts.
#[test]
fn counts_saturate() {
    let (topology, lattices) = (Topology::rnnt(), Lattices::new(vec![200], vec![200]).unwrap());
    let emissions = vec![-1.0; lattices.sites() * 2];
    let lattice = Lattice::new(&lattices, &topology, &emissions, 0).unwrap();
    assert_eq!(total::<Count>(&lattice, |_| 1, |a, b| a == b), u64::MAX);
}
