//! Groups of utterances of a lattice call, and waves of their frames.
//!
//! A group is a range of utterances that are processed together, with their frames packed. A wave
//! has the next `frames_per_wave` frames of each utterance.
use std::{borrow::Cow, ops::Range};

use kernels::Real;

use crate::Frames;

/// Utterances whose frames are packed one after another.
pub(crate) struct UtteranceGroup {
    /// Indices in the batch.
    pub utterances: Range<usize>,
    /// First packed frame of each utterance, and the end.
    pub frame_starts: Vec<usize>,
    /// Frames of each utterance in a wave.
    pub frames_per_wave: usize,
}

impl UtteranceGroup {
    /// Packs the frames of some utterances.
    pub(crate) fn new<F: Real>(frames: &Frames<F>, utterances: Range<usize>, frames_per_wave: usize) -> Self {
        let mut frame_starts = vec![0];
        for utterance in utterances.clone() {
            frame_starts.push(frame_starts.last().expect("the list is not empty") + frames.length(utterance));
        }
        Self { utterances, frame_starts, frames_per_wave }
    }

    /// Number of utterances.
    pub(crate) fn len(&self) -> usize {
        self.utterances.len()
    }

    /// Number of packed frames.
    pub(crate) fn frames(&self) -> usize {
        self.frame_starts[self.len()]
    }

    /// Packed frames of an utterance of the group.
    pub(crate) fn frame_range(&self, utterance: usize) -> Range<usize> {
        self.frame_starts[utterance]..self.frame_starts[utterance + 1]
    }

    /// Number of waves.
    pub(crate) fn waves(&self) -> usize {
        let longest = (0..self.len()).map(|utterance| self.frame_range(utterance).len()).max().unwrap_or(0);
        longest.div_ceil(self.frames_per_wave)
    }

    /// Returns the packed frames of a wave, and their counts.
    pub(crate) fn wave(&self, wave_index: usize) -> Wave {
        let (mut frames, mut counts) = (Vec::new(), Vec::with_capacity(self.len()));
        for utterance in 0..self.len() {
            let frame_range = self.frame_range(utterance);
            let start = (frame_range.start + wave_index * self.frames_per_wave).min(frame_range.end);
            let end = (start + self.frames_per_wave).min(frame_range.end);
            frames.extend(start..end);
            counts.push(end - start);
        }
        Wave { frames, counts }
    }

    /// Positions of the packed frames in a batch padded to `padded` frames.
    pub(crate) fn batch_positions(&self, padded: usize) -> Vec<usize> {
        let frames = |(index, utterance): (usize, usize)| {
            utterance * padded..utterance * padded + self.frame_range(index).len()
        };
        self.utterances.clone().enumerate().flat_map(frames).collect()
    }

    /// Packed frames of the group; borrowed if there is no padding.
    pub(crate) fn rows<'a, F: Real>(&self, frames: &Frames<'a, F>) -> Cow<'a, [F]> {
        let has_padding =
            self.utterances.clone().any(|utterance| frames.length(utterance) != frames.padded());
        if !has_padding {
            return Cow::Borrowed(frames.rows(self.utterances.clone()));
        }
        let mut rows = Vec::with_capacity(self.frames() * frames.frame_size());
        self.utterances.clone().for_each(|utterance| rows.extend_from_slice(frames.utterance(utterance)));
        Cow::Owned(rows)
    }

    /// The utterance of each packed frame.
    pub(crate) fn utterances(&self) -> Vec<u32> {
        let frames = |(index, utterance): (usize, usize)| {
            std::iter::repeat_n(utterance as u32, self.frame_range(index).len())
        };
        self.utterances.clone().enumerate().flat_map(frames).collect()
    }
}

/// Successive frames of each utterance of a group.
pub(crate) struct Wave {
    /// Packed frames.
    pub frames: Vec<usize>,
    /// Number of these frames of each utterance.
    pub counts: Vec<usize>,
}
