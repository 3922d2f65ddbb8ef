//! First step of unigram training: collects all repeated strings of the text.

use std::collections::{HashMap, HashSet};

use super::Piece;
use super::segmentation::{MAX_PIECE_CHARACTERS, SegmentLattice};

/// Largest number of initial pieces, as in SentencePiece.
const MAX_SEEDS: usize = 1_000_000;

/// Initial pieces and segmentation lattices.
pub(super) struct Seeds<'a> {
    /// Pieces with initial log-probabilities.
    ///
    /// First the characters, sorted, then other strings by decreasing count × length.
    pub pieces: Vec<Piece<'a>>,
    /// The lattice of each word.
    pub lattices: Vec<SegmentLattice>,
}

/// Finds all characters, and repeated strings of up to 16 characters.
///
/// A string that is always continued by the same character is omitted. A string can be repeated
/// only if its prefix is, so longer strings are counted only where shorter ones are repeated.
pub(super) fn find<'a>(words: &[(&'a str, u64)]) -> Seeds<'a> {
    // Offset of each character of a word, and of its end.
    let offsets: Vec<Vec<usize>> = words
        .iter()
        .map(|(word, _)| word.char_indices().map(|(offset, _)| offset).chain([word.len()]).collect())
        .collect();
    let string = |word: usize, start: usize, length: usize| {
        let end = *offsets[word].get(start + length)?;
        Some(&words[word].0[offsets[word][start]..end])
    };
    // Word and first character of the strings that may be repeated.
    let mut starts: Vec<(usize, usize)> = (0..words.len())
        .flat_map(|word| (0..offsets[word].len() - 1).map(move |start| (word, start)))
        .collect();
    // Counts of the strings that are one character shorter.
    let mut shorter_counts: HashMap<&str, u64> = HashMap::new();
    // Characters and longer strings with their weights: count × length.
    let (mut characters, mut strings) = (Vec::new(), Vec::new());
    for length in 1..=MAX_PIECE_CHARACTERS + 1 {
        // Counts the strings of this length, from repeated starts only.
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for &(word, start) in &starts {
            if let Some(string) = string(word, start, length) {
                *counts.entry(string).or_default() += words[word].1;
            }
        }
        counts.retain(|_, count| length == 1 || *count > 1);
        // Collects the shorter strings, except those that one character always continues.
        let prefix =
            |string: &'a str| &string[..string.char_indices().next_back().map_or(0, |(offset, _)| offset)];
        let always_continued: HashSet<&str> = counts
            .iter()
            .map(|(string, count)| (prefix(string), count))
            .filter(|(prefix, count)| shorter_counts.get(prefix) == Some(count))
            .map(|(prefix, _)| prefix)
            .collect();
        let pieces =
            shorter_counts.iter().filter(|(string, _)| length == 2 || !always_continued.contains(*string));
        match length {
            1 => {}
            2 => characters.extend(pieces.map(|(&string, &count)| (count as f64, string))),
            _ => strings.extend(pieces.map(|(&string, &count)| (count as f64 * (length - 1) as f64, string))),
        }
        starts.retain(|&(word, start)| string(word, start, length).is_some_and(|s| counts.contains_key(s)));
        shorter_counts = counts;
    }
    // Sorts the pieces; a score is the logarithm of the relative weight.
    characters.sort_unstable_by_key(|&(_, text)| text);
    strings.sort_unstable_by(|(weight_a, text_a), (weight_b, text_b)| {
        weight_b.total_cmp(weight_a).then_with(|| text_a.cmp(text_b))
    });
    strings.truncate(MAX_SEEDS);
    let sum: f64 = characters.iter().chain(&strings).map(|(weight, _)| weight).sum();
    let piece = |(weight, text): (f64, &'a str)| Piece { text, score: (weight / sum).ln() };
    let pieces: Vec<Piece> = characters.into_iter().chain(strings).map(piece).collect();
    let ids = pieces.iter().enumerate().map(|(id, piece)| (piece.text, id)).collect();
    let lattices = words.iter().map(|(word, _)| SegmentLattice::new(word, &ids)).collect();
    Seeds { pieces, lattices }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_strings_with_different_continuations_are_found() {
        let Seeds { pieces, lattices } = find(&[("banana", 1), ("band", 3), ("one", 1)]);
        let texts: Vec<&str> = pieces.iter().map(|piece| piece.text).collect();
        assert_eq!(texts[..6], ["a", "b", "d", "e", "n", "o"]);
        // "ba" and "nd" are repeated, but "ba" is always followed by "n"; "ana" and "na" are
        // repeated in one word.
        let mut strings = texts[6..].to_vec();
        strings.sort_unstable();
        assert_eq!(strings, ["an", "ana", "and", "ban", "band", "na", "nd"]);
        assert_eq!(lattices.len(), 3);
        // "ban" 4 times 3, "an" 5 times 2; each of six characters once, "band" 3 times 4.
        assert_eq!(pieces[6].text, "ban");
        assert!(pieces.iter().all(|piece| piece.score < 0.0));
    }
}
