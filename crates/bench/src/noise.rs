//! Numbers without pattern, cheap enough for gigabytes and the same in every process.

/// `count` numbers, uniform between `-scale` and `scale`; each purpose has its own.
pub fn noise(purpose: u64, count: usize, scale: f32) -> Vec<f32> {
    (0..count as u64).map(|i| scale * unit(purpose, i)).collect()
}

/// `count` label ids from 1 to below `classes`; 0 is the blank.
pub fn labels(purpose: u64, count: usize, classes: usize) -> Vec<u32> {
    (0..count as u64).map(|i| 1 + (hash(purpose, i) % (classes as u64 - 1)) as u32).collect()
}

/// Uniform between -1 and 1.
pub fn unit(purpose: u64, index: u64) -> f32 {
    // The upper 24 bits, all of which an f32 holds.
    (hash(purpose, index) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// SplitMix64 (Steele, Lea, Flood 2014) of a counter.
fn hash(purpose: u64, index: u64) -> u64 {
    let mut z = (purpose << 40 | index).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_uniform_and_tells_purposes_apart() {
        let draws = noise(3, 30_000, 2.0);
        let mean = draws.iter().sum::<f32>() / 30_000.0;
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / 30_000.0;
        assert!(mean.abs() < 0.03 && (variance - 4.0 / 3.0).abs() < 0.03, "{mean} {variance}");
        assert_ne!(noise(1, 5, 1.0), noise(2, 5, 1.0));
        assert!(labels(1, 500, 4).iter().all(|&id| (1..4).contains(&id)));
    }
}
