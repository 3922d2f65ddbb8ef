//! Prints to standard output and standard error; either may be closed.
//!
//! Names in a line (of files, utterances, speakers, tokens) are untrusted input. Control characters
//! are escaped, so that a name can neither start a new line nor send an escape sequence to a
//! terminal.
use std::fmt::Arguments;
use std::io::{IsTerminal, Write};

use kernels::{Excerpt, Printable};

use crate::error::{Error, Result};

/// Maximum length of a word in a message: the longest path on Linux.
const MAX_WORD_BYTES: usize = 4096;

/// Prints a line to standard output, with control characters escaped.
///
/// # Errors
/// [`Error::OutputClosed`] for a closed pipe; [`Error::Output`] for other errors.
pub(crate) fn print_line(text: Arguments) -> Result<()> {
    print_unescaped(format_args!("{}\n", Printable(text)))
}

/// Prints machine-readable text, such as JSON or CTM, to standard output.
///
/// On a terminal, control characters other than newlines are escaped.
///
/// # Errors
/// As [`print_line`].
pub(crate) fn print_machine_readable(text: &str) -> Result<()> {
    if !std::io::stdout().is_terminal() {
        return print_unescaped(format_args!("{text}"));
    }
    let lines = text.split_inclusive('\n');
    let escaped = lines.map(|line| match line.strip_suffix('\n') {
        Some(line) => format!("{}\n", Printable(line)),
        None => Printable(line).to_string(),
    });
    print_unescaped(format_args!("{}", escaped.collect::<String>()))
}

/// Writes text to standard output without escaping.
///
/// # Errors
/// As [`print_line`].
pub(crate) fn print_unescaped(text: Arguments) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush()).map_err(Error::standard_output)
}

/// Prints a line to standard error with control characters escaped; ignores write errors.
pub(crate) fn print_error_line(text: Arguments) {
    let text = shorten_words(&Printable(text).to_string());
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints warnings to standard error.
pub(crate) fn warn_each(warnings: impl IntoIterator<Item: std::fmt::Display>) {
    warnings.into_iter().for_each(|warning| print_error_line(format_args!("warning: {warning}")));
}

/// Shortens words that are longer than any path.
fn shorten_words(text: &str) -> String {
    let shorten = |word: &str| match word.len() > MAX_WORD_BYTES {
        true => Excerpt(word).to_string(),
        false => word.to_owned(),
    };
    text.split_inclusive(' ').map(shorten).collect()
}

/// [`print_line`] with the arguments of `format!`.
macro_rules! outln {
    ($($text:tt)*) => { $crate::printing::print_line(format_args!($($text)*)) };
}

/// [`print_error_line`] with the arguments of `format!`.
macro_rules! warnln {
    ($($text:tt)*) => { $crate::printing::print_error_line(format_args!($($text)*)) };
}

pub(crate) use {outln, warnln};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_longer_than_a_path_are_shortened() {
        let path = "/".repeat(MAX_WORD_BYTES - 1);
        assert_eq!(shorten_words(&format!("{path} a  b ")), format!("{path} a  b "));
        assert!(shorten_words(&format!("{path}xx: File name too long")).ends_with(": File name too long"));
        assert!(shorten_words(&format!("{path}xx: File name too long")).len() < 250);
    }
}
