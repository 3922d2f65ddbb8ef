//! Golden test of NeMo's log-mel front end.
use super::check::NemoCheck;
use crate::error::RunError;

/// Compares the features of `frontends.safetensors`.
pub(super) fn compare_front_ends(check: &mut NemoCheck) -> Result<(), RunError> {
    check.tensors("frontends.safetensors")?;
    Ok(())
}
