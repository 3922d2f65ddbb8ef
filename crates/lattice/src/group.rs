//! Utterances that go through a call together, and the waves of frames that their arc weights are computed in.
use std::{borrow::Cow, ops::Range};

use kernels::Real;

use crate::Frames;

/// Utterances with their frames packed, one after the other.
pub struct UtteranceGroup {
    pub utterances: Range<usize>,
    /// First packed frame of each, and the end.
    pub starts: Vec<usize>,
    /// Frames of time of a wave.
    pub window: usize,
}

impl UtteranceGroup {
    pub fn new<F: Real>(frames: &Frames<F>, utterances: Range<usize>, window: usize) -> Self {
        let mut starts = vec![0];
        for utterance in utterances.clone() {
            starts.push(starts.last().expect("there is a first") + frames.length(utterance));
        }
        Self { utterances, starts, window }
    }

    /// Number of utterances.
    pub fn len(&self) -> usize {
        self.utterances.len()
    }

    /// Packed frames of all utterances.
    pub fn frames(&self) -> usize {
        self.starts[self.len()]
    }

    /// Packed frames of an utterance, counted within the group.
    pub fn of(&self, utterance: usize) -> Range<usize> {
        self.starts[utterance]..self.starts[utterance + 1]
    }

    /// Number of waves.
    pub fn waves(&self) -> usize {
        let longest = (0..self.len()).map(|utterance| self.of(utterance).len()).max().unwrap_or(0);
        longest.div_ceil(self.window)
    }

    /// The packed frames of a wave, utterance after utterance, and how many of each.
    pub fn wave(&self, wave: usize) -> Wave {
        let (mut frames, mut counts) = (Vec::new(), Vec::with_capacity(self.len()));
        for utterance in 0..self.len() {
            let all = self.of(utterance);
            let from = (all.start + wave * self.window).min(all.end);
            let to = (from + self.window).min(all.end);
            frames.extend(from..to);
            counts.push(to - from);
        }
        Wave { frames, counts }
    }

    /// Where each packed frame lies in a padded batch of so many frames an utterance.
    pub fn places(&self, padded: usize) -> Vec<usize> {
        let of = |(at, utterance): (usize, usize)| utterance * padded..utterance * padded + self.of(at).len();
        self.utterances.clone().enumerate().flat_map(of).collect()
    }

    /// Rows of the group's frames, packed; where nothing is padding they are where they are.
    pub fn rows<'a, F: Real>(&self, frames: &Frames<'a, F>) -> Cow<'a, [F]> {
        let whole = self.utterances.clone().all(|utterance| frames.length(utterance) == frames.padded());
        if whole {
            return Cow::Borrowed(frames.rows(self.utterances.clone()));
        }
        let mut rows = Vec::with_capacity(self.frames() * frames.size());
        self.utterances.clone().for_each(|utterance| rows.extend_from_slice(frames.of(utterance)));
        Cow::Owned(rows)
    }

    /// The utterance of each packed frame.
    pub fn utterances(&self) -> Vec<u32> {
        let of = |(at, utterance): (usize, usize)| std::iter::repeat_n(utterance as u32, self.of(at).len());
        self.utterances.clone().enumerate().flat_map(of).collect()
    }
}

/// Successive frames of each utterance.
pub struct Wave {
    /// Packed frames of the group.
    pub frames: Vec<usize>,
    /// How many of them each utterance has.
    pub counts: Vec<usize>,
}
