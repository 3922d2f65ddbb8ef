//! Test helper: writes model files of SentencePiece.
//!
//! Any test program can include this file with `#[path]`.

#![allow(dead_code)] // Each test program uses a part.

/// Types of pieces in a model file.
pub(crate) const NORMAL: u64 = 1;
pub(crate) const UNKNOWN: u64 = 2;
pub(crate) const CONTROL: u64 = 3;
pub(crate) const USER_DEFINED: u64 = 4;
pub(crate) const UNUSED: u64 = 5;
pub(crate) const BYTE: u64 = 6;

/// Types of models.
pub(crate) const UNIGRAM: u64 = 1;
pub(crate) const BPE: u64 = 2;
pub(crate) const CHAR: u64 = 4;

/// The content of a model file, with the defaults of SentencePiece's trainer.
#[derive(Clone)]
pub(crate) struct ModelBytes {
    pub pieces: Vec<(String, f32, u64)>,
    pub algorithm: u64,
    pub byte_fallback: bool,
    pub charsmap: Vec<u8>,
    pub adds_dummy_prefix: bool,
    pub removes_extra_spaces: bool,
    /// More fields of the trainer's settings.
    pub trainer_fields: Vec<u8>,
}

impl ModelBytes {
    /// A model of `<unk>` and these pieces.
    pub(crate) fn new(algorithm: u64, pieces: &[(&str, f32, u64)]) -> Self {
        let pieces = [("<unk>", 0.0, UNKNOWN)].iter().chain(pieces);
        Self {
            pieces: pieces.map(|&(piece, score, role)| (piece.to_owned(), score, role)).collect(),
            algorithm,
            byte_fallback: false,
            charsmap: Vec::new(),
            adds_dummy_prefix: true,
            removes_extra_spaces: true,
            trainer_fields: Vec::new(),
        }
    }

    /// Adds byte pieces.
    pub(crate) fn with_bytes(mut self) -> Self {
        self.byte_fallback = true;
        self.pieces.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), 0.0, BYTE)));
        self
    }

    /// Returns the bytes of the file.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut file = Vec::new();
        for (piece, score, role) in &self.pieces {
            let mut message = bytes_field(1, piece.as_bytes());
            message.extend([&[2 << 3 | 5][..], &score.to_le_bytes()].concat());
            message.extend(integer_field(3, *role));
            file.extend(bytes_field(1, &message));
        }
        let mut trainer = integer_field(3, self.algorithm);
        trainer.extend(integer_field(35, u64::from(self.byte_fallback)));
        trainer.extend(&self.trainer_fields);
        file.extend(bytes_field(2, &trainer));
        let mut normalizer = bytes_field(1, b"test");
        normalizer.extend(bytes_field(2, &self.charsmap));
        normalizer.extend(integer_field(3, u64::from(self.adds_dummy_prefix)));
        normalizer.extend(integer_field(4, u64::from(self.removes_extra_spaces)));
        file.extend(bytes_field(3, &normalizer));
        file
    }
}

pub(crate) fn integer_field(number: u64, value: u64) -> Vec<u8> {
    [varint(number << 3), varint(value)].concat()
}

pub(crate) fn bytes_field(number: u64, bytes: &[u8]) -> Vec<u8> {
    [&varint(number << 3 | 2), &varint(bytes.len() as u64), bytes].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
