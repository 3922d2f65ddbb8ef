//! Reads the tensors of a torch checkpoint: a zip file with a pickle and raw storages.
//!
//! | entry | contents |
//! |---|---|
//! | `FOLDER/data.pkl` | names, shapes and storages of the tensors, see [`pickle`] |
//! | `FOLDER/data/KEY` | elements of a storage, little-endian |
//! | `FOLDER/byteorder` | `little`; absent in older files |
//!
//! All entries are stored without compression, so that a tensor is a range of the file.
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use zip::{CompressionMethod, ZipArchive};

use super::file_range::FileRange;
use super::pickle;
use super::tensors::{Storage, StoredTensor, TensorFiles, element_bytes};
use crate::{Error, Result};

/// Largest pickle in bytes.
const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// An entry of the zip file, as a range of the file.
struct ZipEntry {
    start: u64,
    bytes: u64,
    crc32: u32,
}

/// Reads the names and positions of all tensors.
///
/// The checkpoint is `bytes` bytes of `file` from `start`; `path` and `name` are for messages.
///
/// # Errors
/// [`Error::Conversion`] for another format, unknown objects in the pickle, compressed entries,
/// storages of another size, and tensors outside their storages.
pub(crate) fn read(path: &Path, name: &str, file: &Arc<File>, start: u64, bytes: u64) -> Result<TensorFiles> {
    let invalid = |expected: &str, found: String| Error::conversion(path, name, expected, found);
    let zip_error = |error: zip::result::ZipError| invalid("a zip file of torch.save", error.to_string());
    let mut zip = ZipArchive::new(FileRange::new(file.clone(), start, bytes)).map_err(zip_error)?;

    // Entries by name.
    let mut entries = BTreeMap::new();
    for index in 0..zip.len() {
        let entry = zip.by_index_raw(index).map_err(zip_error)?;
        let entry_name = entry.name().map_err(zip_error)?.into_owned();
        let (offset, entry_bytes) = (entry.data_start().unwrap_or(u64::MAX), entry.size());
        let is_stored = entry.compression() == CompressionMethod::Stored && !entry.encrypted();
        if !is_stored || entry.compressed_size() != entry_bytes {
            return Err(invalid(
                &format!("{entry_name} stored without compression"),
                "another method".into(),
            ));
        }
        if offset.checked_add(entry_bytes).is_none_or(|end| end > bytes) {
            let expected = format!("{entry_bytes} bytes of {entry_name}");
            return Err(invalid(&expected, "its end: truncated".into()));
        }
        let entry = ZipEntry { start: start + offset, bytes: entry_bytes, crc32: entry.crc32() };
        if entries.insert(entry_name.clone(), entry).is_some() {
            return Err(invalid(&format!("one entry {entry_name}"), "two".into()));
        }
    }

    // Pickle and byte order.
    let pickles: Vec<&String> = entries.keys().filter(|name| name.ends_with("/data.pkl")).collect();
    let [pickle_name] = pickles[..] else {
        return Err(invalid("one entry FOLDER/data.pkl", pickles.len().to_string()));
    };
    let folder = pickle_name.strip_suffix("data.pkl").unwrap_or_default();
    let read_entry = |entry: &ZipEntry| {
        let storage = entry.storage(path, file);
        let length = usize::try_from(entry.bytes).unwrap_or(usize::MAX);
        let tensor = StoredTensor {
            dtype: safetensors::Dtype::U8,
            shape: vec![length],
            strides: vec![1],
            storage: 0,
            first_element: 0,
        };
        TensorFiles { storages: vec![storage], ..TensorFiles::default() }.read_bytes(name, &tensor)
    };
    if let Some(entry) = entries.get(&format!("{folder}byteorder")).filter(|entry| entry.bytes < 32) {
        let byte_order = read_entry(entry)?;
        if byte_order != b"little" {
            let order = String::from_utf8_lossy(&byte_order).into_owned();
            return Err(invalid("the byte order little", order));
        }
    }
    let pickle_entry = &entries[pickle_name];
    if pickle_entry.bytes > MAX_PICKLE_BYTES {
        let expected = format!("a pickle of at most {MAX_PICKLE_BYTES} bytes");
        return Err(invalid(&expected, pickle_entry.bytes.to_string()));
    }
    let pickled = pickle::read_tensors(&read_entry(pickle_entry)?).map_err(|error| {
        let item = if error.item.is_empty() { pickle_name } else { &error.item };
        Error::conversion(path, item, error.expected, error.found)
    })?;

    // Tensors and their storages.
    let mut files = TensorFiles::default();
    let mut storages_by_key = BTreeMap::new();
    for (tensor_name, tensor) in pickled {
        let key = &tensor.storage_key;
        let stored_bytes =
            tensor.storage_elements.checked_mul(element_bytes(tensor.dtype).unwrap_or(1) as u64);
        let Some(entry) = entries.get(&format!("{folder}data/{key}")) else {
            return Err(Error::conversion(
                path,
                &tensor_name,
                format!("an entry {folder}data/{key}"),
                "none",
            ));
        };
        if stored_bytes != Some(entry.bytes) {
            let expected = format!("{} elements of {} in data/{key}", tensor.storage_elements, tensor.dtype);
            return Err(Error::conversion(path, &tensor_name, expected, format!("{} bytes", entry.bytes)));
        }
        let storage = *storages_by_key.entry(key.clone()).or_insert_with(|| {
            files.storages.push(entry.storage(path, file));
            files.storages.len() - 1
        });
        let pickle::PickledTensor { dtype, first_element, shape, strides, .. } = tensor;
        files.insert(&tensor_name, StoredTensor { dtype, shape, strides, storage, first_element })?;
    }
    Ok(files)
}

impl ZipEntry {
    fn storage(&self, path: &Path, file: &Arc<File>) -> Storage {
        let unchecked_crc32 = Cell::new(Some(self.crc32));
        Storage {
            file: file.clone(),
            path: path.to_owned(),
            start: self.start,
            bytes: self.bytes,
            unchecked_crc32,
        }
    }
}
