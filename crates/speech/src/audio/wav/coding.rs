//! How samples are written in WAV and AU files: integers, floats, mu-law and A-law.

use std::path::Path;

use super::Order;
use crate::audio::channels::Mono;
use crate::audio::{format_error, full_scale};
use crate::{Error, Result};

const EXPECTED: &str = "PCM, float, mu-law, A-law or ADPCM samples";
const PCM: u16 = 1;
const MS_ADPCM: u16 = 2;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const IMA_ADPCM: u16 = 0x11;
const EXTENSIBLE: u16 = 0xfffe;
/// What follows the format tag in the identifiers that are made of one (KSDATAFORMAT_SUBTYPE_WAVEFORMATEX).
const OF_TAG: [u8; 12] = [0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];

/// The `fmt ` chunk.
pub(super) struct Format {
    pub channels: u16,
    pub sample_rate: u32,
    /// Bytes of a sample of all channels, or of a block of ADPCM.
    pub block_bytes: u16,
    pub coding: Coding,
}

/// How a sample is written.
#[derive(Clone, Copy, PartialEq)]
pub(in crate::audio) enum Coding {
    /// Unsigned bytes.
    Unsigned8,
    /// Signed integers of so many bytes, whose lower `bits` count.
    Integer {
        /// Bytes of each, 1 to 4.
        bytes: usize,
        /// Bits that count.
        bits: u32,
        /// Byte order.
        order: Order,
    },
    /// Floating-point numbers of 32 bits.
    Float32(Order),
    /// Floating-point numbers of 64 bits.
    Float64(Order),
    /// G.711.
    MuLaw,
    /// G.711.
    ALaw,
    /// Blocks of ADPCM as the Interactive Multimedia Association defines it.
    ImaAdpcm,
    /// Blocks of Microsoft's ADPCM.
    MsAdpcm,
}

impl Format {
    /// Bytes of a sample of all channels, at least 1.
    pub fn frame_bytes(&self) -> u64 {
        (self.coding.bytes() as u64 * u64::from(self.channels)).max(1)
    }

    pub fn parse(path: &Path, chunk: &[u8], order: Order) -> Result<Self> {
        if chunk.len() < 16 {
            let found = format!("a `fmt ` chunk of {} bytes", chunk.len());
            return Err(format_error(path, "a `fmt ` chunk of 16 bytes or more", found));
        }
        let short = |at: usize| order.number::<2>(&chunk[at..]) as u16;
        let (mut tag, channels, block_bytes, bits) = (short(0), short(2), short(12), short(14));
        let sample_rate = order.number::<4>(&chunk[4..]) as u32;
        let mut bits = u32::from(bits);
        let is_extensible = tag == EXTENSIBLE && chunk.len() >= 40;
        if is_extensible {
            if chunk[28..40] != OF_TAG && order == Order::Little {
                let found = format!("the extensible format {}", hexadecimal(&chunk[24..40]));
                return Err(format_error(path, EXPECTED, found));
            }
            tag = order.number::<4>(&chunk[24..]) as u16;
        }
        let container = usize::from(block_bytes).checked_div(usize::from(channels)).unwrap_or(0);
        // Some writers leave the block size 0.
        let container = if container == 0 { bits.div_ceil(8) as usize } else { container };
        // Samples of fewer bits than their container are its upper ones: read whole, they have their scale. Without the
        // extension, 24 bits in 4 bytes are the lower ones.
        if tag == PCM && (is_extensible || bits % 8 != 0) && bits <= 8 * container as u32 {
            bits = 8 * container as u32;
        }
        let coding = match (tag, container, bits) {
            (PCM, 1, 8) => Coding::Unsigned8,
            (PCM, 2, 16) | (PCM, 3, 24) | (PCM, 4, 24 | 32) => {
                Coding::Integer { bytes: container, bits, order }
            }
            (FLOAT, 4, 32) => Coding::Float32(order),
            (FLOAT, 8, 64) => Coding::Float64(order),
            (A_LAW, 1, 8) => Coding::ALaw,
            (MU_LAW, 1, 8) => Coding::MuLaw,
            (IMA_ADPCM, _, 4) => Coding::ImaAdpcm,
            (MS_ADPCM, _, 4) => Coding::MsAdpcm,
            (PCM | FLOAT | A_LAW | MU_LAW | IMA_ADPCM | MS_ADPCM, ..) => {
                let found = format!("{} of {bits} bits in {container} bytes", name(tag));
                return Err(format_error(path, EXPECTED, found));
            }
            _ => {
                let found = format!("format tag 0x{tag:04x} ({})", name(tag));
                return Err(format_error(path, EXPECTED, found));
            }
        };
        if channels == 0 {
            return Err(Error::Channels { path: path.into(), found: 0 });
        }
        Ok(Format { channels, sample_rate, block_bytes, coding })
    }
}

/// Format tags that occur (mmreg.h).
fn name(tag: u16) -> &'static str {
    match tag {
        PCM => "PCM",
        MS_ADPCM => "Microsoft ADPCM",
        FLOAT => "float",
        A_LAW => "A-law",
        MU_LAW => "mu-law",
        IMA_ADPCM => "IMA ADPCM",
        0x14 | 0x40 | 0x45 | 0x64 => "G.721 or G.726 ADPCM",
        0x28 => "LPC",
        0x31 => "GSM 6.10",
        0x50 => "MPEG layer 1 or 2",
        0x55 => "MP3",
        0x92 => "AC-3",
        0xff | 0x1600 | 0x1610 => "AAC",
        0x160..=0x163 => "Windows Media Audio",
        0x674f..=0x6751 => "Vorbis",
        0x704f => "Opus",
        0xf1ac => "FLAC",
        EXTENSIBLE => "extensible, without its extension",
        _ => "unknown",
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Coding {
    /// Bytes of a sample of one channel; 0 for blocks.
    pub fn bytes(self) -> usize {
        match self {
            Coding::Unsigned8 | Coding::MuLaw | Coding::ALaw => 1,
            Coding::Integer { bytes, .. } => bytes,
            Coding::Float32(_) => 4,
            Coding::Float64(_) => 8,
            Coding::ImaAdpcm | Coding::MsAdpcm => 0,
        }
    }

    /// Decodes whole samples.
    pub fn decode(self, bytes: &[u8], to: &mut Mono) {
        match self {
            Coding::Unsigned8 => to.extend(bytes.iter().map(|&byte| (f64::from(byte) - 128.0) / 128.0)),
            Coding::MuLaw => to.extend(bytes.iter().map(|&byte| MU_LAW_VALUES[usize::from(byte)])),
            Coding::ALaw => to.extend(bytes.iter().map(|&byte| A_LAW_VALUES[usize::from(byte)])),
            Coding::Integer { bytes: 2, bits: 16, order } => {
                integers::<2>(bytes, order, to, |x| f64::from(i16::from_le_bytes(x)) / 32768.0);
            }
            Coding::Integer { bytes: 3, order, .. } => {
                integers::<3>(bytes, order, to, |[a, b, c]| integer([0, a, b, c]) * full_scale(32));
            }
            Coding::Integer { bytes: 4, bits: 24, order } => {
                integers::<4>(bytes, order, to, |[a, b, c, _]| integer([0, a, b, c]) * full_scale(32));
            }
            Coding::Integer { order, .. } => {
                integers::<4>(bytes, order, to, |x| integer(x) * full_scale(32));
            }
            Coding::Float32(order) => {
                integers::<4>(bytes, order, to, |x| f64::from(f32::from_le_bytes(x)));
            }
            Coding::Float64(order) => integers::<8>(bytes, order, to, f64::from_le_bytes),
            Coding::ImaAdpcm | Coding::MsAdpcm => {}
        }
    }
}

fn integer(bytes: [u8; 4]) -> f64 {
    f64::from(i32::from_le_bytes(bytes))
}

/// Decodes numbers of `N` bytes, which `value` gets in little-endian order.
fn integers<const N: usize>(bytes: &[u8], order: Order, to: &mut Mono, value: impl Fn([u8; N]) -> f64) {
    let numbers = bytes.as_chunks::<N>().0.iter();
    match order {
        Order::Little => to.extend(numbers.map(|&number| value(number))),
        Order::Big => to.extend(numbers.map(|&number| {
            let mut number = number;
            number.reverse();
            value(number)
        })),
    }
}

/// Values of all codes of G.711's two laws, as 16-bit integers with their scale.
static MU_LAW_VALUES: [f64; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        values[code] = mu_law(code as u8) as f64 / 32768.0;
        code += 1;
    }
    values
};
static A_LAW_VALUES: [f64; 256] = {
    let (mut values, mut code) = ([0.0; 256], 0);
    while code < 256 {
        values[code] = a_law(code as u8) as f64 / 32768.0;
        code += 1;
    }
    values
};

/// ITU-T G.711, table 2, in 16 bits: sign, segment of 3 bits, step of 4 bits, all inverted.
const fn mu_law(code: u8) -> i32 {
    let code = !code;
    let magnitude = ((((code & 0x0f) as i32) << 3) + 0x84) << ((code & 0x70) >> 4);
    if code & 0x80 != 0 { 0x84 - magnitude } else { magnitude - 0x84 }
}

/// ITU-T G.711, table 1, in 16 bits: sign, segment of 3 bits, step of 4 bits, every second bit inverted.
const fn a_law(code: u8) -> i32 {
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
    fn laws_have_the_values_of_the_recommendation() {
        // Ends and smallest steps of G.711's tables, times 4 and 8 (14 and 13 bits in 16).
        let mu = [
            (0x00, -32124),
            (0x7f, 0),
            (0x80, 32124),
            (0xff, 0),
            (0xfe, 8),
            (0x7e, -8),
            (0xf0, 120),
            (0xef, 132),
        ];
        for (code, value) in mu {
            assert_eq!(MU_LAW_VALUES[code] * 32768.0, f64::from(value), "{code:x}");
        }
        let a = [(0xd5, 8), (0x55, -8), (0xaa, 32256), (0x2a, -32256), (0xd4, 24), (0xc5, 264)];
        for (code, value) in a {
            assert_eq!(A_LAW_VALUES[code] * 32768.0, f64::from(value), "{code:x}");
        }
    }
}
