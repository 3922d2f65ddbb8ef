//! The setup header of Vorbis: what its codebooks would take, before a decoder allocates it (Vorbis I, section 3.2.1).
//!
//! ```text
//! 5 "vorbis" codebooks - 1 (8 bits), each: 0x564342 (24) dimensions (16) entries (24) lengths of the codewords, lookup table
//! ```
//! Few bits can declare many entries: a list of lengths in order, a lookup table as a product.

/// Values of all lookup tables, and entries of all codebooks, at most; encoders have a tenth of them.
const MAX_VALUES: u64 = 1 << 22;
const MAX_ENTRIES: u64 = 1 << 19;
const SYNC: u32 = 0x56_43_42;
const IDENTIFICATION_BYTES: usize = 30;
/// First byte of headers that are packed with their lengths.
const LACED: u8 = 2;

/// Checks the size of the codebooks of the headers; what is found if they are too large or not well-formed.
pub(super) fn check_codebooks(headers: &[u8]) -> Result<(), String> {
    let broken = || "a setup header without its codebooks".to_owned();
    let setup = setup_header(headers).and_then(|setup| setup.strip_prefix(b"\x05vorbis"));
    let mut bits = Bits { bytes: setup.ok_or_else(broken)?, at: 0 };
    let (mut values, mut entries) = (0, 0);
    for _ in 0..bits.take(8).ok_or_else(broken)? + 1 {
        if bits.take(24).ok_or_else(broken)? != SYNC {
            return Err(broken());
        }
        let dimensions = u64::from(bits.take(16).ok_or_else(broken)?);
        let count = u64::from(bits.take(24).ok_or_else(broken)?);
        entries += count;
        values += count * dimensions;
        if values > MAX_VALUES || entries > MAX_ENTRIES {
            return Err(format!("codebooks of {entries} entries and {values} values or more"));
        }
        pass_lengths(&mut bits, count).ok_or_else(broken)?;
        pass_lookup(&mut bits, count, dimensions).ok_or_else(broken)?;
    }
    Ok(())
}

/// The third header: behind the first, or behind two whose lengths are given.
fn setup_header(headers: &[u8]) -> Option<&[u8]> {
    let Some((&LACED, mut rest)) = headers.split_first() else {
        return headers.get(IDENTIFICATION_BYTES..);
    };
    let mut before = 0;
    for _ in 0..2 {
        loop {
            let (&length, after) = rest.split_first()?;
            (before, rest) = (before + usize::from(length), after);
            if length < 255 {
                break;
            }
        }
    }
    rest.get(before..)
}

/// The lengths of the codewords.
fn pass_lengths(bits: &mut Bits, entries: u64) -> Option<()> {
    let is_ordered = bits.take(1)? == 1;
    if is_ordered {
        bits.skip(5)?;
        let mut passed = 0;
        while passed < entries {
            let width = u64::BITS - (entries - passed).leading_zeros();
            passed += u64::from(bits.take(width)?);
        }
        return (passed == entries).then_some(());
    }
    let is_sparse = bits.take(1)? == 1;
    if !is_sparse {
        return bits.skip(5 * entries);
    }
    for _ in 0..entries {
        if bits.take(1)? == 1 {
            bits.skip(5)?;
        }
    }
    Some(())
}

/// The lookup table.
fn pass_lookup(bits: &mut Bits, entries: u64, dimensions: u64) -> Option<()> {
    let count = match bits.take(4)? {
        0 => return Some(()),
        1 => root(entries, dimensions)?,
        2 => entries * dimensions,
        _ => return None,
    };
    bits.skip(64)?;
    let width = u64::from(bits.take(4)?) + 1;
    bits.skip(1)?;
    bits.skip(count * width)
}

/// The greatest number whose power of so many dimensions is at most `entries`.
fn root(entries: u64, dimensions: u64) -> Option<u64> {
    let dimensions = u32::try_from(dimensions).ok().filter(|&n| n > 0)?;
    let is_at_most = |n: u64| n.checked_pow(dimensions).is_some_and(|power| power <= entries);
    // Entries have 24 bits: one dimension has the most.
    if dimensions == 1 {
        return Some(entries);
    }
    Some((1..=1 << 12).take_while(|&n| is_at_most(n)).last().unwrap_or(0))
}

/// Bits, the lowest of each byte first.
struct Bits<'a> {
    bytes: &'a [u8],
    at: u64,
}

impl Bits<'_> {
    /// The next number of up to 32 bits.
    fn take(&mut self, count: u32) -> Option<u32> {
        let start = self.at;
        self.skip(u64::from(count))?;
        let bit = |at: u64| u32::from(self.bytes[(at / 8) as usize] >> (at % 8)) & 1;
        Some((0..count).fold(0, |n, i| n | bit(start + u64::from(i)) << i))
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.at = self.at.checked_add(count).filter(|&at| at <= 8 * self.bytes.len() as u64)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Writer(Vec<bool>);

    impl Writer {
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
    fn codebooks_are_counted_before_they_are_made() {
        // One with lengths in order, of which all are equal, and a product of tables: some 20 bytes.
        let book = |bits: &mut Writer, entries: u64, dimensions: u64| {
            bits.put(u64::from(SYNC), 24).put(dimensions, 16).put(entries, 24).put(1, 1).put(16, 5);
            bits.put(entries, u64::BITS - entries.leading_zeros());
            bits.put(1, 4).put(0, 64).put(3, 4).put(0, 1);
            bits.put(0, 4 * root(entries, dimensions).unwrap() as u32);
        };
        let mut two = Writer::default();
        two.put(1, 8);
        book(&mut two, 6561, 8);
        book(&mut two, 4096, 1);
        assert_eq!(check_codebooks(&two.headers()), Ok(()));
        let mut many = Writer::default();
        many.put(255, 8);
        (0..256).for_each(|_| book(&mut many, 1 << 17, 32));
        let found = check_codebooks(&many.headers()).unwrap_err();
        assert!(found.starts_with("codebooks of 262144 entries and 8388608 values"), "{found}");
        let headers = two.headers();
        for length in 0..headers.len() {
            let outcome = check_codebooks(&headers[..length]);
            assert!(outcome.is_err(), "{length}");
        }
        let laced = [&[2, 30, 0][..], &headers].concat();
        assert_eq!(check_codebooks(&laced), Ok(()));
    }

    #[test]
    fn roots_are_exact() {
        for (entries, dimensions, value) in
            [(125, 3, 5), (124, 3, 4), (6561, 8, 3), (1, 7, 1), (0, 2, 0), (9, 1, 9)]
        {
            assert_eq!(root(entries, dimensions), Some(value), "{entries} {dimensions}");
        }
        assert_eq!(root(5, 0), None);
    }
}
