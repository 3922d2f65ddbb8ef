//! Transducer losses of all topologies and bands compared with path sums.
//!
//! Other tests check gradients, regularizers, special cases and errors of topologies. `t`, `u`:
//! numbers of frames and labels.
use oracle::{
    differences::central_difference,
    paths::{PathArc, sum_over_paths},
};
use proptest::prelude::*;
use rnnt_dp::{Error, Lattices, Posterior, Regularizers, Site, Topology, forward_backward};

const DURATIONS: [usize; 4] = [0, 1, 2, 4];

/// A topology and its arcs.
struct Case {
    topology: Topology,
    arcs: Vec<CaseArc>,
}

/// An arc of the oracle with its emission terms: (column, label offset).
type CaseArc = (PathArc, Vec<(usize, usize)>);

/// Every kind of topology, with arcs independent of its description.
fn cases() -> Vec<Case> {
    let arc = |frames, labels, may_end| PathArc { frames, labels, column: 0, may_end };
    let case = |topology, arcs| Case { topology, arcs };
    let mut tdt = Vec::new();
    for (duration, frames) in DURATIONS.into_iter().enumerate() {
        if frames > 0 {
            tdt.push((arc(frames, 0, true), vec![(0, 0), (2 + duration, 0)]));
        }
        tdt.push((arc(frames, 1, false), vec![(1, 0), (2 + duration, 0)]));
    }
    let (blank, label) = ((arc(1, 0, true), vec![(0, 0)]), (arc(0, 1, false), vec![(1, 0)]));
    vec![
        case(Topology::rnnt(), vec![blank.clone(), label.clone()]),
        case(Topology::modified(), vec![blank.clone(), (arc(1, 1, true), vec![(1, 0)])]),
        case(Topology::constrained(), vec![blank.clone(), (arc(1, 1, true), vec![(1, 0), (0, 1)])]),
        case(
            Topology::multi_blank(&[2, 3]).unwrap(),
            vec![blank, label, (arc(2, 0, true), vec![(2, 0)]), (arc(3, 0, true), vec![(3, 0)])],
        ),
        case(Topology::tdt(&DURATIONS).unwrap(), tdt),
    ]
}

/// Loss and occupancies of columns, path by path; only sites with `is_retained` exist.
fn brute_force(
    t: usize,
    u: usize,
    case: &Case,
    emissions: &[f64],
    is_retained: impl Fn(usize, usize) -> bool,
) -> (f64, Vec<f64>) {
    let (columns, num_arcs) = (case.topology.num_columns(), case.arcs.len());
    let mut arc_emissions = vec![f64::NEG_INFINITY; t * (u + 1) * num_arcs];
    let site = |frame: usize, label: usize| frame * (u + 1) + label;
    for frame in 0..t {
        for label in (0..=u).filter(|&label| is_retained(frame, label)) {
            for (i, (arc, terms)) in case.arcs.iter().enumerate() {
                let (next_frame, next_label) = (frame + arc.frames, label + arc.labels);
                let is_inside = next_label <= u && (next_frame >= t || is_retained(next_frame, next_label));
                if is_inside && terms.iter().all(|&(_, offset)| is_retained(frame, label + offset)) {
                    let term = |&(column, offset): &(usize, usize)| {
                        emissions[site(frame, label + offset) * columns + column]
                    };
                    arc_emissions[site(frame, label) * num_arcs + i] = terms.iter().map(term).sum();
                }
            }
        }
    }
    let arcs: Vec<PathArc> =
        case.arcs.iter().enumerate().map(|(column, (arc, _))| PathArc { column, ..*arc }).collect();
    let computed = sum_over_paths(&arc_emissions, t, u, num_arcs, &arcs).unwrap();
    let mut occupancies = vec![0.0; emissions.len()];
    for (index, occupancy) in computed.occupancies.into_iter().enumerate().filter(|(_, o)| *o > 0.0) {
        for &(column, offset) in &case.arcs[index % num_arcs].1 {
            occupancies[(index / num_arcs + offset) * columns + column] += occupancy;
        }
    }
    (-computed.log_likelihood, occupancies)
}

fn is_close(computed: f64, expected: f64) -> bool {
    computed == expected || (computed - expected).abs() < 1e-11 * (1.0 + expected.abs())
}

/// Returns losses and adjoints without regularizers.
fn run(lattices: &Lattices, topology: &Topology, emissions: &[f64]) -> Posterior {
    forward_backward(lattices, topology, emissions, &Regularizers::default()).unwrap()
}

/// Returns a generator of emissions, a fraction of them blocked.
fn noise(seed: u64, blocked_fraction: f64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut unit = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    move || if unit() < blocked_fraction { f64::NEG_INFINITY } else { -6.0 * unit() }
}

proptest! {
    #[test]
    fn sums_over_paths_match_brute_force(
        t in 1usize..6,
        u in 0usize..4,
        seed: u64,
        blocked_fraction in prop_oneof![Just(0.0), Just(0.1)],
    ) {
        for case in cases() {
            let mut noise = noise(seed, blocked_fraction);
            let emissions: Vec<f64> =
                (0..t * (u + 1) * case.topology.num_columns()).map(|_| noise()).collect();
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let computed = run(&lattices, &case.topology, &emissions);
            let (loss, occupancies) = brute_force(t, u, &case, &emissions, |_, label| label <= u);
            prop_assert!(is_close(computed.losses[0], loss), "{:?} {loss}", computed.losses);
            for (adjoint, occupancy) in computed.adjoints.iter().zip(&occupancies) {
                prop_assert!((adjoint + occupancy).abs() < 1e-12, "{adjoint} {occupancy}");
            }
        }
    }

    #[test]
    fn adjoints_match_central_differences(t in 1usize..6, u in 0usize..4, seed: u64) {
        for case in cases() {
            let mut noise = noise(seed, 0.0);
            let emissions: Vec<f64> = (0..t * (u + 1) * case.topology.num_columns()).map(|_| noise()).collect();
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let computed = run(&lattices, &case.topology, &emissions);
            if computed.losses[0].is_finite() {
                let loss = |e: &[f64]| Ok(run(&lattices, &case.topology, e).losses[0]);
                for (computed, expected) in
                    computed.adjoints.iter().zip(central_difference(loss, &emissions).unwrap())
                {
                    prop_assert!((computed - expected).abs() < 1e-7, "{computed} {expected}");
                }
            }
        }
    }

    /// Random bands, many without a path; sums over the paths inside.
    #[test]
    fn sums_over_bands_match_brute_force(
        u in 0usize..4,
        bands in prop::collection::vec((0usize..4, 1usize..5), 1..6),
        seed: u64,
    ) {
        let t = bands.len();
        let bands: Vec<_> =
            bands.into_iter().map(|(low, wide)| low.min(u)..(low.min(u) + wide).min(u + 1)).collect();
        let lattices = Lattices::banded(vec![u], vec![bands.clone()]).unwrap();
        let is_retained = |frame: usize, label: usize| bands[frame].contains(&label);
        for case in cases() {
            let columns = case.topology.num_columns();
            let mut noise = noise(seed, 0.0);
            let emissions: Vec<f64> = (0..t * (u + 1) * columns).map(|_| noise()).collect();
            let offset_of_site = |s: Site| (s.frame * (u + 1) + s.label) * columns;
            let rows = lattices.utterance_sites(0).flat_map(|s| &emissions[offset_of_site(s)..][..columns]);
            let packed: Vec<f64> = rows.copied().collect();
            let computed = run(&lattices, &case.topology, &packed);
            let (loss, occupancies) = brute_force(t, u, &case, &emissions, is_retained);
            prop_assert!(is_close(computed.losses[0], loss), "{:?} {loss}", computed.losses);
            let full = run(&Lattices::new(vec![t], vec![u]).unwrap(), &case.topology, &emissions);
            prop_assert!(computed.losses[0] >= full.losses[0] - 1e-12);
            for (adjoints, site) in computed.adjoints.chunks(columns).zip(lattices.utterance_sites(0)) {
                for (adjoint, occupancy) in adjoints.iter().zip(&occupancies[offset_of_site(site)..]) {
                    prop_assert!((adjoint + occupancy).abs() < 1e-11, "{adjoint} {occupancy}");
                }
            }
        }
    }

    #[test]
    fn bands_of_all_positions_match_the_full_lattice(t in 1usize..30, u in 0usize..20, seed: u64) {
        let (full, banded) = (
            Lattices::new(vec![t], vec![u]).unwrap(),
            Lattices::banded(vec![u], vec![vec![0..u + 1; t]]).unwrap(),
        );
        for case in cases() {
            let mut noise = noise(seed, 0.02);
            let emissions: Vec<f64> = (0..full.num_sites() * case.topology.num_columns()).map(|_| noise()).collect();
            let regularizers = Regularizers { fastemit: 0.3, delay_penalty: 0.1, sigma: 0.05 };
            let run =
                |lattices| forward_backward(lattices, &case.topology, &emissions, &regularizers).unwrap();
            let (full, banded) = (run(&full), run(&banded));
            prop_assert!(is_close(banded.losses[0], full.losses[0]));
            for (a, b) in banded.adjoints.iter().zip(&full.adjoints) {
                prop_assert!((a - b).abs() < 1e-10, "{a} {b}");
            }
        }
    }

    /// Penalties are equivalent to shifted emissions.
    #[test]
    fn penalties_shift_emissions(
        t in 1usize..7,
        u in 0usize..5,
        seed: u64,
        penalty in 0.0..0.5f64,
        sigma in 0.0..0.2f64,
    ) {
        let mut noise = noise(seed, 0.0);
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let emissions: Vec<f64> = (0..lattices.num_sites() * 2).map(|_| noise()).collect();
        let regularizers = Regularizers { delay_penalty: penalty, sigma, ..Regularizers::default() };
        let computed = forward_backward(&lattices, &Topology::rnnt(), &emissions, &regularizers).unwrap();
        let shifted: Vec<f64> = emissions
            .chunks(2)
            .zip(lattices.utterance_sites(0))
            .flat_map(|(e, site)| {
                let early = (t as f32 - 1.0) / 2.0 - site.frame as f32;
                [e[0] - sigma, e[1] - sigma + f64::from(penalty as f32 * early)]
            })
            .collect();
        let expected = run(&lattices, &Topology::rnnt(), &shifted);
        prop_assert!(is_close(computed.losses[0], expected.losses[0]));
        for (a, b) in computed.adjoints.iter().zip(&expected.adjoints) {
            prop_assert!((a - b).abs() < 1e-12);
        }
    }

    /// FastEmit scales the adjoints of label tokens and nothing else.
    #[test]
    fn fastemit_scales_labels(t in 1usize..7, u in 0usize..5, seed: u64, fastemit in 0.0..1.0f64) {
        for case in cases() {
            let mut noise = noise(seed, 0.0);
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let columns = case.topology.num_columns();
            let emissions: Vec<f64> = (0..lattices.num_sites() * columns).map(|_| noise()).collect();
            let plain = run(&lattices, &case.topology, &emissions);
            let regularizers = Regularizers { fastemit, ..Regularizers::default() };
            let computed = forward_backward(&lattices, &case.topology, &emissions, &regularizers).unwrap();
            prop_assert_eq!(&computed.losses, &plain.losses);
            for (i, (computed, plain)) in computed.adjoints.iter().zip(&plain.adjoints).enumerate() {
                let factor = if i % columns == 1 { 1.0 + fastemit } else { 1.0 };
                prop_assert!((computed - factor * plain).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn special_cases_have_equal_losses() {
    assert_eq!(Topology::multi_blank(&[]).unwrap(), Topology::rnnt());
    // Durations 0 and 1, where a label never has duration 1: regular RNN-T, with blanks of
    // probability 1.
    let lattices = Lattices::new(vec![5], vec![3]).unwrap();
    let mut noise = noise(3, 0.0);
    let tokens: Vec<[f64; 2]> = (0..lattices.num_sites()).map(|_| [noise(), noise()]).collect();
    let plain: Vec<f64> = tokens.iter().flatten().copied().collect();
    let durations = |zero: f64, one: f64| -> Vec<f64> {
        tokens.iter().flat_map(|&[blank, label]| [blank, label, zero, one]).collect()
    };
    let topology = Topology::tdt(&[0, 1]).unwrap();
    let half = 0.5f64.ln();
    let computed = run(&lattices, &topology, &durations(half, half)).losses[0];
    // The same as a custom topology of three arcs.
    let arc = |frames, labels, may_end| rnnt_dp::TopologyArc { frames, labels, may_end };
    let three_arcs = Topology::new(vec![arc(1, 0, true), arc(0, 1, false), arc(1, 1, false)]).unwrap();
    let arcs: Vec<f64> =
        tokens.iter().flat_map(|&[blank, label]| [blank, label, label].map(|e| e + half)).collect();
    assert!(is_close(computed, run(&lattices, &three_arcs, &arcs).losses[0]));
    // A single duration.
    let one_duration = Topology::tdt(&[1]).unwrap();
    let columns: Vec<f64> = tokens.iter().flat_map(|&[blank, label]| [blank, label, 0.0]).collect();
    let modified = Topology::new(vec![arc(1, 0, true), arc(1, 1, false)]).unwrap();
    assert!(is_close(
        run(&lattices, &one_duration, &columns).losses[0],
        run(&lattices, &modified, &plain).losses[0]
    ));
}

#[test]
fn unreachable_ends_are_impossible() {
    // Steps of 2 and 4 frames never sum to 5.
    let topology = Topology::tdt(&[0, 2, 4]).unwrap();
    let lattices = Lattices::new(vec![5, 6], vec![1, 1]).unwrap();
    let emissions = vec![-1.0; lattices.num_sites() * 5];
    let computed = run(&lattices, &topology, &emissions);
    assert!(computed.losses[0] == f64::INFINITY && computed.losses[1].is_finite());
    assert!(computed.adjoints[..10 * 5].iter().all(|a| *a == 0.0));
    // A band that no path can follow.
    let lattices = Lattices::banded(vec![2], vec![vec![0..1, 2..3]]).unwrap();
    assert_eq!(run(&lattices, &Topology::rnnt(), &[-1.0; 4]).losses, [f64::INFINITY]);
    let lattices = Lattices::banded(vec![2], vec![vec![1..3, 1..3]]).unwrap();
    assert_eq!(run(&lattices, &Topology::rnnt(), &[-1.0; 8]).losses, [f64::INFINITY]);
}

#[test]
fn occupancies_sum_to_the_numbers_of_tokens() {
    let lattices = Lattices::new(vec![9], vec![3]).unwrap();
    for case in cases() {
        let columns = case.topology.num_columns();
        let mut noise = noise(5, 0.0);
        let emissions: Vec<f64> = (0..lattices.num_sites() * columns).map(|_| noise()).collect();
        let computed = run(&lattices, &case.topology, &emissions);
        let column = |c: usize| computed.adjoints.chunks(columns).map(|row| -row[c]).sum::<f64>();
        // Every path emits each label once.
        assert!((column(1) - 3.0).abs() < 1e-12);
        if columns > 4 {
            // Every token has a duration, and their sum is T.
            let (count, sum) = DURATIONS.iter().enumerate().fold((0.0, 0.0), |(count, sum), (index, d)| {
                (count + column(2 + index), sum + *d as f64 * column(2 + index))
            });
            assert!((count - column(0) - column(1)).abs() < 1e-11 && (sum - 9.0).abs() < 1e-11);
        }
        let visits: f64 = computed.occupancies(&lattices).unwrap().iter().sum();
        let tokens: f64 = (0..case.topology.num_tokens()).map(column).sum();
        assert!((visits - tokens).abs() < 1e-11);
    }
}

#[test]
fn errors_name_the_invalid_argument() {
    assert_eq!(Topology::tdt(&[]), Err(Error::NoFinalDuration));
    assert_eq!(Topology::tdt(&[0]), Err(Error::NoFinalDuration));
    for repeated in [Topology::tdt(&[0, 2, 1, 2]), Topology::multi_blank(&[2, 3, 2])] {
        assert_eq!(repeated, Err(Error::Duration { expected: "distinct durations", found: 2 }));
    }
    assert_eq!(
        Topology::multi_blank(&[2, 0]),
        Err(Error::Duration { expected: "at least 1 frame", found: 0 })
    );
    // Target indices are sums, in every kind of build.
    let huge = usize::MAX;
    for (topology, arc) in [(Topology::tdt(&[0, 1, huge]), 1), (Topology::multi_blank(&[huge]), 2)] {
        assert!(
            matches!(topology, Err(Error::ArcTooLong { arc: computed, frames, .. }) if computed == arc && frames == huge)
        );
    }
    let long_arc = rnnt_dp::TopologyArc { frames: 0, labels: huge, may_end: false };
    assert!(matches!(Topology::new(vec![long_arc]), Err(Error::ArcTooLong { arc: 0, .. })));
    // An arc longer than the lattice does not change the cost of others.
    let long_duration = Topology::tdt(&[1, u32::MAX as usize]).unwrap();
    let out = forward_backward(
        &Lattices::new(vec![2], vec![1]).unwrap(),
        &long_duration,
        &[-1.0; 16],
        &Regularizers::default(),
    );
    assert!((out.unwrap().losses[0] - 4.0).abs() < 1e-12); // label and blank, a frame each
    let self_loop = rnnt_dp::TopologyArc { frames: 0, labels: 0, may_end: true };
    assert_eq!(Topology::new(vec![self_loop]), Err(Error::SelfLoop { arc: 0 }));
    let banded = |bands| Lattices::banded(vec![2], vec![bands]);
    assert!(matches!(banded(vec![0..2, 1..4]), Err(Error::Band { frame: 1, positions: 3, .. })));
    assert!(matches!(banded(vec![0..2, 1..1]), Err(Error::Band { frame: 1, .. })));
    assert_eq!(banded(vec![]), Err(Error::NoFrames { utterance: 0 }));
    let lattices = banded(vec![0..2, 1..3]).unwrap();
    let mut emissions = vec![-1.0; 8];
    emissions[6] = f64::NAN;
    let computed = forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularizers::default());
    assert!(matches!(computed, Err(Error::Emission { frame: 1, label: 2, arc: 0, .. })), "{computed:?}");
    let bad = Regularizers { delay_penalty: f64::NAN, ..Regularizers::default() };
    let computed = forward_backward(&lattices, &Topology::rnnt(), &[-1.0; 8], &bad);
    assert!(matches!(computed, Err(Error::Regularizer { argument: "delay_penalty", .. })));
}
