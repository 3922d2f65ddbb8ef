//! `LabelPosteriors`: probabilities of labels in parts of a recording.
use std::ops::Range;

use decoding::unpad;
use model::tensors::to_vec;
use speech::{Audio, FrameEnergies};

use super::intervals::{extend, split, union};
use super::seconds_to_samples;
use crate::Result;
use crate::recognizer::Recognizer;
use crate::silence::is_flat;

/// Longest part of a recording that is encoded at a time.
pub(super) const MAX_PART_SECONDS: f64 = 20.0;
/// Context on either side of a part.
pub(super) const CONTEXT_SECONDS: f64 = 1.0;
/// Smallest `1 - p(blank)` that is evidence of speech.
const MIN_SPEECH_POSTERIOR: f64 = 0.5;
/// Extent of the sound of a label around its row.
///
/// A CTC head emits a label in one row, with blanks around it.
const LABEL_EXTENT_SECONDS: f64 = 0.15;

/// Probabilities at one encoder row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RowPosterior {
    /// Samples of the row.
    pub samples: Range<usize>,
    /// Probability of any label, `1 - p(blank)`.
    pub any_label: f64,
    /// Largest probability of a label.
    pub best_label: f64,
}

/// Probabilities of labels at some encoder rows of a recording.
#[derive(Debug, Clone, Default)]
pub(super) struct LabelPosteriors {
    pub rows: Vec<RowPosterior>,
}

impl LabelPosteriors {
    /// Computes the posteriors of the CTC head in the regions; all labels are allowed.
    ///
    /// `None` if the model has no CTC head. Regions are encoded in parts of at most 20 s with 1 s
    /// of context.
    ///
    /// # Errors
    /// Those of the front end and the encoder.
    pub(super) fn from_ctc_head(
        recognizer: &Recognizer,
        audio: &Audio,
        regions: &[Range<usize>],
    ) -> Result<Option<Self>> {
        let model = recognizer.model();
        if !model.has_ctc_head() {
            return Ok(None);
        }
        let [context, max_len] =
            [CONTEXT_SECONDS, MAX_PART_SECONDS].map(|seconds| seconds_to_samples(seconds, audio.sample_rate));
        let mut posteriors = LabelPosteriors::default();
        for part in regions.iter().flat_map(|region| split(region, max_len)) {
            let window = extend(&part, context, context, audio.samples.len());
            let samples = audio.samples[window.clone()].to_vec();
            let window_audio = Audio { samples, sample_rate: audio.sample_rate };
            let Some(features) = recognizer.window_features(&window_audio)? else { continue };
            if is_flat(&features) {
                continue;
            }
            let first_sample = window.start + recognizer.front_end.trimmed_range(&window_audio.samples).start;
            let (rows, lengths) = model::collate(&[&features], &model.config().input.rows)?;
            let (encoded, lengths) = model.encoder().forward(&rows, &lengths, None)?;
            let Some(log_probs) = model.ctc_log_probabilities(&encoded)? else { return Ok(None) };
            let (values, classes) = (to_vec::<f32>(&log_probs)?, model.blank() as usize + 1);
            let rows = unpad(&values, classes, &lengths)?;
            let samples_of_row = row_samples(recognizer, first_sample, audio.sample_rate);
            for (row, log_probs) in rows.into_iter().flat_map(|rows| rows.chunks_exact(classes)).enumerate() {
                let samples = samples_of_row(row);
                if !part.contains(&((samples.start + samples.end) / 2)) {
                    continue;
                }
                let (labels, blank) = log_probs.split_at(classes - 1);
                let best_label = labels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                posteriors.rows.push(RowPosterior {
                    samples,
                    any_label: 1.0 - f64::from(blank[0]).exp(),
                    best_label: f64::from(best_label).exp(),
                });
            }
        }
        Ok(Some(posteriors))
    }

    /// Returns the samples around rows of probable labels, without digital silence.
    pub(super) fn evidence(
        &self,
        energies: &FrameEnergies,
        samples: usize,
        sample_rate: u32,
    ) -> Vec<Range<usize>> {
        let extent = seconds_to_samples(LABEL_EXTENT_SECONDS, sample_rate);
        let rows = self.rows.iter().filter(|row| row.any_label >= MIN_SPEECH_POSTERIOR);
        let ranges = rows.map(|row| extend(&row.samples, extent, extent, samples));
        union(ranges.filter(|range| energies.has_sound(range.clone())))
    }

    /// Returns the largest label probability of the rows that overlap a range; 0 without rows.
    pub(super) fn max_label(&self, range: &Range<usize>) -> f64 {
        let overlaps = |row: &&RowPosterior| row.samples.start < range.end && range.start < row.samples.end;
        self.rows.iter().filter(overlaps).map(|row| row.best_label).fold(0.0, f64::max)
    }
}

/// Returns the function from an encoder row to its samples.
///
/// They are positions in the recording, in which the window begins at `first_sample`.
pub(super) fn row_samples(
    recognizer: &Recognizer,
    first_sample: usize,
    sample_rate: u32,
) -> impl Fn(usize) -> Range<usize> + use<> {
    let seconds = recognizer.transcription_builder().frame_seconds();
    let edge = move |row: usize| first_sample + seconds_to_samples(row as f64 * seconds, sample_rate);
    move |row| edge(row)..edge(row + 1)
}

#[cfg(test)]
mod tests {
    use super::super::intervals::contains;
    use super::*;

    #[test]
    fn probable_labels_are_evidence_where_there_is_sound() {
        let mut samples = vec![0.0; 16_000];
        samples[8000..].iter_mut().enumerate().for_each(|(n, x)| *x = (n as f32).sin());
        let energies = FrameEnergies::new(&samples, 8000);
        let row = |start, any_label, best_label| RowPosterior {
            samples: start..start + 320,
            any_label,
            best_label,
        };
        let rows = vec![row(1600, 0.9, 0.8), row(9600, 0.6, 0.4), row(9920, 0.2, 0.1), row(15_900, 0.5, 0.5)];
        let posteriors = LabelPosteriors { rows };
        let evidence = posteriors.evidence(&energies, 16_000, 8000);
        // The first row is in digital silence, the third is improbable.
        assert_eq!(evidence, [8400..11_120, 14_700..16_000]);
        assert!(contains(&evidence, 9600) && !contains(&evidence, 1700));
        assert_eq!(posteriors.max_label(&(0..16_000)), 0.8);
        assert_eq!([posteriors.max_label(&(9920..9921)), posteriors.max_label(&(4000..5000))], [0.1, 0.0]);
    }
}
