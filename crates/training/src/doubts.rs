//! What in the data of a run is no error, but hardly meant.
use std::collections::HashSet;

use speech::{Tokenizer, Utterance};

use crate::data::Example;

/// Seconds by which a manifest may be wrong about the length of a recording, and the same as a share.
const SECONDS: f64 = 0.1;
const SHARE: f64 = 0.02;

/// Utterances that are there more than once: they count that often.
pub fn repeated(set: &str, utterances: &[Utterance]) -> Option<String> {
    let mut seen = HashSet::new();
    let again: Vec<&Utterance> =
        utterances.iter().filter(|of| !seen.insert((&of.id, &of.text, format!("{:?}", of.pieces)))).collect();
    let first = again.first()?;
    Some(format!(
        "{set}: {} of {} utterances are there already, the first of them {}",
        again.len(),
        utterances.len(),
        first.id
    ))
}

/// Recordings that are not as long as their manifest says.
pub fn lengths(set: &str, examples: &[Example]) -> Option<String> {
    let wrong = |of: &&Example| (of.seconds - of.heard).abs() > SECONDS.max(SHARE * of.heard);
    let wrong: Vec<&Example> = examples.iter().filter(wrong).collect();
    let Example { id, seconds, heard, .. } = wrong.first()?;
    Some(format!(
        "{set}: {} recordings are not as long as the manifest says, the first of them {id}: {heard:.2} s instead of {seconds:.2} s",
        wrong.len()
    ))
}

/// Texts in which there is no word that the model can write.
pub fn unknown(set: &str, utterances: &[Utterance], tokenizer: &Tokenizer) -> Option<String> {
    let unknown = |of: &&Utterance| {
        let mut words = of.text.split_whitespace().peekable();
        words.peek().is_some() && words.all(|word| tokenizer.encode(word).is_err())
    };
    let unknown: Vec<&Utterance> = utterances.iter().filter(unknown).collect();
    let first = unknown.first()?;
    Some(format!(
        "{set}: {} texts hold only words that the tokens cannot write, the first of them {}",
        unknown.len(),
        first.id
    ))
}
