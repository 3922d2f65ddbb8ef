//! Utterances that cannot be used: the share that is allowed, and the warnings about them.
use recognizer::{BadItems, Recognizer};

use crate::error::Result;
use crate::numbers;
use crate::out::warn_each;

/// How many utterances may be left out.
#[derive(clap::Args)]
pub struct BadItemArguments {
    /// Leave out at most this share of the utterances, rounded up, since their recordings or texts cannot be used; more are an error
    #[arg(long, value_name = "SHARE", default_value_t = recognizer::DEFAULT_MAX_BAD, value_parser = numbers::share)]
    max_bad: f64,
}

impl BadItemArguments {
    /// A recogniser that leaves out as many as the arguments say.
    pub fn apply(&self, recogniser: Recognizer) -> Result<Recognizer> {
        Ok(recogniser.with_max_bad(self.max_bad)?)
    }
}

/// Prints the warnings about a list to standard error.
pub fn warn(set: &str, bad: &BadItems) {
    warn_each(bad.warnings(set));
}
