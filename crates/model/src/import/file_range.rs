//! `FileRange`: a range of a file as a reader.
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// A reader of a range of a file, such as a member.
#[derive(Debug, Clone)]
pub(crate) struct FileRange {
    file: Arc<File>,
    start: u64,
    bytes: u64,
    position: u64,
}

impl FileRange {
    /// Creates a reader of `bytes` bytes from `start`.
    pub(crate) fn new(file: Arc<File>, start: u64, bytes: u64) -> Self {
        FileRange { file, start, bytes, position: 0 }
    }
}

impl Read for FileRange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = self.bytes.saturating_sub(self.position);
        let length = usize::try_from(remaining).unwrap_or(usize::MAX).min(buffer.len());
        if length == 0 {
            return Ok(0);
        }
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.start + self.position))?;
        let count = file.read(&mut buffer[..length])?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Seek for FileRange {
    fn seek(&mut self, target: SeekFrom) -> io::Result<u64> {
        let position = match target {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(offset) => self.bytes.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "a position before the start");
        self.position = position.ok_or_else(invalid)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_range_ends_at_its_length() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut range = FileRange::new(Arc::new(file), 2, 5);
        let mut text = String::new();
        range.read_to_string(&mut text).unwrap();
        assert_eq!(text, "23456");
        range.seek(SeekFrom::End(-2)).unwrap();
        text.clear();
        range.read_to_string(&mut text).unwrap();
        assert_eq!(text, "56");
        assert!(range.seek(SeekFrom::Current(-6)).is_err());
        assert_eq!(range.seek(SeekFrom::Start(9)).unwrap(), 9);
        assert_eq!(range.read(&mut [0; 4]).unwrap(), 0);
    }
}
