//! Word errors against counting by hand and by properties; the interval against a known spread.

use proptest::prelude::*;
use speech::{WordErrors, bootstrap_interval, word_errors};

fn counts(reference: &str, hypothesis: &str) -> [usize; 4] {
    let e = word_errors(reference, hypothesis);
    [e.substitutions, e.deletions, e.insertions, e.words]
}

#[test]
fn counted_by_hand() {
    assert_eq!(counts("a b c", "a b c"), [0, 0, 0, 3]);
    assert_eq!(counts("a b c", "a x c"), [1, 0, 0, 3]);
    assert_eq!(counts("a b c", "a c"), [0, 1, 0, 3]);
    assert_eq!(counts("a b c", "a b b c"), [0, 0, 1, 3]);
    assert_eq!(counts("a b c d", "b c d e"), [0, 1, 1, 4]);
    assert_eq!(counts("  a\tb ", "a  b\n"), [0, 0, 0, 2]);
    assert_eq!(counts("a b", ""), [0, 2, 0, 2]);
    assert_eq!(counts("", "a b"), [0, 0, 2, 0]);
    // Two substitutions, or a deletion and an insertion: the documented choice.
    assert_eq!(counts("a b", "b c"), [2, 0, 0, 2]);
}

#[test]
fn rates_of_sums() {
    let parts = [word_errors("a b c", "a x c"), word_errors("d", "d e")];
    let sum: WordErrors = parts.iter().sum();
    assert_eq!(sum.rate(), 0.5);
    assert_eq!(sum, parts[0] + parts[1]);
    assert_eq!(word_errors("", "").rate(), 0.0);
    assert_eq!(word_errors("", "a").rate(), f64::INFINITY);
}

/// Edit distance by trying everything.
fn slow(a: &[u8], b: &[u8]) -> usize {
    match (a, b) {
        ([], rest) | (rest, []) => rest.len(),
        ([x, a1 @ ..], [y, b1 @ ..]) => {
            (usize::from(x != y) + slow(a1, b1)).min(1 + slow(a1, b)).min(1 + slow(a, b1))
        }
    }
}

fn text(ids: &[u8]) -> String {
    ids.iter().map(|i| format!("w{i} ")).collect()
}

proptest! {
    #[test]
    fn fewest_errors_that_add_up(a in prop::collection::vec(0u8..3, 0..7), b in prop::collection::vec(0u8..3, 0..7)) {
        let e = word_errors(&text(&a), &text(&b));
        prop_assert_eq!(e.errors(), slow(&a, &b));
        prop_assert_eq!(e.words, a.len());
        prop_assert_eq!(a.len() + e.insertions, b.len() + e.deletions);
        prop_assert!(e.substitutions + e.deletions <= a.len());
        prop_assert_eq!(word_errors(&text(&b), &text(&a)).errors(), e.errors());
    }
}

#[test]
fn interval_has_the_width_of_a_binomial() {
    // 400 one-word utterances, a quarter wrong: 0.25 +- 1.96 sqrt(0.25 * 0.75 / 400) = 0.25 +- 0.0424.
    let set: Vec<_> = (0..400).map(|i| word_errors("a", if i % 4 == 0 { "b" } else { "a" })).collect();
    let (low, high) = bootstrap_interval(&set, 2000, 1);
    assert!((low - 0.2076).abs() < 0.01 && (high - 0.2924).abs() < 0.01, "{low} {high}");
    assert_eq!(bootstrap_interval(&set, 2000, 1), (low, high));
    assert_ne!(bootstrap_interval(&set, 50, 1), bootstrap_interval(&set, 50, 2));
    assert_eq!(bootstrap_interval(&[], 10, 1), (0.0, 0.0));
    assert_eq!(bootstrap_interval(&set, 0, 1), (0.25, 0.25));
}
