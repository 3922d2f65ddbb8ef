//! Reads tensors of a safetensors file, or of several with an index.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;
use serde::Deserialize;
use speech::files::open_regular;

use super::tensors::{Storage, StoredTensor, TensorFiles, contiguous_strides, element_bytes};
use crate::{Error, Result};

/// Largest header in bytes, the limit of the crate `safetensors`.
const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Bytes before the header: its length.
const LENGTH_BYTES: u64 = 8;

/// An entry of the header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderEntry {
    dtype: Dtype,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

/// Reads names and positions of tensors; each is a storage.
///
/// # Errors
/// [`Error::Io`]; [`Error::Conversion`] for a damaged header, overlapping tensors, or a file of
/// another length than that of the header.
pub(crate) fn read(path: &Path) -> Result<TensorFiles> {
    let read_error = |error| Error::io(path, "read the tensors")(error);
    let invalid = |expected: String, found: String| Error::conversion(path, "header", expected, found);
    let mut file = open_regular(path).map_err(read_error)?;
    let file_bytes = file.metadata().map_err(read_error)?.len();
    let mut length_bytes = [0; LENGTH_BYTES as usize];
    if file_bytes < LENGTH_BYTES {
        return Err(invalid("a safetensors file".into(), format!("{file_bytes} bytes")));
    }
    file.read_exact(&mut length_bytes).map_err(read_error)?;
    let header_bytes = u64::from_le_bytes(length_bytes);
    if header_bytes > MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES) {
        let expected =
            format!("a header of at most {} bytes", MAX_HEADER_BYTES.min(file_bytes - LENGTH_BYTES));
        return Err(invalid(expected, header_bytes.to_string()));
    }
    let mut header = Vec::new();
    (&mut file).take(header_bytes).read_to_end(&mut header).map_err(read_error)?;
    let json_error =
        |error: serde_json::Error| invalid("names, dtypes, shapes and offsets".into(), error.to_string());
    let mut entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&header).map_err(json_error)?;
    entries.remove("__metadata__");

    // Tensors in the order of the file, each from the end of the one before.
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in entries {
        let entry: HeaderEntry = serde_json::from_value(entry).map_err(|error| {
            Error::conversion(path, &name, "dtype, shape and data_offsets", error.to_string())
        })?;
        tensors.push((name, entry));
    }
    tensors.sort_by_key(|(_, entry)| entry.data_offsets);
    let (file, data_start) = (Arc::new(file), LENGTH_BYTES + header_bytes);
    let (mut files, mut end) = (TensorFiles::default(), 0);
    for (name, HeaderEntry { dtype, shape, data_offsets: (first, last) }) in tensors {
        let error = |expected: String, found: String| Error::conversion(path, &name, expected, found);
        let strides = contiguous_strides(&shape);
        let bytes = element_bytes(dtype)
            .zip(strides.as_ref())
            .and_then(|(bytes, _)| bytes.checked_mul(shape.iter().product()));
        if first != end || bytes.and_then(|bytes| first.checked_add(bytes as u64)) != Some(last) {
            let expected = format!("data_offsets from {end} for shape {shape:?} of {dtype}");
            return Err(error(expected, format!("[{first}, {last}]")));
        }
        end = last;
        files.storages.push(Storage {
            file: file.clone(),
            path: path.to_owned(),
            start: data_start + first,
            bytes: last - first,
            unchecked_crc32: Cell::new(None),
        });
        let (storage, strides) = (files.storages.len() - 1, strides.unwrap_or_default());
        if data_start.checked_add(end).is_none_or(|end| end > file_bytes) {
            return Err(error("its bytes in the file".into(), "the end of the file: truncated".into()));
        }
        files.insert(&name, StoredTensor { dtype, shape, strides, storage, first_element: 0 })?;
    }
    if data_start + end != file_bytes {
        return Err(invalid(format!("a file of {} bytes", data_start + end), file_bytes.to_string()));
    }
    Ok(files)
}

/// The index of a model in several files.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// Reads the tensors of `STEM.safetensors` or of the files in `STEM.safetensors.index.json`.
///
/// None if the folder has neither.
///
/// # Errors
/// Those of [`read`]; [`Error::Conversion`] for an index with other tensors than its files.
pub(crate) fn read_folder(folder: &Path, stem: &str) -> Result<Option<TensorFiles>> {
    let single = folder.join(format!("{stem}.safetensors"));
    let index_path = folder.join(format!("{stem}.safetensors.index.json"));
    match (single.exists(), index_path.exists()) {
        (false, false) => return Ok(None),
        (true, false) => return read(&single).map(Some),
        (true, true) => {
            let expected = format!("either {stem}.safetensors or its index");
            return Err(Error::conversion(folder, "weights", expected, "both"));
        }
        (false, true) => {}
    }
    let text = super::read_text(&index_path)?;
    let ShardIndex { weight_map } = serde_json::from_str(&text).map_err(|error| {
        Error::conversion(&index_path, "index", "JSON with weight_map", error.to_string())
    })?;
    let mut shards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in &weight_map {
        shards.entry(shard).or_default().push(tensor);
    }
    let mut files = TensorFiles::default();
    for (shard, indexed) in shards {
        let error = |item: &str, expected: String, found: String| {
            Err(Error::conversion(&index_path, item, expected, found))
        };
        if Path::new(shard).file_name().is_none_or(|name| name != shard) || shard.contains('\\') {
            return error(shard, "a file name without folders".into(), "a path".into());
        }
        let shard_files = read(&folder.join(shard))?;
        if let Some(missing) = indexed.iter().find(|name| !shard_files.tensors.contains_key(**name)) {
            return error(missing, format!("this tensor in {shard}"), "none".into());
        }
        if let Some(surplus) =
            shard_files.tensors.keys().find(|name| weight_map.get(*name).is_none_or(|s| s != shard))
        {
            let place =
                weight_map.get(surplus).map_or("no place".into(), |other| format!("{other} as its place"));
            return error(surplus, format!("{shard}, which contains this tensor"), place);
        }
        files.extend(shard_files)?;
    }
    Ok(Some(files))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file with a header and data.
    fn file_bytes(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    const HEADER: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"c":{"dtype":"I64","shape":[],"data_offsets":[8,16]}}"#;

    #[test]
    fn tensors_are_read_and_damaged_headers_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let read_bytes = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&path)
        };
        let data =
            [1f32.to_le_bytes().to_vec(), 2f32.to_le_bytes().to_vec(), 5i64.to_le_bytes().to_vec()].concat();
        let files = read_bytes(&file_bytes(HEADER, &data)).unwrap();
        assert_eq!(files.read_f32("b", &files.tensors["b"]).unwrap(), [1.0, 2.0]);
        assert_eq!(files.read_bytes("c", &files.tensors["c"]).unwrap(), 5i64.to_le_bytes());
        let replaced = |old: &str, new: &str| file_bytes(&HEADER.replace(old, new), &data);
        for (bytes, message) in [
            (vec![1, 2], "expected a safetensors file, found 2 bytes"),
            (u64::MAX.to_le_bytes().to_vec(), "expected a header of at most 0 bytes"),
            (file_bytes(HEADER, &data[..15]), "c: expected its bytes in the file, found the end of the file"),
            (file_bytes(HEADER, &[&data[..], &[0]].concat()), "expected a file of "),
            (file_bytes("[]", &[]), "names, dtypes, shapes and offsets"),
            (
                replaced("[0,8]", "[1,9]"),
                "b: expected data_offsets from 0 for shape [2] of F32, found [1, 9]",
            ),
            (replaced("[8,16]", "[0,8]"), "c: expected data_offsets from 8"),
            (replaced("[2]", "[3]"), "b: expected data_offsets from 0 for shape [3]"),
            (replaced("[2]", "[4294967296,4294967296]"), "b: expected data_offsets from 0"),
            (replaced("F32", "F4"), "b: expected data_offsets from 0"),
            (replaced("F32", "F31"), "b: expected dtype, shape and data_offsets"),
        ] {
            let error = read_bytes(&bytes).unwrap_err().to_string();
            assert!(error.contains(message), "{error}\n{message}");
        }
    }

    #[test]
    fn an_index_must_agree_with_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let path_of = |name: &str| folder.path().join(name);
        assert!(read_folder(folder.path(), "model").unwrap().is_none());
        for (name, tensor) in [("one.safetensors", "a"), ("two.safetensors", "b")] {
            let header = format!(r#"{{"{tensor}":{{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}}}"#);
            std::fs::write(path_of(name), file_bytes(&header, &[0; 4])).unwrap();
        }
        let read_index = |map: &str| {
            std::fs::write(path_of("model.safetensors.index.json"), format!(r#"{{"weight_map":{map}}}"#))
                .unwrap();
            read_folder(folder.path(), "model")
        };
        let map = r#"{"a":"one.safetensors","b":"two.safetensors"}"#;
        let files = read_index(map).unwrap().unwrap();
        assert_eq!(files.tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
        for (map, message) in [
            (
                r#"{"a":"one.safetensors","b":"one.safetensors"}"#,
                "b: expected this tensor in one.safetensors, found none",
            ),
            (r#"{"a":"one.safetensors"}"#, ""),
            (
                r#"{"a":"../one.safetensors"}"#,
                "../one.safetensors: expected a file name without folders, found a path",
            ),
            (r#"{"a":"three.safetensors"}"#, "could not read the tensors"),
            (r#"[]"#, "index: expected JSON with weight_map"),
        ] {
            match read_index(map) {
                // Files that the index does not name are not read.
                Ok(files) => assert!(message.is_empty() && files.unwrap().tensors.len() == 1),
                Err(error) => assert!(error.to_string().contains(message), "{error}"),
            }
        }
        let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        std::fs::write(path_of("two.safetensors"), file_bytes(header, &[0; 4])).unwrap();
        let error = read_index(r#"{"a":"one.safetensors"}"#).map(drop);
        error.unwrap();
        let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
        std::fs::write(path_of("two.safetensors"), file_bytes(header, &[0; 8])).unwrap();
        let error = read_index(map).unwrap_err().to_string();
        assert!(error.contains("a: expected two.safetensors, which contains this tensor"), "{error}");
        std::fs::write(path_of("model.safetensors"), b"").unwrap();
        assert!(read_index(map).unwrap_err().to_string().contains("found both"));
    }
}
