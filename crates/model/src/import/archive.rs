//! `Archive`: the members of a `.nemo` file, a tar archive that may be gzipped.
//!
//! Members are never written to disk under their names. A gzipped archive is decompressed to a
//! file without a name, since tensors are read in another order than that of the archive.
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use speech::corpus::tar_members::TarMembers;
use speech::files::open_regular;
use tar::EntryType;

use super::file_range::FileRange;
use crate::{Error, Result};

/// First bytes of a gzip file.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
/// Largest ratio of the bytes of an archive to its compressed bytes.
///
/// Weights hardly compress; a file of zeros compresses to a thousandth.
const MAX_COMPRESSION_RATIO: u64 = 100;
/// Bytes of a decompressed archive that are allowed for any ratio.
const MIN_DECOMPRESSED_LIMIT: u64 = 4 << 20;
/// Largest number of members.
const MAX_MEMBERS: usize = 10_000;

/// A tar archive: its members by name, without a leading `./`.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
    file: Arc<File>,
    /// First byte and number of bytes of each member.
    members: BTreeMap<String, (u64, u64)>,
}

impl Archive {
    /// Reads the headers of an archive.
    ///
    /// `scratch_folder` is for the decompressed archive.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Conversion`] for a damaged archive, a link or another special
    /// member, a path outside the archive, two members of one name.
    pub(crate) fn open(path: &Path, scratch_folder: &Path) -> Result<Self> {
        let mut file = open_regular(path).map_err(Error::io(path, "read the archive"))?;
        if has_gzip_magic(&mut file).map_err(Error::io(path, "read the archive"))? {
            file = decompress(path, file, scratch_folder)?;
        }
        let file = Arc::new(file);
        let file_bytes = file.metadata().map_err(Error::io(path, "read the archive"))?.len();
        let mut headers = TarMembers::new(FileRange::new(file.clone(), 0, file_bytes));
        let mut members = BTreeMap::new();
        let invalid = |expected: &str, found: String| Error::conversion(path, "archive", expected, found);
        loop {
            let member = match headers.next_member() {
                Ok(Some(member)) => member,
                Ok(None) => break,
                Err(error) => return Err(invalid("a tar archive, plain or gzipped", error.to_string())),
            };
            let name = relative_name(&member.name)
                .map_err(|found| Error::conversion(path, &member.name, "a path inside the archive", found))?;
            match member.kind {
                EntryType::Directory | EntryType::XGlobalHeader => continue,
                EntryType::Regular | EntryType::Continuous if !member.is_sparse => {}
                kind => {
                    return Err(Error::conversion(path, &name, "a regular file", describe_kind(kind)));
                }
            }
            if member.start.checked_add(member.length).is_none_or(|end| end > file_bytes) {
                let expected = format!("{} bytes", member.length);
                let remaining = format!("{}: truncated", file_bytes.saturating_sub(member.start));
                return Err(Error::conversion(path, &name, expected, remaining));
            }
            if members.insert(name.clone(), (member.start, member.length)).is_some() {
                return Err(Error::conversion(path, &name, "one member of this name", "two"));
            }
            if members.len() > MAX_MEMBERS {
                return Err(invalid(&format!("at most {MAX_MEMBERS} members"), "more".into()));
            }
        }
        if members.is_empty() {
            return Err(invalid("a tar archive with members", "none".into()));
        }
        Ok(Archive { path: path.to_owned(), file, members })
    }

    /// Returns the names of all members, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// Returns the file, and position and length of a member in it.
    ///
    /// # Errors
    /// [`Error::Conversion`] if there is no such member.
    pub(crate) fn member(&self, name: &str) -> Result<(Arc<File>, u64, u64)> {
        let missing = || Error::conversion(&self.path, name, "a member of this name", "none");
        let &(start, bytes) = self.members.get(name).ok_or_else(missing)?;
        Ok((self.file.clone(), start, bytes))
    }

    /// Reads a member of at most `max_bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Conversion`] for a missing or larger member; [`Error::Io`].
    pub(crate) fn read(&self, name: &str, max_bytes: u64) -> Result<Vec<u8>> {
        let (file, start, bytes) = self.member(name)?;
        if bytes > max_bytes {
            let expected = format!("at most {max_bytes} bytes");
            return Err(Error::conversion(&self.path, name, expected, format!("{bytes}")));
        }
        let mut content = Vec::new();
        FileRange::new(file, start, bytes)
            .read_to_end(&mut content)
            .map_err(Error::io(&self.path, "read the archive"))?;
        Ok(content)
    }
}

/// Returns true if a file is gzipped; the position is the start again.
fn has_gzip_magic(file: &mut File) -> io::Result<bool> {
    let mut magic = Vec::new();
    file.take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(magic == GZIP_MAGIC)
}

/// Decompresses a gzipped archive to a temporary file, which has no name.
fn decompress(path: &Path, file: File, scratch_folder: &Path) -> Result<File> {
    let compressed_bytes = file.metadata().map_err(Error::io(path, "read the archive"))?.len();
    let limit = compressed_bytes.saturating_mul(MAX_COMPRESSION_RATIO).max(MIN_DECOMPRESSED_LIMIT);
    let mut scratch = tempfile::tempfile_in(scratch_folder)
        .map_err(Error::io(scratch_folder, "create a temporary file for the decompressed archive"))?;
    let mut reader = MultiGzDecoder::new(io::BufReader::new(file)).take(limit + 1);
    let mut block = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        // Errors of the decoder are damage of the archive; those of the scratch file are not.
        let count = reader
            .read(&mut block)
            .map_err(|error| Error::conversion(path, "archive", "a whole gzip file", error.to_string()))?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        io::Write::write_all(&mut scratch, &block[..count])
            .map_err(Error::io(scratch_folder, "write the decompressed archive"))?;
    }
    if bytes > limit {
        let expected = format!("at most {limit} decompressed bytes of {compressed_bytes}");
        return Err(Error::conversion(path, "archive", expected, "more"));
    }
    Ok(scratch)
}

/// Returns a member's path without `./`, or what is wrong with it.
fn relative_name(name: &str) -> std::result::Result<String, &'static str> {
    let mut parts = Vec::new();
    if name.starts_with('/') || name.contains('\\') || name.contains(':') {
        return Err("an absolute path, a drive or a backslash");
    }
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err("a path with `..`"),
            part => parts.push(part),
        }
    }
    Ok(parts.join("/"))
}

/// Describes a member that is no regular file.
fn describe_kind(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink => "a symbolic link",
        EntryType::Link => "a hard link",
        EntryType::Fifo => "a named pipe",
        EntryType::Char | EntryType::Block => "a device",
        _ => "a special or sparse member",
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{Builder, Header};
    use tempfile::TempDir;

    use super::*;

    /// A tar file with members of these names, types and contents.
    fn tar_bytes(members: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for (name, kind, content) in members {
            let mut header = Header::new_gnu();
            // The library refuses such names.
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn open(bytes: &[u8]) -> Result<Archive> {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("model.nemo");
        std::fs::write(&path, bytes).unwrap();
        Archive::open(&path, folder.path())
    }

    fn gzipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn members_are_read_from_plain_and_gzipped_archives() {
        let tar = tar_bytes(&[
            ("./", EntryType::Directory, b""),
            ("./a.yaml", EntryType::Regular, b"text"),
            ("b", EntryType::Regular, b""),
            ("./folder/c", EntryType::Regular, &[7; 1000]),
        ]);
        for bytes in [tar.clone(), gzipped(&tar)] {
            let archive = open(&bytes).unwrap();
            assert_eq!(archive.names().collect::<Vec<_>>(), ["a.yaml", "b", "folder/c"]);
            assert_eq!(archive.read("a.yaml", 4).unwrap(), b"text");
            assert_eq!(archive.read("folder/c", 1000).unwrap(), [7; 1000]);
            for (name, limit, message) in [
                ("a.yaml", 3, "a.yaml: expected at most 3 bytes, found 4"),
                ("none", 3, "none: expected a member of this name, found none"),
            ] {
                let error = archive.read(name, limit).unwrap_err().to_string();
                assert!(error.ends_with(message), "{error}");
            }
        }
    }

    #[test]
    fn unsafe_and_damaged_archives_are_errors() {
        let regular = |name| tar_bytes(&[(name, EntryType::Regular, b"x".as_slice())]);
        let special = |kind| tar_bytes(&[("data", kind, b"".as_slice())]);
        let twice = [("a", EntryType::Regular, b"".as_slice()), ("./a", EntryType::Regular, b"")];
        let valid = regular("a");
        let zeros = gzipped(&vec![0; 8 << 20]);
        for (bytes, message) in [
            (
                regular("/etc/passwd"),
                "/etc/passwd: expected a path inside the archive, found an absolute path",
            ),
            (regular("a/../../b"), "a/../../b: expected a path inside the archive, found a path with `..`"),
            (regular("..\\b"), "expected a path inside the archive"),
            (special(EntryType::Symlink), "data: expected a regular file, found a symbolic link"),
            (special(EntryType::Link), "data: expected a regular file, found a hard link"),
            (special(EntryType::Fifo), "data: expected a regular file, found a named pipe"),
            (special(EntryType::Block), "data: expected a regular file, found a device"),
            (
                special(EntryType::GNUSparse),
                "data: expected a regular file, found a special or sparse member",
            ),
            (tar_bytes(&twice), "a: expected one member of this name, found two"),
            (valid[..512].to_vec(), "a: expected 1 bytes, found 0: truncated"),
            (valid[..500].to_vec(), "expected a tar archive, plain or gzipped, found half of a header"),
            (vec![], "expected a tar archive with members, found none"),
            (gzipped(&valid)[..30].to_vec(), "expected a whole gzip file"),
            (zeros, "expected at most 4194304 decompressed bytes of 8"),
            (b"PK\x03\x04 and so on".repeat(100), "expected a tar archive, plain or gzipped"),
        ] {
            let error = open(&bytes).unwrap_err().to_string();
            assert!(error.contains(message), "{error}\n{message}");
        }
    }
}
