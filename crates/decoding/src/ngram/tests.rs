//! Tests of the n-gram scorer: scores match the back-off definition and KenLM.
use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::scorer::tests::{assert_row_matches_steps, sequence_score};

/// Reference implementation: the recursive definition of back-off.
struct BackoffDefinition {
    order: usize,
    /// log10 probability and back-off weight of each n-gram.
    listed: HashMap<Vec<String>, (f64, f64)>,
}

impl BackoffDefinition {
    fn new(table: &NgramTable) -> Self {
        let mut listed = HashMap::new();
        for entries in &table.orders {
            for index in 0..entries.len() {
                let words = table.spell(entries.ngram(index)).map(String::from).collect();
                listed.insert(
                    words,
                    (f64::from(entries.log10_probs[index]), f64::from(entries.log10_backoffs[index])),
                );
            }
        }
        Self { order: table.order(), listed }
    }

    /// log p(word | history), natural.
    fn score(&self, history: &[String], word: &str) -> f64 {
        let history = &history[history.len().saturating_sub(self.order - 1)..];
        let ngram: Vec<String> = history.iter().cloned().chain([word.to_owned()]).collect();
        if let Some((prob, _)) = self.listed.get(&ngram) {
            return prob * std::f64::consts::LN_10;
        }
        if history.is_empty() {
            return match word {
                "<unk>" => f64::from(UNKNOWN_LOG10) * std::f64::consts::LN_10,
                _ => self.score(&[], "<unk>"),
            };
        }
        let weight = self.listed.get(history).map_or(0.0, |entry| entry.1);
        weight * std::f64::consts::LN_10 + self.score(&history[1..], word)
    }

    /// The word, or `<unk>` if the table does not list it.
    fn listed_word(&self, word: &str) -> String {
        if self.listed.contains_key(&vec![word.to_owned()]) { word.into() } else { "<unk>".into() }
    }

    /// log p of a complete text, natural.
    fn text_score(&self, words: &[&str]) -> f64 {
        let mut history = vec!["<s>".to_owned()];
        let mut sum = 0.0;
        for word in words {
            let word = self.listed_word(word);
            sum += self.score(&history, &word);
            history.push(word);
        }
        sum + self.score(&history, "</s>")
    }
}

/// Some n-grams of five words, closed under contexts but not under ends; `<unk>` may be one of the
/// words.
fn tables() -> impl Strategy<Value = NgramTable> {
    let gram = prop::collection::vec(0u32..7, 2..5);
    (prop::collection::vec(gram, 0..40), prop::collection::vec((0u32..2000, 0u32..900), 400)).prop_map(
        |(grams, numbers)| {
            let words = ["<unk>", "<s>", "</s>", "a", "b", "c", "d"].map(String::from).to_vec();
            let mut rows: Vec<Vec<Vec<u32>>> = vec![(0..7).map(|id| vec![id]).collect()];
            for gram in grams {
                for width in 2..=gram.len() {
                    if rows.len() < width {
                        rows.push(Vec::new());
                    }
                    rows[width - 1].push(gram[..width].to_vec());
                }
            }
            let mut numbers = numbers.into_iter();
            let entries = rows.into_iter().enumerate().map(|(k, mut rows)| {
                rows.sort();
                rows.dedup();
                let mut entries = OrderEntries::new(k + 1);
                for row in rows {
                    let (prob, backoff) = numbers.next().unwrap();
                    // Some weights are 0.
                    let backoff = backoff.saturating_sub(300) as f32 / -600.0;
                    entries.push(row, prob as f32 / -1000.0, backoff);
                }
                entries
            });
            NgramTable { orders: entries.collect(), words }
        },
    )
}

const NAMES: [&str; 6] = ["c", "", "a", "e", "b", "d"];

proptest! {
    #[test]
    fn scores_match_the_definition(
        table in tables(),
        texts in prop::collection::vec(prop::collection::vec(0u32..6, 0..7), 1..8),
    ) {
        let (ngram, definition) =
            (Ngram::new(&table, &NAMES, OutOfVocabulary::Ignore).unwrap(), BackoffDefinition::new(&table));
        for text in texts {
            let (sum, state) = sequence_score(&ngram, &text);
            let words: Vec<&str> =
                text.iter().map(|&class| NAMES[class as usize]).filter(|name| !name.is_empty()).collect();
            let (actual, expected) = (f64::from(sum + ngram.finish(state)), definition.text_score(&words));
            prop_assert!((actual - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{actual} {expected}");
        }
        for state in 0..ngram.states() as u32 + 2 {
            assert_row_matches_steps(&ngram, state, 6, &[1]);
            // Rows may be shorter or longer than the vocabulary.
            assert_row_matches_steps(&ngram, state, 3, &[1]);
            assert_row_matches_steps(&ngram, state, 8, &[1, 6, 7]);
        }
    }

    #[test]
    fn a_class_may_be_unk(table in tables(), text in prop::collection::vec(0u32..4, 0..7)) {
        let names = ["a", "<unk>", "e", "b"];
        let (ngram, definition) =
            (Ngram::new(&table, &names, OutOfVocabulary::Ignore).unwrap(), BackoffDefinition::new(&table));
        let (sum, state) = sequence_score(&ngram, &text);
        let words: Vec<&str> = text.iter().map(|&class| names[class as usize]).collect();
        let (actual, expected) = (f64::from(sum + ngram.finish(state)), definition.text_score(&words));
        prop_assert!((actual - expected).abs() <= 1e-5 * (1.0 + expected.abs()), "{actual} {expected}");
        (0..ngram.states() as u32).for_each(|state| assert_row_matches_steps(&ngram, state, 4, &[]));
    }
}

#[test]
fn equivalent_contexts_share_a_state() {
    // `a b` has no continuation and no weight: its state is that of `b`.
    let text = "\\data\\\nngram 1=3\nngram 2=3\nngram 3=1\n\\1-grams:\n-1 a -0.5\n-1 b -0.5\n-1 <s> -0.5\n\\2-grams:\n\
        -0.5 a b\n-0.5 b a -0.1\n-0.5 <s> a\n\\3-grams:\n-0.25 b a b\n\\end\\";
    let ngram = Ngram::new(&NgramTable::read(text.as_bytes()).unwrap(), &["a", "b"], OutOfVocabulary::Reject)
        .unwrap();
    let after = |text: &[u32]| sequence_score(&ngram, text).1;
    assert_eq!(after(&[0, 1]), after(&[1]));
    assert_eq!(after(&[1, 0]), after(&[0, 1, 0]));
    assert_ne!(after(&[1, 0]), after(&[0]));
    // Empty, a, b, <s>, b a.
    assert_eq!(ngram.states(), 5);
    // Without `</s>` the final score is 0.
    assert_eq!(ngram.finish(after(&[1])), 0.0);
}

#[test]
fn invalid_vocabularies_are_errors() {
    let text = "\\data\\\nngram 1=3\n\\1-grams:\n-1 a\n-1 x\n-1 <unk>\n\\end\\";
    let table = NgramTable::read(text.as_bytes()).unwrap();
    let error = |names: &[&str], out_of_vocabulary| Ngram::new(&table, names, out_of_vocabulary).unwrap_err();
    assert_eq!(error(&["a", "b"], OutOfVocabulary::Reject), Error::Token { token: "x".into() });
    assert_eq!(error(&["b", "c"], OutOfVocabulary::Ignore), Error::NoToken { found: 3 });
    assert_eq!(error(&[], OutOfVocabulary::Ignore), Error::NoToken { found: 3 });
    let name = |class, expected, name: &str| Error::Name { class, expected, name: name.into() };
    assert_eq!(error(&["a", "b", "a"], OutOfVocabulary::Ignore), name(2, "a unique name", "a"));
    assert_eq!(error(&[" ", "<space>"], OutOfVocabulary::Ignore), name(1, "a unique name", "<space>"));
    assert_eq!(
        error(&["a", "</s>"], OutOfVocabulary::Ignore),
        name(1, "another name than `<s>` and `</s>`", "</s>")
    );
    let ngram = Ngram::new(&table, &["b", "a"], OutOfVocabulary::Ignore).unwrap();
    assert_eq!((ngram.skipped_words(), ngram.is_unknown(0), ngram.is_unknown(1)), (1, true, false));
    assert_eq!(ngram.step(ngram.start(), 0).0, ngram.step(ngram.start(), 1).0);
}

/// Scores of `kenlm.DecodingModel(...).full_scores(...)`, python module 0.3.0, for the file in this
/// test.
#[test]
fn scores_match_kenlm() {
    let text = "\\data\\\nngram 1=5\nngram 2=4\nngram 3=2\n\n\\1-grams:\n-1.5\t<unk>\n-99\t<s>\t-0.3\n-0.6\t</s>\n-0.5\ta\t-0.25\n\
        -0.75\tb\t-0.125\n\n\\2-grams:\n-0.2\t<s> a\t-0.1\n-0.4\ta b\t-0.35\n-0.3\tb </s>\n-0.9\tb b\t-0.01\n\n\
        \\3-grams:\n-0.05\t<s> a b\n-0.07\ta b b\n\n\\end\\\n";
    let ngram =
        Ngram::new(&NgramTable::read(text.as_bytes()).unwrap(), &["a", "b", "z"], OutOfVocabulary::Reject)
            .unwrap();
    let kenlm: [(&[u32], f32); 7] = [
        (&[], -0.9),
        (&[0], -1.15),
        (&[0, 1], -0.9),
        (&[0, 1, 1], -0.63),
        (&[1, 0, 1, 2, 0], -5.4),
        (&[1, 1, 1, 0], -4.345),
        (&[2, 2, 1], -4.35),
    ];
    for (classes, log10) in kenlm {
        let (sum, state) = sequence_score(&ngram, classes);
        let actual = (sum + ngram.finish(state)) / 10f32.ln();
        assert!((actual - log10).abs() < 1e-5, "{classes:?}: {actual} {log10}");
    }
}

#[test]
fn long_rows_match_steps() {
    let names: Vec<String> = (0..150).map(|i| format!("w{i}")).collect();
    let texts: Vec<Vec<u32>> =
        (0..40u32).map(|i| (0..9).map(|j| (i * i * 7 + j * (i % 5) * 31) % 150).collect()).collect();
    let table = estimate(&texts, &names, 3).unwrap().table;
    // Some classes without a name, some outside the table.
    let name_of = |i: usize| match i % 50 {
        17 => String::new(),
        18 => format!("x{i}"),
        _ => names[i].clone(),
    };
    let classes: Vec<String> = (0..150).map(name_of).collect();
    let ngram = Ngram::new(&table, &classes, OutOfVocabulary::Ignore).unwrap();
    assert!(ngram.states() > 100 && ngram.skipped_words() == 6);
    (0..ngram.states() as u32).for_each(|state| assert_row_matches_steps(&ngram, state, 150, &[17, 67, 117]));
}
