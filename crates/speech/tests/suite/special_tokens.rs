//! Tests of tokenizers: special words, Unicode forms and sentence marks.

use speech::TokenizerKind::{Bpe, Characters, InnerCharacters, Unigram, Words};
use speech::{Error, Tokenizer, TokenizerKind, TokenizerOptions, UnicodeForm};

const KINDS: [TokenizerKind; 5] =
    [Words, Characters, InnerCharacters, Bpe { size: 24 }, Unigram { size: 24 }];

fn train_with_special(kind: TokenizerKind, words: &[&str], texts: &[&str]) -> Tokenizer {
    let special = Some(words.iter().map(|&word| word.to_owned()).collect());
    Tokenizer::train_with(&TokenizerOptions { special, ..TokenizerOptions::new(kind) }, texts).unwrap()
}

#[test]
fn words_in_angle_brackets_are_one_label_each() {
    let texts = ["<unk> turn left", "turn <unk> right", "<laugh> turn <unk>"];
    for kind in KINDS {
        let tokenizer = Tokenizer::train(kind, &texts).unwrap();
        assert_eq!(tokenizer.special_words(), ["<laugh>", "<unk>"], "{kind:?}");
        let bracketed: Vec<&String> = tokenizer.tokens().iter().filter(|token| token.contains('<')).collect();
        assert_eq!(bracketed.len(), 2, "{kind:?} {:?}", tokenizer.tokens());
        for text in
            texts.iter().chain(&["turn <unk> left", "<unk>", "<unk> <laugh> <unk>", "left <laugh> turn"])
        {
            let ids = tokenizer.encode(text).unwrap();
            let count = text.split(' ').filter(|word| word.starts_with('<')).count();
            assert_eq!(ids.iter().filter(|&&id| tokenizer.is_special(id)).count(), count, "{kind:?} {text}");
            assert_eq!(tokenizer.decode(&ids).unwrap(), *text, "{kind:?}");
        }
        assert_eq!(tokenizer.without_special(" <unk> turn  <laugh> left"), "turn left");
        let again = Tokenizer::from_json(&tokenizer.to_json().unwrap()).unwrap();
        assert_eq!(again.encode("turn <unk> left").unwrap(), tokenizer.encode("turn <unk> left").unwrap());
        assert_eq!(again.special_words(), tokenizer.special_words());
    }
    // Texts of special words only.
    for kind in KINDS {
        let tokenizer = Tokenizer::train(kind, &["<a> <b>", "<b>"]).unwrap();
        let ids = tokenizer.encode("<b> <a>").unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), "<b> <a>", "{kind:?}");
        Tokenizer::from_json(&tokenizer.to_json().unwrap()).unwrap();
    }
}

#[test]
fn a_list_replaces_words_in_angle_brackets() {
    for kind in KINDS {
        let tokenizer = train_with_special(kind, &["[noise]", "uh"], &["uh a [noise] <b> c"]);
        assert_eq!(tokenizer.special_words(), ["[noise]", "uh"], "{kind:?}");
        let ids = tokenizer.encode("[noise] uh <b>").unwrap();
        assert_eq!(ids.iter().filter(|&&id| tokenizer.is_special(id)).count(), 2, "{kind:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), "[noise] uh <b>", "{kind:?}");
        // A listed word that is in no text is a label, too.
        let unused = train_with_special(kind, &["[cough]"], &["a b"]);
        assert_eq!(unused.encode("[cough]").unwrap().len(), 1, "{kind:?}");
    }
    for word in ["", "a b", "<s>", "</s>", "\u{2581}x"] {
        let special = Some(vec![word.to_owned()]);
        let options = TokenizerOptions { special, ..TokenizerOptions::new(Characters) };
        let error = Tokenizer::train_with(&options, &["a b"]).unwrap_err();
        assert!(matches!(error, Error::Setting { field: "special", .. }), "{word:?}: {error}");
    }
    let options =
        TokenizerOptions { special: Some(vec!["[x]".into()]), ..TokenizerOptions::new(Bpe { size: 3 }) };
    let error = Tokenizer::train_with(&options, &["ab [x]"]).unwrap_err();
    assert!(error.to_string().contains("3 characters and 1 special words"), "{error}");
}

#[test]
fn stored_special_words_require_tokens() {
    let stored = |tokens: &str| {
        let json = format!(
            r#"{{"format": "panda-tokens/1", "kind": "inner-characters", "special": ["<unk>"], "tokens": [{tokens}]}}"#
        );
        Tokenizer::from_json(&json)
    };
    stored(r#""▁a", "▁<unk>""#).unwrap();
    for tokens in [r#""▁<unk>", "▁a""#, r#""▁a", "<unk>""#, r#""▁a""#, ""] {
        assert!(matches!(stored(tokens), Err(Error::TokenizerFile { .. })), "{tokens}");
    }
}

#[test]
fn canonically_equivalent_texts_are_equal() {
    // Latin with an accent, Hangul composed of jamo, and Vietnamese with two marks in another
    // order.
    let pairs = [
        ("un cafe\u{301} noir", "un caf\u{e9} noir"),
        ("\u{1112}\u{1161}\u{11ab}", "\u{d55c}"),
        ("tie\u{302}\u{301}ng", "ti\u{1ebf}ng"),
    ];
    for (decomposed, composed) in pairs {
        for kind in [Words, Characters, InnerCharacters, Bpe { size: 40 }, Unigram { size: 40 }] {
            let [a, b] = [decomposed, composed].map(|text| Tokenizer::train(kind, &[text]).unwrap());
            assert_eq!(a.tokens(), b.tokens(), "{kind:?}");
            assert_eq!(a.encode(composed).unwrap(), a.encode(decomposed).unwrap());
            let joint = Tokenizer::train(kind, &[decomposed, composed]).unwrap();
            assert_eq!(joint.size(), Tokenizer::train(kind, &[composed, composed]).unwrap().size());
        }
    }
    let nfkc = TokenizerOptions { normalize: UnicodeForm::Nfkc, ..TokenizerOptions::new(Words) };
    let tokenizer = Tokenizer::train_with(&nfkc, &["\u{ff21} \u{fb01}n"]).unwrap();
    assert_eq!(tokenizer.tokens(), ["A", "fin"]);
    assert_eq!(
        Tokenizer::from_json(&tokenizer.to_json().unwrap()).unwrap().unicode_form(),
        UnicodeForm::Nfkc
    );
    let none = TokenizerOptions { normalize: UnicodeForm::None, ..TokenizerOptions::new(Words) };
    assert_eq!(Tokenizer::train_with(&none, &["e\u{301} \u{e9}"]).unwrap().size(), 2);
}

#[test]
fn tokenizers_of_older_checkpoints_accept_both_forms() {
    let stored = |token: &str| {
        let json =
            format!(r#"{{"format": "panda-tokens/1", "kind": "words", "tokens": ["{token}", "<s>"]}}"#);
        Tokenizer::from_json(&json).unwrap()
    };
    for token in ["caf\u{e9}", "cafe\u{301}"] {
        let tokenizer = stored(token);
        assert_eq!(tokenizer.unicode_form(), UnicodeForm::None);
        for text in ["caf\u{e9}", "cafe\u{301}"] {
            assert_eq!(tokenizer.encode(text).unwrap(), [0], "{token:?} {text:?}");
        }
        // Their ordinary words are not special words.
        assert_eq!(tokenizer.encode("<s>").unwrap(), [1]);
        assert!(matches!(tokenizer.encode("the"), Err(Error::UnknownSymbol { .. })));
    }
}

#[test]
fn sentence_marks_are_allowed_only_around_texts() {
    for kind in KINDS {
        let marked = Tokenizer::train(kind, &["<s> a b </s>", "<s> b c </s>"]).unwrap();
        let plain = Tokenizer::train(kind, &["a b", "b c"]).unwrap();
        assert_eq!(marked.to_json().unwrap(), plain.to_json().unwrap(), "{kind:?}");
        assert_eq!(marked.encode("<s> a </s>").unwrap(), plain.encode("a").unwrap());
        for error in [
            Tokenizer::train(kind, &["a </s> <s> b"]).map(|_| ()).unwrap_err(),
            plain.encode("a <s> b").map(|_| ()).unwrap_err(),
        ] {
            assert!(matches!(error, Error::SentenceMark { .. }), "{kind:?}: {error}");
        }
        assert!(matches!(Tokenizer::train(kind, &["<s> </s>"]), Err(Error::NoText)));
    }
}
