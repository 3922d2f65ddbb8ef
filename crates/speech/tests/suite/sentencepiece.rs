//! Tests of tokenizers that are imported from SentencePiece.
//!
//! The developer tool `golden` compares with the program itself; here, segmentations are compared
//! with brute force.

use proptest::prelude::*;
use speech::{Error, Tokenizer, TokenizerKind};

use crate::sentencepiece_bytes::{
    BPE, CHAR, CONTROL, ModelBytes, NORMAL, UNIGRAM, UNUSED, USER_DEFINED, bytes_field, integer_field,
};

fn tokenizer(model: &ModelBytes) -> Tokenizer {
    Tokenizer::from_sentencepiece(&model.to_bytes()).unwrap()
}

/// Pieces of a unigram model; the scores of some are sums of others.
const PIECES: [(&str, f32, u64); 8] = [
    ("▁", -1.0, NORMAL),
    ("a", -2.0, NORMAL),
    ("b", -2.5, NORMAL),
    ("ab", -3.0, NORMAL),
    ("▁a", -3.0, NORMAL),
    ("ba", -4.5, NORMAL),
    ("aba", -9.0, NORMAL),
    ("<x>", 0.0, USER_DEFINED),
];

/// Returns the score of the best segmentation, by brute force.
fn best_score(text: &str) -> f32 {
    let Some(first) = text.chars().next() else { return 0.0 };
    let pieces = PIECES.iter().filter(|(piece, ..)| text.starts_with(piece));
    let mut options: Vec<(usize, f32)> = pieces
        .map(|&(piece, score, role)| (piece.len(), if role == USER_DEFINED { -0.1 } else { score }))
        .collect();
    if !options.iter().any(|(length, _)| *length == first.len_utf8()) {
        options.push((first.len_utf8(), -19.0));
    }
    let scores = options.into_iter().map(|(length, score)| score + best_score(&text[length..]));
    scores.fold(f32::NEG_INFINITY, f32::max)
}

/// Merges the pair with the highest score until there is none.
fn naive_merges(text: &str, pieces: &[(&str, f32, u64)]) -> Vec<String> {
    let mut symbols: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let score = |i: usize| {
            let merged = symbols[i - 1].clone() + &symbols[i];
            pieces.iter().find(|(piece, ..)| *piece == merged).map(|(_, score, _)| *score)
        };
        let mut best: Option<(f32, usize)> = None;
        for i in 1..symbols.len() {
            if let Some(score) = score(i).filter(|score| best.is_none_or(|(other, _)| *score > other)) {
                best = Some((score, i));
            }
        }
        let Some((_, i)) = best else { return symbols };
        let second = symbols.remove(i);
        symbols[i - 1] += &second;
    }
}

/// Pieces of byte-pair encoding, in the order of merges.
const MERGES: [(&str, f32, u64); 9] = [
    ("ab", 0.0, NORMAL),
    ("▁a", -1.0, NORMAL),
    ("aba", -2.0, NORMAL),
    ("bb", -3.0, NORMAL),
    ("▁ab", -4.0, NORMAL),
    ("abab", -5.0, NORMAL),
    ("a", -6.0, NORMAL),
    ("b", -7.0, NORMAL),
    ("▁", -8.0, NORMAL),
];

proptest! {
    #[test]
    fn unigram_segmentations_have_the_highest_score(text in "[ab]{0,5}(<x>)?[ab c]{0,6}") {
        let tokenizer = tokenizer(&ModelBytes { removes_extra_spaces: false, ..ModelBytes::new(UNIGRAM, &PIECES) });
        let ids = tokenizer.encode(&text).unwrap();
        let normalized = if text.is_empty() { String::new() } else { format!("▁{}", text.replace(' ', "▁")) };
        let score = |id: u32| match id {
            0 => -19.0,
            8 => -0.1,
            id => PIECES[id as usize - 1].1,
        };
        // A run of unknown characters is one id.
        let num_unknown = normalized.matches(['<', '>', 'c', 'x']).count() - 3 * text.matches("<x>").count();
        let runs = ids.iter().filter(|&&id| id == 0).count();
        let total: f32 = ids.iter().map(|&id| score(id)).sum::<f32>() - 19.0 * (num_unknown - runs) as f32;
        prop_assert!((total - best_score(&normalized)).abs() < 1e-3, "{} {}", total, best_score(&normalized));
        prop_assert_eq!(tokenizer.decode(&ids).unwrap().replace(" \u{2047} ", "c"), squeeze(&text));
    }

    #[test]
    fn merges_equal_those_of_a_naive_search(text in "[ab ]{0,12}") {
        let tokenizer = tokenizer(&ModelBytes::new(BPE, &MERGES));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let normalized = if text.is_empty() { String::new() } else { format!("▁{}", text.replace(' ', "▁")) };
        let ids = tokenizer.encode(&text).unwrap();
        let pieces: Vec<String> = ids.iter().map(|&id| tokenizer.tokens()[id as usize].clone()).collect();
        prop_assert_eq!(pieces, naive_merges(&normalized, &MERGES));
        prop_assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    }

    #[test]
    fn any_text_is_encoded_and_byte_fallback_is_lossless(text in any::<String>()) {
        for algorithm in [UNIGRAM, BPE, CHAR] {
            let plain = tokenizer(&ModelBytes::new(algorithm, &PIECES));
            let ids = plain.encode(&text).unwrap();
            prop_assert!(ids.windows(2).all(|pair| pair != [0, 0]));
            plain.decode(&ids).unwrap();
            let lossless = ModelBytes { removes_extra_spaces: false, ..ModelBytes::new(algorithm, &PIECES).with_bytes() };
            let lossless = tokenizer(&lossless);
            let decoded = lossless.decode(&lossless.encode(&text).unwrap()).unwrap();
            prop_assert_eq!(decoded, text.replace('▁', " "));
        }
    }
}

/// Replaces each run of `c` by one.
fn squeeze(text: &str) -> String {
    let mut squeezed = String::new();
    for c in text.chars() {
        if c != 'c' || !squeezed.ends_with('c') {
            squeezed.push(c);
        }
    }
    squeezed
}

#[test]
fn unused_pieces_are_split_again() {
    let mut pieces = MERGES;
    // "aba" is merged from "ab" and "a", and is itself a step to "abab".
    pieces[2].2 = UNUSED;
    let tokenizer = tokenizer(&ModelBytes::new(BPE, &pieces));
    let tokens = |text: &str| -> Vec<String> {
        tokenizer.encode(text).unwrap().iter().map(|&id| tokenizer.tokens()[id as usize].clone()).collect()
    };
    assert_eq!(tokens("baba"), ["▁", "b", "ab", "a"]);
}

#[test]
fn user_defined_pieces_are_not_merged_and_control_pieces_never_match() {
    let pieces = [
        ("a", -5.0, NORMAL),
        ("▁", -6.0, NORMAL),
        ("<", -7.0, NORMAL),
        ("s", -8.0, NORMAL),
        (">", -9.0, NORMAL),
        ("<s>", 0.0, CONTROL),
        ("<pad>", 0.0, USER_DEFINED),
        ("a<pad>", -1.0, NORMAL),
    ];
    for algorithm in [UNIGRAM, BPE, CHAR] {
        let tokenizer = tokenizer(&ModelBytes::new(algorithm, &pieces));
        let ids = tokenizer.encode("a<pad><s>").unwrap();
        // The unigram model has a better piece, merges do not reach it.
        let begin: &[u32] = if algorithm == UNIGRAM { &[2, 8] } else { &[2, 1, 7] };
        assert_eq!(ids, [begin, &[3, 4, 5]].concat(), "{algorithm}");
        assert_eq!(tokenizer.decode(&[2, 1, 6, 7, 1]).unwrap(), "a<pad>a");
    }
}

#[test]
fn special_pieces_are_special_words() {
    let pieces =
        [("▁", -1.0, NORMAL), ("a", -2.0, NORMAL), ("<pad>", 0.0, USER_DEFINED), ("</s>", 0.0, CONTROL)];
    let tokenizer = tokenizer(&ModelBytes::new(UNIGRAM, &pieces));
    assert_eq!(tokenizer.kind(), TokenizerKind::SentencePiece);
    assert_eq!(tokenizer.size(), 5);
    assert_eq!(tokenizer.special_words(), ["<pad>"]);
    assert_eq!([0, 1, 2, 3, 4].map(|id| tokenizer.is_special(id)), [true, false, false, true, true]);
    let text = tokenizer.decode(&tokenizer.encode("a<pad>a  é aa").unwrap()).unwrap();
    assert_eq!(text, "a<pad>a  \u{2047}  aa");
    assert_eq!(tokenizer.without_special(&text), "a a aa");
}

#[test]
fn texts_are_normalized_for_scoring() {
    let tokenizer = tokenizer(&ModelBytes::new(UNIGRAM, &PIECES));
    assert_eq!(tokenizer.normalize("  a  b "), "a b");
    assert_eq!(tokenizer.normalize(""), "");
}

#[test]
fn the_stored_form_has_the_same_file() {
    for model in [ModelBytes::new(UNIGRAM, &PIECES), ModelBytes::new(BPE, &MERGES).with_bytes()] {
        let bytes = model.to_bytes();
        let first = Tokenizer::from_sentencepiece(&bytes).unwrap();
        let json = first.to_json().unwrap();
        let second = Tokenizer::from_json(&json).unwrap();
        assert_eq!(second.source_file(), Some(("tokenizer.model", &bytes[..])));
        assert_eq!(second.to_json().unwrap(), json);
        assert_eq!((second.tokens(), second.special_words()), (first.tokens(), first.special_words()));
        for (from, to) in [
            ("\"sentencepiece\"", "\"words\""),
            ("\"sentencepiece\"", "\"huggingface\""),
            ("\"tokens\":[\"<unk>\"", "\"tokens\":[\"<ukn>\""),
            ("\"tokens\":[\"<unk>\",", "\"tokens\":["),
            ("\"tokens\"", "\"scores\":[1],\"tokens\""),
            ("\"file\":\"", "\"file\":\"AA"),
            ("\"tokens\"", "\"special\":[\"<y>\"],\"tokens\""),
        ] {
            let damaged = json.replacen(from, to, 1);
            assert_ne!(damaged, json);
            let error = Tokenizer::from_json(&damaged).unwrap_err();
            assert!(matches!(error, Error::TokenizerFile { .. }), "{to}: {error}");
        }
    }
    let words = Tokenizer::train(TokenizerKind::Words, &["a"]).unwrap();
    assert_eq!(words.source_file(), None);
    let error = Tokenizer::train(TokenizerKind::SentencePiece, &["a"]).unwrap_err();
    assert!(matches!(error, Error::Setting { field: "kind", .. }), "{error}");
    let kind: TokenizerKind = serde_json::from_str("\"sentencepiece\"").unwrap();
    assert_eq!(kind, TokenizerKind::SentencePiece);
}

#[test]
fn damaged_and_unsupported_models_are_errors() {
    let good = ModelBytes::new(UNIGRAM, &PIECES);
    let with_pieces = |pieces: &[(&str, f32, u64)]| ModelBytes::new(UNIGRAM, pieces);
    let with_trainer = |fields: Vec<u8>| ModelBytes { trainer_fields: fields, ..good.clone() };
    let cases = [
        ("empty", Vec::new()),
        ("no pieces", ModelBytes { pieces: Vec::new(), ..good.clone() }.to_bytes()),
        ("two unknown", with_pieces(&[("<u>", 0.0, 2)]).to_bytes()),
        ("twice", with_pieces(&[("a", 0.0, NORMAL), ("a", 0.0, NORMAL)]).to_bytes()),
        ("no text", with_pieces(&[("", 0.0, NORMAL)]).to_bytes()),
        ("score", with_pieces(&[("a", f32::NAN, NORMAL)]).to_bytes()),
        ("type", with_pieces(&[("a", 0.0, 7)]).to_bytes()),
        ("byte without fallback", with_pieces(&[("<0x00>", 0.0, 6)]).to_bytes()),
        ("byte name", with_pieces(&[("<0x0>", 0.0, 6)]).to_bytes()),
        ("missing bytes", ModelBytes { byte_fallback: true, ..good.clone() }.to_bytes()),
        ("words", ModelBytes { algorithm: 3, ..good.clone() }.to_bytes()),
        ("suffix", with_trainer(integer_field(24, 1)).to_bytes()),
        ("wire type", with_trainer(integer_field(44, 1)).to_bytes()),
        ("charsmap", ModelBytes { charsmap: vec![1; 9], ..good.clone() }.to_bytes()),
        ("denormalizer", [good.to_bytes(), bytes_field(5, &bytes_field(2, b"x"))].concat()),
        ("cut", good.to_bytes()[..50].to_vec()),
    ];
    for (name, bytes) in cases {
        let error = Tokenizer::from_sentencepiece(&bytes).map(drop).unwrap_err();
        assert!(matches!(error, Error::TokenizerFile { .. }), "{name}: {error}");
    }
    let surface = with_trainer(bytes_field(44, b"?"));
    assert_eq!(tokenizer(&surface).decode(&[0, 2]).unwrap(), "?a");
    let error = tokenizer(&good).decode(&[9]).unwrap_err();
    assert!(matches!(error, Error::UnknownId { size: 9, id: 9, index: 0 }), "{error}");
}
