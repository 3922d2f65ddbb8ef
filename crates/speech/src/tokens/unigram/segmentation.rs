//! All ways to cut a word into pieces, as arcs between the places before, between and after its characters.

use std::collections::HashMap;

use super::MAX_PIECE_CHARACTERS;

#[derive(Clone, Copy)]
struct SegmentArc {
    from: u32,
    to: u32,
    piece: u32,
}

/// The arcs of a word.
pub(super) struct SegmentLattice {
    /// Characters.
    length: usize,
    /// By rising `from`, then `to`.
    arcs: Vec<SegmentArc>,
}

impl SegmentLattice {
    /// An arc for each piece at each place of a word.
    pub(super) fn new(word: &str, ids: &HashMap<&str, usize>) -> Self {
        let places: Vec<usize> = word.char_indices().map(|(at, _)| at).chain([word.len()]).collect();
        let length = places.len() - 1;
        let mut arcs = Vec::new();
        for from in 0..length {
            for to in from + 1..=length.min(from + MAX_PIECE_CHARACTERS) {
                if let Some(&piece) = ids.get(&word[places[from]..places[to]]) {
                    arcs.push(SegmentArc { from: from as u32, to: to as u32, piece: piece as u32 });
                }
            }
        }
        SegmentLattice { length, arcs }
    }

    /// Gives pieces their new names; those without go.
    pub(super) fn rename(&mut self, ids: &[Option<u32>]) {
        self.arcs.retain_mut(|arc| {
            let id = ids[arc.piece as usize];
            arc.piece = id.unwrap_or_default();
            id.is_some()
        });
    }

    /// Adds, for each piece, `count` × how often it is expected in a cut of the word.
    ///
    /// `P(arc) = exp(α[from] + score + β[to] - α[end])`, with α and β the log-sums of the cuts before and behind a place.
    pub(super) fn expect(&self, scores: &[f64], count: f64, expected: &mut [f64]) {
        let mut before = vec![f64::NEG_INFINITY; self.length + 1];
        let mut behind = before.clone();
        (before[0], behind[self.length]) = (0.0, 0.0);
        for &SegmentArc { from, to, piece } in &self.arcs {
            let score = before[from as usize] + scores[piece as usize];
            before[to as usize] = log_add(before[to as usize], score);
        }
        for &SegmentArc { from, to, piece } in self.arcs.iter().rev() {
            let score = behind[to as usize] + scores[piece as usize];
            behind[from as usize] = log_add(behind[from as usize], score);
        }
        for &SegmentArc { from, to, piece } in &self.arcs {
            let score = before[from as usize] + scores[piece as usize] + behind[to as usize];
            expected[piece as usize] += count * (score - before[self.length]).exp();
        }
    }

    /// The pieces of the best cut, from the last to the first; of equally good ways to reach a place, the one with the longest last
    /// piece. One piece may be left out.
    pub(super) fn best(&self, scores: &[f64], without: Option<usize>) -> Vec<usize> {
        let mut reached: Vec<(f64, Option<SegmentArc>)> = vec![(f64::NEG_INFINITY, None); self.length + 1];
        reached[0].0 = 0.0;
        for &arc in &self.arcs {
            let piece = arc.piece as usize;
            let score = reached[arc.from as usize].0 + scores[piece];
            if score > reached[arc.to as usize].0 && without != Some(piece) {
                reached[arc.to as usize] = (score, Some(arc));
            }
        }
        let last = |place: usize| reached[place].1;
        let path = std::iter::successors(last(self.length), |arc| last(arc.from as usize));
        path.map(|arc| arc.piece as usize).collect()
    }
}

/// `ln(exp a + exp b)`; -inf is the logarithm of nothing.
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECES: [&str; 5] = ["a", "b", "ab", "ba", "bab"];
    const SCORES: [f64; 5] = [-1.0, -2.0, -2.5, -2.25, -4.0];

    fn cuts(word: &str) -> SegmentLattice {
        SegmentLattice::new(word, &PIECES.iter().enumerate().map(|(id, &piece)| (piece, id)).collect())
    }

    /// All cuts of a word, by trying everything.
    fn all(word: &str) -> Vec<(f64, Vec<usize>)> {
        if word.is_empty() {
            return vec![(0.0, Vec::new())];
        }
        let begins = (0..5).filter(|&id| word.starts_with(PIECES[id]));
        begins
            .flat_map(|id| {
                let rest = all(&word[PIECES[id].len()..]).into_iter();
                rest.map(move |(score, path)| (score + SCORES[id], [&[id], &path[..]].concat()))
            })
            .collect()
    }

    #[test]
    fn sums_and_best_cuts_are_those_of_all_cuts() {
        for word in ["a", "ab", "bab", "abab", "babbaab"] {
            let all = all(word);
            let sum: f64 = all.iter().map(|(score, _)| score.exp()).sum();
            let mut wanted = [0.0; 5];
            for (score, path) in &all {
                path.iter().for_each(|&id| wanted[id] += 3.0 * score.exp() / sum);
            }
            let mut found = [0.0; 5];
            cuts(word).expect(&SCORES, 3.0, &mut found);
            assert!(
                wanted.iter().zip(found).all(|(w, f)| (w - f).abs() < 1e-12),
                "{word}: {wanted:?} {found:?}"
            );
            let best = all.iter().map(|cut| cut.0).fold(f64::NEG_INFINITY, f64::max);
            let score = |path: Vec<usize>| path.into_iter().map(|id| SCORES[id]).sum::<f64>();
            assert!((score(cuts(word).best(&SCORES, None)) - best).abs() < 1e-12);
        }
        assert_eq!(cuts("bab").best(&SCORES, Some(4)), [1, 3]);
    }

    #[test]
    fn pieces_that_go_take_their_arcs_with_them() {
        let mut cuts = cuts("bab");
        cuts.rename(&[Some(0), Some(1), Some(2), None, None]);
        assert_eq!(cuts.best(&SCORES, None), [2, 1]);
    }
}
