//! Readers of foreign files take memory by the size of the file, whatever it promises.
use std::path::{Path, PathBuf};

use panda::speech::{Corpus, Tokenizer, TokenizerKind, read_audio, read_manifest};

use crate::counting::{measure, turn};
use crate::mutants::{WAV_WORDS, fuzz, wav, wav_files};

fn digits(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits").join(file)
}

#[test]
fn promises_are_not_believed() {
    let _alone = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let listen = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let (_, peak, found) = measure(|| read_audio(&path));
        assert!(found.is_err());
        peak
    };
    let pcm = [1, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x80, 0x3e, 0, 0, 2, 0, 16, 0];
    // A finished header: its two lengths agree.
    let mut long = wav(&[(b"fmt ", &pcm), (b"data", &[1, 0])], Some(1 << 30));
    long[4..8].copy_from_slice(&((1u32 << 30) + 36).to_le_bytes());
    let peak = listen(&long);
    assert!(peak < 128 << 10, "WAV of 2^29 samples: {peak} bytes");
    // 36 bits of the header count the samples.
    let mut flac = std::fs::read(digits("audio/dev/digits-dev-0000.flac")).unwrap();
    flac[21] |= 0x0f;
    flac[22..26].fill(0xff);
    let peak = listen(&flac);
    assert!(peak < 1 << 20, "FLAC of 2^36 samples: {peak} bytes");
    // So does the manifest.
    std::fs::write(&path, &wav_files()[0]).unwrap();
    let list = folder.path().join("list.jsonl");
    let line = r#"{"id": "x", "file": "a", "text": "t", "sample_rate": 8000, "num_samples": 549755813888"#;
    for more in ["", r#", "offset_samples": 0"#, r#", "seconds": 1e9, "offset_samples": 549755813888"#] {
        std::fs::write(&list, format!("{line}{more}}}")).unwrap();
        let (_, peak, found) = measure(|| read_manifest(&list).unwrap()[0].audio(8000));
        assert!(found.is_err() && peak < 128 << 10, "{more}: {peak} bytes");
    }
}

#[test]
fn records_of_names_and_ranges_are_limited_before_they_are_read() {
    let _alone = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    for kind in [b'L', b'K', b'x'] {
        // 6 GiB, in a file that is all holes.
        let mut header = [0u8; 512];
        header[..13].copy_from_slice(b"././@LongLink");
        header[124..135].copy_from_slice(b"60000000000");
        header[156] = kind;
        header[148..156].fill(b' ');
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        std::fs::write(&path, header).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len((6 << 30) + 1024).unwrap();
        let (_, peak, found) = measure(|| Corpus::open(std::slice::from_ref(&path), None));
        let error = found.unwrap_err().to_string();
        assert!(error.contains("6442450944 bytes"), "{error}");
        assert!(peak < 128 << 10, "a record {:?}: {peak} bytes", char::from(kind));
    }
    // Names are made one at a time: the first of them is missing.
    let long = folder.path().join("n".repeat(200)).join("t-{000000..999999}.tar");
    let (_, peak, found) = measure(|| Corpus::open(&[long], None));
    assert!(found.is_err() && peak < 64 << 10, "a million names: {peak} bytes");
    for (digits, last) in [(70_000, "3"), (5_000, "999999"), (1, "18446744073709551615")] {
        let name = format!("{{{}..{last}}}.tar", "0".repeat(digits));
        let (_, peak, found) = measure(|| Corpus::open(&[name.into()], None));
        assert!(found.is_err() && peak < 8 * digits + (64 << 10), "{digits} digits: {peak} bytes");
    }
}

#[test]
fn damaged_files_take_no_more_than_good_ones() {
    let _alone = turn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant");
    let (wav_path, flac_path, list) = (path.clone(), path.clone(), path);
    // A frame of FLAC has up to 65,535 samples of eight channels, whatever its length in bytes.
    let held = |name: &'static str, most: usize| {
        move |bytes: &[u8], work: &dyn Fn()| {
            let (_, peak, ()) = measure(work);
            let limit = most + 64 * bytes.len();
            assert!(peak <= limit, "{name}: {peak} bytes for a file of {}", bytes.len());
        }
    };
    let check = held("wav", 256 << 10);
    fuzz("wav", wav_files(), WAV_WORDS, 1000, move |bytes| {
        std::fs::write(&wav_path, bytes).unwrap();
        check(bytes, &|| drop(read_audio(&wav_path)));
    });
    let good = vec![std::fs::read(digits("audio/test/digits-test-0001.flac")).unwrap()];
    let check = held("flac", 16 << 20);
    fuzz("flac", good, &[b"fLaC", b"\xff\xf8"], 200, move |bytes| {
        std::fs::write(&flac_path, bytes).unwrap();
        check(bytes, &|| drop(read_audio(&flac_path)));
    });
    let lines = std::fs::read_to_string(digits("test.jsonl")).unwrap();
    let good = vec![lines.lines().take(3).collect::<Vec<_>>().join("\n").into_bytes()];
    let check = held("manifest", 256 << 10);
    fuzz("manifest", good, &[b"\n", b"1e300", b"["], 500, move |bytes| {
        std::fs::write(&list, bytes).unwrap();
        check(bytes, &|| drop(read_manifest(&list)));
    });
    let kinds = [TokenizerKind::Words, TokenizerKind::Bpe { size: 30 }];
    let good = kinds.map(|kind| Tokenizer::train(kind, &["the cat sat", "that bat"]).unwrap());
    let good = good.map(|tokenizer| tokenizer.to_json().unwrap().into_bytes()).to_vec();
    let check = held("tokenizer", 1 << 20);
    fuzz("tokenizer", good, &[b"\"\",", b"\"bpe\"", b"[]"], 300, move |bytes| {
        check(bytes, &|| drop(Tokenizer::from_json(&String::from_utf8_lossy(bytes))));
    });
}
