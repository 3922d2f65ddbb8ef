//! Writes `.nemo` archives.
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tar::{EntryType, Header};

use super::{Export, nemo_config, torch_file, yaml};
use crate::import::{ImportedSource, Layout, nemo_config as import_config, yaml as yaml_parser};
use crate::{Error, Result};

/// Extension of archives.
const EXTENSION: &str = "nemo";
/// Contents of members are padded to a multiple of these bytes.
const TAR_BLOCK_BYTES: u64 = 512;
/// Prefix of files that a configuration names.
const FILE_PREFIX: &str = "nemo:";
/// Prefix of the names of the tokenizer's files in a new archive: 32 digits.
const NEW_FILE_PREFIX: &str = "00000000000000000000000000000000_";

/// Writes the archive and returns its path.
pub(super) fn write(export: &Export, output: &Path) -> Result<Vec<PathBuf>> {
    let path = archive_path(export.path, output)?;
    let members = small_members(export)?;
    // The header of the weights has their size, which takes a pass without output.
    let mut counter = CountingSink(0);
    torch_file::write(&export.weights, &mut counter).map_err(Error::io(&path, "write"))?;
    export.write_file(&path, &mut |file| {
        write_directory(file)?;
        for (name, bytes) in &members {
            write_header(file, name, bytes.len() as u64)?;
            file.write_all(bytes)?;
            write_padding(file, bytes.len() as u64)?;
        }
        write_header(file, "model_weights.ckpt", counter.0)?;
        torch_file::write(&export.weights, file)?;
        write_padding(file, counter.0)?;
        file.write_all(&[0; 2 * TAR_BLOCK_BYTES as usize])
    })?;
    Ok(vec![path])
}

/// Returns the path of the archive, and creates its folder.
fn archive_path(checkpoint: &Path, output: &Path) -> Result<PathBuf> {
    let is_archive = output.extension().is_some_and(|extension| extension == EXTENSION) && !output.is_dir();
    let path = match is_archive {
        true => output.to_owned(),
        false => {
            let mut name = checkpoint.file_stem().unwrap_or_default().to_owned();
            name.push(".");
            name.push(EXTENSION);
            output.join(name)
        }
    };
    if let Some(folder) = path.parent().filter(|folder| *folder != Path::new("")) {
        std::fs::create_dir_all(folder).map_err(Error::io(folder, "create the folder"))?;
    }
    Ok(path)
}

/// Returns all members except the weights: names and contents.
fn small_members(export: &Export) -> Result<Vec<(String, Vec<u8>)>> {
    let Some(("tokenizer.model", model)) = export.tokenizer.source_file() else {
        let expected = "a SentencePiece model, as archives of NeMo contain";
        return Err(export.error("tokenizer", expected, format!("kind {:?}", export.tokenizer.kind())));
    };
    let source = export.source_of_layout(Layout::Nemo, |source: &ImportedSource| {
        let value = yaml_parser::parse(export.path, &source.configuration)?;
        let facts = import_config::TensorFacts { has_bias: export.architecture.encoder.bias };
        Ok(import_config::read(export.path, &value, facts)?.architecture)
    });
    let configuration = match source {
        Some(source) => source.configuration.clone(),
        None => yaml::to_yaml(&nemo_config::configuration(export, NEW_FILE_PREFIX)?),
    };
    let value = yaml_parser::parse(export.path, &configuration)?;
    let mut members = vec![("model_config.yaml".to_owned(), configuration.into_bytes())];
    // Every file that the configuration names must exist.
    let names = file_names(&value["tokenizer"]);
    for (key, name) in &names {
        let stored = source.and_then(|source| source.files.get(name)).map(|bytes| bytes.0.clone());
        let bytes = match key.as_str() {
            "model_path" => model.to_vec(),
            key => stored.unwrap_or_else(|| vocabulary(export.tokenizer.tokens(), key)),
        };
        members.push((name.clone(), bytes));
    }
    if !names.iter().any(|(key, _)| key == "model_path") {
        members.push(("tokenizer.model".into(), model.to_vec()));
    }
    if let Some(source) = source {
        let other_files =
            source.files.iter().filter(|(name, _)| !names.iter().any(|(_, named)| named == *name));
        members.extend(other_files.map(|(name, bytes)| (name.clone(), bytes.0.clone())));
    }
    Ok(members)
}

/// Returns keys and names of files that are given as `nemo:NAME`.
fn file_names(section: &Value) -> Vec<(String, String)> {
    let entries = section.as_object().into_iter().flatten();
    let name = |(key, value): (&String, &Value)| {
        let name = value.as_str()?.strip_prefix(FILE_PREFIX)?;
        Some((key.clone(), name.to_owned()))
    };
    entries.filter_map(name).collect()
}

/// Returns a list of pieces for a key of the configuration.
///
/// NeMo only checks that the file exists.
fn vocabulary(pieces: &[String], key: &str) -> Vec<u8> {
    let line = |(id, piece): (usize, &String)| match key {
        // SentencePiece's list has scores, which decrease with the ids of BPE.
        "spe_tokenizer_vocab" => format!("{piece}\t-{id}\n"),
        _ => format!("{piece}\n"),
    };
    pieces.iter().enumerate().map(line).collect::<String>().into_bytes()
}

/// Writes the member `./`, as NeMo does.
fn write_directory(file: &mut dyn Write) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_path("./")?;
    header.set_entry_type(EntryType::Directory);
    header.set_mode(0o755);
    header.set_size(0);
    header.set_cksum();
    file.write_all(header.as_bytes())
}

fn write_header(file: &mut dyn Write, name: &str, bytes: u64) -> io::Result<()> {
    let mut header = Header::new_ustar();
    header.set_path(format!("./{name}"))?;
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o644);
    header.set_size(bytes);
    header.set_mtime(0);
    header.set_cksum();
    file.write_all(header.as_bytes())
}

fn write_padding(file: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let padding = bytes.next_multiple_of(TAR_BLOCK_BYTES) - bytes;
    file.write_all(&vec![0; padding as usize])
}

/// Counts the bytes that are written to it.
struct CountingSink(u64);

impl Write for CountingSink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
