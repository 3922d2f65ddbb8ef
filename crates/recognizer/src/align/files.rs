//! Alignments as files: CTM and JSON.
use std::fmt::Write;

use super::Alignments;
use crate::OutputIds;

/// What a line of CTM is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// A word.
    #[default]
    Words,
    /// A token.
    Tokens,
}

impl Alignments {
    /// CTM, as NIST's sclite reads it: a line `utterance channel start duration text confidence` for each word or
    /// token, times in seconds, the channel always 1.
    ///
    /// `ids` are the names of the utterances of the whole list. A token of white space becomes `<space>`.
    pub fn ctm(&self, unit: Unit, ids: &OutputIds) -> String {
        let mut out = String::new();
        for utterance in &self.utterances {
            let id = ids.name(&utterance.id);
            let mut line = |start: f64, duration: f64, text: &str, confidence: f64| {
                let text = if text.trim().is_empty() { "<space>" } else { text };
                // Writing to a string does not fail.
                let _ = writeln!(out, "{id} 1 {start:.3} {duration:.3} {text} {confidence:.4}");
            };
            match unit {
                Unit::Words => {
                    utterance.words.iter().for_each(|w| line(w.start, w.duration, &w.text, w.confidence));
                }
                Unit::Tokens => {
                    utterance.tokens.iter().for_each(|t| line(t.start, t.duration, &t.text, t.confidence));
                }
            }
        }
        out
    }

    /// Everything as one JSON object in a line, with the names that the fields have here.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts have a place in JSON") + "\n"
    }
}
