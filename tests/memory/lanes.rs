//! What lattices take is known from their shapes, and does not depend on chance: measured by counting every allocation.
use std::sync::{LazyLock, MutexGuard};

use panda::rnnt_dp::{Error, Lattices, Regularizers, Topology, Workspace, forward_backward};

use crate::counting::{alive, turn};

/// What queues of the thread pool take when work comes from outside, and what their threads note down about garbage.
const QUEUE: usize = 16 << 10;

/// Bytes that are alive afterwards, and the most that were on the way, beside those before.
fn measure(run: impl FnOnce()) -> (usize, usize) {
    let before = alive();
    let (_, peak, ()) = crate::counting::measure(run);
    (alive().saturating_sub(before), peak)
}

fn emissions(lattices: &Lattices, topology: &Topology) -> Vec<f64> {
    (0..lattices.sites() * topology.columns()).map(|i| -((i * 7 % 11) as f64) / 3.0).collect()
}

fn shapes() -> Vec<Lattices> {
    let band = |frames: usize, labels: usize| {
        let start = move |t: usize| t * (labels + 1).saturating_sub(5) / frames.max(2);
        (0..frames).map(|t| start(t)..(start(t) + 5).min(labels + 1)).collect::<Vec<_>>()
    };
    let whole = |shapes: &[(usize, usize)]| {
        let (frames, labels) = shapes.iter().copied().unzip();
        Lattices::new(frames, labels).unwrap()
    };
    vec![
        whole(&[(1, 0)]),
        whole(&[(3, 900)]),
        whole(&[(400, 80)]),
        whole(&[(40, 9), (7, 12), (23, 0), (120, 33), (2, 2)]),
        whole(&(0..70).map(|b| (5 + b, b / 2)).collect::<Vec<_>>()),
        Lattices::banded(vec![60, 9, 0], vec![band(300, 60), band(40, 9), band(8, 0)]).unwrap(),
    ]
}

fn topologies() -> Vec<Topology> {
    ["regular", "modified", "constrained", "regular+2,4", "tdt:0,1,2,4"]
        .map(|name| name.parse().unwrap())
        .into()
}

struct Call<'a> {
    lattices: &'a Lattices,
    topology: &'a Topology,
    regularisers: &'a Regularizers,
    emissions: Vec<f64>,
    losses: Vec<f64>,
    adjoints: Vec<f64>,
}

impl<'a> Call<'a> {
    fn new(lattices: &'a Lattices, topology: &'a Topology, regularisers: &'a Regularizers) -> Self {
        let emissions = emissions(lattices, topology);
        let (losses, adjoints) = (vec![0.0; lattices.batch()], vec![0.0; emissions.len()]);
        Self { lattices, topology, regularisers, emissions, losses, adjoints }
    }

    fn run(&mut self, workspace: &mut Workspace) -> Result<(), Error> {
        let Self { lattices, topology, regularisers, emissions, losses, adjoints } = self;
        workspace.forward_backward(lattices, topology, emissions, regularisers, losses, adjoints)
    }

    fn bytes(&self, lanes: usize) -> usize {
        Workspace::scratch(self.lattices, self.topology, self.regularisers, lanes).bytes()
    }
}

/// Of 1, 3, 4 and 64 threads, which live as long as the tests, so that none ends while another is measured.
static POOLS: LazyLock<[rayon::ThreadPool; 4]> = LazyLock::new(|| {
    [1, 3, 4, 64].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // Threads make what they need for themselves.
        pool.broadcast(|_| rayon::join(|| (), || ()));
        pool
    })
});

fn alone() -> MutexGuard<'static, ()> {
    let guard = turn();
    LazyLock::force(&POOLS);
    guard
}

fn each(mut visit: impl FnMut(&Lattices, &Topology, &Regularizers)) {
    let penalised = Regularizers { fastemit: 0.1, delay_penalty: 0.02, sigma: 0.05 };
    for lattices in shapes() {
        for topology in topologies() {
            for regularisers in [Regularizers::default(), penalised] {
                visit(&lattices, &topology, &regularisers);
            }
        }
    }
}

#[test]
fn lanes_take_what_is_said_and_change_no_bit() {
    let _alone = alone();
    each(|lattices, topology, regularisers| {
        let want =
            forward_backward(lattices, topology, &emissions(lattices, topology), regularisers).unwrap();
        for pool in &POOLS[..2] {
            for lanes in [1, 2, 3, 64] {
                let mut call = Call::new(lattices, topology, regularisers);
                let said = call.bytes(lanes);
                let mut workspace = Workspace::with_lanes(lanes);
                let (held, peak) = measure(|| pool.install(|| call.run(&mut workspace).unwrap()));
                assert!(
                    held <= said + QUEUE && peak <= said + QUEUE,
                    "{topology} {lanes}: said {said}, held {held}, peak {peak}"
                );
                // It is no more than that either.
                assert!(said <= held + held / 50 + QUEUE, "{topology} {lanes}: said {said}, held {held}");
                assert_eq!(workspace.allocated_bytes(), said);
                assert_eq!((&call.losses, &call.adjoints), (&want.losses, &want.adjoints));
                let (more, again) = measure(|| pool.install(|| call.run(&mut workspace).unwrap()));
                assert!(more <= QUEUE && again <= QUEUE, "{topology} {lanes}: {again} more");
            }
        }
    });
}

/// A limit holds from call to call, whatever the shapes, and a call that cannot keep it is refused.
#[test]
fn a_limit_holds() {
    let _alone = alone();
    let pool = &POOLS[2];
    let mut limit = 0;
    each(|lattices, topology, regularisers| {
        limit = limit.max(Workspace::scratch(lattices, topology, regularisers, 1).bytes());
    });
    for limit in [limit, limit + limit / 2, 3 * limit] {
        let mut workspace = Workspace::with_budget(limit);
        each(|lattices, topology, regularisers| {
            let mut call = Call::new(lattices, topology, regularisers);
            let before = workspace.allocated_bytes();
            let (_, peak) = measure(|| pool.install(|| call.run(&mut workspace).unwrap()));
            assert!(
                workspace.allocated_bytes() <= limit && before + peak <= limit + QUEUE,
                "{limit}: {before} {peak}"
            );
        });
        assert!(workspace.allocated_bytes() > 0);
        workspace.set_budget(0);
        assert_eq!(workspace.allocated_bytes(), 0);
    }
}

#[test]
fn the_smallest_limit_is_named() {
    let _alone = alone();
    let wide = &POOLS[3];
    each(|lattices, topology, regularisers| {
        let needed = Workspace::scratch(lattices, topology, regularisers, 1).bytes();
        let lanes = |bytes| Workspace::max_lanes(lattices, topology, regularisers, bytes);
        assert_eq!(lanes(needed), Ok(1));
        let error = Err(Error::Memory { needed, found: needed - 1 });
        assert_eq!(lanes(needed - 1), error.clone().map(|()| 0));
        assert_eq!(lanes(usize::MAX), Ok(lattices.batch()));
        let mut call = Call::new(lattices, topology, regularisers);
        assert_eq!(call.run(&mut Workspace::with_budget(needed - 1)), error);
        call.run(&mut Workspace::with_budget(needed)).unwrap();
        // As many lanes as threads, where there are as many utterances.
        let mut workspace = Workspace::new();
        wide.install(|| call.run(&mut workspace).unwrap());
        assert_eq!(workspace.allocated_bytes(), call.bytes(lattices.batch().min(64)));
    });
}

/// A workspace that knows all shapes beforehand asks for nothing but lists when they come again.
#[test]
fn lanes_stay_from_shape_to_shape() {
    let _alone = alone();
    let (topology, regularisers) = (Topology::rnnt(), Regularizers::default());
    let batches =
        [[500, 100], [250, 250], [30, 480]].map(|frames| Lattices::new(frames.into(), vec![60, 60]).unwrap());
    let calls = batches.iter().map(|lattices| (lattices, &topology));
    let said = Workspace::scratch_for_all(calls, &regularisers, 2).bytes();
    let mut workspace = Workspace::with_budget(said);
    let mut run = |lattices: &Lattices| {
        let mut call = Call::new(lattices, &topology, &regularisers);
        let (_, peak) = measure(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        (workspace.allocated_bytes(), peak)
    };
    batches.iter().for_each(|lattices| {
        run(lattices);
    });
    for lattices in &batches {
        let (held, peak) = run(lattices);
        assert!(held == said && peak <= QUEUE, "said {said}, held {held}, peak {peak}");
    }
}

/// Many utterances, of which each is nearly nothing.
#[test]
fn lists_count() {
    let _alone = alone();
    let (topology, regularisers) = (Topology::rnnt(), Regularizers::default());
    let lattices = Lattices::new(vec![1; 3000], vec![0; 3000]).unwrap();
    for lanes in [1, 2, 3000] {
        let mut call = Call::new(&lattices, &topology, &regularisers);
        let said = call.bytes(lanes);
        let mut workspace = Workspace::with_lanes(lanes);
        let (_, peak) = measure(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        assert!(peak <= said + QUEUE, "{lanes} lanes: said {said}, peak {peak}");
        assert_eq!(workspace.allocated_bytes(), said);
    }
    let mut call = Call::new(&lattices, &topology, &regularisers);
    let said = call.bytes(1);
    let mut workspace = Workspace::with_budget(said);
    for _ in 0..2 {
        let (_, peak) = measure(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        assert!(workspace.allocated_bytes() == said && peak <= said + QUEUE, "said {said}, peak {peak}");
    }
}

/// Lists of a batch of many utterances, then lanes of another one; a batch whose lists alone are too much.
#[test]
fn a_limit_holds_beside_longer_lists() {
    let _alone = alone();
    let (topology, regularisers) = (Topology::rnnt(), Regularizers::default());
    let (mut frames, mut labels) = (vec![1; 5001], vec![0; 5001]);
    (frames[0], labels[0]) = (1000, 100);
    let [many, two] = [(frames, labels), (vec![560; 2], vec![100; 2])]
        .map(|(frames, labels)| Lattices::new(frames, labels).unwrap());
    let limit = Workspace::scratch(&many, &topology, &regularisers, 1).bytes();
    assert!(Workspace::scratch(&two, &topology, &regularisers, 2).bytes() <= limit);
    let mut workspace = Workspace::with_budget(limit);
    for lattices in [&many, &two, &many, &two] {
        let mut call = Call::new(lattices, &topology, &regularisers);
        POOLS[2].install(|| call.run(&mut workspace)).unwrap();
        assert!(workspace.allocated_bytes() <= limit, "{} of {limit}", workspace.allocated_bytes());
    }
    let mut workspace = Workspace::with_budget(100);
    let mut call = Call::new(&many, &topology, &regularisers);
    assert!(matches!(call.run(&mut workspace), Err(Error::Memory { .. })));
    assert!(workspace.allocated_bytes() <= 100);
}

/// One large utterance, then small ones in more lanes, then the large one again.
#[test]
fn lanes_that_are_there_stay() {
    let _alone = alone();
    let (topology, regularisers) = (Topology::rnnt(), Regularizers::default());
    let batches = [vec![900], vec![20, 20], vec![900]].map(|frames| {
        let labels = vec![30; frames.len()];
        Lattices::new(frames, labels).unwrap()
    });
    let mut workspace = Workspace::with_lanes(2);
    for (at, lattices) in batches.iter().enumerate() {
        let mut call = Call::new(lattices, &topology, &regularisers);
        let (_, peak) = measure(|| POOLS[2].install(|| call.run(&mut workspace).unwrap()));
        assert!(
            at == 0 || peak < Workspace::scratch(&batches[0], &topology, &regularisers, 1).bytes() / 2,
            "{peak}"
        );
    }
}
