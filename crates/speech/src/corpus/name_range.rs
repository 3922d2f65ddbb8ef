//! Expands numeric ranges in names of speech shards: `train-{0000..0099}.tar`.

use std::path::{Path, PathBuf};

use kernels::Excerpt;

use crate::{Error, Result};

/// Largest number of names in a range.
const MAX_NAMES: u64 = 1_000_000;
/// Largest number of digits in the bounds of a range.
const MAX_DIGITS: usize = 20;

/// The paths that a name with a range expands to.
pub(super) enum NameRange {
    /// A path without a range, until it is returned.
    OnePath(Option<PathBuf>),
    /// Numbers `next..=last` of at least `digits` digits.
    NumberedPaths { prefix: String, suffix: String, digits: usize, next: u64, last: u64 },
}

impl NameRange {
    /// Expands `{a..b}` in a name.
    ///
    /// Numbers have at least as many digits as `a`. A path without a range is returned unchanged.
    ///
    /// # Errors
    /// [`Error::NameRange`] for numbers of more than [`MAX_DIGITS`] digits and for more than
    /// [`MAX_NAMES`] names.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let unchanged = || Ok(NameRange::OnePath(Some(path.to_owned())));
        let Some((prefix, range, suffix)) = path.to_str().and_then(split_at_range) else {
            return unchanged();
        };
        let [first_text, last_text] = range;
        let range_error = |expected: String, found: String| Error::NameRange {
            path: Excerpt(path.display()).to_string(),
            expected,
            found,
        };
        let max_digits = first_text.len().max(last_text.len());
        if max_digits > MAX_DIGITS {
            let expected = format!("numbers of at most {MAX_DIGITS} digits");
            return Err(range_error(expected, format!("{max_digits} digits")));
        }
        let (Ok(first), Ok(last)) = (first_text.parse::<u64>(), last_text.parse::<u64>()) else {
            return Err(range_error(
                format!("numbers of at most {}", u64::MAX),
                format!("{first_text}..{last_text}"),
            ));
        };
        match last.checked_sub(first) {
            None => unchanged(),
            Some(steps) if steps >= MAX_NAMES => {
                Err(range_error(format!("at most {MAX_NAMES} names"), format!("{}", u128::from(steps) + 1)))
            }
            Some(_) => {
                let (prefix, suffix) = (prefix.to_owned(), suffix.to_owned());
                Ok(NameRange::NumberedPaths { prefix, suffix, digits: first_text.len(), next: first, last })
            }
        }
    }
}

/// Returns the text around the first braces, and their bounds.
fn split_at_range(text: &str) -> Option<(&str, [&str; 2], &str)> {
    let (prefix, rest) = text.split_once('{')?;
    let (range, suffix) = rest.split_once('}')?;
    let (first, last) = range.split_once("..")?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(first) && is_number(last)).then_some((prefix, [first, last], suffix))
}

impl Iterator for NameRange {
    type Item = PathBuf;

    fn next(&mut self) -> Option<PathBuf> {
        match self {
            NameRange::OnePath(path) => path.take(),
            NameRange::NumberedPaths { prefix, suffix, digits, next, last } => {
                if *next > *last {
                    return None;
                }
                let (number, digits) = (*next, *digits);
                // The last number may be the largest u64.
                match number.checked_add(1) {
                    Some(number) => *next = number,
                    None => (*next, *last) = (1, 0),
                }
                Some(PathBuf::from(format!("{prefix}{number:0digits$}{suffix}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expand_names(text: &str) -> Result<Vec<String>> {
        Ok(NameRange::new(Path::new(text))?.map(|path| path.display().to_string()).collect())
    }

    #[test]
    fn ranges_expand_to_numbers_with_as_many_digits() {
        let expand = |text: &str| expand_names(text).unwrap();
        assert_eq!(
            expand("a/t-{008..011}.tar"),
            ["a/t-008.tar", "a/t-009.tar", "a/t-010.tar", "a/t-011.tar"]
        );
        assert_eq!(expand("{3..3}.tar"), ["3.tar"]);
        assert_eq!(expand("{18446744073709551614..18446744073709551615}").len(), 2);
        assert_eq!(expand("{00000000000000000009..10}")[1], "00000000000000000010");
        assert_eq!(expand("{0..999999}").len(), 1_000_000);
        for plain in ["a.tar", "{5..3}.tar", "{a..b}.tar", "{1,2}.tar", "{1..2", "{-1..2}", "{+1..2}", "{..}"]
        {
            assert_eq!(expand(plain), [plain]);
        }
    }

    #[test]
    fn ranges_beyond_the_limits_are_errors() {
        let long = "9".repeat(70_000);
        for (text, part) in [
            ("{0..99999999}.tar".to_owned(), "at most 1000000 names, found 100000000"),
            ("{0..1000000}".to_owned(), "found 1000001"),
            (format!("{{{}1..2}}", "0".repeat(20)), "at most 20 digits, found 21 digits"),
            (format!("{{0..{long}}}"), "found 70000 digits"),
            (format!("{{{long}..{long}}}"), "found 70000 digits"),
            ("{0..18446744073709551616}".to_owned(), "at most 18446744073709551615"),
            ("{0..18446744073709551615}".to_owned(), "found 18446744073709551616"),
        ] {
            let error = expand_names(&text).unwrap_err().to_string();
            assert!(error.contains(part) && error.len() < 500, "{error}");
        }
    }
}
