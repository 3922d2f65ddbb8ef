//! What an engine for many processes is asked for.
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Collective calls: all processes make the same ones in the same order, and wait for each other in each.
///
/// What goes wrong between processes ends all of them, as is the engine's way.
pub trait Wire {
    /// Number of this process, from 0.
    fn rank(&self) -> usize;

    /// Processes in all.
    fn count(&self) -> usize;

    /// Block `r` of `send` goes to rank `r`, where it becomes the block of `receive` that has this process's number.
    ///
    /// # Shapes
    /// Both are `count` blocks of the same length, which is the same in all processes.
    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]);

    /// The blocks of all processes, in the order of their ranks.
    ///
    /// # Shapes
    /// `receive` is `count` times as long as `send`, which has the same length in all processes.
    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]);

    /// Hears of where it can see whether anybody waits for what it carries; where nobody does, it leaves the cores to others.
    fn patience(&mut self, _awaited: Arc<AtomicBool>) {}

    /// Ends all processes, as this one cannot go on.
    fn fail(&mut self) {}
}
