//! Length of an audio file's sample data, despite unfinished headers.
//!
//! Programs that write to a pipe cannot go back, so they leave a placeholder length in the header.

/// Largest distance of a placeholder length below 2 and 4 GiB.
///
/// Writers subtract the header and round down to complete frames, or begin with 0x7f (sox, AIFF).
const MAX_PLACEHOLDER_GAP: u64 = 1 << 24;
/// Bytes at the start that the declared file length does not count.
const RIFF_HEADER_BYTES: u64 = 8;
const GIB: u64 = 1 << 30;
/// File length of a header without one: no declared data length contradicts it.
///
/// It differs from `u64::MAX`, the placeholder of an unfinished `ds64` chunk.
const UNKNOWN_FILE_BYTES: u64 = u64::MAX - 1;

/// Length of the sample data in bytes.
#[derive(Clone, Copy)]
pub(in crate::audio) struct DataBytes {
    /// Bytes that the header declares; if it does not, those in the file.
    pub declared: u64,
    /// Declared bytes that are in the file.
    pub present: u64,
}

/// The lengths that a header declares.
pub(in crate::audio) struct DeclaredLengths {
    /// Bytes of the whole file; [`UNKNOWN_FILE_BYTES`] if the header does not declare them.
    declared_file_bytes: u64,
    /// The data chunk's length in `ds64`.
    ds64_data_bytes: Option<u64>,
    /// Whether the format has lengths of 64 bits.
    has_64_bit_lengths: bool,
}

impl DeclaredLengths {
    /// Lengths of a header that starts with `magic`.
    ///
    /// `riff_length` is the length of the file without its first 8 bytes.
    pub(crate) fn new(riff_length: u64, magic: &[u8]) -> Self {
        let has_64_bit_lengths = magic == b"RF64" || magic == b"BW64";
        DeclaredLengths {
            declared_file_bytes: riff_length + RIFF_HEADER_BYTES,
            ds64_data_bytes: None,
            has_64_bit_lengths,
        }
    }

    /// The lengths of a header without the length of the file.
    pub(crate) fn without_file_length() -> Self {
        DeclaredLengths {
            declared_file_bytes: UNKNOWN_FILE_BYTES,
            ds64_data_bytes: None,
            has_64_bit_lengths: true,
        }
    }

    /// Replaces 32-bit lengths by the 64-bit lengths of a `ds64` chunk.
    ///
    /// Formats without 64-bit lengths ignore such a chunk.
    pub(crate) fn set_ds64(&mut self, riff_length: u64, data_length: u64) {
        if self.has_64_bit_lengths {
            self.declared_file_bytes = riff_length.saturating_add(RIFF_HEADER_BYTES);
            self.ds64_data_bytes = Some(data_length);
        }
    }

    /// Returns the length of the samples.
    ///
    /// `length` is that of the header of the data chunk. The samples start at byte `start` of a
    /// file of `file_bytes` bytes. A declared length beyond the end of the file means "to the end
    /// of the file", with one exception: if the file length in the header agrees with it and is
    /// plausible, the header was finished and the file was truncated.
    pub(crate) fn data_bytes(&self, length: u64, start: u64, file_bytes: u64) -> DataBytes {
        let remaining = file_bytes.saturating_sub(start);
        let length = match self.ds64_data_bytes {
            Some(ds64_bytes) if length == u64::from(u32::MAX) => ds64_bytes,
            _ => length,
        };
        // A finished file without samples has the same data length as an unfinished one, but its
        // RIFF length covers the file, except for a final pad byte.
        let is_unfinished = match length {
            0 => {
                self.declared_file_bytes == RIFF_HEADER_BYTES
                    || self.declared_file_bytes.saturating_add(1) < file_bytes
                    || self.declared_file_bytes == u64::from(u32::MAX) + RIFF_HEADER_BYTES
                    || self.declared_file_bytes == u64::MAX
            }
            _ if length == u64::from(u32::MAX) && !self.has_64_bit_lengths => true,
            _ => length > remaining && !self.is_truncated(length, start, remaining),
        };
        if is_unfinished {
            DataBytes { declared: remaining, present: remaining }
        } else {
            DataBytes { declared: length, present: length.min(remaining) }
        }
    }

    /// Returns whether a header with too large a length was finished.
    fn is_truncated(&self, length: u64, start: u64, remaining: u64) -> bool {
        let is_placeholder =
            [2 * GIB, 4 * GIB].iter().any(|&limit| (limit - MAX_PLACEHOLDER_GAP..=limit).contains(&length));
        let is_implausible = length >= 2 * GIB && remaining < length / 2;
        let is_within_file =
            start.checked_add(length).is_some_and(|end| end <= self.declared_file_bytes.saturating_add(1));
        is_within_file && !is_placeholder && !is_implausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes before the samples in the test files.
    const HEADER_BYTES: u64 = 44;

    /// Returns declared and present bytes of a data chunk of length `data`.
    fn declared_and_present(lengths: &DeclaredLengths, data: u64, file_bytes: u64) -> (u64, u64) {
        let DataBytes { declared, present } = lengths.data_bytes(data, HEADER_BYTES, file_bytes);
        (declared, present)
    }

    fn lengths(data: u64, riff: u64, file_bytes: u64) -> (u64, u64) {
        declared_and_present(&DeclaredLengths::new(riff, b"RIFF"), data, file_bytes)
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
        assert_eq!(declared_and_present(&long, u64::from(u32::MAX), 5000), (4000, 4000));
        assert_eq!(declared_and_present(&long, 200, 5000), (200, 200));
        long.set_ds64(10_036, 10_000);
        assert_eq!(declared_and_present(&long, u64::from(u32::MAX), 5000), (10_000, 4956));
        for open in [0, u64::MAX, u64::from(u32::MAX)] {
            let mut long = DeclaredLengths::new(u64::from(u32::MAX), b"RF64");
            long.set_ds64(open, open);
            assert_eq!(declared_and_present(&long, u64::from(u32::MAX), 5000), (4956, 4956), "{open}");
        }
        // A placeholder for the file's length, and no length of the data.
        long.set_ds64(u64::MAX, 0);
        assert_eq!(declared_and_present(&long, u64::from(u32::MAX), 5000), (4956, 4956));
        assert_eq!(declared_and_present(&DeclaredLengths::without_file_length(), 0, 5000), (0, 0));
        // Without ds64 the length is unknown.
        let unknown = DeclaredLengths::new(u64::from(u32::MAX), b"RF64");
        assert_eq!(declared_and_present(&unknown, u64::from(u32::MAX), 5000), (4956, 4956));
    }
}
