//! `ModelFile`: the content of a SentencePiece `.model` file, a protocol buffer.
//!
//! The names of messages and fields are in `sentencepiece_model.proto` of SentencePiece. Fields
//! that change neither encoding nor decoding are skipped.

use std::collections::HashSet;

use super::protobuf::{Field, Fields, damaged};
use super::text_normalizer::NormalizerSettings;
use crate::{Error, Result};

/// The content of a model file.
pub(super) struct ModelFile {
    /// The pieces in the order of their ids.
    pub pieces: Vec<ModelPiece>,
    pub algorithm: Algorithm,
    /// Whether unknown characters are encoded as bytes.
    pub has_byte_fallback: bool,
    /// Text of the unknown piece in decoded texts.
    pub unknown_surface: String,
    pub normalizer: NormalizerSettings,
}

/// A piece of a vocabulary.
#[derive(Default)]
pub(super) struct ModelPiece {
    pub text: String,
    /// Log-probability (unigram) or priority of the merge (byte-pair encoding).
    pub score: f32,
    pub role: PieceRole,
}

/// The type of a piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PieceRole {
    #[default]
    Normal,
    Unknown,
    /// A mark such as `<s>`, which never occurs in a text.
    Control,
    /// A piece that is never split.
    UserDefined,
    /// A piece that is only an intermediate result of merges.
    Unused,
    Byte(u8),
}

/// How a text is split into pieces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Algorithm {
    #[default]
    Unigram,
    BytePairs,
    Characters,
}

/// Text of the unknown piece where a file does not give it.
const DEFAULT_UNKNOWN_SURFACE: &str = " \u{2047} ";

impl ModelFile {
    /// Parses and checks a file.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`] for a damaged file and for unsupported features, which are models
    /// of words, white space as a suffix, and denormalization rules.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut file = ModelFile {
            pieces: Vec::new(),
            algorithm: Algorithm::default(),
            has_byte_fallback: false,
            unknown_surface: DEFAULT_UNKNOWN_SURFACE.into(),
            normalizer: NormalizerSettings::default(),
        };
        for field in Fields::new(bytes) {
            let field = field?;
            match field.number {
                1 => file.pieces.push(parse_piece(&field, file.pieces.len())?),
                2 => file.parse_trainer_settings(field.bytes()?)?,
                3 => file.parse_normalizer_settings(field.bytes()?)?,
                5 => check_denormalizer(field.bytes()?)?,
                _ => {}
            }
        }
        file.check_pieces()?;
        Ok(file)
    }

    fn parse_trainer_settings(&mut self, bytes: &[u8]) -> Result<()> {
        for field in Fields::new(bytes) {
            let field = field?;
            match field.number {
                3 => {
                    self.algorithm = match field.integer()? {
                        1 => Algorithm::Unigram,
                        2 => Algorithm::BytePairs,
                        4 => Algorithm::Characters,
                        found => return Err(unsupported(format!("model type {found}"))),
                    }
                }
                24 if field.boolean()? => return Err(unsupported("white space as a suffix".into())),
                35 => self.has_byte_fallback = field.boolean()?,
                44 => self.unknown_surface = field.text()?.to_owned(),
                _ => {}
            }
        }
        Ok(())
    }

    fn parse_normalizer_settings(&mut self, bytes: &[u8]) -> Result<()> {
        for field in Fields::new(bytes) {
            let field = field?;
            match field.number {
                2 => self.normalizer.charsmap = field.bytes()?.to_vec(),
                3 => self.normalizer.adds_dummy_prefix = field.boolean()?,
                4 => self.normalizer.removes_extra_spaces = field.boolean()?,
                5 => self.normalizer.escapes_spaces = field.boolean()?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that texts are unique and that required pieces exist.
    fn check_pieces(&self) -> Result<()> {
        let mut unique_texts = HashSet::new();
        let (mut num_unknown, mut num_bytes) = (0, 0);
        for piece in &self.pieces {
            if !unique_texts.insert(&piece.text) {
                return Err(damaged("unique pieces", format!("{:?} twice", piece.text)));
            }
            num_unknown += usize::from(piece.role == PieceRole::Unknown);
            num_bytes += usize::from(matches!(piece.role, PieceRole::Byte(_)));
        }
        if num_unknown != 1 {
            return Err(damaged("one unknown piece", num_unknown.to_string()));
        }
        let expected_bytes = if self.has_byte_fallback { 256 } else { 0 };
        if num_bytes != expected_bytes {
            let expected = "256 byte pieces with byte fallback, otherwise none";
            return Err(damaged(expected, num_bytes.to_string()));
        }
        Ok(())
    }
}

fn parse_piece(field: &Field, id: usize) -> Result<ModelPiece> {
    let (mut piece, mut role_number) = (ModelPiece::default(), 1);
    for field in Fields::new(field.bytes()?) {
        let field = field?;
        match field.number {
            1 => piece.text = field.text()?.to_owned(),
            2 => piece.score = field.float()?,
            3 => role_number = field.integer()?,
            _ => {}
        }
    }
    if piece.text.is_empty() || !piece.score.is_finite() {
        let description = format!("{:?} with score {} as piece {id}", piece.text, piece.score);
        return Err(damaged("pieces with a text and a finite score", description));
    }
    piece.role = match role_number {
        1 => PieceRole::Normal,
        2 => PieceRole::Unknown,
        3 => PieceRole::Control,
        4 => PieceRole::UserDefined,
        5 => PieceRole::Unused,
        6 => {
            let byte = (0..=255).find(|byte| format!("<0x{byte:02X}>") == piece.text);
            let name_error = || damaged("byte pieces from `<0x00>` to `<0xFF>`", format!("{:?}", piece.text));
            PieceRole::Byte(byte.ok_or_else(name_error)?)
        }
        found => return Err(damaged("types of pieces from 1 to 6", found.to_string())),
    };
    Ok(piece)
}

fn check_denormalizer(bytes: &[u8]) -> Result<()> {
    for field in Fields::new(bytes) {
        let field = field?;
        if field.number == 2 && !field.bytes()?.is_empty() {
            return Err(unsupported("denormalization rules".into()));
        }
    }
    Ok(())
}

fn unsupported(found: String) -> Error {
    let expected = "a SentencePiece model of type unigram, bpe or char, with white space as a prefix and \
                    without denormalization";
    damaged(expected, found)
}
