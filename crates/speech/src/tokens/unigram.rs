//! Pieces of words by a unigram language model, as SentencePiece has it.
//!
//! ```text
//! score(pieces) = Σ_i log p(piece_i);   a word falls into the pieces with the highest score
//! ```
//!
//! Learnt as in Kudo 2018, "Subword Regularization: Improving Neural Network Translation Models with Multiple Subword Candidates":
//! from all strings that return, by expectation maximisation, and after two rounds of it the pieces go that cost the likelihood of the
//! text least, until there are as few as wanted; characters always stay. The library has such a training, which ends in a panic for
//! some texts (its suffix array) and whose sums depend on threads and on the order of hash tables.

mod seeds;
mod segmentation;

use std::collections::{BTreeMap, HashMap};

use tokenizers::models::unigram::Unigram;

use super::library;
use crate::Result;
use seeds::{MAX_PIECE_CHARACTERS, Seeds};
use segmentation::SegmentLattice;

/// Units of a score in a nat: a power of two, so that sums of scores are exact in f64 and equal ones are ties, not accidents.
const UNITS: f64 = 1_048_576.0;
/// Rounds of expectation maximisation before pieces go.
const ROUNDS: usize = 2;
/// Share of the pieces that stays when some go.
const STAY: f64 = 0.75;
/// Pieces that are expected less often in the whole text go at once.
const RARE: f64 = 0.5;

/// Tokens in the order of their ids, which is that of their falling scores, and the scores in 2^-20 nats.
pub(super) type Vocabulary = (Vec<String>, Vec<i32>);

/// Learns a vocabulary of at most `size` tokens from marked words with an `alphabet` of no more characters.
///
/// Cost: a round is O(16 characters) of the different words; there are about 7 log(returning strings / size) of them.
pub(super) fn train(words: &[String], size: usize, alphabet: usize) -> Vocabulary {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let words: Vec<(&str, u64)> = counts.into_iter().collect();
    let Seeds { mut pieces, cuts } = seeds::find(&words);
    let mut words: Vec<(SegmentLattice, f64)> =
        cuts.into_iter().zip(&words).map(|(cuts, word)| (cuts, word.1 as f64)).collect();
    // A few more than wanted: the last to go are those of the lowest score.
    let enough = size.saturating_add(size / 10);
    loop {
        for _ in 0..ROUNDS {
            let expected = maximise(&mut pieces, &words);
            keep(&mut pieces, &mut words, |id| id < alphabet || expected[id] >= RARE);
        }
        if pieces.len() <= enough {
            break;
        }
        let losses = losses(&pieces, &words, alphabet);
        let mut order: Vec<usize> = (alphabet..pieces.len()).collect();
        order.sort_by(|&a, &b| losses[b].total_cmp(&losses[a]).then(a.cmp(&b)));
        let left = enough.max((STAY * pieces.len() as f64) as usize) - alphabet;
        let mut stays = vec![false; pieces.len()];
        stays[..alphabet].fill(true);
        order
            .into_iter()
            .take(left)
            .filter(|&id| losses[id] > f64::NEG_INFINITY)
            .for_each(|id| stays[id] = true);
        keep(&mut pieces, &mut words, |id| stays[id]);
    }
    let whole = |&(piece, score): &(&str, f64)| ((score * UNITS).round() as i32, piece.to_owned());
    let sorted = |pieces: &[(&str, f64)]| {
        let mut pieces: Vec<(i32, String)> = pieces.iter().map(whole).collect();
        pieces.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        pieces
    };
    let mut chosen = sorted(&pieces[alphabet..]);
    chosen.truncate(size - alphabet);
    chosen.extend(sorted(&pieces[..alphabet]));
    chosen.sort_by_key(|piece| std::cmp::Reverse(piece.0));
    chosen.into_iter().map(|(score, piece)| (piece, score)).unzip()
}

/// A round of expectation maximisation; returns how often each piece is expected in the text.
///
/// As in SentencePiece, the new log-probability is Ψ(count) - Ψ(sum), the mean under a Dirichlet posterior, which makes rare pieces
/// rarer.
fn maximise(pieces: &mut [(&str, f64)], words: &[(SegmentLattice, f64)]) -> Vec<f64> {
    let scores: Vec<f64> = pieces.iter().map(|piece| piece.1).collect();
    let mut expected = vec![0.0; pieces.len()];
    words.iter().for_each(|(cuts, count)| cuts.expect(&scores, *count, &mut expected));
    let sum = digamma(expected.iter().map(|count| count.max(RARE)).sum());
    for (piece, count) in pieces.iter_mut().zip(&expected) {
        piece.1 = digamma(count.max(RARE)) - sum;
    }
    expected
}

/// What the text's log-likelihood loses, about, if a piece is written by its next best cut; -inf for pieces without a use.
fn losses(pieces: &[(&str, f64)], words: &[(SegmentLattice, f64)], alphabet: usize) -> Vec<f64> {
    let scores: Vec<f64> = pieces.iter().map(|piece| piece.1).collect();
    let mut uses = vec![0.0; pieces.len()];
    for (cuts, count) in words {
        cuts.best(&scores, None).into_iter().for_each(|id| uses[id] += count);
    }
    let sum: f64 = uses.iter().sum();
    let ids: HashMap<&str, usize> = pieces.iter().enumerate().map(|(id, piece)| (piece.0, id)).collect();
    let loss = |id: usize| {
        if id < alphabet || uses[id] == 0.0 {
            return f64::NEG_INFINITY;
        }
        let instead = SegmentLattice::new(pieces[id].0, &ids).best(&scores, Some(id));
        // Its uses become uses of each piece of the cut.
        let sum_instead = (sum + uses[id] * (instead.len() as f64 - 1.0)).ln();
        let instead =
            instead.into_iter().map(|other| (uses[other] + uses[id]).ln() - sum_instead).sum::<f64>();
        uses[id] * (uses[id].ln() - sum.ln() - instead)
    };
    (0..pieces.len()).map(loss).collect()
}

/// Drops all other pieces.
fn keep(pieces: &mut Vec<(&str, f64)>, words: &mut [(SegmentLattice, f64)], stays: impl Fn(usize) -> bool) {
    let mut next = 0;
    let ids: Vec<Option<u32>> = (0..pieces.len())
        .map(|id| {
            next += u32::from(stays(id));
            stays(id).then(|| next - 1)
        })
        .collect();
    words.iter_mut().for_each(|(cuts, _)| cuts.rename(&ids));
    let mut id = 0;
    pieces.retain(|_| {
        id += 1;
        ids[id - 1].is_some()
    });
}

/// Ψ(x), the derivative of ln Γ, for x > 0: Ψ(x) = Ψ(x + 1) - 1/x up to x ≥ 8, then its asymptotic series (Abramowitz and Stegun
/// 6.3.5, 6.3.18); the first term left out is below 1e-10.
fn digamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 8.0 {
        shift -= 1.0 / x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    shift + x.ln() - 0.5 / x - y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y / 240.0)))
}

/// The model of a vocabulary: the best pieces of a word are found by dynamic programming over its bytes; of equally good ways to
/// reach a place, the one with the longest last piece is taken.
pub(super) fn model(tokens: &[String], scores: &[i32]) -> Result<Unigram> {
    let scores = scores.iter().map(|&score| f64::from(score) / UNITS);
    Unigram::from(tokens.iter().cloned().zip(scores).collect(), None, false).map_err(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digamma_by_known_values() {
        // -γ, -γ - 2 ln 2, and a sum of reciprocals: Ψ(n) = -γ + Σ_{k<n} 1/k.
        let euler = 0.577_215_664_901_532_9;
        assert!((digamma(1.0) + euler).abs() < 1e-9);
        assert!((digamma(0.5) + euler + 2.0 * 2f64.ln()).abs() < 1e-9);
        let harmonic: f64 = (1..50).map(|k| 1.0 / f64::from(k)).sum();
        assert!((digamma(50.0) + euler - harmonic).abs() < 1e-9);
    }

    #[test]
    fn a_piece_without_a_cheaper_cut_costs_most() {
        let words = [("abab", 10), ("abc", 3), ("ca", 4)];
        let Seeds { mut pieces, cuts } = seeds::find(&words);
        let words: Vec<(SegmentLattice, f64)> = cuts.into_iter().zip([10.0, 3.0, 4.0]).collect();
        for _ in 0..9 {
            let expected = maximise(&mut pieces, &words);
            // Every cut of a word is of pieces that make it up.
            let letters: f64 = pieces.iter().zip(&expected).map(|(p, e)| p.0.len() as f64 * e).sum();
            assert!((letters - (40.0 + 9.0 + 8.0)).abs() < 1e-9, "{letters}");
        }
        let losses = losses(&pieces, &words, 3);
        let of = |name: &str| losses[pieces.iter().position(|piece| piece.0 == name).unwrap()];
        assert!(of("abab") > of("ca") && of("ca") > 0.0, "{pieces:?} {losses:?}");
        assert_eq!(of("a"), f64::NEG_INFINITY);
    }
}
