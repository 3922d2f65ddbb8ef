//! Rules of captions, as the user gives them.
use recognizer::{CaptionOptions, TranscriptFormat};

use crate::error::{Error, Result};
use crate::numbers;

/// The most characters of a line, and the most lines.
const MAX_CHARACTERS: usize = 1000;
const MAX_LINES: usize = 100;

/// The rules of captions.
#[derive(clap::Args)]
pub struct CaptionArguments {
    /// Show a caption (srt, vtt) for at least this time, unless the next one starts earlier [default: 0.834]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::window)]
    caption_min: Option<f64>,
    /// Show a caption for at most this time [default: 6]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::window)]
    caption_max: Option<f64>,
    /// Start a new caption after a pause of this length [default: 1]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::window)]
    caption_pause: Option<f64>,
    /// Write at most this number of characters in a line of a caption; a longer word is cut [default: 42]
    #[arg(long, value_name = "CHARACTERS", value_parser = numbers::within("expected a number of characters from 1 to 1000", 1..=MAX_CHARACTERS))]
    caption_width: Option<usize>,
    /// Write at most this number of lines in a caption [default: 2]
    #[arg(long, value_name = "LINES", value_parser = numbers::within("expected a number of lines from 1 to 100", 1..=MAX_LINES))]
    caption_lines: Option<usize>,
}

impl CaptionArguments {
    /// The rules for a format.
    ///
    /// # Errors
    /// [`Error::Search`] for rules where no captions are written; [`Error::Argument`] for a shortest time above the longest.
    pub fn options(&self, format: Option<TranscriptFormat>) -> Result<CaptionOptions> {
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
            return Err(Error::Search { argument, expected, search: "another format" });
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
        let expected = "of seconds, at most those of --caption-max";
        Err(Error::Argument { argument: "--caption-min", expected, found: options.min_seconds })
    }
}
