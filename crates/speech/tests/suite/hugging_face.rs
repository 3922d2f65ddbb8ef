//! Tests of tokenizers that are imported from Hugging Face's `tokenizer.json`.

use speech::{Error, Tokenizer, TokenizerKind};

/// A unigram model with a blank as its last token.
pub(crate) fn unigram_json() -> String {
    r#"{
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [
            {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
            {"id": 6, "content": "<pad>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFKC"},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
        ]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "post_processor": null,
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true},
        "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": false, "vocab": [
            ["<unk>", 0.0], ["▁", -3.0], ["a", -2.0], ["b", -2.5], ["▁a", -1.0], ["ab", -3.0]
        ]}
    }"#
    .to_owned()
}

/// Byte-pair encoding as in converted models of BPE.
pub(crate) fn bpe_json() -> String {
    r#"{
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
        ]},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        ]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "dropout": 0.5,
            "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "ab": 4, "▁ab": 5},
            "merges": [["a", "b"], ["▁", "ab"]]}
    }"#
    .to_owned()
}

#[test]
fn texts_are_encoded_and_decoded() {
    let tokenizer = Tokenizer::from_huggingface(&unigram_json()).unwrap();
    assert_eq!(tokenizer.kind(), TokenizerKind::HuggingFace);
    assert_eq!(tokenizer.tokens(), ["<unk>", "▁", "a", "b", "▁a", "ab", "<pad>"]);
    assert_eq!(tokenizer.special_words(), ["<pad>", "<unk>"]);
    assert_eq!(tokenizer.encode("ab  ba").unwrap(), [4, 3, 1, 3, 2]);
    assert_eq!(tokenizer.decode(&[4, 3, 1, 3, 2]).unwrap(), "ab ba");
    assert_eq!(tokenizer.encode("a é").unwrap(), [4, 1, 0]);
    assert_eq!(tokenizer.normalize("a  \u{ff42}"), "a b");
    // A dropout would make this random.
    let tokenizer = Tokenizer::from_huggingface(&bpe_json()).unwrap();
    for _ in 0..20 {
        assert_eq!(tokenizer.encode("ab aab").unwrap(), [5, 1, 2, 4]);
    }
    assert_eq!(tokenizer.decode(&[5, 1, 2, 4]).unwrap(), "ab aab");
    assert_eq!(tokenizer.without_special("a <unk> b"), "a b");
}

#[test]
fn a_blank_is_removed() {
    let tokenizer = Tokenizer::from_huggingface(&unigram_json()).unwrap().with_size(6).unwrap();
    assert_eq!(tokenizer.size(), 6);
    assert!(matches!(tokenizer.encode("a<pad>"), Err(Error::UnknownSymbol { .. })));
    assert!(matches!(tokenizer.decode(&[6]), Err(Error::UnknownId { size: 6, .. })));
    let json = tokenizer.to_json().unwrap();
    let stored = Tokenizer::from_json(&json).unwrap();
    assert_eq!((stored.size(), stored.to_json().unwrap()), (6, json));
    assert_eq!(stored.source_file(), Some(("tokenizer.json", unigram_json().as_bytes())));
    // Only special tokens at the end, and only of this format.
    for size in [0, 5, 8] {
        let tokenizer = Tokenizer::from_huggingface(&unigram_json()).unwrap();
        assert!(matches!(tokenizer.with_size(size), Err(Error::TokenizerFile { .. })), "{size}");
    }
    let words = Tokenizer::train(TokenizerKind::Words, &["a b"]).unwrap();
    assert!(matches!(words.with_size(1), Err(Error::TokenizerFile { .. })));
}

#[test]
fn other_files_are_errors() {
    let charsmap = |blob: &str| format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{blob}"}}"#);
    let changes = [
        ("{\"type\": \"NFKC\"}", "{\"type\": \"BertNormalizer\"}".to_owned()),
        ("{\"type\": \"NFKC\"}", charsmap("AAAA")),
        ("{\"type\": \"NFKC\"}", charsmap("?")),
        ("{\"type\": \"NFKC\"}", ["{\"type\": \"NFKC\"}"; 8].join(",")),
        ("\"content\": \" \"", "\"content\": \"aaaaa\"".to_owned()),
        ("\"type\": \"Metaspace\"", "\"type\": \"ByteLevel\"".to_owned()),
        ("\"type\": \"Unigram\"", "\"type\": \"WordLevel\"".to_owned()),
        ("\"unk_id\": 0", "\"unk_id\": null".to_owned()),
        ("\"unk_id\": 0", "\"unk_id\": 7".to_owned()),
        ("\"id\": 6", "\"id\": 9".to_owned()),
        ("▁", "_".to_owned()),
        ("{", String::new()),
    ];
    for (from, to) in changes {
        let json = unigram_json();
        let damaged = if from == "▁" { json.replace(from, &to) } else { json.replacen(from, &to, 1) };
        assert_ne!(damaged, json);
        let result = Tokenizer::from_huggingface(&damaged);
        // The library ignores ids of added tokens that do not follow the vocabulary.
        if from == "\"id\": 6" {
            assert!(result.is_ok_and(|tokenizer| tokenizer.size() == 7));
            continue;
        }
        let error = result.map(drop).unwrap_err();
        assert!(matches!(error, Error::TokenizerFile { .. }), "{to}: {error}");
    }
}
