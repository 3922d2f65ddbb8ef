//! Greedy CTC search: the best class of each frame, for batches and streams.
use kernels::{items_mut, par_for, parts};
use serde::{Deserialize, Serialize};

use super::{check_row, decoded_token, for_each_utterance, score_error};
use crate::best_class::best_index;
use crate::largest::select_largest;
use crate::{ClassMask, DecodedToken, Error, Hypothesis, Result};

/// Decodes CTC greedily: the best class of each frame.
///
/// Ties go to the lower class. A label has the frame and the log-probability of the start of its
/// run. [`CtcGreedySearch`] takes logits and streams as well.
///
/// # Shapes
/// `log_probs`: for each utterance `[T_b, C]`, row-major.
///
/// # Errors
/// [`Error::Blank`] if it is not a class; [`Error::Utterance`] with [`Error::Frames`] for rows that
/// are not whole or [`Error::Score`] for NaN, +inf, or a frame of -inf.
///
/// Cost: `O(T C)`.
///
/// ```
/// let row = |class: usize| (0..3).map(move |c| if c == class { -0.1f32 } else { -3.0 });
/// let rows: Vec<f32> = [1, 1, 0, 1, 2].into_iter().flat_map(row).collect();
/// let hypotheses = decoding::ctc_greedy(&[&rows], 3, 0)?;
/// assert_eq!(hypotheses[0].ids(), [1, 1, 2]);
/// assert_eq!(hypotheses[0].labels[1].frame, 3);
/// # Ok::<(), decoding::Error>(())
/// ```
pub fn ctc_greedy(log_probs: &[&[f32]], classes: usize, blank: u32) -> Result<Vec<Hypothesis>> {
    for_each_utterance(log_probs, classes, blank, |rows| {
        let mut runs = RunCollapse { blank, last_class: blank };
        let mut labels = Vec::new();
        for (frame, row) in rows.chunks_exact(classes).enumerate() {
            check_row(row, frame)?;
            let mut best = [(0.0, 0)];
            select_largest(row, &mut best);
            let [(score, class)] = best;
            if runs.begins_label(class) {
                labels.push(decoded_token(class, frame, score, 0.0));
            }
        }
        Ok(Hypothesis { labels, end_frame: rows.len() / classes, is_capped: false })
    })
}

/// Merges repeated classes and removes blanks.
#[derive(Debug, Clone, Copy)]
struct RunCollapse {
    blank: u32,
    /// Class of the last frame; the blank before the first frame.
    last_class: u32,
}

impl RunCollapse {
    /// Takes the class of the next frame; returns whether it begins a label.
    fn begins_label(&mut self, class: u32) -> bool {
        let last_class = std::mem::replace(&mut self.last_class, class);
        class != self.blank && class != last_class
    }
}

/// Greedy CTC search over logits or log-probabilities, for batches and streams.
///
/// ```text
/// c_t = argmax_c z(t, c)
/// labels: the c_t without repetitions, then without blanks (Graves et al., ICML 2006)
/// log_prob = z(t, c_t) - log Σ_c exp z(t, c)          t: the first frame of the label's run
/// ```
/// Ties go to the lower class. Scores are normalized here, so that logits and log-probabilities
/// give the same result.
///
/// ```
/// use decoding::CtcGreedySearch;
///
/// let row = |class: usize| (0..3).map(move |c| if c == class { 2.0f32 } else { -3.0 });
/// let rows: Vec<f32> = [1, 1, 0, 1, 2].into_iter().flat_map(row).collect();
/// let search = CtcGreedySearch::new(3, 0)?;
/// assert_eq!(search.decode(&[&rows])?[0].ids(), [1, 1, 2]);
///
/// let mut stream = search.stream();
/// let first = search.advance(&mut [&mut stream], &[&rows[..3]])?;
/// let rest = search.advance(&mut [&mut stream], &[&rows[3..]])?;
/// assert_eq!((first[0].ids(), rest[0].ids()), (vec![1], vec![1, 2]));
/// # Ok::<(), decoding::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct CtcGreedySearch {
    classes: usize,
    blank: u32,
    mask: Option<ClassMask>,
}

/// State of a greedy CTC search between two chunks of an utterance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CtcGreedyStream {
    classes: usize,
    /// Class of the last frame; the blank before the first frame.
    last_class: u32,
    /// Decoded frames.
    frames: usize,
}

impl CtcGreedyStream {
    /// Number of decoded frames.
    pub fn frames(&self) -> usize {
        self.frames
    }
}

impl CtcGreedySearch {
    /// Creates a search over rows of `classes` scores.
    ///
    /// # Errors
    /// [`Error::Blank`] if the blank is not a class.
    pub fn new(classes: usize, blank: u32) -> Result<Self> {
        if blank as usize >= classes {
            return Err(Error::Blank { blank, classes });
        }
        Ok(Self { classes, blank, mask: None })
    }

    /// Restricts the search to the allowed classes.
    ///
    /// Log-probabilities are then those among the allowed classes.
    ///
    /// # Errors
    /// Those of [`ClassMask::check`].
    pub fn with_mask(mut self, mask: ClassMask) -> Result<Self> {
        mask.check(self.classes, &[self.blank])?;
        self.mask = Some(mask);
        Ok(self)
    }

    /// Number of classes C, the width of a row.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Decodes whole utterances.
    ///
    /// # Shapes
    /// `scores`: for each utterance `[T_b, C]`, row-major.
    ///
    /// # Errors
    /// [`Error::Utterance`] with [`Error::Frames`] for rows that are not whole or [`Error::Score`]
    /// for NaN, +inf, or a frame of -inf.
    ///
    /// Cost: `O(T C)`, utterances in parallel.
    pub fn decode(&self, scores: &[&[f32]]) -> Result<Vec<Hypothesis>> {
        let mut streams = vec![self.stream(); scores.len()];
        self.run(&mut streams.iter_mut().collect::<Vec<_>>(), scores)
    }

    /// Creates a stream, an utterance that arrives in chunks.
    pub fn stream(&self) -> CtcGreedyStream {
        CtcGreedyStream { classes: self.classes, last_class: self.blank, frames: 0 }
    }

    /// Decodes the next chunk of each stream and returns the new labels.
    ///
    /// Frames count from the start of the stream. The labels of all chunks equal those of
    /// [`Self::decode`] for the whole utterance; chunks may be empty.
    ///
    /// # Errors
    /// Those of [`Self::decode`]; [`Error::Count`] unless there is one chunk per stream;
    /// [`Error::Stream`] for a state of another search. Streams are unchanged after an error.
    pub fn advance(
        &self,
        streams: &mut [&mut CtcGreedyStream],
        chunks: &[&[f32]],
    ) -> Result<Vec<Hypothesis>> {
        if streams.len() != chunks.len() {
            let (expected, found) = (streams.len(), chunks.len());
            return Err(Error::Count { argument: "chunks", expected, found });
        }
        for (b, stream) in streams.iter().enumerate() {
            let is_valid = stream.classes == self.classes
                && (stream.last_class as usize) < self.classes
                && stream.frames <= crate::greedy::MAX_COUNT;
            if !is_valid {
                let expected = format!("a state of a search over {} classes", self.classes);
                let error = Error::Stream { expected, found: format!("{stream:?}") };
                return Err(error.in_utterance(b));
            }
        }
        self.run(streams, chunks)
    }

    /// Decodes chunks and advances their streams.
    fn run(&self, streams: &mut [&mut CtcGreedyStream], chunks: &[&[f32]]) -> Result<Vec<Hypothesis>> {
        let mut results: Vec<Option<Result<(CtcGreedyStream, Hypothesis)>>> = vec![None; chunks.len()];
        let states = &*streams;
        par_for((items_mut(&mut results), parts(chunks, 1)), |b, (result, chunk)| {
            *result = Some(self.decode_chunk(&*states[b], chunk[0]));
        });
        let results = results.into_iter().flatten().enumerate();
        let results: Vec<_> = results
            .map(|(b, result)| result.map_err(|error| error.in_utterance(b)))
            .collect::<Result<_>>()?;
        let store = |(stream, (state, hypothesis)): (&mut &mut CtcGreedyStream, _)| {
            **stream = state;
            hypothesis
        };
        Ok(streams.iter_mut().zip(results).map(store).collect())
    }

    /// Decodes a chunk; returns the state after it and its labels.
    fn decode_chunk(&self, stream: &CtcGreedyStream, rows: &[f32]) -> Result<(CtcGreedyStream, Hypothesis)> {
        if !rows.len().is_multiple_of(self.classes) {
            return Err(Error::Frames { width: self.classes, found: rows.len() });
        }
        let mut runs = RunCollapse { blank: self.blank, last_class: stream.last_class };
        let (mut labels, mut masked_row) = (Vec::new(), Vec::new());
        for (frame, row) in (stream.frames..).zip(rows.chunks_exact(self.classes)) {
            let row = match &self.mask {
                None => row,
                Some(mask) => {
                    masked_row.clear();
                    masked_row.extend_from_slice(row);
                    mask.apply(&mut masked_row);
                    &masked_row
                }
            };
            let (class, log_prob) = best_index(row).ok_or_else(|| score_error(row, frame))?;
            if runs.begins_label(class as u32) {
                let token = decoded_token(class as u32, frame, row[class], 0.0);
                labels.push(DecodedToken { log_prob, ..token });
            }
        }
        let frames = stream.frames + rows.len() / self.classes;
        let state = CtcGreedyStream { classes: self.classes, last_class: runs.last_class, frames };
        Ok((state, Hypothesis { labels, end_frame: frames, is_capped: false }))
    }
}
