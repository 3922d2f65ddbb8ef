//! Standard output and standard error, whose readers may leave at any time.
//!
//! Names in a line (of files, utterances, speakers, tokens) come from files of others. Control characters are escaped in all
//! lines for people, so that a name can neither begin a line of its own nor send an escape sequence to a terminal.
use std::fmt::Arguments;
use std::io::{IsTerminal, Write};

use kernels::{Excerpt, Printable};

use crate::error::{Error, Result};

/// Longest word of a message in bytes: the longest path of Linux.
const MAX_WORD: usize = 4096;

/// Prints a line to standard output, with control characters escaped.
///
/// # Errors
/// [`Error::Closed`] if its reader has gone; [`Error::Output`] if it cannot be written.
pub fn line(text: Arguments) -> Result<()> {
    write(format_args!("{}\n", Printable(text)))
}

/// Prints text in a format of its own, such as JSON or CTM; on a terminal, with control characters other than newlines escaped.
///
/// # Errors
/// As [`line()`].
pub fn formatted(text: &str) -> Result<()> {
    if !std::io::stdout().is_terminal() {
        return write(format_args!("{text}"));
    }
    let lines = text.split_inclusive('\n');
    let escaped = lines.map(|line| match line.strip_suffix('\n') {
        Some(line) => format!("{}\n", Printable(line)),
        None => Printable(line).to_string(),
    });
    write(format_args!("{}", escaped.collect::<String>()))
}

/// Writes text to standard output as it is.
///
/// # Errors
/// As [`line()`].
pub fn write(text: Arguments) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush()).map_err(Error::standard_output)
}

/// Prints a line to standard error with control characters escaped; ignores errors of writing.
pub fn error_line(text: Arguments) {
    let text = cut_words(&Printable(text).to_string());
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints warnings to standard error.
pub fn warn_each(warnings: impl IntoIterator<Item: std::fmt::Display>) {
    warnings.into_iter().for_each(|warning| error_line(format_args!("warning: {warning}")));
}

/// A message without words that are longer than any path can be.
fn cut_words(text: &str) -> String {
    let cut = |word: &str| match word.len() > MAX_WORD {
        true => Excerpt(word).to_string(),
        false => word.to_owned(),
    };
    text.split_inclusive(' ').map(cut).collect()
}

/// [`line()`] with the arguments of `format!`.
macro_rules! outln {
    ($($text:tt)*) => { $crate::out::line(format_args!($($text)*)) };
}

/// [`error_line`] with the arguments of `format!`.
macro_rules! warnln {
    ($($text:tt)*) => { $crate::out::error_line(format_args!($($text)*)) };
}

pub(crate) use {outln, warnln};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_longer_than_a_path() {
        let path = "/".repeat(MAX_WORD - 1);
        assert_eq!(cut_words(&format!("{path} a  b ")), format!("{path} a  b "));
        assert!(cut_words(&format!("{path}xx: File name too long")).ends_with(": File name too long"));
        assert!(cut_words(&format!("{path}xx: File name too long")).len() < 250);
    }
}
