//! Words that a model makes of silence.
use decoding::Emitted;
use speech::{Features, Tokenizer};

use crate::search::SearchResult;
use crate::unfused::Unfused;
use crate::words::groups;

/// Least posterior that the surest word of a text has, by default.
///
/// What is said is surer by far. With 0.2, no utterance changes of the dev and test sets of the digits, FSDD and AN4 (trained for 30
/// epochs, 20.8 % of its test words wrong), nor of FSDD's single words (29 % wrong), nor of the digits with a model that was stopped
/// at 65 %; one of AN4 that was stopped at 92.5 % loses 2.3 points.
pub const MIN_WORD_POSTERIOR: f64 = 0.2;

/// A normalised plane that stays within this of its mean (the least deviation that is scaled up to 1 is 0.05 nepers) is the same from
/// beginning to end.
const FLAT: f32 = 1e-3;

/// Whether the text of an utterance is discarded as silence: `e < least`, or the features are constant over time.
///
/// The evidence `e` comes from the model alone ([`SearchResult::unfused`]), so that the words of a language model or a
/// phrase list need no posterior of their own: `max_w Π_{i in w} p_i` over the words of the greedy text, or, where that is
/// empty, the largest probability of any label at a frame. In scripts without spaces between words, every token is a word.
pub(crate) fn is_silence(
    features: &Features,
    tokenizer: &Tokenizer,
    found: &SearchResult,
    least: f64,
) -> bool {
    if least <= 0.0 || found.best.labels.is_empty() {
        return false;
    }
    if features.data.iter().all(|x| x.abs() <= FLAT) {
        return true;
    }
    let evidence = match &found.unfused {
        Some(unfused) => evidence(tokenizer, unfused),
        None => surest(tokenizer, &found.best.labels),
    };
    evidence < least
}

/// How probable it is that the model alone finds speech.
pub(crate) fn evidence(tokenizer: &Tokenizer, unfused: &Unfused) -> f64 {
    match unfused.labels.is_empty() {
        true => unfused.label_posterior,
        false => surest(tokenizer, &unfused.labels),
    }
}

/// The largest posterior of a word, the product of those of its tokens; 0 without one.
pub(crate) fn surest(tokenizer: &Tokenizer, found: &[Emitted]) -> f64 {
    let labels: Vec<u32> = found.iter().map(|label| label.label).collect();
    let names = tokenizer.tokens();
    let alone = |label: &Emitted| names[label.label as usize].chars().any(is_without_spaces);
    let posterior = |word: &[Emitted]| word.iter().map(|label| label.log_prob).sum::<f64>().exp();
    let of = |word: std::ops::Range<usize>| {
        let parts = found[word].chunk_by(|a, b| !alone(a) && !alone(b));
        parts.map(posterior).fold(0.0, f64::max)
    };
    groups(tokenizer, &labels).into_iter().map(of).fold(0.0, f64::max)
}

/// Whether a letter is of a script that puts no spaces between words: Thai, Lao, Tibetan, Burmese, Khmer; Chinese and Japanese.
fn is_without_spaces(letter: char) -> bool {
    matches!(letter, '\u{0e00}'..='\u{109f}' | '\u{1780}'..='\u{17ff}' | '\u{2e80}'..='\u{a4cf}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

#[cfg(test)]
mod tests {
    use decoding::Hypothesis;
    use speech::TokenizerKind;

    use super::*;

    fn found(tokenizer: &Tokenizer, text: &str, posteriors: &[f64]) -> Vec<Emitted> {
        let labels = tokenizer.encode(text).unwrap().into_iter().zip(posteriors);
        labels.map(|(label, p)| Emitted { label, log_prob: p.ln(), ..Emitted::default() }).collect()
    }

    #[test]
    fn the_surest_word_speaks_for_the_text() {
        let tokenizer = Tokenizer::train(TokenizerKind::InnerCharacters, &["ab a"]).unwrap();
        let found = |text: &str, posteriors: &[f64]| found(&tokenizer, text, posteriors);
        let sound = Features { frames: 1, dim: 2, data: vec![0.0, -0.5] };
        let found_labels = |labels: &[Emitted]| {
            SearchResult::from(Hypothesis { labels: labels.to_vec(), ..Hypothesis::default() })
        };
        let silent = |labels: &[Emitted], least| is_silence(&sound, &tokenizer, &found_labels(labels), least);
        let words = found("ab a", &[0.7, 0.8, 0.5]);
        assert!(!silent(&words, 0.55) && silent(&words, 0.57) && !silent(&words, 0.0));
        assert!(!silent(&found("", &[]), 1.0));
        let flat = Features { frames: 1, dim: 2, data: vec![0.0, 1e-4] };
        let sure = found("a", &[1.0]);
        let flat = |least| is_silence(&flat, &tokenizer, &found_labels(&sure), least);
        assert!(flat(1e-9) && !flat(0.0));
        assert!(!silent(&sure, 1.0));
    }

    #[test]
    fn a_fused_text_is_judged_by_what_the_model_alone_finds() {
        let tokenizer = Tokenizer::train(TokenizerKind::Words, &["nine zero"]).unwrap();
        let sound = Features { frames: 1, dim: 2, data: vec![0.0, -0.5] };
        let labels = |text, posterior| found(&tokenizer, text, &[posterior]);
        let silent = |unfused: Unfused| {
            let best = Hypothesis { labels: labels("nine", 0.01), ..Hypothesis::default() };
            let found = SearchResult { unfused: Some(unfused), ..SearchResult::from(best) };
            is_silence(&sound, &tokenizer, &found, 0.2)
        };
        // The list's word has a posterior of 0.01 in all of these.
        assert!(!silent(Unfused { labels: labels("zero", 0.5), label_posterior: 0.0 }));
        assert!(silent(Unfused { labels: labels("zero", 0.1), label_posterior: 0.9 }));
        assert!(!silent(Unfused { labels: Vec::new(), label_posterior: 0.4 }));
        assert!(silent(Unfused { labels: Vec::new(), label_posterior: 0.1 }));
    }

    #[test]
    fn without_spaces_every_token_is_a_word() {
        let tokenizer = Tokenizer::train(TokenizerKind::Characters, &["我们 ab"]).unwrap();
        for (text, posterior) in [("我们", 0.7), ("ab", 0.42), ("a我b", 0.7), ("ab我", 0.42)] {
            let sure = surest(&tokenizer, &found(&tokenizer, text, &[0.6, 0.7, 0.3]));
            assert!((sure - posterior).abs() < 1e-9, "{text}: {sure}");
        }
    }
}
