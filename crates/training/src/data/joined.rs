//! `augment.join`: training on concatenations of several utterances.
//!
//! Models trained on them continue after the end of an utterance. Each group of utterances becomes
//! one utterance with the segments, texts and lengths of all.
use rand::seq::SliceRandom;
use speech::Utterance;

use model::random::{Purpose, stream};

/// Divides utterances into groups of `count` in a random order.
///
/// The last group has the remaining utterances, if there are at least two.
pub(super) fn random_groups(num_utterances: usize, count: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..num_utterances).collect();
    order.shuffle(&mut stream(seed, Purpose::Concatenation, 0, 0));
    order.chunks(count.max(1)).filter(|group| group.len() > 1).map(<[usize]>::to_vec).collect()
}

/// Concatenates utterances; ids are joined by `+`, texts by spaces.
pub(super) fn concatenate(parts: &[&Utterance]) -> Utterance {
    let mut joined = parts[0].clone();
    let texts: Vec<&str> = parts.iter().map(|u| u.text.as_str()).filter(|text| !text.is_empty()).collect();
    joined.text = texts.join(" ");
    joined.id = parts.iter().map(|u| u.id.as_str()).collect::<Vec<_>>().join("+");
    joined.segments = parts.iter().flat_map(|u| u.segments.iter().cloned()).collect();
    joined.sample_rate = joined.sample_rate.filter(|&rate| parts.iter().all(|u| u.sample_rate == Some(rate)));
    joined.seconds = parts.iter().map(|u| u.seconds).sum();
    (joined.num_samples, joined.crc32, joined.subset, joined.speaker) = (None, None, None, None);
    joined
}

/// Returns concatenations of `count` utterances each; see [`random_groups`].
pub(crate) fn joined_utterances(utterances: &[Utterance], count: usize, seed: u64) -> Vec<Utterance> {
    let join =
        |parts: Vec<usize>| concatenate(&parts.iter().map(|&index| &utterances[index]).collect::<Vec<_>>());
    random_groups(utterances.len(), count, seed).into_iter().map(join).collect()
}

#[cfg(test)]
mod tests {
    use speech::read_manifest;

    use super::*;

    #[test]
    fn concatenations_contain_every_utterance_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.jsonl");
        let line = |number: usize| {
            let text = if number == 3 { "" } else { "one two" };
            format!(
                r#"{{"id": "u{number}", "file": "{number}.wav", "seconds": 0.5, "text": "{text}", "num_samples": 9}}"#
            )
        };
        std::fs::write(&path, (0..7).map(line).collect::<Vec<_>>().join("\n")).unwrap();
        let list = read_manifest(&path).unwrap();
        for (count, expected) in [(0, 0), (1, 0), (2, 3), (3, 2), (5, 2), (9, 1)] {
            let joined = joined_utterances(&list, count, 1);
            assert_eq!(joined.len(), expected, "{count}");
            for utterance in &joined {
                let num_parts = utterance.segments.len();
                assert!(num_parts <= count && num_parts > 1 && utterance.num_samples.is_none());
                assert_eq!(utterance.seconds, 0.5 * num_parts as f64);
                assert_eq!(utterance.id.split('+').count(), num_parts);
                let words = 2 * num_parts - 2 * usize::from(utterance.id.contains("u3"));
                assert_eq!(utterance.text.split(' ').count(), words, "{:?}", utterance.text);
            }
            let mut files: Vec<_> = joined.iter().flat_map(|utterance| utterance.files()).collect();
            files.sort_unstable();
            files.dedup();
            assert_eq!(files.len(), joined.iter().map(|utterance| utterance.segments.len()).sum::<usize>());
        }
        assert_ne!(joined_utterances(&list, 7, 1), joined_utterances(&list, 7, 2));
        let utterances_with = |rates: [u32; 2]| {
            rates.map(|rate| {
                let mut utterance = list[0].clone();
                utterance.sample_rate = Some(rate);
                utterance
            })
        };
        let joined_rate = |rates| concatenate(&utterances_with(rates).iter().collect::<Vec<_>>()).sample_rate;
        assert_eq!((joined_rate([8000, 8000]), joined_rate([8000, 16_000])), (Some(8000), None));
    }
}
