//! `panda transcribe --coverage`: accounts for every second of a recording.
use recognizer::{Coverage, CoverageOptions, GapStatus, Recognizer, Transcription};
use speech::Audio;

use crate::error::{Error, Result};
use crate::numbers;
use crate::printing::warnln;

/// Arguments of the coverage report.
#[derive(clap::Args)]
pub(super) struct CoverageArguments {
    /// Report words, silence and gaps of every second: speech without words is searched again.
    /// Recovered words are inserted into the text; --format json lists all segments and gaps
    #[arg(long)]
    coverage: bool,
    /// With --coverage: search gaps of at least this many seconds again [default: 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::gap)]
    coverage_gap: Option<f64>,
}

impl CoverageArguments {
    /// Returns true with `--coverage`.
    pub(super) fn is_given(&self) -> bool {
        self.coverage
    }

    /// Fails for `--coverage-gap` without `--coverage`, and for both with streaming audio.
    pub(super) fn check(&self, is_streaming: bool) -> Result<()> {
        let Self { coverage, coverage_gap } = self;
        if is_streaming && *coverage {
            let (expected, found) = ("whole recordings", "streaming audio");
            return Err(Error::Unsupported { argument: "--coverage", expected, found });
        }
        if coverage_gap.is_some() && !coverage {
            let (expected, found) = ("--coverage", "none");
            return Err(Error::Unsupported { argument: "--coverage-gap", expected, found });
        }
        Ok(())
    }

    /// Adds the coverage to a transcription, if requested.
    pub(super) fn apply(
        &self,
        recognizer: &Recognizer,
        audio: &Audio,
        transcription: Transcription,
    ) -> recognizer::Result<Transcription> {
        if !self.coverage {
            return Ok(transcription);
        }
        let default = CoverageOptions::default();
        let search_seconds = self.coverage_gap.unwrap_or(default.search_seconds);
        recognizer.cover(audio, transcription, &CoverageOptions { search_seconds, ..default })
    }
}

/// Prints the number of recovered words and the remaining gaps.
pub(super) fn print_notes(name: &str, coverage: &Coverage) {
    match coverage.recovered.len() {
        0 => {}
        1 => warnln!("note: {name}: the second search recovered 1 word"),
        count => warnln!("note: {name}: the second search recovered {count} words"),
    }
    for gap in &coverage.gaps {
        let posterior = gap.posterior.map_or(String::new(), |p| format!(", label posterior {p:.3}"));
        let status = match gap.status {
            GapStatus::Short => ", too short to search again",
            GapStatus::Unrecovered => "",
        };
        warnln!(
            "note: {name}: no words from {:.2} to {:.2} s: {:.1} dB over the noise floor{posterior}{status}",
            gap.start,
            gap.end,
            gap.energy_db
        );
    }
}
