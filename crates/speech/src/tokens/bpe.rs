//! Pieces of words by byte-pair encoding.

use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::tokenizer::Trainer;

use super::library;
use crate::Result;

/// Tokens in the order of their ids, and the pairs that are joined, first ones first.
pub(super) type Vocabulary = (Vec<String>, Vec<(String, String)>);

/// Learns a vocabulary of at most `size` tokens from marked words.
pub(super) fn train(words: &[String], size: usize) -> Result<Vocabulary> {
    // Each merge makes a token of two, so that there never are more; the crate makes room for as many as it is told.
    let size = size.min(words.iter().map(|word| 2 * word.len()).sum());
    let mut trainer = BpeTrainer::builder().vocab_size(size).min_frequency(2).show_progress(false).build();
    trainer.feed(words.iter(), |word| Ok(vec![word.to_owned()])).map_err(library)?;
    let mut model = BPE::default();
    trainer.train(&mut model).map_err(library)?;
    let mut tokens: Vec<(u32, String)> =
        model.get_vocab().into_iter().map(|(token, id)| (id, token)).collect();
    tokens.sort_unstable();
    // The crate shows its merges in no other way.
    let value = serde_json::to_value(&model).map_err(library)?;
    let merges = serde_json::from_value(value["merges"].clone()).map_err(library)?;
    Ok((tokens.into_iter().map(|(_, token)| token).collect(), merges))
}

/// The model of a vocabulary.
pub(super) fn model(tokens: &[String], merges: &[(String, String)]) -> Result<BPE> {
    let ids = tokens.iter().cloned().zip(0u32..).collect::<tokenizers::models::bpe::Vocab>();
    BPE::builder().vocab_and_merges(ids, merges.to_vec()).build().map_err(library)
}
