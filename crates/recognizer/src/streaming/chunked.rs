//! Long sound in overlapping windows, for models that hear both ways.
use kernels::Brief;
use speech::{Audio, FeatureConfig, FrontEnd};

use crate::{Error, Result};
use model::Model;
use model::tensors::with_slice;

/// How long sound is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowConfig {
    /// Length of a window in seconds.
    pub seconds: f64,
    /// How much of it the next window hears too, in seconds; half of that is left away on either side of a seam.
    pub overlap: f64,
}

impl Default for WindowConfig {
    /// 20 s, of which 5 s overlap: a quarter of the work is done twice, and every row has heard 2.5 s to both sides at least.
    fn default() -> Self {
        WindowConfig { seconds: 20.0, overlap: 5.0 }
    }
}

/// Turns long sound into projected encoder rows, window after window, in memory that does not grow with its length.
///
/// ```text
/// window k     |· · ·|―――――――――――――|· · ·|                     rows kept: ―
/// window k+1                 |· · ·|―――――――――――――|· · ·|
/// ```
/// Windows begin on encoder rows, so that the rows that are kept are as many as those of the whole, in the same places, and can be
/// decoded as one utterance. Statistics of the features are each window's own, and no silence is trimmed. Sound that is no longer than a window gives the bits of
/// [`Model::encode`], if nothing of it would be.
///
/// ```no_run
/// use recognizer::{Recognizer, WindowConfig, ChunkedEncoder};
///
/// let recognizer = Recognizer::load("model.safetensors".as_ref())?;
/// let mut windows = ChunkedEncoder::new(recognizer.model(), WindowConfig::default())?;
/// let mut rows = Vec::new();
/// for samples in speech::AudioChunks::open("hour.flac".as_ref(), 16_000, &speech::Conversion::default())? {
///     windows.push(&samples?, &mut rows)?;
///     // decode `rows` and clear them
/// }
/// windows.finish(&mut rows)?;
/// # Ok::<(), recognizer::Error>(())
/// ```
pub struct ChunkedEncoder {
    model: Model,
    front_end: FrontEnd,
    /// Samples of an encoder row.
    step: usize,
    /// Samples of a window.
    window: usize,
    /// Rows of a window.
    rows: usize,
    /// Rows from one window to the next.
    stride: usize,
    /// Rows that are left away before a seam.
    half: usize,
    /// Samples from the beginning of the next window on.
    heard: Vec<f32>,
    /// Samples so far.
    samples: u64,
    /// Rows of the next window that were given already.
    skip: usize,
}

impl ChunkedEncoder {
    /// Windows for a model. Lengths are those of encoder rows: a window is no shorter than asked for, the overlap is rounded.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if the overlap is less than two encoder rows or not less than the window, or the window is longer than an
    /// hour.
    pub fn new(model: &Model, config: WindowConfig) -> Result<Self> {
        let features = model.config().input.features.clone();
        // Silence at the ends of a window lies in the middle of the sound.
        let front_end = FrontEnd::new(&FeatureConfig { trim_db: 0.0, ..features })?;
        let frames = model.config().input.rows.stride * model.config().encoder.reduction();
        let step = frames * front_end.hop();
        let WindowConfig { seconds, overlap } = config;
        let rate = f64::from(front_end.config().sample_rate);
        // What is a whole number but for its rounding is one.
        let rows = (seconds * rate / step as f64 - 1e-6).ceil() as usize;
        let shared = (overlap * rate / step as f64).round() as usize;
        if !(0.0..=3600.0).contains(&seconds) {
            return Err(Error::shape("seconds", "a window of at most 3600", Brief(seconds).to_string()));
        }
        if !(0.0..seconds).contains(&overlap) || shared < 2 || shared >= rows {
            let expected = format!(
                "two encoder rows ({:.3} s) at least, and less than the window's {} s",
                2.0 * step as f64 / rate,
                Brief(seconds)
            );
            return Err(Error::shape("overlap", expected, Brief(overlap).to_string()));
        }
        Ok(ChunkedEncoder {
            window: front_end.samples(rows * frames),
            rows,
            stride: rows - shared,
            half: shared / 2,
            step,
            model: model.clone(),
            front_end,
            heard: Vec::new(),
            samples: 0,
            skip: 0,
        })
    }

    /// Width H of the rows.
    pub fn width(&self) -> usize {
        self.model.width()
    }

    /// Samples per second that it listens to.
    pub fn sample_rate(&self) -> u32 {
        self.front_end.config().sample_rate
    }

    /// Takes the next samples, any number of them, and appends the rows of windows that are complete.
    ///
    /// # Shapes
    /// Appends `[n, H]` and returns n.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) for a sample that is no number; nothing of these samples was taken then. [`Error::Shape`](model::Error::Shape) if an encoder of
    /// one's own shortens time in another way than the recipe says.
    ///
    /// Cost: [`Model::encode`] of a window for every `seconds - overlap` of sound; memory for a window, its features and its rows.
    pub fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) -> Result<usize> {
        speech::check_samples(self.samples, samples)?;
        self.samples += samples.len() as u64;
        let (mut rest, mut given) = (samples, 0);
        while !rest.is_empty() {
            // One sample beyond the window says that it is not the last.
            let (some, later) = rest.split_at(rest.len().min(self.window + 1 - self.heard.len()));
            self.heard.extend_from_slice(some);
            rest = later;
            if self.heard.len() > self.window {
                let window = self.heard[..self.window].to_vec();
                given += self.encode(window, Some(self.stride + self.half), rows)?;
                self.heard.drain(..self.stride * self.step);
                self.skip = self.half;
            }
        }
        Ok(given)
    }

    /// Ends the sound, appends the rest of its rows, and begins anew; without a sample there is none.
    ///
    /// # Errors
    /// Candle's own errors.
    pub fn finish(&mut self, rows: &mut Vec<f32>) -> Result<usize> {
        let rest = std::mem::take(&mut self.heard);
        let given = if rest.is_empty() { 0 } else { self.encode(rest, None, rows)? };
        (self.samples, self.skip) = (0, 0);
        Ok(given)
    }

    /// Appends the rows of a window from `skip` on, up to `end` if it is not the last.
    fn encode(&self, samples: Vec<f32>, end: Option<usize>, rows: &mut Vec<f32>) -> Result<usize> {
        let sample_rate = self.front_end.config().sample_rate;
        let plane = self.front_end.log_mel(&Audio { samples, sample_rate })?;
        let (x, lengths) = model::collate(&[&plane], &self.model.config().input.rows)?;
        let (encoded, lengths) = self.model.encode(&x, &lengths)?;
        if end.is_some() && lengths[0] != self.rows {
            let expected = format!("{} rows of a window, as the recipe says", self.rows);
            return Err(Error::shape("encoder", expected, lengths[0].to_string()));
        }
        let (width, end) = (self.width(), end.unwrap_or(lengths[0]));
        with_slice(&encoded, |encoded: &[f32]| {
            rows.extend_from_slice(&encoded[self.skip * width..end * width]);
            Ok(())
        })?;
        Ok(end - self.skip)
    }
}
