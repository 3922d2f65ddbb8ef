//! The argument `--max-bad`, and the warnings about bad items.
use recognizer::{BadItems, Recognizer};

use crate::error::Result;
use crate::numbers;
use crate::printing::warn_each;

/// Arguments that limit how many utterances may be excluded.
#[derive(clap::Args)]
pub(crate) struct BadItemArguments {
    /// Fail if more than this share of utterances is unusable, rounded up; unusable utterances
    /// (recording or text) are left out with a warning
    #[arg(long, value_name = "SHARE", default_value_t = recognizer::DEFAULT_MAX_BAD, value_parser = numbers::share)]
    max_bad: f64,
}

impl BadItemArguments {
    /// Sets the allowed share of a recognizer.
    pub(crate) fn apply(&self, recognizer: Recognizer) -> Result<Recognizer> {
        Ok(recognizer.with_max_bad(self.max_bad)?)
    }
}

/// Prints the warnings about the bad items of a set.
pub(crate) fn warn(set: &str, bad: &BadItems) {
    warn_each(bad.warnings(set));
}
