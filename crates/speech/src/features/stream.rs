//! The front end for sound that is still arriving.

use serde::{Deserialize, Serialize};

use super::front_end::with_chain;
use super::running_stats::Running;
use super::{Framing, FrontEnd};
use crate::audio::check_samples;
use crate::{Error, Result};

/// How far a [`FrontEnd`] has come with a signal: a plain value, a few hundred samples and numbers of each bin.
///
/// ```
/// use speech::{Audio, FeatureConfig, FrontEnd, Normalization};
///
/// let config = FeatureConfig { normalise: Normalization::Running, floor_db: 90.0, ..FeatureConfig::default() };
/// let front_end = FrontEnd::new(&config)?;
/// let samples: Vec<f32> = (0..16_000).map(|n| ((n * n) as f32 * 1e-5).sin()).collect();
/// let (mut stream, mut frames) = (front_end.stream()?, Vec::new());
/// for piece in samples.chunks(1234) {
///     front_end.push(&mut stream, piece, &mut frames)?;
/// }
/// front_end.finish(&mut stream, &mut frames)?;
/// assert_eq!(frames, front_end.log_mel(&Audio { samples, sample_rate: 16_000 })?.data);
/// # Ok::<(), speech::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureStream {
    /// Samples so far.
    heard: u64,
    /// Frames so far.
    frames: u64,
    /// The last samples, from the one before the next frame on.
    kept: Vec<f32>,
    running: Running,
}

impl FeatureStream {
    /// Samples so far.
    pub fn samples(&self) -> u64 {
        self.heard
    }

    /// Frames so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }
}

impl FrontEnd {
    /// A signal that nothing was heard of yet.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first setting that needs whole utterances: normalisation by them, trimming, windows beyond the ends.
    /// Dither needs none, but its noise would depend on how sound is cut.
    pub fn stream(&self) -> Result<FeatureStream> {
        let config = &self.config;
        let refuse = |field, expected: &str, found: String| {
            let expected = format!("{expected}, for sound that arrives in pieces");
            Err(Error::Setting { field, expected, found })
        };
        if config.normalise.is_whole() {
            return refuse("normalise", "\"running\"", format!("{:?}", config.normalise.name()));
        }
        if config.framing != Framing::Inside {
            return refuse("framing", "\"inside\"", format!("{:?}", config.framing.name()));
        }
        for (field, value) in [("trim_db", config.trim_db), ("dither", config.dither)] {
            if value != 0.0 {
                return refuse(field, "0", value.to_string());
            }
        }
        Ok(FeatureStream { heard: 0, frames: 0, kept: Vec::new(), running: Running::new(config.mels) })
    }

    /// Takes the next samples of a signal, any number of them, and appends the frames that are complete; however the signal is cut,
    /// all frames together have the bits of [`FrontEnd::log_mel`]. After an error, the stream is as it was.
    ///
    /// # Shapes
    /// Appends `[n, mels]`, row-major, and returns n.
    ///
    /// # Errors
    /// A sample that is NaN or beyond ±2^31, by its number in the whole signal; [`Error::Stream`] if the stream is not one of a front
    /// end with these settings.
    ///
    /// Cost: O(n F log F) time for FFT size F; less than a window and a hop of samples stay in the stream.
    pub fn push(&self, stream: &mut FeatureStream, samples: &[f32], out: &mut Vec<f32>) -> Result<usize> {
        self.check_stream(stream)?;
        check_samples(stream.heard, samples)?;
        let FeatureStream { heard, frames, kept, running } = stream;
        // Where a hop is longer than a window, samples between two frames are never kept.
        let unused = self.needed_from(*frames).saturating_sub(*heard).min(samples.len() as u64);
        kept.extend_from_slice(&samples[unused as usize..]);
        *heard += samples.len() as u64;
        let base = *heard - kept.len() as u64;
        let (window, hop, before) = (self.length as u64, self.hop as u64, *frames);
        *frames = heard.checked_sub(window).map_or(0, |rest| 1 + rest / hop);
        let starts = (before..*frames).map(|t| (t * hop - base) as usize);
        with_chain!(self, |chain| chain.advance(kept, starts, running, out));
        let done = self.needed_from(*frames).saturating_sub(base).min(kept.len() as u64);
        kept.drain(..done as usize);
        Ok((*frames - before) as usize)
    }

    /// Ends a signal, and makes its stream a new one: a signal shorter than a window has one frame, filled up with zeros. Without a
    /// sample there is none.
    ///
    /// # Errors
    /// [`Error::Stream`] as in [`FrontEnd::push`].
    pub fn finish(&self, stream: &mut FeatureStream, out: &mut Vec<f32>) -> Result<usize> {
        self.check_stream(stream)?;
        let FeatureStream { heard, frames, kept, mut running } = std::mem::replace(stream, self.stream()?);
        if heard == 0 || frames > 0 {
            return Ok(0);
        }
        with_chain!(self, |chain| chain.advance(&kept, std::iter::once(0), &mut running, out));
        Ok(1)
    }

    /// The first sample that frame `t` needs, the one before it for the sake of its pre-emphasis.
    fn needed_from(&self, t: u64) -> u64 {
        (t * self.hop as u64).saturating_sub(1)
    }

    /// Whether a stream can be one of this front end.
    fn check_stream(&self, stream: &FeatureStream) -> Result<()> {
        self.stream()?;
        let FeatureStream { heard, frames, kept, running } = stream;
        let (window, hop) = (self.length as u64, self.hop as u64);
        let complete = heard.checked_sub(window).map_or(0, |rest| 1 + rest / hop);
        let left = heard.saturating_sub(frames.saturating_mul(hop).saturating_sub(1));
        let error = |expected: String, found: String| Err(Error::Stream { expected, found });
        if *frames != complete {
            return error(format!("{complete} frames after {heard} samples"), frames.to_string());
        }
        if kept.len() as u64 != left {
            return error(format!("{left} samples that are kept"), kept.len().to_string());
        }
        if !running.fits(self.config.mels) {
            return error(format!("finite statistics of {} bins", self.config.mels), "others".into());
        }
        match check_samples(0, kept) {
            Ok(()) => Ok(()),
            Err(_) => error("samples that are numbers".into(), "others".into()),
        }
    }
}
