//! Tests that audio readers use memory in proportion to the file size.
use std::path::Path;

use panda::speech::read_audio;

use crate::counting_allocator::{Measurement, exclusive, measure};
use crate::encoded::{FORMATS, has_encoders, repair_pages, signal, write_inputs};
use crate::mutants::fuzz;

/// Linear PCM: a block of samples and the buffer of the reader.
const LINEAR_READER_BYTES: usize = 512 << 10;
/// Compressed formats: tables, longest packets, codebooks of Vorbis.
const COMPRESSED_READER_BYTES: usize = 24 << 20;

/// Returns the allowed peak memory for a file of a format.
fn max_peak_bytes(name: &str, length: usize) -> usize {
    let is_linear = ["WAV", "AIFF"].iter().any(|start| name.starts_with(start));
    64 * length + if is_linear { LINEAR_READER_BYTES } else { COMPRESSED_READER_BYTES }
}

/// Reads a file; its peak memory must be within the limit.
fn read_within_limit(path: &Path, name: &str, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    let Measurement { peak_growth: peak, .. } = measure(|| drop(read_audio(path)));
    assert!(peak <= max_peak_bytes(name, bytes.len()), "{name}: {peak} bytes for a file of {}", bytes.len());
}

/// A header field: format, name of its chunk, offset from the first byte of that name.
type HeaderField = (&'static str, &'static [u8], usize);

/// Header fields with sizes, counts and rates.
const SIZE_FIELDS: &[HeaderField] = &[
    ("AIFF, 16 bits", b"FORM", 4),
    ("AIFF, 16 bits", b"COMM", 4),
    ("AIFF, 16 bits", b"COMM", 8),
    ("AIFF, 16 bits", b"COMM", 10),
    ("AIFF, 16 bits", b"SSND", 4),
    ("AIFF, 16 bits", b"SSND", 8),
    ("AIFF-C, IMA ADPCM", b"COMM", 8),
    ("CAF, 16 bits", b"desc", 12),
    ("CAF, 16 bits", b"desc", 28),
    ("CAF, 16 bits", b"desc", 36),
    ("CAF, 16 bits", b"data", 4),
    ("CAF, ALAC", b"desc", 28),
    ("CAF, ALAC", b"desc", 32),
    ("CAF, ALAC", b"kuki", 4),
    ("CAF, ALAC", b"kuki", 12),
    ("CAF, ALAC", b"chan", 20),
    ("CAF, ALAC", b"pakt", 12),
    ("CAF, ALAC", b"pakt", 20),
    ("CAF, ALAC", b"pakt", 36),
    ("FLAC", b"fLaC", 5),
    ("FLAC", b"fLaC", 8),
    ("FLAC", b"fLaC", 10),
    ("FLAC", b"fLaC", 21),
    ("FLAC", b"fLaC", 42),
    ("FLAC", b"fLaC", 46),
    ("FLAC in Ogg", b"fLaC", 5),
    ("FLAC in Ogg", b"fLaC", 8),
    ("FLAC in Ogg", b"fLaC", 10),
    ("FLAC in MP4", b"dfLa", 8),
    ("FLAC in MP4", b"dfLa", 12),
    ("MP3, lame", b"Info", 4),
    ("MP3, lame", b"Info", 8),
    ("MP3, lame", b"Info", 12),
    ("MP3, lame", b"LAME", 20),
    ("ALAC in M4A", b"alac", 8),
    ("ALAC in M4A", b"alac", 16),
    ("ALAC in M4A", b"moov", 4),
    ("ALAC in M4A", b"mdhd", 16),
    ("ALAC in M4A", b"mdhd", 20),
    ("ALAC in M4A", b"elst", 8),
    ("ALAC in M4A", b"stsd", 8),
    ("ALAC in M4A", b"stts", 8),
    ("ALAC in M4A", b"stts", 12),
    ("ALAC in M4A", b"stts", 16),
    ("ALAC in M4A", b"stsc", 8),
    ("ALAC in M4A", b"stsc", 16),
    ("ALAC in M4A", b"stsz", 8),
    ("ALAC in M4A", b"stsz", 12),
    ("ALAC in M4A", b"stsz", 16),
    ("ALAC in M4A", b"stco", 8),
    ("ALAC in M4A", b"stco", 12),
    ("AAC in M4A", b"esds", 8),
    ("AAC in M4A", b"esds", 9),
    ("AAC in M4A", b"esds", 30),
    ("Vorbis, oggenc", b"\x01vorbis", 11),
    ("Vorbis, oggenc", b"\x01vorbis", 28),
    ("Vorbis, oggenc", b"\x03vorbis", 7),
    ("Vorbis, oggenc", b"\x05vorbis", 7),
    ("Vorbis, oggenc", b"BCV", 3),
    ("Vorbis, oggenc", b"BCV", 5),
    ("Vorbis, oggenc", b"BCV", 8),
    ("Opus, opusenc", b"OpusHead", 9),
    ("Opus, opusenc", b"OpusHead", 10),
    ("Opus, opusenc", b"OpusTags", 8),
    ("WAV, IMA ADPCM", b"fmt ", 20),
    ("WAV, Microsoft ADPCM", b"fmt ", 10),
    ("WAV, RF64", b"ds64", 8),
    ("WAV, RF64", b"ds64", 16),
];

#[test]
fn declared_sizes_in_audio_headers_are_not_trusted() {
    let _guard = exclusive();
    if !has_encoders() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_inputs(folder.path(), &signal(4801));
    let path = folder.path().join("mutant");
    for &(name, chunk, offset) in SIZE_FIELDS {
        let format = FORMATS.iter().find(|format| format.name == name).unwrap();
        let file = format.encode(folder.path());
        // The last occurrence: names of formats come before those of their headers.
        let start = file.windows(chunk.len()).rposition(|window| window == chunk);
        let field_offset = start.unwrap_or_else(|| panic!("{name} without {chunk:?}")) + offset;
        for value in [
            &[0xff; 8][..],
            &[0xff; 4],
            &[0xff; 2],
            &[0x7f, 0xff, 0xff, 0xff],
            &[0, 0xff, 0xff, 0xff],
            &[0x10],
        ] {
            let mut damaged = file.clone();
            damaged.iter_mut().skip(field_offset).zip(value).for_each(|(to, from)| *to = *from);
            read_within_limit(&path, &format!("{name}, {chunk:?} {offset}"), &repair_pages(damaged));
        }
    }
    // Tags before and after the audio.
    let flac = FORMATS.iter().find(|format| format.name == "FLAC").unwrap().encode(folder.path());
    let tags: [&[u8]; 3] =
        [b"ID3\x04\0\0\x7f\x7f\x7f\x7f", b"ID3\x04\0\x10\x7f\x7f\x7f\x7f", b"ID3\x03\0\0\0\x7f\x7f\x7f"];
    tags.iter().for_each(|tag| read_within_limit(&path, "ID3", &[tag, &flac[..]].concat()));
    let ape =
        [&flac[..], b"APETAGEX\xd0\x07\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x80", &[0; 8]].concat();
    read_within_limit(&path, "APE", &ape);
}

#[test]
fn damaged_audio_uses_memory_in_proportion_to_its_size() {
    let _guard = exclusive();
    if !has_encoders() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write_inputs(folder.path(), &signal(1201));
    let targets = ["wav", "aiff aif", "caf", "flac", "mp3 mp2", "aac", "mp4 m4a", "ogg oga opus"];
    for target in targets {
        let endings: Vec<&str> = target.split(' ').collect();
        let formats = FORMATS.iter().filter(|format| endings.contains(&format.ending));
        let valid = formats.map(|format| format.encode(folder.path())).collect();
        let path = folder.path().join("mutant");
        let name = target.to_uppercase();
        fuzz(target, valid, &[b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"], 300, move |bytes| {
            read_within_limit(&path, &name, &repair_pages(bytes.to_vec()));
        });
    }
}
