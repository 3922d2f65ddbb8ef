//! Escapes text for HTML; formats rates, counts and durations of a report.
use kernels::Printable;

/// Escapes markup and control characters of a text.
///
/// The result is safe as content and in attributes with double quotes.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in Printable(text).to_string().chars() {
        match c {
            '&' => safe += "&amp;",
            '<' => safe += "&lt;",
            '>' => safe += "&gt;",
            '"' => safe += "&quot;",
            '\'' => safe += "&#39;",
            c => safe.push(c),
        }
    }
    safe
}

/// [`escape`]s several lines; keeps line breaks and tabs.
pub(crate) fn escape_lines(text: &str) -> String {
    let escape_line = |line: &str| line.split('\t').map(escape).collect::<Vec<_>>().join("\t");
    text.lines().map(|line| escape_line(line) + "\n").collect()
}

/// Formats a rate in percent.
pub(crate) fn format_percent(rate: f64) -> String {
    if rate.is_finite() { format!("{:.2} %", 100.0 * rate) } else { "∞".to_owned() }
}

/// Formats an interval of rates in percent.
pub(crate) fn format_interval((low, high): (f64, f64)) -> String {
    let end = |rate: f64| if rate.is_finite() { format!("{:.2}", 100.0 * rate) } else { "∞".to_owned() };
    format!("[{}, {}]", end(low), end(high))
}

/// Formats a count with thin spaces between thousands.
pub(crate) fn format_count(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration in its two largest units.
pub(crate) fn format_duration(seconds: f64) -> String {
    match seconds.round() as u64 {
        s @ 0..60 => format!("{s} s"),
        s @ 60..3600 => format!("{} min {:02} s", s / 60, s % 60),
        s => format!("{} h {:02} min", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped_and_numbers_are_formatted() {
        let safe = escape("<script>alert(\"1\" & '2')</script>");
        assert_eq!(safe, "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;");
        assert_eq!(escape("a\n\u{1b}\u{202e}b"), r"a\n\u{1b}\u{202e}b");
        assert_eq!(escape_lines("a\tb\r\n\u{7f}<"), "a\tb\n\\u{7f}&lt;\n");
        assert_eq!((format_percent(0.12345), format_percent(f64::INFINITY)), ("12.35 %".into(), "∞".into()));
        assert_eq!(format_interval((0.01, f64::INFINITY)), "[1.00, ∞]");
        assert_eq!(
            [0, 999, 1000, 49_006_080].map(format_count),
            ["0", "999", "1\u{202f}000", "49\u{202f}006\u{202f}080"]
        );
        assert_eq!([0.4, 61.0, 7384.0].map(format_duration), ["0 s", "1 min 01 s", "2 h 03 min"]);
    }
}
