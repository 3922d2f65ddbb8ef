//! `UnicodeForm`: Unicode normalization of transcripts, NFC, NFKC or none.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick};

/// Unicode normalization form of a text (UAX #15).
///
/// In TOML and JSON `"none"`, `"nfc"`, `"nfkc"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnicodeForm {
    /// No normalization.
    None,
    /// Canonical composition: a letter and a combining mark become one character.
    #[default]
    Nfc,
    /// Compatibility composition: also replaces ligatures, full-width letters and similar.
    Nfkc,
}

impl UnicodeForm {
    /// Returns the name in recipes.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Nfc => "nfc",
            Self::Nfkc => "nfkc",
        }
    }

    /// Converts a text to this form; borrows an unchanged text.
    ///
    /// ```
    /// use speech::UnicodeForm;
    /// assert_eq!(UnicodeForm::Nfc.apply("cafe\u{301}"), "caf\u{e9}");
    /// assert_eq!(UnicodeForm::Nfkc.apply("\u{fb01}ne"), "fine");
    /// assert_eq!(UnicodeForm::None.apply("cafe\u{301}"), "cafe\u{301}");
    /// ```
    pub fn apply(self, text: &str) -> Cow<'_, str> {
        let is_normal = match self {
            _ if text.is_ascii() => true,
            Self::None => true,
            Self::Nfc => is_nfc_quick(text.chars()) == IsNormalized::Yes,
            Self::Nfkc => is_nfkc_quick(text.chars()) == IsNormalized::Yes,
        };
        if is_normal {
            return Cow::Borrowed(text);
        }
        let normal: String = if self == Self::Nfkc { text.nfkc().collect() } else { text.nfc().collect() };
        if normal == text { Cow::Borrowed(text) } else { Cow::Owned(normal) }
    }
}

/// Returns the canonical decomposition of a text.
pub(crate) fn decompose(text: &str) -> String {
    text.nfd().collect()
}
