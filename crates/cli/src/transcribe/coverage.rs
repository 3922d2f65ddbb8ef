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
    /// With --coverage: speech up to this many seconds from a token belongs to its word. A smaller
    /// value finds shorter gaps, and more false ones [default: 0.3]
    #[arg(long, value_name = "SECONDS", value_parser = numbers::gap)]
    coverage_tolerance: Option<f64>,
}

impl CoverageArguments {
    /// Returns true with `--coverage`.
    pub(super) fn is_given(&self) -> bool {
        self.coverage
    }

    /// Fails for streaming audio, and for options without `--coverage`.
    pub(super) fn check(&self, is_streaming: bool) -> Result<()> {
        if is_streaming && self.coverage {
            let (expected, found) = ("whole recordings", "streaming audio");
            return Err(Error::Unsupported { argument: "--coverage", expected, found });
        }
        let given = [
            ("--coverage-gap", self.coverage_gap.is_some()),
            ("--coverage-tolerance", self.coverage_tolerance.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given && !self.coverage) {
            None => Ok(()),
            Some((argument, _)) => {
                Err(Error::Unsupported { argument, expected: "--coverage", found: "none" })
            }
        }
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
        let options = CoverageOptions {
            search_seconds: self.coverage_gap.unwrap_or(default.search_seconds),
            tolerance_seconds: self.coverage_tolerance.unwrap_or(default.tolerance_seconds),
        };
        recognizer.cover(audio, transcription, &options)
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
