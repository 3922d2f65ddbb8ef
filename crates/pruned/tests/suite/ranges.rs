//! Pruning ranges of the pruned transducer: invariants, ties, and that they keep a path.
use oracle::noise;
use proptest::prelude::*;
use pruned::{Error, Ranges};
use rnnt_dp::{Lattices, Topology, TopologyKind};

/// Returns all topologies that pruning supports.
fn topologies() -> [Topology; 3] {
    [Topology::rnnt(), Topology::modified(), Topology::constrained()]
}

/// Searches for a path with all sites inside the bands.
fn keeps_a_path(ranges: &Ranges, frames: usize, labels: usize, kind: TopologyKind) -> bool {
    let is_kept = |t: usize, u: usize| t == frames || ranges.band(0, t).contains(&u);
    let mut is_reachable = vec![vec![false; labels + 1]; frames + 1];
    is_reachable[0][0] = is_kept(0, 0);
    for t in 0..frames {
        for u in 0..=labels {
            if !is_reachable[t][u] {
                continue;
            }
            // The end is only (T, U).
            is_reachable[t + 1][u] |= is_kept(t + 1, u) && (t + 1 < frames || u == labels);
            if u < labels {
                match kind {
                    TopologyKind::Regular => is_reachable[t][u + 1] |= is_kept(t, u + 1),
                    // The label arc reads the blank of (t, u + 1).
                    TopologyKind::Constrained if !is_kept(t, u + 1) => {}
                    _ => {
                        is_reachable[t + 1][u + 1] |=
                            is_kept(t + 1, u + 1) && (t + 1 < frames || u + 1 == labels)
                    }
                }
            }
        }
    }
    is_reachable[frames][labels]
}

/// Returns arbitrary occupancies, which are no posteriors.
fn random_occupancies(seed: u64, frames: usize, labels: usize, levels: u32) -> Vec<f64> {
    let values = noise::integers(seed, 7, 2 * frames * (labels + 1), levels);
    values.into_iter().map(|value| f64::from(value) / f64::from(levels)).collect()
}

proptest! {
    #[test]
    fn bands_are_sound(seed in 0u64..10_000, frames in 1usize..12, labels in 0usize..30, s_range in 1usize..8,
        levels in 1u32..20) {
        let lattices = Lattices::new(vec![frames], vec![labels]).unwrap();
        for topology in topologies() {
            let occupancies = random_occupancies(seed, frames, labels, levels);
            let ranges = match Ranges::new(&occupancies, &lattices, &topology, s_range) {
                Ok(ranges) => ranges,
                Err(error) => {
                    prop_assert!(s_range == 1 && topology.kind() != TopologyKind::Modified, "{error}");
                    continue;
                }
            };
            let (starts, width) = (ranges.starts(0), ranges.width(0));
            prop_assert_eq!(starts.len(), frames);
            prop_assert_eq!(ranges.sites(), frames * width);
            prop_assert!(width >= s_range.min(labels + 1) && width <= labels + 1);
            prop_assert_eq!(starts[0], 0);
            let max_step = if topology == Topology::rnnt() { width.max(2) - 1 } else { 1 };
            prop_assert!(starts.windows(2).all(|pair| pair[0] <= pair[1] && pair[1] - pair[0] <= max_step));
            prop_assert!(starts.iter().all(|start| start + width <= labels + 1));
            // Modified and constrained transducers have no path at all if U > T.
            let has_path = topology == Topology::rnnt() || labels <= frames;
            if has_path {
                prop_assert!(ranges.band(0, frames - 1).end == labels + 1 || (width == 1 && labels == frames));
            }
            prop_assert_eq!(keeps_a_path(&ranges, frames, labels, topology.kind()), has_path);
        }
    }

    /// Bands of U + 1 positions keep everything.
    #[test]
    fn wide_bands_keep_all(seed in 0u64..1000, frames in 1usize..6, labels in 0usize..6, extra in 1usize..4) {
        let lattices = Lattices::new(vec![frames], vec![labels]).unwrap();
        let occupancies = random_occupancies(seed, frames, labels, 9);
        for topology in topologies() {
            let s_range = (labels + extra).max(2);
            let ranges = Ranges::new(&occupancies, &lattices, &topology, s_range).unwrap();
            for frame in 0..frames {
                prop_assert_eq!(ranges.band(0, frame), 0..labels + 1);
            }
        }
    }

    #[test]
    fn utterances_are_independent(seed in 0u64..1000,
        shapes in prop::collection::vec((1usize..8, 0usize..8), 1..4)) {
        let (frames, labels): (Vec<_>, Vec<_>) = shapes.iter().copied().unzip();
        let lattices = Lattices::new(frames, labels).unwrap();
        let occupancies: Vec<_> =
            shapes.iter().enumerate().map(|(b, s)| random_occupancies(seed + b as u64, s.0, s.1, 9)).collect();
        let ranges = Ranges::new(&occupancies.concat(), &lattices, &Topology::rnnt(), 3).unwrap();
        prop_assert_eq!(ranges.batch(), shapes.len());
        for (b, &(t, u)) in shapes.iter().enumerate() {
            let single_lattice = Lattices::new(vec![t], vec![u]).unwrap();
            let single = Ranges::new(&occupancies[b], &single_lattice, &Topology::rnnt(), 3).unwrap();
            prop_assert_eq!(single.starts(0), ranges.starts(b));
            prop_assert_eq!(single.width(0), ranges.width(b));
        }
    }
}

/// The first of equal windows is selected; the label before a window is subtracted.
#[test]
fn ties_go_to_the_first() {
    let lattices = Lattices::new(vec![2], vec![3]).unwrap();
    let mut occupancies = vec![0.25; 16];
    let starts = |occupancies: &[f64], s_range: usize| {
        Ranges::new(occupancies, &lattices, &Topology::rnnt(), s_range).unwrap().starts(0).to_vec()
    };
    assert_eq!(starts(&occupancies, 3), [0, 1]);
    // Frame 0 prefers the end, but the first band starts at 0.
    occupancies[6] = 9.0;
    assert_eq!(starts(&occupancies, 3), [0, 1]);
    // With three frames, the middle one is not constrained.
    let lattices = Lattices::new(vec![3], vec![3]).unwrap();
    let mut occupancies = vec![0.0; 24];
    let middle_start = |occupancies: &[f64]| {
        Ranges::new(occupancies, &lattices, &Topology::modified(), 2).unwrap().starts(0)[1]
    };
    occupancies[8 + 2 * 2] = 1.0; // blank at u = 2: windows 1 and 2 have it; the last band limits to 1 or more.
    assert_eq!(middle_start(&occupancies), 1);
    assert_eq!(middle_start(&[0.0; 24]), 1);
}

#[test]
fn many_labels_widen_regular_bands() {
    // In fast_rnnt, s_range 2 would advance by one position in a frame and never reach the end.
    let lattices = Lattices::new(vec![2, 1], vec![7, 5]).unwrap();
    let ranges = Ranges::new(&[0.1; 44], &lattices, &Topology::rnnt(), 2).unwrap();
    assert_eq!((ranges.width(0), ranges.width(1)), (5, 6));
    assert_eq!((ranges.band(0, 0), ranges.band(0, 1), ranges.band(1, 0)), (0..5, 3..8, 0..6));
}

#[test]
fn mistakes_are_named() {
    let lattices = Lattices::new(vec![2, 2], vec![1, 0]).unwrap();
    let error = |occupancies: &[f64], topology: Topology, s_range| {
        Ranges::new(occupancies, &lattices, &topology, s_range).unwrap_err()
    };
    for topology in [Topology::rnnt(), Topology::constrained()] {
        let expected = Error::Range { topology: Box::new(topology.clone()), needed: 2, found: 1 };
        assert_eq!(error(&[0.0; 12], topology, 1), expected);
    }
    let topology = Topology::modified();
    let expected = Error::Range { topology: Box::new(topology.clone()), needed: 1, found: 0 };
    assert_eq!(error(&[0.0; 12], topology.clone(), 0), expected);
    for actual in [Topology::tdt(&[1]).unwrap(), topology.clone().with_big_blanks(&[2]).unwrap()] {
        assert_eq!(error(&[0.0; 12], actual.clone(), 2), Error::Topology { found: Box::new(actual) });
    }
    let wrong_length = Error::Length { argument: "occupancies", expected: 12, found: 11 };
    assert_eq!(error(&[0.0; 11], topology.clone(), 2), wrong_length);
    let mut invalid_occupancies = [0.0; 12];
    invalid_occupancies[9] = f64::NAN;
    assert!(matches!(error(&invalid_occupancies, topology, 2), Error::Occupancy { utterance: 1, .. }));
    let pruned_lattices = Lattices::banded(vec![2], vec![vec![0..2, 1..3]]).unwrap();
    assert_eq!(Ranges::new(&[0.0; 8], &pruned_lattices, &Topology::rnnt(), 2), Err(Error::Banded));
}
