//! Utterances that are heard one after another.
use rand::seq::SliceRandom;
use speech::Utterance;

use model::random::{Purpose, stream};

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
    one.segments = some.iter().flat_map(|u| u.segments.iter().cloned()).collect();
    one.sample_rate = one.sample_rate.filter(|&rate| some.iter().all(|u| u.sample_rate == Some(rate)));
    one.seconds = some.iter().map(|u| u.seconds).sum();
    (one.num_samples, one.crc32, one.subset, one.speaker) = (None, None, None, None);
    one
}

/// Strings of `count` utterances each; see [`groups`].
pub(crate) fn joined(utterances: &[Utterance], count: usize, seed: u64) -> Vec<Utterance> {
    let of = |parts: Vec<usize>| join(&parts.iter().map(|&at| &utterances[at]).collect::<Vec<_>>());
    groups(utterances.len(), count, seed).into_iter().map(of).collect()
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
                assert!(one.segments.len() <= count && one.segments.len() > 1 && one.num_samples.is_none());
                assert_eq!(one.seconds, 0.5 * one.segments.len() as f64);
                assert_eq!(one.id.split('+').count(), one.segments.len());
                let words = 2 * one.segments.len() - 2 * usize::from(one.id.contains("u3"));
                assert_eq!(one.text.split(' ').count(), words, "{:?}", one.text);
            }
            let mut files: Vec<_> = joined.iter().flat_map(|one| one.files()).collect();
            files.sort_unstable();
            files.dedup();
            assert_eq!(files.len(), joined.iter().map(|one| one.segments.len()).sum::<usize>());
        }
        assert_ne!(joined(&list, 7, 1), joined(&list, 7, 2));
        let with = |rates: [u32; 2]| {
            rates.map(|rate| {
                let mut one = list[0].clone();
                one.sample_rate = Some(rate);
                one
            })
        };
        let rate = |rates| join(&with(rates).iter().collect::<Vec<_>>()).sample_rate;
        assert_eq!((rate([8000, 8000]), rate([8000, 16_000])), (Some(8000), None));
    }
}
