//! Tests of the preparation of LibriSpeech: excerpts, unions, shards and errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use speech::prepare::{PrepareOptions, librispeech};
use speech::{Corpus, Error, read_manifest};

use crate::common::shared;
use crate::flac_bytes::flac;
use crate::prepare::{Damage, excerpt, prepared_files, sine, write_file};

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
