//! What was heard: a text with the times and confidences of its words.
mod captions;
mod lines;

use decoding::{Aggregate, Emitted};
use serde::{Deserialize, Serialize};
use speech::Tokenizer;

pub use captions::CaptionOptions;
pub use lines::{TranscriptFormat, TranscriptionWriter};

use crate::Result;
use crate::search::SearchResult;
use crate::words::{WORD_MARK, groups};

/// A token and when it was heard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedToken {
    /// The token's own text.
    pub text: String,
    /// Seconds from the start of the audio to the frame at which the model was sure of it.
    pub start: f64,
    /// Seconds to its end: one frame later, or as much later as its duration says in a token-and-duration transducer. A token without
    /// letters or digits ends with the token before it.
    pub end: f64,
    /// Natural log-probability at its site.
    pub log_prob: f64,
    /// From the whole distribution at its site, see [`decoding::Confidence`]; 1 if it was not asked for.
    pub confidence: f64,
}

/// A word and when it was heard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimedWord {
    /// The word.
    pub text: String,
    /// Seconds from the start of the audio to the start of its first token.
    pub start: f64,
    /// Seconds to the end of its last token.
    pub end: f64,
    /// One number of those of its tokens.
    pub confidence: f64,
}

/// A text with the times of its words and tokens.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Transcription {
    /// The recognised text.
    pub text: String,
    /// Its words.
    pub words: Vec<TimedWord>,
    /// Its tokens.
    pub tokens: Vec<TimedToken>,
    /// Whether words were found that are not believed; see [`Recognizer::with_silence`](crate::Recognizer::with_silence).
    pub silence: bool,
    /// The best texts, this one first, each once, where a beam search was asked for several: at most so many, and no more than it has
    /// kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nbest: Vec<RankedText>,
}

/// One of the best texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankedText {
    /// The text.
    pub text: String,
    /// What the order is by; see [`decoding::Ranked`].
    pub score: f64,
    /// Natural log-probability of its best sequence of labels, with what language models and a CTC head added.
    pub log_prob: f64,
}

impl Transcription {
    /// The same, so many seconds later.
    pub(crate) fn after(mut self, seconds: f64) -> Self {
        let tokens = self.tokens.iter_mut().flat_map(|token| [&mut token.start, &mut token.end]);
        let words = self.words.iter_mut().flat_map(|word| [&mut word.start, &mut word.end]);
        tokens.chain(words).for_each(|time| *time += seconds);
        self
    }

    /// Appends what was heard next. The best texts of a whole are not those of its parts: there are none.
    pub fn append(&mut self, next: Transcription) {
        if !self.text.is_empty() && !next.text.is_empty() {
            self.text.push(' ');
        }
        self.text += &next.text;
        self.words.extend(next.words);
        self.tokens.extend(next.tokens);
        self.nbest.clear();
    }
}

/// Makes text with times of labels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Writer {
    frame_seconds: f64,
    /// Whether labels have durations of their own.
    durations: bool,
    aggregate: Aggregate,
    /// Whether special words are left out.
    omits_special: bool,
}

impl Writer {
    pub fn new(durations: bool, frame_seconds: f64, aggregate: Aggregate) -> Self {
        Self { frame_seconds, durations, aggregate, omits_special: false }
    }

    /// Leaves special words out of texts, or writes them.
    pub fn with_special_omitted(self, omits_special: bool) -> Self {
        Self { omits_special, ..self }
    }

    /// Labels as text alone.
    pub fn text(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Result<String> {
        let text = tokenizer.decode(ids)?;
        Ok(if self.omits_special { tokenizer.without_special(&text) } else { text })
    }

    /// Seconds from one encoder frame to the next.
    pub fn frame_seconds(&self) -> f64 {
        self.frame_seconds
    }

    /// What a search has found as text with times.
    pub fn write_found(&self, tokenizer: &Tokenizer, found: &SearchResult) -> Result<Transcription> {
        let mut nbest: Vec<RankedText> = Vec::with_capacity(found.ranked.len());
        for ranked in &found.ranked {
            let text = self.text(tokenizer, &ranked.ids())?;
            if !nbest.iter().any(|other| other.text == text) {
                nbest.push(RankedText { text, score: ranked.score, log_prob: ranked.log_prob });
            }
        }
        Ok(Transcription { nbest, ..self.write(tokenizer, &found.best.labels)? })
    }

    /// Labels as text with times.
    pub fn write(&self, tokenizer: &Tokenizer, labels: &[Emitted]) -> Result<Transcription> {
        if self.omits_special && labels.iter().any(|label| tokenizer.is_special(label.label)) {
            return self.write_without_special(tokenizer, labels);
        }
        let ids: Vec<u32> = labels.iter().map(|label| label.label).collect();
        let names = tokenizer.tokens();
        let mut tokens: Vec<TimedToken> = Vec::with_capacity(labels.len());
        for label in labels {
            let text = names[label.label as usize].clone();
            let frames = if self.durations { label.duration } else { 1 };
            let mut start = label.frame as f64 * self.frame_seconds;
            let mut end = label.frame.saturating_add(frames) as f64 * self.frame_seconds;
            // A sign is not spoken: its time is where the speech before it ends. A bare mark of a word's beginning is none.
            let body = text.trim_start_matches(WORD_MARK).trim();
            let silent = !body.is_empty() && !body.chars().any(char::is_alphanumeric);
            if let Some(before) = tokens.last().filter(|_| silent) {
                (start, end) = (before.end, before.end);
            }
            let Emitted { log_prob, confidence, .. } = *label;
            tokens.push(TimedToken { text, start, end, log_prob, confidence });
        }
        let word = |group: std::ops::Range<usize>| -> Result<TimedWord> {
            let of_word = &tokens[group.clone()];
            Ok(TimedWord {
                text: tokenizer.decode(&ids[group])?,
                start: of_word[0].start,
                end: of_word.iter().fold(0.0, |end, token| token.end.max(end)),
                confidence: self.aggregate.of(of_word.iter().map(|token| token.confidence)),
            })
        };
        let words = groups(tokenizer, &ids).into_iter().map(word).collect::<Result<Vec<_>>>()?;
        // A beginning without anything behind it is no word.
        let words = words.into_iter().filter(|word| !word.text.is_empty()).collect();
        Ok(Transcription { text: tokenizer.decode(&ids)?, words, tokens, ..Transcription::default() })
    }

    /// Runs of labels between special words as one text.
    fn write_without_special(&self, tokenizer: &Tokenizer, labels: &[Emitted]) -> Result<Transcription> {
        let mut all = Transcription::default();
        for run in labels.split(|label| tokenizer.is_special(label.label)) {
            let Transcription { words, tokens, .. } = self.write(tokenizer, run)?;
            all.words.extend(words);
            all.tokens.extend(tokens);
        }
        all.text = all.words.iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(" ");
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use speech::TokenizerKind;

    use super::*;

    fn emitted(tokenizer: &Tokenizer, text: &str, frames: &[usize], durations: &[usize]) -> Vec<Emitted> {
        let times = frames.iter().zip(durations).enumerate();
        let labels = tokenizer.encode(text).unwrap();
        let label = |(label, (at, (&frame, &duration))): (u32, (usize, _))| Emitted {
            label,
            frame,
            duration,
            confidence: 1.0 / (at + 1) as f64,
            ..Emitted::default()
        };
        labels.into_iter().zip(times).map(label).collect()
    }

    #[test]
    fn special_words_are_left_out_on_request() {
        use TokenizerKind::{Bpe, Characters, InnerCharacters, Unigram, Words};
        let text = "<unk> ab <laugh> ba <unk>";
        for kind in [Words, Characters, InnerCharacters, Bpe { size: 9 }, Unigram { size: 9 }] {
            let tokenizer = Tokenizer::train(kind, &[text]).unwrap();
            let count = tokenizer.encode(text).unwrap().len();
            let frames: Vec<usize> = (0..count).collect();
            let labels = emitted(&tokenizer, text, &frames, &vec![1; count]);
            let writer = Writer::new(false, 1.0, Aggregate::Min);
            let whole = writer.write(&tokenizer, &labels).unwrap();
            assert_eq!(whole.text, text, "{kind:?}");
            let texts = |found: &Transcription| {
                found.words.iter().map(|word| word.text.clone()).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(texts(&whole), text, "{kind:?}");
            let writer = writer.with_special_omitted(true);
            let found = writer.write(&tokenizer, &labels).unwrap();
            assert_eq!((found.text.as_str(), texts(&found).as_str()), ("ab ba", "ab ba"), "{kind:?}");
            // Times are those of the whole.
            assert_eq!(found.words[1], whole.words[3], "{kind:?}");
            let ids: Vec<u32> = labels.iter().map(|label| label.label).collect();
            assert_eq!(writer.text(&tokenizer, &ids).unwrap(), "ab ba", "{kind:?}");
        }
    }

    #[test]
    fn words_reach_from_their_first_token_to_their_last() {
        let tokenizer = Tokenizer::train(TokenizerKind::InnerCharacters, &["ab, ba"]).unwrap();
        let labels = emitted(&tokenizer, "ab, ba", &[3, 5, 9, 9, 14], &[1, 2, 4, 4, 3]);
        let found = Writer::new(true, 0.25, Aggregate::Min).write(&tokenizer, &labels).unwrap();
        assert_eq!(found.text, "ab, ba");
        let words: Vec<_> =
            found.words.iter().map(|w| (w.text.as_str(), w.start, w.end, w.confidence)).collect();
        // The comma ends where its word ends.
        assert_eq!(words, [("ab,", 0.75, 1.75, 1.0 / 3.0), ("ba", 2.25, 4.25, 0.2)]);
        assert_eq!((found.tokens[2].start, found.tokens[2].end), (1.75, 1.75));

        let found = Writer::new(false, 0.25, Aggregate::Max).write(&tokenizer, &labels).unwrap();
        assert_eq!((found.words[0].end, found.words[0].confidence), (1.5, 1.0));
        let none = Writer::new(false, 0.25, Aggregate::Min).write(&tokenizer, &[]).unwrap();
        assert_eq!(none, Transcription::default());
    }
}
