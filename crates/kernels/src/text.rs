//! Escapes and shortens file names, inputs and numbers in error messages.
use std::fmt::{self, Display, LowerExp, Write};

/// Maximum characters of an [`Excerpt`].
const MAX_EXCERPT: usize = 200;
/// Characters that an excerpt keeps of the end of a text.
const EXCERPT_END: usize = 49;
/// Text that serde writes between the input and the expected values.
const SERDE_EXPECTED: &str = ", expected ";

/// Displays a value with control characters escaped.
///
/// Escaped are C0, DEL, C1, line and paragraph separators, and characters that change the direction
/// of text. A file name in a message can therefore neither start a new line nor send an escape
/// sequence to a terminal.
///
/// ```
/// use kernels::Printable;
///
/// assert_eq!(Printable("a\nb \u{1b}[31m \u{202e}é").to_string(), r"a\nb \u{1b}[31m \u{202e}é");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Printable<T>(pub T);

/// Displays a value as [`Printable`], shortened in the middle to 200 characters.
///
/// In messages of serde (`unknown field ..., expected one of ...`), only the input is shortened.
///
/// ```
/// use kernels::Excerpt;
///
/// assert_eq!(Excerpt("a\nb").to_string(), r"a\nb");
/// assert_eq!(Excerpt("x".repeat(1000)).to_string().chars().count(), 200);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Excerpt<T>(pub T);

impl<T: Display> Display for Printable<T> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        write!(Escaped(out), "{}", self.0)
    }
}

impl<T: Display> Display for Excerpt<T> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let text = Printable(&self.0).to_string();
        if text.chars().nth(MAX_EXCERPT).is_none() {
            return out.write_str(&text);
        }
        let (input, expected) = text.split_at(text.rfind(SERDE_EXPECTED).unwrap_or(text.len()));
        if input.chars().nth(MAX_EXCERPT).is_none() {
            return out.write_str(&text);
        }
        let byte_at = |count: usize| input.char_indices().nth(count).map_or(input.len(), |(index, _)| index);
        let tail_start = byte_at(input.chars().count() - EXCERPT_END);
        let head_end = byte_at(MAX_EXCERPT - EXCERPT_END - 1);
        write!(out, "{}…{}{expected}", &input[..head_end], &input[tail_start..])
    }
}

/// A writer that escapes control characters.
struct Escaped<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((index, c)) = rest.char_indices().find(|&(_, c)| is_unprintable(c)) {
            self.0.write_str(&rest[..index])?;
            write!(self.0, "{}", c.escape_default())?;
            rest = &rest[index + c.len_utf8()..];
        }
        self.0.write_str(rest)
    }
}

fn is_unprintable(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Displays a number in at most 12 characters.
///
/// Longer numbers are rounded to five digits and an exponent.
///
/// ```
/// use kernels::ShortFloat;
///
/// assert_eq!(ShortFloat(0.25).to_string(), "0.25");
/// assert_eq!(ShortFloat(-1e300).to_string(), "-1.0000e300");
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ShortFloat<T>(pub T);

impl<T: Display + LowerExp> Display for ShortFloat<T> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        const MAX_WIDTH: usize = 12;
        let plain = self.0.to_string();
        if plain.len() <= MAX_WIDTH {
            return out.write_str(&plain);
        }
        // A rounded `f32` has fewer digits than its `f64` value.
        match plain.parse().map(|wide: f64| (wide, wide as f32)) {
            Ok((wide, narrow)) if f64::from(narrow) == wide && narrow.to_string().len() <= MAX_WIDTH => {
                write!(out, "{narrow}")
            }
            _ => write!(out, "{:.4e}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_control_character_is_left() {
        for c in (0..=u32::from(char::MAX)).filter_map(char::from_u32) {
            let text = Printable(format_args!("a{c}b")).to_string();
            let is_changed = text != format!("a{c}b");
            let ends_line = matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
            let changes_direction = matches!(c as u32, 0x202a..=0x202e | 0x2066..=0x2069);
            assert_eq!(is_changed, c.is_control() || ends_line || changes_direction, "{:x}", c as u32);
            assert!(!is_changed || text[1..text.len() - 1].chars().all(|c| c.is_ascii_graphic()), "{text}");
        }
    }

    #[test]
    fn excerpts_keep_both_ends() {
        let long = format!("begin{}end", "é".repeat(1_000_000));
        let text = Excerpt(&long).to_string();
        assert_eq!(text.chars().count(), MAX_EXCERPT);
        assert!(text.starts_with("begin") && text.ends_with("end") && text.contains("é…é"), "{text}");
        for length in [0, 1, 199, 200, 201, 250] {
            let text = "x".repeat(length);
            let excerpt = Excerpt(&text).to_string();
            assert_eq!(excerpt.chars().count(), length.min(MAX_EXCERPT));
            assert_eq!(excerpt == text, length <= MAX_EXCERPT);
        }
        assert!(Excerpt("\u{1b}".repeat(1000)).to_string().chars().count() == MAX_EXCERPT);
    }

    #[test]
    fn expected_values_of_serde_are_not_shortened() {
        let keys = "`batch`, ".repeat(100);
        let short = format!("unknown field `a`, expected one of {keys}");
        assert_eq!(Excerpt(&short).to_string(), short);
        let message = format!("unknown field `{}`, expected one of {keys}", "k, expected ".repeat(100));
        let text = Excerpt(&message).to_string();
        assert!(text.ends_with(&format!("`, expected one of {keys}")), "{text}");
        assert!(text.chars().count() < MAX_EXCERPT + keys.len() + 20, "{text}");
    }

    #[test]
    fn no_number_takes_more_than_twelve_characters() {
        let mut x = 4.9e-324f64;
        while x < 1.7e308 {
            for x in [x, -x, x.round(), 1.0 / x] {
                assert!(ShortFloat(x).to_string().len() <= 12, "{}", ShortFloat(x));
            }
            x *= 3.7;
        }
        for (x, text) in [
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::MIN, "-1.7977e308"),
            (-f64::MIN_POSITIVE, "-2.2251e-308"),
            (f64::from(0.1f32), "0.1"),
            (1.0 / 3.0, "3.3333e-1"),
            (123_456_789.0, "123456789"),
        ] {
            assert_eq!(ShortFloat(x).to_string(), text);
        }
        assert_eq!(
            (ShortFloat(f32::MAX).to_string(), ShortFloat(u64::MAX).to_string()),
            ("3.4028e38".into(), "1.8447e19".into())
        );
    }
}
