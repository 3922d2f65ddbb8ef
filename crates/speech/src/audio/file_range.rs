//! `FileRange`: reads a byte range of a file, such as an audio file in a tar shard.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Bytes `[start, start + length)` of a file.
pub(crate) struct FileRange {
    file: File,
    start: u64,
    length: u64,
    /// Offset in the range.
    position: u64,
}

impl FileRange {
    /// The whole of `file`.
    pub(crate) fn of_file(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(FileRange { file, start: 0, length, position: 0 })
    }

    /// Bytes `[start, start + length)` of `file`.
    pub(crate) fn new(mut file: File, start: u64, length: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(start))?;
        Ok(FileRange { file, start, length, position: 0 })
    }

    /// A subrange of this range, positioned at its start.
    pub(crate) fn within(self, start: u64, length: u64) -> io::Result<Self> {
        FileRange::new(self.file, self.start + start, length.min(self.length.saturating_sub(start)))
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.length
    }
}

impl Read for FileRange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = self.length.saturating_sub(self.position);
        let limit = usize::try_from(remaining).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(&mut buffer[..limit])?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for FileRange {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(distance) => self.length.checked_add_signed(distance),
            SeekFrom::Current(distance) => self.position.checked_add_signed(distance),
        };
        let offset = position.and_then(|position| Some((position, self.start.checked_add(position)?)));
        let (position, offset) = offset.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.file.seek(SeekFrom::Start(offset))?;
        self.position = position;
        Ok(position)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_range_is_read_from_its_start_to_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut range = FileRange::new(file.try_clone().unwrap(), 3, 4).unwrap();
        let mut text = String::new();
        range.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), range.len()), ("3456", 4));
        assert_eq!(range.seek(SeekFrom::End(-1)).unwrap(), 3);
        text.clear();
        range.read_to_string(&mut text).unwrap();
        assert_eq!(text, "6");
        assert_eq!(range.seek(SeekFrom::Start(1)).unwrap(), 1);
        assert_eq!(range.seek(SeekFrom::Current(1)).unwrap(), 2);
        assert!(range.seek(SeekFrom::Current(-3)).is_err());
        // No byte is read beyond the end of the range, although the file continues.
        range.seek(SeekFrom::Start(9)).unwrap();
        assert_eq!(range.read(&mut [0; 4]).unwrap(), 0);
        assert_eq!(FileRange::of_file(file).unwrap().len(), 10);
    }
}
