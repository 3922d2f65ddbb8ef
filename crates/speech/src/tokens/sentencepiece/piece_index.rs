//! `PieceIndex`: finds the pieces that a text begins with.

/// Pieces and their ids, sorted by bytes.
pub(super) struct PieceIndex {
    pieces: Vec<(Box<str>, u32)>,
}

impl PieceIndex {
    pub(super) fn new<'a>(pieces: impl Iterator<Item = (&'a str, u32)>) -> Self {
        let mut pieces: Vec<(Box<str>, u32)> = pieces.map(|(piece, id)| (piece.into(), id)).collect();
        pieces.sort_unstable();
        PieceIndex { pieces }
    }

    /// Returns the id of a piece.
    pub(super) fn id(&self, piece: &str) -> Option<u32> {
        let index = self.pieces.binary_search_by(|(other, _)| (**other).cmp(piece)).ok()?;
        Some(self.pieces[index].1)
    }

    /// Returns the pieces that a text begins with: lengths and ids, shortest first.
    ///
    /// Cost: O(length of the longest piece · log pieces) time.
    pub(super) fn prefixes(&self, text: &str) -> impl Iterator<Item = (usize, u32)> {
        // All candidates begin with the first `i` bytes of the text.
        let mut candidates = &self.pieces[..];
        text.bytes()
            .enumerate()
            .map_while(move |(i, byte)| {
                let byte_at = |piece: &(Box<str>, u32)| piece.0.as_bytes().get(i).copied();
                let start = candidates.partition_point(|piece| byte_at(piece) < Some(byte));
                let end = candidates.partition_point(|piece| byte_at(piece) <= Some(byte));
                candidates = &candidates[start..end];
                let (shortest, id) = candidates.first()?;
                Some((shortest.len() == i + 1).then_some((i + 1, *id)))
            })
            .flatten()
    }

    /// Returns the length of the longest piece that a text begins with.
    pub(super) fn longest_prefix(&self, text: &str) -> Option<usize> {
        self.prefixes(text).last().map(|(length, _)| length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn prefixes_are_those_of_a_linear_search(
            pieces in prop::collection::btree_set("[abé▁]{1,4}", 0..12), text in "[abé▁]{0,8}",
        ) {
            let index = PieceIndex::new(pieces.iter().map(String::as_str).zip(0..));
            let mut expected: Vec<(usize, u32)> =
                pieces.iter().zip(0..).filter(|(piece, _)| text.starts_with(&**piece)).map(|(piece, id)| (piece.len(), id)).collect();
            expected.sort_unstable();
            prop_assert_eq!(index.prefixes(&text).collect::<Vec<_>>(), expected.clone());
            prop_assert_eq!(index.longest_prefix(&text), expected.last().map(|(length, _)| *length));
            let id = pieces.iter().position(|piece| *piece == text).map(|id| id as u32);
            prop_assert_eq!(index.id(&text), id);
        }
    }
}
