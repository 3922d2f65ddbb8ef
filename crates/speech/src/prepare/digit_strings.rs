//! Draws digit strings for a prepared corpus: joined recordings of single digits.
//!
//! ```text
//! samples = zeros(lead) ++ recording[0] ++ zeros(gaps[0]) ++ recording[1] ++ ... ++ zeros(tail)
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::check::path_error;
use crate::Result;

/// Numbers of digit strings to draw.
///
/// A string has 2 to 7 digits of one speaker; speakers alternate.
#[derive(Debug, Clone, PartialEq)]
pub struct StringCounts {
    /// In `strings_train`.
    pub train: usize,
    /// In `strings_dev`.
    pub dev: usize,
    /// In `strings_test`.
    pub test: usize,
    /// Seed of the draw; deterministic.
    pub seed: u64,
}

/// A recording of one digit.
pub(super) struct Recording {
    pub id: String,
    pub speaker: String,
    pub digit: u32,
    pub word: &'static str,
    /// Number of the recording among those of the same speaker and digit.
    pub take: u32,
    pub samples: Vec<i16>,
}

/// A list of digit strings.
pub(super) struct DigitStringList {
    pub name: &'static str,
    pub lines: Vec<DigitStringLine>,
}

/// A manifest line of a digit string.
#[derive(Serialize)]
pub(super) struct DigitStringLine {
    pub id: String,
    split: &'static str,
    pub speaker: String,
    pub text: String,
    digits: String,
    recordings: Vec<String>,
    gaps_ms: Vec<u32>,
    lead_ms: u32,
    tail_ms: u32,
    sample_rate: u32,
    num_samples: usize,
    pub seconds: f64,
    crc32: String,
}

/// Draws the lists of strings, each from takes of its split.
pub(super) fn draw_lists(
    folder: &Path,
    recordings: &[Recording],
    counts: &StringCounts,
    rate: u32,
) -> Result<Vec<DigitStringList>> {
    // Name, split, number of strings and takes of each list.
    let lists = [
        ("strings_train", "train", counts.train, 10..u32::MAX),
        ("strings_dev", "dev", counts.dev, 5..10),
        ("strings_test", "test", counts.test, 0..5),
    ];
    let mut string_lists = Vec::new();
    for (stream, (name, split, count, takes)) in (0..).zip(lists) {
        if count == 0 {
            continue;
        }
        // The recordings of each speaker.
        let pool: Vec<&Recording> =
            recordings.iter().filter(|recording| takes.contains(&recording.take)).collect();
        let speakers: BTreeSet<&str> = pool.iter().map(|recording| recording.speaker.as_str()).collect();
        let of_speaker = |speaker: &str| {
            pool.iter().filter(|recording| recording.speaker == speaker).copied().collect::<Vec<_>>()
        };
        let pools: Vec<Vec<&Recording>> = speakers.into_iter().map(of_speaker).collect();
        if pools.is_empty() {
            let expected = format!("takes {} to {} for {name}", takes.start, takes.end - 1);
            return Err(path_error(folder, expected, "none"));
        }
        // A separate stream per list: the number of strings of one list does not affect the others.
        let mut rng = ChaCha8Rng::seed_from_u64(counts.seed);
        rng.set_stream(stream);
        let line = |n: usize| draw_string(&mut rng, &pools[n % pools.len()], split, n, rate);
        string_lists.push(DigitStringList { name, lines: (0..count).map(line).collect() });
    }
    Ok(string_lists)
}

/// Draws string `n` of a list from the recordings of a speaker.
fn draw_string(
    rng: &mut ChaCha8Rng,
    pool: &[&Recording],
    split: &'static str,
    n: usize,
    rate: u32,
) -> DigitStringLine {
    let count = rng.random_range(2..=7);
    let parts: Vec<&Recording> = (0..count).map(|_| pool[rng.random_range(0..pool.len())]).collect();
    // A quarter of the gaps are empty, others have 10 to 300 ms.
    let mut draw_gap = |_| if rng.random_bool(0.25) { 0 } else { 10 * rng.random_range(1..=30) };
    let gaps_ms: Vec<u32> = (1..count).map(&mut draw_gap).collect();
    // Silence of 50 to 250 ms at both ends.
    let (lead_ms, tail_ms) = (10 * rng.random_range(5..=25), 10 * rng.random_range(5..=25));

    // The checksum of the joined samples.
    let silence_samples = |ms: u32| (u64::from(rate) * u64::from(ms) / 1000) as usize;
    let mut samples = vec![0; silence_samples(lead_ms)];
    for (part, &gap) in parts.iter().zip(gaps_ms.iter().chain([&tail_ms])) {
        samples.extend(&part.samples);
        samples.resize(samples.len() + silence_samples(gap), 0);
    }
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    DigitStringLine {
        id: format!("fsdd-{split}-{n:04}"),
        split,
        speaker: parts[0].speaker.clone(),
        text: parts.iter().map(|part| part.word).collect::<Vec<_>>().join(" "),
        digits: parts.iter().map(|part| part.digit.to_string()).collect(),
        recordings: parts.iter().map(|part| part.id.clone()).collect(),
        gaps_ms,
        lead_ms,
        tail_ms,
        sample_rate: rate,
        num_samples: samples.len(),
        seconds: samples.len() as f64 / f64::from(rate),
        crc32: format!("{:08x}", crc32fast::hash(&bytes)),
    }
}
