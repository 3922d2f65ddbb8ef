//! Tests of error rates against manual counts, and of confidence intervals.

use proptest::prelude::*;
use speech::{
    Edit, ErrorCounts, align, bootstrap_interval, character_errors, characters, error_counts, sum_by_speaker,
    word_errors,
};

fn counts(reference: &str, hypothesis: &str) -> [usize; 4] {
    let errors = word_errors(reference, hypothesis);
    [errors.substitutions, errors.deletions, errors.insertions, errors.total]
}

#[test]
fn errors_equal_manual_counts() {
    assert_eq!(counts("a b c", "a b c"), [0, 0, 0, 3]);
    assert_eq!(counts("a b c", "a x c"), [1, 0, 0, 3]);
    assert_eq!(counts("a b c", "a c"), [0, 1, 0, 3]);
    assert_eq!(counts("a b c", "a b b c"), [0, 0, 1, 3]);
    assert_eq!(counts("a b c d", "b c d e"), [0, 1, 1, 4]);
    assert_eq!(counts("  a\tb ", "a  b\n"), [0, 0, 0, 2]);
    assert_eq!(counts("a b", ""), [0, 2, 0, 2]);
    assert_eq!(counts("", "a b"), [0, 0, 2, 0]);
    // Two substitutions are preferred to a deletion and an insertion, as documented.
    assert_eq!(counts("a b", "b c"), [2, 0, 0, 2]);
}

#[test]
fn rates_are_those_of_summed_counts() {
    let parts = [word_errors("a b c", "a x c"), word_errors("d", "d e")];
    let sum: ErrorCounts = parts.iter().sum();
    assert_eq!(sum.rate(), 0.5);
    assert_eq!(sum, parts[0] + parts[1]);
    assert_eq!(word_errors("", "").rate(), 0.0);
    assert_eq!(word_errors("", "a").rate(), f64::INFINITY);
}

/// Edit distance by exhaustive search.
fn edit_distance(a: &[u8], b: &[u8]) -> usize {
    match (a, b) {
        ([], rest) | (rest, []) => rest.len(),
        ([x, a_rest @ ..], [y, b_rest @ ..]) => (usize::from(x != y) + edit_distance(a_rest, b_rest))
            .min(1 + edit_distance(a_rest, b))
            .min(1 + edit_distance(a, b_rest)),
    }
}

/// A text of words, one per id.
fn text(ids: &[u8]) -> String {
    ids.iter().map(|i| format!("w{i} ")).collect()
}

proptest! {
    #[test]
    fn error_counts_are_minimal_and_consistent(
        reference in prop::collection::vec(0u8..3, 0..7),
        hypothesis in prop::collection::vec(0u8..3, 0..7),
    ) {
        let counts = word_errors(&text(&reference), &text(&hypothesis));
        prop_assert_eq!(counts.errors(), edit_distance(&reference, &hypothesis));
        prop_assert_eq!(counts.total, reference.len());
        prop_assert_eq!(reference.len() + counts.insertions, hypothesis.len() + counts.deletions);
        prop_assert!(counts.substitutions + counts.deletions <= reference.len());
        prop_assert_eq!(word_errors(&text(&hypothesis), &text(&reference)).errors(), counts.errors());
    }

    #[test]
    fn alignments_have_the_counts_and_cover_both_sequences(
        reference in prop::collection::vec(0u8..3, 0..9),
        hypothesis in prop::collection::vec(0u8..3, 0..9),
    ) {
        let (mut i, mut j, mut counts) = (0, 0, ErrorCounts { total: reference.len(), ..ErrorCounts::default() });
        for edit in align(&reference, &hypothesis) {
            let (position, step) = match edit {
                Edit::Match(x, y) | Edit::Substitution(x, y) => {
                    prop_assert_eq!(matches!(edit, Edit::Match(..)), reference[x] == hypothesis[y]);
                    counts.substitutions += usize::from(reference[x] != hypothesis[y]);
                    ((x, y), (1, 1))
                }
                Edit::Deletion(x) => {
                    counts.deletions += 1;
                    ((x, j), (1, 0))
                }
                Edit::Insertion(y) => {
                    counts.insertions += 1;
                    ((i, y), (0, 1))
                }
            };
            prop_assert_eq!(position, (i, j));
            (i, j) = (i + step.0, j + step.1);
        }
        prop_assert_eq!((i, j), (reference.len(), hypothesis.len()));
        prop_assert_eq!(counts, error_counts(&reference, &hypothesis));
    }
}

#[test]
fn characters_are_scalar_values_without_white_space() {
    // A no-break and an ideographic space are white space; a combining accent is a character.
    assert_eq!(characters(" a\u{a0}b\u{3000}c\te\u{301}"), ['a', 'b', 'c', 'e', '\u{301}']);
    let cut = character_errors("今 天 天气 很好", "今天天汽很 好");
    assert_eq!([cut.substitutions, cut.deletions, cut.insertions, cut.total], [1, 0, 0, 6]);
    // One wrong word of three letters, and words that differ only in their boundaries.
    assert_eq!(character_errors("one two", "one too").rate(), 1.0 / 6.0);
    assert_eq!(character_errors("an other", "another").errors(), 0);
    assert_eq!(character_errors("  ", "").rate(), 0.0);
    assert_eq!(character_errors("", "a").rate(), f64::INFINITY);
}

#[test]
fn canonically_equivalent_texts_have_no_errors() {
    for (reference, hypothesis) in [
        ("un cafe\u{301} noir", "un caf\u{e9} noir"),
        ("\u{212b}ngstr\u{f6}m", "A\u{30a}ngstro\u{308}m"),
        ("\u{1112}\u{1161}\u{11ab} a", "\u{d55c} a"),
    ] {
        let (words, characters) =
            (word_errors(reference, hypothesis), character_errors(reference, hypothesis));
        assert_eq!((words.errors(), characters.errors()), (0, 0), "{reference}");
        let back = character_errors(hypothesis, reference);
        assert_eq!(back.total, characters.total);
    }
    // A ligature is a different letter, and a missing accent is an error.
    assert_eq!(word_errors("\u{fb01}n", "fin").errors(), 1);
    assert_eq!(word_errors("caf\u{e9}", "cafe").errors(), 1);
}

#[test]
fn errors_are_summed_by_speaker() {
    let errors_of = |speaker, hypothesis| (speaker, word_errors("a a", hypothesis));
    let set = [errors_of(Some("x"), "a b"), errors_of(Some("y"), "a a"), errors_of(Some("x"), "b b")];
    let blocks = sum_by_speaker(set).unwrap();
    assert_eq!(blocks.iter().map(|b| (b.errors(), b.total)).collect::<Vec<_>>(), [(3, 4), (0, 2)]);
    assert_eq!(sum_by_speaker([errors_of(Some("x"), "a"), errors_of(None, "a")]), None);
    assert_eq!(
        (sum_by_speaker([errors_of(Some("x"), "a"), errors_of(Some("x"), "a")]), sum_by_speaker([])),
        (None, None)
    );

    // Ten speakers of forty one-word utterances, half of them always wrong:
    // 0.5 +- 1.96 sqrt(0.25 / 400) over utterances, 0.5 +- 1.96 sqrt(0.25 / 10) over speakers.
    let errors: Vec<_> = (0..400).map(|i| word_errors("a", if i / 40 < 5 { "b" } else { "a" })).collect();
    let (low, high) = bootstrap_interval(&errors, 2000, 1);
    assert!((low - 0.451).abs() < 0.01 && (high - 0.549).abs() < 0.01, "{low} {high}");
    let names: Vec<String> = (0..400).map(|i| format!("s{}", i / 40)).collect();
    let blocks = sum_by_speaker(names.iter().map(|name| Some(name.as_str())).zip(errors)).unwrap();
    assert_eq!(bootstrap_interval(&blocks, 2000, 1), (0.2, 0.8));
}

#[test]
fn interval_has_the_width_of_a_binomial() {
    // 400 one-word utterances, a quarter wrong:
    // 0.25 +- 1.96 sqrt(0.25 * 0.75 / 400) = 0.25 +- 0.0424.
    let set: Vec<_> = (0..400).map(|i| word_errors("a", if i % 4 == 0 { "b" } else { "a" })).collect();
    let (low, high) = bootstrap_interval(&set, 2000, 1);
    assert!((low - 0.2076).abs() < 0.01 && (high - 0.2924).abs() < 0.01, "{low} {high}");
    assert_eq!(bootstrap_interval(&set, 2000, 1), (low, high));
    assert_ne!(bootstrap_interval(&set, 50, 1), bootstrap_interval(&set, 50, 2));
    assert_eq!(bootstrap_interval(&[], 10, 1), (0.0, 0.0));
    assert_eq!(bootstrap_interval(&set, 0, 1), (0.25, 0.25));
}
