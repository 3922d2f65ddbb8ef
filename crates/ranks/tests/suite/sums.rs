//! Sums have the same bits everywhere, in whatever buckets they travel.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use model::Gradients;
use proptest::prelude::*;
use ranks::{Threads, Together, Transfer, Wire};
use training::Ranks;

/// Numbers without a pattern, of many sizes, which differ from rank to rank.
fn value(rank: usize, tensor: usize, at: usize) -> f32 {
    let x = (1 + rank * 7919 + tensor * 104_729 + at * 31) as f32;
    (x * 0.37).sin() * (0.001f32 + (x * 0.11).cos().abs() * 100.0)
}

fn gradients(rank: usize, lengths: &[usize]) -> Gradients {
    let mut gradients = Gradients::default();
    for (tensor, &len) in lengths.iter().enumerate() {
        let values = (0..len).map(|at| value(rank, tensor, at)).collect();
        gradients.insert(&format!("p{tensor:02}"), Tensor::from_vec(values, len, &Device::Cpu).unwrap());
    }
    gradients
}

fn values(gradients: &Gradients) -> Vec<f32> {
    gradients.iter().flat_map(|(_, gradient)| gradient.to_vec1::<f32>().unwrap()).collect()
}

fn summed(count: usize, lengths: &[usize], bucket: usize, transfer: Transfer) -> Vec<f32> {
    let all = Threads::run(count, |wire| {
        let mut ranks = Together::new(wire, transfer).with_bucket(bucket);
        let mine = gradients(ranks.rank(), lengths);
        let (hand_in, terms) = channel();
        let sums = ranks.sum(lengths, terms).unwrap();
        // In an order that is another in each.
        let mut terms: Vec<_> = mine.iter().map(|(_, term)| term.clone()).enumerate().collect();
        let places = terms.len().max(1);
        terms.rotate_left(ranks.rank() % places);
        terms.into_iter().for_each(|term| hand_in.send(term).unwrap());
        drop(hand_in);
        let sums = sums().unwrap();
        assert_eq!(sums.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
        sums.concat()
    });
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(all.iter().all(|other| bits(other) == bits(&all[0])), "ranks differ");
    all.into_iter().next().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn terms_are_added_in_the_order_of_the_ranks(
        lengths in prop::collection::vec(0usize..40, 0..6),
        count in 1usize..6,
        bucket in 1usize..50,
    ) {
        let parts: Vec<_> = (0..count).map(|rank| values(&gradients(rank, &lengths))).collect();
        let sum = |at: usize| parts[1..].iter().fold(parts[0][at], |sum, part| sum + part[at]);
        let expected: Vec<f32> = (0..parts[0].len()).map(sum).collect();
        prop_assert_eq!(summed(count, &lengths, bucket, Transfer::F32), expected);
    }

    #[test]
    fn bf16_is_as_far_off_as_it_says(
        lengths in prop::collection::vec(0usize..40, 0..6),
        count in 1usize..6,
        bucket in 1usize..50,
    ) {
        let parts: Vec<_> = (0..count).map(|rank| values(&gradients(rank, &lengths))).collect();
        let found = summed(count, &lengths, bucket, Transfer::Bf16);
        for (at, found) in found.into_iter().enumerate() {
            let exact: f64 = parts.iter().map(|part| f64::from(part[at])).sum();
            let size: f64 = parts.iter().map(|part| f64::from(part[at]).abs()).sum();
            let bar = (exact.abs() + size) / 256.0;
            prop_assert!((f64::from(found) - exact).abs() <= bar, "{found} instead of {exact}");
        }
    }

    #[test]
    fn everybody_hears_what_all_say(said in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..6)) {
        let all = Threads::run(said.len(), |wire| {
            let mut ranks = Together::new(wire, Transfer::F32);
            let mine = said[ranks.rank()].clone();
            ranks.gather(mine).unwrap()
        });
        prop_assert!(all.iter().all(|heard| *heard == said));
    }
}

/// A wire that counts what it has carried.
struct Counted(Threads, Arc<AtomicUsize>);

impl Wire for Counted {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn count(&self) -> usize {
        self.0.count()
    }

    fn all_to_all(&mut self, send: &[u8], receive: &mut [u8]) {
        self.0.all_to_all(send, receive);
        self.1.fetch_add(1, Ordering::SeqCst);
    }

    fn all_gather(&mut self, send: &[u8], receive: &mut [u8]) {
        self.0.all_gather(send, receive);
    }
}

#[test]
fn a_bucket_goes_while_others_are_computed() {
    let all = Threads::run(2, |wire| {
        let carried = Arc::new(AtomicUsize::new(0));
        let mut ranks = Together::new(Counted(wire, carried.clone()), Transfer::F32).with_bucket(4);
        let (hand_in, terms) = channel();
        let sums = ranks.sum(&[8, 3], terms).unwrap();
        let term = |values: usize| Tensor::ones(values, candle_core::DType::F32, &Device::Cpu).unwrap();
        hand_in.send((0, term(8))).unwrap();
        let patience = Instant::now();
        while carried.load(Ordering::SeqCst) < 2 && patience.elapsed() < Duration::from_secs(20) {
            std::thread::yield_now();
        }
        let early = carried.load(Ordering::SeqCst);
        hand_in.send((1, term(3))).unwrap();
        drop(hand_in);
        (early, sums().unwrap(), carried.load(Ordering::SeqCst))
    });
    assert_eq!(all, [const { 2 }; 2].map(|early| (early, vec![vec![2.0; 8], vec![2.0; 3]], 3)));
}

#[test]
fn numbers_on_the_wire_have_names() {
    assert_eq!(["f32", "bf16"].map(|name| name.parse()), [Ok(Transfer::F32), Ok(Transfer::Bf16)]);
    assert!("f16".parse::<Transfer>().unwrap_err().contains("expected f32 or bf16"));
}

#[test]
fn what_bf16_loses_is_seen() {
    let [exact, rounded] = [Transfer::F32, Transfer::Bf16].map(|how| summed(2, &[100], 30, how));
    assert!(exact.iter().zip(rounded).any(|(a, b)| (a - b).abs() > 1e-3 * a.abs()));
}
