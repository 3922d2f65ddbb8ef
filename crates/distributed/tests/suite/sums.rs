//! Tests of all-reduce between processes: sums have the same bits on all ranks.
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use distributed::{Communicator, Error, Pending, ProcessGroup, Result, ThreadCommunicator, TransferFormat};
use proptest::prelude::*;

/// Returns a pseudorandom number; magnitudes vary, and ranks differ.
fn test_value(rank: usize, term: usize, index: usize) -> f32 {
    let x = (1 + rank * 7919 + term * 104_729 + index * 31) as f32;
    (x * 0.37).sin() * (0.001f32 + (x * 0.11).cos().abs() * 100.0)
}

/// Returns the terms of a rank.
fn terms_of_rank(rank: usize, lengths: &[usize]) -> Vec<Vec<f32>> {
    let values =
        |(term, &length): (usize, &usize)| (0..length).map(|index| test_value(rank, term, index)).collect();
    lengths.iter().enumerate().map(values).collect()
}

/// Begins an all-reduce of terms that are vectors.
fn begin_all_reduce(
    group: &mut ProcessGroup,
    lengths: &[usize],
    terms: Receiver<(usize, Vec<f32>)>,
) -> Pending<Result<Vec<Vec<f32>>>> {
    group.begin_all_reduce(lengths.to_vec(), terms, |term, add| {
        add(term);
        Ok::<(), Infallible>(())
    })
}

/// Returns the concatenated sums, which must be equal on all ranks.
fn all_reduce(size: usize, lengths: &[usize], bucket_values: usize, transfer: TransferFormat) -> Vec<f32> {
    let sums_by_rank = ThreadCommunicator::run(size, |communicator| {
        let mut group = ProcessGroup::new(communicator, transfer).with_bucket_values(bucket_values);
        let (sender, receiver) = channel();
        let sums = begin_all_reduce(&mut group, lengths, receiver);
        // In another order on each rank.
        let mut terms: Vec<_> = terms_of_rank(group.rank(), lengths).into_iter().enumerate().collect();
        let count = terms.len().max(1);
        terms.rotate_left(group.rank() % count);
        terms.into_iter().for_each(|term| sender.send(term).unwrap());
        drop(sender);
        let sums = sums.wait().unwrap();
        assert_eq!(sums.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        sums.concat()
    });
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert!(sums_by_rank.iter().all(|sums| bits(sums) == bits(&sums_by_rank[0])), "ranks differ");
    sums_by_rank.into_iter().next().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn terms_are_added_in_the_order_of_the_ranks(
        lengths in prop::collection::vec(0usize..40, 0..6),
        size in 1usize..6,
        bucket_values in 1usize..50,
    ) {
        let terms_by_rank: Vec<_> = (0..size).map(|rank| terms_of_rank(rank, &lengths).concat()).collect();
        let sum = |index: usize| {
            terms_by_rank[1..].iter().fold(terms_by_rank[0][index], |sum, terms| sum + terms[index])
        };
        let expected: Vec<f32> = (0..terms_by_rank[0].len()).map(sum).collect();
        prop_assert_eq!(all_reduce(size, &lengths, bucket_values, TransferFormat::F32), expected);
    }

    #[test]
    fn the_error_of_bf16_is_within_its_bound(
        lengths in prop::collection::vec(0usize..40, 0..6),
        size in 1usize..6,
        bucket_values in 1usize..50,
    ) {
        let terms_by_rank: Vec<_> = (0..size).map(|rank| terms_of_rank(rank, &lengths).concat()).collect();
        let sums = all_reduce(size, &lengths, bucket_values, TransferFormat::Bf16);
        for (index, sum) in sums.into_iter().enumerate() {
            let exact: f64 = terms_by_rank.iter().map(|terms| f64::from(terms[index])).sum();
            let magnitude: f64 = terms_by_rank.iter().map(|terms| f64::from(terms[index]).abs()).sum();
            let bound = (exact.abs() + magnitude) / 256.0;
            prop_assert!((f64::from(sum) - exact).abs() <= bound, "{sum} instead of {exact}");
        }
    }
}

/// A communicator that counts its all-to-all calls.
struct CountingCommunicator {
    inner: ThreadCommunicator,
    calls: Arc<AtomicUsize>,
}

impl Communicator for CountingCommunicator {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) {
        self.inner.all_to_all(send, receive);
        self.calls.fetch_add(1, Ordering::SeqCst);
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        self.inner.all_gather(send, receive);
    }
}

#[test]
fn a_bucket_is_sent_while_others_are_computed() {
    let outcomes = ThreadCommunicator::run(2, |communicator| {
        let calls = Arc::new(AtomicUsize::new(0));
        let communicator = CountingCommunicator { inner: communicator, calls: calls.clone() };
        let mut group = ProcessGroup::new(communicator, TransferFormat::F32).with_bucket_values(4);
        let (sender, receiver) = channel();
        let sums = begin_all_reduce(&mut group, &[8, 3], receiver);
        sender.send((0, vec![1.0; 8])).unwrap();
        let started = Instant::now();
        while calls.load(Ordering::SeqCst) < 2 && started.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let early_calls = calls.load(Ordering::SeqCst);
        sender.send((1, vec![1.0; 3])).unwrap();
        drop(sender);
        (early_calls, sums.wait().unwrap(), calls.load(Ordering::SeqCst))
    });
    assert_eq!(
        outcomes,
        [const { 2 }; 2].map(|early_calls| (early_calls, vec![vec![2.0; 8], vec![2.0; 3]], 3))
    );
}

#[test]
fn missing_and_unreadable_terms_are_errors() {
    let outcomes = ThreadCommunicator::run(2, |communicator| {
        let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
        let (sender, receiver) = channel();
        sender.send((1, vec![1.0])).unwrap();
        drop(sender);
        let missing = begin_all_reduce(&mut group, &[8, 1], receiver).wait();
        assert!(matches!(missing, Err(Error::MissingTerms { expected: 2, found: 0 })), "{missing:?}");
        let (sender, receiver) = channel();
        sender.send((0, vec![1.0; 2])).unwrap();
        drop(sender);
        let rank = group.rank();
        let unreadable = group.begin_all_reduce(vec![2], receiver, move |term: &Vec<f32>, add| {
            if rank == 1 {
                return Err(std::fmt::Error);
            }
            add(term);
            Ok(())
        });
        unreadable.wait()
    });
    assert!(outcomes[0].as_ref().unwrap()[0].iter().all(|sum| sum.is_nan()));
    assert!(matches!(outcomes[1], Err(Error::Term(_))), "{:?}", outcomes[1]);
}

#[test]
fn transfer_formats_have_names() {
    assert_eq!(["f32", "bf16"].map(|name| name.parse()), [Ok(TransferFormat::F32), Ok(TransferFormat::Bf16)]);
    assert!("f16".parse::<TransferFormat>().unwrap_err().contains("expected f32 or bf16"));
}

#[test]
fn sums_in_bf16_are_rounded() {
    let [exact, rounded] =
        [TransferFormat::F32, TransferFormat::Bf16].map(|transfer| all_reduce(2, &[100], 30, transfer));
    assert!(exact.iter().zip(rounded).any(|(a, b)| (a - b).abs() > 1e-3 * a.abs()));
}
