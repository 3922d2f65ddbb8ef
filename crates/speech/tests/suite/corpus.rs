//! Utterances by number, of manifests and of shards.
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use speech::{Corpus, Error, read_manifest};

use crate::common::wav_bytes;

/// A sound of some samples as the bytes of a file.
fn sound(samples: usize) -> Vec<u8> {
    wav_bytes(8000, &(0..samples).map(|n| (n * 37 % 2000) as i16 - 1000).collect::<Vec<_>>())
}

/// A shard of members.
fn shard(path: &Path, members: &[(&str, &[u8])]) {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    fs::write(path, archive.into_inner().unwrap()).unwrap();
}

/// Three samples, one with a text alone, one with more to say.
fn three(path: &Path) {
    let (one, two, three) = (sound(800), sound(1200), sound(2000));
    let about = br#"{"text": "two words", "speaker": "s2", "id": "second", "num_samples": 1200}"#;
    shard(
        path,
        &[
            ("set/a.wav", &one),
            ("set/a.txt", b"one\n"),
            ("set/b.json", about),
            ("set/b.wav", &two),
            ("set/b.png", b"not for us"),
            ("README", b"nor this"),
            ("c.wav", &three),
            ("c.txt", b"three"),
        ],
    );
}

#[test]
fn a_manifest_says_the_same_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    for text in [
        "{\"id\": \"a\", \"file\": \"a.wav\", \"seconds\": 0.1, \"text\": \"one\"}\n",
        "\u{feff}{\"id\": \"a\", \"file\": \"a.wav\", \"seconds\": 0.1, \"text\": \"\u{e9}\"}\r\n\n  \n{\"id\": \"b\", \"file\": \"a.wav\", \"duration\": 0.2, \"text\": \"two\"}",
    ] {
        let path = folder.path().join("list.jsonl");
        fs::write(&path, text).unwrap();
        let expected = read_manifest(&path).unwrap();
        for cache in [None, Some(folder.path().join("cache")), Some(folder.path().join("cache"))] {
            let corpus = Corpus::open(&[path.clone(), path.clone()], cache.as_deref()).unwrap();
            assert_eq!(corpus.len(), 2 * expected.len());
            assert!(!corpus.is_empty() && corpus.bytes() <= 40 * 2 * expected.len());
            for (index, expected) in expected.iter().chain(&expected).enumerate() {
                assert_eq!(corpus.utterance(index).unwrap(), *expected);
                assert_eq!(corpus.seconds(index), expected.seconds);
            }
            assert_eq!(corpus.utterances().count(), corpus.len());
        }
    }
}

#[test]
fn strings_of_recordings_are_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let recording = r#"{"id": "r", "file": "r.wav", "seconds": 0.5, "text": "five", "num_samples": 4000, "sample_rate": 8000}"#;
    fs::write(folder.path().join("recordings.jsonl"), recording).unwrap();
    let string = r#"{"id": "s", "text": "five five", "recordings": ["r", "r"], "gaps_ms": [10], "lead_ms": 0, "tail_ms": 5, "seconds": 1.0}"#;
    let path = folder.path().join("list.jsonl");
    fs::write(&path, string).unwrap();
    let cache = folder.path().join("cache");
    for _ in 0..2 {
        let corpus = Corpus::open(std::slice::from_ref(&path), Some(&cache)).unwrap();
        assert_eq!(corpus.utterance(0).unwrap(), read_manifest(&path).unwrap()[0]);
    }
}

#[test]
fn a_shard_has_sound_and_text_of_each_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t-00.tar");
    three(&path);
    three(&folder.path().join("t-01.tar"));
    let cache = folder.path().join("cache");
    for _ in 0..2 {
        let corpus = Corpus::open(&[folder.path().join("t-{00..01}.tar")], Some(&cache)).unwrap();
        assert_eq!(corpus.len(), 6);
        for (index, (id, text, samples)) in
            [("set/a", "one", 800), ("second", "two words", 1200), ("c", "three", 2000)]
                .into_iter()
                .cycle()
                .take(6)
                .enumerate()
        {
            let one = corpus.utterance(index).unwrap();
            assert_eq!((one.id.as_str(), one.text.as_str()), (id, text));
            assert_eq!(one.seconds, samples as f64 / 8000.0);
            assert_eq!(corpus.seconds(index), one.seconds);
            assert_eq!(one.audio(8000).unwrap().samples.len(), samples);
            assert_eq!(one.sample_rate, Some(8000));
        }
        assert_eq!(corpus.utterance(1).unwrap().speaker.as_deref(), Some("s2"));
    }
    assert_eq!(fs::read_dir(cache).unwrap().count(), 2);
}

#[test]
fn what_a_shard_lacks_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let sound = sound(100);
    let error = |members: &[(&str, &[u8])]| {
        shard(&path, members);
        Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string()
    };
    for (members, part) in [
        (&[("a.wav", &sound[..])][..], "expected a.json or a.txt, found sound alone"),
        (&[("a.txt", b"one"), ("b.wav", &sound)], "expected a.wav or a.flac, found a text alone"),
        (&[("a.wav", &sound), ("a.json", b"{\"id\": 3")], "expected a JSON object"),
        (&[("a.wav", &sound), ("a.json", b"{\"id\": \"a\"}")], "missing field `text`"),
        (&[("a.wav", b"noise"), ("a.txt", b"one")], "expected a WAV or FLAC file"),
        (
            &[
                ("a.wav", &sound),
                ("a.txt", b"one"),
                ("b.txt", b"x"),
                ("b.wav", &sound),
                ("a.wav", &sound),
                ("a.txt", b"one"),
            ],
            "id `a`",
        ),
        (&[("README", b"empty")], "at least one utterance"),
    ] {
        let found = error(members);
        assert!(found.contains(part) && found.contains("t.tar"), "{found}");
    }
    three(&path);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..1500]).unwrap();
    let found = Corpus::open(std::slice::from_ref(&path), None).unwrap_err();
    assert!(matches!(found, Error::Shard { .. }), "{found}");
    let missing = folder.path().join("none.tar");
    assert!(matches!(Corpus::open(&[missing], None), Err(Error::Io { .. })));
}

#[test]
fn a_source_that_has_changed_since_it_was_indexed_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    three(&path);
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    // Other sound where the first was: the second sample is where the index does not know it.
    let (one, two) = (sound(5000), sound(1200));
    shard(&path, &[("set/a.wav", &one), ("set/a.txt", b"one"), ("z.wav", &two), ("z.txt", b"two")]);
    for index in 0..2 {
        let error = corpus.utterance(index).unwrap_err();
        assert!(matches!(error, Error::Index { .. }), "{error}");
        assert!(error.to_string().contains(&format!("utterance {index}")), "{error}");
    }
    let list = folder.path().join("list.jsonl");
    let line = |text: &str| {
        format!("{{\"id\": \"a\", \"file\": \"a.wav\", \"seconds\": 0.1, \"text\": \"{text}\"}}\n")
    };
    fs::write(&list, line("one")).unwrap();
    let corpus = Corpus::open(std::slice::from_ref(&list), None).unwrap();
    fs::write(&list, line("two")).unwrap();
    assert!(matches!(corpus.utterance(0), Err(Error::Index { index: 0, .. })));
}

#[test]
fn an_index_that_does_not_fit_or_is_damaged_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (path, cache) = (folder.path().join("t.tar"), folder.path().join("cache"));
    three(&path);
    let open = || Corpus::open(std::slice::from_ref(&path), Some(&cache)).unwrap().len();
    assert_eq!(open(), 3);
    let index: PathBuf = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let whole = fs::read(&index).unwrap();
    for at in [0, 20, 60, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&index, &damaged).unwrap();
        assert_eq!(open(), 3);
        assert_eq!(fs::read(&index).unwrap(), whole);
    }
    fs::write(&index, &whole[..whole.len() - 7]).unwrap();
    assert_eq!(open(), 3);
    let sound = sound(100);
    shard(&path, &[("a.wav", &sound), ("a.txt", b"one")]);
    assert_eq!(open(), 1);
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever is in a shard, it is read or refused, and never a reason to panic.
    #[test]
    fn no_damage_is_fatal(at in 0usize..8000, byte: u8, cut in 0usize..9000) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.tar");
        three(&path);
        let mut bytes = fs::read(&path).unwrap();
        let place = at % bytes.len();
        bytes[place] = byte;
        bytes.truncate(cut.max(1));
        fs::write(&path, &bytes).unwrap();
        if let Ok(corpus) = Corpus::open(std::slice::from_ref(&path), None) {
            for one in corpus.utterances().flatten() {
                let _ = one.audio(8000);
            }
        }
    }
}
