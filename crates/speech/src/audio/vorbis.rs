//! Checks codebook sizes of Vorbis audio before a decoder allocates them.
//!
//! Vorbis I, section 3.2.1.
//!
//! ```text
//! 5 "vorbis" codebooks - 1 (8 bits), each: 0x564342 (24) dimensions (16) entries (24)
//! lengths of the codewords, lookup table
//! ```
//! A small header can declare large tables: ordered lengths are run-length coded, and a lookup
//! table stores only a root of its entries.

/// Largest number of values in all lookup tables; encoders use a tenth of it.
const MAX_LOOKUP_VALUES: u64 = 1 << 22;
/// Largest number of entries in all codebooks.
const MAX_ENTRIES: u64 = 1 << 19;
/// Bits of a codeword's length.
const LENGTH_BITS: u64 = 5;
/// First 24 bits of a codebook.
const CODEBOOK_SYNC: u32 = 0x56_43_42;
/// Bytes of the identification header.
const IDENTIFICATION_BYTES: usize = 30;
/// First byte of headers that are stored with their lengths.
const LACED_HEADERS: u8 = 2;

/// Checks the sizes of all codebooks.
///
/// The error describes codebooks that are too large or malformed.
pub(super) fn check_codebooks(headers: &[u8]) -> Result<(), String> {
    let malformed = || "a setup header without its codebooks".to_owned();
    let setup = setup_header(headers).and_then(|setup| setup.strip_prefix(b"\x05vorbis"));
    let mut bits = BitReader { bytes: setup.ok_or_else(malformed)?, position: 0 };
    let (mut num_values, mut entries) = (0, 0);
    for _ in 0..bits.take(8).ok_or_else(malformed)? + 1 {
        if bits.take(24).ok_or_else(malformed)? != CODEBOOK_SYNC {
            return Err(malformed());
        }
        let dimensions = u64::from(bits.take(16).ok_or_else(malformed)?);
        let count = u64::from(bits.take(24).ok_or_else(malformed)?);
        entries += count;
        num_values += count * dimensions;
        if num_values > MAX_LOOKUP_VALUES || entries > MAX_ENTRIES {
            return Err(format!("codebooks of {entries} entries and {num_values} values or more"));
        }
        skip_lengths(&mut bits, count).ok_or_else(malformed)?;
        skip_lookup(&mut bits, count, dimensions).ok_or_else(malformed)?;
    }
    Ok(())
}

/// Returns the third header.
///
/// It follows the first header, or two headers whose lengths are given.
fn setup_header(headers: &[u8]) -> Option<&[u8]> {
    let Some((&LACED_HEADERS, mut rest)) = headers.split_first() else {
        return headers.get(IDENTIFICATION_BYTES..);
    };
    let mut skipped_bytes = 0;
    for _ in 0..2 {
        loop {
            let (&length, tail) = rest.split_first()?;
            (skipped_bytes, rest) = (skipped_bytes + usize::from(length), tail);
            // A length is a sum of bytes, of which the last is below 255.
            if length < 255 {
                break;
            }
        }
    }
    rest.get(skipped_bytes..)
}

/// Skips the lengths of the codewords.
fn skip_lengths(bits: &mut BitReader, entries: u64) -> Option<()> {
    let is_ordered = bits.take(1)? == 1;
    if is_ordered {
        // The first length, then the number of entries of each length.
        bits.skip(LENGTH_BITS)?;
        let mut skipped = 0;
        while skipped < entries {
            let width = u64::BITS - (entries - skipped).leading_zeros();
            skipped += u64::from(bits.take(width)?);
        }
        return (skipped == entries).then_some(());
    }
    let is_sparse = bits.take(1)? == 1;
    if !is_sparse {
        return bits.skip(LENGTH_BITS * entries);
    }
    for _ in 0..entries {
        if bits.take(1)? == 1 {
            bits.skip(LENGTH_BITS)?;
        }
    }
    Some(())
}

/// Skips the lookup table.
fn skip_lookup(bits: &mut BitReader, entries: u64, dimensions: u64) -> Option<()> {
    let count = match bits.take(4)? {
        0 => return Some(()),
        1 => integer_root(entries, dimensions)?,
        2 => entries * dimensions,
        _ => return None,
    };
    // Minimum and step of the values, their width, and a flag for cumulative values.
    bits.skip(64)?;
    let width = u64::from(bits.take(4)?) + 1;
    bits.skip(1)?;
    bits.skip(count * width)
}

/// Returns the largest integer whose power `dimensions` is at most `entries`.
fn integer_root(entries: u64, dimensions: u64) -> Option<u64> {
    let dimensions = u32::try_from(dimensions).ok().filter(|&n| n > 0)?;
    let is_at_most = |n: u64| n.checked_pow(dimensions).is_some_and(|power| power <= entries);
    // Entries have 24 bits: one dimension has the largest root.
    if dimensions == 1 {
        return Some(entries);
    }
    Some((1..=1 << 12).take_while(|&n| is_at_most(n)).last().unwrap_or(0))
}

/// A bit reader, least significant bit of each byte first.
struct BitReader<'a> {
    bytes: &'a [u8],
    position: u64,
}

impl BitReader<'_> {
    /// Reads a number of up to 32 bits.
    fn take(&mut self, count: u32) -> Option<u32> {
        let start = self.position;
        self.skip(u64::from(count))?;
        let bit = |index: u64| u32::from(self.bytes[(index / 8) as usize] >> (index % 8)) & 1;
        Some((0..count).fold(0, |n, i| n | bit(start + u64::from(i)) << i))
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.position = self.position.checked_add(count).filter(|&end| end <= 8 * self.bytes.len() as u64)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct BitWriter(Vec<bool>);

    impl BitWriter {
        fn put(&mut self, value: u64, count: u32) -> &mut Self {
            self.0.extend((0..count).map(|i| value >> i & 1 == 1));
            self
        }

        fn headers(&self) -> Vec<u8> {
            let mut headers = vec![1; IDENTIFICATION_BYTES];
            headers.extend(b"\x05vorbis");
            let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
            headers.extend(self.0.chunks(8).map(byte));
            headers
        }
    }

    #[test]
    fn codebook_sizes_are_checked_before_allocation() {
        // A codebook of some 20 bytes: ordered lengths, all equal, and a product lookup table.
        let write_codebook = |bits: &mut BitWriter, entries: u64, dimensions: u64| {
            bits.put(u64::from(CODEBOOK_SYNC), 24).put(dimensions, 16).put(entries, 24).put(1, 1).put(16, 5);
            bits.put(entries, u64::BITS - entries.leading_zeros());
            bits.put(1, 4).put(0, 64).put(3, 4).put(0, 1);
            bits.put(0, 4 * integer_root(entries, dimensions).unwrap() as u32);
        };
        let mut valid = BitWriter::default();
        valid.put(1, 8);
        write_codebook(&mut valid, 6561, 8);
        write_codebook(&mut valid, 4096, 1);
        assert_eq!(check_codebooks(&valid.headers()), Ok(()));
        let mut oversized = BitWriter::default();
        oversized.put(255, 8);
        (0..256).for_each(|_| write_codebook(&mut oversized, 1 << 17, 32));
        let error = check_codebooks(&oversized.headers()).unwrap_err();
        assert!(error.starts_with("codebooks of 262144 entries and 8388608 values"), "{error}");
        let headers = valid.headers();
        for length in 0..headers.len() {
            let outcome = check_codebooks(&headers[..length]);
            assert!(outcome.is_err(), "{length}");
        }
        let laced = [&[2, 30, 0][..], &headers].concat();
        assert_eq!(check_codebooks(&laced), Ok(()));
    }

    #[test]
    fn integer_roots_are_exact() {
        for (entries, dimensions, value) in
            [(125, 3, 5), (124, 3, 4), (6561, 8, 3), (1, 7, 1), (0, 2, 0), (9, 1, 9)]
        {
            assert_eq!(integer_root(entries, dimensions), Some(value), "{entries} {dimensions}");
        }
        assert_eq!(integer_root(5, 0), None);
    }
}
