//! Fuzz test helper: damages valid files for parsers, which must not panic or hang.
//!
//! A mutant depends only on its target and its number. `PANDA_FUZZ_CASES` is the number of mutants,
//! `PANDA_FUZZ_FIRST` the number of the first one. Any test program can include this file with
//! `#[path]`.

#![allow(dead_code)] // Each test program uses a part.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Maximum time for one input.
const CASE_TIMEOUT: Duration = Duration::from_secs(30);

/// Passes damaged copies of valid files to a parser.
///
/// The parser panics on an error. `words` are parts of the format, which are inserted into the file
/// or written over other parts.
pub(crate) fn fuzz(
    target: &'static str,
    valid_files: Vec<Vec<u8>>,
    words: &'static [&'static [u8]],
    cases: u64,
    parse: impl Fn(&[u8]) + Send + 'static,
) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let first = number("PANDA_FUZZ_FIRST").unwrap_or(0);
    let last = first + number("PANDA_FUZZ_CASES").unwrap_or(cases);
    let (sender, receiver) = channel();
    let worker = std::thread::spawn(move || {
        for file in &valid_files {
            parse(file);
        }
        for case in first..last {
            let mutant = mutant(target, case, &valid_files, words);
            let outcome = catch_unwind(AssertUnwindSafe(|| parse(&mutant)));
            let has_failed = outcome.is_err();
            if has_failed {
                let path = std::env::temp_dir().join(format!("panda-{target}-{case}"));
                let written = std::fs::write(&path, &mutant);
                eprintln!("{target}: case {case} failed; the input is in {} ({written:?})", path.display());
            }
            if sender.send(case).is_err() || has_failed {
                assert!(!has_failed, "{target}: case {case}");
                return;
            }
        }
    });
    let mut next_case = first;
    loop {
        match receiver.recv_timeout(CASE_TIMEOUT) {
            Ok(case) => next_case = case + 1,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{target}: case {next_case} takes longer than {CASE_TIMEOUT:?}")
            }
        }
    }
    worker.join().unwrap_or_else(|_| panic!("{target}: the case is printed above"));
    assert_eq!(next_case, last, "{target}");
}

/// Valid WAV files of typical writers.
pub(crate) fn wav_files() -> Vec<Vec<u8>> {
    let data: Vec<u8> = (0..400u32).map(|i| (i * i / 7) as u8).collect();
    let format = |tag: u16, channels: u16, rate: u32, bits: u16| {
        let frame = channels * bits.div_ceil(8);
        let mut chunk = [tag.to_le_bytes(), channels.to_le_bytes()].concat();
        chunk.extend([rate.to_le_bytes(), (rate * u32::from(frame)).to_le_bytes()].concat());
        chunk.extend([frame.to_le_bytes(), bits.to_le_bytes()].concat());
        chunk
    };
    let mut extensible = format(0xfffe, 2, 8000, 24);
    extensible.extend([22, 0, 24, 0, 3, 0, 0, 0, 1, 0, 0, 0, 0, 0, 16, 0]);
    extensible.extend([0x80, 0, 0, 0xaa, 0, 0x38, 0x9b, 0x71]);
    let floats: Vec<u8> = (0..100).flat_map(|i| (i as f32 / 100.0 - 0.5).to_le_bytes()).collect();
    vec![
        wav(&[(b"fmt ", &format(1, 1, 8000, 16)), (b"data", &data)], None),
        wav(
            &[(b"LIST", b"INFOx"), (b"fmt ", &format(1, 2, 8000, 16)), (b"data", &data), (b"id3 ", b"x")],
            None,
        ),
        wav(&[(b"fmt ", &format(3, 1, 16000, 32)), (b"fact", &[100, 0, 0, 0]), (b"data", &floats)], None),
        wav(&[(b"fmt ", &extensible), (b"data", &data[..396])], None),
        wav(&[(b"fmt ", &format(1, 1, 8000, 8)), (b"data", &data)], Some(u32::MAX)),
    ]
}

/// A RIFF file of chunks; `length`, if given, is stored for RIFF and data.
///
/// Chunks are padded to an even length.
pub(crate) fn wav(chunks: &[(&[u8; 4], &[u8])], length: Option<u32>) -> Vec<u8> {
    let mut body = b"WAVE".to_vec();
    for (name, content) in chunks {
        let stored = length.filter(|_| *name == b"data").unwrap_or(content.len() as u32);
        body.extend([&name[..], &stored.to_le_bytes(), content].concat());
        body.extend(&[0][..content.len() % 2]);
    }
    let stored = length.unwrap_or(body.len() as u32);
    [&b"RIFF"[..], &stored.to_le_bytes(), &body].concat()
}

/// Parts of WAV files.
pub(crate) const WAV_WORDS: &[&[u8]] =
    &[b"RIFF", b"WAVE", b"fmt ", b"data", b"LIST", b"data\xff\xff\xff\xff", b"data\0\0\0\0"];

/// Returns a damaged file.
pub(crate) fn mutant(target: &str, case: u64, valid_files: &[Vec<u8>], words: &[&[u8]]) -> Vec<u8> {
    let seed = target.bytes().fold(case, |seed, byte| (seed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let mut random = Random(seed);
    let mut bytes = valid_files[random.below(valid_files.len())].clone();
    for _ in 0..=random.below(4) {
        // Headers are short, and damage has the largest effect there.
        let limit = if random.below(2) == 0 { bytes.len().min(64) } else { bytes.len() };
        let position = random.below(limit + 1).min(bytes.len());
        let end = position + random.below(bytes.len() - position + 1).min(1 << random.below(12));
        match random.below(9) {
            0 => bytes.truncate(position),
            1 => drop(bytes.drain(position..end)),
            2 => {
                let copy = bytes[position..end].to_vec();
                bytes.splice(end..end, copy);
            }
            3 => {
                let second = &valid_files[random.below(valid_files.len())];
                let start = random.below(second.len() + 1);
                bytes.splice(position.., second[start..].iter().copied());
            }
            4 if !words.is_empty() => {
                let word = words[random.below(words.len())].iter().copied();
                let end =
                    if random.below(2) == 0 { position } else { (position + word.len()).min(bytes.len()) };
                bytes.splice(position..end, word);
            }
            5 => {
                let noise: Vec<u8> = (0..random.below(16)).map(|_| random.next() as u8).collect();
                bytes.splice(position..position, noise);
            }
            6 => {
                // A number near the limit of its type, in either byte order.
                let value = match random.below(4) {
                    0 => 0,
                    1 => u64::MAX >> random.below(64),
                    2 => 1 << random.below(64),
                    _ => random.next(),
                };
                let width = 1 << random.below(4);
                let mut number = value.to_le_bytes()[..width].to_vec();
                if random.below(2) == 0 {
                    number.reverse();
                }
                bytes.iter_mut().skip(position).zip(number).for_each(|(byte, digit)| *byte = digit);
            }
            _ => {
                if let Some(byte) = bytes.get_mut(position) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        // Limits the size after repeated doubling.
        bytes.truncate(1 << 18);
    }
    bytes
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(crate) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number below `limit`, which must be positive.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
