//! Members of a tar file, found by their headers; records of long names are limited before they are read.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};

use tar::{EntryType, Header, PaxExtensions};

/// Bytes of a tar header; members are padded to a multiple of it.
pub(super) const BLOCK: u64 = 512;
/// Bytes of all headers of a member at most, records of long names included.
pub(super) const MAX_HEADERS: u64 = 1 << 16;

/// A member of a tar file.
pub(super) struct Member {
    pub name: String,
    pub kind: EntryType,
    /// Whether its content is not stored as it is.
    pub is_sparse: bool,
    /// First byte of its headers, records of long names included.
    pub header: u64,
    /// First byte of its content.
    pub start: u64,
    /// Bytes of its content in the file.
    pub length: u64,
}

/// Reads the headers of a tar file one after another.
pub(super) struct Members<R> {
    file: R,
    next: u64,
}

/// What records in front of a header say about the member.
#[derive(Default)]
struct Records {
    long_name: Option<Vec<u8>>,
    pax: Vec<u8>,
}

impl<R: Read + Seek> Members<R> {
    pub fn new(file: R) -> Self {
        Members { file, next: 0 }
    }

    /// First byte behind the members so far.
    pub fn end(&self) -> u64 {
        self.next
    }

    /// The next member; none at the end mark, and at the end of the file.
    ///
    /// # Errors
    /// Those of reading; [`ErrorKind::InvalidData`] for what is not a header, and for records of more than [`MAX_HEADERS`] bytes.
    pub fn next(&mut self) -> io::Result<Option<Member>> {
        let first = self.next;
        let mut records = Records::default();
        loop {
            let Some(header) = self.header()? else {
                return match self.next == first {
                    true => Ok(None),
                    false => Err(invalid("a record of a name without its member".into())),
                };
            };
            let (kind, length) = (header.entry_type(), header.entry_size()?);
            let start = self.next.saturating_add(BLOCK);
            if !is_record(kind) {
                return self.member(first, start, &header, &records).map(Some);
            }
            let end = padded(start, length);
            if end.saturating_sub(first) > MAX_HEADERS {
                let found =
                    format!("a name or other record of {length} bytes, of which {MAX_HEADERS} are allowed");
                return Err(invalid(found));
            }
            let mut content = vec![0; length as usize];
            self.file.read_exact(&mut content)?;
            match kind {
                EntryType::GNULongName => records.long_name = Some(content),
                EntryType::XHeader => records.pax = content,
                _ => {}
            }
            self.next = end;
        }
    }

    fn member(&mut self, first: u64, start: u64, header: &Header, records: &Records) -> io::Result<Member> {
        let (mut name, mut length) = (header.path_bytes().into_owned(), header.entry_size()?);
        let kind = header.entry_type();
        let mut is_sparse = kind.is_gnu_sparse();
        for record in PaxExtensions::new(&records.pax) {
            let record = record?;
            match record.key_bytes() {
                b"path" => name = record.value_bytes().to_vec(),
                b"size" => {
                    let size = record.value().ok().and_then(|size| size.parse().ok());
                    length = size.ok_or_else(|| invalid("a size that is no number".into()))?;
                }
                key => is_sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        if let Some(long) = &records.long_name {
            name = long.strip_suffix(&[0]).unwrap_or(long).to_vec();
        }
        self.next = padded(start, length);
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Member { name, kind, is_sparse, header: first, start, length })
    }

    /// The header at the next place; none if there are zeros, or nothing.
    fn header(&mut self) -> io::Result<Option<Header>> {
        let mut header = Header::new_old();
        let bytes = header.as_mut_bytes();
        self.file.seek(SeekFrom::Start(self.next))?;
        let mut read = 0;
        while read < bytes.len() {
            match self.file.read(&mut bytes[read..]) {
                Ok(0) if read == 0 => return Ok(None),
                Ok(0) => return Err(invalid("half of a header at its end: truncated".into())),
                Ok(count) => read += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if bytes.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        // The checksum counts its own eight bytes as spaces.
        let others = bytes[..148].iter().chain(&bytes[156..]);
        let sum = others.map(|&byte| u32::from(byte)).sum::<u32>() + 8 * u32::from(b' ');
        if header.cksum()? != sum {
            return Err(invalid(format!("no header with its checksum at byte {}", self.next)));
        }
        Ok(Some(header))
    }
}

/// Whether an entry describes the member behind it.
fn is_record(kind: EntryType) -> bool {
    matches!(kind, EntryType::GNULongName | EntryType::GNULongLink | EntryType::XHeader)
}

fn padded(start: u64, length: u64) -> u64 {
    start.saturating_add(length).div_ceil(BLOCK).saturating_mul(BLOCK)
}

fn invalid(found: String) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, found)
}
