//! Golden test of SentencePiece tokenizers: ids and texts are equal.
use serde_json::Value;
use speech::Tokenizer;

use super::check::NemoCheck;
use crate::error::{Error, RunError};

/// Folders of tokenizers: byte-pair encoding, a unigram model, and byte fallback.
const TOKENIZERS: [&str; 3] = ["bpe64_lower", "unigram112_cased_special", "bpe360_bytefallback"];

/// Compares encoded and decoded texts of each tokenizer.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    for name in TOKENIZERS {
        let path = check.folder.join(name).join("tokenizer.model");
        let model = speech::files::read_regular(&path).map_err(|source| Error::File { path, source })?;
        let examples = check.json(&format!("{name}/examples.json"))?;
        let tokenizer = Tokenizer::from_sentencepiece(&model)?;
        compare_examples(check, name, &tokenizer, &examples)?;
        // The same after a round trip.
        let tokenizer = Tokenizer::from_json(&tokenizer.to_json()?)?;
        compare_examples(check, name, &tokenizer, &examples)?;
        let source = tokenizer.source_file();
        check.expect_equal(&format!("{name}: file"), &source, &Some(("tokenizer.model", &model[..])));
    }
    Ok(())
}

fn compare_examples(
    check: &mut NemoCheck,
    name: &str,
    tokenizer: &Tokenizer,
    examples: &Value,
) -> Result<(), RunError> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    check.expect_equal(&format!("{name}: pieces"), &json(tokenizer.tokens()), &examples["pieces"]);
    check.expect_equal(&format!("{name}: size"), &json(tokenizer.size()), &examples["vocab_size"]);
    let is_special = |id: u32| tokenizer.is_special(id);
    check.expect_equal(&format!("{name}: unknown is special"), &is_special(0), &true);
    for example in examples["encode"].as_array().into_iter().flatten() {
        let source = text(&example["text"]);
        let ids = tokenizer.encode(&source)?;
        check.expect_equal(&format!("{name}: ids of {source:?}"), &json(&ids), &example["ids"]);
        let decoded = tokenizer.decode(&ids)?;
        check.expect_equal(&format!("{name}: decoded {source:?}"), &decoded, &text(&example["decoded"]));
    }
    for example in examples["decode"].as_array().into_iter().flatten() {
        let ids: Vec<u32> = example["ids"].as_array().into_iter().flatten().map(to_id).collect();
        let decoded = tokenizer.decode(&ids)?;
        check.expect_equal(&format!("{name}: text of {ids:?}"), &decoded, &text(&example["text"]));
    }
    Ok(())
}

fn json(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or(Value::Null)
}

fn to_id(value: &Value) -> u32 {
    value.as_u64().unwrap_or(u64::MAX) as u32
}
