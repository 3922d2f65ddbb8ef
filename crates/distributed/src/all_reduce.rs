//! All-reduce of a list of terms in buckets, each sent as soon as its last term is there.
use std::sync::PoisonError;
use std::sync::mpsc::Receiver;

use crate::{Communicator, Error, Pending, ProcessGroup, ReduceBuffers, Result, Transfer};

/// Values of a bucket, 25 MB: long enough that latency does not count, and short enough to stay in a cache.
pub(crate) const BUCKET_VALUES: usize = 25_000_000 / size_of::<f32>();

impl ProcessGroup {
    /// Begins the sums over all ranks of terms of so many values, which are the same numbers on all ranks; sums have the same bits on
    /// all ranks.
    ///
    /// Terms arrive with their positions in the list, in any order; `read` passes a term's values on. No other call may begin before
    /// the sums are there.
    ///
    /// # Errors
    /// [`Error::MissingTerms`]; those of `read`, for which other ranks receive NaN.
    pub fn begin_all_reduce<T, E>(
        &mut self,
        lengths: Vec<usize>,
        terms: Receiver<(usize, T)>,
        read: impl Fn(&T, &mut dyn FnMut(&[f32])) -> std::result::Result<(), E> + Send + 'static,
    ) -> Pending<Result<Vec<Vec<f32>>>>
    where
        T: Send + 'static,
        E: std::error::Error + Send + Sync + 'static,
    {
        let (transfer, bucket_values, buckets) = (self.transfer, self.bucket_values, self.buckets.clone());
        self.thread.begin(move |communicator| {
            let buckets = &mut *buckets.lock().unwrap_or_else(PoisonError::into_inner);
            buckets.values.clear();
            let sums = lengths.iter().map(|&length| Vec::with_capacity(length)).collect();
            let lengths = &lengths;
            let sum =
                BucketedSum { communicator, transfer, buckets, bucket_values, lengths, sums, filled: 0 };
            sum.run(terms, read)
        })
    }
}

/// Buffers that are kept between sums.
#[derive(Default)]
pub(crate) struct Buckets {
    reduce: ReduceBuffers,
    values: Vec<f32>,
}

/// Sums of a list of terms, in the order of the list.
struct BucketedSum<'a> {
    communicator: &'a mut dyn Communicator,
    transfer: Transfer,
    buckets: &'a mut Buckets,
    bucket_values: usize,
    lengths: &'a [usize],
    sums: Vec<Vec<f32>>,
    /// Sums that are complete.
    filled: usize,
}

impl BucketedSum<'_> {
    /// Adds terms up, each as soon as it and all before it are there.
    fn run<T, E: std::error::Error + Send + Sync + 'static>(
        mut self,
        terms: Receiver<(usize, T)>,
        read: impl Fn(&T, &mut dyn FnMut(&[f32])) -> std::result::Result<(), E>,
    ) -> Result<Vec<Vec<f32>>> {
        let expected = self.lengths.len();
        let mut waiting: Vec<Option<T>> = (0..expected).map(|_| None).collect();
        let (mut next, mut outcome) = (0, Ok(()));
        for (position, term) in terms {
            waiting[position] = Some(term);
            while let Some(term) = waiting.get_mut(next).and_then(Option::take) {
                if let Err(error) = read(&term, &mut |values| self.add(values)) {
                    // The other ranks wait for as many values.
                    self.add(&vec![f32::NAN; self.lengths[next]]);
                    outcome = Err(Error::Term(error.into()));
                }
                next += 1;
            }
        }
        if next < expected {
            // This rank ends; buckets of other lengths than those of other ranks would be of no use.
            return Err(Error::MissingTerms { expected, found: next });
        }
        self.flush();
        outcome.map(|()| self.sums)
    }

    fn add(&mut self, mut values: &[f32]) {
        while !values.is_empty() {
            let room = self.bucket_values - self.buckets.values.len();
            let (now, later) = values.split_at(values.len().min(room));
            self.buckets.values.extend_from_slice(now);
            if self.buckets.values.len() == self.bucket_values {
                self.flush();
            }
            values = later;
        }
    }

    /// Reduces the bucket, and appends its values to the sums that they belong to.
    fn flush(&mut self) {
        let Buckets { reduce, values } = &mut *self.buckets;
        self.communicator.all_reduce(values, self.transfer, reduce);
        let mut rest = &values[..];
        while !rest.is_empty() {
            let (sums, length) = (&mut self.sums[self.filled], self.lengths[self.filled]);
            let (now, later) = rest.split_at(rest.len().min(length - sums.len()));
            sums.extend_from_slice(now);
            self.filled += usize::from(sums.len() == length);
            rest = later;
        }
        values.clear();
    }
}
