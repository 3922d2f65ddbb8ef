//! Rules of captions, as the user gives them.
use training::{CaptionOptions, Format};

use crate::error::{Error, Result};

/// Longest time of a rule, in seconds, and the most characters and lines.
const MAX_SECONDS: f64 = 3600.0;
const MAX_CHARACTERS: usize = 1000;
const MAX_LINES: usize = 100;

/// The rules of captions.
#[derive(clap::Args)]
pub struct CaptionArguments {
    /// Show a caption (srt, vtt) for at least this time, unless the next one starts earlier [default: 0.834]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    caption_min: Option<f64>,
    /// Show a caption for at most this time [default: 6]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    caption_max: Option<f64>,
    /// Start a new caption after a pause of this length [default: 1]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    caption_pause: Option<f64>,
    /// Write at most this number of characters in a line of a caption; a longer word is cut [default: 42]
    #[arg(long, value_name = "CHARACTERS", allow_negative_numbers = true)]
    caption_width: Option<usize>,
    /// Write at most this number of lines in a caption [default: 2]
    #[arg(long, value_name = "LINES", allow_negative_numbers = true)]
    caption_lines: Option<usize>,
}

impl CaptionArguments {
    /// The rules for a format.
    ///
    /// # Errors
    /// [`Error::Search`] for rules where no captions are written; [`Error::Argument`] for a value out of its range.
    pub fn options(&self, format: Option<Format>) -> Result<CaptionOptions> {
        let given = [
            ("--caption-min", self.caption_min.is_some()),
            ("--caption-max", self.caption_max.is_some()),
            ("--caption-pause", self.caption_pause.is_some()),
            ("--caption-width", self.caption_width.is_some()),
            ("--caption-lines", self.caption_lines.is_some()),
        ];
        let writes_captions = matches!(format, Some(Format::Srt | Format::Vtt));
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
        let is_time = |seconds: f64| seconds > 0.0 && seconds <= MAX_SECONDS;
        let CaptionOptions { pause_seconds, min_seconds, max_seconds, line_characters, lines } = options;
        let seconds = "of seconds above 0, at most 3600";
        for (argument, is_valid, expected, found) in [
            ("--caption-pause", is_time(pause_seconds), seconds, pause_seconds),
            ("--caption-max", is_time(max_seconds), seconds, max_seconds),
            ("--caption-min", is_time(min_seconds), seconds, min_seconds),
            (
                "--caption-min",
                min_seconds <= max_seconds,
                "of seconds, at most those of --caption-max",
                min_seconds,
            ),
            (
                "--caption-width",
                (1..=MAX_CHARACTERS).contains(&line_characters),
                "of characters from 1 to 1000",
                line_characters as f64,
            ),
            ("--caption-lines", (1..=MAX_LINES).contains(&lines), "of lines from 1 to 100", lines as f64),
        ] {
            if !is_valid {
                return Err(Error::Argument { argument, expected, found });
            }
        }
        Ok(options)
    }
}
