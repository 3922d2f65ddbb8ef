//! `FeatureStream`: log-mel features of audio that arrives in chunks.
//!
//! The stream is a plain value; [`FrontEnd::push`] and [`FrontEnd::finish`] advance it. The frames
//! have the bits of [`FrontEnd::log_mel`].

use serde::{Deserialize, Serialize};

use super::FrontEnd;
use super::front_end::with_pipeline;
use super::running_stats::RunningStats;
use crate::audio::check_samples;
use crate::{Error, Result};

/// Largest number of samples of a signal; positions of frames cannot overflow.
const MAX_SAMPLES: u64 = 1 << 60;

/// The state of a [`FrontEnd`] within a signal.
///
/// A plain value of a few hundred samples and statistics of each bin.
///
/// ```
/// use speech::{Audio, FeatureConfig, FrontEnd, Normalization};
///
/// let config = FeatureConfig {
///     normalize: Normalization::Running,
///     floor_db: 90.0,
///     ..FeatureConfig::default()
/// };
/// let front_end = FrontEnd::new(&config)?;
/// let samples: Vec<f32> = (0..16_000).map(|n| ((n * n) as f32 * 1e-5).sin()).collect();
/// let (mut stream, mut frames) = (front_end.stream()?, Vec::new());
/// for chunk in samples.chunks(1234) {
///     front_end.push(&mut stream, chunk, &mut frames)?;
/// }
/// front_end.finish(&mut stream, &mut frames)?;
/// assert_eq!(frames, front_end.log_mel(&Audio { samples, sample_rate: 16_000 })?.data);
/// # Ok::<(), speech::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeatureStream {
    /// Number of samples so far.
    #[serde(rename = "heard")]
    samples: u64,
    /// Number of frames so far.
    frames: u64,
    /// The last samples, from the one before the next frame.
    #[serde(rename = "kept")]
    pending: Vec<f32>,
    running: RunningStats,
}

impl FeatureStream {
    /// Returns the number of samples so far.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the number of frames so far.
    pub fn frames(&self) -> u64 {
        self.frames
    }
}

impl FrontEnd {
    /// Starts a signal.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first setting that needs whole utterances: their normalization,
    /// trimming, or a signal that is reflected at its ends. Dither is not supported because its
    /// noise would depend on the chunking.
    pub fn stream(&self) -> Result<FeatureStream> {
        let config = &self.config;
        let unsupported = |field, expected: &str, found: String| {
            let expected = format!("{expected}, for streaming");
            Err(Error::Setting { field, expected, found })
        };
        if config.normalize.needs_whole_utterance() {
            return unsupported("normalize", "\"running\"", format!("{:?}", config.normalize.name()));
        }
        if self.complete_frames(0).is_none() {
            let expected = "\"inside\" or \"zero-padded\"";
            return unsupported("framing", expected, format!("{:?}", config.framing.name()));
        }
        for (field, value) in [("trim_db", config.trim_db), ("dither", config.dither)] {
            if value != 0.0 {
                return unsupported(field, "0", value.to_string());
            }
        }
        Ok(FeatureStream {
            samples: 0,
            frames: 0,
            pending: Vec::new(),
            running: RunningStats::new(config.mels),
        })
    }

    /// Consumes the next samples of a signal and appends the complete frames.
    ///
    /// Frames have the bits of [`FrontEnd::log_mel`], independent of the chunking. An error leaves
    /// the stream unchanged.
    ///
    /// # Shapes
    /// Appends `[n, mels]`, row-major, and returns n.
    ///
    /// # Errors
    /// A sample that is NaN or beyond ±2^31, with its index in the whole signal; [`Error::Stream`]
    /// if the stream does not belong to a front end with these settings.
    ///
    /// Cost: O(n F log F) time for FFT size F; the stream keeps less than a window and a hop of
    /// samples.
    pub fn push(&self, stream: &mut FeatureStream, samples: &[f32], out: &mut Vec<f32>) -> Result<usize> {
        self.check_stream(stream)?;
        check_samples(stream.samples, samples)?;
        let FeatureStream { samples: num_samples, frames, pending, running } = stream;
        // If the hop exceeds the window, samples between two frames are never stored.
        let num_unused =
            self.first_sample_needed_by(*frames).saturating_sub(*num_samples).min(samples.len() as u64);
        pending.extend_from_slice(&samples[num_unused as usize..]);
        *num_samples += samples.len() as u64;
        let pending_start = *num_samples - pending.len() as u64;
        let first_frame = *frames;
        *frames = self.complete_frames(*num_samples).unwrap_or(first_frame);
        // Computes the frames that are complete now.
        let starts = (first_frame..*frames).map(|t| self.frame_start(t) - pending_start as isize);
        with_pipeline!(self, |pipeline| pipeline.append_stream_frames(pending, starts, running, out));
        // Keeps the samples that the next frame needs.
        let num_consumed =
            self.first_sample_needed_by(*frames).saturating_sub(pending_start).min(pending.len() as u64);
        pending.drain(..num_consumed as usize);
        Ok((*frames - first_frame) as usize)
    }

    /// Ends a signal and resets its stream.
    ///
    /// Appends the frames that reach beyond the end. With [`Framing::Inside`](super::Framing), a
    /// signal shorter than a window has one zero-padded frame; an empty signal has none.
    ///
    /// # Errors
    /// [`Error::Stream`] as in [`FrontEnd::push`].
    pub fn finish(&self, stream: &mut FeatureStream, out: &mut Vec<f32>) -> Result<usize> {
        self.check_stream(stream)?;
        let FeatureStream { samples, frames, pending, mut running } =
            std::mem::replace(stream, self.stream()?);
        let total_frames = if samples == 0 { 0 } else { self.frames(samples as usize) as u64 };
        let pending_start = samples - pending.len() as u64;
        let starts = (frames..total_frames).map(|t| self.frame_start(t) - pending_start as isize);
        with_pipeline!(self, |pipeline| pipeline.append_stream_frames(&pending, starts, &mut running, out));
        Ok(total_frames.saturating_sub(frames) as usize)
    }

    /// Returns the number of frames that later samples cannot change.
    fn complete_frames(&self, samples: u64) -> Option<u64> {
        self.config.framing.complete_frames(samples, self.window_length as u64, self.hop_length as u64)
    }

    /// Returns the first sample of frame `t`.
    fn frame_start(&self, t: u64) -> isize {
        self.config.framing.start(t as usize, self.window_length, self.hop_length)
    }

    /// Returns the first sample that frame `t` needs, including pre-emphasis.
    fn first_sample_needed_by(&self, t: u64) -> u64 {
        (self.frame_start(t) - 1).max(0) as u64
    }

    /// Checks that a stream belongs to this front end.
    fn check_stream(&self, stream: &FeatureStream) -> Result<()> {
        self.stream()?;
        let FeatureStream { samples, frames, pending, running } = stream;
        let stream_error = |expected: String, found: String| Err(Error::Stream { expected, found });
        if *samples > MAX_SAMPLES {
            return stream_error(format!("at most {MAX_SAMPLES} samples"), samples.to_string());
        }
        let complete_frames = self.complete_frames(*samples).unwrap_or(0);
        if *frames != complete_frames {
            return stream_error(
                format!("{complete_frames} frames after {samples} samples"),
                frames.to_string(),
            );
        }
        let expected_pending = samples.saturating_sub(self.first_sample_needed_by(*frames));
        if pending.len() as u64 != expected_pending {
            return stream_error(format!("{expected_pending} pending samples"), pending.len().to_string());
        }
        if !running.is_valid(self.config.mels) {
            return stream_error(
                format!("finite statistics of {} bins", self.config.mels),
                "other values".into(),
            );
        }
        match check_samples(0, pending) {
            Ok(()) => Ok(()),
            Err(_) => stream_error("finite samples".into(), "other values".into()),
        }
    }
}
