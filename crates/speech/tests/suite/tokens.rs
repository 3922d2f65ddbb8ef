//! Tests of tokenizers: vocabularies, round trips, reproducible training, invalid files.

use proptest::prelude::*;
use speech::TokenizerKind::{Bpe, Characters, InnerCharacters, Unigram, Words};
use speech::{Error, Tokenizer, TokenizerKind};

const TEXTS: [&str; 5] =
    ["the cat sat", "a cat's hat", "that bat", "the tea ate a cake", "\u{e9}t\u{e9} zoo"];
const KINDS: [TokenizerKind; 7] = [
    Words,
    Characters,
    InnerCharacters,
    Bpe { size: 16 },
    Bpe { size: 60 },
    Unigram { size: 17 },
    Unigram { size: 60 },
];

fn train_tokenizer(kind: TokenizerKind) -> Tokenizer {
    Tokenizer::train(kind, &TEXTS).unwrap()
}

#[test]
fn vocabularies_are_as_expected() {
    let tokens = |kind| Tokenizer::train(kind, &["a cat", " a  taco "]).unwrap().tokens().to_vec();
    assert_eq!(tokens(Words), ["a", "cat", "taco"]);
    assert_eq!(tokens(Characters), [" ", "a", "c", "o", "t"]);
    assert_eq!(tokens(InnerCharacters), ["a", "c", "o", "t", "▁a", "▁c", "▁t"]);
    assert_eq!(tokens(Bpe { size: 5 }), ["a", "c", "o", "t", "▁"]);
    // Only pairs that occur twice are merged, the mark and the single "a" first.
    assert_eq!(tokens(Bpe { size: 6 })[5], "▁a");
}

#[test]
fn encodings_are_as_expected() {
    let encode = |kind, text: &str| {
        let tokenizer = train_tokenizer(kind);
        let ids = tokenizer.encode(text).unwrap();
        ids.iter().map(|&id| tokenizer.tokens()[id as usize].clone()).collect::<Vec<_>>()
    };
    assert_eq!(encode(Words, "cat the"), ["cat", "the"]);
    assert_eq!(encode(Characters, "a cat"), ["a", " ", "c", "a", "t"]);
    assert_eq!(encode(InnerCharacters, "a cat"), ["▁a", "▁c", "a", "t"]);
    assert_eq!(encode(Bpe { size: 60 }, "the cat").concat(), "▁the▁cat");
    assert!(encode(Bpe { size: 60 }, "the cat").len() < 8);
}

#[test]
fn training_does_not_depend_on_the_order_of_texts() {
    let mut reversed = TEXTS;
    reversed.reverse();
    for kind in KINDS {
        let json = train_tokenizer(kind).to_json().unwrap();
        for _ in 0..5 {
            assert_eq!(json, Tokenizer::train(kind, &reversed).unwrap().to_json().unwrap());
        }
    }
}

#[test]
fn training_does_not_depend_on_the_number_of_threads() {
    // Enough different words that the order of sums would change the last bits.
    let number = |n: u32| format!("{}ty {}teen by {n:b}", ["six", "seven", "eight"][n as usize % 3], n / 7);
    let texts: Vec<String> = (0..600).map(number).collect();
    for kind in [Bpe { size: 200 }, Unigram { size: 200 }] {
        let train = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| Tokenizer::train(kind, &texts).unwrap().to_json().unwrap())
        };
        let single_threaded = train(1);
        for threads in [1, 2, 3, 8] {
            assert_eq!(single_threaded, train(threads), "{kind:?}, {threads} threads");
        }
    }
}

#[test]
fn unigram_pieces_are_the_most_probable() {
    let stored = |tokens: &str, scores: &str| {
        let kind = r#"{"unigram": {"size": 9}}"#;
        let json = format!(
            r#"{{"format": "panda-tokens/1", "kind": {kind}, "tokens": [{tokens}], "scores": [{scores}]}}"#
        );
        Tokenizer::from_json(&json).unwrap()
    };
    let pieces = |tokenizer: &Tokenizer, text: &str| {
        let ids = tokenizer.encode(text).unwrap();
        ids.iter().map(|&id| tokenizer.tokens()[id as usize].clone()).collect::<Vec<_>>()
    };
    let letters = r#""▁", "a", "b", "c""#;
    let tokenizer = stored(&format!(r#"{letters}, "ab", "bc", "▁a""#), "-30, -20, -20, -20, -25, -24, -40");
    // ▁ + a + bc = -74, ▁ + ab + c = -75, ▁a + bc = -64.
    assert_eq!(pieces(&tokenizer, "abc"), ["▁a", "bc"]);
    assert_eq!(pieces(&tokenizer, "bab ab"), ["▁", "b", "ab", "▁", "ab"]);
    // With equal scores, the longest last piece is chosen.
    let tokenizer = stored(&format!(r#"{letters}, "ab", "bc""#), "-30, -20, -20, -20, -25, -25");
    assert_eq!(pieces(&tokenizer, "abc"), ["▁", "a", "bc"]);
    // Sums must be exact when scores differ by much less than a nat.
    let tokenizer = stored(&format!(r#"{letters}, "ab", "bc""#), "-9, -1, -1, -2147483648, -2147483647, -2");
    assert_eq!(pieces(&tokenizer, "abcab"), ["▁", "a", "bc", "a", "b"]);
}

#[test]
fn repeated_parts_of_words_are_unigram_pieces() {
    let texts = ["walking talking", "walked talked", "walks talks", "walk talk king"];
    let tokenizer = Tokenizer::train(Unigram { size: 19 }, &texts).unwrap();
    let tokens = tokenizer.tokens();
    assert_eq!(tokens[..3], ["▁talk", "▁walk", "ing"], "{tokens:?}");
    // All characters have a token, so any text of them can be encoded.
    let ids = tokenizer.encode("gnikla").unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), "gnikla");
}

#[test]
fn unigram_vocabularies_have_the_configured_size() {
    // There are 16 different characters, including the mark.
    let size = |size| train_tokenizer(Unigram { size }).size();
    assert_eq!([size(16), size(17), size(20)], [16, 17, 20]);
    assert!(size(1_000_000_000_000) < 100);
    assert!(Tokenizer::train(Unigram { size: 2 }, &["a"]).unwrap().size() == 2);
    let error = Tokenizer::train(Unigram { size: 3 }, &TEXTS).unwrap_err();
    assert!(matches!(error, Error::Setting { field: "size", .. }), "{error}");
    // Characters with a special meaning in the library, and words too long for it.
    for text in ["<UNK> <UNK>", "a\0b a\0b", &"long".repeat(3000), &"é".repeat(17)] {
        let tokenizer = Tokenizer::train(Unigram { size: 30 }, &[text]).unwrap();
        assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()).unwrap(), text);
    }
}

#[test]
fn bpe_vocabularies_have_the_configured_size_if_possible() {
    assert_eq!(train_tokenizer(Bpe { size: 16 }).size(), 16);
    assert!(train_tokenizer(Bpe { size: 1000 }).size() < 100);
    let error = Tokenizer::train(Bpe { size: 3 }, &TEXTS).unwrap_err();
    assert!(matches!(error, Error::Setting { field: "size", .. }), "{error}");
}

#[test]
fn unknown_symbols_are_reported() {
    for kind in KINDS {
        let (text, symbol) = match kind {
            Words => ("the dog sat", "dog"),
            InnerCharacters => ("the cat xat", "▁x"),
            _ => ("the cat xat", "x"),
        };
        let error = train_tokenizer(kind).encode(text).unwrap_err();
        assert!(
            matches!(&error, Error::UnknownSymbol { symbol: s, text: t } if s == symbol && t == text),
            "{kind:?}: {error}"
        );
    }
    // Known characters, but not at the beginning of a word.
    assert!(matches!(train_tokenizer(InnerCharacters).encode("kcat"), Err(Error::UnknownSymbol { .. })));
    // The unknown token of the library is an ordinary unknown word.
    assert!(matches!(train_tokenizer(Words).encode("<unk>"), Err(Error::UnknownSymbol { .. })));
}

#[test]
fn marks_in_texts_are_refused() {
    for kind in [InnerCharacters, Bpe { size: 16 }, Unigram { size: 16 }] {
        assert!(matches!(Tokenizer::train(kind, &["a ▁b"]), Err(Error::ReservedSymbol { symbol: '▁', .. })));
        assert!(matches!(train_tokenizer(kind).encode("▁a"), Err(Error::ReservedSymbol { .. })));
    }
}

#[test]
fn no_text_and_unknown_ids_are_errors() {
    for kind in KINDS {
        assert!(matches!(Tokenizer::train(kind, &[" ", ""]), Err(Error::NoText)));
        let tokenizer = train_tokenizer(kind);
        let size = tokenizer.size();
        let error = tokenizer.decode(&[0, size as u32]).unwrap_err();
        assert!(matches!(error, Error::UnknownId { index: 1, .. }), "{error}");
        assert_eq!(tokenizer.decode(&[]).unwrap(), "");
        assert_eq!(tokenizer.encode("").unwrap(), Vec::<u32>::new());
    }
}

#[test]
fn any_ids_decode() {
    // Recognized tokens need not start with a token that begins a word.
    let tokenizer = train_tokenizer(InnerCharacters);
    let id = |token: &str| tokenizer.tokens().iter().position(|t| t == token).unwrap() as u32;
    assert_eq!(tokenizer.decode(&[id("a"), id("t"), id("▁c")]).unwrap(), "at c");
}

#[test]
fn json_round_trips() {
    for kind in KINDS {
        let tokenizer = train_tokenizer(kind);
        let json = tokenizer.to_json().unwrap();
        let again = Tokenizer::from_json(&json).unwrap();
        assert_eq!(
            (again.kind(), again.tokens(), again.to_json().unwrap()),
            (kind, tokenizer.tokens(), json)
        );
        for text in TEXTS {
            assert_eq!(again.encode(text).unwrap(), tokenizer.encode(text).unwrap());
        }
    }
}

#[test]
fn foreign_and_damaged_json_is_refused() {
    let file = |kind: &str, tokens: &str, rest: &str| {
        format!(r#"{{"format": "panda-tokens/1", "kind": {kind}, "tokens": [{tokens}]{rest}}}"#)
    };
    let bpe = r#"{"bpe": {"size": 3}}"#;
    assert!(Tokenizer::from_json(&file("\"words\"", r#""a", "b""#, "")).is_ok());
    assert!(Tokenizer::from_json(&file(bpe, r#""a", "b", "ab""#, r#", "merges": [["a", "b"]]"#)).is_ok());
    let unigram = r#"{"unigram": {"size": 3}}"#;
    assert!(Tokenizer::from_json(&file(unigram, r#""a", "▁""#, r#", "scores": [-1, -2]"#)).is_ok());
    let bad = [
        String::new(),
        "[]".into(),
        r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 0}}}"#.into(),
        file("\"words\"", r#""a""#, "").replace("tokens/1", "tokens/2"),
        file("\"words\"", "", ""),
        file("\"words\"", r#""a", "a""#, ""),
        file("\"words\"", r#""a", "b c""#, ""),
        file("\"words\"", r#""a""#, r#", "more": 1"#),
        file("\"words\"", r#""a", "b", "ab""#, r#", "merges": [["a", "b"]]"#),
        file("\"letters\"", r#""a""#, ""),
        file("\"characters\"", r#""ab""#, ""),
        file("\"inner-characters\"", r#""▁""#, r#", "merges": [["a", "b"]]"#),
        file("\"inner-characters\"", r#""ab""#, ""),
        file(bpe, r#""a", "b""#, r#", "merges": [["a", "b"]]"#),
        file(bpe, r#""a", "a▁""#, ""),
        file(r#"{"bpe": {"size": 3, "seize": 4}}"#, r#""a""#, ""),
        file(unigram, r#""a""#, ""),
        file(unigram, r#""a""#, r#", "scores": [1, 2]"#),
        file(unigram, r#""a""#, r#", "scores": [-1.5]"#),
        file(unigram, r#""a", "b▁""#, r#", "scores": [-1, -2]"#),
        file("\"words\"", r#""a""#, r#", "scores": [-1]"#),
    ];
    for json in bad {
        let error = Tokenizer::from_json(&json).err().unwrap_or_else(|| panic!("accepted: {json}"));
        assert!(matches!(error, Error::TokenizerFile { .. }), "{json}: {error}");
    }
}

#[test]
fn kinds_have_lower_case_names() {
    let json = |kind: TokenizerKind| serde_json::to_string(&kind).unwrap();
    assert_eq!(json(Words), r#""words""#);
    assert_eq!(json(Characters), r#""characters""#);
    assert_eq!(json(InnerCharacters), r#""inner-characters""#);
    assert_eq!(json(Bpe { size: 9 }), r#"{"bpe":{"size":9}}"#);
    assert_eq!(json(Unigram { size: 9 }), r#"{"unigram":{"size":9}}"#);
}

proptest! {
    #[test]
    fn decoding_inverts_encoding(words in prop::collection::vec("[acehkst'\u{e9}z]{1,6}", 1..6), gap in "[ \t]{1,2}") {
        let mut texts: Vec<String> = TEXTS.iter().map(|t| t.to_string()).collect();
        texts.push(words.join(&gap));
        for kind in KINDS {
            let tokenizer = Tokenizer::train(kind, &texts).unwrap();
            let ids = tokenizer.encode(&words.join(&gap)).unwrap();
            prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.size()));
            prop_assert_eq!(tokenizer.decode(&ids).unwrap(), words.join(" "));
        }
    }
}

#[test]
fn errors_for_invalid_kinds_are_specific() {
    for kind in KINDS {
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(serde_json::from_str::<TokenizerKind>(&json).unwrap(), kind, "{json}");
    }
    assert_eq!(serde_json::from_str::<TokenizerKind>(r#"{"words": null}"#).unwrap(), Words);
    let cases = [
        (r#""bpe""#, "kind `bpe` requires `size`"),
        (r#""unigram""#, "kind = { unigram = { size"),
        (r#"{"unigram": {"pieces": 5}}"#, "unknown field `pieces`"),
        (r#"{"bpe": {}}"#, "missing field `size`"),
        (r#"{"bpe": {"size": 5, "sizes": 5}}"#, "unknown field `sizes`"),
        (r#"{"bpe": {"size": -5}}"#, "invalid value"),
        (r#""byte-pairs""#, "unknown kind `byte-pairs`, expected `words`, `characters`"),
        ("7", "expected `words`"),
    ];
    for (json, part) in cases {
        let message = serde_json::from_str::<TokenizerKind>(json).unwrap_err().to_string();
        assert!(message.contains(part), "{json}: {message}");
    }
}
