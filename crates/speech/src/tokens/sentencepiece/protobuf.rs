//! `Fields`: reads the fields of a protocol buffer message.
//!
//! Format: <https://protobuf.dev/programming-guides/encoding/>. Nothing is allocated, so that the
//! memory of a parser is bounded by what it stores.

use crate::{Error, Result};

/// Iterator over the fields of a message; it ends after an error.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

/// A field of a message.
pub(super) struct Field<'a> {
    pub number: u64,
    value: FieldValue<'a>,
}

enum FieldValue<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Fields { rest: message }
    }

    fn next_field(&mut self) -> Option<Field<'a>> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => FieldValue::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                FieldValue::Fixed64
            }
            2 => {
                let length = self.varint()?;
                FieldValue::Bytes(self.take(usize::try_from(length).ok()?)?)
            }
            5 => FieldValue::Fixed32(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        (tag >> 3 != 0).then_some(Field { number: tag >> 3, value })
    }

    /// Reads an integer of 7 bits per byte, the lowest first.
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let num_bytes = self.rest.len();
        let field = self.next_field();
        if field.is_none() {
            self.rest = &[];
        }
        let error = || {
            let description = format!("another one in the last {num_bytes} bytes of a message");
            damaged("complete fields of a protocol buffer", description)
        };
        Some(field.ok_or_else(error))
    }
}

impl<'a> Field<'a> {
    pub(super) fn integer(&self) -> Result<u64> {
        match self.value {
            FieldValue::Varint(value) => Ok(value),
            _ => Err(self.type_error("an integer")),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool> {
        Ok(self.integer()? != 0)
    }

    pub(super) fn float(&self) -> Result<f32> {
        match self.value {
            FieldValue::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            _ => Err(self.type_error("a float")),
        }
    }

    pub(super) fn bytes(&self) -> Result<&'a [u8]> {
        match self.value {
            FieldValue::Bytes(bytes) => Ok(bytes),
            _ => Err(self.type_error("bytes")),
        }
    }

    pub(super) fn text(&self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| self.type_error("UTF-8"))
    }

    fn type_error(&self, expected: &str) -> Error {
        let value = match self.value {
            FieldValue::Varint(value) => format!("integer {value}"),
            FieldValue::Fixed32(_) => "a number of 32 bits".into(),
            FieldValue::Fixed64 => "a number of 64 bits".into(),
            FieldValue::Bytes(bytes) => format!("{} bytes", bytes.len()),
        };
        damaged("a SentencePiece model", format!("field {}: {value} instead of {expected}", self.number))
    }
}

/// Returns the error of a damaged model file.
pub(super) fn damaged(expected: &'static str, found: String) -> Error {
    Error::TokenizerFile { expected, found }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Result<Vec<(u64, String)>> {
        let describe = |field: Result<Field>| {
            let field = field?;
            let value = match field.value {
                FieldValue::Varint(value) => value.to_string(),
                FieldValue::Fixed32(bytes) => format!("{}", f32::from_le_bytes(bytes)),
                FieldValue::Fixed64 => "64 bits".into(),
                FieldValue::Bytes(bytes) => format!("{bytes:?}"),
            };
            Ok((field.number, value))
        };
        Fields::new(bytes).map(describe).collect()
    }

    #[test]
    fn fields_of_all_types_are_read() {
        // 1: 300, 2: [7, 8], 3: 1.5 in 32 bits, 4: 64 bits, 16: u64::MAX.
        let mut bytes = vec![0x08, 0xac, 0x02, 0x12, 2, 7, 8, 0x1d, 0, 0, 0xc0, 0x3f];
        bytes.extend([0x21, 1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0x01]);
        bytes.extend([0xff; 9]);
        bytes.push(1);
        let expected = [(1, "300"), (2, "[7, 8]"), (3, "1.5"), (4, "64 bits"), (16, "18446744073709551615")];
        assert_eq!(parse(&bytes).unwrap(), expected.map(|(number, value)| (number, value.to_owned())));
        // Every cut within a field is an error.
        let ends = [0, 3, 7, 12, 21, bytes.len()];
        for end in 0..=bytes.len() {
            assert_eq!(parse(&bytes[..end]).is_ok(), ends.contains(&end), "{end}");
        }
    }

    #[test]
    fn damaged_fields_are_errors() {
        let too_long = [[0x08].as_slice(), &[0xff; 10], &[1]].concat();
        for bytes in
            [&[0x00, 1][..], &[0x0b], &[0x0c], &[0x0e], &[0x12, 0xff, 0xff, 0xff, 0xff, 0x7f], &too_long]
        {
            assert!(matches!(parse(bytes), Err(Error::TokenizerFile { .. })), "{bytes:?}");
        }
    }
}
