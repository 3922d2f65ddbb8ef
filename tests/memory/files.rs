//! Tests that readers allocate by file sizes, not by header fields.
use std::path::{Path, PathBuf};

use panda::speech::{Corpus, Tokenizer, TokenizerKind, read_audio, read_manifest};

use crate::counting_allocator::{Measurement, exclusive, measure};
use crate::mutants::{WAV_WORDS, fuzz, wav, wav_files};

/// Returns the path of a file of the digits corpus.
fn digits_path(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/digits").join(file)
}

#[test]
fn declared_sizes_are_not_trusted() {
    let _guard = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let read_peak = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let Measurement { peak_growth: peak, result, .. } = measure(|| read_audio(&path));
        assert!(result.is_err());
        peak
    };
    let pcm = [1, 0, 1, 0, 0x40, 0x1f, 0, 0, 0x80, 0x3e, 0, 0, 2, 0, 16, 0];
    // A complete header: its two lengths agree.
    let mut long = wav(&[(b"fmt ", &pcm), (b"data", &[1, 0])], Some(1 << 30));
    long[4..8].copy_from_slice(&((1u32 << 30) + 36).to_le_bytes());
    let peak = read_peak(&long);
    assert!(peak < 128 << 10, "WAV of 2^29 samples: {peak} bytes");
    // The FLAC header has a 36-bit number of samples.
    let mut flac = std::fs::read(digits_path("audio/dev/digits-dev-0000.flac")).unwrap();
    flac[21] |= 0x0f;
    flac[22..26].fill(0xff);
    let peak = read_peak(&flac);
    assert!(peak < 1 << 20, "FLAC of 2^36 samples: {peak} bytes");
    // A manifest with a large number of samples.
    std::fs::write(&path, &wav_files()[0]).unwrap();
    let list = folder.path().join("list.jsonl");
    let line = r#"{"id": "x", "file": "a", "text": "t", "sample_rate": 8000, "num_samples": 549755813888"#;
    for fields in ["", r#", "offset_samples": 0"#, r#", "seconds": 1e9, "offset_samples": 549755813888"#] {
        std::fs::write(&list, format!("{line}{fields}}}")).unwrap();
        let Measurement { peak_growth: peak, result, .. } =
            measure(|| read_manifest(&list).unwrap()[0].audio(8000));
        assert!(result.is_err() && peak < 128 << 10, "{fields}: {peak} bytes");
    }
}

#[test]
fn long_records_and_ranges_are_limited_before_they_are_read() {
    let _guard = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.tar");
    for kind in [b'L', b'K', b'x'] {
        // A record of 6 GiB, in a sparse file. Fields of a tar header: name at byte 0, size in
        // octal at 124, checksum at 148 (computed with blanks in its place), kind at 156.
        let mut header = [0u8; 512];
        header[..13].copy_from_slice(b"././@LongLink");
        header[124..135].copy_from_slice(b"60000000000");
        header[156] = kind;
        header[148..156].fill(b' ');
        let checksum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{checksum:06o}\0").as_bytes());
        std::fs::write(&path, header).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len((6 << 30) + 1024).unwrap();
        let Measurement { peak_growth: peak, result, .. } =
            measure(|| Corpus::open(std::slice::from_ref(&path), None));
        let error = result.unwrap_err().to_string();
        assert!(error.contains("6442450944 bytes"), "{error}");
        assert!(peak < 128 << 10, "a record {:?}: {peak} bytes", char::from(kind));
    }
    // Names are expanded one at a time: the first file does not exist.
    let long = folder.path().join("n".repeat(200)).join("t-{000000..999999}.tar");
    let Measurement { peak_growth: peak, result, .. } = measure(|| Corpus::open(&[long], None));
    assert!(result.is_err() && peak < 64 << 10, "a million names: {peak} bytes");
    for (digits, end) in [(70_000, "3"), (5_000, "999999"), (1, "18446744073709551615")] {
        let name = format!("{{{}..{end}}}.tar", "0".repeat(digits));
        let Measurement { peak_growth: peak, result, .. } = measure(|| Corpus::open(&[name.into()], None));
        assert!(result.is_err() && peak < 8 * digits + (64 << 10), "{digits} digits: {peak} bytes");
    }
}

#[test]
fn damaged_files_use_no_more_memory_than_valid_ones() {
    let _guard = exclusive();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mutant");
    let (wav_path, flac_path, list) = (path.clone(), path.clone(), path);
    // A FLAC frame has up to 65,535 samples of eight channels, independent of its length in bytes.
    let memory_check = |name: &'static str, constant_bytes: usize| {
        move |bytes: &[u8], work: &dyn Fn()| {
            let Measurement { peak_growth: peak, .. } = measure(work);
            let limit = constant_bytes + 64 * bytes.len();
            assert!(peak <= limit, "{name}: {peak} bytes for a file of {}", bytes.len());
        }
    };
    let check = memory_check("wav", 256 << 10);
    fuzz("wav", wav_files(), WAV_WORDS, 1000, move |bytes| {
        std::fs::write(&wav_path, bytes).unwrap();
        check(bytes, &|| drop(read_audio(&wav_path)));
    });
    let valid = vec![std::fs::read(digits_path("audio/test/digits-test-0001.flac")).unwrap()];
    let check = memory_check("flac", 16 << 20);
    fuzz("flac", valid, &[b"fLaC", b"\xff\xf8"], 200, move |bytes| {
        std::fs::write(&flac_path, bytes).unwrap();
        check(bytes, &|| drop(read_audio(&flac_path)));
    });
    let lines = std::fs::read_to_string(digits_path("test.jsonl")).unwrap();
    let valid = vec![lines.lines().take(3).collect::<Vec<_>>().join("\n").into_bytes()];
    let check = memory_check("manifest", 256 << 10);
    fuzz("manifest", valid, &[b"\n", b"1e300", b"["], 500, move |bytes| {
        std::fs::write(&list, bytes).unwrap();
        check(bytes, &|| drop(read_manifest(&list)));
    });
    let kinds = [TokenizerKind::Words, TokenizerKind::Bpe { size: 30 }];
    let valid = kinds.map(|kind| Tokenizer::train(kind, &["the cat sat", "that bat"]).unwrap());
    let valid = valid.map(|tokenizer| tokenizer.to_json().unwrap().into_bytes()).to_vec();
    let check = memory_check("tokenizer", 1 << 20);
    fuzz("tokenizer", valid, &[b"\"\",", b"\"bpe\"", b"[]"], 300, move |bytes| {
        check(bytes, &|| drop(Tokenizer::from_json(&String::from_utf8_lossy(bytes))));
    });
}
