//! The other yardstick: how fast numbers are read.
use std::hint::black_box;
use std::time::Instant;

use kernels::{par_for, parts};

use super::median::median;

/// Numbers that a task reads: few enough that both caches near a core see little of the next pass.
const PIECE: usize = 1 << 16;
/// Passes over the numbers; the first one does not count.
const PASSES: usize = 9;
/// Sums side by side.
const LANES: usize = 64;

/// GB/s of adding up `count` numbers by all threads, again and again: the median pass.
pub fn read(count: usize) -> f64 {
    let values = vec![1u32; count];
    let rate = |_| {
        let start = Instant::now();
        par_for(parts(&values, PIECE), |_, piece| {
            black_box(sum(piece));
        });
        size_of_val(&*values) as f64 / start.elapsed().as_secs_f64() / 1e9
    };
    let rates: Vec<f64> = (0..PASSES).map(rate).collect();
    median(&rates[1..]).unwrap_or_default()
}

/// Whole numbers, whose sum may be taken in any order, so that it goes as fast as reading.
fn sum(values: &[u32]) -> u32 {
    let mut sums = [0u32; LANES];
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_add(*value);
        }
    }
    sums.iter().chain(rest).fold(0, |sum, value| sum.wrapping_add(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_read_and_time_passes() {
        assert_eq!(sum(&vec![1; 3 * LANES + 5]), 3 * LANES as u32 + 5);
        let rate = read(1 << 16);
        assert!(rate > 0.0 && rate.is_finite(), "{rate}");
    }
}
