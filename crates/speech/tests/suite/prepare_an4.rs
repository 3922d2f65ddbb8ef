//! Tests of the preparation of AN4: three kinds of audio files, and errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use speech::prepare::{PrepareOptions, an4};
use speech::{Corpus, read_audio, read_manifest};

use crate::common::{shared, wav_bytes};
use crate::prepare::{Damage, excerpt, prepared_files, sine, write_file};

/// A SPHERE file as bytes.
fn sphere_bytes(samples: &[i16]) -> Vec<u8> {
    let mut file = format!(
        "NIST_1A\n   1024\nchannel_count -i 1\nsample_count -i {}\nsample_rate -i 16000\nsample_n_bytes -i 2\nsample_byte_format -s2 10\nend_head\n",
        samples.len()
    )
    .into_bytes();
    file.resize(1024, b' ');
    file.extend(samples.iter().flat_map(|sample| sample.to_be_bytes()));
    file
}

/// One utterance of each of the three forms.
fn an4_excerpt(folder: &Path) -> PathBuf {
    let root = folder.join("an4");
    write_file(
        root.join("etc/an4_train.fileids"),
        "an4_clstk/fash/an251-fash-b\nan4_clstk/fbbh/cen1-fbbh-b\n",
    );
    write_file(
        root.join("etc/an4_train.transcription"),
        "<s> YES </s> (an251-fash-b)\n<s> H O W </s> (cen1-fbbh-b)\n",
    );
    write_file(root.join("etc/an4_test.fileids"), "an4test_clstk/fcaw/an406-fcaw-b\n");
    write_file(root.join("etc/an4_test.transcription"), "RUBOUT G (an406-fcaw-b)\n");
    write_file(root.join("wav/an4_clstk/fash/an251-fash-b.sph"), sphere_bytes(&sine(4000)));
    let raw: Vec<u8> = sine(5000).iter().flat_map(|sample| sample.to_be_bytes()).collect();
    write_file(root.join("wav/an4_clstk/fbbh/cen1-fbbh-b.raw"), raw);
    write_file(root.join("wav/an4test_clstk/fcaw/an406-fcaw-b.wav"), wav_bytes(16_000, &sine(6000)));
    root
}

#[test]
fn an4_becomes_wav_files_and_three_lists_without_common_speakers() {
    let folder = tempfile::tempdir().unwrap();
    let root = an4_excerpt(folder.path());
    for shards in [None, Some(10)] {
        let out = folder.path().join(format!("out{}", shards.is_some()));
        let lists = an4(&root, &PrepareOptions { shards, ..excerpt(&out) }).unwrap();
        let names: Vec<&str> = lists.iter().map(|list| list.name.as_str()).collect();
        assert_eq!(names, ["train", "dev", "test"]);
        for (list, (id, text, speaker, samples)) in lists.iter().zip([
            ("an251-fash-b", "yes", "fash", 4000),
            ("cen1-fbbh-b", "h o w", "fbbh", 5000),
            ("an406-fcaw-b", "rubout g", "fcaw", 6000),
        ]) {
            let corpus = Corpus::open(std::slice::from_ref(&list.path), None).unwrap();
            let utterance = corpus.utterance(0).unwrap();
            assert_eq!((corpus.len(), utterance.id.as_str(), utterance.text.as_str()), (1, id, text));
            assert_eq!(
                (utterance.speaker.as_deref(), utterance.split.as_deref()),
                (Some(speaker), Some(list.name.as_str()))
            );
            assert!(utterance.audio(16_000).unwrap().i16_samples().eq(sine(samples)));
        }
    }
    assert!(read_audio(&folder.path().join("outfalse/audio/dev/cen1-fbbh-b.wav")).is_ok());
    assert!(!folder.path().join("outtrue/audio").exists());
}

#[test]
fn errors_in_an4_are_reported_and_nothing_is_written() {
    let cases: [(Damage, &str); 10] = [
        (
            |folder| fs::remove_file(folder.join("etc/an4_test.fileids")).unwrap(),
            "an4_test.fileids: cannot be read",
        ),
        (
            |folder| write_file(folder.join("etc/an4_test.transcription"), "\n"),
            "an4_test.transcription: expected transcripts",
        ),
        (
            |folder| write_file(folder.join("etc/an4_test.transcription"), "WORDS\n"),
            "transcription:1: expected TEXT (ID)",
        ),
        (
            |folder| write_file(folder.join("etc/an4_test.transcription"), "GO (an407-fcaw-b)\n"),
            "fileids:1: expected a transcript in",
        ),
        (
            |folder| {
                write_file(
                    folder.join("etc/an4_test.transcription"),
                    "GO (an406-fcaw-b)\nGO (an406-fcaw-b)\n",
                )
            },
            "transcription:2: expected ids that occur once",
        ),
        (
            |folder| {
                write_file(
                    folder.join("etc/an4_test.transcription"),
                    "GO (an406-fcaw-b)\nGO (an407-fcaw-b)\n",
                )
            },
            "transcription:2: expected an id of",
        ),
        (
            |folder| write_file(folder.join("etc/an4_test.transcription"), "GO 2 (an406-fcaw-b)\n"),
            "transcription:1: expected letters",
        ),
        (
            |folder| write_file(folder.join("etc/an4_test.fileids"), "an4_clstk/fash/an251-fash-b\n"),
            "fileids:1: expected ids that occur once",
        ),
        (
            |folder| write_file(folder.join("etc/an4_test.fileids"), "an406\n"),
            "fileids:1: expected FOLDER/PROMPT-SPEAKER-TAKE",
        ),
        (
            |folder| {
                write_file(
                    folder.join("wav/an4_clstk/fash/an251-fash-b.sph"),
                    &sphere_bytes(&sine(4000))[..2000],
                )
            },
            "truncated: its SPHERE header declares 4000 samples",
        ),
    ];
    for (damage, part) in cases {
        let folder = tempfile::tempdir().unwrap();
        damage(&an4_excerpt(folder.path()));
        let error = an4(folder.path(), &excerpt(folder.path())).expect_err(part).to_string();
        assert!(error.contains(part), "{error}\n{part}");
        assert!(prepared_files(folder.path()).is_empty());
    }
    let folder = tempfile::tempdir().unwrap();
    let root = an4_excerpt(folder.path());
    let error = an4(folder.path(), &PrepareOptions::new(folder.path())).unwrap_err().to_string();
    assert!(error.contains("expected 948 utterances, unless it is an excerpt, found 2"), "{error}");
    fs::remove_file(root.join("wav/an4_clstk/fash/an251-fash-b.sph")).unwrap();
    let error = an4(folder.path(), &PrepareOptions::new(folder.path())).unwrap_err().to_string();
    assert!(error.contains("fileids:1: expected wav/an4_clstk/fash/an251-fash-b.sph"), "{error}");
    assert_eq!(an4(folder.path(), &excerpt(folder.path())).unwrap().len(), 2);
}

/// AN4 in its original form, before its conversion to FLAC.
#[test]
fn real_an4_has_its_texts_and_checksums() {
    let Some(first) = shared("an4/train.jsonl") else { return };
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("an4");
    let mut expected = BTreeMap::new();
    for (set, lists) in [("train", &["train", "dev"][..]), ("test", &["test"])] {
        let (mut ids, mut texts) = (String::new(), String::new());
        for list in lists {
            // A part of each list is sufficient.
            for utterance in
                read_manifest(&first.with_file_name(format!("{list}.jsonl"))).unwrap().into_iter().step_by(9)
            {
                let file = format!("an4_clstk/{}/{}", utterance.speaker.as_ref().unwrap(), utterance.id);
                ids += &format!("{file}\n");
                texts += &format!("<s> {} </s> ({})\n", utterance.text.to_uppercase(), utterance.id);
                let samples: Vec<i16> = utterance.audio(16_000).unwrap().i16_samples().collect();
                let raw = || samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
                let (ending, bytes) = if ids.len().is_multiple_of(2) {
                    ("sph", sphere_bytes(&samples))
                } else {
                    ("raw", raw())
                };
                write_file(root.join(format!("wav/{file}.{ending}")), bytes);
                expected.insert(utterance.id.clone(), utterance);
            }
        }
        write_file(root.join(format!("etc/an4_{set}.fileids")), ids);
        write_file(root.join(format!("etc/an4_{set}.transcription")), texts);
    }
    let mut count = 0;
    for list in an4(folder.path(), &excerpt(folder.path())).unwrap() {
        for utterance in read_manifest(&list.path).unwrap() {
            let expected = &expected[&utterance.id];
            assert_eq!(
                (&utterance.text, &utterance.split),
                (&expected.text, &expected.split),
                "{}",
                utterance.id
            );
            assert_eq!((utterance.num_samples, utterance.crc32), (expected.num_samples, expected.crc32));
            utterance.audio(16_000).unwrap();
            count += 1;
        }
    }
    assert_eq!(count, expected.len());
}
