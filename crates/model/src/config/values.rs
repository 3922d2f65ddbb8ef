//! Which values a recipe may hold.
use std::fmt::Display;

use kernels::Brief;

use crate::{Error, Result};

/// Largest width of a layer: wide enough for anything that a CPU can train, and small enough that
/// shapes cannot overflow.
pub const MAX_WIDTH: usize = 8192;
/// Largest number of things that are counted in handfuls: layers, stacked frames, labels of
/// context.
pub const MAX_SMALL_COUNT: usize = 100;
/// Larger numbers are infinite, or nearly so, for `f32`.
const LARGEST: f64 = 1e38;

/// Checks a value of a recipe key.
///
/// # Errors
/// [`Error::RecipeValue`] unless it is `fine`.
pub fn ensure(key: &str, expected: &str, fine: bool, found: impl Display) -> Result<()> {
    if fine {
        return Ok(());
    }
    let found = found.to_string();
    let found = found.parse().map_or(found, |number: f64| Brief(number).to_string());
    Err(Error::RecipeValue { key: key.into(), expected: expected.into(), found })
}

/// Checks a count from 1 to `most`.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_count(key: &str, value: usize, most: usize) -> Result<()> {
    let expected = if most == usize::MAX { "at least 1".into() } else { format!("1 to {most}") };
    ensure(key, &expected, (1..=most).contains(&value), value)
}

/// Checks a dropout rate.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_dropout(key: &str, rate: f32) -> Result<()> {
    ensure(key, "a share of 0 to 0.9", (0.0..=0.9).contains(&rate), rate)
}

/// Checks a share from 0 to 1.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_fraction(key: &str, value: f64) -> Result<()> {
    ensure(key, "a share of 0 to 1", (0.0..=1.0).contains(&value), value)
}

/// Checks a positive number.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_positive(key: &str, value: f64) -> Result<()> {
    let fine = value > 0.0 && (value as f32) > 0.0 && value <= LARGEST;
    ensure(key, "a positive number of at most 1e38", fine, value)
}

/// Checks a number that is not negative.
///
/// # Errors
/// [`Error::RecipeValue`].
pub fn check_non_negative(key: &str, value: f64) -> Result<()> {
    ensure(key, "a number of at least 0, at most 1e38", (0.0..=LARGEST).contains(&value), value)
}

/// Checks the factor of a term of the loss.
pub(crate) fn factor(key: &str, value: f64) -> Result<()> {
    ensure(key, "a number of at least 0, at most 1e30", (0.0..=1e30).contains(&value), value)
}

/// Returns an invalid setting as an error of the recipe key.
pub fn setting_error(table: &str, error: speech::Error) -> Error {
    match error {
        speech::Error::Setting { field, expected, found } => {
            Error::RecipeValue { key: format!("{table}.{field}"), expected, found }
        }
        other => other.into(),
    }
}
