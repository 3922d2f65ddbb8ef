//! Utterances that are heard one after another.
use std::collections::BTreeMap;

use rand::seq::SliceRandom;
use speech::Utterance;

use crate::random::{Purpose, stream};

/// Numbers of the parts of each string, `count` of them, in an order that the seed decides; what is left over is one of two at
/// least, or none.
pub(super) fn groups(utterances: usize, count: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..utterances).collect();
    order.shuffle(&mut stream(seed, Purpose::Join, 0, 0));
    order.chunks(count.max(1)).filter(|some| some.len() > 1).map(<[usize]>::to_vec).collect()
}

/// Some utterances as one.
pub(super) fn join(some: &[&Utterance]) -> Utterance {
    let mut one = some[0].clone();
    let texts: Vec<&str> = some.iter().map(|u| u.text.as_str()).filter(|text| !text.is_empty()).collect();
    one.text = texts.join(" ");
    one.id = some.iter().map(|u| u.id.as_str()).collect::<Vec<_>>().join("+");
    one.pieces = some.iter().flat_map(|u| u.pieces.iter().cloned()).collect();
    one.seconds = some.iter().map(|u| u.seconds).sum();
    (one.num_samples, one.crc32, one.subset, one.speaker) = (None, None, None, None);
    one
}

/// Strings of `count` utterances each, of one sample rate: see [`groups`].
pub(crate) fn joined(utterances: &[Utterance], count: usize, seed: u64) -> Vec<Utterance> {
    let mut rates: BTreeMap<Option<u32>, Vec<&Utterance>> = BTreeMap::new();
    for one in utterances {
        rates.entry(one.sample_rate).or_default().push(one);
    }
    let strings = |alike: Vec<&Utterance>| {
        let of = |parts: Vec<usize>| join(&parts.iter().map(|&at| alike[at]).collect::<Vec<_>>());
        groups(alike.len(), count, seed).into_iter().map(of).collect::<Vec<_>>()
    };
    rates.into_values().flat_map(strings).collect()
}

#[cfg(test)]
mod tests {
    use speech::read_manifest;

    use super::*;

    #[test]
    fn strings_hold_every_utterance_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        let line = |n: usize| {
            let text = if n == 3 { "" } else { "one two" };
            format!(
                r#"{{"id": "u{n}", "file": "{n}.wav", "seconds": 0.5, "text": "{text}", "num_samples": 9}}"#
            )
        };
        std::fs::write(&path, (0..7).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let list = read_manifest(&path).unwrap();
        for (count, strings) in [(0, 0), (1, 0), (2, 3), (3, 2), (5, 2), (9, 1)] {
            let joined = joined(&list, count, 1);
            assert_eq!(joined.len(), strings, "{count}");
            for one in &joined {
                assert!(one.pieces.len() <= count && one.pieces.len() > 1 && one.num_samples.is_none());
                assert_eq!(one.seconds, 0.5 * one.pieces.len() as f64);
                assert_eq!(one.id.split('+').count(), one.pieces.len());
                let words = 2 * one.pieces.len() - 2 * usize::from(one.id.contains("u3"));
                assert_eq!(one.text.split(' ').count(), words, "{:?}", one.text);
            }
            let mut files: Vec<_> = joined.iter().flat_map(|one| one.files()).collect();
            files.sort_unstable();
            files.dedup();
            assert_eq!(files.len(), joined.iter().map(|one| one.pieces.len()).sum::<usize>());
        }
        assert_ne!(joined(&list, 7, 1), joined(&list, 7, 2));
    }

    #[test]
    fn strings_are_of_one_sample_rate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        let line = |n: usize| {
            let rate = [8000, 16_000][n % 2];
            format!(
                r#"{{"id": "{rate}-{n}", "file": "{n}.wav", "seconds": 1, "text": "", "sample_rate": {rate}}}"#
            )
        };
        std::fs::write(&path, (0..9).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let joined = joined(&read_manifest(&path).unwrap(), 3, 1);
        assert_eq!(joined.iter().map(|one| one.pieces.len()).collect::<Vec<_>>(), [3, 2, 3]);
        for one in joined {
            let rate = one.sample_rate.unwrap().to_string();
            assert!(one.id.split('+').all(|id| id.starts_with(&rate)), "{}", one.id);
        }
    }
}
