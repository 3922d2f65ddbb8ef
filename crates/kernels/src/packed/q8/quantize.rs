//! Rounding of blocks to integers of 8 or 16 bits and a scale.
use super::{BLOCK_STEPS, RowBits, RowBlock};

/// Largest absolute value of a quantized number in 8 bits.
const MAX_QUANTIZED: f32 = 127.0;
/// Largest absolute value of a quantized number in 16 bits; its high byte is 127.
const MAX_QUANTIZED_16: f32 = 127.0 * 256.0;
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

/// Rounds to nearest even.
///
/// The result is 0 if |value| is 2¹⁵ or more, or NaN.
#[inline(always)]
fn round_to_even(value: f32) -> i32 {
    let bits = (value + ROUNDING_OFFSET).to_bits();
    if value.abs() < 32768.0 { bits.wrapping_sub(ROUNDING_OFFSET.to_bits()).cast_signed() } else { 0 }
}

/// Returns `high` and `low` of a number `256 high + low`.
#[inline(always)]
fn split_bytes(value: i32) -> [i8; 2] {
    let high = (value + 128) >> 8;
    [high as i8, (value - (high << 8)) as i8]
}

/// Returns the scale of a row's block and its inverse.
///
/// `magnitude_bits` are those of the largest absolute value.
#[inline(always)]
pub(super) fn row_scale(bits: RowBits, magnitude_bits: u32) -> (f32, f32) {
    if magnitude_bits >= INFINITY_BITS {
        return (f32::NAN, 0.0);
    }
    let max = match bits {
        RowBits::Eight => MAX_QUANTIZED,
        RowBits::Sixteen => MAX_QUANTIZED_16,
    };
    let magnitude = f32::from_bits(magnitude_bits).max(MIN_MAGNITUDE);
    (magnitude / max, max / magnitude)
}

/// Quantizes at most 32 steps of a row; the others are 0.
///
/// `bytes` are those of the block's numbers.
pub(super) fn quantize_row_block(bits: RowBits, x: &[f32], bytes: &mut [RowBlock]) {
    let (scale, inverse) = row_scale(bits, magnitude_bits(x));
    bytes.fill(RowBlock { scale, ..RowBlock::ZERO });
    for (step, x) in x.iter().enumerate() {
        let value = round_to_even(x * inverse);
        match &mut *bytes {
            [block] => block.values[step] = value as i8,
            bytes => {
                bytes.iter_mut().zip(split_bytes(value)).for_each(|(byte, value)| byte.values[step] = value)
            }
        }
    }
    for byte in bytes {
        byte.offset = -128 * byte.values.iter().map(|&value| i32::from(value)).sum::<i32>();
    }
}

/// Quantizes at most 32 steps of a column; the others are 0. Returns the scale.
pub(super) fn quantize_column_block(w: &[f32], values: &mut [i8; BLOCK_STEPS]) -> u16 {
    *values = [0; BLOCK_STEPS];
    let magnitude = f32::from_bits(magnitude_bits(w));
    let scale = f16_from_f32_up(magnitude / MAX_QUANTIZED);
    if scale != 0 && scale != F16_NAN {
        let inverse = 1.0 / f16_to_f32(scale);
        for (value, w) in values.iter_mut().zip(w) {
            *value = round_to_even(w * inverse) as i8;
        }
    }
    scale
}
