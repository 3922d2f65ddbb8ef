//! Tests of truncated and damaged audio files of every format.
//!
//! The result must be a typed error that names the file, or a prefix of the samples.

use std::fs;
use std::path::Path;

use rayon::prelude::*;
use speech::{Audio, Channel, Conversion, read_audio_as};
use tempfile::tempdir;

use crate::encoded::{FORMATS, has_encoders, repair_pages, signal, write_inputs};
use crate::fuzzing::{fuzz_audio, read_all_ways};
use crate::mutants::{Random, fuzz};

/// Names of chunks, atoms and pages: a file is cut before, within and after each.
const CHUNK_NAMES: &[&[u8]] = &[
    b"RIFF",
    b"fmt ",
    b"data",
    b"fact",
    b"ds64",
    b"FORM",
    b"COMM",
    b"SSND",
    b"FVER",
    b"caff",
    b"desc",
    b"pakt",
    b"kuki",
    b"chan",
    b"OggS",
    b"\x01vorbis",
    b"\x03vorbis",
    b"\x05vorbis",
    b"OpusHead",
    b"OpusTags",
    b"fLaC",
    b"ftyp",
    b"moov",
    b"mdat",
    b"trak",
    b"mdia",
    b"minf",
    b"stbl",
    b"stsd",
    b"stts",
    b"stsc",
    b"stsz",
    b"stco",
    b"elst",
    b"mdhd",
    b"esds",
    b"alac",
    b"dOps",
    b"dfLa",
    b"moof",
    b"traf",
    b"trun",
    b"Xing",
    b"Info",
    b"LAME",
];

/// Cut positions of a file: near its start, its end, all names, and random positions.
fn cut_positions(file: &[u8], seed: u64) -> Vec<usize> {
    let mut cuts: Vec<usize> = (0..100).chain(file.len() - 12..file.len()).collect();
    for name in CHUNK_NAMES {
        let starts = file.windows(name.len()).enumerate().filter(|(_, window)| window == name);
        for (start, _) in starts.take(8) {
            let end = start + name.len();
            cuts.extend([start, start + 2, end, end + 4, end + 8]);
        }
    }
    let mut random = Random(seed);
    cuts.extend((0..40).map(|_| random.below(file.len())));
    cuts.retain(|&cut| cut < file.len());
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

/// The error in the result of reading a truncated file, if any.
fn cut_file_failure(path: &Path, complete: &Audio, channel: Channel) -> Option<String> {
    match read_audio_as(path, complete.sample_rate, &Conversion { channel, resample: false }) {
        Ok((prefix, _)) => {
            let is_prefix = !prefix.samples.is_empty() && complete.samples.starts_with(&prefix.samples);
            (!is_prefix).then(|| format!("{} samples that are not a prefix", prefix.samples.len()))
        }
        Err(error) => {
            let text = error.to_string();
            (!text.contains(path.to_str().unwrap())).then(|| format!("message without the file name: {text}"))
        }
    }
}

#[test]
fn cut_files_are_errors_or_give_a_prefix() {
    if !has_encoders() {
        return;
    }
    let failures: Vec<String> = FORMATS
        .par_iter()
        .enumerate()
        .flat_map_iter(|(number, format)| {
            let folder = tempdir().unwrap();
            write_inputs(folder.path(), &signal(4801));
            let file = format.encode(folder.path());
            let path = folder.path().join("cut");
            fs::write(&path, &file).unwrap();
            let channel = Channel::Number(format.channels());
            let conversion = Conversion { channel, resample: false };
            let (complete, _) = read_audio_as(&path, format.rate(), &conversion).unwrap();
            let mut failures = Vec::new();
            for cut in cut_positions(&file, number as u64) {
                fs::write(&path, &file[..cut]).unwrap();
                if let Some(failure) = cut_file_failure(&path, &complete, channel) {
                    failures.push(format!("{}, {cut} of {} bytes: {failure}", format.name, file.len()));
                }
            }
            failures
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} failures:\n{}",
        failures.len(),
        failures[..failures.len().min(40)].join("\n")
    );
}

/// The files of some formats, selected by their file name extensions.
fn encode_files(endings: &[&str]) -> Vec<Vec<u8>> {
    let folder = tempdir().unwrap();
    write_inputs(folder.path(), &signal(1201));
    let formats = FORMATS.iter().filter(|format| endings.contains(&format.ending));
    formats.map(|format| format.encode(folder.path())).collect()
}

/// Fuzzes the files of some formats.
fn fuzz_formats(target: &'static str, endings: &[&str], tokens: &'static [&'static [u8]]) {
    if has_encoders() {
        fuzz_audio(target, encode_files(endings), tokens, 400);
    }
}

#[test]
fn damaged_wav_is_an_error_or_audio() {
    fuzz_formats(
        "encoded-wav",
        &["wav"],
        &[b"fmt ", b"data", b"fact", b"ds64", b"\x11\0", b"\xfe\xff", b"\xff\xff\xff\xff"],
    );
}

#[test]
fn damaged_aiff_is_an_error_or_audio() {
    fuzz_formats(
        "aiff",
        &["aiff", "aif"],
        &[b"COMM", b"SSND", b"ima4", b"sowt", b"fl64", b"\x7f\0\0\0", b"\xff\xff\xff\xff"],
    );
}

#[test]
fn damaged_caf_is_an_error_or_audio() {
    let tokens: &[&[u8]] =
        &[b"desc", b"data", b"pakt", b"kuki", b"chan", b"ima4", b"alac", b"\xff\xff\xff\xff\xff\xff\xff\xff"];
    fuzz_formats("caf", &["caf"], tokens);
}

#[test]
fn damaged_mp3_is_an_error_or_audio() {
    fuzz_formats(
        "mp3",
        &["mp3", "mp2"],
        &[b"\xff\xfb", b"\xff\xe3", b"Xing", b"Info", b"LAME", b"ID3\x04\0\0\x7f\x7f\x7f\x7f"],
    );
}

#[test]
fn damaged_aac_is_an_error_or_audio() {
    fuzz_formats("aac", &["aac"], &[b"\xff\xf1", b"\xff\xf9", b"\xff\xff"]);
}

#[test]
fn damaged_mp4_is_an_error_or_audio() {
    let tokens: &[&[u8]] = &[
        b"moov",
        b"trak",
        b"stsz",
        b"stts",
        b"stsc",
        b"stco",
        b"elst",
        b"esds",
        b"mp4a",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x01mdat",
    ];
    fuzz_formats("mp4", &["mp4", "m4a"], tokens);
}

#[test]
fn damaged_ogg_is_an_error_or_audio() {
    let tokens: &[&[u8]] = &[
        b"OggS",
        b"OggS\0\x04",
        b"\x05vorbis",
        b"\x03vorbis",
        b"OpusHead",
        b"BCV",
        b"\x7fFLAC",
        b"\xff\xff\xff\xff",
    ];
    fuzz_formats("ogg", &["ogg", "oga", "opus"], tokens);
    if !has_encoders() {
        return;
    }
    let folder = tempdir().unwrap();
    let path = folder.path().join("mutant");
    fuzz("ogg-pages", encode_files(&["ogg", "oga", "opus"]), tokens, 800, move |bytes| {
        fs::write(&path, repair_pages(bytes.to_vec())).unwrap();
        read_all_ways(&path);
    });
}

#[test]
fn damaged_flac_is_an_error_or_audio() {
    fuzz_formats("encoded-flac", &["flac"], &[b"fLaC", b"\xff\xf8", b"\xff\xf9", b"\x84\xff\xff\xff"]);
}
