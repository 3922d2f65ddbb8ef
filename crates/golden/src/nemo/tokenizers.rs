//! Golden test of SentencePiece tokenizers.
use super::check::NemoCheck;
use crate::error::RunError;

/// Compares encoded and decoded texts of each tokenizer.
pub(super) fn compare(check: &mut NemoCheck) -> Result<(), RunError> {
    check.json("bpe64_lower/examples.json")?;
    Ok(())
}
