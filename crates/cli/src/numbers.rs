//! Parsers of numeric command-line arguments; their errors state the range.
//!
//! They are the `value_parser` of flags; `arguments` adds the flag and the given value to errors.
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Returns a parser of numbers in a range; NaN is an error.
///
/// `expected` is the error message and describes the range.
pub(crate) fn within<N>(
    expected: &'static str,
    range: RangeInclusive<N>,
) -> impl Fn(&str) -> Result<N, &'static str> + Clone
where
    N: FromStr + PartialOrd + Clone,
{
    move |text| text.parse().ok().filter(|number| range.contains(number)).ok_or(expected)
}

/// Parses a weight of scores, or a score.
pub(crate) fn weight(text: &str) -> Result<f32, &'static str> {
    within("expected a number from -1000000 to 1000000", -1e6..=1e6)(text)
}

/// Parses the score of a phrase.
pub(crate) fn phrase_score(text: &str) -> Result<f32, &'static str> {
    within("expected a number from -1000000000 to 1000000000", -1e9..=1e9)(text)
}

/// Parses a temperature of scores.
pub(crate) fn temperature(text: &str) -> Result<f32, &'static str> {
    within("expected a number from 0.001 to 1000", 1e-3..=1e3)(text)
}

/// Parses the weight of a CTC head.
pub(crate) fn ctc_weight(text: &str) -> Result<f32, &'static str> {
    within("expected a number from 0 to 1000", 0.0..=1e3)(text)
}

/// Parses the exponent of a confidence measure.
pub(crate) fn exponent(text: &str) -> Result<f64, &'static str> {
    within("expected a number above 0, at most 10", f64::MIN_POSITIVE..=10.0)(text)
}

/// Parses a fraction from 0 to 1.
pub(crate) fn share(text: &str) -> Result<f64, &'static str> {
    within("expected a share from 0 to 1", 0.0..=1.0)(text)
}

/// Parses a posterior.
pub(crate) fn posterior(text: &str) -> Result<f64, &'static str> {
    within("expected a posterior from 0 to 1", 0.0..=1.0)(text)
}

/// Parses the length of a recording or of an overlap in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, &'static str> {
    within("expected a number of seconds, from 0 to 1000000000", 0.0..=1e9)(text)
}

/// Parses a duration of a window or a caption in seconds.
pub(crate) fn positive_seconds(text: &str) -> Result<f64, &'static str> {
    within("expected a number of seconds above 0, at most 3600", f64::MIN_POSITIVE..=3600.0)(text)
}

/// Parses the length of a gap in seconds.
pub(crate) fn gap(text: &str) -> Result<f64, &'static str> {
    within("expected a number of seconds from 0 to 3600", 0.0..=3600.0)(text)
}

/// Parses the length of a pause in seconds; 0 stands for none.
pub(crate) fn pause(text: &str) -> Result<f64, &'static str> {
    within("expected a number from 0 to 1000000", 0.0..=1e6)(text)
}

/// Parses a playback speed relative to real time; 0 stands for no limit.
pub(crate) fn pace(text: &str) -> Result<f64, &'static str> {
    let expected = "expected a number from 0.001 to 1000000, or 0";
    within(expected, 0.0..=0.0)(text).or_else(|_| within(expected, 1e-3..=1e6)(text))
}

/// Parses a nonnegative integer.
pub(crate) fn nonnegative_integer(text: &str) -> Result<usize, &'static str> {
    within("expected a whole number, at least 0", 0..=usize::MAX)(text)
}
