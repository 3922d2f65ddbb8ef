//! A run's ranks over a wire.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use candle_core::Tensor;
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
        Together { courier, transfer, bucket: BUCKET, step: Arc::default() }
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
        let (transfer, bucket, lengths) = (self.transfer, self.bucket, lengths.to_vec());
        let sums = self.courier().begin(move |wire| {
            Summing {
                wire,
                transfer,
                buffers: Buffers::default(),
                bucket,
                waiting: Vec::new(),
                sums: Vec::new(),
            }
            .run(&lengths, terms)
        });
        Ok(Box::new(|| sums.wait()))
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

/// Sums of a list of tensors, one after another, cut into buckets.
struct Summing<'w> {
    wire: &'w mut dyn Wire,
    transfer: Transfer,
    buffers: Buffers,
    /// Values of a bucket.
    bucket: usize,
    /// Values that have not gone yet, less than a bucket.
    waiting: Vec<f32>,
    /// What has come back, the tensors one after another.
    sums: Vec<Vec<f32>>,
}

impl Summing<'_> {
    /// Adds up terms, each as soon as it and all before it are there.
    fn run(mut self, lengths: &[usize], terms: Receiver<(usize, Tensor)>) -> Result<Vec<Vec<f32>>> {
        self.waiting.reserve(self.bucket.min(lengths.iter().sum()));
        let mut here: Vec<Option<Tensor>> = lengths.iter().map(|_| None).collect();
        let (mut next, mut outcome) = (0, Ok(()));
        for (place, term) in terms {
            here[place] = Some(term);
            while let Some(term) = here.get_mut(next).and_then(Option::take) {
                // The others wait for as many values, whatever they are worth.
                let values = term.flatten_all().and_then(|term| term.to_vec1());
                let values = values.unwrap_or_else(|error| {
                    outcome = Err(error.into());
                    vec![f32::NAN; lengths[next]]
                });
                self.add(&values);
                next += 1;
            }
        }
        self.flush();
        outcome.map(|()| self.cut(lengths))
    }

    fn add(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            let (now, later) = values.split_at(values.len().min(self.bucket - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            if self.waiting.len() == self.bucket {
                self.flush();
            }
            values = later;
        }
    }

    fn flush(&mut self) {
        if !self.waiting.is_empty() {
            self.buffers.sum(self.wire, self.transfer, &mut self.waiting);
            let next = Vec::with_capacity(self.bucket);
            self.sums.push(std::mem::replace(&mut self.waiting, next));
        }
    }

    /// Buckets as tensors.
    fn cut(self, lengths: &[usize]) -> Vec<Vec<f32>> {
        let mut buckets = self.sums.into_iter();
        let (mut bucket, mut from) = (Vec::new(), 0);
        let tensor = |&length: &usize| {
            let mut values = Vec::with_capacity(length);
            while values.len() < length {
                if from == bucket.len() {
                    (bucket, from) = (buckets.next().unwrap_or_default(), 0);
                }
                let some = &bucket[from..bucket.len().min(from + length - values.len())];
                if some.is_empty() {
                    break;
                }
                values.extend_from_slice(some);
                from += some.len();
            }
            values
        };
        lengths.iter().map(tensor).collect()
    }
}
