//! Every sample of real corpora, checked with the checksums of their manifests.

use crate::common::{digits, shared};
use rayon::prelude::*;
use speech::{Audio, AudioSegment, FeatureConfig, FrontEnd, Utterance, read_audio, read_manifest};

fn check_all(utterances: &[Utterance], sample_rate: u32) {
    utterances.par_iter().for_each(|u| {
        assert!(u.crc32.is_some() && u.num_samples.is_some(), "{} has no checksum or length", u.id);
        let audio = u.audio(sample_rate).unwrap();
        assert!((audio.seconds() - u.seconds).abs() < 1e-3, "{}", u.id);
    });
}

#[test]
fn digits_of_the_repository() {
    let mut texts = std::collections::HashMap::new();
    for (split, count) in [("train", 400), ("dev", 40), ("test", 80)] {
        let utterances = read_manifest(&digits(&format!("{split}.jsonl"))).unwrap();
        assert_eq!(utterances.len(), count);
        check_all(&utterances, 8000);
        for u in utterances {
            let first = *texts.entry(u.text).or_insert(split);
            assert_eq!(first, split, "{} is a string of {first} too", u.id);
        }
    }
}

#[test]
fn an4() {
    for (split, count) in [("train", 796), ("dev", 74), ("test", 130)] {
        let Some(path) = shared(&format!("an4/{split}.jsonl")) else { return };
        let utterances = read_manifest(&path).unwrap();
        assert_eq!(utterances.len(), count);
        check_all(&utterances, 16_000);
    }
}

#[test]
fn fsdd_strings_and_recordings() {
    for (list, count) in
        [("recordings", 2300), ("strings_train", 2000), ("strings_dev", 200), ("strings_test", 300)]
    {
        let Some(path) = shared(&format!("fsdd/{list}.jsonl")) else { return };
        let utterances = read_manifest(&path).unwrap();
        assert_eq!(utterances.len(), count);
        check_all(&utterances, 8000);
        assert!(utterances.iter().all(|u| matches!(u.subset.as_deref(), Some("seen" | "unseen"))));
    }
}

#[test]
fn samples_of_many_sources() {
    let Some(path) = shared("samples/samples.jsonl") else { return };
    let utterances = read_manifest(&path).unwrap();
    assert_eq!(utterances.len(), 160);
    check_all(&utterances, 16_000);
    // A file with a LIST chunk before its data.
    let jfk = utterances.iter().find(|u| u.id.contains("jfk")).unwrap();
    let AudioSegment::Sound { path, .. } = &jfk.segments[0] else { panic!("a file") };
    assert!(read_audio(path).unwrap().samples.len() > 100_000);
}

/// Prints the speed with `--nocapture`.
///
/// The limit is loose: it detects a slowdown by an order of magnitude.
#[test]
fn features_of_all_fsdd_strings_in_seconds() {
    let Some(path) = shared("fsdd/strings_train.jsonl") else { return };
    let utterances = read_manifest(&path).unwrap();
    let front_end = FrontEnd::new(&FeatureConfig { sample_rate: 8000, ..FeatureConfig::default() }).unwrap();
    let begin = std::time::Instant::now();
    let audio: Vec<Audio> = utterances.par_iter().map(|u| u.audio(8000).unwrap()).collect();
    let loaded = begin.elapsed();
    let frames: usize = audio.par_iter().map(|a| front_end.log_mel(a).unwrap().frames).sum();
    let all = begin.elapsed();
    println!("{frames} frames: audio {loaded:.2?}, features {:.2?}", all - loaded);
    assert!(frames > 500_000);
    assert!(all.as_secs() < 60, "{all:?}");
}
