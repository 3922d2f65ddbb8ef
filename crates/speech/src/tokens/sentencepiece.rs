//! `SentencePiece`: a tokenizer of the program SentencePiece, read from its `.model` file.
//!
//! ```text
//! encode: text -> normalized text -> best pieces (unigram) or merged pieces (BPE) -> ids
//! decode: ids -> pieces and bytes -> text, with spaces for U+2581
//! ```
//! Ids and texts are those of SentencePiece 0.2 (Kudo and Richardson 2018), including unknown
//! characters, which are one id per run, or bytes.

mod best_pieces;
mod charsmap;
mod merges;
mod model_file;
mod piece_index;
mod protobuf;
mod text_normalizer;

use super::WORD_MARK;
use super::special::is_angle_bracketed;
use crate::Result;
pub(super) use charsmap::Charsmap;
use model_file::{Algorithm, ModelFile, ModelPiece, PieceRole};
use piece_index::PieceIndex;
use text_normalizer::TextNormalizer;

/// A tokenizer of SentencePiece.
pub(super) struct SentencePiece {
    pieces: Vec<ModelPiece>,
    /// Pieces that texts contain: normal, user-defined and unused ones.
    ordinary: PieceIndex,
    /// All other pieces: unknown, control and byte pieces.
    reserved: PieceIndex,
    normalizer: TextNormalizer,
    algorithm: Algorithm,
    /// Id of the unknown piece.
    unknown: u32,
    unknown_surface: String,
    /// Ids of the byte pieces, if unknown characters are encoded as bytes.
    byte_ids: Option<Vec<u32>>,
    /// Lowest and highest score of a normal piece.
    lowest_score: f32,
    highest_score: f32,
}

/// A part of a normalized text and the id of its piece.
type Segment<'a> = (&'a str, u32);

impl SentencePiece {
    /// Reads a model file.
    ///
    /// # Errors
    /// [`Error::TokenizerFile`](crate::Error::TokenizerFile) for a damaged file or an unsupported
    /// feature.
    pub(super) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let ModelFile { pieces, algorithm, has_byte_fallback, unknown_surface, normalizer } =
            ModelFile::parse(bytes)?;
        let index = |is_included: &dyn Fn(PieceRole) -> bool| {
            let pieces = pieces.iter().zip(0..).filter(|(piece, _)| is_included(piece.role));
            PieceIndex::new(pieces.map(|(piece, id)| (piece.text.as_str(), id)))
        };
        let is_ordinary =
            |role| matches!(role, PieceRole::Normal | PieceRole::UserDefined | PieceRole::Unused);
        let normalizer = TextNormalizer::new(normalizer, index(&|role| role == PieceRole::UserDefined))?;
        let (ordinary, reserved) = (index(&is_ordinary), index(&|role| !is_ordinary(role)));
        let unknown = pieces.iter().position(|piece| piece.role == PieceRole::Unknown).unwrap_or(0) as u32;
        let byte_ids = has_byte_fallback.then(|| {
            let mut ids = vec![unknown; 256];
            for (piece, id) in pieces.iter().zip(0..) {
                if let PieceRole::Byte(byte) = piece.role {
                    ids[usize::from(byte)] = id;
                }
            }
            ids
        });
        let normal_scores =
            || pieces.iter().filter(|piece| piece.role == PieceRole::Normal).map(|piece| piece.score);
        // The initial values are those of SentencePiece.
        let lowest_score = normal_scores().fold(f32::MAX, f32::min);
        let highest_score = normal_scores().fold(f32::MIN_POSITIVE, f32::max);
        Ok(Self {
            pieces,
            ordinary,
            reserved,
            normalizer,
            algorithm,
            unknown,
            unknown_surface,
            byte_ids,
            lowest_score,
            highest_score,
        })
    }

    /// Returns the texts of the pieces in the order of their ids.
    pub(super) fn tokens(&self) -> Vec<String> {
        self.pieces.iter().map(|piece| piece.text.clone()).collect()
    }

    /// Encodes a text.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let normalized = self.normalizer.normalize(text);
        let segments = match self.algorithm {
            Algorithm::Unigram => self.best_pieces(&normalized),
            Algorithm::BytePairs | Algorithm::Characters => self.merge_pieces(&normalized),
        };
        let (mut ids, mut is_after_unknown) = (Vec::with_capacity(segments.len()), false);
        for (text, id) in segments {
            let is_unknown = id == self.unknown;
            match &self.byte_ids {
                Some(byte_ids) if is_unknown => {
                    ids.extend(text.bytes().map(|byte| byte_ids[usize::from(byte)]))
                }
                _ if is_unknown && is_after_unknown => {}
                _ => ids.push(id),
            }
            is_after_unknown = is_unknown;
        }
        ids
    }

    /// Decodes ids, which must be valid.
    ///
    /// U+2581 becomes a space, except at the begin of the text: there, the added one is omitted, or
    /// all of them if the normalizer removes extra spaces. Bytes outside of UTF-8 become U+FFFD.
    pub(super) fn decode(&self, ids: &[u32]) -> String {
        let (mut text, mut bytes) = (String::new(), Vec::new());
        let TextNormalizer { adds_dummy_prefix, removes_extra_spaces, .. } = self.normalizer;
        let mut omits_space = adds_dummy_prefix || removes_extra_spaces;
        for &id in ids {
            let piece = &self.pieces[id as usize];
            if let PieceRole::Byte(byte) = piece.role {
                bytes.push(byte);
                continue;
            }
            append_bytes(&mut bytes, &mut text);
            omits_space &= text.is_empty();
            match piece.role {
                PieceRole::Control => {}
                PieceRole::Unknown => text += &self.unknown_surface,
                _ => {
                    let unmarked = piece.text.strip_prefix(WORD_MARK).filter(|_| omits_space);
                    omits_space &= unmarked.is_none() || removes_extra_spaces;
                    let surface = unmarked.unwrap_or(&piece.text).chars();
                    text.extend(surface.map(|c| if c == WORD_MARK { ' ' } else { c }));
                }
            }
        }
        append_bytes(&mut bytes, &mut text);
        text
    }

    /// Normalizes a text for scoring.
    pub(super) fn normalize(&self, text: &str) -> String {
        self.normalizer.normalize_for_scoring(text)
    }

    /// Returns the user-defined pieces of the form `<...>`, with their ids.
    pub(super) fn special_words(&self) -> impl Iterator<Item = (&str, u32)> {
        let pieces = self.pieces.iter().zip(0..);
        let is_special =
            |piece: &ModelPiece| piece.role == PieceRole::UserDefined && is_angle_bracketed(&piece.text);
        pieces.filter(move |(piece, _)| is_special(piece)).map(|(piece, id)| (piece.text.as_str(), id))
    }

    /// Returns whether an id is not part of ordinary texts: unknown, control or special.
    pub(super) fn is_special(&self, id: u32) -> bool {
        self.pieces.get(id as usize).is_some_and(|piece| match piece.role {
            PieceRole::Unknown | PieceRole::Control => true,
            PieceRole::UserDefined => is_angle_bracketed(&piece.text),
            PieceRole::Normal | PieceRole::Unused | PieceRole::Byte(_) => false,
        })
    }

    /// Returns the unknown piece in decoded texts, without spaces.
    pub(super) fn unknown_word(&self) -> &str {
        self.unknown_surface.trim()
    }

    /// Returns the id of a piece, or that of the unknown piece.
    fn piece_id(&self, piece: &str) -> u32 {
        self.reserved.id(piece).or_else(|| self.ordinary.id(piece)).unwrap_or(self.unknown)
    }
}

/// Appends bytes as UTF-8 and clears them; each invalid byte becomes U+FFFD.
fn append_bytes(bytes: &mut Vec<u8>, text: &mut String) {
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let num_valid = std::str::from_utf8(rest).map_or_else(|error| error.valid_up_to(), str::len);
        let (valid, invalid) = rest.split_at(num_valid);
        text.push_str(std::str::from_utf8(valid).unwrap_or_default());
        rest = match invalid {
            [] => invalid,
            [_, rest @ ..] => {
                text.push(char::REPLACEMENT_CHARACTER);
                rest
            }
        };
    }
    bytes.clear();
}
