//! Command-line arguments of recognizers: audio input, number format, silence filter.
use std::collections::BTreeMap;
use std::path::Path;

use model::encoders::NumberFormat;
use recognizer::Recognizer;
use speech::{AudioChange, Channel, Conversion};

use crate::error::{Error, Result};
use crate::numbers;
use crate::printing::warnln;

/// Arguments that control how recordings are read and encoded.
#[derive(clap::Args)]
pub(crate) struct AudioArguments {
    /// Use this channel of multichannel recordings, counted from 1; `mix` averages all channels
    #[arg(long, value_name = "mix|N", default_value = "mix")]
    channel: Channel,
    /// Resample recordings to the model's sample rate; without it, another rate is an error
    #[arg(long)]
    resample: bool,
    /// Number format of weights and products: bf16 (FastConformer encoders) halves their memory, q8
    /// (8-bit blocks) needs little more than a quarter [default: that of the checkpoint]
    #[arg(long, value_name = "f32|bf16|q8")]
    encoder_format: Option<NumberFormat>,
}

/// Arguments of the silence filter.
#[derive(clap::Args)]
pub(crate) struct SilenceArguments {
    /// Discard transcripts in which no word reaches this posterior, as silence; 0 disables the
    /// filter. The posteriors are those of the model without --lm and --phrases
    #[arg(long, value_name = "P", default_value_t = recognizer::MIN_WORD_POSTERIOR, value_parser = numbers::posterior)]
    silence: f64,
}

impl AudioArguments {
    /// Loads a recognizer with these audio options and prints the checkpoint's warning.
    pub(crate) fn load(&self, checkpoint: &Path) -> Result<Recognizer> {
        let recognizer = match self.encoder_format {
            Some(format) => Recognizer::load_as(checkpoint, format)?,
            None => Recognizer::load(checkpoint)?,
        };
        recognizer.warning().iter().for_each(|warning| warnln!("warning: {warning}"));
        Ok(recognizer.with_conversion(Conversion { channel: self.channel, resample: self.resample }))
    }

    /// Returns the first of these arguments that was given.
    pub(crate) fn first_given(&self) -> Option<&'static str> {
        let channel = (self.channel != Channel::Mix).then_some("--channel");
        let format = self.encoder_format.map(|_| "--encoder-format");
        channel.or(self.resample.then_some("--resample")).or(format)
    }

    /// Adds advice to an error that an argument of this group avoids.
    pub(crate) fn advise(&self, error: recognizer::Error) -> Error {
        use speech::Error::{FileRate, SampleRate};
        let is_rate_error = match &error {
            recognizer::Error::Model(model::Error::Speech(FileRate { .. } | SampleRate { .. })) => true,
            recognizer::Error::TooManyBad { has_other_rate, .. } => *has_other_rate,
            _ => false,
        };
        match is_rate_error && !self.resample {
            true => Error::WithAdvice { source: error, advice: "--resample converts it" },
            false => error.into(),
        }
    }
}

impl SilenceArguments {
    /// Sets the silence filter of a recognizer.
    pub(crate) fn apply(&self, recognizer: Recognizer) -> Result<Recognizer> {
        Ok(recognizer.with_silence(self.silence)?)
    }
}

/// Prints the number of converted recordings, one line per kind of conversion.
pub(crate) fn print_conversions(changes: &BTreeMap<AudioChange, usize>) {
    for (change, count) in changes {
        warnln!("note: {change}: {count} recording{}", if *count == 1 { "" } else { "s" });
    }
}
