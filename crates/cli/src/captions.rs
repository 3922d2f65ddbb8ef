//! Command-line arguments of captions (srt, vtt): durations, line width, lines.
use recognizer::{CaptionOptions, TranscriptFormat};

use crate::error::{Error, Result};
use crate::numbers;

/// Maximum of `--caption-width`.
const MAX_LINE_CHARACTERS: usize = 1000;
/// Maximum of `--caption-lines`.
const MAX_LINES: usize = 100;

/// Arguments of captions.
#[derive(clap::Args)]
pub(crate) struct CaptionArguments {
    /// Show each caption (srt, vtt) for at least this time in seconds; the next caption may cut it
    /// short [default: 0.834]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::positive_seconds)]
    caption_min: Option<f64>,
    /// Show each caption for at most this time in seconds [default: 6]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::positive_seconds)]
    caption_max: Option<f64>,
    /// Start a new caption after a pause of this many seconds [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::positive_seconds)]
    caption_pause: Option<f64>,
    /// Limit the characters of a caption line; longer words are cut [default: 42]
    #[arg(long, value_name = "CHARACTERS", value_parser = numbers::within("expected a number of characters from 1 to 1000", 1..=MAX_LINE_CHARACTERS))]
    caption_width: Option<usize>,
    /// Limit the lines of a caption [default: 2]
    #[arg(long, value_name = "LINES", value_parser = numbers::within("expected a number of lines from 1 to 100", 1..=MAX_LINES))]
    caption_lines: Option<usize>,
}

impl CaptionArguments {
    /// Returns the caption options for an output format.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for caption arguments with a format that has no captions;
    /// [`Error::Argument`] for a minimum time above the maximum.
    pub(crate) fn options(&self, format: Option<TranscriptFormat>) -> Result<CaptionOptions> {
        let given = [
            ("--caption-min", self.caption_min.is_some()),
            ("--caption-max", self.caption_max.is_some()),
            ("--caption-pause", self.caption_pause.is_some()),
            ("--caption-width", self.caption_width.is_some()),
            ("--caption-lines", self.caption_lines.is_some()),
        ];
        let writes_captions = matches!(format, Some(TranscriptFormat::Srt | TranscriptFormat::Vtt));
        if let Some((argument, _)) = given.into_iter().find(|(_, is_given)| *is_given && !writes_captions) {
            let expected = "captions (--format srt or vtt)";
            return Err(Error::Unsupported { argument, expected, found: "another format" });
        }
        let default = CaptionOptions::default();
        let max_seconds = self.caption_max.unwrap_or(default.max_seconds);
        let options = CaptionOptions {
            pause_seconds: self.caption_pause.unwrap_or(default.pause_seconds),
            min_seconds: self.caption_min.unwrap_or(default.min_seconds.min(max_seconds)),
            max_seconds,
            line_characters: self.caption_width.unwrap_or(default.line_characters),
            lines: self.caption_lines.unwrap_or(default.lines),
        };
        if options.min_seconds <= options.max_seconds {
            return Ok(options);
        }
        let expected = "of seconds, at most --caption-max";
        Err(Error::Argument { argument: "--caption-min", expected, found: options.min_seconds })
    }
}
