//! Splits a text into the best pieces of a unigram model.

use super::model_file::PieceRole;
use super::{Segment, SentencePiece};

/// Penalty of an unknown character, below the lowest score of a piece.
const UNKNOWN_PENALTY: f32 = 10.0;
/// Subtracted from the score of a user-defined piece.
///
/// The score is its length times the highest score of a normal piece.
const USER_DEFINED_PENALTY: f64 = 0.1;

/// The best path to a position of a text.
#[derive(Clone, Copy)]
struct BestPath {
    score: f32,
    /// Begin and id of its last piece.
    last: Option<(usize, u32)>,
}

impl SentencePiece {
    /// Returns the best segmentation of a normalized text (Viterbi 1967).
    ///
    /// A character that is not a piece is unknown. Scores are f32, as in SentencePiece, and of
    /// equally good segmentations up to a position the one with the longest last piece is chosen.
    ///
    /// Cost: O(n · longest piece) time, O(n) memory.
    pub(super) fn best_pieces<'a>(&self, text: &'a str) -> Vec<Segment<'a>> {
        let unknown_score = f64::from(self.lowest_score - UNKNOWN_PENALTY);
        let mut best = vec![BestPath { score: 0.0, last: None }; text.len() + 1];
        for (begin, first) in text.char_indices() {
            let score_before = f64::from(best[begin].score);
            let mut extend = |length: usize, id: u32, score: f64| {
                let (path, candidate) = (&mut best[begin + length], score + score_before);
                if path.last.is_none() || candidate > f64::from(path.score) {
                    *path = BestPath { score: candidate as f32, last: Some((begin, id)) };
                }
            };
            let mut is_known = false;
            for (length, id) in self.ordinary.prefixes(&text[begin..]) {
                let piece = &self.pieces[id as usize];
                match piece.role {
                    PieceRole::Unused => continue,
                    PieceRole::UserDefined => {
                        let score = f64::from(length as f32 * self.highest_score);
                        extend(length, id, score - USER_DEFINED_PENALTY);
                    }
                    _ => extend(length, id, f64::from(piece.score)),
                }
                is_known |= length == first.len_utf8();
            }
            if !is_known {
                extend(first.len_utf8(), self.unknown, unknown_score);
            }
        }
        // Follows the best path back from the end.
        let mut segments = Vec::new();
        let mut end = text.len();
        while let Some((begin, id)) = best[end].last {
            segments.push((&text[begin..end], id));
            end = begin;
        }
        segments.reverse();
        segments
    }
}
