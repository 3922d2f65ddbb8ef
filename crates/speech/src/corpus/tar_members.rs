//! Iterates over the members of tar archives, by their headers.
//!
//! Contents are skipped, not read. Names may be in extension records before a header (GNU or pax);
//! the size of all headers is limited.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::ops::Range;

use tar::{EntryType, Header, PaxExtensions};

/// Bytes of a tar header; members are padded to a multiple of it.
pub(super) const BLOCK_BYTES: u64 = 512;
/// Position of the checksum in a header.
const CHECKSUM_BYTES: Range<usize> = 148..156;
/// Largest size of all headers of a member, including long names.
pub(super) const MAX_HEADER_BYTES: u64 = 1 << 16;

/// A member of a tar archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TarMember {
    /// Path in the archive.
    pub name: String,
    /// Type: a file, a folder, a link.
    pub kind: EntryType,
    /// Whether the content is sparse, so that no byte range has it.
    pub is_sparse: bool,
    /// First byte of the headers, including long names.
    pub header_start: u64,
    /// First byte of the content.
    pub start: u64,
    /// Bytes of the content in the file.
    pub length: u64,
}

/// Iterates over the headers of a tar file.
#[derive(Debug)]
pub struct TarMembers<R> {
    file: R,
    /// First byte of the next header.
    next_header: u64,
}

/// Extension records before the header of a member.
#[derive(Default)]
struct ExtensionRecords {
    long_name: Option<Vec<u8>>,
    pax: Vec<u8>,
}

impl<R: Read + Seek> TarMembers<R> {
    /// Creates an iterator from the first byte of the file.
    pub fn new(file: R) -> Self {
        TarMembers { file, next_header: 0 }
    }

    /// Returns the first byte after the members so far.
    pub(super) fn end(&self) -> u64 {
        self.next_header
    }

    /// Returns the next member; `None` at the end mark or the end of the file.
    ///
    /// # Errors
    /// I/O errors; [`ErrorKind::InvalidData`] for an invalid header, and for extension records of
    /// more than 64 KiB.
    pub fn next_member(&mut self) -> io::Result<Option<TarMember>> {
        let header_start = self.next_header;
        let mut records = ExtensionRecords::default();
        loop {
            let Some(header) = self.read_header()? else {
                return match self.next_header == header_start {
                    true => Ok(None),
                    false => Err(invalid_data("a record of a name without its member".into())),
                };
            };
            let (kind, length) = (header.entry_type(), header.entry_size()?);
            let start = self.next_header.saturating_add(BLOCK_BYTES);
            if !is_extension_record(kind) {
                return self.build_member(header_start, start, &header, &records).map(Some);
            }
            let end = padded_end(start, length);
            if end.saturating_sub(header_start) > MAX_HEADER_BYTES {
                let excess = format!(
                    "a name or other record of {length} bytes, of which {MAX_HEADER_BYTES} are allowed"
                );
                return Err(invalid_data(excess));
            }
            let mut content = vec![0; length as usize];
            self.file.read_exact(&mut content)?;
            match kind {
                EntryType::GNULongName => records.long_name = Some(content),
                EntryType::XHeader => records.pax = content,
                _ => {}
            }
            self.next_header = end;
        }
    }

    /// Combines a header and its extension records.
    fn build_member(
        &mut self,
        header_start: u64,
        start: u64,
        header: &Header,
        records: &ExtensionRecords,
    ) -> io::Result<TarMember> {
        let (mut name, mut length) = (header.path_bytes().into_owned(), header.entry_size()?);
        let kind = header.entry_type();
        let mut is_sparse = kind.is_gnu_sparse();
        for record in PaxExtensions::new(&records.pax) {
            let record = record?;
            match record.key_bytes() {
                b"path" => name = record.value_bytes().to_vec(),
                b"size" => {
                    let size = record.value().ok().and_then(|size| size.parse().ok());
                    length = size.ok_or_else(|| invalid_data("a size that is no number".into()))?;
                }
                key => is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        if let Some(long_name_bytes) = &records.long_name {
            name = long_name_bytes.strip_suffix(&[0]).unwrap_or(long_name_bytes).to_vec();
        }
        self.next_header = padded_end(start, length);
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(TarMember { name, kind, is_sparse, header_start, start, length })
    }

    /// Parses the header at the current position; `None` for zeros or at the end.
    fn read_header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        self.file.seek(SeekFrom::Start(self.next_header))?;
        let mut num_read = 0;
        while num_read < bytes.len() {
            match self.file.read(&mut bytes[num_read..]) {
                Ok(0) if num_read == 0 => return Ok(None),
                Ok(0) => return Err(invalid_data("half of a header at its end: truncated".into())),
                Ok(count) => num_read += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        // The checksum counts its own eight bytes as spaces.
        let other_bytes = bytes[..CHECKSUM_BYTES.start].iter().chain(&bytes[CHECKSUM_BYTES.end..]);
        let checksum = other_bytes.map(|&byte| u32::from(byte)).sum::<u32>() + 8 * u32::from(b' ');
        if header.cksum()? != checksum {
            return Err(invalid_data(format!("no header with its checksum at byte {}", self.next_header)));
        }
        Ok(Some(header))
    }
}

/// Returns whether an entry describes the member that follows it.
fn is_extension_record(kind: EntryType) -> bool {
    matches!(kind, EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader)
}

/// Returns the end of content, rounded up to a block.
fn padded_end(start: u64, length: u64) -> u64 {
    start.saturating_add(length).div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES)
}

fn invalid_data(found: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, found)
}
