//! Tests that workspaces of lattice recursions allocate the planned bytes.
//!
//! A lane is the buffers for one utterance at a time; there are at most as many lanes as threads.
use std::sync::{LazyLock, MutexGuard};

use panda::rnnt_dp::{Error, Lattices, Regularizers, Topology, Workspace, forward_backward};

use crate::counting_allocator::{Measurement, exclusive, live_bytes};

/// Bytes of a thread pool: its queues and garbage collection.
const QUEUE_BYTES: usize = 16 << 10;

/// Growth of the live bytes after `run`, and its peak.
fn measure_growth(run: impl FnOnce()) -> (usize, usize) {
    let before = live_bytes();
    let Measurement { peak_growth: peak, .. } = crate::counting_allocator::measure(run);
    (live_bytes().saturating_sub(before), peak)
}

/// Returns deterministic emissions of all sites.
fn emissions(lattices: &Lattices, topology: &Topology) -> Vec<f64> {
    (0..lattices.num_sites() * topology.num_columns()).map(|i| -((i * 7 % 11) as f64) / 3.0).collect()
}

/// Returns batches of one and of many utterances, with and without bands.
fn shapes() -> Vec<Lattices> {
    let band = |frames: usize, labels: usize| {
        let start = move |t: usize| t * (labels + 1).saturating_sub(5) / frames.max(2);
        (0..frames).map(|t| start(t)..(start(t) + 5).min(labels + 1)).collect::<Vec<_>>()
    };
    let unbanded = |shapes: &[(usize, usize)]| {
        let (frames, labels) = shapes.iter().copied().unzip();
        Lattices::new(frames, labels).unwrap()
    };
    vec![
        unbanded(&[(1, 0)]),
        unbanded(&[(3, 900)]),
        unbanded(&[(400, 80)]),
        unbanded(&[(40, 9), (7, 12), (23, 0), (120, 33), (2, 2)]),
        unbanded(&(0..70).map(|b| (5 + b, b / 2)).collect::<Vec<_>>()),
        Lattices::banded(vec![60, 9, 0], vec![band(300, 60), band(40, 9), band(8, 0)]).unwrap(),
    ]
}

/// Returns one topology of each kind.
fn topologies() -> Vec<Topology> {
    ["regular", "modified", "constrained", "regular+2,4", "tdt:0,1,2,4"]
        .map(|name| name.parse().unwrap())
        .into()
}

/// Arguments and results of a forward-backward call.
struct ForwardBackwardCall<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
    regularizers: &'a Regularizers,
    emissions: Vec<f64>,
    losses: Vec<f64>,
    adjoints: Vec<f64>,
}

impl<'a> ForwardBackwardCall<'a> {
    fn new(lattices: &'a Lattices, topology: &'a Topology, regularizers: &'a Regularizers) -> Self {
        let emissions = emissions(lattices, topology);
        let (losses, adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
        Self { lattices, topology, regularizers, emissions, losses, adjoints }
    }

    fn run(&mut self, workspace: &mut Workspace) -> Result<(), Error> {
        let Self { lattices, topology, regularizers, emissions, losses, adjoints } = self;
        workspace.forward_backward(lattices, topology, emissions, regularizers, losses, adjoints)
    }

    /// Returns the planned bytes of the workspace.
    fn planned_bytes(&self, lanes: usize) -> usize {
        Workspace::scratch(self.lattices, self.topology, self.regularizers, lanes).bytes()
    }
}

/// Pools of 1, 3, 4 and 64 threads; static, so that no thread ends during a measurement.
static POOLS: LazyLock<[rayon::ThreadPool; 4]> = LazyLock::new(|| {
    [1, 3, 4, 64].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // Each thread allocates its own state before the measurements.
        pool.broadcast(|_| rayon::join(|| (), || ()));
        pool
    })
});

/// Locks the counters after the thread pools have been created.
fn exclusive_with_pools() -> MutexGuard<'static, ()> {
    let guard = exclusive();
    LazyLock::force(&POOLS);
    guard
}

/// Visits all combinations of shapes, topologies and regularizers.
fn for_all_cases(mut visit: impl FnMut(&Lattices, &Topology, &Regularizers)) {
    let penalized = Regularizers { fastemit: 0.1, delay_penalty: 0.02, sigma: 0.05 };
    for lattices in shapes() {
        for topology in topologies() {
            for regularizers in [Regularizers::default(), penalized] {
                visit(&lattices, &topology, &regularizers);
            }
        }
    }
}

#[test]
fn lanes_use_the_planned_bytes_and_give_equal_bits() {
    let _guard = exclusive_with_pools();
    for_all_cases(|lattices, topology, regularizers| {
        let expected =
            forward_backward(lattices, topology, &emissions(lattices, topology), regularizers).unwrap();
        for pool in &POOLS[..2] {
            for lanes in [1, 2, 3, 64] {
                let mut call = ForwardBackwardCall::new(lattices, topology, regularizers);
                let planned = call.planned_bytes(lanes);
                let mut workspace = Workspace::with_lanes(lanes);
                let (live, peak) = measure_growth(|| pool.install(|| call.run(&mut workspace).unwrap()));
                assert!(
                    live <= planned + QUEUE_BYTES && peak <= planned + QUEUE_BYTES,
                    "{topology} {lanes}: planned {planned}, live {live}, peak {peak}"
                );
                // The plan is not larger than needed either.
                assert!(
                    planned <= live + live / 50 + QUEUE_BYTES,
                    "{topology} {lanes}: planned {planned}, live {live}"
                );
                assert_eq!(workspace.allocated_bytes(), planned);
                assert_eq!((&call.losses, &call.adjoints), (&expected.losses, &expected.adjoints));
                let (second_growth, second_peak) =
                    measure_growth(|| pool.install(|| call.run(&mut workspace).unwrap()));
                assert!(
                    second_growth <= QUEUE_BYTES && second_peak <= QUEUE_BYTES,
                    "{topology} {lanes}: {second_peak} bytes in the second call"
                );
            }
        }
    });
}

/// The limit of a workspace holds over calls of different shapes.
#[test]
fn the_limit_of_a_workspace_holds_over_calls() {
    let _guard = exclusive_with_pools();
    let pool = &POOLS[2];
    let mut limit = 0;
    for_all_cases(|lattices, topology, regularizers| {
        limit = limit.max(Workspace::scratch(lattices, topology, regularizers, 1).bytes());
    });
    for limit in [limit, limit + limit / 2, 3 * limit] {
        let mut workspace = Workspace::with_budget(limit);
        for_all_cases(|lattices, topology, regularizers| {
            let mut call = ForwardBackwardCall::new(lattices, topology, regularizers);
            let before = workspace.allocated_bytes();
            let (_, peak) = measure_growth(|| pool.install(|| call.run(&mut workspace).unwrap()));
            assert!(
                workspace.allocated_bytes() <= limit && before + peak <= limit + QUEUE_BYTES,
                "{limit}: {before} {peak}"
            );
        });
        assert!(workspace.allocated_bytes() > 0);
        workspace.set_budget(0);
        assert_eq!(workspace.allocated_bytes(), 0);
    }
}

#[test]
fn a_too_small_limit_is_an_error_with_the_smallest_one() {
    let _guard = exclusive_with_pools();
    let pool_of_64 = &POOLS[3];
    for_all_cases(|lattices, topology, regularizers| {
        let needed = Workspace::scratch(lattices, topology, regularizers, 1).bytes();
        let lanes = |bytes| Workspace::max_lanes(lattices, topology, regularizers, bytes);
        assert_eq!(lanes(needed), Ok(1));
        let error = Err(Error::Memory { needed, found: needed - 1 });
        assert_eq!(lanes(needed - 1), error.clone().map(|()| 0));
        assert_eq!(lanes(usize::MAX), Ok(lattices.batch()));
        let mut call = ForwardBackwardCall::new(lattices, topology, regularizers);
        assert_eq!(call.run(&mut Workspace::with_budget(needed - 1)), error);
        call.run(&mut Workspace::with_budget(needed)).unwrap();
        // As many lanes as threads, at most one per utterance.
        let mut workspace = Workspace::new();
        pool_of_64.install(|| call.run(&mut workspace).unwrap());
        assert_eq!(workspace.allocated_bytes(), call.planned_bytes(lattices.batch().min(64)));
    });
}

/// A workspace planned for all shapes allocates only lists in later calls.
#[test]
fn lanes_are_reused_over_shapes() {
    let _guard = exclusive_with_pools();
    let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
    let batches =
        [[500, 100], [250, 250], [30, 480]].map(|frames| Lattices::new(frames.into(), vec![60, 60]).unwrap());
    let calls = batches.iter().map(|lattices| (lattices, &topology));
    let planned = Workspace::scratch_for_all(calls, &regularizers, 2).bytes();
    let mut workspace = Workspace::with_budget(planned);
    let mut run = |lattices: &Lattices| {
        let mut call = ForwardBackwardCall::new(lattices, &topology, &regularizers);
        let (_, peak) = measure_growth(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        (workspace.allocated_bytes(), peak)
    };
    batches.iter().for_each(|lattices| {
        run(lattices);
    });
    for lattices in &batches {
        let (live, peak) = run(lattices);
        assert!(live == planned && peak <= QUEUE_BYTES, "planned {planned}, live {live}, peak {peak}");
    }
}

/// A batch of thousands of tiny utterances: lists are part of the plan.
#[test]
fn lists_are_counted() {
    let _guard = exclusive_with_pools();
    let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
    let lattices = Lattices::new(vec![1; 3000], vec![0; 3000]).unwrap();
    for lanes in [1, 2, 3000] {
        let mut call = ForwardBackwardCall::new(&lattices, &topology, &regularizers);
        let planned = call.planned_bytes(lanes);
        let mut workspace = Workspace::with_lanes(lanes);
        let (_, peak) = measure_growth(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        assert!(peak <= planned + QUEUE_BYTES, "{lanes} lanes: planned {planned}, peak {peak}");
        assert_eq!(workspace.allocated_bytes(), planned);
    }
    let mut call = ForwardBackwardCall::new(&lattices, &topology, &regularizers);
    let planned = call.planned_bytes(1);
    let mut workspace = Workspace::with_budget(planned);
    for _ in 0..2 {
        let (_, peak) = measure_growth(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        assert!(
            workspace.allocated_bytes() == planned && peak <= planned + QUEUE_BYTES,
            "planned {planned}, peak {peak}"
        );
    }
}

/// Long lists of one batch, then lanes of another; and a batch whose lists exceed the limit.
#[test]
fn the_limit_includes_lists_of_earlier_batches() {
    let _guard = exclusive_with_pools();
    let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
    let (mut frames, mut labels) = (vec![1; 5001], vec![0; 5001]);
    (frames[0], labels[0]) = (1000, 100);
    let [long_lists, two_utterances] = [(frames, labels), (vec![560; 2], vec![100; 2])]
        .map(|(frames, labels)| Lattices::new(frames, labels).unwrap());
    let limit = Workspace::scratch(&long_lists, &topology, &regularizers, 1).bytes();
    assert!(Workspace::scratch(&two_utterances, &topology, &regularizers, 2).bytes() <= limit);
    let mut workspace = Workspace::with_budget(limit);
    for lattices in [&long_lists, &two_utterances, &long_lists, &two_utterances] {
        let mut call = ForwardBackwardCall::new(lattices, &topology, &regularizers);
        POOLS[2].install(|| call.run(&mut workspace)).unwrap();
        assert!(workspace.allocated_bytes() <= limit, "{} of {limit}", workspace.allocated_bytes());
    }
    let mut workspace = Workspace::with_budget(100);
    let mut call = ForwardBackwardCall::new(&long_lists, &topology, &regularizers);
    assert!(matches!(call.run(&mut workspace), Err(Error::Memory { .. })));
    assert!(workspace.allocated_bytes() <= 100);
}

/// A large utterance, small ones in more lanes, a large one.
#[test]
fn large_lanes_are_kept() {
    let _guard = exclusive_with_pools();
    let (topology, regularizers) = (Topology::rnnt(), Regularizers::default());
    let batches = [vec![900], vec![20, 20], vec![900]].map(|frames| {
        let labels = vec![30; frames.len()];
        Lattices::new(frames, labels).unwrap()
    });
    let mut workspace = Workspace::with_lanes(2);
    for (i, lattices) in batches.iter().enumerate() {
        let mut call = ForwardBackwardCall::new(lattices, &topology, &regularizers);
        let (_, peak) = measure_growth(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        assert!(
            i == 0 || peak < Workspace::scratch(&batches[0], &topology, &regularizers, 1).bytes() / 2,
            "{peak}"
        );
    }
}
