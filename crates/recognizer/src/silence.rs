//! The silence filter: discards texts that a model recognizes in silence or noise.
use std::ops::Range;

use decoding::DecodedToken;
use speech::{Features, Tokenizer};

use crate::search::SearchResult;
use crate::unfused::UnfusedResult;
use crate::words::{is_of_unspaced_script, word_ranges};

/// Default of the smallest posterior of a text's best word.
///
/// Words in speech have much larger posteriors. With 0.2, no utterance changes of the dev and test
/// sets of the digits, FSDD and AN4 (trained for 30 epochs, 20.8 % of its test words wrong), nor of
/// FSDD's single words (29 % wrong), nor of the digits with a model that was stopped at 65 %; one
/// of AN4 that was stopped at 92.5 % loses 2.3 points.
pub const MIN_WORD_POSTERIOR: f64 = 0.2;

/// Largest deviation of constant features from their mean, after normalization.
///
/// The smallest deviation that is scaled up to 1 is 0.05 nepers.
const MAX_FLAT_DEVIATION: f32 = 1e-3;

/// Returns whether a text is discarded as silence.
///
/// True if `e < min_posterior`, or if the features are constant over time. The evidence `e` comes
/// from the model only ([`SearchResult::unfused`]), so that words of a language model or a phrase
/// list need no posterior: `max_w Π_{i in w} p_i` over the words of the greedy text or, if that is
/// empty, the largest probability of any label at a frame. In scripts without spaces, every token
/// is a word.
pub(crate) fn is_silence(
    features: &Features,
    tokenizer: &Tokenizer,
    result: &SearchResult,
    min_posterior: f64,
) -> bool {
    if min_posterior <= 0.0 || result.best.labels.is_empty() {
        return false;
    }
    if is_flat(features) {
        return true;
    }
    let evidence = match &result.unfused {
        Some(unfused) => speech_evidence(tokenizer, unfused),
        None => max_word_posterior(tokenizer, &result.best.labels),
    };
    evidence < min_posterior
}

/// Returns whether features are constant over time.
pub(crate) fn is_flat(features: &Features) -> bool {
    features.data.iter().all(|x| x.abs() <= MAX_FLAT_DEVIATION)
}

/// Returns the posterior that is evidence of speech in the unfused result.
pub(crate) fn speech_evidence(tokenizer: &Tokenizer, unfused: &UnfusedResult) -> f64 {
    match unfused.labels.is_empty() {
        true => unfused.max_label_posterior,
        false => max_word_posterior(tokenizer, &unfused.labels),
    }
}

/// Returns the largest word posterior; a word's posterior is the product over its tokens.
///
/// Returns 0 without words.
pub(crate) fn max_word_posterior(tokenizer: &Tokenizer, labels: &[DecodedToken]) -> f64 {
    let posteriors = word_parts(tokenizer, labels).into_iter().map(|part| part_posterior(&labels[part]));
    posteriors.fold(0.0, f64::max)
}

/// Returns the label ranges of words; in scripts without spaces, every token is a word.
pub(crate) fn word_parts(tokenizer: &Tokenizer, labels: &[DecodedToken]) -> Vec<Range<usize>> {
    let ids: Vec<u32> = labels.iter().map(|label| label.label).collect();
    let names = tokenizer.tokens();
    let is_separate_word =
        |label: &DecodedToken| names[label.label as usize].chars().any(is_of_unspaced_script);
    let mut parts = Vec::new();
    for word in word_ranges(tokenizer, &ids) {
        let mut start = word.start;
        for part in labels[word].chunk_by(|a, b| !is_separate_word(a) && !is_separate_word(b)) {
            parts.push(start..start + part.len());
            start += part.len();
        }
    }
    parts
}

/// Returns the product of the posteriors of labels.
pub(crate) fn part_posterior(labels: &[DecodedToken]) -> f64 {
    labels.iter().map(|label| label.log_prob).sum::<f64>().exp()
}

#[cfg(test)]
mod tests {
    use decoding::Hypothesis;
    use speech::TokenizerKind;

    use super::*;

    /// Labels of a text, each with its posterior.
    fn labels(tokenizer: &Tokenizer, text: &str, posteriors: &[f64]) -> Vec<DecodedToken> {
        let labels = tokenizer.encode(text).unwrap().into_iter().zip(posteriors);
        labels.map(|(label, p)| DecodedToken { label, log_prob: p.ln(), ..DecodedToken::default() }).collect()
    }

    #[test]
    fn a_text_is_silence_if_its_best_word_is_below_the_minimum() {
        let tokenizer = Tokenizer::train(TokenizerKind::InnerCharacters, &["ab a"]).unwrap();
        let labels = |text: &str, posteriors: &[f64]| labels(&tokenizer, text, posteriors);
        let features = Features { frames: 1, dim: 2, data: vec![0.0, -0.5] };
        let result = |labels: &[DecodedToken]| {
            SearchResult::from(Hypothesis { labels: labels.to_vec(), ..Hypothesis::default() })
        };
        let is_silent = |labels: &[DecodedToken], min_posterior| {
            is_silence(&features, &tokenizer, &result(labels), min_posterior)
        };
        let words = labels("ab a", &[0.7, 0.8, 0.5]);
        assert!(!is_silent(&words, 0.55) && is_silent(&words, 0.57) && !is_silent(&words, 0.0));
        assert!(!is_silent(&labels("", &[]), 1.0));
        let flat = Features { frames: 1, dim: 2, data: vec![0.0, 1e-4] };
        let certain = labels("a", &[1.0]);
        let is_flat_silence = |min_posterior| is_silence(&flat, &tokenizer, &result(&certain), min_posterior);
        assert!(is_flat_silence(1e-9) && !is_flat_silence(0.0));
        assert!(!is_silent(&certain, 1.0));
    }

    #[test]
    fn a_fused_text_is_accepted_by_evidence_of_the_model_only() {
        let tokenizer = Tokenizer::train(TokenizerKind::Words, &["nine zero"]).unwrap();
        let features = Features { frames: 1, dim: 2, data: vec![0.0, -0.5] };
        let labels = |text, posterior| labels(&tokenizer, text, &[posterior]);
        let is_silent = |unfused: UnfusedResult| {
            let best = Hypothesis { labels: labels("nine", 0.01), ..Hypothesis::default() };
            let result = SearchResult { unfused: Some(unfused), ..SearchResult::from(best) };
            is_silence(&features, &tokenizer, &result, 0.2)
        };
        // The listed word always has a posterior of 0.01.
        assert!(!is_silent(UnfusedResult { labels: labels("zero", 0.5), max_label_posterior: 0.0 }));
        assert!(is_silent(UnfusedResult { labels: labels("zero", 0.1), max_label_posterior: 0.9 }));
        assert!(!is_silent(UnfusedResult { labels: Vec::new(), max_label_posterior: 0.4 }));
        assert!(is_silent(UnfusedResult { labels: Vec::new(), max_label_posterior: 0.1 }));
    }

    #[test]
    fn in_scripts_without_spaces_every_token_is_a_word() {
        let tokenizer = Tokenizer::train(TokenizerKind::Characters, &["我们 ab"]).unwrap();
        for (text, posterior) in [("我们", 0.7), ("ab", 0.42), ("a我b", 0.7), ("ab我", 0.42)] {
            let posterior_of_best =
                max_word_posterior(&tokenizer, &labels(&tokenizer, text, &[0.6, 0.7, 0.3]));
            assert!((posterior_of_best - posterior).abs() < 1e-9, "{text}: {posterior_of_best}");
        }
    }
}
