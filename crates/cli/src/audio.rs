//! What the commands that listen have in common: recordings that do not fit the model.
use std::collections::BTreeMap;
use std::path::Path;

use recognizer::Recognizer;
use speech::{AudioChange, Channel, Conversion};

use crate::error::{Error, Result};
use crate::numbers;
use crate::out::warnln;

/// How recordings are read.
#[derive(clap::Args)]
pub struct AudioArguments {
    /// Take this channel, from 1, of recordings that have several; `mix` takes their mean
    #[arg(long, value_name = "mix|N", default_value = "mix")]
    channel: Channel,
    /// Resample recordings of another sample rate than the model's, instead of refusing them
    #[arg(long)]
    resample: bool,
}

/// When a text is discarded as silence.
#[derive(clap::Args)]
pub struct SilenceArguments {
    /// Discard texts in which no word reaches this posterior, as what the model makes of silence; 0 keeps every text. Words of
    /// --lm and --phrases need no posterior: the words that the model finds without them are judged
    #[arg(long, value_name = "P", default_value_t = recognizer::MIN_WORD_POSTERIOR, value_parser = numbers::posterior)]
    silence: f64,
}

impl AudioArguments {
    /// A recogniser that reads as the arguments say; what a user should know of its checkpoint is said.
    pub fn load(&self, checkpoint: &Path) -> Result<Recognizer> {
        let recogniser = Recognizer::load(checkpoint)?;
        recogniser.warning().iter().for_each(|warning| warnln!("warning: {warning}"));
        Ok(recogniser.with_conversion(Conversion { channel: self.channel, resample: self.resample }))
    }

    /// The first of the arguments that was given.
    pub fn asked(&self) -> Option<&'static str> {
        let channel = (self.channel != Channel::Mix).then_some("--channel");
        channel.or(self.resample.then_some("--resample"))
    }

    /// An error with the argument that would have helped.
    pub fn advise(&self, error: recognizer::Error) -> Error {
        use speech::Error::{FileRate, SampleRate};
        let rate = match &error {
            recognizer::Error::Model(model::Error::Speech(FileRate { .. } | SampleRate { .. })) => true,
            recognizer::Error::TooManyBad { first, .. } => first.has_other_rate,
            _ => false,
        };
        match rate && !self.resample {
            true => Error::Advised { source: error, advice: "--resample converts it" },
            false => error.into(),
        }
    }
}

impl SilenceArguments {
    /// A recogniser that believes what the arguments say.
    pub fn apply(&self, recogniser: Recognizer) -> Result<Recognizer> {
        Ok(recogniser.with_silence(self.silence)?)
    }
}

/// Says on standard error what was done to how many recordings, a line for each thing.
pub fn note(changes: &BTreeMap<AudioChange, usize>) {
    for (change, count) in changes {
        warnln!("note: {change}: {count} recording{}", if *count == 1 { "" } else { "s" });
    }
}
