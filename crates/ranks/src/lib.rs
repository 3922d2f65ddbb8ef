//! How gradients travel between the processes of a run.
//!
//! | item | what it is |
//! |---|---|
//! | [`Wire`] | all-to-all and all-gather of bytes: MPI's (feature `mpi`), or those of [`Threads`] in one process |
//! | [`Courier`] | a thread that owns a wire: what is given to it travels while others compute |
//! | [`Together`] | a run's [`Ranks`](training::Ranks) over a wire: sums in the order of the ranks, bucket by bucket |
//! | [`Transfer`] | the numbers that travel: `f32`, or bf16 with half the bytes |
//!
//! ```
//! use ranks::{Threads, Together, Transfer};
//! use training::Ranks;
//!
//! // Two processes, here as threads: each hears what both say, in the order of their ranks.
//! let said = Threads::run(2, |wire| {
//!     let mut ranks = Together::new(wire, Transfer::F32);
//!     let mine = vec![ranks.rank() as u8; 1 + ranks.rank()];
//!     ranks.gather(mine)
//! });
//! for all in said {
//!     assert_eq!(all?, [vec![0], vec![1, 1]]);
//! }
//! # Ok::<(), training::Error>(())
//! ```
#![warn(missing_docs)]

mod courier;
#[cfg(feature = "mpi")]
mod mpi;
mod sum;
mod threads;
mod together;
mod wire;

pub use courier::{Courier, Errands};
#[cfg(feature = "mpi")]
pub use mpi::{Launcher, Mpi, Unresponsive, Watch, launcher};
pub use sum::Transfer;
pub use threads::Threads;
pub use together::Together;
pub use wire::Wire;
