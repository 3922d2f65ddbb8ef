//! Rounding of blocks to 8-bit integers and a scale.
use super::{BLOCK_STEPS, RowBlock};

/// Largest absolute value of a quantized number.
const MAX_QUANTIZED: f32 = 127.0;
/// Smallest maximum of a row's block; its inverse is finite.
const MIN_MAGNITUDE: f32 = 1.0 / (1u64 << 60) as f32;
/// The bits of an infinite `f32`; those of finite numbers are smaller.
const INFINITY_BITS: u32 = 0x7f80_0000;
/// A NaN in f16.
pub(super) const F16_NAN: u16 = 0x7e00;
/// Largest finite f16.
pub(super) const F16_MAX: f32 = 65504.0;
/// Adding this number rounds an `f32` to an integer, to nearest even.
const ROUNDING_OFFSET: f32 = 1.5 * (1 << 23) as f32;

/// Returns the smallest f16 of at least a positive number; NaN above the largest f16.
pub(super) fn f16_from_f32_up(value: f32) -> u16 {
    const SMALLEST_NORMAL: f32 = 1.0 / (1 << 14) as f32;
    if value.is_nan() || value > F16_MAX {
        F16_NAN
    } else if value < SMALLEST_NORMAL {
        (value * (1 << 24) as f32).ceil() as u16
    } else {
        // Adds just under a unit of f16 and changes the bias of the exponent.
        (((value.to_bits() + 0x1fff) >> 13) - ((127 - 15) << 10)) as u16
    }
}

/// Returns the value of a positive f16 or NaN.
#[inline(always)]
pub(super) fn f16_to_f32(bits: u16) -> f32 {
    const DENORMAL_OFFSET: u32 = 113 << 23;
    let word = u32::from(bits) << 13;
    // A denormal number is the difference of two normal ones.
    let denormal = f32::from_bits(word + DENORMAL_OFFSET) - f32::from_bits(DENORMAL_OFFSET);
    match bits {
        0..0x0400 => denormal,
        0x0400..0x7c00 => f32::from_bits(word + (112 << 23)),
        _ => f32::NAN,
    }
}

/// Returns the largest absolute value; at least [`INFINITY_BITS`] if one is not finite.
pub(super) fn magnitude_bits(values: &[f32]) -> u32 {
    values.iter().fold(0, |max, value| max.max(value.to_bits() & 0x7fff_ffff))
}

/// Rounds to nearest even; |value| must be at most 127 and a half, otherwise the result is 0.
#[inline(always)]
pub(super) fn round_to_i8(value: f32) -> i8 {
    let bits = (value + ROUNDING_OFFSET).to_bits();
    if value.abs() < 128.0 { bits.wrapping_sub(ROUNDING_OFFSET.to_bits()) as i8 } else { 0 }
}

/// Returns the scale of a row's block and its inverse.
///
/// `magnitude_bits` are those of the largest absolute value.
#[inline(always)]
pub(super) fn row_scale(magnitude_bits: u32) -> (f32, f32) {
    if magnitude_bits >= INFINITY_BITS {
        return (f32::NAN, 0.0);
    }
    let magnitude = f32::from_bits(magnitude_bits).max(MIN_MAGNITUDE);
    (magnitude / MAX_QUANTIZED, MAX_QUANTIZED / magnitude)
}

/// Quantizes at most 32 steps of a row; the others are 0.
pub(super) fn quantize_row_block(x: &[f32], block: &mut RowBlock) {
    let (scale, inverse) = row_scale(magnitude_bits(x));
    block.values = [0; BLOCK_STEPS];
    for (value, x) in block.values.iter_mut().zip(x) {
        *value = round_to_i8(x * inverse);
    }
    block.scale = scale;
    block.offset = -128 * block.values.iter().map(|&value| i32::from(value)).sum::<i32>();
}

/// Quantizes at most 32 steps of a column; the others are 0. Returns the scale.
pub(super) fn quantize_column_block(w: &[f32], values: &mut [i8; BLOCK_STEPS]) -> u16 {
    *values = [0; BLOCK_STEPS];
    let magnitude = f32::from_bits(magnitude_bits(w));
    let scale = f16_from_f32_up(magnitude / MAX_QUANTIZED);
    if scale != 0 && scale != F16_NAN {
        let inverse = 1.0 / f16_to_f32(scale);
        for (value, w) in values.iter_mut().zip(w) {
            *value = round_to_i8(w * inverse);
        }
    }
    scale
}
