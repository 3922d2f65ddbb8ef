//! Standard output and standard error, whose readers may leave at any time.
use std::fmt::Arguments;
use std::io::Write;

use crate::error::{Error, Result};

/// Prints a line to standard output.
///
/// # Errors
/// [`Error::Closed`] if its reader has gone; [`Error::Output`] if it cannot be written.
pub fn line(text: Arguments) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Error::standard_output)
}

/// Prints a line to standard error, or not, if nobody can read it.
pub fn error_line(text: Arguments) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints warnings to standard error.
pub fn warn_each(warnings: impl IntoIterator<Item: std::fmt::Display>) {
    warnings.into_iter().for_each(|warning| error_line(format_args!("warning: {warning}")));
}

/// [`line()`] with the arguments of `format!`.
macro_rules! say {
    ($($text:tt)*) => { $crate::out::line(format_args!($($text)*)) };
}

/// [`error_line`] with the arguments of `format!`.
macro_rules! complain {
    ($($text:tt)*) => { $crate::out::error_line(format_args!($($text)*)) };
}

pub(crate) use {complain, say};
