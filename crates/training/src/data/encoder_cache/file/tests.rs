//! Tests of the file of an encoder cache: formats, other keys, damage.
use super::*;

#[path = "../../../../../speech/tests/suite/mutants.rs"]
mod mutants;

const WIDTH: usize = 3;

fn key(format: RowFormat) -> EncoderCacheKey {
    let contents = vec![[1; HASH_BYTES], [2; HASH_BYTES], [3; HASH_BYTES], [4; HASH_BYTES]];
    EncoderCacheKey { settings: [9; HASH_BYTES], format, width: WIDTH, contents }
}

/// Values whose bits need all of `f32`.
fn rows(count: usize) -> Vec<f32> {
    (0..count * WIDTH).map(|i| ((i + 1) as f32 * 0.37).sin() * 1.5).collect()
}

/// Writes the utterances 2, 0 and 3; utterance 1 cannot be used.
fn write(key: &EncoderCacheKey) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = EncoderCacheWriter::new(&mut bytes, key).unwrap();
    writer.add(2, &rows(5), None).unwrap();
    writer.add(0, &rows(2), Some(1.25)).unwrap();
    writer.add(3, &[], None).unwrap();
    writer.finish().unwrap();
    bytes
}

#[test]
fn rows_are_read_as_written_in_both_formats() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    for format in [RowFormat::F32, RowFormat::Bf16] {
        let key = key(format);
        std::fs::write(&path, write(&key)).unwrap();
        let cache = EncoderCache::open(&path, &key).unwrap();
        for (index, count, other_seconds) in [(0, 2, Some(1.25)), (2, 5, None), (3, 0, None)] {
            let encoded = cache.read(index).unwrap().unwrap();
            assert_eq!((encoded.rows, encoded.other_seconds), (count, other_seconds));
            for (found, value) in encoded.values.iter().zip(rows(count)) {
                // Half a unit in the last of 8 bits.
                let tolerance = if format == RowFormat::F32 { 0.0 } else { value.abs() / 256.0 };
                assert!((found - value).abs() <= tolerance, "{found} {value}");
            }
        }
        assert_eq!(cache.read(1).unwrap(), None);
        assert!(matches!(cache.read(4), Err(Error::EncoderCache { .. })));
    }
    let bf16_rows = EncoderCache::open(&path, &key(RowFormat::Bf16)).unwrap().read(2).unwrap().unwrap();
    assert_ne!(bf16_rows.values, rows(5));
}

#[test]
fn other_keys_are_mismatches() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    let valid = key(RowFormat::F32);
    assert_eq!(EncoderCache::open(&path, &valid).unwrap_err(), Mismatch::Missing);
    std::fs::write(&path, write(&valid)).unwrap();
    for (other, expected) in [
        (EncoderCacheKey { settings: [8; HASH_BYTES], ..valid.clone() }, Mismatch::OtherSettings),
        (EncoderCacheKey { width: 4, ..valid.clone() }, Mismatch::OtherSettings),
        (key(RowFormat::Bf16), Mismatch::OtherSettings),
        (
            EncoderCacheKey { contents: valid.contents[..3].to_vec(), ..valid.clone() },
            Mismatch::OtherUtterances,
        ),
        (EncoderCacheKey { contents: vec![[1; HASH_BYTES]; 4], ..valid.clone() }, Mismatch::OtherUtterances),
    ] {
        assert_eq!(EncoderCache::open(&path, &other).unwrap_err(), expected);
    }
}

#[test]
fn each_flipped_byte_and_each_shorter_file_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    let key = key(RowFormat::Bf16);
    let bytes = write(&key);
    let is_valid = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        EncoderCache::open(&path, &key)
            .is_ok_and(|cache| (0..key.contents.len()).all(|index| cache.read(index).is_ok()))
    };
    assert!(is_valid(&bytes));
    for position in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[position] ^= 1;
        assert!(!is_valid(&damaged), "byte {position}");
        assert!(!is_valid(&bytes[..position]), "length {position}");
    }
}

#[test]
fn fuzzing_damaged_files_are_mismatches_or_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows");
    let files: Vec<Vec<u8>> = [RowFormat::F32, RowFormat::Bf16].map(|format| write(&key(format))).into();
    mutants::fuzz("encoder-cache", files, &[b"\xff\xff\xff\xff", FILE_SIGNATURE], 2000, move |bytes| {
        let _ = &folder;
        // Also with the checksum of the damaged index.
        for bytes in [bytes.to_vec(), with_index_checksum(bytes)] {
            std::fs::write(&path, bytes).unwrap();
            for format in [RowFormat::F32, RowFormat::Bf16] {
                let key = key(format);
                let Ok(cache) = EncoderCache::open(&path, &key) else { continue };
                (0..key.contents.len()).for_each(|index| drop(cache.read(index)));
            }
        }
    });
}

/// Corrects the checksum of the index, if there is an index.
fn with_index_checksum(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(footer) = bytes.len().checked_sub(FOOTER_BYTES) else { return bytes };
    let offset = bytes[footer..].first_chunk().map_or(0, |&bytes| u64::from_le_bytes(bytes)) as usize;
    if (HEADER_BYTES..=footer).contains(&offset) {
        let checksum =
            crc32fast::hash(&[&bytes[..HEADER_BYTES], &bytes[offset..footer]].concat()).to_le_bytes();
        bytes[footer + 8..].copy_from_slice(&checksum);
    }
    bytes
}
