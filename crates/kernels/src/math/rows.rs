//! Portable functions of encoder rows: norm, activations, softmax, weighted sums.
use super::{LANES, exp_one, fma, reduce_lanes, row_add_max, sigmoid_one};

/// As [`crate::silu`].
#[inline(always)]
pub(crate) fn silu<const FUSED: bool>(values: &mut [f32]) {
    values.iter_mut().for_each(|x| *x *= sigmoid_one::<FUSED>(*x));
}

/// As [`crate::add_silu`].
#[inline(always)]
pub(crate) fn add_silu<const FUSED: bool>(values: &mut [f32], bias: &[f32]) {
    for (x, bias) in values.iter_mut().zip(bias) {
        let sum = *x + bias;
        *x = sum * sigmoid_one::<FUSED>(sum);
    }
}

/// As [`crate::add_relu`].
#[inline(always)]
pub(crate) fn add_relu<const FUSED: bool>(values: &mut [f32], bias: &[f32]) {
    // Not `max`, which maps NaN to 0.
    values.iter_mut().zip(bias).for_each(|(x, bias)| *x = if *x + bias < 0.0 { 0.0 } else { *x + bias });
}

/// As [`crate::add_pair`].
#[inline(always)]
pub(crate) fn add_pair<const FUSED: bool>(out: &mut [f32], a: &[f32], b: &[f32]) {
    out.iter_mut().zip(a.iter().zip(b)).for_each(|(out, (a, b))| *out += a + b);
}

/// As [`crate::add_glu`].
#[inline(always)]
pub(crate) fn add_glu<const FUSED: bool>(out: &mut [f32], group: &[f32], bias: &[f32]) {
    let (values, gates) = group.split_at(out.len());
    let (value_bias, gate_bias) = bias.split_at(out.len());
    let pairs = values.iter().zip(value_bias).zip(gates.iter().zip(gate_bias));
    for (out, ((x, value_bias), (gate, gate_bias))) in out.iter_mut().zip(pairs) {
        *out = (x + value_bias) * sigmoid_one::<FUSED>(gate + gate_bias);
    }
}

/// As [`crate::add_exp`].
#[inline(always)]
pub(crate) fn add_exp<const FUSED: bool>(row: &mut [f32], addends: &[f32]) -> f32 {
    let max = row_add_max(row, addends);
    row.iter_mut().for_each(|z| *z = exp_one::<FUSED>(*z - max));
    lane_sum(row, |z| z)
}

/// As [`crate::layer_norm`].
#[inline(always)]
pub(crate) fn layer_norm<const FUSED: bool>(out: &mut [f32], x: &[f32], weight: &[f32], bias: &[f32]) {
    let inverse_width = 1.0 / x.len() as f32;
    let mean = lane_sum(x, |x| x) * inverse_width;
    let variance = lane_sum(x, |x| (x - mean) * (x - mean)) * inverse_width;
    let scale = 1.0 / (variance + crate::LAYER_NORM_EPSILON).sqrt();
    for ((out, x), (weight, bias)) in out.iter_mut().zip(x).zip(weight.iter().zip(bias)) {
        *out = fma::<FUSED>((x - mean) * scale, *weight, *bias);
    }
}

/// Returns `Σ f(x)`, in lanes that are added in a fixed order.
#[inline(always)]
fn lane_sum(x: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut sums = [0.0; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    chunks.iter().for_each(|x| (0..LANES).for_each(|i| sums[i] += f(x[i])));
    rest.iter().zip(&mut sums).for_each(|(x, sum)| *sum += f(*x));
    reduce_lanes(sums, |a, b| a + b)
}

/// As [`crate::weighted_sum`].
#[inline(always)]
pub(crate) fn weighted_sum<const FUSED: bool>(out: &mut [f32], bias: &[f32], taps: &[(&[f32], &[f32])]) {
    let full_len = weighted_sum_of_blocks::<FUSED, { 4 * LANES }>(out, 0, bias, taps);
    let full_len = weighted_sum_of_blocks::<FUSED, { LANES / 2 }>(out, full_len, bias, taps);
    weighted_sum_of_blocks::<FUSED, 1>(out, full_len, bias, taps);
}

/// Computes blocks of N sums from an element on; returns the end of the last.
///
/// With AVX2, the sums are in registers.
#[inline(always)]
fn weighted_sum_of_blocks<const FUSED: bool, const N: usize>(
    out: &mut [f32],
    first: usize,
    bias: &[f32],
    taps: &[(&[f32], &[f32])],
) -> usize {
    let block =
        |values: &[f32], offset: usize| -> [f32; N] { *values[offset..].first_chunk().expect("N values") };
    let mut offset = first;
    for out in out[first..].as_chunks_mut::<N>().0 {
        let mut sums = block(bias, offset);
        for (x, weight) in taps {
            let (x, weight) = (block(x, offset), block(weight, offset));
            (0..N).for_each(|i| sums[i] = fma::<FUSED>(x[i], weight[i], sums[i]));
        }
        *out = sums;
        offset += N;
    }
    offset
}
