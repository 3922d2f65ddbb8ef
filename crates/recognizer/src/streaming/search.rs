//! Greedy or beam search of a stream, continued across audio chunks.
//!
//! Labels are final if they do not change any more; the other labels of the best hypothesis of a
//! beam are unstable. All labels of a greedy search are final.
use decoding::{
    BeamOptions, BeamSearch, BeamStream, CtcGreedySearch, CtcGreedyStream, DecodedToken, GreedySearch,
    GreedyStream,
};

use crate::recognizer::Recognizer;
use crate::search::{new_ctc_greedy_search, with_posterior_confidence};
use crate::search_config::SearchConfig;
use crate::{Error, Result};

/// Largest number of unstable labels; the oldest of more labels become final.
const MAX_UNSTABLE_LABELS: usize = 1000;

/// A search and its state.
pub(super) struct StreamingSearch {
    search: SearchWithStream,
    /// Frame of the newest final label.
    newest_final_frame: Option<usize>,
    /// Labels of the best hypothesis after the final ones.
    unstable_labels: Vec<DecodedToken>,
    /// Frames after which a label becomes final although hypotheses differ.
    max_unstable_frames: usize,
    /// Width of an encoder row.
    row_width: usize,
}

/// A search with the state of its stream.
enum SearchWithStream {
    Greedy(Box<(GreedySearch, GreedyStream)>),
    Beam(Box<(BeamSearch, BeamStream)>),
    Ctc(CtcGreedySearch, CtcGreedyStream),
}

impl StreamingSearch {
    /// Creates a search at the start of a recording.
    ///
    /// `latest` is the number of seconds after which an unstable label becomes final.
    ///
    /// # Errors
    /// [`Error::Shape`] for a search that cannot stream; [`Error::Decoding`] for a kind of beam
    /// search that cannot stream.
    pub(super) fn new(recognizer: &Recognizer, latest: Option<f64>) -> Result<Self> {
        let decoder = || recognizer.decoder().cloned().map_or_else(|| recognizer.model().decoder(), Ok);
        let search = match recognizer.search() {
            SearchConfig::Greedy(options) => {
                let search = GreedySearch::new(decoder()?, options.clone())?;
                let stream = search.stream();
                SearchWithStream::Greedy(Box::new((search, stream)))
            }
            SearchConfig::Beam(BeamOptions { nbest: 2.., .. }) => {
                let expected = "1 for streaming, which returns each word once";
                return Err(Error::shape("search.nbest", expected, "several"));
            }
            SearchConfig::Beam(options) => {
                let search = BeamSearch::new(decoder()?, options.clone())?;
                let stream = search.stream()?;
                SearchWithStream::Beam(Box::new((search, stream)))
            }
            // The rows of a stream are logits of the head only in a CTC model.
            SearchConfig::Ctc(None) if recognizer.model().is_ctc() => {
                let search = new_ctc_greedy_search(recognizer.model(), recognizer.ctc_mask())?;
                let stream = search.stream();
                SearchWithStream::Ctc(search, stream)
            }
            SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(_) | SearchConfig::Lattice(_) => {
                let expected = match recognizer.model().is_ctc() {
                    true => "a greedy search, for streaming",
                    false => "a greedy search or a beam with the joint network only, for streaming",
                };
                return Err(Error::shape("search", expected, "another"));
            }
        };
        let row_width = match &search {
            SearchWithStream::Ctc(search, _) => search.classes(),
            SearchWithStream::Greedy(_) | SearchWithStream::Beam(_) => decoder()?.frame_width(),
        };
        let frame_seconds = recognizer.transcription_builder().frame_seconds();
        let max_unstable_frames = latest.map_or(usize::MAX, |seconds| (seconds / frame_seconds) as usize);
        Ok(Self {
            search,
            newest_final_frame: None,
            unstable_labels: Vec::new(),
            max_unstable_frames,
            row_width,
        })
    }

    /// Searches further rows; returns the new final labels.
    pub(super) fn advance(&mut self, rows: &[f32]) -> Result<Vec<DecodedToken>> {
        let labels = match &mut self.search {
            SearchWithStream::Greedy(greedy) => {
                let (search, stream) = &mut **greedy;
                search.advance(&mut [stream], &[rows])?.labels(0).to_vec()
            }
            SearchWithStream::Ctc(search, stream) => {
                let hypotheses = search.advance(&mut [stream], &[rows])?;
                let labels = hypotheses.into_iter().flat_map(|hypothesis| hypothesis.labels).collect();
                with_posterior_confidence(labels)
            }
            SearchWithStream::Beam(beam) => {
                let (search, stream) = &mut **beam;
                let best = search.advance(&mut [stream], &[rows])?[0].best();
                self.unstable_labels = best.map_or_else(Vec::new, |best| best.labels.clone());
                // Old labels are committed although hypotheses differ in them.
                let frames = stream.frames();
                let is_late =
                    |label: &DecodedToken| frames - label.frame.min(frames) > self.max_unstable_frames;
                let num_late = self.unstable_labels.iter().take_while(|label| is_late(label)).count();
                let num_late = num_late.max(self.unstable_labels.len().saturating_sub(MAX_UNSTABLE_LABELS));
                let mut labels = if num_late > 0 { search.commit(stream, num_late)? } else { Vec::new() };
                // Further labels are final because all hypotheses share them.
                labels.extend(stream.take_stable());
                self.unstable_labels.drain(..labels.len());
                with_posterior_confidence(labels)
            }
        };
        Ok(self.record_final_labels(labels))
    }

    /// Commits the labels of the best hypothesis.
    ///
    /// At the end of the recording, language models score the end too.
    pub(super) fn commit(&mut self, is_end: bool) -> Result<Vec<DecodedToken>> {
        let SearchWithStream::Beam(beam) = &mut self.search else { return Ok(Vec::new()) };
        let (search, stream) = &mut **beam;
        let labels = if is_end {
            let best = search.finish(&mut [stream])?[0].best();
            best.map_or_else(Vec::new, |best| best.labels.clone())
        } else {
            search.commit(stream, self.unstable_labels.len())?
        };
        self.unstable_labels.clear();
        Ok(self.record_final_labels(with_posterior_confidence(labels)))
    }

    /// Records the frame of the newest final label; returns the labels.
    fn record_final_labels(&mut self, labels: Vec<DecodedToken>) -> Vec<DecodedToken> {
        self.newest_final_frame = labels.last().map(|label| label.frame).or(self.newest_final_frame);
        labels
    }

    /// Returns the labels of the best hypothesis after the final ones.
    pub(super) fn unstable_labels(&self) -> &[DecodedToken] {
        &self.unstable_labels
    }

    /// Returns the width of an encoder row.
    pub(super) fn row_width(&self) -> usize {
        self.row_width
    }

    /// Returns whether the search is a beam.
    ///
    /// Labels of a beam depend on when they are committed.
    pub(super) fn is_beam(&self) -> bool {
        matches!(self.search, SearchWithStream::Beam(_))
    }

    /// Returns the number of frames so far.
    pub(super) fn frames(&self) -> usize {
        match &self.search {
            SearchWithStream::Greedy(greedy) => greedy.1.frames(),
            SearchWithStream::Beam(beam) => beam.1.frames(),
            SearchWithStream::Ctc(_, stream) => stream.frames(),
        }
    }

    /// Returns the frames since the newest label, or since the start.
    pub(super) fn trailing_frames(&self) -> usize {
        let newest_frame = self.unstable_labels.last().map(|label| label.frame).or(self.newest_final_frame);
        newest_frame.map_or(self.frames(), |newest_frame| self.frames().saturating_sub(newest_frame + 1))
    }
}
