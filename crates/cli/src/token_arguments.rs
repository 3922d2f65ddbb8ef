//! Command-line arguments of a language lock: the tokens that a search may emit.
use std::path::{Path, PathBuf};

use recognizer::{Recognizer, TokenFilter};

use crate::error::{Error, Result};

/// Arguments that restrict the tokens of a search.
#[derive(clap::Args)]
#[command(next_help_heading = "Search")]
pub(crate) struct TokenArguments {
    /// Emit only tokens of these Unicode scripts, such as latin,greek. Characters that all scripts
    /// share, such as digits and punctuation, are always allowed, and so are special words
    #[arg(long, value_name = "SCRIPTS", value_delimiter = ',')]
    allow_script: Vec<String>,
    /// Emit only tokens of the characters in this file. Those of --allow-script and those that all
    /// scripts share are allowed as well
    #[arg(long, value_name = "FILE")]
    allow_characters: Option<PathBuf>,
    /// Never emit the tokens in this file, one per line
    #[arg(long, value_name = "FILE")]
    forbid_tokens: Option<PathBuf>,
}

impl TokenArguments {
    /// Returns the files that the arguments name.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.allow_characters, &self.forbid_tokens].into_iter().flatten()
    }

    /// Restricts the tokens that a recognizer may emit.
    pub(crate) fn apply(&self, recognizer: Recognizer) -> Result<Recognizer> {
        let form = recognizer.tokenizer().unicode_form();
        let mut filter = TokenFilter::default();
        for name in &self.allow_script {
            filter = filter.allow_script(name).map_err(|source| Error::Tokens { source })?;
        }
        if let Some(path) = &self.allow_characters {
            let text = read_text(path)?;
            let text = form.apply(&text);
            let characters = text.chars().filter(|character| !character.is_whitespace());
            if characters.clone().next().is_none() {
                return Err(Error::NoEntries { path: path.clone(), expected: "at least one character" });
            }
            filter = filter.allow_characters(characters);
        }
        if let Some(path) = &self.forbid_tokens {
            let text = read_text(path)?;
            let mut names = text.lines().filter(|line| !line.is_empty()).peekable();
            if names.peek().is_none() {
                return Err(Error::NoEntries { path: path.clone(), expected: "one token per line" });
            }
            filter = filter.forbid_tokens(names.map(|name| form.apply(name).into_owned()));
        }
        if filter.allows_all() {
            return Ok(recognizer);
        }
        if recognizer.model().lattice().is_some() {
            let argument = "--allow-script, --allow-characters, --forbid-tokens";
            return Err(Error::LatticeSearch { argument });
        }
        recognizer.with_tokens(&filter).map_err(|source| Error::Tokens { source })
    }
}

/// Reads a text file, without a byte order mark.
fn read_text(path: &Path) -> Result<String> {
    let text = speech::files::read_input_text(path).map_err(model::Error::io(path, "read the file"))?;
    Ok(text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned())
}
