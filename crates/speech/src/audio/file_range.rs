//! A part of a file, read as if it were a file of its own: a member of an archive that packs nothing.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Bytes `[start, start + length)` of a file.
pub(crate) struct FileRange {
    file: File,
    start: u64,
    length: u64,
    at: u64,
}

impl FileRange {
    /// A whole file.
    pub fn whole(file: File) -> io::Result<Self> {
        let length = file.metadata()?.len();
        Ok(FileRange { file, start: 0, length, at: 0 })
    }

    /// A part of it.
    pub fn new(mut file: File, start: u64, length: u64) -> io::Result<Self> {
        file.seek(SeekFrom::Start(start))?;
        Ok(FileRange { file, start, length, at: 0 })
    }

    /// A part of this part, read from its beginning.
    pub fn within(self, start: u64, length: u64) -> io::Result<Self> {
        FileRange::new(self.file, self.start + start, length.min(self.length.saturating_sub(start)))
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.length
    }
}

impl Read for FileRange {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.length.saturating_sub(self.at);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read(&mut buffer[..most])?;
        self.at += read as u64;
        Ok(read)
    }
}

impl Seek for FileRange {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.length.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        let place = at.and_then(|at| Some((at, self.start.checked_add(at)?)));
        let (at, place) = place.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        self.file.seek(SeekFrom::Start(place))?;
        self.at = at;
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_part_begins_and_ends_where_it_should() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut part = FileRange::new(file.try_clone().unwrap(), 3, 4).unwrap();
        let mut text = String::new();
        part.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), part.len()), ("3456", 4));
        assert_eq!(part.seek(SeekFrom::End(-1)).unwrap(), 3);
        text.clear();
        part.read_to_string(&mut text).unwrap();
        assert_eq!(text, "6");
        assert_eq!(part.seek(SeekFrom::Start(1)).unwrap(), 1);
        assert_eq!(part.seek(SeekFrom::Current(1)).unwrap(), 2);
        assert!(part.seek(SeekFrom::Current(-3)).is_err());
        // Beyond its end there is nothing, though the file goes on.
        part.seek(SeekFrom::Start(9)).unwrap();
        assert_eq!(part.read(&mut [0; 4]).unwrap(), 0);
        assert_eq!(FileRange::whole(file).unwrap().len(), 10);
    }
}
