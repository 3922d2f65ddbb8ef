//! Parses the `fmt ` chunk of WAV files: sample coding, channels, rate.

use std::path::Path;

use crate::Result;
use crate::audio::format_error;
use crate::audio::iff::ByteOrder;
use crate::audio::sample_data::{Coding, SampleFormat};

const EXPECTED: &str = "PCM, float, mu-law, A-law or ADPCM samples";
// Format tags (mmreg.h).
const PCM: u16 = 1;
const MS_ADPCM: u16 = 2;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const IMA_ADPCM: u16 = 0x11;
const EXTENSIBLE: u16 = 0xfffe;
/// GUID bytes after the format tag (KSDATAFORMAT_SUBTYPE_WAVEFORMATEX).
const TAG_GUID_SUFFIX: [u8; 12] = [0, 0, 0x10, 0, 0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71];

/// Parses a `fmt ` chunk.
///
/// ```text
/// tag (2) channels (2) rate (4) bytes per second (4) block bytes (2) bits (2)
/// extensible: size (2) valid bits (2) channel mask (4) GUID (16, of which the first 4 are the tag)
/// ```
pub(super) fn parse(path: &Path, chunk: &[u8], order: ByteOrder) -> Result<SampleFormat> {
    if chunk.len() < 16 {
        let description = format!("a `fmt ` chunk of {} bytes", chunk.len());
        return Err(format_error(path, "a `fmt ` chunk of 16 bytes or more", description));
    }
    let field_u16 = |offset: usize| order.decode::<2>(&chunk[offset..]) as u16;
    let (mut tag, channels, block_bytes, bits) = (field_u16(0), field_u16(2), field_u16(12), field_u16(14));
    let sample_rate = order.decode::<4>(&chunk[4..]) as u32;
    let mut bits = u32::from(bits);
    let is_extensible = tag == EXTENSIBLE && chunk.len() >= 40;
    if is_extensible {
        if chunk[28..40] != TAG_GUID_SUFFIX && order == ByteOrder::Little {
            let description = format!("the extensible format {}", hexadecimal(&chunk[24..40]));
            return Err(format_error(path, EXPECTED, description));
        }
        tag = order.decode::<4>(&chunk[24..]) as u16;
    }
    let container_bytes = usize::from(block_bytes).checked_div(usize::from(channels)).unwrap_or(0);
    // Some writers leave the block size 0.
    let container_bytes = if container_bytes == 0 { bits.div_ceil(8) as usize } else { container_bytes };
    // Samples of fewer bits than their container are its upper bits, so the whole container keeps
    // their scale. Without the extension, 24 bits in 4 bytes are the lower ones.
    if tag == PCM && (is_extensible || bits % 8 != 0) && bits <= 8 * container_bytes as u32 {
        bits = 8 * container_bytes as u32;
    }
    let coding = match (tag, container_bytes, bits) {
        (PCM, 1, 8) => Coding::Unsigned8,
        (PCM, 2, 16) | (PCM, 3, 24) | (PCM, 4, 24 | 32) => {
            Coding::Integer { bytes: container_bytes, bits, order }
        }
        (FLOAT, 4, 32) => Coding::Float32(order),
        (FLOAT, 8, 64) => Coding::Float64(order),
        (A_LAW, 1, 8) => Coding::ALaw,
        (MU_LAW, 1, 8) => Coding::MuLaw,
        (IMA_ADPCM, _, 4) => Coding::ImaAdpcm,
        (MS_ADPCM, _, 4) => Coding::MsAdpcm,
        (PCM | FLOAT | A_LAW | MU_LAW | IMA_ADPCM | MS_ADPCM, ..) => {
            let description = format!("{} of {bits} bits in {container_bytes} bytes", tag_name(tag));
            return Err(format_error(path, EXPECTED, description));
        }
        _ => {
            let description = format!("format tag 0x{tag:04x} ({})", tag_name(tag));
            return Err(format_error(path, EXPECTED, description));
        }
    };
    Ok(SampleFormat { container: "WAV", channels, sample_rate, block_bytes, coding })
}

/// Returns the name of a format tag (mmreg.h).
fn tag_name(tag: u16) -> &'static str {
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
