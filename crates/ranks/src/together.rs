//! A run's ranks over a wire.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Storage, Tensor};
use training::{Ranks, Result, Sums};

use crate::sum::Buffers;
use crate::{Courier, Transfer, Wire};

/// Values of a bucket: 25 MB, long enough that latency does not count, and short enough to stay in a cache's reach.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

/// One of the processes of a run.
///
/// The wire has a thread of its own: a bucket of gradients goes as soon as its last one is there, while others are computed.
pub struct Together<'c, W: Wire> {
    courier: Ours<'c, W>,
    transfer: Transfer,
    bucket: usize,
    room: Arc<Mutex<Room>>,
    step: Arc<AtomicU64>,
}

enum Ours<'c, W: Wire> {
    Owned(Courier<W>),
    Lent(&'c Courier<W>),
}

impl<W: Wire + Send + 'static> Together<'_, W> {
    /// Over a wire, on which gradients travel as these numbers.
    ///
    /// # Panics
    /// If there can be no thread.
    pub fn new(wire: W, transfer: Transfer) -> Self {
        let courier = Courier::start(|| Some(wire)).expect("a thread can be started");
        Self::with(Ours::Owned(courier), transfer)
    }
}

impl<'c, W: Wire + 'static> Together<'c, W> {
    /// The same over a wire that has its thread already.
    pub fn over(courier: &'c Courier<W>, transfer: Transfer) -> Self {
        Self::with(Ours::Lent(courier), transfer)
    }

    fn with(courier: Ours<'c, W>, transfer: Transfer) -> Self {
        Together { courier, transfer, bucket: BUCKET, room: Arc::default(), step: Arc::default() }
    }

    /// The same with other buckets, of so many values; sums are the same.
    #[must_use]
    pub fn with_bucket(mut self, values: usize) -> Self {
        self.bucket = values.max(1);
        self
    }

    /// The same, with the step that it is in written down here, for whoever looks after the connection.
    #[must_use]
    pub fn with_step(mut self, step: Arc<AtomicU64>) -> Self {
        self.step = step;
        self
    }

    fn courier(&self) -> &Courier<W> {
        match &self.courier {
            Ours::Owned(courier) => courier,
            Ours::Lent(courier) => courier,
        }
    }
}

impl<W: Wire + 'static> Ranks for Together<'_, W> {
    fn rank(&self) -> usize {
        self.courier().rank()
    }

    fn count(&self) -> usize {
        self.courier().count()
    }

    fn gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        Ok(self.courier().ask(|wire| gather(wire, mine)))
    }

    fn sum(&mut self, lengths: &[usize], terms: Receiver<(usize, Tensor)>) -> Result<Sums> {
        let (transfer, most, lengths) = (self.transfer, self.bucket, lengths.to_vec());
        let room = Arc::clone(&self.room);
        let sums = self.courier().begin(move |wire| {
            let room = &mut *room.lock().unwrap_or_else(PoisonError::into_inner);
            Summing { wire, transfer, room, most, sums: Vec::new(), at: 0 }.run(&lengths, terms)
        });
        Ok(Box::new(|| sums.wait()))
    }

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("--transfer", self.transfer.to_string())]
    }

    fn at_step(&mut self, step: u64) {
        self.step.store(step, Ordering::SeqCst);
    }
}

/// What all say, of whatever lengths.
fn gather(wire: &mut dyn Wire, mine: Vec<u8>) -> Vec<Vec<u8>> {
    let count = wire.count();
    let mut lengths = vec![0; count * size_of::<u64>()];
    wire.all_gather(&(mine.len() as u64).to_le_bytes(), &mut lengths);
    let lengths = lengths.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes) as usize);
    let lengths: Vec<usize> = lengths.collect();
    let longest = lengths.iter().copied().max().unwrap_or(0);
    let (mut send, mut all) = (mine, vec![0; count * longest]);
    send.resize(longest, 0);
    if longest > 0 {
        wire.all_gather(&send, &mut all);
    }
    lengths.into_iter().enumerate().map(|(at, len)| all[at * longest..][..len].to_vec()).collect()
}

/// What stays from sum to sum.
#[derive(Default)]
struct Room {
    buffers: Buffers,
    bucket: Vec<f32>,
}

/// Sums of a list of tensors, one after another, cut into buckets.
struct Summing<'w> {
    wire: &'w mut dyn Wire,
    transfer: Transfer,
    room: &'w mut Room,
    /// Values of a bucket.
    most: usize,
    sums: Vec<Vec<f32>>,
    /// The tensor that the next sums belong to.
    at: usize,
}

impl Summing<'_> {
    /// Adds up terms, each as soon as it and all before it are there.
    fn run(mut self, lengths: &[usize], terms: Receiver<(usize, Tensor)>) -> Result<Vec<Vec<f32>>> {
        self.room.bucket.clear();
        self.sums = lengths.iter().map(|&length| Vec::with_capacity(length)).collect();
        let mut here: Vec<Option<Tensor>> = lengths.iter().map(|_| None).collect();
        let (mut next, mut outcome) = (0, Ok(()));
        for (place, term) in terms {
            here[place] = Some(term);
            while let Some(term) = here.get_mut(next).and_then(Option::take) {
                if let Err(error) = with_values(&term, |values| self.add(values, lengths)) {
                    // The others wait for as many values, whatever they are worth.
                    self.add(&vec![f32::NAN; lengths[next]], lengths);
                    outcome = Err(error.into());
                }
                next += 1;
            }
        }
        if next < lengths.len() {
            // Whoever did not hand in all has ended; a bucket of another length than the others' would say nothing.
            return Err(candle_core::Error::msg(format!(
                "{next} of {} gradients were handed in",
                lengths.len()
            ))
            .into());
        }
        self.flush(lengths);
        outcome.map(|()| self.sums)
    }

    fn add(&mut self, mut values: &[f32], lengths: &[usize]) {
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(self.most - self.room.bucket.len()));
            self.room.bucket.extend_from_slice(now);
            if self.room.bucket.len() == self.most {
                self.flush(lengths);
            }
            values = later;
        }
    }

    /// Sums what is in the bucket, and takes it to where it came from.
    fn flush(&mut self, lengths: &[usize]) {
        let Room { buffers, bucket } = &mut *self.room;
        buffers.sum(self.wire, self.transfer, bucket);
        let mut rest = &bucket[..];
        while !rest.is_empty() {
            let sums = &mut self.sums[self.at];
            let (now, later) = rest.split_at(rest.len().min(lengths[self.at] - sums.len()));
            sums.extend_from_slice(now);
            self.at += usize::from(sums.len() == lengths[self.at]);
            rest = later;
        }
        bucket.clear();
    }
}

/// The values of a contiguous tensor.
fn with_values(term: &Tensor, run: impl FnOnce(&[f32])) -> candle_core::Result<()> {
    let (storage, layout) = term.storage_and_layout();
    let (Storage::Cpu(values), Some((from, to))) = (&*storage, layout.contiguous_offsets()) else {
        candle_core::bail!("a gradient that is not contiguous, or not on the CPU")
    };
    run(&values.as_slice::<f32>()?[from..to]);
    Ok(())
}
