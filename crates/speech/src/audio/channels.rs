//! Converts audio to mono: selects or averages channels, and reports the changes.
//!
//! [`Conversion`] is the request of the caller, [`AudioChange`] what was done, and [`MonoSignal`]
//! the output buffer of all decoders.

use std::fmt;
use std::str::FromStr;

/// How a file of several channels becomes a mono signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Channel {
    /// Several channels are an error.
    #[default]
    Only,
    /// The mean of all channels.
    Mix,
    /// One channel, numbered from 1.
    Number(u32),
}

impl FromStr for Channel {
    type Err = String;

    /// Parses `mix` or a channel number from 1.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "mix" => Ok(Channel::Mix),
            Ok(number) if number > 0 => Ok(Channel::Number(number)),
            _ => Err("expected `mix` or a channel number, at least 1".into()),
        }
    }
}

/// Conversions that may be applied to a recording; by default none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    /// How a file of several channels becomes a mono signal.
    pub channel: Channel,
    /// Resamples audio of another sample rate, which is otherwise an error.
    pub resample: bool,
}

/// A conversion that was applied to a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AudioChange {
    /// All channels were averaged.
    Mixed {
        /// Number of channels.
        channels: u32,
    },
    /// One channel was selected.
    Selected {
        /// The selected channel, from 1.
        channel: u32,
        /// Number of channels.
        channels: u32,
    },
    /// The recording was resampled.
    Resampled {
        /// Sample rate of the file in hertz.
        from: u32,
        /// New sample rate in hertz.
        to: u32,
    },
}

impl fmt::Display for AudioChange {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            AudioChange::Mixed { channels } => write!(f, "{channels} channels mixed down to one"),
            AudioChange::Selected { channel, channels } => {
                write!(f, "channel {channel} of {channels} selected")
            }
            AudioChange::Resampled { from, to } => write!(f, "resampled from {from} to {to} Hz"),
        }
    }
}

/// A mono signal, reduced from interleaved channels.
pub(super) struct MonoSignal {
    /// The signal so far, without the samples that [`MonoSignal::take`] returned.
    pub samples: Vec<f32>,
    /// Samples that [`MonoSignal::take`] returned.
    num_taken: u64,
    channels: u32,
    /// The selected channel, from 0; `None` averages all channels.
    selected_channel: Option<u32>,
    /// Channel of the next sample.
    next_channel: u32,
    /// Sum of the channels so far, or the selected sample.
    sum: f64,
}

impl MonoSignal {
    /// Returns `None` if the file does not have the requested channel.
    pub(super) fn new(channels: u32, channel: Channel) -> Option<(Self, Option<AudioChange>)> {
        let (selected_channel, change) = match channel {
            Channel::Only | Channel::Mix | Channel::Number(1) if channels == 1 => (None, None),
            Channel::Only => return None,
            Channel::Mix if channels == 0 => return None,
            Channel::Mix => (None, Some(AudioChange::Mixed { channels })),
            Channel::Number(channel) if (1..=channels).contains(&channel) => {
                (Some(channel - 1), Some(AudioChange::Selected { channel, channels }))
            }
            Channel::Number(_) => return None,
        };
        Some((
            Self { samples: Vec::new(), num_taken: 0, channels, selected_channel, next_channel: 0, sum: 0.0 },
            change,
        ))
    }

    /// Returns and removes the samples since the last `take`.
    pub(super) fn take(&mut self) -> Vec<f32> {
        self.num_taken += self.samples.len() as u64;
        std::mem::take(&mut self.samples)
    }

    /// Returns the length of the signal so far.
    ///
    /// It includes the samples that [`MonoSignal::take`] returned.
    pub(super) fn length(&self) -> u64 {
        self.num_taken + self.samples.len() as u64
    }

    /// Appends interleaved samples.
    #[inline]
    pub(super) fn append_interleaved(&mut self, samples: impl Iterator<Item = f64>) {
        if self.channels == 1 {
            self.samples.extend(samples.map(|sample| sample as f32));
        } else {
            samples.for_each(|sample| self.push_interleaved(sample));
        }
    }

    /// Appends the next sample of the next channel.
    fn push_interleaved(&mut self, sample: f64) {
        match self.selected_channel {
            None => self.sum += sample,
            Some(selected_channel) if selected_channel == self.next_channel => self.sum = sample,
            Some(_) => {}
        }
        self.next_channel += 1;
        if self.next_channel == self.channels {
            let divisor = if self.selected_channel.is_some() { 1.0 } else { f64::from(self.channels) };
            self.samples.push((self.sum / divisor) as f32);
            (self.next_channel, self.sum) = (0, 0.0);
        }
    }
}
