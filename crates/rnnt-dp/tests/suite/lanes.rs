//! Parallel lanes (workers) of a loss call: results, errors and memory depend only on shapes.
//!
//! The number of lanes and earlier calls must not change a result or the reported error.
use proptest::prelude::*;
use rnnt_dp::{Error, Lattices, Regularizers, Topology, Workspace};

/// Long narrow and short wide utterances: no order sorts all sizes.
fn shapes() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec(prop_oneof![(1..60usize, 0..4usize), (1..4usize, 0..60usize)], 1..9)
}

fn topology() -> impl Strategy<Value = Topology> {
    prop_oneof![Just("regular"), Just("modified"), Just("tdt:0,1,3"), Just("regular+2")]
        .prop_map(|name| name.parse().expect("a topology"))
}

fn emissions(lattices: &Lattices, topology: &Topology) -> Vec<f64> {
    (0..lattices.num_sites() * topology.num_columns()).map(|i| -((i * 7 % 11) as f64) / 3.0).collect()
}

proptest! {
    #[test]
    fn results_do_not_depend_on_the_number_of_lanes(
        (sizes, next_sizes) in (shapes(), shapes()), topology in topology(), lanes in 1..9usize, sigma in prop_oneof![Just(0.0), Just(0.1)],
    ) {
        let regularizers = Regularizers { sigma, ..Regularizers::default() };
        let mut workspace = Workspace::with_lanes(lanes);
        for sizes in [sizes, next_sizes] {
            let (frames, labels) = sizes.iter().copied().unzip();
            let lattices = Lattices::new(frames, labels).unwrap();
            let emissions = emissions(&lattices, &topology);
            let run = |workspace: &mut Workspace| {
                let (mut losses, mut adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
                workspace
                    .forward_backward(
                        &lattices,
                        &topology,
                        &emissions,
                        &regularizers,
                        &mut losses,
                        &mut adjoints,
                    )
                    .map(|()| (losses, adjoints))
            };
            let single_lane = run(&mut Workspace::with_lanes(1));
            prop_assert_eq!(run(&mut workspace), single_lane);
        }
    }

    /// Of several errors that of the first utterance is returned.
    ///
    /// A lane that had an error still computes later utterances correctly.
    #[test]
    fn error_of_the_first_utterance_is_returned(
        sizes in shapes(),
        lanes in 1..9usize,
        broken in prop::collection::btree_map(0..8usize, prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1e308)], 1..4),
    ) {
        let (frames, labels) = sizes.iter().copied().unzip();
        let lattices = Lattices::new(frames, labels).unwrap();
        let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
        let valid = emissions(&lattices, &topology);
        let mut emissions = valid.clone();
        let broken: Vec<(usize, f64)> = broken.into_iter().filter(|(b, _)| *b < lattices.batch()).collect();
        for &(utterance, value) in &broken {
            // Blank and label of the first site; at least one belongs to an arc.
            emissions[2 * lattices.site_range(utterance).start..][..2].fill(value);
        }
        let run = |workspace: &mut Workspace, emissions: &[f64]| {
            let (mut losses, mut adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
            let computed = workspace
                .forward_backward(&lattices, &topology, emissions, &regularizers, &mut losses, &mut adjoints);
            (computed, losses, adjoints)
        };
        let (expected, losses, _) = run(&mut Workspace::with_lanes(1), &valid);
        prop_assert_eq!(expected, Ok(()));
        let mut workspace = Workspace::with_lanes(lanes);
        let (computed, computed_losses, _) = run(&mut workspace, &emissions);
        let first_error = match computed {
            Ok(()) => None,
            Err(Error::Emission { utterance, .. } | Error::Overflow { utterance, .. }) => Some(utterance),
            Err(other) => panic!("{other}"),
        };
        prop_assert_eq!(first_error, broken.first().map(|(utterance, _)| *utterance));
        for b in (0..lattices.batch()).filter(|b| broken.iter().all(|(other, _)| other != b)) {
            prop_assert_eq!(computed_losses[b].to_bits(), losses[b].to_bits());
        }
        prop_assert_eq!(run(&mut workspace, &valid), run(&mut Workspace::with_lanes(1), &valid));
    }
}

/// Bytes of an utterance in the lists of a batch.
const LIST_BYTES_PER_UTTERANCE: usize = 48;

/// The first of two lanes owns the largest utterances.
///
/// It owns up to half of all sites.
#[test]
fn memory_of_a_lane_fits_its_utterances() {
    let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
    let bytes = |frames: &[usize], lanes: usize| {
        let lattices = Lattices::new(frames.to_vec(), vec![40; frames.len()]).unwrap();
        let scratch = Workspace::scratch(&lattices, &topology, &regularizers, lanes);
        scratch.bytes() - LIST_BYTES_PER_UTTERANCE * frames.len()
    };
    assert_eq!(bytes(&[30, 500, 100], 2), bytes(&[500], 1) + bytes(&[100], 1));
    assert_eq!(bytes(&[30, 500, 100], 64), bytes(&[500], 1) + bytes(&[100], 1) + bytes(&[30], 1));
    assert_eq!(bytes(&[250, 400, 300, 350], 2), bytes(&[400], 1) + bytes(&[300], 1));
    assert_eq!(bytes(&[7, 7, 7, 7], 4), 4 * bytes(&[7], 1));
}

proptest! {
    #[test]
    fn memory_does_not_decrease_with_more_lanes(sizes in shapes(), topology in topology()) {
        let (frames, labels) = sizes.iter().copied().unzip();
        let lattices = Lattices::new(frames, labels).unwrap();
        let bytes = |lanes| Workspace::scratch(&lattices, &topology, &Regularizers::default(), lanes).bytes();
        for lanes in 1..sizes.len() {
            prop_assert!(bytes(lanes) < bytes(lanes + 1));
            let max_lanes =
                |bytes| Workspace::max_lanes(&lattices, &topology, &Regularizers::default(), bytes);
            prop_assert_eq!(max_lanes(bytes(lanes)), Ok(lanes));
            prop_assert_eq!(max_lanes(bytes(lanes + 1) - 1), Ok(lanes));
        }
    }
}
