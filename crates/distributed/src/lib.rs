//! Collective communication between the processes of a run.
//!
//! The three types to know:
//!
//! | item | contents |
//! |---|---|
//! | [`Communicator`] | all-gather, all-to-all, all-reduce, barrier: [`ThreadCommunicator`], MPI (feature `mpi`) |
//! | [`ProcessGroup`] | a communicator in its own thread: typed values, all-reduce during computation |
//! | [`SharedError`] | an error that every rank reports; see [`ProcessGroup::agree`] |
//!
//! ```
//! use distributed::{ProcessGroup, ThreadCommunicator, TransferFormat};
//!
//! // Two ranks, here as threads: each receives the values of both, in the order of their ranks.
//! let gathered = ThreadCommunicator::run(2, |communicator| {
//!     let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
//!     let rank = group.rank();
//!     group.all_gather(&vec![rank; 1 + rank])
//! });
//! for all in gathered {
//!     assert_eq!(all?, [vec![0], vec![1, 1]]);
//! }
//! # Ok::<(), distributed::Error>(())
//! ```
//!
//! Another transport is one implementation of [`Communicator`]; `docs/scaling.md` describes
//! training with several processes.
#![warn(missing_docs)]

mod agreement;
mod communicator;
#[cfg(feature = "mpi")]
mod mpi;
mod process_group;
mod threads;
#[cfg(feature = "mpi")]
mod unresponsive;
#[cfg(feature = "mpi")]
mod watch;

pub use agreement::{SharedError, first_error};
pub use communicator::{Communicator, ReduceBuffers, TransferFormat};
#[cfg(feature = "mpi")]
pub use mpi::{MpiCommunicator, MpiLauncher};
pub use process_group::{Pending, ProcessGroup};
pub use threads::ThreadCommunicator;
#[cfg(feature = "mpi")]
pub use unresponsive::UnresponsiveRanks;
#[cfg(feature = "mpi")]
pub use watch::ProcessWatch;

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

/// The error of a collective call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A rank sent a value of another type; its version of the program may differ.
    #[error("rank {rank}: {message}")]
    Rank {
        /// The rank.
        rank: usize,
        /// What is wrong with its value.
        message: String,
    },
    /// The sender of a sum's terms ended before the last term.
    #[error("all-reduce: expected {expected} terms, found {found}")]
    MissingTerms {
        /// Terms of the sum.
        expected: usize,
        /// Terms that were sent.
        found: usize,
    },
    /// The values of a term of a sum cannot be read.
    #[error(transparent)]
    Term(Box<dyn std::error::Error + Send + Sync>),
}
