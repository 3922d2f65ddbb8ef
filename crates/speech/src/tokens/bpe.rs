//! Byte-pair encoding (BPE) tokenizer: trains a subword vocabulary.

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::tokenizer::Trainer;

use super::library_error;
use crate::Result;

/// Tokens in the order of their ids, and merges in order.
pub(super) type Vocabulary = (Vec<String>, Vec<(String, String)>);

/// Trains a vocabulary of at most `size` tokens on marked words.
pub(super) fn train(words: &[String], size: usize) -> Result<Vocabulary> {
    // Each merge makes one token of two, which bounds their number; the crate allocates for `size`.
    let size = size.min(words.iter().map(|word| 2 * word.len()).sum());
    let mut trainer = BpeTrainer::builder().vocab_size(size).min_frequency(2).show_progress(false).build();
    trainer.feed(words.iter(), |word| Ok(vec![word.to_owned()])).map_err(library_error)?;
    let mut model = BPE::default();
    trainer.train(&mut model).map_err(library_error)?;
    let mut tokens: Vec<(u32, String)> =
        model.get_vocab().into_iter().map(|(token, id)| (id, token)).collect();
    tokens.sort_unstable();
    // The crate exposes its merges only in its serialized form.
    let value = serde_json::to_value(&model).map_err(library_error)?;
    let merges = serde_json::from_value(value["merges"].clone()).map_err(library_error)?;
    Ok((tokens.into_iter().map(|(_, token)| token).collect(), merges))
}

/// Returns the model of a vocabulary.
pub(super) fn build_model(tokens: &[String], merges: &[(String, String)]) -> Result<BPE> {
    let ids = tokens.iter().cloned().zip(0u32..).collect::<tokenizers::models::bpe::Vocab>();
    BPE::builder().vocab_and_merges(ids, merges.to_vec()).build().map_err(library_error)
}
