//! What a file is, by its first bytes.

use super::packets::Container;
use super::{aiff, wav};

/// Endings of the names of files that can be read, for members of shards; the first bytes decide the format.
pub(crate) const EXTENSIONS: [&str; 16] = [
    "wav", "wave", "flac", "mp3", "mp2", "aac", "m4a", "mp4", "m4b", "ogg", "oga", "opus", "aif", "aiff",
    "aifc", "caf",
];

/// First bytes that are looked at.
pub(super) const BYTES: usize = 16;

/// What can be told from the first bytes of a file.
pub(super) enum SoundFormat {
    Wav,
    Flac,
    Aiff,
    Caf,
    Packets(Container),
    /// A format that is known by name, but not read.
    Named(&'static str),
    Unknown,
}

/// The kind of a file that starts with these bytes; fewer than [`BYTES`] where it is shorter.
pub(super) fn kind(start: &[u8]) -> SoundFormat {
    let at = |place: usize, magic: &[u8]| start.get(place..).is_some_and(|rest| rest.starts_with(magic));
    if wav::is_wav(start) {
        return SoundFormat::Wav;
    }
    if at(0, b"fLaC") {
        return SoundFormat::Flac;
    }
    if at(0, b"OggS") {
        return SoundFormat::Packets(Container::Ogg);
    }
    if aiff::is_aiff(start) {
        return SoundFormat::Aiff;
    }
    if at(0, b"caff") {
        return SoundFormat::Caf;
    }
    if [&b"ftyp"[..], b"moov", b"mdat", b"wide", b"free", b"skip"].iter().any(|atom| at(4, atom)) {
        return SoundFormat::Packets(Container::Mp4);
    }
    if let &[0xff, second, third, ..] = start {
        let rate = (third >> 2) & 15;
        if second & 0xf6 == 0xf0 && rate < 13 {
            return SoundFormat::Packets(Container::Adts);
        }
        // Sync, version, layer, bit rate and sample rate that exist.
        if second & 0xe0 == 0xe0
            && second & 0x18 != 0x08
            && second & 6 != 0
            && third >> 4 != 15
            && rate & 3 != 3
        {
            return SoundFormat::Packets(Container::Mpeg);
        }
    }
    let known: [(&[u8], &'static str); 12] = [
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
    known
        .iter()
        .find(|(magic, _)| at(0, magic))
        .map_or(SoundFormat::Unknown, |(_, name)| SoundFormat::Named(name))
}
