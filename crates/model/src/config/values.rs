//! Model configuration: range checks of counts, rates, fractions and factors.
use std::fmt::Display;

use kernels::ShortFloat;

use crate::{Error, Result};

/// Largest width of a layer.
///
/// It is large enough for all models that a CPU can train, and shapes cannot overflow.
pub const MAX_WIDTH: usize = 8192;
/// Largest number of layers, stacked frames, context labels and the like.
pub const MAX_SMALL_COUNT: usize = 100;
/// Largest number; larger numbers are infinite in `f32`, or nearly so.
const MAX_VALUE: f64 = 1e38;
/// Largest factor of a term of the loss.
const MAX_FACTOR: f64 = 1e30;
/// Largest dropout rate.
const MAX_DROPOUT: f32 = 0.9;

/// Checks a value of a recipe key.
///
/// # Errors
/// [`Error::RecipeValue`] unless `is_valid`.
pub fn ensure(key: &str, expected: &str, is_valid: bool, found: impl Display) -> Result<()> {
    if is_valid {
        return Ok(());
    }
    let text = found.to_string();
    let shortened = text.parse().map_or(text, |number: f64| ShortFloat(number).to_string());
    Err(Error::RecipeValue { key: key.into(), expected: expected.into(), found: shortened })
}

/// Checks a count from 1 to `max`.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_count(key: &str, value: usize, max: usize) -> Result<()> {
    let expected = if max == usize::MAX { "at least 1".into() } else { format!("1 to {max}") };
    ensure(key, &expected, (1..=max).contains(&value), value)
}

/// Checks a dropout rate.
///
/// # Errors
/// [`Error::RecipeValue`].
pub(crate) fn check_dropout(key: &str, rate: f32) -> Result<()> {
    ensure(key, "a number from 0 to 0.9", (0.0..=MAX_DROPOUT).contains(&rate), rate)
}

/// Checks a fraction, from 0 to 1.
///
/// # Errors
/// [`Error::RecipeValue`].
pub(crate) fn check_fraction(key: &str, value: f64) -> Result<()> {
    ensure(key, "a number from 0 to 1", (0.0..=1.0).contains(&value), value)
}

/// Checks a positive number.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_positive(key: &str, value: f64) -> Result<()> {
    let is_valid = value > 0.0 && (value as f32) > 0.0 && value <= MAX_VALUE;
    ensure(key, "a positive number of at most 1e38", is_valid, value)
}

/// Checks a number that is not negative.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_non_negative(key: &str, value: f64) -> Result<()> {
    ensure(key, "a number of at least 0, at most 1e38", (0.0..=MAX_VALUE).contains(&value), value)
}

/// Checks the factor of a term of the loss.
pub(crate) fn check_factor(key: &str, value: f64) -> Result<()> {
    ensure(key, "a number of at least 0, at most 1e30", (0.0..=MAX_FACTOR).contains(&value), value)
}

/// Converts an invalid setting to an error of its recipe key.
pub fn setting_error(table: &str, error: speech::Error) -> Error {
    match error {
        speech::Error::Setting { field, expected, found } => {
            Error::RecipeValue { key: format!("{table}.{field}"), expected, found }
        }
        other => other.into(),
    }
}
