//! Formats transcriptions as text, JSON, CTM, SRT or WebVTT.
use std::fmt::Write;
use std::str::FromStr;

use kernels::Excerpt;
use serde::Serialize;

use super::Transcription;
use super::captions::{self, CaptionOptions};
use crate::OutputIds;

/// A file format of transcriptions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TranscriptFormat {
    /// One line of text.
    #[default]
    Text,
    /// One JSON object per line: id, text, words and tokens with times and confidences.
    Json,
    /// NIST's CTM: one line `id channel start duration word confidence` per word.
    ///
    /// Times are in seconds.
    Ctm,
    /// SubRip captions.
    Srt,
    /// WebVTT captions.
    Vtt,
}

impl TranscriptFormat {
    /// All formats.
    pub const ALL: [TranscriptFormat; 5] = [
        TranscriptFormat::Text,
        TranscriptFormat::Json,
        TranscriptFormat::Ctm,
        TranscriptFormat::Srt,
        TranscriptFormat::Vtt,
    ];

    /// Returns the name, which is the usual file extension.
    pub fn name(self) -> &'static str {
        match self {
            TranscriptFormat::Text => "txt",
            TranscriptFormat::Json => "json",
            TranscriptFormat::Ctm => "ctm",
            TranscriptFormat::Srt => "srt",
            TranscriptFormat::Vtt => "vtt",
        }
    }

    /// Returns whether a file can contain several transcriptions.
    pub fn is_appendable(self) -> bool {
        matches!(self, TranscriptFormat::Text | TranscriptFormat::Json | TranscriptFormat::Ctm)
    }
}

/// Formats the transcriptions of a list.
#[derive(Debug, Clone, Default)]
pub struct TranscriptionWriter {
    /// The format.
    pub format: TranscriptFormat,
    /// Names of the recordings of the whole list, for CTM.
    pub ids: OutputIds,
    /// Layout of captions.
    pub captions: CaptionOptions,
}

impl TranscriptionWriter {
    /// Formats a transcription as a file, or as appendable lines.
    pub fn write(&self, id: &str, transcription: &Transcription) -> String {
        match self.format {
            TranscriptFormat::Text => format!("{}\n", transcription.text),
            TranscriptFormat::Json => format_json(id, transcription),
            TranscriptFormat::Ctm => format_ctm(self.ids.name(id), transcription),
            TranscriptFormat::Srt => captions::format_srt(&transcription.words, &self.captions),
            TranscriptFormat::Vtt => captions::format_vtt(&transcription.words, &self.captions),
        }
    }
}

impl FromStr for TranscriptFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known_names = || TranscriptFormat::ALL.map(TranscriptFormat::name).join(", ");
        let name = if name == "text" { "txt" } else { name };
        let format = TranscriptFormat::ALL.into_iter().find(|format| format.name() == name);
        format.ok_or_else(|| format!("expected one of {}, found {}", known_names(), Excerpt(name)))
    }
}

/// A line of JSON: a transcription with the id of its recording.
#[derive(Serialize)]
struct JsonLine<'a> {
    id: &'a str,
    #[serde(flatten)]
    transcription: &'a Transcription,
}

/// Formats a line of JSON.
fn format_json(id: &str, transcription: &Transcription) -> String {
    serde_json::to_string(&JsonLine { id, transcription }).expect("numbers and strings are valid JSON") + "\n"
}

/// Formats a CTM line for each word, in channel 1.
fn format_ctm(id: &str, transcription: &Transcription) -> String {
    transcription.words.iter().fold(String::new(), |mut lines, word| {
        let (start, duration) = (word.start, word.end - word.start);
        // Writing to a string does not fail.
        let _ = writeln!(lines, "{id} 1 {start:.3} {duration:.3} {} {:.4}", word.text, word.confidence);
        lines
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transcription::TimedWord;

    #[test]
    fn every_format_contains_the_words_and_their_times() {
        let word = |text: &str, start, end| TimedWord {
            text: text.into(),
            start,
            end,
            confidence: 0.5,
            is_recovered: false,
        };
        let transcription = Transcription {
            text: "hello you".into(),
            words: vec![word("hello", 0.25, 0.75), word("you", 3661.0, 3661.5)],
            ..Transcription::default()
        };
        let format_as = |format: TranscriptFormat| {
            let ids = OutputIds::for_ctm(["a file.wav"]);
            TranscriptionWriter { format, ids, ..TranscriptionWriter::default() }
                .write("a file.wav", &transcription)
        };
        assert_eq!(format_as(TranscriptFormat::Text), "hello you\n");
        assert_eq!(
            format_as(TranscriptFormat::Ctm),
            "a_file.wav 1 0.250 0.500 hello 0.5000\na_file.wav 1 3661.000 0.500 you 0.5000\n"
        );
        let json: serde_json::Value = serde_json::from_str(&format_as(TranscriptFormat::Json)).unwrap();
        assert_eq!((&json["id"], &json["words"][1]["start"]), (&"a file.wav".into(), &3661.0.into()));
        assert_eq!(
            format_as(TranscriptFormat::Srt),
            "1\n00:00:00,250 --> 00:00:01,084\nhello\n\n2\n01:01:01,000 --> 01:01:01,834\nyou\n\n"
        );
        assert_eq!(
            format_as(TranscriptFormat::Vtt),
            "WEBVTT\n\n00:00:00.250 --> 00:00:01.084\nhello\n\n01:01:01.000 --> 01:01:01.834\nyou\n\n"
        );
        assert_eq!("srt".parse(), Ok(TranscriptFormat::Srt));
        assert_eq!("text".parse(), Ok(TranscriptFormat::Text));
        assert!("doc".parse::<TranscriptFormat>().unwrap_err().contains("txt, json, ctm, srt, vtt"));
    }
}
