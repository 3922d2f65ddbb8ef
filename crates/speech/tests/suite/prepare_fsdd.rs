//! Tests of the preparation of FSDD: recordings, strings of digits, and errors.

use std::collections::BTreeMap;
use std::fs;

use speech::prepare::{PrepareOptions, StringCounts, fsdd};
use speech::{Error, read_manifest};

use crate::common::{shared, wav_bytes};
use crate::prepare::{Damage, excerpt, fsdd_excerpt, prepared_files, sine, write_file};

#[test]
fn spoken_digits_have_their_official_split_and_strings_without_common_takes() {
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["jackson", "theo"], 12);
    let strings = StringCounts { train: 30, dev: 4, test: 6, seed: 3 };
    let lists = fsdd(folder.path(), &excerpt(folder.path()), Some(&strings)).unwrap();
    let counts: Vec<(&str, usize)> = lists.iter().map(|list| (list.name.as_str(), list.utterances)).collect();
    assert_eq!(
        counts,
        [
            ("recordings", 240),
            ("train", 140),
            ("test", 100),
            ("strings_train", 30),
            ("strings_dev", 4),
            ("strings_test", 6)
        ]
    );
    for list in &lists {
        let takes = match list.name.as_str() {
            "strings_train" => 10..12,
            "strings_dev" => 5..10,
            "train" => 5..12,
            "test" | "strings_test" => 0..5,
            _ => 0..12,
        };
        for utterance in read_manifest(&list.path).unwrap() {
            // Also checks lengths and checksums.
            let audio = utterance.audio(8000).unwrap();
            assert!((audio.seconds() - utterance.seconds).abs() < 1e-9 && utterance.crc32.is_some());
            for file in utterance.files() {
                let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
                assert!(takes.contains(&name.rsplit('_').next().unwrap().parse().unwrap()), "{name}");
                assert!(name.contains(utterance.speaker.as_deref().unwrap()));
            }
        }
    }
    let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    let first = text("strings_train.jsonl");
    fsdd(folder.path(), &excerpt(folder.path()), Some(&StringCounts { dev: 9, ..strings.clone() })).unwrap();
    assert_eq!(text("strings_train.jsonl"), first);
    fsdd(folder.path(), &excerpt(folder.path()), Some(&StringCounts { seed: 4, ..strings })).unwrap();
    assert_ne!(text("strings_train.jsonl"), first);
}

#[test]
fn errors_in_spoken_digits_are_reported_and_nothing_is_written() {
    let cases: [(Damage, &str); 8] = [
        (
            |folder| write_file(folder.join("ten_theo_1.wav"), b""),
            "ten_theo_1.wav: expected a name DIGIT_SPEAKER_TAKE.wav",
        ),
        (|folder| write_file(folder.join("10_theo_1.wav"), b""), "expected a name DIGIT_SPEAKER_TAKE.wav"),
        (|folder| write_file(folder.join("1__1.wav"), b""), "expected a name DIGIT_SPEAKER_TAKE.wav"),
        (
            |folder| write_file(folder.join("1_theo_01.wav"), wav_bytes(8000, &sine(999))),
            "expected recordings that occur once",
        ),
        (
            |folder| write_file(folder.join("1_theo_0.wav"), wav_bytes(16_000, &sine(999))),
            "expected audio at 8000 Hz",
        ),
        (|folder| write_file(folder.join("1_theo_0.wav"), wav_bytes(8000, &sine(9))), "0.05 to 10 seconds"),
        (|folder| write_file(folder.join("1_theo_0.wav"), &wav_bytes(8000, &sine(999))[..900]), "truncated"),
        (|folder| fs::remove_dir_all(folder).and_then(|()| fs::create_dir(folder)).unwrap(), "found none"),
    ];
    for (damage, part) in cases {
        let folder = tempfile::tempdir().unwrap();
        fsdd_excerpt(folder.path(), &["theo"], 2);
        damage(&folder.path().join("recordings"));
        let error = fsdd(folder.path(), &excerpt(folder.path()), None).expect_err(part).to_string();
        assert!(error.contains(part), "{error}\n{part}");
        assert!(prepared_files(folder.path()).is_empty());
    }
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 2);
    let error = fsdd(folder.path(), &PrepareOptions::new(folder.path()), None).unwrap_err().to_string();
    assert!(error.contains("expected 0_george_0.wav, unless it is an excerpt"), "{error}");
    let strings = StringCounts { train: 1, dev: 0, test: 0, seed: 0 };
    let error = fsdd(folder.path(), &excerpt(folder.path()), Some(&strings)).unwrap_err().to_string();
    assert!(error.contains("takes 10 to"), "{error}");
    let with_shards = PrepareOptions { shards: Some(5), ..excerpt(folder.path()) };
    assert!(matches!(
        fsdd(folder.path(), &with_shards, Some(&strings)),
        Err(Error::Setting { field: "shards", .. })
    ));
    let missing = folder.path().join("none");
    assert!(matches!(fsdd(&missing, &excerpt(folder.path()), None), Err(Error::Io { .. })));
}

/// A part of the real recordings in the shared data.
#[test]
fn real_spoken_digits_have_their_texts_and_checksums() {
    let Some(list) = shared("fsdd/recordings.jsonl") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut expected = BTreeMap::new();
    for utterance in read_manifest(&list).unwrap().into_iter().step_by(11) {
        let samples: Vec<i16> = utterance.audio(8000).unwrap().i16_samples().collect();
        write_file(folder.path().join(format!("recordings/{}.wav", utterance.id)), wav_bytes(8000, &samples));
        expected.insert(utterance.id.clone(), utterance);
    }
    let mut count = 0;
    for list in fsdd(folder.path(), &excerpt(folder.path()), None).unwrap() {
        for utterance in read_manifest(&list.path).unwrap() {
            let expected = &expected[&utterance.id];
            assert_eq!((&utterance.text, &utterance.speaker), (&expected.text, &expected.speaker));
            assert_eq!((utterance.num_samples, utterance.crc32), (expected.num_samples, expected.crc32));
            count += 1;
        }
    }
    assert_eq!(count, expected.len());
}
