//! Tests that readers of pretrained models allocate by file sizes.
//!
//! Sizes that a file declares are not trusted.
use std::fs::File;
use std::io::Read;
use std::path::Path;

use model::{ImportOptions, ImportedModel, Layout};

use crate::counting_allocator::{Measurement, exclusive, measure};
use crate::mutants::fuzz;
use crate::pretrained_models::{Pretrained, RNNT, recipe};

/// Bytes of an import besides a multiple of the file: buffers, the recipe, a small model.
const OTHER_BYTES: usize = 2 << 20;
/// Bytes of an import for each byte of the file: parsed text has more than the text.
const BYTES_PER_FILE_BYTE: usize = 64;

/// Opens a model and writes it as a checkpoint, as `panda import` does.
///
/// Returns the peak memory, and the error.
fn import_peak(path: &Path, output: &Path) -> (usize, Option<String>) {
    let Measurement { peak_growth, result, .. } = measure(|| {
        ImportedModel::open(path, &ImportOptions::default()).and_then(|imported| imported.write(output))
    });
    (peak_growth, result.err().map(|error| error.to_string()))
}

fn small_model() -> Pretrained {
    Pretrained::new(&recipe("convolution_norm = \"batch\"", RNNT))
}

#[test]
fn damaged_models_use_memory_by_their_size() {
    const ARCHIVE_WORDS: &[&[u8]] = &[
        b"ustar\0",
        b"77777777777",
        b"PK\x01\x02",
        b"\xff\xff\xff\x7f",
        b"\x8a\x08\xff\xff\xff\x7f\0\0\0\0",
    ];
    const CONFIG_WORDS: &[&[u8]] = &[b"99999999", b"d_model: 2147483647\n", b"&a ", b"*a", b"[[[[", b"- - -"];
    const JSON_WORDS: &[&[u8]] = &[b"99999999", b"[4294967296]", b"\"data_offsets\"", b"[", b"{"];
    let _guard = exclusive();

    let pretrained = small_model();
    let output = pretrained.path("mutant.safetensors");
    let archive = pretrained.export("model.safetensors", Layout::Nemo, "model.nemo");
    check_mutants("nemo-archive-memory", &archive, &archive, &output, ARCHIVE_WORDS);
    let folder = pretrained.nemo_folder();
    let config = folder.join("model_config.yaml");
    check_mutants("nemo-configuration-memory", &folder, &config, &output, CONFIG_WORDS);
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "folder");
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 2, "{paths:?}");
    for path in paths {
        check_mutants("huggingface-memory", &folder, &path, &output, JSON_WORDS);
    }
}

/// Imports a model with damaged copies of one file.
///
/// The file is restored afterwards.
fn check_mutants(
    target: &'static str,
    model: &Path,
    file: &Path,
    output: &Path,
    words: &'static [&'static [u8]],
) {
    let valid = std::fs::read(file).unwrap();
    assert_eq!(import_peak(model, output).1, None);
    let [model, path, output] = [model, file, output].map(Path::to_owned);
    fuzz(target, vec![valid.clone()], words, 250, move |bytes| {
        std::fs::write(&path, bytes).unwrap();
        let (peak, limit) = (import_peak(&model, &output).0, OTHER_BYTES + BYTES_PER_FILE_BYTE * bytes.len());
        assert!(peak <= limit, "{peak} bytes for a file of {}", bytes.len());
    });
    std::fs::write(file, valid).unwrap();
}

#[test]
fn long_members_of_archives_are_limited_before_they_are_read() {
    let _guard = exclusive();
    let pretrained = small_model();
    let archive = std::fs::read(pretrained.export("model.safetensors", Layout::Nemo, "valid.nemo")).unwrap();
    let (path, output) = (pretrained.path("long.nemo"), pretrained.path("output"));
    for (end, part) in [
        ("model_config.yaml", "model_config.yaml: expected at most"),
        ("tokenizer.model", "tokenizer.model: expected at most"),
        ("model_weights.ckpt", "model_weights.ckpt: expected a zip file"),
    ] {
        // All other members, then this one with 6 GiB in a sparse file.
        let (mut builder, mut long_header) = (tar::Builder::new(Vec::new()), None);
        for entry in tar::Archive::new(&*archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let (mut header, name) = (entry.header().clone(), entry.path().unwrap().into_owned());
            if name.to_str().unwrap().ends_with(end) {
                header.set_size(6 << 30);
                header.set_cksum();
                long_header = Some(header);
                continue;
            }
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            builder.append_data(&mut header, name, &*content).unwrap();
        }
        let mut bytes = std::mem::take(builder.get_mut());
        bytes.extend(long_header.unwrap().as_bytes());
        std::fs::write(&path, &bytes).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(bytes.len() as u64 + (6 << 30) + 1024).unwrap();
        let (peak, error) = import_peak(&path, &output);
        assert!(error.is_some_and(|error| error.contains(part)) && peak < 1 << 20, "{end}: {peak} bytes");
    }
}

#[test]
fn long_headers_of_safetensors_files_are_limited_before_they_are_read() {
    let _guard = exclusive();
    let pretrained = small_model();
    let folder = pretrained.export("model.safetensors", Layout::HuggingFace, "folder");
    let path = folder.join("model.safetensors");
    for header_bytes in [1u64 << 20, 1 << 30, 1 << 40, u64::MAX] {
        std::fs::write(&path, header_bytes.to_le_bytes()).unwrap();
        // The header is a hole of zeros, or the file is shorter than its declared header.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(8 + header_bytes.min(1 << 30)).unwrap();
        let (peak, error) = import_peak(&folder, &pretrained.path("output"));
        assert!(
            error.is_some() && peak < 8 << 20,
            "a header of {header_bytes} bytes: {peak} bytes, {error:?}"
        );
    }
}
