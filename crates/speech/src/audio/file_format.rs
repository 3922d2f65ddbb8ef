//! Detects the format of an audio file by its first bytes.

use super::packets::Container;
use super::{aiff, wav};

/// File name extensions of audio members of shards.
///
/// The first bytes decide the format.
pub(crate) const EXTENSIONS: [&str; 16] = [
    "wav", "wave", "flac", "mp3", "mp2", "aac", "m4a", "mp4", "m4b", "ogg", "oga", "opus", "aif", "aiff",
    "aifc", "caf",
];

/// Bytes needed to detect a format.
pub(super) const MAGIC_BYTES: usize = 16;

/// The format of an audio file.
pub(super) enum AudioFormat {
    Wav,
    Flac,
    Aiff,
    Caf,
    Packets(Container),
    /// A known format that this crate cannot read, by its name.
    Unsupported(&'static str),
    Unknown,
}

/// Detects the format from the first [`MAGIC_BYTES`] bytes.
///
/// Short files have fewer.
pub(super) fn detect(start: &[u8]) -> AudioFormat {
    let has_magic =
        |offset: usize, magic: &[u8]| start.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    if wav::is_wav(start) {
        return AudioFormat::Wav;
    }
    if has_magic(0, b"fLaC") {
        return AudioFormat::Flac;
    }
    if has_magic(0, b"OggS") {
        return AudioFormat::Packets(Container::Ogg);
    }
    if aiff::is_aiff(start) {
        return AudioFormat::Aiff;
    }
    if has_magic(0, b"caff") {
        return AudioFormat::Caf;
    }
    if [&b"ftyp"[..], b"moov", b"mdat", b"wide", b"free", b"skip"].iter().any(|atom| has_magic(4, atom)) {
        return AudioFormat::Packets(Container::Mp4);
    }
    // MPEG audio without a container: the first 11 or 12 bits of a frame are set.
    if let &[0xff, second, third, ..] = start {
        // ADTS sync with layer 0 and a valid sample rate.
        let rate_code = (third >> 2) & 15;
        if second & 0xf6 == 0xf0 && rate_code < 13 {
            return AudioFormat::Packets(Container::Adts);
        }
        // MPEG sync with a valid version, layer, bit rate and sample rate.
        if second & 0xe0 == 0xe0
            && second & 0x18 != 0x08
            && second & 6 != 0
            && third >> 4 != 15
            && rate_code & 3 != 3
        {
            return AudioFormat::Packets(Container::Mpeg);
        }
    }
    let unsupported: [(&[u8], &'static str); 12] = [
        (b".snd", "Sun AU"),
        (b"NIST_1A", "NIST SPHERE"),
        (b"riff\x2e\x91\xcf\x11", "Sony Wave64"),
        (b"#!AMR", "AMR"),
        (b"\x1a\x45\xdf\xa3", "Matroska or WebM"),
        (b"\x30\x26\xb2\x75", "Windows Media"),
        (b"MAC ", "Monkey's Audio"),
        (b"wvPk", "WavPack"),
        (b"TTA1", "True Audio"),
        (b"MThd", "MIDI"),
        (b"ajkg", "Shorten"),
        (b"Creative Voice", "Creative Voice"),
    ];
    unsupported
        .iter()
        .find(|(magic, _)| has_magic(0, magic))
        .map_or(AudioFormat::Unknown, |(_, name)| AudioFormat::Unsupported(name))
}
