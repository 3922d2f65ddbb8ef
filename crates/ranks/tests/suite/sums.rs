//! Sums have the same bits everywhere, in whatever buckets they travel.
use candle_core::{Device, Tensor};
use proptest::prelude::*;
use ranks::{Threads, Together, Transfer};
use training::{Gradients, Ranks};

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
        let mut gradients = gradients(ranks.rank(), lengths);
        ranks.sum(&mut gradients).unwrap();
        values(&gradients)
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
