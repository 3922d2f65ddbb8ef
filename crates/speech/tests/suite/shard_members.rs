//! Tests of the members of tar shards: keys with dots, unused members, long names.

use std::fs;
use std::path::Path;

use speech::{Corpus, Error};
use tempfile::tempdir;

use crate::corpus::{wav_file, write_tar};

fn open(path: &Path) -> Result<Corpus, Error> {
    Corpus::open(&[path.to_owned()], None)
}

fn ids(corpus: &Corpus) -> Vec<String> {
    corpus.utterances().map(|utterance| utterance.unwrap().id).collect()
}

#[test]
fn keys_end_at_the_last_dot() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let audio = wav_file(800);
    let keys = ["sp0.9-tone1", "v1.2-a.b.c", "utt.seg1", "utt.seg2", "a..b", "dir.d/x", "plain", "1.5"];
    let names: Vec<[String; 2]> = keys.map(|key| [format!("{key}.wav"), format!("{key}.json")]).to_vec();
    let mut members: Vec<(&str, &[u8])> = Vec::new();
    for [wav, json] in &names {
        members.push((wav, &audio));
        members.push((json, br#"{"text": "one"}"#));
    }
    write_tar(&path, &members);
    let corpus = open(&path).unwrap();
    assert_eq!(ids(&corpus), keys);
    assert!(corpus.warnings().is_empty() && corpus.bad_samples().is_empty());
}

#[test]
fn unused_members_are_reported() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let audio = wav_file(800);
    let good: [(&str, &[u8]); 2] = [("good.wav", &audio), ("good.txt", b"one")];
    for (name, unused) in [
        ("a.png", true),
        ("README", true),
        (".hidden.wav", true),
        ("set/._good.json", true),
        ("good.wav.bak", true),
        ("end.", true),
        ("a\u{1b}[31m.cls", true),
        ("u0.audio.flac", false),
        ("u0.transcript.txt", false),
        ("meta.json", false),
    ] {
        for members in [[&[(name, &b"x"[..])], &good[..]].concat(), [&good[..], &[(name, b"x")]].concat()] {
            write_tar(&path, &members);
            let corpus = open(&path).unwrap();
            assert_eq!(ids(&corpus), ["good"], "{name}");
            let reported =
                corpus.warnings().iter().filter(|line| line.contains("1 member is not used: ")).count();
            assert_eq!(
                (reported, corpus.bad_samples().len()),
                (usize::from(unused), usize::from(!unused)),
                "{name}"
            );
            assert!(corpus.warnings().iter().all(|line| !line.contains('\u{1b}')), "{corpus:?}");
        }
        // A shard without other samples is an error that names the member.
        write_tar(&path, &[(name, b"x")]);
        let error = open(&path).unwrap_err().to_string();
        let printed = name
            .trim_end_matches(".flac")
            .trim_end_matches(".txt")
            .trim_end_matches(".json")
            .replace('\u{1b}', "\\u{1b}");
        assert!(error.contains(&printed) && error.contains("t.tar"), "{name}: {error}");
    }
    // Five names and the number of members.
    let names: Vec<String> = (0..3000).map(|n| format!("{n}.cls")).collect();
    let members: Vec<(&str, &[u8])> =
        names.iter().map(|name| (name.as_str(), &b"3"[..])).chain(good).collect();
    write_tar(&path, &members);
    let corpus = open(&path).unwrap();
    let expected = "3000 members are not used: 0.cls, 1.cls, 2.cls, 3.cls, 4.cls, ...";
    assert!(corpus.warnings()[0].ends_with(expected), "{:?}", corpus.warnings());
    // Several such shards: some are named, the others are counted.
    for n in 0..30 {
        write_tar(&folder.path().join(format!("m{n}.tar")), &[good[0], good[1], ("a.cls", b"1")]);
    }
    let corpus = Corpus::open(&[folder.path().join("m{0..29}.tar")], None).unwrap();
    assert_eq!((corpus.len(), corpus.warnings().len()), (30, 21));
    assert_eq!(corpus.warnings()[20], "10 members of 10 further shards are not used");
}

#[test]
fn a_shard_without_members_has_no_utterances() {
    let folder = tempdir().unwrap();
    let [empty, full] = ["e.tar", "f.tar"].map(|name| folder.path().join(name));
    write_tar(&empty, &[]);
    write_tar(&full, &[("a.wav", &wav_file(800)), ("a.txt", b"one")]);
    for paths in [[&empty, &full], [&full, &empty]] {
        let corpus = Corpus::open(&paths.map(Clone::clone), None).unwrap();
        assert_eq!(ids(&corpus), ["a"]);
        assert!(corpus.warnings()[0].contains("e.tar: a shard without members"), "{corpus:?}");
    }
    assert!(matches!(open(&empty), Err(Error::EmptyManifest { .. })));
}

/// Writes a tar file with a name record without its content.
fn write_record(path: &Path, kind: tar::EntryType, size: u64) {
    let mut header = tar::Header::new_gnu();
    header.set_path("././@LongLink").unwrap();
    header.set_size(size);
    header.set_entry_type(kind);
    header.set_cksum();
    fs::write(path, header.as_bytes()).unwrap();
    let padded = 512 + size.div_ceil(512) * 512;
    fs::File::options().write(true).open(path).unwrap().set_len(padded).unwrap();
}

#[test]
fn records_of_names_are_limited_by_their_size_field() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.tar");
    for kind in [tar::EntryType::GNULongName, tar::EntryType::GNULongLink, tar::EntryType::XHeader] {
        for size in [1 << 16, 6 << 30, 1 << 40] {
            write_record(&path, kind, size);
            let error = open(&path).unwrap_err();
            let limit = format!("a name or other record of {size} bytes, of which 65536 are allowed");
            assert!(matches!(error, Error::Shard { .. }) && error.to_string().contains(&limit), "{error}");
        }
        // A record without a member after it.
        write_record(&path, kind, 100);
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("without its member") || error.contains("complete tar file"), "{error}");
    }
    // Small records before one member.
    let mut header = tar::Header::new_gnu();
    header.set_path("x").unwrap();
    header.set_size(512);
    header.set_entry_type(tar::EntryType::XHeader);
    header.set_cksum();
    fs::write(&path, [&header.as_bytes()[..], &[b' '; 512]].concat().repeat(100)).unwrap();
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("65536 are allowed"), "{error}");
}

#[test]
fn members_beyond_8_gib_are_skipped_by_their_pax_size() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("t.tar");
    let (size, audio) = (9u64 << 30, wav_file(800));
    let mut archive = tar::Builder::new(Vec::new());
    archive.append_pax_extensions([("size", size.to_string().as_bytes())]).unwrap();
    let mut header = tar::Header::new_ustar();
    header.set_path("video.mkv").unwrap();
    header.set_size(0);
    header.set_cksum();
    archive.append(&header, &[][..]).unwrap();
    let mut rest = tar::Builder::new(Vec::new());
    for (name, bytes) in [("a.wav", &audio[..]), ("a.txt", b"one")] {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        rest.append_data(&mut header, name, bytes).unwrap();
    }
    let start = archive.get_ref().len() as u64;
    fs::write(&path, archive.get_ref()).unwrap();
    let mut file = fs::File::options().write(true).open(&path).unwrap();
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(start + size)).unwrap();
    std::io::Write::write_all(&mut file, &rest.into_inner().unwrap()).unwrap();
    let corpus = open(&path).unwrap();
    assert_eq!(ids(&corpus), ["a"]);
    assert!(corpus.warnings()[0].ends_with("1 member is not used: video.mkv"), "{corpus:?}");
}

#[test]
fn ranges_of_names_are_limited() {
    for (name, part) in [
        (format!("t-{{0..{}}}.tar", "9".repeat(70_000)), "at most 20 digits"),
        (format!("{}{{0..99999999}}.tar", "n".repeat(5000)), "at most 1000000 names"),
    ] {
        let error = Corpus::open(&[name.into()], None).unwrap_err();
        assert!(matches!(error, Error::NameRange { .. }), "{error}");
        assert!(error.to_string().contains(part) && error.to_string().len() < 500, "{error}");
    }
}
