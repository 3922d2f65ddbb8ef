//! A workspace of the lattice that has seen a batch asks for no more memory.
//!
//! One test in a file of its own: the allocator counts for the whole process.
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use panda::rnnt_dp::{Lattices, Regularisers, Topology, Workspace};

struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system allocator's work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn only_the_first_call_allocates() {
    let lattices = Lattices::new(vec![40, 7, 23], vec![9, 12, 0]).unwrap();
    let emissions: Vec<f64> = (0..lattices.sites() * 2).map(|i| -((i * 7 % 11) as f64) / 3.0).collect();
    let (mut losses, mut adjoints) = (vec![0.0; 3], vec![0.0; emissions.len()]);
    let (topology, regularisers) =
        (Topology::rnnt(), Regularisers { fastemit: 0.1, ..Regularisers::default() });
    let mut workspace = Workspace::new();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let calls = pool.install(|| {
        let mut call = || {
            let before = CALLS.load(Ordering::Relaxed);
            workspace
                .forward_backward(&lattices, &topology, &emissions, &regularisers, &mut losses, &mut adjoints)
                .unwrap();
            CALLS.load(Ordering::Relaxed) - before
        };
        [call(), call(), call()]
    });
    assert!(calls[0] > 0, "the count must count");
    assert_eq!(calls[1..], [0, 0]);
}
