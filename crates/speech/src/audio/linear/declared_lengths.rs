//! How many bytes of samples a file has: headers of streams were never finished.

/// Placeholders lie at most this far below 2 and 4 GiB: writers subtract the header and round down to whole frames, or begin with
/// 0x7f (sox, AIFF).
const HEADER_ROOM: u64 = 1 << 24;
const GIB: u64 = 1 << 30;

/// The lengths of a header.
pub(in crate::audio) struct DeclaredLengths {
    /// Bytes of the whole file.
    spanned: u64,
    /// The data chunk's length in `ds64`.
    long_data: Option<u64>,
    is_long: bool,
}

impl DeclaredLengths {
    /// `riff` is the length behind the first four bytes, `magic`.
    pub fn new(riff: u64, magic: &[u8]) -> Self {
        let is_long = magic == b"RF64" || magic == b"BW64";
        DeclaredLengths { spanned: riff + 8, long_data: None, is_long }
    }

    /// DeclaredLengths of a file whose header does not give the length of the whole.
    pub fn without_whole() -> Self {
        DeclaredLengths { spanned: u64::MAX - 1, long_data: None, is_long: true }
    }

    /// DeclaredLengths of 64 bits, which replace those of 32 bits.
    pub fn set_ds64(&mut self, riff: u64, data: u64) {
        if self.is_long {
            self.spanned = riff.saturating_add(8);
            self.long_data = Some(data);
        }
    }

    /// Bytes of samples that the header declares, and that are in a file of `bytes` bytes, from byte `here` on.
    ///
    /// A declared length beyond the end of the file means "to the end of the file", with one exception: if the length of the
    /// whole file in the header agrees with it and is plausible, the header was finished and the file was cut.
    pub fn data(&self, length: u64, here: u64, bytes: u64) -> (u64, u64) {
        let left = bytes.saturating_sub(here);
        let length = match self.long_data {
            Some(long) if length == u64::from(u32::MAX) => long,
            _ => length,
        };
        // A finished file without samples has the same length as one that was never finished, but RIFF's length spans it, a last
        // pad byte perhaps apart.
        let open = match length {
            0 => self.spanned == 8 || self.spanned + 1 < bytes || self.spanned == u64::from(u32::MAX) + 8,
            _ if length == u64::from(u32::MAX) && !self.is_long => true,
            _ => length > left && !self.was_cut(length, here, left),
        };
        if open { (left, left) } else { (length, length.min(left)) }
    }

    /// Whether a length beyond the end of the file was written when the file was finished.
    fn was_cut(&self, length: u64, here: u64, left: u64) -> bool {
        let is_placeholder =
            [2 * GIB, 4 * GIB].iter().any(|&end| (end - HEADER_ROOM..=end).contains(&length));
        let is_implausible = length >= 2 * GIB && left < length / 2;
        let is_spanned = here.checked_add(length).is_some_and(|end| end <= self.spanned.saturating_add(1));
        is_spanned && !is_placeholder && !is_implausible
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(data: u64, riff: u64, bytes: u64) -> (u64, u64) {
        DeclaredLengths::new(riff, b"RIFF").data(data, 44, bytes)
    }

    #[test]
    fn lengths_that_nobody_could_mean_reach_to_the_end() {
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
            assert_eq!(of(data, data + 36, 4044), (4000, 4000), "{data:x}");
            assert_eq!(of(data, 0, 4044), (4000, 4000), "{data:x}");
        }
        // The two lengths contradict each other.
        assert_eq!(of(10_000, 4036, 4044), (4000, 4000));
        assert_eq!(of(10_000, 0, 4044), (4000, 4000));
        // They agree, and the file is shorter.
        assert_eq!(of(10_000, 10_036, 4044), (10_000, 4000));
        // Whole files, one of them large.
        assert_eq!(of(4000, 4036, 4044), (4000, 4000));
        assert_eq!(of(3 * GIB, 3 * GIB + 36, 3 * GIB + 44), (3 * GIB, 3 * GIB));
        // A large file that was cut.
        assert_eq!(of(3 * GIB, 3 * GIB + 36, 2 * GIB + 44), (3 * GIB, 2 * GIB));
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
        // Without ds64 nothing is known.
        let none = DeclaredLengths::new(u64::from(u32::MAX), b"RF64");
        assert_eq!(none.data(u64::from(u32::MAX), 44, 5000), (4956, 4956));
    }
}
