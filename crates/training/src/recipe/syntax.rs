//! Errors of TOML in one line.
use std::path::Path;

use kernels::Excerpt;

use crate::Error;

/// Returns the error of a recipe's text: line and column, the message, and the line itself.
pub(super) fn syntax_error(path: &Path, text: &str, error: &toml::de::Error) -> Error {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Recipe;

    fn message(text: &str) -> String {
        Recipe::parse(text, Path::new("r.toml")).unwrap_err().to_string()
    }

    #[test]
    fn an_error_is_one_line_with_its_place() {
        let text = message("seed = 1\n  sed = 2\n");
        assert!(text.starts_with("recipe r.toml: line 2, column 3: unknown field `sed`, expected"), "{text}");
        assert!(text.ends_with(", in the line `sed = 2`"), "{text}");
        let text = message("seed = 1\n\u{e9} =\n");
        assert!(text.starts_with("recipe r.toml: line 2, column 1: "), "{text}");
        assert!(message("").contains("missing field"));
        for text in
            ["[data]\n\"a\\nb\" = 1\n", "seed = \"\\u001b[2J\"\n", "x\u{1b}y = 1", "\u{feff}\u{0}", "a\r\nb"]
        {
            let text = message(text);
            assert!(!text.chars().any(char::is_control), "{text:?}");
        }
    }

    #[test]
    fn long_keys_values_and_lines_are_cut() {
        let long = "x".repeat(1_000_000);
        let keys = message("sed = 1").len();
        for text in [
            format!("{long} = 1"),
            format!("\"{long} y\" = 1"),
            format!("seed = \"{long}\""),
            format!("seed = {long}"),
            format!("# comment\n{long}"),
            format!("[{long}]\na = 1"),
            format!("[encoder]\nkind = \"{long}\""),
        ] {
            let text = message(&text);
            assert!(text.len() < keys + 1000, "{} {}", text.len(), &text[..500]);
        }
    }
}
