//! Writes torch checkpoints: a zip file with a pickle and raw storages, as `torch.save` does.
//!
//! `import/torch_file.rs` describes the format.
use std::io::{self, Write};

use safetensors::Dtype;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, ZipWriter};

use super::weights::{ExportTensor, ExportWeights};

/// Folder of all entries.
const FOLDER: &str = "model_weights";
/// Storages begin at a multiple of these bytes, as in torch.
const STORAGE_ALIGNMENT: u16 = 64;
/// Id of the extra field with the padding, as in torch: `FB`.
const PADDING_FIELD: u16 = 0x4246;
/// Entries larger than this need 64-bit sizes.
const MAX_SMALL_ENTRY_BYTES: usize = 0x7fff_ffff;

/// Writes the tensors as a torch checkpoint.
///
/// # Errors
/// Those of `file`.
pub(super) fn write(weights: &ExportWeights, file: &mut dyn Write) -> io::Result<()> {
    let mut zip = ZipWriter::new_stream(file);
    let mut add = |name: &str, bytes: &[u8]| {
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .last_modified_time(DateTime::default())
            .large_file(bytes.len() > MAX_SMALL_ENTRY_BYTES)
            .with_alignment_and_header_id(STORAGE_ALIGNMENT, PADDING_FIELD);
        zip.start_file(format!("{FOLDER}/{name}"), options).map_err(io::Error::other)?;
        zip.write_all(bytes)
    };
    add("data.pkl", &pickle(weights))?;
    add("byteorder", b"little")?;
    for (index, (_, tensor)) in weights.iter().enumerate() {
        add(&format!("data/{index}"), &weights.bytes(tensor))?;
    }
    add("version", b"3\n")?;
    zip.finish().map_err(io::Error::other)?;
    Ok(())
}

/// Returns the pickle of an ordered dictionary of tensors.
fn pickle(weights: &ExportWeights) -> Vec<u8> {
    // Memo 0 is OrderedDict, memo 1 the function that creates tensors.
    let mut bytes = b"\x80\x02ccollections\nOrderedDict\nq\x00)R(".to_vec();
    for (index, (name, tensor)) in weights.iter().enumerate() {
        push_text(&mut bytes, name);
        push_tensor(&mut bytes, index, tensor);
    }
    bytes.extend(b"u.");
    bytes
}

/// Appends a contiguous tensor that is the whole storage `index`.
fn push_tensor(bytes: &mut Vec<u8>, index: usize, tensor: &ExportTensor) {
    // Arguments: storage, offset, shape, strides, requires_grad, hooks.
    match index {
        0 => bytes.extend(b"ctorch._utils\n_rebuild_tensor_v2\nq\x01(("),
        _ => bytes.extend(b"h\x01(("),
    }
    push_text(bytes, "storage");
    bytes.extend(b"ctorch\n");
    bytes.extend(storage_type(tensor.dtype).as_bytes());
    bytes.push(b'\n');
    push_text(bytes, &index.to_string());
    push_text(bytes, "cpu");
    push_integer(bytes, tensor.shape.iter().product());
    bytes.extend(b"tQK\x00(");
    tensor.shape.iter().for_each(|&axis| push_integer(bytes, axis));
    bytes.extend(b"t(");
    for axis in 0..tensor.shape.len() {
        push_integer(bytes, tensor.shape[axis + 1..].iter().product());
    }
    bytes.extend(b"t\x89h\x00)RtR");
}

/// Returns the name of a storage type.
fn storage_type(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F16 => "HalfStorage",
        Dtype::BF16 => "BFloat16Storage",
        Dtype::F64 => "DoubleStorage",
        Dtype::I64 => "LongStorage",
        Dtype::I32 => "IntStorage",
        _ => "FloatStorage",
    }
}

fn push_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(b'X');
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
}

/// Appends an integer with the smallest opcode.
fn push_integer(bytes: &mut Vec<u8>, value: usize) {
    match value {
        0..=0xff => bytes.extend([b'K', value as u8]),
        0x100..=0xffff => {
            bytes.push(b'M');
            bytes.extend((value as u16).to_le_bytes());
        }
        0x1_0000..=0x7fff_ffff => {
            bytes.push(b'J');
            bytes.extend((value as i32).to_le_bytes());
        }
        _ => {
            bytes.extend([0x8a, 8]);
            bytes.extend((value as u64).to_le_bytes());
        }
    }
}
