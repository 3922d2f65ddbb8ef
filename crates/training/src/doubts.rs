//! What in the data of a run is no error, but hardly meant, or worth a word.
use std::collections::HashSet;

use kernels::Excerpt;
use speech::batching::no_longer_than;
use speech::{Tokenizer, Utterance};

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
        Excerpt(&first.id)
    ))
}

/// Utterances without those that are longer than a recipe allows, and a word about these.
pub fn short_enough(
    set: &str,
    utterances: Vec<Utterance>,
    max: Option<f64>,
) -> (Vec<Utterance>, Option<String>) {
    let Some(max) = max else { return (utterances, None) };
    let seconds: Vec<f64> = utterances.iter().map(|utterance| utterance.seconds).collect();
    let found = no_longer_than(&seconds, max);
    let note = format!(
        "{set}: {} of {} utterances, {:.2} of {:.2} hours, are longer than batch.max_seconds = {max} and left out",
        found.left_out,
        seconds.len(),
        found.seconds_left_out / 3600.0,
        seconds.iter().sum::<f64>() / 3600.0,
    );
    let mut kept = found.kept.into_iter().peekable();
    let all = utterances.into_iter().enumerate();
    (all.filter(|(at, _)| kept.next_if_eq(at).is_some()).map(|(_, one)| one).collect(), Some(note))
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
        Excerpt(&first.id)
    ))
}
