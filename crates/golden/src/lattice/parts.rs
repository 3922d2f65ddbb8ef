//! What files of components have in common.
use rnnt_loss::Element;

use super::file::File;
use crate::error::Result;

/// What names begin with, up to the first slash, each once.
pub fn keys(file: &File) -> Vec<String> {
    let mut keys: Vec<String> =
        file.names().filter_map(|name| Some(name.split_once('/')?.0.to_owned())).collect();
    keys.dedup();
    keys
}

/// The number behind a letter in a key such as `v3_n1_fld2`.
pub fn number(file: &File, key: &str, letters: &str) -> Result<usize> {
    let found = key.split('_').find_map(|part| part.strip_prefix(letters)?.parse().ok());
    found.ok_or_else(|| file.wrong(key, &format!("a number behind {letters}"), "none"))
}

/// What is left of numbers in the type of a run.
pub fn rounded<F: Element>(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    values.into_iter().map(|value| F::from_f64(value).to_f64()).collect()
}
