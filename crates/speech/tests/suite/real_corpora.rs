//! Tests of real speech corpora: audio has the lengths and checksums of its manifest.

use crate::common::{digits, shared};
use rayon::prelude::*;
use speech::{Audio, AudioSegment, FeatureConfig, FrontEnd, Utterance, read_audio, read_manifest};

/// Reads all audio, which checks it against the manifest.
fn check_all(utterances: &[Utterance], sample_rate: u32) {
    utterances.par_iter().for_each(|utterance| {
        assert!(
            utterance.crc32.is_some() && utterance.num_samples.is_some(),
            "{} has no checksum or length",
            utterance.id
        );
        let audio = utterance.audio(sample_rate).unwrap();
        assert!((audio.seconds() - utterance.seconds).abs() < 1e-3, "{}", utterance.id);
    });
}

#[test]
fn digits_have_their_checksums_and_sets_share_no_text() {
    let mut texts = std::collections::HashMap::new();
    for (split, count) in [("train", 400), ("dev", 40), ("test", 80)] {
        let utterances = read_manifest(&digits(&format!("{split}.jsonl"))).unwrap();
        assert_eq!(utterances.len(), count);
        check_all(&utterances, 8000);
        for utterance in utterances {
            let first_split = *texts.entry(utterance.text).or_insert(split);
            assert_eq!(first_split, split, "{} is a string of {first_split} too", utterance.id);
        }
    }
}

#[test]
fn an4_has_its_checksums() {
    for (split, count) in [("train", 796), ("dev", 74), ("test", 130)] {
        let Some(path) = shared(&format!("an4/{split}.jsonl")) else { return };
        let utterances = read_manifest(&path).unwrap();
        assert_eq!(utterances.len(), count);
        check_all(&utterances, 16_000);
    }
}

#[test]
fn fsdd_strings_and_recordings_have_their_checksums() {
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
fn samples_of_many_sources_have_their_checksums() {
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
fn features_of_all_fsdd_strings_take_seconds() {
    let Some(path) = shared("fsdd/strings_train.jsonl") else { return };
    let utterances = read_manifest(&path).unwrap();
    let front_end = FrontEnd::new(&FeatureConfig { sample_rate: 8000, ..FeatureConfig::default() }).unwrap();
    let started = std::time::Instant::now();
    let audio: Vec<Audio> = utterances.par_iter().map(|u| u.audio(8000).unwrap()).collect();
    let loading_time = started.elapsed();
    let frames: usize = audio.par_iter().map(|a| front_end.log_mel(a).unwrap().frames).sum();
    let total_time = started.elapsed();
    println!("{frames} frames: audio {loading_time:.2?}, features {:.2?}", total_time - loading_time);
    assert!(frames > 500_000);
    assert!(total_time.as_secs() < 60, "{total_time:?}");
}
