//! Tests of `Corpus`: utterances of manifests and shards by index, and damaged sources.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use speech::{Corpus, Error, read_manifest};

use crate::common::wav_bytes;
use crate::flac_bytes::flac;

/// A WAV file of some samples, as bytes.
pub(crate) fn wav_file(samples: usize) -> Vec<u8> {
    wav_bytes(8000, &(0..samples).map(|n| (n * 37 % 2000) as i16 - 1000).collect::<Vec<_>>())
}

/// Writes a tar file of members.
pub(crate) fn write_tar(path: &Path, members: &[(&str, &[u8])]) {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, *bytes).unwrap();
    }
    fs::write(path, archive.into_inner().unwrap()).unwrap();
}

/// Writes a shard of three samples, the second with JSON metadata.
fn write_shard(path: &Path) {
    let (first, second, third) = (wav_file(800), wav_file(1200), wav_file(2000));
    let metadata = br#"{"text": "two words", "speaker": "s2", "id": "second", "num_samples": 1200}"#;
    write_tar(
        path,
        &[
            ("set/a.wav", &first),
            ("set/a.txt", b"one\n"),
            ("set/b.json", metadata),
            ("set/b.wav", &second),
            ("set/b.png", b"not for us"),
            ("README", b"nor this"),
            ("c.wav", &third),
            ("c.txt", b"three"),
        ],
    );
}

#[test]
fn utterances_by_index_equal_those_of_the_manifest() {
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
fn strings_of_recordings_are_read_by_index() {
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
fn a_shard_has_audio_and_text_of_each_sample() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t-00.tar");
    write_shard(&path);
    write_shard(&folder.path().join("t-01.tar"));
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
            let utterance = corpus.utterance(index).unwrap();
            assert_eq!((utterance.id.as_str(), utterance.text.as_str()), (id, text));
            assert_eq!(utterance.seconds, samples as f64 / 8000.0);
            assert_eq!(corpus.seconds(index), utterance.seconds);
            assert_eq!(utterance.audio(8000).unwrap().samples.len(), samples);
            assert_eq!(utterance.sample_rate, Some(8000));
        }
        assert_eq!(corpus.utterance(1).unwrap().speaker.as_deref(), Some("s2"));
        // The cache stores the warnings, too.
        let [first, second] = corpus.warnings() else { panic!("{:?}", corpus.warnings()) };
        assert!(first.ends_with("t-00.tar: 2 members are not used: set/b.png, README"), "{first}");
        assert!(second.contains("t-01.tar"), "{second}");
    }
    assert_eq!(fs::read_dir(cache).unwrap().count(), 2);
}

#[test]
fn errors_name_what_a_shard_lacks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let audio = wav_file(100);
    let good: [(&str, &[u8]); 2] = [("good.wav", &audio), ("good.txt", b"one")];
    for (members, part) in [
        (&[("a.wav", &audio[..])][..], "expected a.json or a.txt, found only audio"),
        (&[("b.txt", b"one")], "expected b.wav, b.flac or other audio, found only a text"),
        (&[("a.wav", &audio), ("a.json", b"{\"id\": 3")], "expected a JSON object"),
        (&[("a.wav", &audio), ("a.json", b"{\"id\": \"a\"}")], "missing field `text`"),
        (&[("a.wav", b"noise"), ("a.txt", b"one")], "expected a WAV or FLAC file"),
    ] {
        // A shard without other samples is an error; otherwise the sample is excluded and reported.
        write_tar(&path, members);
        let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
        assert!(
            error.contains(part) && error.contains("t.tar") && error.contains("cannot be used"),
            "{error}"
        );
        write_tar(&path, &[&good[..1], members, &good[1..]].concat());
        let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
        assert!(error.contains("3 samples that cannot be used, the first good"), "{error}");
        write_tar(&path, &[members, &good].concat());
        let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
        let [bad] = corpus.bad_samples() else { panic!("{:?}", corpus.bad_samples()) };
        assert!(bad.reason.contains(part) && bad.reason.contains("t.tar"), "{bad:?}");
        assert_eq!((bad.key.as_str(), corpus.len()), (&members[0].0[..1], 1));
    }
    let with_repeated_key: [(&str, &[u8]); 6] = [
        ("a.wav", &audio),
        ("a.txt", b"one"),
        ("b.txt", b"x"),
        ("b.wav", &audio),
        ("a.wav", &audio),
        ("a.txt", b"one"),
    ];
    write_tar(&path, &with_repeated_key);
    let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
    assert!(error.contains("id `a`"), "{error}");
    write_tar(&path, &[("README", b"empty")]);
    let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
    assert!(error.contains("1 member is not used: README"), "{error}");
    write_shard(&path);
    let complete = fs::read(&path).unwrap();
    fs::write(&path, &complete[..1500]).unwrap();
    let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err();
    assert!(matches!(error, Error::Shard { .. }), "{error}");
    let missing = folder.path().join("none.tar");
    assert!(matches!(Corpus::open(&[missing], None), Err(Error::Io { .. })));
}

#[test]
fn a_source_changed_after_indexing_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    write_shard(&path);
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    // The first sample has other audio, so the second starts at another position than in the index.
    let (first, second) = (wav_file(5000), wav_file(1200));
    write_tar(&path, &[("set/a.wav", &first), ("set/a.txt", b"one"), ("z.wav", &second), ("z.txt", b"two")]);
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
fn an_outdated_or_damaged_index_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let (path, cache) = (folder.path().join("t.tar"), folder.path().join("cache"));
    write_shard(&path);
    let open = || Corpus::open(std::slice::from_ref(&path), Some(&cache)).unwrap().len();
    assert_eq!(open(), 3);
    let index: PathBuf = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
    let complete = fs::read(&index).unwrap();
    for offset in [0, 20, 60, complete.len() - 1] {
        let mut damaged = complete.clone();
        damaged[offset] ^= 1;
        fs::write(&index, &damaged).unwrap();
        assert_eq!(open(), 3);
        assert_eq!(fs::read(&index).unwrap(), complete);
    }
    fs::write(&index, &complete[..complete.len() - 7]).unwrap();
    assert_eq!(open(), 3);
    let audio = wav_file(100);
    write_tar(&path, &[("a.wav", &audio), ("a.txt", b"one")]);
    assert_eq!(open(), 1);
    assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
}

/// Writes a tar file with members that `fill` adds.
fn write_archive(path: &Path, fill: impl FnOnce(&mut tar::Builder<Vec<u8>>)) {
    let mut archive = tar::Builder::new(Vec::new());
    fill(&mut archive);
    fs::write(path, archive.into_inner().unwrap()).unwrap();
}

fn header(length: usize) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_size(length as u64);
    header
}

#[test]
fn names_can_be_long_or_in_any_script() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let (audio, metadata) = (wav_file(800), br#"{"text": "one", "speaker": "s"}"#);
    let long = format!("{}/{}", "folder".repeat(30), "name".repeat(40));
    write_archive(&path, |archive| {
        // As written by GNU tar.
        for (ending, bytes) in [("wav", &audio[..]), ("json", metadata)] {
            archive.append_data(&mut header(bytes.len()), format!("{long}.{ending}"), bytes).unwrap();
        }
        // As written by Python: a header with a short name after a pax record with the name and a
        // time.
        for (ending, bytes) in [("json", &metadata[..]), ("WAV", &audio)] {
            let name = format!("\u{6211}\u{5011}/{}.{ending}", "x".repeat(200));
            archive.append_pax_extensions([("mtime", "1.5".as_bytes()), ("path", name.as_bytes())]).unwrap();
            archive.append_data(&mut header(bytes.len()), format!("??/short.{ending}"), bytes).unwrap();
        }
        // As written by git: a global record.
        let record = b"19 comment=nothing\n";
        let mut global = header(record.len());
        global.set_entry_type(tar::EntryType::XGlobalHeader);
        archive.append_data(&mut global, "pax_global_header", &record[..]).unwrap();
        for (name, bytes) in [("./last.Wav", &audio[..]), ("./last.txt", b"\xef\xbb\xbfthree")] {
            let mut header = header(bytes.len());
            header.set_path("x").unwrap();
            header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, bytes).unwrap();
        }
    });
    let cache = folder.path().join("cache");
    for _ in 0..2 {
        let corpus = Corpus::open(std::slice::from_ref(&path), Some(&cache)).unwrap();
        let actual: Vec<(String, String)> = corpus
            .utterances()
            .map(|utterance| {
                let utterance = utterance.unwrap();
                assert_eq!(utterance.audio(8000).unwrap().samples.len(), 800);
                (utterance.id, utterance.text)
            })
            .collect();
        let pax = format!("\u{6211}\u{5011}/{}", "x".repeat(200));
        let expected = [(&*long, "one"), (&*pax, "one"), ("last", "three")];
        assert!(actual.iter().map(|(id, text)| (id.as_str(), text.as_str())).eq(expected), "{actual:?}");
    }
}

#[test]
fn errors_name_members_that_are_links() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let audio = wav_file(800);
    for (kind, part) in [
        (tar::EntryType::Symlink, "a.wav: expected a separate file, found Symlink"),
        (tar::EntryType::Link, "a.wav: expected a separate file, found Link"),
        (tar::EntryType::Fifo, "found Fifo"),
        (tar::EntryType::GNUSparse, "sparse"),
    ] {
        write_archive(&path, |archive| {
            let mut link = header(0);
            link.set_entry_type(kind);
            link.set_link_name("elsewhere").unwrap();
            link.as_gnu_mut().unwrap().realsize = *b"00000000000\0";
            archive.append_data(&mut link, "a.wav", &[][..]).unwrap();
            archive.append_data(&mut header(3), "a.txt", &b"one"[..]).unwrap();
        });
        let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err();
        assert!(matches!(error, Error::Shard { .. }) && error.to_string().contains(part), "{error}");
    }
    // Folders are skipped; links and hidden files with the name of a sample are counted.
    write_archive(&path, |archive| {
        let mut folder = header(0);
        folder.set_entry_type(tar::EntryType::Directory);
        archive.append_data(&mut folder, "set.wav/", &[][..]).unwrap();
        let mut link = header(0);
        link.set_entry_type(tar::EntryType::Symlink);
        archive.append_link(&mut link, "a.png", "b.png").unwrap();
        archive.append_data(&mut header(audio.len()), "a.wav", &audio[..]).unwrap();
        archive.append_data(&mut header(3), "._a.json", &b"mac"[..]).unwrap();
        archive.append_data(&mut header(3), "a.txt", &b"one"[..]).unwrap();
    });
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    assert_eq!(corpus.len(), 1);
    assert!(corpus.warnings()[0].ends_with("2 members are not used: a.png, ._a.json"), "{corpus:?}");
}

#[test]
fn errors_name_duplicate_and_invalid_members() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let audio = wav_file(8000);
    let too_long_text = vec![b' '; (1 << 24) + 1];
    for (members, part) in [
        (
            &[("a.wav", &audio[..]), ("a.flac", &audio), ("a.txt", b"one")][..],
            "a.flac: expected one audio file",
        ),
        (&[("a.wav", &audio), ("a.txt", b"one"), ("a.txt", b"one")], "a.txt: expected one txt"),
        (
            &[
                ("a.wav", &audio),
                ("a.json", br#"{"id": "x", "text": ""}"#),
                ("b.wav", &audio),
                ("b.json", br#"{"id": "x", "text": ""}"#),
            ],
            "id `x`",
        ),
        (&[("a.wav", &audio), ("a.json", b"")], "expected a JSON object"),
        (&[("a.wav", &audio), ("a.json", b"words")], "expected a JSON object"),
        (&[("a.wav", &audio), ("a.json", b"[1]")], "expected a JSON object"),
        (&[("a.wav", b""), ("a.txt", b"one")], "the first a: "),
        (&[("a.wav", &audio[..44]), ("a.txt", b"one")], "the first a: "),
        (&[("a.wav", &audio), ("a.txt", b"caf\xe9")], "a.txt: text in UTF-8"),
        (&[("a.wav", &audio), ("a.txt", &too_long_text)], "a text of at most 16777216 bytes"),
    ] {
        write_tar(&path, members);
        let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
        let single = part.replace("the first a", "1 sample that cannot be used, a");
        assert!(error.contains(part) || error.contains(&single), "{error}\n{part}");
    }
    // A length that differs from the metadata is used and reported.
    write_tar(&path, &[("a.wav", &audio), ("a.json", br#"{"text": "one", "seconds": 3.0}"#)]);
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    let [other] = corpus.length_mismatches() else { panic!("{corpus:?}") };
    assert_eq!((other.id.as_str(), other.expected_seconds, other.found_seconds), ("a", 3.0, 1.0));
    assert_eq!((corpus.seconds(0), corpus.utterance(0).unwrap().seconds), (1.0, 1.0));
    // A text next to JSON is not used.
    write_tar(&path, &[("a.wav", &audio), ("a.json", br#"{"text": "one"}"#), ("a.txt", b"two")]);
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    assert!(corpus.warnings()[0].ends_with("1 member is not used: a.txt"), "{corpus:?}");
    write_tar(&path, &[("a.wav", &audio), ("a.txt", b"{curly}"), ("b.wav", &audio), ("b.txt", b"")]);
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    let texts = corpus.utterances().map(|utterance| utterance.unwrap().text);
    assert!(texts.eq(["{curly}", ""]));
}

#[test]
fn a_flac_member_without_length_is_decoded_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.TAR");
    let audio = flac(8000, &[5; 6000], false);
    write_tar(&path, &[("a.FLAC", &audio), ("a.txt", b"one")]);
    let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
    let utterance = corpus.utterance(0).unwrap();
    assert_eq!((corpus.seconds(0), utterance.seconds), (0.75, 0.75));
    assert_eq!(utterance.audio(8000).unwrap().samples.len(), 6000);
    write_tar(&path, &[("a.FLAC", &audio[..audio.len() - 9]), ("a.txt", b"one")]);
    let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
    assert!(error.contains("cannot be used, a:") && error.contains("FLAC"), "{error}");
}

#[test]
fn a_shard_without_or_with_two_end_marks_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    write_shard(&path);
    let complete = fs::read(&path).unwrap();
    let content = complete.len() - 1024;
    let error = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err();
        assert!(matches!(error, Error::Shard { .. }), "{error}");
        error.to_string()
    };
    // Cut between two members, where only the end mark is missing.
    assert!(error(&complete[..content]).contains("an end mark of zeros, found none"));
    assert!(error(&[complete.clone(), complete.clone()].concat()).contains("other bytes after it"));
    assert!(error(&[&complete[..content], &[0; 512], b"x"].concat()).contains("other bytes after it"));
    fs::write(&path, [complete, vec![0; 100_000]].concat()).unwrap();
    assert_eq!(Corpus::open(std::slice::from_ref(&path), None).unwrap().len(), 3);
    // A size beyond that of any disk.
    write_archive(&path, |archive| {
        let mut header = header(4);
        header.set_path("a.wav").unwrap();
        header.set_size(1 << 62);
        header.set_cksum();
        archive.append(&header, &b"RIFF"[..]).unwrap();
    });
    let huge = fs::read(&path).unwrap();
    assert!(error(&huge).contains("truncated"));
    let compressed = folder.path().join("t.tar.gz");
    fs::write(&compressed, b"\x1f\x8b").unwrap();
    let error = Corpus::open(&[compressed], None).unwrap_err().to_string();
    assert!(error.contains("expected a tar file that is not compressed"), "{error}");
}

#[test]
fn an_index_can_be_written_by_several_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (path, cache) = (folder.path().join("t.tar"), folder.path().join("cache"));
    write_shard(&path);
    for _ in 0..20 {
        let _ = fs::remove_dir_all(&cache);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    assert_eq!(Corpus::open(std::slice::from_ref(&path), Some(&cache)).unwrap().len(), 3)
                });
            }
        });
        assert_eq!(fs::read_dir(&cache).unwrap().count(), 1);
    }
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = Corpus::open(std::slice::from_ref(&path), Some(&file)).unwrap_err();
    assert!(matches!(error, Error::Write { .. }), "{error}");
}

/// Uses a folder where no file can be created, even by root.
#[test]
fn a_cache_that_cannot_be_written_is_not_used() {
    let unwritable = Path::new("/proc/self/fd");
    if !unwritable.exists() {
        println!("skipped: there is no /proc");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let paths = [folder.path().join("t.tar"), folder.path().join("u.tar")];
    paths.iter().for_each(|path| write_shard(path));
    let corpus = Corpus::open(&paths, Some(unwritable)).unwrap();
    assert_eq!(corpus.len(), 6);
    let warnings: Vec<_> = corpus.warnings().iter().filter(|line| line.contains("data.cache")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("cannot be written") && warnings[0].contains("no index"), "{warnings:?}");
}

#[test]
fn a_line_without_line_end_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.jsonl");
    fs::write(&path, vec![b' '; (1 << 24) + 1]).unwrap();
    let error = Corpus::open(std::slice::from_ref(&path), None).unwrap_err().to_string();
    assert!(error.contains("list.jsonl:1") && error.contains("at most 16777216 bytes"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A damaged shard is read or refused without a panic.
    #[test]
    fn damaged_shards_never_panic(position in 0usize..8000, byte: u8, cut in 0usize..9000) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.tar");
        write_shard(&path);
        let mut bytes = fs::read(&path).unwrap();
        let position = position % bytes.len();
        bytes[position] = byte;
        bytes.truncate(cut.max(1));
        fs::write(&path, &bytes).unwrap();
        if let Ok(corpus) = Corpus::open(std::slice::from_ref(&path), None) {
            for utterance in corpus.utterances().flatten() {
                let _ = utterance.audio(8000);
            }
        }
    }
}

/// `cargo test -p panda-speech --release shards_are_read_fast -- --ignored --nocapture`.
#[test]
#[ignore = "a measurement"]
fn shards_are_read_fast() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let audio = flac(16_000, &vec![7; 32_000], true);
    let count = 10_000;
    let mut archive = tar::Builder::new(std::io::BufWriter::new(fs::File::create(&path).unwrap()));
    for n in 0..count {
        let metadata = format!("{{\"text\": \"word {n}\", \"num_samples\": 32000, \"speaker\": \"s\"}}");
        for (ending, bytes) in [("flac", &audio[..]), ("json", metadata.as_bytes())] {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, format!("set/utterance-{n:05}.{ending}"), bytes).unwrap();
        }
    }
    archive.into_inner().unwrap().into_inner().unwrap();
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let corpus = Corpus::open(std::slice::from_ref(&path), None).unwrap();
        let indexed = start.elapsed().as_secs_f64();
        let start = std::time::Instant::now();
        assert_eq!(corpus.utterances().filter(Result::is_ok).count(), count);
        let read = start.elapsed().as_secs_f64();
        println!("{:.0} utterances/s indexed, {:.0} read", count as f64 / indexed, count as f64 / read);
    }
}
