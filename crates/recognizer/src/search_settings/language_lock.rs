//! Language lock of [`SearchSettings`]: the tokens that a search may emit.
use super::SearchSettings;
use crate::recognizer::Recognizer;
use crate::token_filter::TokenFilter;
use crate::{Error, Result};

/// Options of the language lock.
const TOKEN_OPTIONS: &str = "allow_script, allow_characters, forbid_tokens";

impl SearchSettings {
    /// Sets the allowed tokens of a recognizer.
    pub(super) fn restrict_tokens(&self, recognizer: Recognizer) -> Result<Recognizer> {
        let form = recognizer.tokenizer().unicode_form();
        let mut filter = TokenFilter::default();
        for name in &self.allow_script {
            filter = filter.allow_script(name).map_err(Error::token_options("allow_script"))?;
        }
        if let Some(source) = &self.allow_characters {
            let text = source.read_text("allow_characters")?;
            let text = form.apply(&text);
            let mut characters = text.chars().filter(|character| !character.is_whitespace()).peekable();
            if characters.peek().is_none() {
                let name = source.name("allow_characters");
                return Err(Error::shape(name, "at least one character", "none"));
            }
            filter = filter.allow_characters(characters);
        }
        if let Some(source) = &self.forbid_tokens {
            let text = source.read_text("forbid_tokens")?;
            let mut names = text.lines().filter(|line| !line.is_empty()).peekable();
            if names.peek().is_none() {
                return Err(Error::shape(source.name("forbid_tokens"), "one token per line", "none"));
            }
            filter = filter.forbid_tokens(names.map(|name| form.apply(name).into_owned()));
        }
        match filter.allows_all() {
            true => Ok(recognizer),
            false => recognizer.with_tokens(&filter).map_err(Error::token_options(TOKEN_OPTIONS)),
        }
    }
}
