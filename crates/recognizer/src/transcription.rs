//! `Transcription`: a recognized text with times and confidences of its words.
mod captions;
mod formats;

use decoding::{ConfidenceAggregation, DecodedToken};
use serde::{Deserialize, Serialize};
use speech::Tokenizer;

pub use captions::CaptionOptions;
pub use formats::{TranscriptFormat, TranscriptionWriter};

use crate::Result;
use crate::coverage::report::Coverage;
use crate::search::SearchResult;
use crate::words::{WORD_MARK, word_ranges};

/// A token with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedToken {
    /// The text of the token.
    pub text: String,
    /// Seconds from the start of the audio to the token's emission.
    pub start: f64,
    /// Seconds from the start of the audio to the token's end.
    ///
    /// A token ends one frame after its emission or, in a token-and-duration transducer, after its
    /// duration. A token without letters or digits ends with the preceding token.
    pub end: f64,
    /// Natural log-probability at its site.
    pub log_prob: f64,
    /// Confidence from the distribution at its site, see [`decoding::Confidence`].
    ///
    /// 1 if it was not requested.
    pub confidence: f64,
}

/// A word with its time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedWord {
    /// The word.
    pub text: String,
    /// Seconds from the start of the audio to its first token.
    pub start: f64,
    /// Seconds to the end of its last token.
    pub end: f64,
    /// Confidence aggregated over its tokens.
    pub confidence: f64,
    /// Whether a second search of a gap found it ([`Recognizer::cover`](crate::Recognizer::cover)).
    #[serde(rename = "recovered", default, skip_serializing_if = "std::ops::Not::not")]
    pub is_recovered: bool,
}

/// A text with the times of its words and tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcription {
    /// The recognized text.
    pub text: String,
    /// The words.
    pub words: Vec<TimedWord>,
    /// The tokens.
    pub tokens: Vec<TimedToken>,
    /// Whether words were discarded as silence.
    ///
    /// See [`Recognizer::with_silence`](crate::Recognizer::with_silence).
    #[serde(rename = "silence")]
    pub is_discarded: bool,
    /// The n-best texts, this one first, if a beam returns several.
    ///
    /// Duplicates are removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbest: Vec<RankedText>,
    /// The contents of every second of the recording, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
}

/// One of the n-best texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankedText {
    /// The text.
    pub text: String,
    /// The score that determines the order; see [`decoding::RankedHypothesis`].
    pub score: f64,
    /// Natural log-probability of its best label sequence, with language models and CTC.
    pub log_prob: f64,
}

impl Transcription {
    /// Shifts all times by `seconds`.
    pub(crate) fn delayed_by(mut self, seconds: f64) -> Self {
        let tokens = self.tokens.iter_mut().flat_map(|token| [&mut token.start, &mut token.end]);
        let words = self.words.iter_mut().flat_map(|word| [&mut word.start, &mut word.end]);
        tokens.chain(words).for_each(|time| *time += seconds);
        self
    }

    /// Appends the next transcription of a recording; n-best texts and coverage are dropped.
    pub fn append(&mut self, next: Transcription) {
        if !self.text.is_empty() && !next.text.is_empty() {
            self.text.push(' ');
        }
        self.text += &next.text;
        self.words.extend(next.words);
        self.tokens.extend(next.tokens);
        self.nbest.clear();
        self.coverage = None;
    }
}

/// Builds transcriptions: converts labels with frames to text with times.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TranscriptionBuilder {
    frame_seconds: f64,
    /// Whether labels have durations.
    has_durations: bool,
    /// Combines the confidences of tokens to that of their word.
    aggregate: ConfidenceAggregation,
    /// Whether special words are omitted.
    omits_special: bool,
}

impl TranscriptionBuilder {
    /// Creates a builder that keeps special words.
    pub(crate) fn new(has_durations: bool, frame_seconds: f64, aggregate: ConfidenceAggregation) -> Self {
        Self { frame_seconds, has_durations, aggregate, omits_special: false }
    }

    /// Omits or keeps special words.
    pub(crate) fn with_special_omitted(self, omits_special: bool) -> Self {
        Self { omits_special, ..self }
    }

    /// Converts labels to text without times.
    pub(crate) fn text(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String> {
        let text = tokenizer.decode(ids)?;
        Ok(if self.omits_special { tokenizer.without_special(&text) } else { text })
    }

    /// Returns the seconds per encoder frame.
    pub(crate) fn frame_seconds(&self) -> f64 {
        self.frame_seconds
    }

    /// Converts a search result to text with times.
    pub(crate) fn build_from_result(
        &self,
        tokenizer: &Tokenizer,
        result: &SearchResult,
    ) -> Result<Transcription> {
        let mut nbest: Vec<RankedText> = Vec::with_capacity(result.ranked.len());
        for ranked in &result.ranked {
            let text = self.text(tokenizer, &ranked.ids())?;
            if !nbest.iter().any(|ranked| ranked.text == text) {
                nbest.push(RankedText { text, score: ranked.score, log_prob: ranked.log_prob });
            }
        }
        Ok(Transcription { nbest, ..self.build(tokenizer, &result.best.labels)? })
    }

    /// Converts labels to text with times.
    pub(crate) fn build(&self, tokenizer: &Tokenizer, labels: &[DecodedToken]) -> Result<Transcription> {
        if self.omits_special && labels.iter().any(|label| tokenizer.is_special(label.label)) {
            return self.build_without_special(tokenizer, labels);
        }
        let ids: Vec<u32> = labels.iter().map(|label| label.label).collect();
        let names = tokenizer.tokens();
        let mut tokens: Vec<TimedToken> = Vec::with_capacity(labels.len());
        for label in labels {
            let text = names[label.label as usize].clone();
            let frames = if self.has_durations { label.duration } else { 1 };
            let mut start = label.frame as f64 * self.frame_seconds;
            let mut end = label.frame.saturating_add(frames) as f64 * self.frame_seconds;
            // Punctuation is not spoken: its time is the end of the preceding speech. A bare word
            // mark is not punctuation.
            let unmarked = text.trim_start_matches(WORD_MARK).trim();
            let is_punctuation = !unmarked.is_empty() && !unmarked.chars().any(char::is_alphanumeric);
            if let Some(previous) = tokens.last().filter(|_| is_punctuation) {
                (start, end) = (previous.end, previous.end);
            }
            let DecodedToken { log_prob, confidence, .. } = *label;
            tokens.push(TimedToken { text, start, end, log_prob, confidence });
        }
        let timed_word = |range: std::ops::Range<usize>| -> Result<TimedWord> {
            let word_tokens = &tokens[range.clone()];
            Ok(TimedWord {
                // Imported tokenizers decode an unknown label with spaces around it.
                text: tokenizer.decode(&ids[range])?.trim().to_owned(),
                start: word_tokens[0].start,
                end: word_tokens.iter().fold(0.0, |end, token| token.end.max(end)),
                confidence: self.aggregate.combine(word_tokens.iter().map(|token| token.confidence)),
                is_recovered: false,
            })
        };
        let words = word_ranges(tokenizer, &ids).into_iter().map(timed_word).collect::<Result<Vec<_>>>()?;
        // A word mark without text is not a word.
        let words = words.into_iter().filter(|word| !word.text.is_empty()).collect();
        Ok(Transcription { text: tokenizer.decode(&ids)?, words, tokens, ..Transcription::default() })
    }

    /// Converts the runs of labels between special words to one text.
    fn build_without_special(&self, tokenizer: &Tokenizer, labels: &[DecodedToken]) -> Result<Transcription> {
        let mut transcription = Transcription::default();
        for run in labels.split(|label| tokenizer.is_special(label.label)) {
            let Transcription { words, tokens, .. } = self.build(tokenizer, run)?;
            transcription.words.extend(words);
            transcription.tokens.extend(tokens);
        }
        transcription.text =
            transcription.words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
        Ok(transcription)
    }
}

#[cfg(test)]
mod tests {
    use speech::TokenizerKind;

    use super::*;

    /// Labels of a text at the given frames.
    ///
    /// The confidences are 1, 1/2, 1/3 and so on.
    fn labels_at(
        tokenizer: &Tokenizer,
        text: &str,
        frames: &[usize],
        durations: &[usize],
    ) -> Vec<DecodedToken> {
        let times = frames.iter().zip(durations).enumerate();
        let labels = tokenizer.encode(text).unwrap();
        let label = |(label, (index, (&frame, &duration))): (u32, (usize, _))| DecodedToken {
            label,
            frame,
            duration,
            confidence: 1.0 / (index + 1) as f64,
            ..DecodedToken::default()
        };
        labels.into_iter().zip(times).map(label).collect()
    }

    #[test]
    fn special_words_are_omitted_on_request() {
        use TokenizerKind::{Bpe, Characters, InnerCharacters, Unigram, Words};
        let text = "<unk> ab <laugh> ba <unk>";
        for kind in [Words, Characters, InnerCharacters, Bpe { size: 9 }, Unigram { size: 9 }] {
            let tokenizer = Tokenizer::train(kind, &[text]).unwrap();
            let count = tokenizer.encode(text).unwrap().len();
            let frames: Vec<usize> = (0..count).collect();
            let labels = labels_at(&tokenizer, text, &frames, &vec![1; count]);
            let builder = TranscriptionBuilder::new(false, 1.0, ConfidenceAggregation::Min);
            let unfiltered = builder.build(&tokenizer, &labels).unwrap();
            assert_eq!(unfiltered.text, text, "{kind:?}");
            let join_words = |transcription: &Transcription| {
                transcription.words.iter().map(|word| word.text.clone()).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(join_words(&unfiltered), text, "{kind:?}");
            let builder = builder.with_special_omitted(true);
            let transcription = builder.build(&tokenizer, &labels).unwrap();
            assert_eq!(
                (transcription.text.as_str(), join_words(&transcription).as_str()),
                ("ab ba", "ab ba"),
                "{kind:?}"
            );
            // Times are those of the text with special words.
            assert_eq!(transcription.words[1], unfiltered.words[3], "{kind:?}");
            let ids: Vec<u32> = labels.iter().map(|label| label.label).collect();
            assert_eq!(builder.text(&tokenizer, &ids).unwrap(), "ab ba", "{kind:?}");
        }
    }

    #[test]
    fn special_pieces_of_imported_tokenizers_are_omitted_on_request() {
        use crate::sentencepiece_bytes::{ModelBytes, NORMAL, UNIGRAM, USER_DEFINED};
        let pieces = [("\u{2581}", -1.0, NORMAL), ("a", -1.0, NORMAL), ("<pad>", 0.0, USER_DEFINED)];
        let model = ModelBytes::new(UNIGRAM, &pieces).to_bytes();
        let tokenizer = Tokenizer::from_sentencepiece(&model).unwrap();
        let text = "aa<pad>a éa";
        let count = tokenizer.encode(text).unwrap().len();
        let labels = labels_at(&tokenizer, text, &(0..count).collect::<Vec<_>>(), &vec![1; count]);
        let builder = TranscriptionBuilder::new(false, 1.0, ConfidenceAggregation::Min);
        for (omits_special, expected) in [(false, "aa <pad> a \u{2047} a"), (true, "aa a a")] {
            let transcription =
                builder.with_special_omitted(omits_special).build(&tokenizer, &labels).unwrap();
            let words: Vec<&str> = transcription.words.iter().map(|word| word.text.as_str()).collect();
            assert_eq!(words.join(" "), expected);
            let text = builder.with_special_omitted(omits_special);
            let ids: Vec<u32> = labels.iter().map(|label| label.label).collect();
            assert_eq!(text.text(&tokenizer, &ids).unwrap(), transcription.text);
        }
    }

    #[test]
    fn words_extend_from_their_first_to_their_last_token() {
        let tokenizer = Tokenizer::train(TokenizerKind::InnerCharacters, &["ab, ba"]).unwrap();
        let labels = labels_at(&tokenizer, "ab, ba", &[3, 5, 9, 9, 14], &[1, 2, 4, 4, 3]);
        let transcription = TranscriptionBuilder::new(true, 0.25, ConfidenceAggregation::Min)
            .build(&tokenizer, &labels)
            .unwrap();
        assert_eq!(transcription.text, "ab, ba");
        let words: Vec<_> =
            transcription.words.iter().map(|w| (w.text.as_str(), w.start, w.end, w.confidence)).collect();
        // The comma ends where its word ends.
        assert_eq!(words, [("ab,", 0.75, 1.75, 1.0 / 3.0), ("ba", 2.25, 4.25, 0.2)]);
        assert_eq!((transcription.tokens[2].start, transcription.tokens[2].end), (1.75, 1.75));

        let transcription = TranscriptionBuilder::new(false, 0.25, ConfidenceAggregation::Max)
            .build(&tokenizer, &labels)
            .unwrap();
        assert_eq!((transcription.words[0].end, transcription.words[0].confidence), (1.5, 1.0));
        let empty = TranscriptionBuilder::new(false, 0.25, ConfidenceAggregation::Min)
            .build(&tokenizer, &[])
            .unwrap();
        assert_eq!(empty, Transcription::default());
    }
}
