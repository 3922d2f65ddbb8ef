//! Topologies whose arcs are sums of columns, and retained bands, against the sum over all paths.
use oracle::{
    differences::central,
    paths::{Arc, sum_over_paths},
};
use proptest::prelude::*;
use rnnt_dp::{Error, Lattices, Posterior, Regularisers, Site, Topology, forward_backward};

const DURATIONS: [usize; 4] = [0, 1, 2, 4];

/// A topology, and for each of its arcs the oracle's arc and the columns that it sums, with their label offsets.
struct Known {
    topology: Topology,
    arcs: Vec<(Arc, Vec<(usize, usize)>)>,
}

fn known() -> Vec<Known> {
    let arc = |frames, labels, may_end| Arc { frames, labels, column: 0, may_end };
    let new = |topology, arcs| Known { topology, arcs };
    let mut tdt = Vec::new();
    for (at, frames) in DURATIONS.into_iter().enumerate() {
        if frames > 0 {
            tdt.push((arc(frames, 0, true), vec![(0, 0), (2 + at, 0)]));
        }
        tdt.push((arc(frames, 1, false), vec![(1, 0), (2 + at, 0)]));
    }
    let (blank, label) = ((arc(1, 0, true), vec![(0, 0)]), (arc(0, 1, false), vec![(1, 0)]));
    vec![
        new(Topology::rnnt(), vec![blank.clone(), label.clone()]),
        new(Topology::modified(), vec![blank.clone(), (arc(1, 1, true), vec![(1, 0)])]),
        new(Topology::constrained(), vec![blank.clone(), (arc(1, 1, true), vec![(1, 0), (0, 1)])]),
        new(
            Topology::multi_blank(&[2, 3]).unwrap(),
            vec![blank, label, (arc(2, 0, true), vec![(2, 0)]), (arc(3, 0, true), vec![(3, 0)])],
        ),
        new(Topology::tdt(&DURATIONS).unwrap(), tdt),
    ]
}

/// Loss and occupancies of columns, path by path. Sites for which `kept` is false do not exist.
fn brute(
    t: usize,
    u: usize,
    known: &Known,
    emissions: &[f64],
    kept: impl Fn(usize, usize) -> bool,
) -> (f64, Vec<f64>) {
    let (columns, count) = (known.topology.columns(), known.arcs.len());
    let mut of_arcs = vec![f64::NEG_INFINITY; t * (u + 1) * count];
    let site = |frame: usize, label: usize| frame * (u + 1) + label;
    for frame in 0..t {
        for label in (0..=u).filter(|&label| kept(frame, label)) {
            for (i, (arc, parts)) in known.arcs.iter().enumerate() {
                let (to, on) = (frame + arc.frames, label + arc.labels);
                let inside = on <= u && (to >= t || kept(to, on));
                if inside && parts.iter().all(|&(_, further)| kept(frame, label + further)) {
                    let part = |&(column, further): &(usize, usize)| {
                        emissions[site(frame, label + further) * columns + column]
                    };
                    of_arcs[site(frame, label) * count + i] = parts.iter().map(part).sum();
                }
            }
        }
    }
    let arcs: Vec<Arc> =
        known.arcs.iter().enumerate().map(|(column, (arc, _))| Arc { column, ..*arc }).collect();
    let found = sum_over_paths(&of_arcs, t, u, count, &arcs).unwrap();
    let mut occupancies = vec![0.0; emissions.len()];
    for (at, occupancy) in found.occupancies.into_iter().enumerate().filter(|(_, o)| *o > 0.0) {
        for &(column, further) in &known.arcs[at % count].1 {
            occupancies[(at / count + further) * columns + column] += occupancy;
        }
    }
    (-found.log_likelihood, occupancies)
}

fn close(found: f64, want: f64) -> bool {
    found == want || (found - want).abs() < 1e-11 * (1.0 + want.abs())
}

fn run(lattices: &Lattices, topology: &Topology, emissions: &[f64]) -> Posterior {
    forward_backward(lattices, topology, emissions, &Regularisers::default()).unwrap()
}

fn noise(seed: u64, blocked: f64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(2) + 1;
    let mut unit = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    move || if unit() < blocked { f64::NEG_INFINITY } else { -6.0 * unit() }
}

proptest! {
    #[test]
    fn equals_the_sum_over_paths(t in 1usize..6, u in 0usize..4, seed: u64, blocked in prop_oneof![Just(0.0), Just(0.1)]) {
        for known in known() {
            let mut noise = noise(seed, blocked);
            let emissions: Vec<f64> =
                (0..t * (u + 1) * known.topology.columns()).map(|_| noise()).collect();
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let found = run(&lattices, &known.topology, &emissions);
            let (loss, occupancies) = brute(t, u, &known, &emissions, |_, label| label <= u);
            prop_assert!(close(found.losses[0], loss), "{:?} {loss}", found.losses);
            for (adjoint, occupancy) in found.adjoints.iter().zip(&occupancies) {
                prop_assert!((adjoint + occupancy).abs() < 1e-12, "{adjoint} {occupancy}");
            }
        }
    }

    #[test]
    fn adjoints_are_central_differences(t in 1usize..6, u in 0usize..4, seed: u64) {
        for known in known() {
            let mut noise = noise(seed, 0.0);
            let emissions: Vec<f64> =
                (0..t * (u + 1) * known.topology.columns()).map(|_| noise()).collect();
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let found = run(&lattices, &known.topology, &emissions);
            if found.losses[0].is_finite() {
                let loss = |e: &[f64]| Ok(run(&lattices, &known.topology, e).losses[0]);
                for (found, want) in found.adjoints.iter().zip(central(loss, &emissions).unwrap()) {
                    prop_assert!((found - want).abs() < 1e-7, "{found} {want}");
                }
            }
        }
    }

    /// Bands anywhere, so that many have no path; sums over the paths inside.
    #[test]
    fn bands_hold_the_paths_that_stay_inside(
        u in 0usize..4,
        bands in prop::collection::vec((0usize..4, 1usize..5), 1..6),
        seed: u64,
    ) {
        let t = bands.len();
        let bands: Vec<_> =
            bands.into_iter().map(|(low, wide)| low.min(u)..(low.min(u) + wide).min(u + 1)).collect();
        let lattices = Lattices::banded(vec![u], vec![bands.clone()]).unwrap();
        let kept = |frame: usize, label: usize| bands[frame].contains(&label);
        for known in known() {
            let columns = known.topology.columns();
            let mut noise = noise(seed, 0.0);
            let emissions: Vec<f64> = (0..t * (u + 1) * columns).map(|_| noise()).collect();
            let place = |s: Site| (s.frame * (u + 1) + s.label) * columns;
            let packed: Vec<f64> =
                lattices.sites_of(0).flat_map(|s| &emissions[place(s)..place(s) + columns]).copied().collect();
            let found = run(&lattices, &known.topology, &packed);
            let (loss, occupancies) = brute(t, u, &known, &emissions, kept);
            prop_assert!(close(found.losses[0], loss), "{:?} {loss}", found.losses);
            let full = run(&Lattices::new(vec![t], vec![u]).unwrap(), &known.topology, &emissions);
            prop_assert!(found.losses[0] >= full.losses[0] - 1e-12);
            for (adjoints, site) in found.adjoints.chunks(columns).zip(lattices.sites_of(0)) {
                for (adjoint, occupancy) in adjoints.iter().zip(&occupancies[place(site)..]) {
                    prop_assert!((adjoint + occupancy).abs() < 1e-11, "{adjoint} {occupancy}");
                }
            }
        }
    }

    #[test]
    fn whole_bands_are_the_full_lattice(t in 1usize..30, u in 0usize..20, seed: u64) {
        let (full, banded) =
            (Lattices::new(vec![t], vec![u]).unwrap(), Lattices::banded(vec![u], vec![vec![0..u + 1; t]]).unwrap());
        for known in known() {
            let mut noise = noise(seed, 0.02);
            let emissions: Vec<f64> = (0..full.sites() * known.topology.columns()).map(|_| noise()).collect();
            let regularisers = Regularisers { fastemit: 0.3, delay_penalty: 0.1, sigma: 0.05 };
            let run = |lattices| forward_backward(lattices, &known.topology, &emissions, &regularisers).unwrap();
            let (full, banded) = (run(&full), run(&banded));
            prop_assert!(close(banded.losses[0], full.losses[0]));
            for (a, b) in banded.adjoints.iter().zip(&full.adjoints) {
                prop_assert!((a - b).abs() < 1e-10, "{a} {b}");
            }
        }
    }

    /// A shift is a change of the emissions.
    #[test]
    fn penalties_shift_emissions(t in 1usize..7, u in 0usize..5, seed: u64, penalty in 0.0..0.5f64, sigma in 0.0..0.2f64) {
        let mut noise = noise(seed, 0.0);
        let lattices = Lattices::new(vec![t], vec![u]).unwrap();
        let emissions: Vec<f64> = (0..lattices.sites() * 2).map(|_| noise()).collect();
        let regularisers = Regularisers { delay_penalty: penalty, sigma, ..Regularisers::default() };
        let found = forward_backward(&lattices, &Topology::rnnt(), &emissions, &regularisers).unwrap();
        let shifted: Vec<f64> = emissions
            .chunks(2)
            .zip(lattices.sites_of(0))
            .flat_map(|(e, site)| {
                let early = (t as f32 - 1.0) / 2.0 - site.frame as f32;
                [e[0] - sigma, e[1] - sigma + f64::from(penalty as f32 * early)]
            })
            .collect();
        let want = run(&lattices, &Topology::rnnt(), &shifted);
        prop_assert!(close(found.losses[0], want.losses[0]));
        for (a, b) in found.adjoints.iter().zip(&want.adjoints) {
            prop_assert!((a - b).abs() < 1e-12);
        }
    }

    /// FastEmit scales what tokens that are labels get, and nothing else.
    #[test]
    fn fastemit_scales_labels(t in 1usize..7, u in 0usize..5, seed: u64, fastemit in 0.0..1.0f64) {
        for known in known() {
            let mut noise = noise(seed, 0.0);
            let lattices = Lattices::new(vec![t], vec![u]).unwrap();
            let columns = known.topology.columns();
            let emissions: Vec<f64> = (0..lattices.sites() * columns).map(|_| noise()).collect();
            let plain = run(&lattices, &known.topology, &emissions);
            let regularisers = Regularisers { fastemit, ..Regularisers::default() };
            let found = forward_backward(&lattices, &known.topology, &emissions, &regularisers).unwrap();
            prop_assert_eq!(&found.losses, &plain.losses);
            for (i, (found, plain)) in found.adjoints.iter().zip(&plain.adjoints).enumerate() {
                let factor = if i % columns == 1 { 1.0 + fastemit } else { 1.0 };
                prop_assert!((found - factor * plain).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn known_losses_come_back() {
    assert_eq!(Topology::multi_blank(&[]).unwrap(), Topology::rnnt());
    // Durations 0 and 1 where a label never takes 1: regular RNN-T, blanks with the probability of 1.
    let lattices = Lattices::new(vec![5], vec![3]).unwrap();
    let mut noise = noise(3, 0.0);
    let tokens: Vec<[f64; 2]> = (0..lattices.sites()).map(|_| [noise(), noise()]).collect();
    let plain: Vec<f64> = tokens.iter().flatten().copied().collect();
    let durations = |zero: f64, one: f64| -> Vec<f64> {
        tokens.iter().flat_map(|&[blank, label]| [blank, label, zero, one]).collect()
    };
    let topology = Topology::tdt(&[0, 1]).unwrap();
    let half = 0.5f64.ln();
    let found = run(&lattices, &topology, &durations(half, half)).losses[0];
    // The same as a topology of three arcs of its own.
    let arc = |frames, labels, may_end| rnnt_dp::Arc { frames, labels, may_end };
    let three = Topology::new(vec![arc(1, 0, true), arc(0, 1, false), arc(1, 1, false)]).unwrap();
    let arcs: Vec<f64> =
        tokens.iter().flat_map(|&[blank, label]| [blank, label, label].map(|e| e + half)).collect();
    assert!(close(found, run(&lattices, &three, &arcs).losses[0]));
    // One duration is no choice.
    let one = Topology::tdt(&[1]).unwrap();
    let columns: Vec<f64> = tokens.iter().flat_map(|&[blank, label]| [blank, label, 0.0]).collect();
    let modified = Topology::new(vec![arc(1, 0, true), arc(1, 1, false)]).unwrap();
    assert!(close(run(&lattices, &one, &columns).losses[0], run(&lattices, &modified, &plain).losses[0]));
}

#[test]
fn totals_out_of_reach_are_impossible() {
    // Steps of 2 and 4 frames never make 5.
    let topology = Topology::tdt(&[0, 2, 4]).unwrap();
    let lattices = Lattices::new(vec![5, 6], vec![1, 1]).unwrap();
    let emissions = vec![-1.0; lattices.sites() * 5];
    let found = run(&lattices, &topology, &emissions);
    assert!(found.losses[0] == f64::INFINITY && found.losses[1].is_finite());
    assert!(found.adjoints[..10 * 5].iter().all(|a| *a == 0.0));
    // A band that no path can follow.
    let lattices = Lattices::banded(vec![2], vec![vec![0..1, 2..3]]).unwrap();
    assert_eq!(run(&lattices, &Topology::rnnt(), &[-1.0; 4]).losses, [f64::INFINITY]);
    let lattices = Lattices::banded(vec![2], vec![vec![1..3, 1..3]]).unwrap();
    assert_eq!(run(&lattices, &Topology::rnnt(), &[-1.0; 8]).losses, [f64::INFINITY]);
}

#[test]
fn occupancies_sum_as_the_topology_demands() {
    let lattices = Lattices::new(vec![9], vec![3]).unwrap();
    for known in known() {
        let columns = known.topology.columns();
        let mut noise = noise(5, 0.0);
        let emissions: Vec<f64> = (0..lattices.sites() * columns).map(|_| noise()).collect();
        let found = run(&lattices, &known.topology, &emissions);
        let column = |c: usize| found.adjoints.chunks(columns).map(|row| -row[c]).sum::<f64>();
        // Every path emits each label once.
        assert!((column(1) - 3.0).abs() < 1e-12);
        if columns > 4 {
            // Every token has a duration, and their sum is T.
            let (count, sum) = DURATIONS.iter().enumerate().fold((0.0, 0.0), |(count, sum), (at, d)| {
                (count + column(2 + at), sum + *d as f64 * column(2 + at))
            });
            assert!((count - column(0) - column(1)).abs() < 1e-11 && (sum - 9.0).abs() < 1e-11);
        }
        let visits: f64 = found.occupancies(&lattices).unwrap().iter().sum();
        let tokens: f64 = (0..known.topology.tokens()).map(column).sum();
        assert!((visits - tokens).abs() < 1e-11);
    }
}

#[test]
fn bad_input_is_named() {
    assert_eq!(Topology::tdt(&[]), Err(Error::NoEnd));
    assert_eq!(Topology::tdt(&[0]), Err(Error::NoEnd));
    for twice in [Topology::tdt(&[0, 2, 1, 2]), Topology::multi_blank(&[2, 3, 2])] {
        assert_eq!(twice, Err(Error::Duration { expected: "each once", found: 2 }));
    }
    assert_eq!(
        Topology::multi_blank(&[2, 0]),
        Err(Error::Duration { expected: "at least 1 frame", found: 0 })
    );
    // Places that arcs lead to are added up, in every kind of build.
    let far = usize::MAX;
    for (topology, arc) in [(Topology::tdt(&[0, 1, far]), 1), (Topology::multi_blank(&[far]), 2)] {
        assert!(
            matches!(topology, Err(Error::Far { arc: found, frames, .. }) if found == arc && frames == far)
        );
    }
    let odd = rnnt_dp::Arc { frames: 0, labels: far, may_end: false };
    assert!(matches!(Topology::new(vec![odd]), Err(Error::Far { arc: 0, .. })));
    // Farther than the lattice, and no dearer for that.
    let long = Topology::tdt(&[1, u32::MAX as usize]).unwrap();
    let out = forward_backward(
        &Lattices::new(vec![2], vec![1]).unwrap(),
        &long,
        &[-1.0; 16],
        &Regularisers::default(),
    );
    assert!((out.unwrap().losses[0] - 4.0).abs() < 1e-12); // label and blank, a frame each
    let still = rnnt_dp::Arc { frames: 0, labels: 0, may_end: true };
    assert_eq!(Topology::new(vec![still]), Err(Error::Loop { arc: 0 }));
    let banded = |bands| Lattices::banded(vec![2], vec![bands]);
    assert!(matches!(banded(vec![0..2, 1..4]), Err(Error::Band { frame: 1, positions: 3, .. })));
    assert!(matches!(banded(vec![0..2, 1..1]), Err(Error::Band { frame: 1, .. })));
    assert_eq!(banded(vec![]), Err(Error::NoFrames { utterance: 0 }));
    let lattices = banded(vec![0..2, 1..3]).unwrap();
    let mut emissions = vec![-1.0; 8];
    emissions[6] = f64::NAN;
    let found = forward_backward(&lattices, &Topology::rnnt(), &emissions, &Regularisers::default());
    assert!(matches!(found, Err(Error::Emission { frame: 1, label: 2, arc: 0, .. })), "{found:?}");
    let bad = Regularisers { delay_penalty: f64::NAN, ..Regularisers::default() };
    let found = forward_backward(&lattices, &Topology::rnnt(), &[-1.0; 8], &bad);
    assert!(matches!(found, Err(Error::Regulariser { argument: "delay_penalty", .. })));
}
