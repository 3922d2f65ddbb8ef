//! Sample codings of audio files: integers, floats, mu-law, A-law and ADPCM.

use super::ByteOrder;
use super::ima4::PACKET_BYTES;
use crate::audio::channels::MonoSignal;
use crate::audio::full_scale;

/// Container, channels, rate and coding of a file.
pub(in crate::audio) struct SampleFormat {
    /// Name of the container.
    pub container: &'static str,
    pub channels: u16,
    pub sample_rate: u32,
    /// Bytes of one sample of all channels, or of an ADPCM block.
    pub block_bytes: u16,
    pub coding: Coding,
}

/// The coding of a sample.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::audio) enum Coding {
    /// Unsigned bytes.
    Unsigned8,
    /// Signed bytes.
    Signed8,
    /// Signed integers with `bits` significant lower bits.
    Integer {
        /// Bytes of each, 1 to 4.
        bytes: usize,
        /// Significant bits.
        bits: u32,
        /// Byte order.
        order: ByteOrder,
    },
    /// Floating-point numbers of 32 bits.
    Float32(ByteOrder),
    /// Floating-point numbers of 64 bits.
    Float64(ByteOrder),
    /// G.711 mu-law.
    MuLaw,
    /// G.711 A-law.
    ALaw,
    /// ADPCM blocks as defined by the Interactive Multimedia Association.
    ImaAdpcm,
    /// Microsoft ADPCM blocks.
    MsAdpcm,
    /// QuickTime IMA ADPCM blocks: 64 samples of one channel.
    QuickTimeAdpcm,
}

impl SampleFormat {
    /// A format whose coding determines the block size.
    pub(crate) fn new(container: &'static str, channels: u16, sample_rate: u32, coding: Coding) -> Self {
        let bytes = match coding {
            Coding::QuickTimeAdpcm => PACKET_BYTES,
            coding => coding.bytes(),
        };
        let block_bytes = (bytes as u16).saturating_mul(channels);
        SampleFormat { container, channels, sample_rate, block_bytes, coding }
    }

    /// Returns the bytes of one sample of all channels, at least 1.
    pub(crate) fn frame_bytes(&self) -> u64 {
        (self.coding.bytes() as u64 * u64::from(self.channels)).max(1)
    }
}

impl Coding {
    /// Returns whether samples are in ADPCM blocks, which `AdpcmBlockDecoder` decodes.
    pub(crate) fn is_adpcm(self) -> bool {
        matches!(self, Coding::ImaAdpcm | Coding::MsAdpcm | Coding::QuickTimeAdpcm)
    }

    /// Returns the bytes of one sample of one channel; 0 for ADPCM.
    pub(crate) fn bytes(self) -> usize {
        match self {
            Coding::Unsigned8 | Coding::Signed8 | Coding::MuLaw | Coding::ALaw => 1,
            Coding::Integer { bytes, .. } => bytes,
            Coding::Float32(_) => 4,
            Coding::Float64(_) => 8,
            Coding::ImaAdpcm | Coding::MsAdpcm | Coding::QuickTimeAdpcm => 0,
        }
    }

    /// Decodes complete samples; none of ADPCM.
    pub(crate) fn decode(self, bytes: &[u8], output: &mut MonoSignal) {
        match self {
            Coding::Unsigned8 => {
                output.append_interleaved(bytes.iter().map(|&byte| (f64::from(byte) - 128.0) / 128.0))
            }
            Coding::Signed8 => {
                output.append_interleaved(bytes.iter().map(|&byte| f64::from(byte as i8) / 128.0))
            }
            Coding::MuLaw => {
                output.append_interleaved(bytes.iter().map(|&byte| MU_LAW_VALUES[usize::from(byte)]))
            }
            Coding::ALaw => {
                output.append_interleaved(bytes.iter().map(|&byte| A_LAW_VALUES[usize::from(byte)]))
            }
            Coding::Integer { bytes: 2, bits: 16, order } => {
                append_numbers::<2>(bytes, order, output, |x| f64::from(i16::from_le_bytes(x)) / 32768.0);
            }
            Coding::Integer { bytes: 3, order, .. } => {
                append_numbers::<3>(bytes, order, output, |[a, b, c]| {
                    decode_i32([0, a, b, c]) * full_scale(32)
                });
            }
            Coding::Integer { bytes: 4, bits: 24, order } => {
                append_numbers::<4>(bytes, order, output, |[a, b, c, _]| {
                    decode_i32([0, a, b, c]) * full_scale(32)
                });
            }
            Coding::Integer { order, .. } => {
                append_numbers::<4>(bytes, order, output, |x| decode_i32(x) * full_scale(32));
            }
            Coding::Float32(order) => {
                append_numbers::<4>(bytes, order, output, |x| f64::from(f32::from_le_bytes(x)));
            }
            Coding::Float64(order) => append_numbers::<8>(bytes, order, output, f64::from_le_bytes),
            Coding::ImaAdpcm | Coding::MsAdpcm | Coding::QuickTimeAdpcm => {}
        }
    }
}

/// Decodes a 32-bit integer.
fn decode_i32(bytes: [u8; 4]) -> f64 {
    f64::from(i32::from_le_bytes(bytes))
}

/// Appends numbers of `N` bytes; `decode_number` receives them in little-endian order.
fn append_numbers<const N: usize>(
    bytes: &[u8],
    order: ByteOrder,
    output: &mut MonoSignal,
    decode_number: impl Fn([u8; N]) -> f64,
) {
    let numbers = bytes.as_chunks::<N>().0.iter();
    match order {
        ByteOrder::Little => output.append_interleaved(numbers.map(|&number| decode_number(number))),
        ByteOrder::Big => output.append_interleaved(numbers.map(|&number| {
            let mut number = number;
            number.reverse();
            decode_number(number)
        })),
    }
}

/// The values of all G.711 codes, scaled to `[-1, 1)`.
static MU_LAW_VALUES: [f64; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        values[code] = decode_mu_law(code as u8) as f64 / 32768.0;
        code += 1;
    }
    values
};
static A_LAW_VALUES: [f64; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        values[code] = decode_a_law(code as u8) as f64 / 32768.0;
        code += 1;
    }
    values
};

/// Offset of the mu-law segments: 33 in 14 bits, here in 16.
const MU_LAW_BIAS: i32 = 33 << 2;

/// Decodes a mu-law code to 16 bits (ITU-T G.711, table 2).
///
/// Sign, segment of 3 bits, step of 4 bits, all inverted.
const fn decode_mu_law(code: u8) -> i32 {
    let code = !code;
    let magnitude = ((((code & 0x0f) as i32) << 3) + MU_LAW_BIAS) << ((code & 0x70) >> 4);
    if code & 0x80 != 0 { MU_LAW_BIAS - magnitude } else { magnitude - MU_LAW_BIAS }
}

/// Decodes an A-law code to 16 bits (ITU-T G.711, table 1).
///
/// Sign, segment of 3 bits, step of 4 bits, every second bit inverted.
const fn decode_a_law(code: u8) -> i32 {
    let code = code ^ 0x55;
    let step = ((code & 0x0f) as i32) << 4;
    let magnitude = match (code & 0x70) >> 4 {
        0 => step + 8,
        segment => (step + 0x108) << (segment - 1),
    };
    if code & 0x80 != 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g711_codes_have_the_values_of_the_recommendation() {
        // Extremes and smallest steps of G.711's tables, times 4 and 8 (14 and 13 bits in 16).
        let mu_law_values = [
            (0x00, -32124),
            (0x7f, 0),
            (0x80, 32124),
            (0xff, 0),
            (0xfe, 8),
            (0x7e, -8),
            (0xf0, 120),
            (0xef, 132),
        ];
        for (code, value) in mu_law_values {
            assert_eq!(MU_LAW_VALUES[code] * 32768.0, f64::from(value), "{code:x}");
        }
        let a_law_values = [(0xd5, 8), (0x55, -8), (0xaa, 32256), (0x2a, -32256), (0xd4, 24), (0xc5, 264)];
        for (code, value) in a_law_values {
            assert_eq!(A_LAW_VALUES[code] * 32768.0, f64::from(value), "{code:x}");
        }
    }
}
