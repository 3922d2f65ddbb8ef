//! Processes as threads that talk through channels, for tests of what they find together.
use std::{
    error::Error,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

use panda_core::{Exchange, Peers};

struct Channels {
    rank: usize,
    to: Vec<Sender<Vec<f64>>>,
    from: Vec<Receiver<Vec<f64>>>,
}

impl Exchange for Channels {
    fn rank(&self) -> usize {
        self.rank
    }

    fn count(&self) -> usize {
        self.to.len()
    }

    /// Nobody waits for ever for one that does not come, nor takes what was meant for another call.
    fn gather(&mut self, mine: &[f64], all: &mut [f64]) -> Result<(), Box<dyn Error + Send + Sync>> {
        for to in &self.to {
            to.send(mine.to_vec())?;
        }
        for (from, all) in self.from.iter().zip(all.chunks_exact_mut(mine.len())) {
            let said = from.recv_timeout(Duration::from_secs(20))?;
            if said.len() != all.len() {
                return Err(format!("expected {} numbers, found {}", all.len(), said.len()).into());
            }
            all.copy_from_slice(&said);
        }
        Ok(())
    }
}

/// What so many processes find.
pub fn together<T: Send>(count: usize, run: impl Fn(Peers) -> T + Sync) -> Vec<T> {
    let mut ends: Vec<_> = (0..count).map(|rank| Channels { rank, to: vec![], from: vec![] }).collect();
    for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
        let (sender, receiver) = channel();
        ends[from].to.push(sender);
        ends[to].from.push(receiver);
    }
    thread::scope(|scope| {
        let threads: Vec<_> = ends.into_iter().map(|end| scope.spawn(|| run(Peers::new(end)))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
