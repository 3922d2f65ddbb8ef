//! Which utterances go where changes nothing: results, mistakes and memory are those of the shapes.
use proptest::prelude::*;
use rnnt_dp::{Error, Lattices, Regularisers, Topology, Workspace};

/// Utterances of which some are long and narrow, others short and wide, so that no order of them is one of all their sizes.
fn shapes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec(prop_oneof![(1..60usize, 0..4usize), (1..4usize, 0..60usize)], 1..9)
}

fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![Just("regular"), Just("modified"), Just("tdt:0,1,3"), Just("regular+2")]
        .prop_map(|name| name.parse().expect("a topology"))
}

fn emissions(lattices: &Lattices, topology: &Topology) -> Vec<f64> {
    (0..lattices.sites() * topology.columns()).map(|i| -((i * 7 % 11) as f64) / 3.0).collect()
}

proptest! {
    #[test]
    fn lanes_of_uneven_sizes_change_no_bit(
        (sizes, next) in (shapes(), shapes()), topology in topology(), lanes in 1..9usize, sigma in prop_oneof![Just(0.0), Just(0.1)],
    ) {
        let regularisers = Regularisers { sigma, ..Regularisers::default() };
        let mut workspace = Workspace::with_lanes(lanes);
        for sizes in [sizes, next] {
            let (frames, labels) = sizes.iter().copied().unzip();
            let lattices = Lattices::new(frames, labels).unwrap();
            let emissions = emissions(&lattices, &topology);
            let run = |workspace: &mut Workspace| {
                let (mut losses, mut adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
                workspace
                    .forward_backward(&lattices, &topology, &emissions, &regularisers, &mut losses, &mut adjoints)
                    .map(|()| (losses, adjoints))
            };
            let one_after_the_other = run(&mut Workspace::with_lanes(1));
            prop_assert_eq!(run(&mut workspace), one_after_the_other);
        }
    }

    /// Of several mistakes the one that comes first is told, however large its utterance is, and a lane that has seen one goes on well.
    #[test]
    fn the_first_mistake_is_told(
        sizes in shapes(),
        lanes in 1..9usize,
        broken in prop::collection::btree_map(0..8usize, prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1e308)], 1..4),
    ) {
        let (frames, labels) = sizes.iter().copied().unzip();
        let lattices = Lattices::new(frames, labels).unwrap();
        let (topology, regularisers) = (Topology::rnnt(), Regularisers::default());
        let sound = emissions(&lattices, &topology);
        let mut emissions = sound.clone();
        let broken: Vec<(usize, f64)> = broken.into_iter().filter(|(b, _)| *b < lattices.batch()).collect();
        for &(utterance, value) in &broken {
            // Blank and label of the first site, of which at least one is of an arc.
            emissions[2 * lattices.range(utterance).start..][..2].fill(value);
        }
        let run = |workspace: &mut Workspace, emissions: &[f64]| {
            let (mut losses, mut adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
            let found = workspace
                .forward_backward(&lattices, &topology, emissions, &regularisers, &mut losses, &mut adjoints);
            (found, losses, adjoints)
        };
        let (want, losses, _) = run(&mut Workspace::with_lanes(1), &sound);
        prop_assert_eq!(want, Ok(()));
        let mut workspace = Workspace::with_lanes(lanes);
        let (found, partly, _) = run(&mut workspace, &emissions);
        let first = match found {
            Ok(()) => None,
            Err(Error::Emission { utterance, .. } | Error::Overflow { utterance, .. }) => Some(utterance),
            Err(other) => panic!("{other}"),
        };
        prop_assert_eq!(first, broken.first().map(|(utterance, _)| *utterance));
        for b in (0..lattices.batch()).filter(|b| broken.iter().all(|(other, _)| other != b)) {
            prop_assert_eq!(partly[b].to_bits(), losses[b].to_bits());
        }
        prop_assert_eq!(run(&mut workspace, &sound), run(&mut Workspace::with_lanes(1), &sound));
    }
}

/// The first of two lanes has the large utterances to itself, until it has half of all sites; none of them comes to the second.
#[test]
fn a_lane_is_as_large_as_what_comes_to_it() {
    let (topology, regularisers) = (Topology::rnnt(), Regularisers::default());
    let of = |frames: &[usize], lanes: usize| {
        let lattices = Lattices::new(frames.to_vec(), vec![40; frames.len()]).unwrap();
        // Lists of the batch left out.
        Workspace::scratch(&lattices, &topology, &regularisers, lanes).bytes() - 48 * frames.len()
    };
    assert_eq!(of(&[30, 500, 100], 2), of(&[500], 1) + of(&[100], 1));
    assert_eq!(of(&[30, 500, 100], 64), of(&[500], 1) + of(&[100], 1) + of(&[30], 1));
    assert_eq!(of(&[250, 400, 300, 350], 2), of(&[400], 1) + of(&[300], 1));
    assert_eq!(of(&[7, 7, 7, 7], 4), 4 * of(&[7], 1));
}

proptest! {
    #[test]
    fn more_lanes_never_take_less(sizes in shapes(), topology in topology()) {
        let (frames, labels) = sizes.iter().copied().unzip();
        let lattices = Lattices::new(frames, labels).unwrap();
        let bytes = |lanes| Workspace::scratch(&lattices, &topology, &Regularisers::default(), lanes).bytes();
        for lanes in 1..sizes.len() {
            prop_assert!(bytes(lanes) < bytes(lanes + 1));
            let fit = |bytes| Workspace::lanes_within(&lattices, &topology, &Regularisers::default(), bytes);
            prop_assert_eq!(fit(bytes(lanes)), Ok(lanes));
            prop_assert_eq!(fit(bytes(lanes + 1) - 1), Ok(lanes));
        }
    }
}
