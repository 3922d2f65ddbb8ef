//! Errors of TOML in one line.
use std::path::Path;

use kernels::Excerpt;

use crate::Error;

/// Returns the error of a recipe's text: line and column, the message, and the line itself.
pub fn syntax_error(path: &Path, text: &str, error: &toml::de::Error) -> Error {
    let message = Excerpt(error.message());
    let Some(span) = error.span().filter(|span| text.is_char_boundary(span.start)) else {
        // Without a place, toml names the key in a second line.
        let text = error.to_string();
        let key = text.strip_prefix(error.message()).unwrap_or_default().trim();
        let space = if key.is_empty() { "" } else { " " };
        let message = format!("{message}{space}{}", Excerpt(key));
        return Error::RecipeSyntax { path: path.to_owned(), place: String::new(), message };
    };
    let before = &text[..span.start];
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let place = format!(
        "line {}, column {}: ",
        1 + before.matches('\n').count(),
        1 + before[line_start..].chars().count()
    );
    let line = text[line_start..].lines().next().unwrap_or_default().trim();
    let message = match line {
        "" => message.to_string(),
        line => format!("{message}, in the line `{}`", Excerpt(line)),
    };
    Error::RecipeSyntax { path: path.to_owned(), place, message }
}
