//! `SegmentLattice`: all segmentations of a word into subword pieces (unigram model).
//!
//! The nodes are the positions before, between and after the characters; an arc is a piece.
//! Training needs expected counts (forward-backward) and the best segmentation (Viterbi).

use std::collections::HashMap;

/// Characters of the longest piece, as in SentencePiece.
pub(super) const MAX_PIECE_CHARACTERS: usize = 16;

/// A piece between two positions.
#[derive(Clone, Copy)]
struct SegmentArc {
    from: u32,
    to: u32,
    piece: u32,
}

/// The arcs of a word.
pub(super) struct SegmentLattice {
    /// Number of characters.
    length: usize,
    /// Arcs by increasing `from`, then `to`.
    arcs: Vec<SegmentArc>,
}

impl SegmentLattice {
    /// Adds an arc for each occurrence of a piece in a word.
    pub(super) fn new(word: &str, ids: &HashMap<&str, usize>) -> Self {
        let offsets: Vec<usize> = word.char_indices().map(|(offset, _)| offset).chain([word.len()]).collect();
        let length = offsets.len() - 1;
        let mut arcs = Vec::new();
        for from in 0..length {
            for to in from + 1..=length.min(from + MAX_PIECE_CHARACTERS) {
                if let Some(&piece) = ids.get(&word[offsets[from]..offsets[to]]) {
                    arcs.push(SegmentArc { from: from as u32, to: to as u32, piece: piece as u32 });
                }
            }
        }
        SegmentLattice { length, arcs }
    }

    /// Renumbers pieces; arcs of pieces without a new id are removed.
    pub(super) fn renumber_pieces(&mut self, ids: &[Option<u32>]) {
        self.arcs.retain_mut(|arc| {
            let id = ids[arc.piece as usize];
            arc.piece = id.unwrap_or_default();
            id.is_some()
        });
    }

    /// Adds `count` times the expected number of each piece in the word.
    ///
    /// `P(arc) = exp(α[from] + score + β[to] - α[end])`, with α and β the log-sums of the
    /// segmentations before and after a position.
    pub(super) fn add_expected_counts(&self, scores: &[f64], count: f64, expected_counts: &mut [f64]) {
        let mut alpha = vec![f64::NEG_INFINITY; self.length + 1];
        let mut beta = alpha.clone();
        (alpha[0], beta[self.length]) = (0.0, 0.0);
        for &SegmentArc { from, to, piece } in &self.arcs {
            let score = alpha[from as usize] + scores[piece as usize];
            alpha[to as usize] = log_add(alpha[to as usize], score);
        }
        for &SegmentArc { from, to, piece } in self.arcs.iter().rev() {
            let score = beta[to as usize] + scores[piece as usize];
            beta[from as usize] = log_add(beta[from as usize], score);
        }
        for &SegmentArc { from, to, piece } in &self.arcs {
            let score = alpha[from as usize] + scores[piece as usize] + beta[to as usize];
            expected_counts[piece as usize] += count * (score - alpha[self.length]).exp();
        }
    }

    /// Returns the pieces of the best segmentation in reverse order.
    ///
    /// Of equally good segmentations up to a position, the one with the longest last piece is
    /// chosen. One piece may be excluded.
    pub(super) fn best_path(&self, scores: &[f64], excluded: Option<usize>) -> Vec<usize> {
        let mut best: Vec<(f64, Option<SegmentArc>)> = vec![(f64::NEG_INFINITY, None); self.length + 1];
        best[0].0 = 0.0;
        for &arc in &self.arcs {
            let piece = arc.piece as usize;
            let score = best[arc.from as usize].0 + scores[piece];
            if score > best[arc.to as usize].0 && excluded != Some(piece) {
                best[arc.to as usize] = (score, Some(arc));
            }
        }
        let last_arc = |position: usize| best[position].1;
        let path = std::iter::successors(last_arc(self.length), |arc| last_arc(arc.from as usize));
        path.map(|arc| arc.piece as usize).collect()
    }
}

/// Returns `ln(exp a + exp b)`; -inf is the logarithm of 0.
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: [&str; 5] = ["a", "b", "ab", "ba", "bab"];
    const SCORES: [f64; 5] = [-1.0, -2.0, -2.5, -2.25, -4.0];

    fn lattice(word: &str) -> SegmentLattice {
        SegmentLattice::new(word, &PIECES.iter().enumerate().map(|(id, &piece)| (piece, id)).collect())
    }

    /// Returns all segmentations of a word by brute force.
    fn all_segmentations(word: &str) -> Vec<(f64, Vec<usize>)> {
        if word.is_empty() {
            return vec![(0.0, Vec::new())];
        }
        let begins = (0..5).filter(|&id| word.starts_with(PIECES[id]));
        begins
            .flat_map(|id| {
                let rest = all_segmentations(&word[PIECES[id].len()..]).into_iter();
                rest.map(move |(score, path)| (score + SCORES[id], [&[id], &path[..]].concat()))
            })
            .collect()
    }

    #[test]
    fn sums_and_best_segmentation_match_brute_force() {
        for word in ["a", "ab", "bab", "abab", "babbaab"] {
            let segmentations = all_segmentations(word);
            let sum: f64 = segmentations.iter().map(|(score, _)| score.exp()).sum();
            let mut expected_counts = [0.0; 5];
            for (score, path) in &segmentations {
                path.iter().for_each(|&id| expected_counts[id] += 3.0 * score.exp() / sum);
            }
            let mut counts = [0.0; 5];
            lattice(word).add_expected_counts(&SCORES, 3.0, &mut counts);
            assert!(
                expected_counts.iter().zip(counts).all(|(expected, count)| (expected - count).abs() < 1e-12),
                "{word}: {expected_counts:?} {counts:?}"
            );
            let best =
                segmentations.iter().map(|segmentation| segmentation.0).fold(f64::NEG_INFINITY, f64::max);
            let score = |path: Vec<usize>| path.into_iter().map(|id| SCORES[id]).sum::<f64>();
            assert!((score(lattice(word).best_path(&SCORES, None)) - best).abs() < 1e-12);
        }
        assert_eq!(lattice("bab").best_path(&SCORES, Some(4)), [1, 3]);
    }

    #[test]
    fn arcs_of_removed_pieces_are_removed() {
        let mut lattice = lattice("bab");
        lattice.renumber_pieces(&[Some(0), Some(1), Some(2), None, None]);
        assert_eq!(lattice.best_path(&SCORES, None), [2, 1]);
    }
}
