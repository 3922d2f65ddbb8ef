//! Strings of digits, joined from recordings.
//!
//! ```text
//! samples = zeros(lead) ++ recording[0] ++ zeros(gaps[0]) ++ recording[1] ++ ... ++ zeros(tail)
//! ```

use std::collections::BTreeSet;
use std::path::Path;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::check::wrong;
use crate::Result;

/// How many strings are drawn, of 2 to 7 digits of one speaker; the speakers take turns.
#[derive(Debug, Clone, PartialEq)]
pub struct StringCounts {
    /// In `strings_train`.
    pub train: usize,
    /// In `strings_dev`.
    pub dev: usize,
    /// In `strings_test`.
    pub test: usize,
    /// What they are drawn from; the same one draws the same strings.
    pub seed: u64,
}

/// A recording that strings may have.
pub(super) struct Recording {
    pub id: String,
    pub speaker: String,
    pub digit: u32,
    pub word: &'static str,
    pub take: u32,
    pub samples: Vec<i16>,
}

/// A list of strings.
pub(super) struct Drawn {
    pub name: &'static str,
    pub lines: Vec<StringLine>,
}

/// A line of a manifest.
#[derive(Serialize)]
pub(super) struct StringLine {
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

pub(super) fn draw(
    folder: &Path,
    recordings: &[Recording],
    strings: &StringCounts,
    rate: u32,
) -> Result<Vec<Drawn>> {
    let lists = [
        ("strings_train", "train", strings.train, 10..u32::MAX),
        ("strings_dev", "dev", strings.dev, 5..10),
        ("strings_test", "test", strings.test, 0..5),
    ];
    let mut drawn = Vec::new();
    for (stream, (name, split, count, takes)) in (0..).zip(lists) {
        if count == 0 {
            continue;
        }
        let pool: Vec<&Recording> = recordings.iter().filter(|one| takes.contains(&one.take)).collect();
        let speakers: BTreeSet<&str> = pool.iter().map(|one| one.speaker.as_str()).collect();
        let of =
            |speaker: &str| pool.iter().filter(|one| one.speaker == speaker).copied().collect::<Vec<_>>();
        let pools: Vec<Vec<&Recording>> = speakers.into_iter().map(of).collect();
        if pools.is_empty() {
            let expected = format!("takes {} to {} for {name}", takes.start, takes.end - 1);
            return Err(wrong(folder, expected, "none"));
        }
        // A stream each: the number of strings of one list does not change another one.
        let mut rng = ChaCha8Rng::seed_from_u64(strings.seed);
        rng.set_stream(stream);
        let line = |n: usize| one(&mut rng, &pools[n % pools.len()], split, n, rate);
        drawn.push(Drawn { name, lines: (0..count).map(line).collect() });
    }
    Ok(drawn)
}

fn one(rng: &mut ChaCha8Rng, pool: &[&Recording], split: &'static str, n: usize, rate: u32) -> StringLine {
    let count = rng.random_range(2..=7);
    let parts: Vec<&Recording> = (0..count).map(|_| pool[rng.random_range(0..pool.len())]).collect();
    // A quarter of the digits touch.
    let mut gap = |_| if rng.random_bool(0.25) { 0 } else { 10 * rng.random_range(1..=30) };
    let gaps_ms: Vec<u32> = (1..count).map(&mut gap).collect();
    let (lead_ms, tail_ms) = (10 * rng.random_range(5..=25), 10 * rng.random_range(5..=25));

    let zeros = |ms: u32| (u64::from(rate) * u64::from(ms) / 1000) as usize;
    let mut samples = vec![0; zeros(lead_ms)];
    for (part, &gap) in parts.iter().zip(gaps_ms.iter().chain([&tail_ms])) {
        samples.extend(&part.samples);
        samples.resize(samples.len() + zeros(gap), 0);
    }
    let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
    StringLine {
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
