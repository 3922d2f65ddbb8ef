//! Converts the audio of AN4 to WAV: NIST's SPHERE files and raw samples.
//!
//! ```text
//! "NIST_1A\n"  "   1024\n"  NAME -TYPE VALUE\n ...  end_head\n  blanks up to byte 1024
//! samples
//! ```

use std::io::Read;
use std::path::Path;

use super::check::path_error;
use crate::files::open_regular;
use crate::{Audio, Error, Result};

/// Sample rate of raw files, which have no header.
const RAW_RATE: u32 = 16_000;

/// Largest file size in bytes: two minutes, four times the longest utterance.
const MAX_BYTES: u64 = 4 << 20;

/// Bytes of a WAV header; its length field does not count the first 8.
const WAV_HEADER_BYTES: u32 = 44;

/// 16-bit samples of one channel.
struct SphereSamples {
    samples: Vec<i16>,
    rate: u32,
}

/// Reads a SPHERE file (`.sph`) or raw samples (`.raw`).
fn read(path: &Path) -> Result<SphereSamples> {
    let mut bytes = Vec::new();
    let file = open_regular(path).map(|file| file.take(MAX_BYTES + 1));
    file.and_then(|mut file| file.read_to_end(&mut bytes))
        .map_err(|source| Error::Io { path: path.into(), source })?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(path_error(path, format!("a recording of at most {MAX_BYTES} bytes"), "more"));
    }
    if bytes.starts_with(b"NIST_1A\n") { parse_sphere(path, &bytes) } else { decode_raw(path, &bytes) }
}

/// Reads a SPHERE or raw file as audio.
pub(super) fn read_audio(path: &Path) -> Result<Audio> {
    let SphereSamples { samples, rate } = read(path)?;
    let samples = samples.iter().map(|&sample| f32::from(sample) / 32768.0).collect();
    Ok(Audio { samples, sample_rate: rate })
}

/// Converts a SPHERE or raw file to WAV.
pub(super) fn wav_bytes(path: &Path) -> Result<Vec<u8>> {
    let SphereSamples { samples, rate } = read(path)?;
    // The length of the file has been checked, so that all numbers fit into 32 bits.
    let data_bytes = 2 * samples.len() as u32;
    let mut file = Vec::with_capacity(WAV_HEADER_BYTES as usize + data_bytes as usize);
    file.extend(b"RIFF");
    file.extend((WAV_HEADER_BYTES - 8 + data_bytes).to_le_bytes());
    // One channel of 16-bit integers.
    file.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    file.extend([rate, 2 * rate].map(u32::to_le_bytes).concat());
    file.extend(b"\x02\0\x10\0data");
    file.extend(data_bytes.to_le_bytes());
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    Ok(file)
}

/// Parses a SPHERE file.
fn parse_sphere(path: &Path, bytes: &[u8]) -> Result<SphereSamples> {
    let parse_number = |name: &str, text: &str| {
        text.trim()
            .parse::<usize>()
            .map_err(|_| path_error(path, format!("a number as {name}"), format!("{text:?}")))
    };
    // The header: its length, then its fields.
    let length_text = String::from_utf8_lossy(bytes.get(8..16).unwrap_or_default()).into_owned();
    let length = parse_number("the length of the header", &length_text)?;
    let Some((header, data)) = bytes.split_at_checked(length).filter(|_| length >= 16) else {
        return Err(path_error(
            path,
            format!("a header of {length} bytes"),
            format!("{} bytes in all", bytes.len()),
        ));
    };
    let header = String::from_utf8_lossy(&header[16..]);
    let field = |name: &str| {
        let lines = header.lines().take_while(|line| line.trim() != "end_head");
        lines.filter_map(|line| line.split_once(' ')).find(|(found, _)| *found == name).map(|(_, rest)| {
            let value = rest.trim_start().split_once(' ').map_or("", |(_, value)| value);
            value.trim().to_owned()
        })
    };
    let required_field =
        |name: &str| field(name).ok_or_else(|| path_error(path, format!("a field `{name}`"), "none"));
    for (name, expected) in [("channel_count", "1"), ("sample_n_bytes", "2"), ("sample_coding", "pcm")] {
        if let Some(found) = field(name).filter(|found| found != expected) {
            return Err(path_error(path, format!("`{name}` {expected}"), found));
        }
    }
    // Byte order, number of samples and rate.
    let is_little_endian = match required_field("sample_byte_format")?.as_str() {
        "01" => true,
        "10" => false,
        other => return Err(path_error(path, "`sample_byte_format` 01 or 10", other)),
    };
    let count = parse_number("sample_count", &required_field("sample_count")?)?;
    let rate = parse_number("sample_rate", &required_field("sample_rate")?)?;
    let rate = u32::try_from(rate).ok().filter(|&rate| rate > 0);
    let rate = rate.ok_or_else(|| path_error(path, "a sample rate", "0 or beyond 32 bits"))?;
    if data.len() / 2 < count {
        return Err(Error::Truncated {
            path: path.into(),
            format: "SPHERE",
            expected: count as u64,
            found: data.len() as u64 / 2,
        });
    }
    // The samples and their checksum.
    let samples = decode_i16(&data[..2 * count], is_little_endian);
    if let Some(checksum) = field("sample_checksum") {
        let computed = samples.iter().fold(0u16, |sum, &sample| sum.wrapping_add(sample as u16));
        if parse_number("sample_checksum", &checksum)? != usize::from(computed) {
            return Err(path_error(path, format!("samples with checksum {checksum}"), computed));
        }
    }
    check_not_empty(path, SphereSamples { samples, rate })
}

/// Decodes raw samples in the byte order that gives the smoother signal.
///
/// Speech changes little from one sample to the next; with swapped bytes it is noise.
fn decode_raw(path: &Path, bytes: &[u8]) -> Result<SphereSamples> {
    if bytes.len() % 2 == 1 {
        return Err(path_error(path, "complete samples of 16 bits", format!("{} bytes", bytes.len())));
    }
    let roughness = |is_little_endian| {
        let samples = decode_i16(bytes, is_little_endian);
        let steps = samples.windows(2).map(|pair| u64::from(pair[0].abs_diff(pair[1])));
        (steps.sum::<u64>(), samples)
    };
    let ((big_roughness, big_samples), (little_roughness, little_samples)) =
        (roughness(false), roughness(true));
    // One signal must be less than half as rough as the other.
    let samples = match () {
        () if big_roughness == little_roughness || 2 * big_roughness < little_roughness => big_samples,
        () if 2 * little_roughness < big_roughness => little_samples,
        () => return Err(path_error(path, "raw 16-bit speech", "noise, in either byte order")),
    };
    check_not_empty(path, SphereSamples { samples, rate: RAW_RATE })
}

fn check_not_empty(path: &Path, sound: SphereSamples) -> Result<SphereSamples> {
    match sound.samples.is_empty() {
        true => Err(Error::EmptyAudio { path: path.into() }),
        false => Ok(sound),
    }
}

fn decode_i16(bytes: &[u8], is_little_endian: bool) -> Vec<i16> {
    let decode_sample = if is_little_endian { i16::from_le_bytes } else { i16::from_be_bytes };
    bytes.as_chunks::<2>().0.iter().map(|&pair| decode_sample(pair)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        file
    }

    fn test_samples() -> Vec<i16> {
        (0..500).map(|n| ((f64::from(n) * 0.05).sin() * 3000.0) as i16).collect()
    }

    fn sphere_header(fields: &str) -> Vec<u8> {
        let mut header = format!("NIST_1A\n   1024\n{fields}\nend_head\n").into_bytes();
        header.resize(1024, b' ');
        header
    }

    #[test]
    fn raw_samples_are_read_in_the_smoother_byte_order() {
        for little in [false, true] {
            let bytes = test_samples()
                .into_iter()
                .flat_map(|s| if little { s.to_le_bytes() } else { s.to_be_bytes() });
            let sphere = read(write_file(&bytes.collect::<Vec<u8>>()).path()).unwrap();
            assert_eq!((sphere.samples, sphere.rate), (test_samples(), 16_000));
        }
        let noise: Vec<u8> = (0u32..4000).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for (bytes, part) in
            [(&noise[..], "noise"), (&[1, 2, 3], "complete samples"), (&[], "at least one sample")]
        {
            let error = read(write_file(bytes).path()).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn sphere_headers_are_validated() {
        let checksum = test_samples().iter().fold(0u16, |sum, &s| sum.wrapping_add(s as u16));
        let good = format!(
            "channel_count -i 1\nsample_count -i 500\nsample_rate -i 16000\nsample_n_bytes -i 2\nsample_byte_format -s2 10\nsample_checksum -i {checksum}"
        );
        let data: Vec<u8> = test_samples().iter().flat_map(|s| s.to_be_bytes()).collect();
        let file_bytes = |fields: &str| [sphere_header(fields), data.clone()].concat();
        let sphere = read(write_file(&file_bytes(&good)).path()).unwrap();
        assert_eq!((sphere.samples, sphere.rate), (test_samples(), 16_000));
        for (from, to, part) in [
            ("channel_count -i 1", "channel_count -i 2", "`channel_count` 1"),
            ("-s2 10", "-s2 01", "checksum"),
            ("-s2 10", "-s1 1", "01 or 10"),
            ("sample_rate -i 16000\n", "", "`sample_rate`"),
            ("sample_count -i 500", "sample_count -i 501", "truncated"),
            ("sample_count -i 500", "sample_count -i -5", "a number"),
            ("sample_count -i 500", "sample_count -i 0", "checksum"),
            ("sample_n_bytes -i 2", "sample_coding -s26 pcm,embedded-shorten-v2.00", "`sample_coding` pcm"),
        ] {
            let error =
                read(write_file(&file_bytes(&good.replace(from, to))).path()).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        let huge = b"NIST_1A\n9999999\nend_head\n";
        assert!(read(write_file(huge).path()).err().unwrap().to_string().contains("9999999"));
        assert!(read(write_file(b"NIST_1A\n").path()).is_err());
        assert!(read(write_file(b"NIST_1A\n      3\nxx").path()).is_err());
    }
}
