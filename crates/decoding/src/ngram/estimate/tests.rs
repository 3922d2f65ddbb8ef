//! Tests of Kneser-Ney estimation: hand-computed texts, and the definition on random texts.
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::Scorer;
use crate::ngram::{Ngram, OutOfVocabulary};

/// Probability of the last word after the others, by the table.
fn probability(table: &NgramTable, words: &str) -> f64 {
    let ids: Vec<u32> = words
        .split(' ')
        .map(|word| table.words.iter().position(|other| other == word).unwrap() as u32)
        .collect();
    let entries = &table.orders[ids.len() - 1];
    10f64.powf(f64::from(entries.log10_probs[entries.find(&ids).unwrap()]))
}

#[test]
fn probabilities_match_a_tiny_text_computed_by_hand() {
    // 1-grams: a and b follow one word each, </s> two: n = (2, 1, 0, 0), Y = 1/2, γ = 3/8, shares
    // of 3/32. 2-grams: <s> a twice, a b, a </s> and b </s> once: n = (3, 1, 0, 0), Y = 3/5, γ of a
    // and b 3/5, of <s> 3/10.
    let estimate = estimate(&[vec![0, 1], vec![0]], &["a", "b"], 2).unwrap();
    let kinds: Vec<_> =
        estimate.discounts.iter().map(|discounts| (discounts.values[2], discounts.kind)).collect();
    assert_eq!(kinds, [(0.5, DiscountKind::Absolute), (0.6, DiscountKind::Absolute)]);
    for (words, expected) in [
        ("<unk>", 3.0 / 32.0),
        ("a", 7.0 / 32.0),
        ("b", 7.0 / 32.0),
        ("</s>", 15.0 / 32.0),
        ("<s> a", 0.7 + 0.3 * 7.0 / 32.0),
        ("a b", 0.2 + 0.6 * 7.0 / 32.0),
        ("a </s>", 0.2 + 0.6 * 15.0 / 32.0),
        ("b </s>", 0.4 + 0.6 * 15.0 / 32.0),
    ] {
        assert!((probability(&estimate.table, words) - expected).abs() < 1e-7, "{words}");
    }
    let weights: Vec<f32> =
        estimate.table.orders[0].log10_backoffs.iter().map(|log| 10f32.powf(*log)).collect();
    for (actual, expected) in weights.iter().zip([1.0, 0.3, 1.0, 0.6, 0.6]) {
        assert!((actual - expected).abs() < 1e-6, "{weights:?}");
    }
}

#[test]
fn discounts_match_counts_computed_by_hand() {
    // Counts of 1-grams, order 1: five words once, three twice, two three times, one four times,
    // </s> once: n = (6, 3, 2, 1).
    let text = [0, 1, 2, 3, 4, 5, 5, 6, 6, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10, 10, 10];
    let names: Vec<String> = (0..11).map(|i| format!("w{i}")).collect();
    let estimate = estimate(&[text.to_vec()], &names, 1).unwrap();
    let y = 6.0 / 12.0;
    let expected = [1.0 - 2.0 * y * 3.0 / 6.0, 2.0 - 3.0 * y * 2.0 / 3.0, 3.0 - 4.0 * y / 2.0];
    assert_eq!(estimate.discounts, [Discounts { values: expected, kind: DiscountKind::Modified }]);
    // γ = (6 · 0.5 + 3 · 1 + 3 · 2) / 22 over 11 words, <unk> and </s>.
    let share = 12.0 / 22.0 / 13.0;
    for (words, expected) in [("<unk>", share), ("w0", 0.5 / 22.0 + share), ("w10", 2.0 / 22.0 + share)] {
        assert!((probability(&estimate.table, words) - expected).abs() < 1e-7, "{words}");
    }
}

#[test]
fn invalid_arguments_are_errors() {
    let error = |texts: &[Vec<u32>], names: &[&str], order| estimate(texts, names, order).unwrap_err();
    let option =
        |found: &str| Error::Option { option: "order", expected: "1 to 16".into(), found: found.into() };
    assert_eq!(error(&[vec![0]], &["a"], 0), option("0"));
    assert_eq!(error(&[vec![0]], &["a"], 17), option("17"));
    assert_eq!(error(&[], &["a"], 2), Error::NoText);
    assert_eq!(error(&[vec![], vec![]], &["a"], 2), Error::NoText);
    assert_eq!(
        error(&[vec![0], vec![0, 2]], &["a", "b"], 2),
        Error::Id { sequence: 1, index: 1, id: 2, names: 2 }
    );
    assert_eq!(error(&[vec![0, 1]], &["a", ""], 2), Error::Id { sequence: 0, index: 1, id: 1, names: 2 });
    assert!(matches!(error(&[vec![0]], &["a", "a"], 2), Error::Name { class: 1, .. }));
    assert!(matches!(error(&[vec![0]], &["<s>"], 2), Error::Name { class: 0, .. }));
}

/// Word ids with <s> = -1 and </s> = -2.
type NgramIds = Vec<i64>;

/// Reference implementation of p(w | h), from all n-grams of a text.
struct KneserNeyDefinition {
    order: usize,
    vocabulary: f64,
    /// By order: the counts of the definition.
    counts: Vec<BTreeMap<NgramIds, f64>>,
}

impl KneserNeyDefinition {
    fn new(texts: &[Vec<u32>], names: usize, order: usize) -> Self {
        let sentences: Vec<NgramIds> = texts
            .iter()
            .map(|text| [-1].into_iter().chain(text.iter().map(|&id| i64::from(id))).chain([-2]).collect())
            .collect();
        let count = |width: usize| {
            let mut occurrences: BTreeMap<NgramIds, f64> = BTreeMap::new();
            let mut predecessors: BTreeMap<NgramIds, BTreeSet<i64>> = BTreeMap::new();
            for sentence in &sentences {
                for (position, gram) in sentence.windows(width).enumerate() {
                    *occurrences.entry(gram.to_vec()).or_default() += 1.0;
                    if position > 0 {
                        predecessors.entry(gram.to_vec()).or_default().insert(sentence[position - 1]);
                    }
                }
            }
            if width < order {
                let words = |gram: &NgramIds| predecessors.get(gram).map(|set| set.len() as f64);
                occurrences
                    .iter_mut()
                    .filter(|(gram, _)| gram[0] != -1)
                    .for_each(|(gram, n)| *n = words(gram).unwrap());
            }
            occurrences.remove(&vec![-1]);
            occurrences
        };
        Self { order, vocabulary: names as f64 + 2.0, counts: (1..=order).map(count).collect() }
    }

    /// p(word | history).
    fn p(&self, history: &[i64], word: i64) -> f64 {
        let history = &history[history.len().saturating_sub(self.order - 1)..];
        let lower_order_p =
            || if history.is_empty() { 1.0 / self.vocabulary } else { self.p(&history[1..], word) };
        let counts = &self.counts[history.len()];
        let continuations: Vec<(&NgramIds, f64)> =
            counts.iter().filter(|(gram, _)| gram.starts_with(history)).map(|(gram, &n)| (gram, n)).collect();
        if continuations.is_empty() {
            return lower_order_p();
        }
        let total: f64 = continuations.iter().map(|pair| pair.1).sum();
        let discount = |n: f64| self.discounts(counts)[n.min(3.0) as usize - 1];
        let gamma = continuations.iter().map(|pair| discount(pair.1)).sum::<f64>() / total;
        let ngram = continuations.iter().find(|(gram, _)| *gram.last().unwrap() == word);
        ngram.map_or(0.0, |pair| (pair.1 - discount(pair.1)) / total) + gamma * lower_order_p()
    }

    fn discounts(&self, counts: &BTreeMap<NgramIds, f64>) -> [f64; 3] {
        let n = |r: f64| counts.values().filter(|&&n| n == r).count() as f64;
        let y = n(1.0) / (n(1.0) + 2.0 * n(2.0));
        if n(1.0) * n(2.0) == 0.0 {
            return [0.5; 3];
        }
        let three = [1.0, 2.0, 3.0].map(|r| r - (r + 1.0) * y * n(r + 1.0) / n(r));
        let is_modified = n(3.0) * n(4.0) > 0.0 && three.iter().all(|&value| value > 0.0);
        if is_modified { three } else { [y; 3] }
    }
}

/// Texts in which some words are frequent.
fn texts(names: u32) -> impl Strategy<Value = Vec<Vec<u32>>> {
    let word = (0..names, 0..names).prop_map(|(a, b)| a.min(b));
    prop::collection::vec(prop::collection::vec(word, 0..9), 1..25)
}

proptest! {
    #[test]
    fn probabilities_match_the_definition_and_sum_to_one(texts in texts(9), order in 1usize..5) {
        prop_assume!(texts.iter().any(|text| !text.is_empty()));
        // The last name is never seen.
        let names: Vec<String> = (0..10).map(|i| format!("w{i}")).collect();
        let estimated = estimate(&texts, &names, order).unwrap();
        let definition = KneserNeyDefinition::new(&texts, names.len(), order);
        // A class that is <unk> has its share.
        let with_unknown: Vec<String> = names.iter().cloned().chain(["<unk>".into()]).collect();
        let ngram = Ngram::new(&estimated.table, &with_unknown, OutOfVocabulary::Reject).unwrap();
        for text in &texts {
            let mut history = vec![-1];
            let mut state = ngram.start();
            for &word in text {
                let mut row = [0.0; 11];
                ngram.add_scores(state, 1.0, &mut row);
                let end = f64::from(ngram.finish(state)).exp();
                let sum = end + row.iter().map(|&score| f64::from(score).exp()).sum::<f64>();
                prop_assert!((sum - 1.0).abs() < 2e-6, "{sum}");
                prop_assert!((end - definition.p(&history, -2)).abs() < 1e-6);
                for (class, &score) in row.iter().enumerate() {
                    let expected = definition.p(&history, class as i64);
                    let score = f64::from(score).exp();
                    prop_assert!((score - expected).abs() < 1e-6, "{history:?} {class}: {score} {expected}");
                }
                state = ngram.step(state, word).1;
                history.push(i64::from(word));
            }
        }
        // Every context, the ones that no text ends in too.
        for state in 0..ngram.states() as u32 {
            let mut row = [0.0; 11];
            ngram.add_scores(state, 1.0, &mut row);
            let all = row.iter().map(|&score| f64::from(score).exp()).sum::<f64>();
            let sum = all + f64::from(ngram.finish(state)).exp();
            prop_assert!((sum - 1.0).abs() < 2e-6, "state {state}: {sum}");
        }
    }
}

#[test]
fn perplexity_matches_a_text_computed_by_hand() {
    let names = ["a", "b"];
    let table = estimate(&[vec![0, 1], vec![0]], &names, 2).unwrap().table;
    let ngram = Ngram::new(&table, &["a", "b", "x"], OutOfVocabulary::Reject).unwrap();
    let text = [0, 2, 1];
    let perplexity = ngram.perplexity([&text[..]]);
    // a after <s>, <unk> is passed over, b after nothing known, the end after b.
    let expected = (0.7 + 0.3 * 7.0 / 32.0) * (7.0 / 32.0) * (0.4 + 0.6 * 15.0 / 32.0);
    assert_eq!((perplexity.tokens, perplexity.texts, perplexity.unknown), (3, 1, 1));
    assert!((perplexity.log_prob - f64::ln(expected)).abs() < 1e-6);
    assert!((perplexity.value() - f64::powf(expected, -1.0 / 3.0)).abs() < 1e-5);
    assert!((perplexity.unknown_rate() - 1.0 / 3.0).abs() < 1e-12);
    assert_eq!(ngram.perplexity([]).value(), 1.0);
}
