//! Unigram tokenizer: trains a subword vocabulary, as in SentencePiece.
//!
//! ```text
//! score(pieces) = Σ_i log p(piece_i);   a word is split into the pieces with the highest score
//! ```
//!
//! Training follows Kudo 2018, "Subword Regularization: Improving Neural Network Translation Models
//! with Multiple Subword Candidates": it starts from all repeated strings, runs two rounds of
//! expectation maximization, and removes the pieces that reduce the likelihood of the text least,
//! until the vocabulary is small enough; characters are never removed. This replaces the trainer of
//! the crate `tokenizers`: its suffix array panics for some texts, and its sums depend on threads
//! and on the order of hash tables.

mod seeds;
mod segmentation;

use std::collections::{BTreeMap, HashMap};

use tokenizers::models::unigram::Unigram;

use super::library_error;
use crate::Result;
use seeds::Seeds;
use segmentation::SegmentLattice;

/// Units of a score per nat.
///
/// A power of two, so that sums of scores are exact in f64 and equal scores are ties.
const UNITS_PER_NAT: f64 = 1_048_576.0;
/// Rounds of expectation maximization between removals.
const EM_ROUNDS: usize = 2;
/// Fraction of the pieces that each removal keeps.
const KEPT_FRACTION: f64 = 0.75;
/// Pieces with a smaller expected count in the text are removed.
const MIN_EXPECTED_COUNT: f64 = 0.5;

/// Tokens by decreasing score, and their scores in 2^-20 nats.
pub(super) type Vocabulary = (Vec<String>, Vec<i32>);

/// A subword and its log-probability.
struct Piece<'a> {
    text: &'a str,
    score: f64,
}

/// All segmentations of a distinct word, and its number in the text.
struct WordLattice {
    lattice: SegmentLattice,
    count: f64,
}

/// Trains a vocabulary of at most `size` tokens on marked words.
///
/// The first `num_characters` pieces are the characters of the words, at most `size`.
///
/// Cost: a round is O(16 · characters of the distinct words); there are about
/// 7 log(repeated strings / size) rounds.
pub(super) fn train(words: &[String], size: usize, num_characters: usize) -> Vocabulary {
    // The distinct words with their counts, and all repeated strings as initial pieces.
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for word in words {
        *counts.entry(word).or_default() += 1;
    }
    let words: Vec<(&str, u64)> = counts.into_iter().collect();
    let Seeds { mut pieces, lattices } = seeds::find(&words);
    let mut words: Vec<WordLattice> = lattices
        .into_iter()
        .zip(&words)
        .map(|(lattice, &(_, count))| WordLattice { lattice, count: count as f64 })
        .collect();
    // Slightly more than `size`: the last pieces to go are those of the lowest score.
    let target_size = size.saturating_add(size / 10);
    loop {
        for _ in 0..EM_ROUNDS {
            let expected_counts = run_em_round(&mut pieces, &words);
            retain_pieces(&mut pieces, &mut words, |id| {
                id < num_characters || expected_counts[id] >= MIN_EXPECTED_COUNT
            });
        }
        if pieces.len() <= target_size {
            break;
        }
        // Keeps all characters, and the pieces whose removal would cost most.
        let losses = removal_losses(&pieces, &words, num_characters);
        let mut order: Vec<usize> = (num_characters..pieces.len()).collect();
        order.sort_by(|&a, &b| losses[b].total_cmp(&losses[a]).then(a.cmp(&b)));
        let num_kept = target_size.max((KEPT_FRACTION * pieces.len() as f64) as usize) - num_characters;
        let mut is_kept = vec![false; pieces.len()];
        is_kept[..num_characters].fill(true);
        order
            .into_iter()
            .take(num_kept)
            .filter(|&id| losses[id] > f64::NEG_INFINITY)
            .for_each(|id| is_kept[id] = true);
        retain_pieces(&mut pieces, &mut words, |id| is_kept[id]);
    }
    // The pieces with the highest scores and all characters, by decreasing score.
    let quantize = |piece: &Piece| ((piece.score * UNITS_PER_NAT).round() as i32, piece.text.to_owned());
    let quantize_and_sort = |pieces: &[Piece]| {
        let mut tokens: Vec<(i32, String)> = pieces.iter().map(quantize).collect();
        tokens.sort_unstable_by(|(score_a, text_a), (score_b, text_b)| {
            score_b.cmp(score_a).then_with(|| text_a.cmp(text_b))
        });
        tokens
    };
    let mut vocabulary = quantize_and_sort(&pieces[num_characters..]);
    vocabulary.truncate(size - num_characters);
    vocabulary.extend(quantize_and_sort(&pieces[..num_characters]));
    vocabulary.sort_by_key(|&(score, _)| std::cmp::Reverse(score));
    vocabulary.into_iter().map(|(score, text)| (text, score)).unzip()
}

/// Runs a round of expectation maximization; returns the expected counts.
///
/// As in SentencePiece, the new log-probability is Ψ(count) - Ψ(sum), the mean under a Dirichlet
/// posterior, which makes rare pieces less likely.
fn run_em_round(pieces: &mut [Piece], words: &[WordLattice]) -> Vec<f64> {
    let scores: Vec<f64> = pieces.iter().map(|piece| piece.score).collect();
    let mut expected_counts = vec![0.0; pieces.len()];
    words.iter().for_each(|word| word.lattice.add_expected_counts(&scores, word.count, &mut expected_counts));
    let digamma_of_sum = digamma(expected_counts.iter().map(|count| count.max(MIN_EXPECTED_COUNT)).sum());
    for (piece, count) in pieces.iter_mut().zip(&expected_counts) {
        piece.score = digamma(count.max(MIN_EXPECTED_COUNT)) - digamma_of_sum;
    }
    expected_counts
}

/// Returns the approximate likelihood loss of removing each piece.
///
/// The loss is that of replacing a piece by its next best segmentation; -inf for pieces without a
/// use.
fn removal_losses(pieces: &[Piece], words: &[WordLattice], num_characters: usize) -> Vec<f64> {
    let scores: Vec<f64> = pieces.iter().map(|piece| piece.score).collect();
    // How often the best segmentations of the text use each piece.
    let mut uses = vec![0.0; pieces.len()];
    for word in words {
        word.lattice.best_path(&scores, None).into_iter().for_each(|id| uses[id] += word.count);
    }
    let sum: f64 = uses.iter().sum();
    let ids: HashMap<&str, usize> = pieces.iter().enumerate().map(|(id, piece)| (piece.text, id)).collect();
    let loss = |id: usize| {
        if id < num_characters || uses[id] == 0.0 {
            return f64::NEG_INFINITY;
        }
        let replacement = SegmentLattice::new(pieces[id].text, &ids).best_path(&scores, Some(id));
        // Its uses become uses of each replacement piece.
        let log_sum = (sum + uses[id] * (replacement.len() as f64 - 1.0)).ln();
        let replacement_score =
            replacement.into_iter().map(|piece| (uses[piece] + uses[id]).ln() - log_sum).sum::<f64>();
        uses[id] * (uses[id].ln() - sum.ln() - replacement_score)
    };
    (0..pieces.len()).map(loss).collect()
}

/// Removes the pieces that `is_kept` rejects.
fn retain_pieces(pieces: &mut Vec<Piece>, words: &mut [WordLattice], is_kept: impl Fn(usize) -> bool) {
    let mut num_kept = 0;
    let new_ids: Vec<Option<u32>> = (0..pieces.len())
        .map(|id| {
            num_kept += u32::from(is_kept(id));
            is_kept(id).then(|| num_kept - 1)
        })
        .collect();
    words.iter_mut().for_each(|word| word.lattice.renumber_pieces(&new_ids));
    let mut id = 0;
    pieces.retain(|_| {
        id += 1;
        new_ids[id - 1].is_some()
    });
}

/// Returns Ψ(x), the derivative of ln Γ, for x > 0.
///
/// Ψ(x) = Ψ(x + 1) - 1/x up to x ≥ 8, then its asymptotic series (Abramowitz and Stegun 6.3.5,
/// 6.3.18); the first omitted term is below 1e-10.
fn digamma(mut x: f64) -> f64 {
    let mut shift = 0.0;
    while x < 8.0 {
        shift -= 1.0 / x;
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    shift + x.ln() - 0.5 / x - y * (1.0 / 12.0 - y * (1.0 / 120.0 - y * (1.0 / 252.0 - y / 240.0)))
}

/// Returns the model of a vocabulary.
///
/// It splits a word by dynamic programming over its bytes; of equally good splits, the one with the
/// longest last piece is chosen.
pub(super) fn build_model(tokens: &[String], scores: &[i32]) -> Result<Unigram> {
    let scores = scores.iter().map(|&score| f64::from(score) / UNITS_PER_NAT);
    Unigram::from(tokens.iter().cloned().zip(scores).collect(), None, false).map_err(library_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digamma_has_known_values() {
        // -γ, -γ - 2 ln 2, and a sum of reciprocals: Ψ(n) = -γ + Σ_{k<n} 1/k.
        let euler = 0.577_215_664_901_532_9;
        assert!((digamma(1.0) + euler).abs() < 1e-9);
        assert!((digamma(0.5) + euler + 2.0 * 2f64.ln()).abs() < 1e-9);
        let harmonic: f64 = (1..50).map(|k| 1.0 / f64::from(k)).sum();
        assert!((digamma(50.0) + euler - harmonic).abs() < 1e-9);
    }

    #[test]
    fn a_piece_without_a_good_replacement_has_the_largest_loss() {
        let words = [("abab", 10), ("abc", 3), ("ca", 4)];
        let Seeds { mut pieces, lattices } = seeds::find(&words);
        let words: Vec<WordLattice> = lattices
            .into_iter()
            .zip([10.0, 3.0, 4.0])
            .map(|(lattice, count)| WordLattice { lattice, count })
            .collect();
        for _ in 0..9 {
            let counts = run_em_round(&mut pieces, &words);
            // Each segmentation covers its word.
            let letters: f64 =
                pieces.iter().zip(&counts).map(|(piece, count)| piece.text.len() as f64 * count).sum();
            assert!((letters - (40.0 + 9.0 + 8.0)).abs() < 1e-9, "{letters}");
        }
        let losses = removal_losses(&pieces, &words, 3);
        let loss = |text: &str| losses[pieces.iter().position(|piece| piece.text == text).unwrap()];
        assert!(loss("abab") > loss("ca") && loss("ca") > 0.0, "{losses:?}");
        assert_eq!(loss("a"), f64::NEG_INFINITY);
    }
}
