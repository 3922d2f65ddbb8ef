//! Words of ARPA files for the token names of a model.
use std::borrow::Cow;
use std::collections::HashMap;

use super::{Error, Result};

/// Start of a sentence, which occurs in contexts only.
pub(super) const BEGIN: &str = "<s>";
/// End of a sentence.
pub(super) const END: &str = "</s>";
/// Unknown word.
pub(super) const UNKNOWN: &str = "<unk>";

/// Returns the name of a token in ARPA files, without white space.
///
/// A space is `<space>`; any other ASCII blank or control character is `<U+0009>` and so on. Other
/// characters are unchanged.
pub(super) fn arpa_word(name: &str) -> Cow<'_, str> {
    let is_blank = |c: char| c == ' ' || c.is_ascii_control();
    if !name.contains(is_blank) {
        return name.into();
    }
    let mut text = String::new();
    for c in name.chars() {
        match c {
            ' ' => text += "<space>",
            c if is_blank(c) => text += &format!("<U+{:04X}>", u32::from(c)),
            c => text.push(c),
        }
    }
    text.into()
}

/// Class ids by name in ARPA files; classes without a name are left out.
pub(super) fn ids<S: AsRef<str>>(names: &[S]) -> Result<HashMap<Cow<'_, str>, u32>> {
    let mut ids = HashMap::new();
    for (class, name) in names.iter().enumerate() {
        let name = arpa_word(name.as_ref());
        if name.is_empty() {
            continue;
        }
        let error = |expected| Err(Error::Name { class, expected, name: name.to_string() });
        if name == BEGIN || name == END {
            return error("another name than `<s>` and `</s>`");
        }
        if ids.contains_key(&name) {
            return error("a unique name");
        }
        ids.insert(name, class as u32);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::arpa_word;

    #[test]
    fn blanks_are_escaped() {
        assert_eq!(arpa_word(" "), "<space>");
        assert_eq!(arpa_word("▁cat"), "▁cat");
    }
}
