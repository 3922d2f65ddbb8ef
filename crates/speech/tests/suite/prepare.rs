//! Tests of corpus preparation: excerpts of distributed corpora, and their errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use speech::files::FileLock;
use speech::prepare::{PrepareOptions, StringCounts, an4, fsdd, librispeech};
use speech::{Corpus, Error, read_audio, read_manifest};

use crate::common::{shared, wav_bytes};
use crate::flac_bytes::flac;

fn write_file(path: PathBuf, bytes: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn sine(samples: usize) -> Vec<i16> {
    (0..samples).map(|n| ((n as f64 * 0.05).sin() * 3000.0) as i16).collect()
}

/// Names of the files in a folder, without those of the corpus.
fn prepared_files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["LibriSpeech", "an4", "recordings"].contains(&name.as_str()))
        .collect();
    names.sort();
    names
}

fn excerpt(folder: &Path) -> PrepareOptions {
    PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(folder) }
}

/// Two chapters of a training set and one of a test set.
fn librispeech_excerpt(folder: &Path) -> PathBuf {
    let root = folder.join("LibriSpeech");
    for (subset, speaker, chapter, lines) in [
        ("train-clean-100", 19, 198, ["NORTHANGER ABBEY", "THIS LITTLE WORK WAS FINISHED"]),
        ("train-clean-100", 19, 227, ["IT'S TEN O'CLOCK", "AND SO ON"]),
        ("test-clean", 61, 70968, ["HE BEGAN A CONFUSED COMPLAINT", "GIVE NOT SO EARNEST A MIND"]),
    ] {
        let chapter_folder = root.join(format!("{subset}/{speaker}/{chapter}"));
        let mut transcripts = String::new();
        for (n, line) in lines.iter().enumerate() {
            let id = format!("{speaker}-{chapter}-{n:04}");
            transcripts += &format!("{id} {line}\n");
            write_file(chapter_folder.join(format!("{id}.flac")), flac(16_000, &sine(8000 + 100 * n), true));
        }
        write_file(chapter_folder.join(format!("{speaker}-{chapter}.trans.txt")), transcripts);
    }
    root
}

#[test]
fn an_excerpt_of_librispeech_has_one_manifest_per_subset() {
    let folder = tempfile::tempdir().unwrap();
    let root = librispeech_excerpt(folder.path());
    write_file(root.join("test-clean/61/70968/._61-70968-0000.flac"), b"from a different system");
    let lists = librispeech(folder.path(), &excerpt(folder.path())).unwrap();
    let names: Vec<&str> = lists.iter().map(|list| list.name.as_str()).collect();
    assert_eq!(names, ["train-clean-100", "test-clean"]);
    assert_eq!(prepared_files(folder.path()), ["test-clean.jsonl", "train-clean-100.jsonl"]);
    let train = &lists[0];
    assert_eq!((train.utterances, train.speakers, train.excluded), (4, 1, 0));
    assert_eq!((train.shortest.1, train.longest.1), (0.5, 8100.0 / 16_000.0));
    assert_eq!(train.characters[&'\''], 2);
    let utterances = read_manifest(&train.path).unwrap();
    let texts: Vec<&str> = utterances.iter().map(|utterance| utterance.text.as_str()).collect();
    assert_eq!(texts, ["northanger abbey", "this little work was finished", "it's ten o'clock", "and so on"]);
    assert_eq!(utterances[3].id, "19-227-0001");
    assert_eq!(
        (utterances[3].speaker.as_deref(), utterances[3].split.as_deref()),
        (Some("19"), Some("train"))
    );
    assert_eq!(utterances[3].subset.as_deref(), Some("train-clean-100"));
    assert_eq!(utterances[3].audio(16_000).unwrap().samples.len(), 8100);
    // Paths are relative and do not depend on the location of the folder.
    assert!(fs::read_to_string(&train.path).unwrap().contains(r#""file":"LibriSpeech/train-clean-100/19/"#));

    // Lists in a different folder have absolute paths; the inner folder is the same corpus.
    let destination = tempfile::tempdir().unwrap();
    librispeech(&root, &excerpt(&destination.path().join("new/lists"))).unwrap();
    let again = read_manifest(&destination.path().join("new/lists/train-clean-100.jsonl")).unwrap();
    assert_eq!(again[3].audio(16_000).unwrap().samples.len(), 8100);
}

#[test]
fn complete_training_sets_are_joined() {
    let folder = tempfile::tempdir().unwrap();
    let root = librispeech_excerpt(folder.path());
    for (subset, speaker) in [("train-clean-360", 14), ("train-other-500", 20)] {
        let chapter = root.join(format!("{subset}/{speaker}/1"));
        write_file(chapter.join(format!("{speaker}-1-0000.flac")), flac(16_000, &sine(9000), true));
        write_file(chapter.join(format!("{speaker}-1.trans.txt")), format!("{speaker}-1-0000 WORDS"));
    }
    let lists = librispeech(folder.path(), &excerpt(folder.path())).unwrap();
    assert_eq!((lists[0].name.as_str(), lists[0].utterances, lists[0].speakers), ("train-960", 6, 3));
    let parts: Vec<String> = ["train-clean-100", "train-clean-360", "train-other-500"]
        .iter()
        .map(|name| fs::read_to_string(folder.path().join(format!("{name}.jsonl"))).unwrap())
        .collect();
    assert_eq!(fs::read_to_string(&lists[0].path).unwrap(), parts.concat());
    // Shards contain every utterance once.
    let shards = PrepareOptions { shards: Some(3), ..excerpt(&folder.path().join("shards")) };
    let lists = librispeech(folder.path(), &shards).unwrap();
    assert!(lists.iter().all(|list| list.name != "train-960"));
    let paths: Vec<PathBuf> = lists.iter().map(|list| list.path.clone()).collect();
    assert!(paths[0].ends_with("train-clean-100-{000000..000001}.tar"), "{paths:?}");
    let corpus = Corpus::open(&paths, None).unwrap();
    assert_eq!(corpus.len(), 8);
    let utterance = corpus.utterance(3).unwrap();
    assert_eq!((utterance.id.as_str(), utterance.text.as_str()), ("19-227-0001", "and so on"));
    assert_eq!(utterance.audio(16_000).unwrap().samples.len(), 8100);
    let bytes =
        |n: usize| fs::read(folder.path().join(format!("shards/train-clean-100-00000{n}.tar"))).unwrap();
    let before = [bytes(0), bytes(1)];
    librispeech(folder.path(), &shards).unwrap();
    // A pattern of a longer list would read its remaining shards.
    let fewer = PrepareOptions { shards: Some(1000), ..excerpt(&folder.path().join("shards")) };
    let error = librispeech(folder.path(), &fewer).unwrap_err().to_string();
    assert!(error.contains("train-clean-100-000001.tar") && error.contains("longer list"), "{error}");
    assert_eq!(before, [bytes(0), bytes(1)], "reproducible");
}

/// Damages the files of a folder.
type Damage = fn(&Path);

#[test]
fn errors_in_librispeech_are_reported_and_nothing_is_written() {
    let chapter = "test-clean/61/70968";
    let cases: [(Damage, &str); 15] = [
        (
            |folder| fs::remove_file(folder.join("61-70968.trans.txt")).unwrap(),
            "61-70968.trans.txt: expected the transcripts",
        ),
        (
            |folder| fs::remove_file(folder.join("61-70968-0001.flac")).unwrap(),
            "trans.txt:2: expected 61-70968-0001.flac",
        ),
        (
            |folder| write_file(folder.join("61-70968-0007.flac"), b""),
            "61-70968-0007.flac: expected its transcript",
        ),
        (
            |folder| write_file(folder.join("61-70968.trans.txt"), "61-70968-0000 A\n61-70968-0000 B\n"),
            "trans.txt:2: expected ids that occur once",
        ),
        (
            |folder| write_file(folder.join("61-70968.trans.txt"), "61-70968-0000 A\n61-70969-0001 B\n"),
            "trans.txt:2: expected an id 61-70968-NUMBER",
        ),
        (
            |folder| write_file(folder.join("61-70968.trans.txt"), "61-70968-0000 A\n61-70968-x B\n"),
            "trans.txt:2: expected an id",
        ),
        (
            |folder| write_file(folder.join("61-70968.trans.txt"), "61-70968-0000 A\n\n61-70968-0001\n"),
            "trans.txt:3: expected a transcript",
        ),
        (
            |folder| write_file(folder.join("61-70968.trans.txt"), "61-70968-0000 CAF\u{c9}\n"),
            "trans.txt:1: expected letters",
        ),
        (
            |folder| write_file(folder.join("61-70968.trans.txt"), b"61-70968-0000 \xff\n"),
            "trans.txt: cannot be read",
        ),
        (
            |folder| write_file(folder.join("61-70968-0000.flac"), flac(8000, &sine(8000), true)),
            "expected audio at 16000 Hz, found 8000",
        ),
        (
            |folder| write_file(folder.join("61-70968-0000.flac"), flac(16_000, &sine(90), true)),
            "0.1 to 60 seconds",
        ),
        (|folder| write_file(folder.join("61-70968-0000.flac"), b"words"), "expected a WAV or FLAC file"),
        (
            |folder| {
                let complete = flac(16_000, &sine(8000), true);
                write_file(folder.join("61-70968-0000.flac"), &complete[..complete.len() - 3000]);
            },
            "truncated",
        ),
        (
            |folder| fs::create_dir_all(folder.join("../70970")).unwrap(),
            "61-70970.trans.txt: expected the transcripts",
        ),
        (
            |folder| fs::remove_dir_all(folder.join("../../../test-clean/61")).unwrap(),
            "test-clean: expected utterances, found none",
        ),
    ];
    for (damage, part) in cases {
        let folder = tempfile::tempdir().unwrap();
        let root = librispeech_excerpt(folder.path());
        damage(&root.join(chapter));
        let prepare_complete = || {
            // Only this subset, because the other one is incomplete.
            let _ = fs::remove_dir_all(root.join("train-clean-100"));
            librispeech(folder.path(), &PrepareOptions::new(folder.path()))
        };
        let error = match part {
            part if part.contains("0001.flac") => prepare_complete(),
            _ => librispeech(folder.path(), &excerpt(folder.path())),
        };
        let error = error.expect_err(part).to_string();
        assert!(error.contains(part), "{error}\n{part}");
        assert!(prepared_files(folder.path()).is_empty(), "{:?}", prepared_files(folder.path()));
    }
    let folder = tempfile::tempdir().unwrap();
    let error = librispeech(folder.path(), &excerpt(folder.path())).unwrap_err();
    assert!(
        matches!(error, Error::Corpus { .. }) && error.to_string().contains("train-clean-100"),
        "{error}"
    );
    librispeech_excerpt(folder.path());
    let error = librispeech(folder.path(), &PrepareOptions::new(folder.path())).unwrap_err().to_string();
    assert!(error.contains("expected 28539 utterances, unless it is an excerpt, found 4"), "{error}");
    let none = PrepareOptions { shards: Some(0), ..excerpt(folder.path()) };
    assert!(matches!(librispeech(folder.path(), &none), Err(Error::Setting { field: "shards", .. })));
    write_file(folder.path().join("file"), b"");
    let error = librispeech(folder.path(), &excerpt(&folder.path().join("file/lists"))).unwrap_err();
    assert!(matches!(error, Error::Write { .. }), "{error}");
}

#[test]
fn transcripts_of_an_excerpt_can_lack_their_audio() {
    let folder = tempfile::tempdir().unwrap();
    let root = librispeech_excerpt(folder.path());
    fs::remove_file(root.join("test-clean/61/70968/61-70968-0001.flac")).unwrap();
    let lists = librispeech(folder.path(), &excerpt(folder.path())).unwrap();
    assert_eq!((lists[1].utterances, lists[1].excluded), (1, 1));
}

#[test]
fn a_flac_file_without_length_is_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let root = librispeech_excerpt(folder.path());
    write_file(root.join("test-clean/61/70968/61-70968-0000.flac"), flac(16_000, &sine(9001), false));
    let lists = librispeech(folder.path(), &excerpt(folder.path())).unwrap();
    assert_eq!(read_manifest(&lists[1].path).unwrap()[0].num_samples, Some(9001));
    // Other bytes after the last frame.
    let mut longer = flac(16_000, &sine(9002), true);
    longer.extend([b'x'; 9000]);
    write_file(root.join("test-clean/61/70968/61-70968-0001.flac"), longer);
    let error = librispeech(folder.path(), &excerpt(folder.path())).unwrap_err().to_string();
    assert!(error.contains("61-70968-0001.flac"), "{error}");
}

/// The distributed LibriSpeech files in the shared data.
#[test]
fn real_librispeech_has_its_texts_and_checksums() {
    let Some(list) = shared("samples/samples.jsonl") else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut transcripts: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut expected = BTreeMap::new();
    for utterance in read_manifest(&list).unwrap() {
        let Some(audio) =
            utterance.files().next().filter(|path| path.parent().unwrap().ends_with("librispeech"))
        else {
            continue;
        };
        let (chapter, _) = utterance.id.rsplit_once('-').unwrap();
        let chapter_folder = folder.path().join("LibriSpeech/test-other").join(chapter.replace('-', "/"));
        write_file(chapter_folder.join(format!("{}.flac", utterance.id)), fs::read(audio).unwrap());
        *transcripts.entry(chapter_folder.join(format!("{chapter}.trans.txt"))).or_default() +=
            &format!("{} {}\n", utterance.id, utterance.text.to_uppercase());
        expected.insert(utterance.id.clone(), utterance.clone());
    }
    transcripts.into_iter().for_each(|(path, text)| write_file(path, text));
    let lists = librispeech(folder.path(), &excerpt(folder.path())).unwrap();
    assert_eq!((lists[0].utterances, lists[0].speakers), (50, 10));
    for utterance in read_manifest(&lists[0].path).unwrap() {
        let expected = &expected[&utterance.id];
        assert_eq!((&utterance.text, &utterance.speaker), (&expected.text, &expected.speaker));
        assert_eq!(
            (utterance.num_samples, utterance.sample_rate),
            (expected.num_samples, expected.sample_rate)
        );
        assert_eq!(utterance.audio(16_000).unwrap().crc32(), expected.crc32.unwrap());
    }
    // A truncated file is detected without decoding the others.
    let path = read_manifest(&lists[0].path).unwrap()[0].files().next().unwrap().to_owned();
    let complete = fs::read(&path).unwrap();
    for cut in [1, 100, 5000, complete.len() / 2] {
        write_file(path.clone(), &complete[..complete.len() - cut]);
        let error = librispeech(folder.path(), &excerpt(folder.path())).unwrap_err();
        assert!(matches!(error, Error::Truncated { .. }), "{error}");
    }
}

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

fn fsdd_excerpt(folder: &Path, speakers: &[&str], takes: u32) {
    for speaker in speakers {
        for digit in 0..10 {
            for take in 0..takes {
                let bytes = wav_bytes(8000, &sine(1600 + 10 * digit + take as usize));
                write_file(folder.join(format!("recordings/{digit}_{speaker}_{take}.wav")), bytes);
            }
        }
    }
}

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

#[cfg(unix)]
#[test]
fn lists_are_written_through_links_and_pipes() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 6);
    let in_folder = |name: &str| folder.path().join(name);
    for name in ["out", "plain", "shards", "far"] {
        fs::create_dir(in_folder(name)).unwrap();
    }
    let options_for =
        |name: &str| PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(in_folder(name)) };
    fsdd(folder.path(), &options_for("plain"), None).unwrap();
    fs::write(in_folder("elsewhere.jsonl"), "old").unwrap();
    symlink("../elsewhere.jsonl", in_folder("out/train.jsonl")).unwrap();
    assert!(
        std::process::Command::new("mkfifo").arg(in_folder("out/test.jsonl")).status().unwrap().success()
    );
    let reader = {
        let pipe = in_folder("out/test.jsonl");
        std::thread::spawn(move || fs::read_to_string(pipe).unwrap())
    };
    fsdd(folder.path(), &options_for("out"), None).unwrap();
    let text = |name: &str| fs::read_to_string(in_folder(name)).unwrap();
    assert_eq!(reader.join().unwrap(), text("plain/test.jsonl"));
    assert_eq!(text("elsewhere.jsonl"), text("plain/train.jsonl"));
    assert!(fs::symlink_metadata(in_folder("out/train.jsonl")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(in_folder("out/test.jsonl")).unwrap().file_type().is_fifo());
    assert_eq!(prepared_files(&in_folder("out")), ["test.jsonl", "train.jsonl"]);
    // Shards follow links too.
    symlink("../far/shard", in_folder("shards/test-000000.tar")).unwrap();
    fsdd(folder.path(), &PrepareOptions { shards: Some(100), ..options_for("shards") }, None).unwrap();
    assert!(in_folder("shards/test-000000.tar").is_symlink() && in_folder("far/shard").is_file());

    // Two lists in one file or a list over a recording are refused.
    let recording = in_folder("recordings/0_theo_0.wav");
    let before = fs::read(&recording).unwrap();
    for (target, part) in [
        ("../elsewhere.jsonl", "a different target"),
        ("../recordings/0_theo_0.wav", "no link into the corpus"),
    ] {
        fs::remove_file(in_folder("out/test.jsonl")).unwrap();
        symlink(target, in_folder("out/test.jsonl")).unwrap();
        fs::write(in_folder("elsewhere.jsonl"), "old").unwrap();
        let error = fsdd(folder.path(), &options_for("out"), None).unwrap_err().to_string();
        assert!(error.contains("out/test.jsonl: expected") && error.contains(part), "{error}");
        assert_eq!(text("elsewhere.jsonl"), "old");
        assert_eq!(prepared_files(&in_folder("out")), ["test.jsonl", "train.jsonl"]);
    }
    assert_eq!(fs::read(recording).unwrap(), before);
}

#[test]
fn only_one_process_prepares_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 6);
    let out = folder.path().join("out");
    let prepare = PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(&out) };
    fs::create_dir(&out).unwrap();
    let lock = FileLock::acquire(&out.join(".prepare.lock")).unwrap().unwrap();
    for shards in [None, Some(2)] {
        let error = fsdd(folder.path(), &PrepareOptions { shards, ..prepare.clone() }, None).unwrap_err();
        assert!(error.to_string().contains("expected no other process that prepares a corpus"), "{error}");
    }
    assert_eq!(prepared_files(&out), [".prepare.lock"]);
    drop(lock);
    // The process that held the lock may have been killed.
    fsdd(folder.path(), &prepare, None).unwrap();
    assert_eq!(prepared_files(&out), ["test.jsonl", "train.jsonl"]);

    // Of two concurrent processes, one is refused or both run one after the other.
    let pattern = |size: usize| PrepareOptions { shards: Some(size), ..prepare.clone() };
    fs::remove_dir_all(&out).unwrap();
    let outcomes: Vec<bool> = std::thread::scope(|scope| {
        let threads: Vec<_> = [7, 7]
            .map(|size| {
                scope.spawn({
                    let (pattern, folder) = (pattern(size), folder.path());
                    move || fsdd(folder, &pattern, None).is_ok()
                })
            })
            .into_iter()
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(outcomes.contains(&true));
    assert_eq!(prepared_files(&out).len(), 10usize.div_ceil(7) + 50usize.div_ceil(7));
}

#[cfg(unix)]
#[test]
fn a_link_in_place_of_the_lock_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fsdd_excerpt(folder.path(), &["theo"], 6);
    let (out, victim) = (folder.path().join("out"), folder.path().join("victim"));
    fs::create_dir(&out).unwrap();
    fs::write(&victim, "precious").unwrap();
    std::os::unix::fs::symlink("../victim", out.join(".prepare.lock")).unwrap();
    let prepare = PrepareOptions { allow_incomplete: true, ..PrepareOptions::new(&out) };
    let error = fsdd(folder.path(), &prepare, None).unwrap_err().to_string();
    assert!(error.contains(".prepare.lock") && error.contains("a symbolic link"), "{error}");
    assert_eq!(fs::read_to_string(victim).unwrap(), "precious");
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
