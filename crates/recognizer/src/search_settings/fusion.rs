//! Scorers of [`SearchSettings`]: language models, a word bonus, phrases.
use std::path::Path;
use std::sync::Arc;

use decoding::ngram::{Ngram, NgramTable, OutOfVocabulary, WordNgram, WordNgramOptions};
use decoding::{ClassScores, Fusion, PhraseBooster, PhraseList, Scorer, add_unmarked_variants, read_phrases};
use speech::{Tokenizer, TokenizerKind};

use super::text_source::read_file;
use super::{NgramUnits, SearchSettings};
use crate::recognizer::Recognizer;
use crate::text_warnings::conversion_warnings;
use crate::{Error, Result};

/// Largest number of skipped phrases whose lines a warning lists.
const MAX_NAMED_LINES: usize = 20;

impl SearchSettings {
    /// Returns the scorers of a search; adds warnings.
    pub(super) fn load_fusion(
        &self,
        recognizer: &Recognizer,
        warnings: &mut Vec<String>,
    ) -> Result<Vec<Fusion>> {
        let tokenizer = recognizer.tokenizer();
        let mut fusion = Vec::new();
        // Language models; the second one is subtracted.
        for (path, weight) in [(&self.lm, self.lm_weight), (&self.minus_lm, -self.minus_lm_weight)] {
            if let Some(path) = path {
                fusion.push(Fusion { scorer: self.read_ngram(path, recognizer, warnings)?, weight });
            }
        }
        // Word bonus.
        if self.word_bonus != 0.0 {
            let bonus = ClassScores::new(recognizer.word_starts().into_iter().map(f32::from).collect())?;
            fusion.push(Fusion { scorer: Arc::new(bonus), weight: self.word_bonus });
        }
        // Phrases.
        if let Some(source) = &self.phrases {
            let (bytes, name) = (source.read()?, source.name("phrases"));
            add_conversion_warnings(&name, &bytes, tokenizer, warnings);
            let with_path = |error| Error::Phrases { path: source.path().cloned(), source: error };
            let encode = |text: &str| tokenizer.encode(text).map_err(|error| error.to_string());
            let list = read_phrases(&bytes, self.phrase_score, encode).map_err(with_path)?;
            warnings.extend(skipped_warning(&name, &list));
            let mut phrases = list.phrases;
            add_unmarked_variants(&mut phrases, tokenizer.tokens());
            let booster = PhraseBooster::with_boundaries(&phrases, &recognizer.word_boundaries(), 1.0);
            fusion.push(Fusion { scorer: Arc::new(booster.map_err(with_path)?), weight: 1.0 });
        }
        Ok(fusion)
    }

    /// Reads an n-gram of words or of tokens.
    ///
    /// With [`NgramUnits::Auto`] it is an n-gram of tokens if all of its words are tokens.
    fn read_ngram(
        &self,
        path: &Path,
        recognizer: &Recognizer,
        warnings: &mut Vec<String>,
    ) -> Result<Arc<dyn Scorer>> {
        let with_path = |source| Error::Ngram { path: path.to_owned(), source };
        let bytes = read_file(path)?;
        let tokenizer = recognizer.tokenizer();
        // The n-gram must have the Unicode form of the model's texts.
        let normalized = std::str::from_utf8(&bytes).map(|text| tokenizer.unicode_form().apply(text));
        if normalized.as_ref().is_ok_and(|text| text.as_bytes() != bytes) {
            add_conversion_warnings(&path.display().to_string(), &bytes, tokenizer, warnings);
        }
        let text = normalized.as_ref().map_or(&bytes[..], |text| text.as_bytes());
        let table = NgramTable::read(text).map_err(with_path)?;
        // Names of the classes; blanks have none.
        let mut names = tokenizer.tokens().to_vec();
        names.resize(recognizer.model().classes(), String::new());
        let has_only_tokens = || Ngram::new(&table, &names, OutOfVocabulary::Reject).is_ok();
        let is_of_tokens = match self.lm_units {
            NgramUnits::Tokens => true,
            _ if tokenizer.kind() == TokenizerKind::Words => true,
            NgramUnits::Words => false,
            NgramUnits::Auto => has_only_tokens(),
        };
        if is_of_tokens {
            return Ok(Arc::new(Ngram::new(&table, &names, OutOfVocabulary::Ignore).map_err(with_path)?));
        }
        let options =
            WordNgramOptions { unknown_character: self.unknown_character, ..WordNgramOptions::default() };
        let special: Vec<u32> = (0..names.len() as u32).filter(|&id| tokenizer.is_special(id)).collect();
        let words = WordNgram::with_special_words(&table, &names, &special, options);
        Ok(Arc::new(words.map_err(with_path)?))
    }
}

/// Returns a warning about phrases that the tokenizer cannot encode.
fn skipped_warning(name: &str, list: &PhraseList) -> Option<String> {
    let first = list.skipped.first()?;
    let skipped = list.skipped.len();
    let named = list.skipped.iter().take(MAX_NAMED_LINES);
    let lines: Vec<String> = named.map(|phrase| phrase.line.to_string()).collect();
    Some(format!(
        "{name}: {skipped} of {} phrases are skipped, as the model has no tokens for them: line{} {}{}; line {}: {}",
        skipped + list.phrases.len(),
        if skipped > 1 { "s" } else { "" },
        lines.join(", "),
        if skipped > MAX_NAMED_LINES { " and others" } else { "" },
        first.line,
        first.reason
    ))
}

/// Adds warnings about lines that the tokenizer converts.
fn add_conversion_warnings(name: &str, bytes: &[u8], tokenizer: &Tokenizer, warnings: &mut Vec<String>) {
    let lines = std::str::from_utf8(bytes).unwrap_or_default().lines();
    warnings.extend(conversion_warnings(name, lines, tokenizer));
}
