//! The strings that a vocabulary of pieces begins with: all that return in the text.

use std::collections::{HashMap, HashSet};

use super::segmentation::SegmentLattice;

/// Characters of the longest piece, as in SentencePiece.
pub(super) const MAX_PIECE_CHARACTERS: usize = 16;
/// Most pieces to begin with, as in SentencePiece.
const MOST: usize = 1_000_000;

pub(super) struct Seeds<'a> {
    /// Each with its first log-probability: the characters, sorted, then other strings by falling count × length.
    pub pieces: Vec<(&'a str, f64)>,
    /// Of each word.
    pub cuts: Vec<SegmentLattice>,
}

/// All characters of the words, and all strings of up to 16 of them that occur at least twice; but for those that the same longer
/// string continues everywhere.
///
/// A string can only return if its beginning does, so longer ones are counted where shorter ones returned.
pub(super) fn find<'a>(words: &[(&'a str, u64)]) -> Seeds<'a> {
    // Where each character of a word begins, and where the last one ends.
    let places: Vec<Vec<usize>> = words
        .iter()
        .map(|(word, _)| word.char_indices().map(|(at, _)| at).chain([word.len()]).collect())
        .collect();
    let string = |word: usize, start: usize, length: usize| {
        let end = *places[word].get(start + length)?;
        Some(&words[word].0[places[word][start]..end])
    };
    let mut begun: Vec<(usize, usize)> = (0..words.len())
        .flat_map(|word| (0..places[word].len() - 1).map(move |start| (word, start)))
        .collect();
    let mut shorter: HashMap<&str, u64> = HashMap::new();
    let (mut characters, mut strings) = (Vec::new(), Vec::new());
    for length in 1..=MAX_PIECE_CHARACTERS + 1 {
        let mut counts: HashMap<&str, u64> = HashMap::new();
        for &(word, start) in &begun {
            if let Some(string) = string(word, start, length) {
                *counts.entry(string).or_default() += words[word].1;
            }
        }
        counts.retain(|_, count| length == 1 || *count > 1);
        let before = |string: &'a str| &string[..string.char_indices().next_back().map_or(0, |(at, _)| at)];
        let continued: HashSet<&str> = counts
            .iter()
            .map(|(string, count)| (before(string), count))
            .filter(|(before, count)| shorter.get(before) == Some(count))
            .map(|(before, _)| before)
            .collect();
        let whole = shorter.iter().filter(|(string, _)| length == 2 || !continued.contains(*string));
        match length {
            1 => {}
            2 => characters.extend(whole.map(|(&string, &count)| (count as f64, string))),
            _ => strings.extend(whole.map(|(&string, &count)| (count as f64 * (length - 1) as f64, string))),
        }
        begun.retain(|&(word, start)| string(word, start, length).is_some_and(|s| counts.contains_key(s)));
        shorter = counts;
    }
    characters.sort_unstable_by(|a, b| a.1.cmp(b.1));
    strings.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    strings.truncate(MOST);
    let sum: f64 = characters.iter().chain(&strings).map(|(weight, _)| weight).sum();
    let pieces: Vec<(&str, f64)> =
        characters.into_iter().chain(strings).map(|(weight, string)| (string, (weight / sum).ln())).collect();
    let ids = pieces.iter().enumerate().map(|(id, piece)| (piece.0, id)).collect();
    let cuts = words.iter().map(|(word, _)| SegmentLattice::new(word, &ids)).collect();
    Seeds { pieces, cuts }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_return_and_end_in_different_ways() {
        let Seeds { pieces, cuts } = find(&[("banana", 1), ("band", 3), ("one", 1)]);
        let names: Vec<&str> = pieces.iter().map(|piece| piece.0).collect();
        assert_eq!(names[..6], ["a", "b", "d", "e", "n", "o"]);
        // "ba" and "nd" return, but "ba" is followed by "n" everywhere; "ana" and "na" return in one word.
        let mut strings = names[6..].to_vec();
        strings.sort_unstable();
        assert_eq!(strings, ["an", "ana", "and", "ban", "band", "na", "nd"]);
        assert_eq!(cuts.len(), 3);
        // "ban" 4 times 3, "an" 5 times 2; each of six characters once, "band" 3 times 4.
        assert_eq!(pieces[6].0, "ban");
        assert!(pieces.iter().all(|piece| piece.1 < 0.0));
    }
}
