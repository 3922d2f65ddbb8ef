//! Encodes long audio in overlapping windows, for encoders that need future frames.
use kernels::ShortFloat;
use speech::{Audio, FeatureConfig, FrontEnd};

use crate::{Error, Result};
use model::Model;
use model::encoders::NumberFormat;
use model::tensors::with_slice;

/// Longest window.
const MAX_WINDOW_SECONDS: f64 = 3600.0;

/// The windows of long audio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowConfig {
    /// Length of a window in seconds.
    pub seconds: f64,
    /// Overlap of adjacent windows in seconds; half of it is dropped on either side.
    pub overlap: f64,
}

impl Default for WindowConfig {
    /// Returns windows of 20 s with an overlap of 5 s.
    ///
    /// A quarter of the computation is repeated, and every row has at least 2.5 s of context on
    /// both sides.
    fn default() -> Self {
        WindowConfig { seconds: 20.0, overlap: 5.0 }
    }
}

impl WindowConfig {
    /// Creates windows; the default overlap is a quarter of a window, at most 5 s.
    pub fn with_seconds(seconds: f64, overlap: Option<f64>) -> Self {
        let overlap = overlap.unwrap_or_else(|| (seconds / 4.0).min(Self::default().overlap));
        WindowConfig { seconds, overlap }
    }
}

/// Computes projected encoder rows of long audio in constant memory.
///
/// ```text
/// window k     |· · ·|―――――――――――――|· · ·|                     rows kept: ―
/// window k+1                 |· · ·|―――――――――――――|· · ·|
/// ```
/// Windows begin on encoder rows, so that the kept rows have the number and positions of those of
/// the whole signal, and can be decoded as one utterance. Feature statistics are computed per
/// window, and no silence is trimmed. Audio that fits into one window gives the bits of
/// [`Model::encode`], if that would not trim it.
///
/// ```no_run
/// use recognizer::{ChunkedEncoder, Recognizer, WindowConfig};
/// use speech::{AudioChunks, Conversion};
///
/// let recognizer = Recognizer::load("model.safetensors".as_ref())?;
/// let mut encoder = ChunkedEncoder::new(recognizer.model(), WindowConfig::default())?;
/// let mut rows = Vec::new();
/// for samples in AudioChunks::open("hour.flac".as_ref(), 16_000, &Conversion::default())? {
///     encoder.push(&samples?, &mut rows)?;
///     // decode `rows` and clear them
/// }
/// encoder.finish(&mut rows)?;
/// # Ok::<(), recognizer::Error>(())
/// ```
pub struct ChunkedEncoder {
    model: Model,
    front_end: FrontEnd,
    /// Samples per encoder row.
    samples_per_row: usize,
    /// Samples per window.
    window_samples: usize,
    /// Rows per window.
    window_rows: usize,
    /// Rows between the starts of adjacent windows.
    stride_rows: usize,
    /// Rows dropped at either end of a window, half of the overlap.
    half_overlap_rows: usize,
    /// Samples from the start of the next window on.
    pending_samples: Vec<f32>,
    /// Number of samples so far.
    total_samples: u64,
    /// Rows of the next window that the previous one has already returned.
    skipped_rows: usize,
}

impl ChunkedEncoder {
    /// Plans windows for a model.
    ///
    /// Lengths are multiples of encoder rows: the window is rounded up, the overlap to the nearest.
    ///
    /// # Errors
    /// [`Error::Shape`](model::Error::Shape) if the overlap is less than two encoder rows or not
    /// less than the window, or the window is longer than an hour; those of
    /// [`Model::for_inference`].
    pub fn new(model: &Model, config: WindowConfig) -> Result<Self> {
        let model = match model.encoder_format() {
            Some(_) => model.clone(),
            None => model.for_inference(NumberFormat::F32)?,
        };
        let features = model.config().input.features.clone();
        // Silence at the ends of a window is within the signal and must not be trimmed.
        let front_end = FrontEnd::new(&FeatureConfig { trim_db: 0.0, ..features })?;
        let frames_per_row = model.config().input.rows.stride * model.config().encoder.reduction();
        let samples_per_row = frames_per_row * front_end.hop();
        let WindowConfig { seconds, overlap } = config;
        let sample_rate = f64::from(front_end.config().sample_rate);
        // Subtracting 1e-6 tolerates the rounding of whole numbers of rows.
        let window_rows = (seconds * sample_rate / samples_per_row as f64 - 1e-6).ceil() as usize;
        let overlap_rows = (overlap * sample_rate / samples_per_row as f64).round() as usize;
        if !(0.0..=MAX_WINDOW_SECONDS).contains(&seconds) {
            return Err(Error::shape("seconds", "a window of at most 3600", ShortFloat(seconds).to_string()));
        }
        if !(0.0..seconds).contains(&overlap) || overlap_rows < 2 || overlap_rows >= window_rows {
            let expected = format!(
                "at least two encoder rows ({:.3} s), and less than the window of {} s",
                2.0 * samples_per_row as f64 / sample_rate,
                ShortFloat(seconds)
            );
            return Err(Error::shape("overlap", expected, ShortFloat(overlap).to_string()));
        }
        Ok(ChunkedEncoder {
            window_samples: front_end.samples(window_rows * frames_per_row),
            window_rows,
            stride_rows: window_rows - overlap_rows,
            half_overlap_rows: overlap_rows / 2,
            samples_per_row,
            model,
            front_end,
            pending_samples: Vec::new(),
            total_samples: 0,
            skipped_rows: 0,
        })
    }

    /// Returns the width H of the rows: that of [`Model::project_frames`].
    pub fn width(&self) -> usize {
        self.model.width()
    }

    /// Returns the sample rate of the input.
    pub fn sample_rate(&self) -> u32 {
        self.front_end.config().sample_rate
    }

    /// Consumes the next samples and appends the rows of complete windows.
    ///
    /// # Shapes
    /// Appends `[n, H]` and returns n.
    ///
    /// # Errors
    /// [`Error::Speech`](model::Error::Speech) for an invalid sample, in which case no samples are
    /// consumed. [`Error::Shape`](model::Error::Shape) if a custom encoder reduces time differently
    /// than the recipe.
    ///
    /// Cost: [`Model::encode`] of a window for every `seconds - overlap` of audio; memory for a
    /// window, its features and its rows.
    pub fn push(&mut self, samples: &[f32], rows: &mut Vec<f32>) -> Result<usize> {
        speech::check_samples(self.total_samples, samples)?;
        self.total_samples += samples.len() as u64;
        let (mut remaining, mut num_rows) = (samples, 0);
        while !remaining.is_empty() {
            // A sample beyond the window shows that it is not the last one.
            let num_missing = self.window_samples + 1 - self.pending_samples.len();
            let (head, tail) = remaining.split_at(remaining.len().min(num_missing));
            self.pending_samples.extend_from_slice(head);
            remaining = tail;
            if self.pending_samples.len() > self.window_samples {
                let window = self.pending_samples[..self.window_samples].to_vec();
                num_rows +=
                    self.encode_window(window, Some(self.stride_rows + self.half_overlap_rows), rows)?;
                self.pending_samples.drain(..self.stride_rows * self.samples_per_row);
                self.skipped_rows = self.half_overlap_rows;
            }
        }
        Ok(num_rows)
    }

    /// Ends the signal, appends the remaining rows and resets the encoder.
    ///
    /// An empty signal has no rows.
    ///
    /// # Errors
    /// Candle's errors.
    pub fn finish(&mut self, rows: &mut Vec<f32>) -> Result<usize> {
        let last_window = std::mem::take(&mut self.pending_samples);
        let num_rows = if last_window.is_empty() { 0 } else { self.encode_window(last_window, None, rows)? };
        (self.total_samples, self.skipped_rows) = (0, 0);
        Ok(num_rows)
    }

    /// Appends the rows `skipped_rows..end` of a window; no `end` in the last window.
    fn encode_window(&self, samples: Vec<f32>, end: Option<usize>, rows: &mut Vec<f32>) -> Result<usize> {
        let sample_rate = self.front_end.config().sample_rate;
        // The window is a batch of one utterance.
        let features = self.front_end.log_mel(&Audio { samples, sample_rate })?;
        let (input, lengths) = model::collate(&[&features], &self.model.config().input.rows)?;
        let (encoded, lengths) = self.model.encode(&input, &lengths)?;
        if end.is_some() && lengths[0] != self.window_rows {
            let expected = format!("{} rows per window, as in the recipe", self.window_rows);
            return Err(Error::shape("encoder", expected, lengths[0].to_string()));
        }
        let (width, end) = (self.width(), end.unwrap_or(lengths[0]));
        with_slice(&encoded, |encoded: &[f32]| {
            rows.extend_from_slice(&encoded[self.skipped_rows * width..end * width]);
            Ok(())
        })?;
        Ok(end - self.skipped_rows)
    }
}
