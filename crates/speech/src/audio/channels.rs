//! One signal of several channels, and what else may be done to a recording so that it fits.

use std::fmt;
use std::str::FromStr;

use crate::memory;

/// What a file of several channels gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Channel {
    /// An error: there must be one channel only.
    #[default]
    Only,
    /// The mean of all.
    Mix,
    /// One of them, from 1.
    Number(u32),
}

impl FromStr for Channel {
    type Err = String;

    /// `mix` or a number from 1.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "mix" => Ok(Channel::Mix),
            Ok(number) if number > 0 => Ok(Channel::Number(number)),
            _ => Err("expected `mix` or a channel from 1 on".into()),
        }
    }
}

/// What may be done to a recording that is not as it is wanted; nothing, by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conversion {
    /// What a file of several channels gives.
    pub channel: Channel,
    /// Whether audio of another sample rate is resampled; else it is an error.
    pub resample: bool,
}

/// What was done to a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum AudioChange {
    /// Its channels were mixed down to their mean.
    Mixed {
        /// Their number.
        channels: u32,
    },
    /// One of its channels was taken.
    Chosen {
        /// Which, from 1.
        channel: u32,
        /// Of how many.
        channels: u32,
    },
    /// It was resampled.
    Resampled {
        /// Its own sample rate in hertz.
        from: u32,
        /// The one that it has now.
        to: u32,
    },
}

impl fmt::Display for AudioChange {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            AudioChange::Mixed { channels } => write!(f, "{channels} channels mixed down to one"),
            AudioChange::Selected { channel, channels } => write!(f, "channel {channel} of {channels} taken"),
            AudioChange::Resampled { from, to } => write!(f, "resampled from {from} to {to} Hz"),
        }
    }
}

/// Signals of fewer bytes are read without a look at what is available.
const UNCHECKED_BYTES: usize = 64 << 20;

/// Makes room for more samples.
///
/// # Errors
/// Bytes that would be needed, and those that are available.
pub(super) fn reserve(samples: &mut Vec<f32>, more: usize) -> Result<(), (usize, usize)> {
    if samples.capacity() - samples.len() >= more {
        return Ok(());
    }
    let bytes = (samples.len() + more).saturating_mul(size_of::<f32>());
    // Looking up what is available takes longer than decoding a block: small signals are not worth it.
    if bytes > UNCHECKED_BYTES
        && let Some(available) = memory::available_bytes().filter(|&available| available < bytes)
    {
        return Err((bytes, available));
    }
    samples.try_reserve_exact(more).map_err(|_| (bytes, 0))
}

/// Makes room for a block of so many samples, if there is none: for as much again as there is.
pub(super) fn grow(samples: &mut Vec<f32>, block: usize) -> Result<(), (usize, usize)> {
    let length = samples.len();
    if samples.capacity() - length < block { reserve(samples, length.max(block)) } else { Ok(()) }
}

/// Makes one signal of interleaved channels.
pub(super) struct Mono {
    /// The signal so far, or what of it was not yet taken.
    pub samples: Vec<f32>,
    /// Samples that were taken.
    taken: u64,
    channels: u32,
    /// The channel that is taken, from 0; all are averaged without.
    chosen: Option<u32>,
    /// Channel of the next sample.
    next: u32,
    sum: f64,
}

impl Mono {
    /// None if a file of so many channels has not the one that is asked for, or not only one.
    pub fn new(channels: u32, channel: Channel) -> Option<(Self, Option<AudioChange>)> {
        let (chosen, change) = match channel {
            Channel::Only | Channel::Mix | Channel::Number(1) if channels == 1 => (None, None),
            Channel::Only => return None,
            Channel::Mix if channels == 0 => return None,
            Channel::Mix => (None, Some(AudioChange::Mixed { channels })),
            Channel::Number(channel) if (1..=channels).contains(&channel) => {
                (Some(channel - 1), Some(AudioChange::Selected { channel, channels }))
            }
            Channel::Number(_) => return None,
        };
        Some((Self { samples: Vec::new(), taken: 0, channels, chosen, next: 0, sum: 0.0 }, change))
    }

    /// What there is, which is given away.
    pub fn take(&mut self) -> Vec<f32> {
        self.taken += self.samples.len() as u64;
        std::mem::take(&mut self.samples)
    }

    /// Length of the signal so far.
    pub fn length(&self) -> u64 {
        self.taken + self.samples.len() as u64
    }

    /// The next samples, interleaved.
    #[inline]
    pub fn extend(&mut self, samples: impl Iterator<Item = f64>) {
        if self.channels == 1 {
            self.samples.extend(samples.map(|sample| sample as f32));
        } else {
            samples.for_each(|sample| self.push_of_many(sample));
        }
    }

    fn push_of_many(&mut self, sample: f64) {
        match self.chosen {
            None => self.sum += sample,
            Some(chosen) if chosen == self.next => self.sum = sample,
            Some(_) => {}
        }
        self.next += 1;
        if self.next == self.channels {
            let count = if self.chosen.is_some() { 1.0 } else { f64::from(self.channels) };
            self.samples.push((self.sum / count) as f32);
            (self.next, self.sum) = (0, 0.0);
        }
    }
}
