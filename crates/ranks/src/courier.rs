//! A thread that owns a wire, and carries what it is given while others compute.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use crate::Wire;

type Errand<W> = Box<dyn FnOnce(&mut W) + Send>;

/// A wire in a thread of its own, which does one errand after the other.
///
/// Engines want their calls from one thread; here it is this one, whoever asks. A panic of the owner is one of the wire
/// ([`Wire::fail`]), so that other processes do not wait.
pub struct Courier<W: Wire> {
    errands: Option<Sender<Errand<W>>>,
    thread: Option<JoinHandle<()>>,
    awaited: Arc<AtomicBool>,
    rank: usize,
    count: usize,
}

/// What an errand will have brought.
pub struct Errands<T> {
    result: Receiver<T>,
    awaited: Arc<AtomicBool>,
}

impl<T> Errands<T> {
    /// Waits for it.
    ///
    /// # Panics
    /// If the wire's thread has.
    pub fn wait(self) -> T {
        self.awaited.store(true, Ordering::SeqCst);
        let result = self.result.recv().expect("the wire's thread goes on");
        self.awaited.store(false, Ordering::SeqCst);
        result
    }
}

impl<W: Wire + 'static> Courier<W> {
    /// Starts the thread, which makes the wire; none if it cannot.
    pub fn start(make: impl FnOnce() -> Option<W> + Send + 'static) -> Option<Self> {
        let (errands, todo) = channel::<Errand<W>>();
        let (tell, made) = channel();
        let awaited = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&awaited);
        let thread = thread::Builder::new().name("ranks".into()).spawn(move || {
            let Some(mut wire) = make() else { return };
            wire.patience(seen);
            if tell.send((wire.rank(), wire.count())).is_ok() {
                todo.into_iter().for_each(|errand| errand(&mut wire));
            }
        });
        let thread = thread.ok()?;
        let (rank, count) = made.recv().ok()?;
        Some(Courier { errands: Some(errands), thread: Some(thread), awaited, rank, count })
    }

    /// Number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Processes in all.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Begins an errand.
    pub fn begin<T: Send + 'static>(&self, errand: impl FnOnce(&mut W) -> T + Send + 'static) -> Errands<T> {
        let (tell, result) = channel();
        let errand = move |wire: &mut W| {
            // Whoever does not wait for it has no use for it.
            let _ = tell.send(errand(wire));
        };
        if let Some(errands) = &self.errands {
            // A thread that has ended is noticed where its result is waited for.
            let _ = errands.send(Box::new(errand));
        }
        Errands { result, awaited: Arc::clone(&self.awaited) }
    }

    /// Has an errand done, and waits for what it brings.
    ///
    /// # Panics
    /// If the wire's thread has.
    pub fn ask<T: Send + 'static>(&self, errand: impl FnOnce(&mut W) -> T + Send + 'static) -> T {
        self.begin(errand).wait()
    }
}

impl<W: Wire> Drop for Courier<W> {
    fn drop(&mut self) {
        if let (true, Some(errands)) = (thread::panicking(), &self.errands) {
            let _ = errands.send(Box::new(|wire: &mut W| wire.fail()));
        }
        drop(self.errands.take());
        if let Some(thread) = self.thread.take() {
            // What it had to say it has said.
            let _ = thread.join();
        }
    }
}
