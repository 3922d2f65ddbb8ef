//! Finds the length of sample data when a header may be unfinished.
//!
//! Programs that write to a pipe cannot go back, so they leave a placeholder length in the header.

/// Largest distance of a placeholder length below 2 and 4 GiB.
///
/// Writers subtract the header and round down to complete frames, or begin with 0x7f (sox, AIFF).
const MAX_PLACEHOLDER_GAP: u64 = 1 << 24;
const GIB: u64 = 1 << 30;

/// The lengths that a header declares.
pub(in crate::audio) struct DeclaredLengths {
    /// Bytes of the whole file.
    file_bytes: u64,
    /// The data chunk's length in `ds64`.
    long_data: Option<u64>,
    is_long: bool,
}

impl DeclaredLengths {
    /// `riff` is the length after the first four bytes, `magic`.
    pub fn new(riff: u64, magic: &[u8]) -> Self {
        let is_long = magic == b"RF64" || magic == b"BW64";
        DeclaredLengths { file_bytes: riff + 8, long_data: None, is_long }
    }

    /// The lengths of a header without the length of the file.
    pub fn without_file_length() -> Self {
        DeclaredLengths { file_bytes: u64::MAX - 1, long_data: None, is_long: true }
    }

    /// Replaces 32-bit lengths by the 64-bit lengths of a `ds64` chunk.
    pub fn set_ds64(&mut self, riff: u64, data: u64) {
        if self.is_long {
            self.file_bytes = riff.saturating_add(8);
            self.long_data = Some(data);
        }
    }

    /// Returns the sample bytes declared, and those in the file.
    ///
    /// The samples start at byte `start` of a file of `bytes` bytes. A declared length beyond the
    /// end of the file means "to the end of the file", with one exception: if the file length in
    /// the header agrees with it and is plausible, the header was finished and the file was
    /// truncated.
    pub fn data(&self, length: u64, start: u64, bytes: u64) -> (u64, u64) {
        let remaining = bytes.saturating_sub(start);
        let length = match self.long_data {
            Some(long) if length == u64::from(u32::MAX) => long,
            _ => length,
        };
        // A finished file without samples has the same data length as an unfinished one, but its
        // RIFF length covers the file, except for a final pad byte.
        let is_open = match length {
            0 => {
                self.file_bytes == 8
                    || self.file_bytes + 1 < bytes
                    || self.file_bytes == u64::from(u32::MAX) + 8
            }
            _ if length == u64::from(u32::MAX) && !self.is_long => true,
            _ => length > remaining && !self.is_truncated(length, start, remaining),
        };
        if is_open { (remaining, remaining) } else { (length, length.min(remaining)) }
    }

    /// Returns whether a header with too large a length was finished.
    fn is_truncated(&self, length: u64, start: u64, remaining: u64) -> bool {
        let is_placeholder =
            [2 * GIB, 4 * GIB].iter().any(|&end| (end - MAX_PLACEHOLDER_GAP..=end).contains(&length));
        let is_implausible = length >= 2 * GIB && remaining < length / 2;
        let is_within_file =
            start.checked_add(length).is_some_and(|end| end <= self.file_bytes.saturating_add(1));
        is_within_file && !is_placeholder && !is_implausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(data: u64, riff: u64, bytes: u64) -> (u64, u64) {
        DeclaredLengths::new(riff, b"RIFF").data(data, 44, bytes)
    }

    #[test]
    fn placeholder_lengths_extend_to_the_end() {
        for data in [
            0x7fff_ffff,
            0x8000_0000,
            0x7fff_ffdb,
            0xffff_ffdb,
            0xffff_ffff,
            0x7fff_f000,
            0xffff_ff00,
            0xc000_0000,
        ] {
            assert_eq!(lengths(data, data + 36, 4044), (4000, 4000), "{data:x}");
            assert_eq!(lengths(data, 0, 4044), (4000, 4000), "{data:x}");
        }
        // The two lengths contradict each other.
        assert_eq!(lengths(10_000, 4036, 4044), (4000, 4000));
        assert_eq!(lengths(10_000, 0, 4044), (4000, 4000));
        // They agree, and the file is shorter.
        assert_eq!(lengths(10_000, 10_036, 4044), (10_000, 4000));
        // Complete files, one of them large.
        assert_eq!(lengths(4000, 4036, 4044), (4000, 4000));
        assert_eq!(lengths(3 * GIB, 3 * GIB + 36, 3 * GIB + 44), (3 * GIB, 3 * GIB));
        // A large file that was truncated.
        assert_eq!(lengths(3 * GIB, 3 * GIB + 36, 2 * GIB + 44), (3 * GIB, 2 * GIB));
    }

    #[test]
    fn long_lengths_replace_short_ones() {
        let mut long = DeclaredLengths::new(u64::from(u32::MAX), b"RF64");
        long.set_ds64(4036, 4000);
        assert_eq!(long.data(u64::from(u32::MAX), 44, 5000), (4000, 4000));
        assert_eq!(long.data(200, 44, 5000), (200, 200));
        long.set_ds64(10_036, 10_000);
        assert_eq!(long.data(u64::from(u32::MAX), 44, 5000), (10_000, 4956));
        for open in [0, u64::MAX, u64::from(u32::MAX)] {
            let mut long = DeclaredLengths::new(u64::from(u32::MAX), b"RF64");
            long.set_ds64(open, open);
            assert_eq!(long.data(u64::from(u32::MAX), 44, 5000), (4956, 4956), "{open}");
        }
        // Without ds64 the length is unknown.
        let unknown = DeclaredLengths::new(u64::from(u32::MAX), b"RF64");
        assert_eq!(unknown.data(u64::from(u32::MAX), 44, 5000), (4956, 4956));
    }
}
