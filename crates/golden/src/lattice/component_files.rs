//! Helpers for golden files that test one component of a recognition lattice.
//!
//! A file has several configurations; the prefix of a tensor name, such as `v3_n1_fld2`, is the key
//! of one.
use rnnt_loss::Element;

use super::file::LatticeFile;
use crate::error::Result;

/// Returns the keys of a file: the distinct prefixes of names before the first slash.
pub(super) fn configuration_keys(file: &LatticeFile) -> Vec<String> {
    let mut keys: Vec<String> =
        file.names().filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect();
    keys.dedup();
    keys
}

/// Returns the number after a prefix in a key such as `v3_n1_fld2`.
pub(super) fn key_number(file: &LatticeFile, key: &str, prefix: &str) -> Result<usize> {
    let number = key.split('_').find_map(|part| part.strip_prefix(prefix)?.parse().ok());
    number.ok_or_else(|| file.error(key, &format!("a number after {prefix}"), "none"))
}

/// Rounds values to the type of a run.
pub(super) fn round_to_type<F: Element>(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    values.into_iter().map(|value| F::from_f64(value).to_f64()).collect()
}
