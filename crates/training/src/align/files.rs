//! Alignments as files: CTM and JSON.
use std::collections::{HashMap, HashSet};
use std::fmt::Write;

use super::Alignments;

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
    /// Fields are set apart by white space, and `;;` begins a comment, so that both become `_` in an id, an empty id too, and a
    /// token of white space becomes `<space>`. Where two ids would become one, the later ones end in `~2`, `~3` and so on; an id
    /// that needs no change keeps its name.
    pub fn ctm(&self, unit: Unit) -> String {
        let mut out = String::new();
        let names = names(self.utterances.iter().map(|utterance| utterance.id.as_str()));
        for (utterance, id) in self.utterances.iter().zip(names) {
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

/// An id as a field of CTM, which is never empty.
pub(crate) fn ctm_id(id: &str) -> String {
    let id = id.replace(char::is_whitespace, "_");
    match id.strip_prefix(";;") {
        Some(rest) => format!("__{rest}"),
        None if id.is_empty() => "_".to_owned(),
        None => id,
    }
}

/// Ids as fields of CTM, different where the ids are.
fn names<'a>(ids: impl Iterator<Item = &'a str> + Clone) -> Vec<String> {
    let field = ctm_id;
    let mut taken: HashSet<String> = ids.clone().filter(|&id| field(id) == id).map(str::to_owned).collect();
    let mut known: HashMap<&str, String> = HashMap::new();
    let name = |id: &'a str| {
        let plain = field(id);
        if plain == id {
            return plain;
        }
        let free = || {
            let others = (2_u64..).map(|count| format!("{plain}~{count}"));
            let found = [plain.clone()].into_iter().chain(others).find(|name| !taken.contains(name));
            found.unwrap_or_else(|| plain.clone())
        };
        let name = known.entry(id).or_insert_with(free).clone();
        taken.insert(name.clone());
        name
    };
    ids.map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(ids: &[&str]) -> Vec<String> {
        names(ids.iter().copied())
    }

    #[test]
    fn ids_stay_apart_and_are_never_empty() {
        assert_eq!(
            named(&["a b", "a_b", "a\tb", "", "_", ";;x", "a b"]),
            ["a_b~2", "a_b", "a_b~3", "_~2", "_", "__x", "a_b~2"]
        );
        assert_eq!(named(&["a b", "c d", ""]), ["a_b", "c_d", "_"]);
        assert_eq!(named(&["a b", "a_b", "a_b~2"]), ["a_b~3", "a_b", "a_b~2"]);
    }
}
