//! A run's ranks over a wire.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{Device, Tensor};
use training::{Gradients, Ranks, Result};

use crate::sum::Buffers;
use crate::{Transfer, Wire};

/// Values of a bucket: 25 MB, long enough that latency does not count, and short enough to stay in a cache's reach.
const BUCKET: usize = 25_000_000 / size_of::<f32>();

/// One of the processes of a run.
pub struct Together<W> {
    wire: W,
    transfer: Transfer,
    buffers: Buffers,
    bucket: usize,
    step: Arc<AtomicU64>,
}

impl<W: Wire> Together<W> {
    /// Over a wire, on which gradients travel as these numbers.
    pub fn new(wire: W, transfer: Transfer) -> Self {
        Together { wire, transfer, buffers: Buffers::default(), bucket: BUCKET, step: Arc::default() }
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

    /// Sums what is in the bucket, and puts it back where it came from.
    fn flush(&mut self, bucket: &mut Vec<f32>, from: &mut Vec<(usize, usize)>, all: &mut [Vec<f32>]) {
        self.buffers.sum(&mut self.wire, self.transfer, bucket);
        let mut rest = &bucket[..];
        for (tensor, start) in from.drain(..) {
            let to = &mut all[tensor][start..];
            let len = to.len().min(rest.len());
            to[..len].copy_from_slice(&rest[..len]);
            rest = &rest[len..];
        }
        bucket.clear();
    }
}

impl<W: Wire> Ranks for Together<W> {
    fn rank(&self) -> usize {
        self.wire.rank()
    }

    fn count(&self) -> usize {
        self.wire.count()
    }

    fn gather(&mut self, mine: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let count = self.count();
        let mut lengths = vec![0; count * size_of::<u64>()];
        self.wire.all_gather(&(mine.len() as u64).to_le_bytes(), &mut lengths);
        let lengths = lengths.as_chunks().0.iter().map(|&bytes| u64::from_le_bytes(bytes) as usize);
        let lengths: Vec<usize> = lengths.collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let (mut send, mut all) = (mine, vec![0; count * longest]);
        send.resize(longest, 0);
        if longest > 0 {
            self.wire.all_gather(&send, &mut all);
        }
        Ok(lengths.into_iter().enumerate().map(|(at, len)| all[at * longest..][..len].to_vec()).collect())
    }

    fn sum(&mut self, gradients: &mut Gradients) -> Result<()> {
        let mut all = Vec::new();
        for (_, gradient) in gradients.iter() {
            all.push(gradient.flatten_all()?.to_vec1::<f32>()?);
        }
        let (mut bucket, mut from) = (Vec::with_capacity(self.bucket), Vec::new());
        for tensor in 0..all.len() {
            let mut start = 0;
            while start < all[tensor].len() {
                let end = all[tensor].len().min(start + self.bucket - bucket.len());
                bucket.extend_from_slice(&all[tensor][start..end]);
                from.push((tensor, start));
                start = end;
                if bucket.len() == self.bucket {
                    self.flush(&mut bucket, &mut from, &mut all);
                }
            }
        }
        self.flush(&mut bucket, &mut from, &mut all);
        for ((_, gradient), sums) in gradients.iter_mut().zip(all) {
            *gradient = Tensor::from_vec(sums, gradient.shape(), &Device::Cpu)?;
        }
        Ok(())
    }

    fn at_step(&mut self, step: u64) {
        self.step.store(step, Ordering::SeqCst);
    }
}
