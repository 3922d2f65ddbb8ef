//! Greedy or beam search of a stream, continued across audio chunks.
//!
//! Final labels do not change any more; open labels are the rest of the best hypothesis.
use decoding::{BeamOptions, BeamSearch, BeamStream, DecodedToken, GreedySearch, GreedyStream};

use crate::recognizer::Recognizer;
use crate::search::{SearchConfig, posteriors};
use crate::{Error, Result};

/// Largest number of open labels; the oldest of more labels become final.
const MAX_OPEN_LABELS: usize = 1000;

/// A search and its state.
pub(super) struct StreamingSearch {
    search: StreamKind,
    /// Frame of the newest final label.
    newest: Option<usize>,
    /// Labels of the best hypothesis after the final ones.
    open: Vec<DecodedToken>,
    /// Frames after which a label becomes final although hypotheses differ.
    latest: usize,
    /// Width of an encoder row.
    row_width: usize,
}

enum StreamKind {
    Greedy(Box<(GreedySearch, GreedyStream)>),
    Beam(Box<(BeamSearch, BeamStream)>),
}

impl StreamingSearch {
    /// Creates a search at the start of a recording.
    ///
    /// # Errors
    /// [`Error::Shape`] for a search that cannot stream; [`Error::Decoding`] for a kind of beam
    /// search that cannot stream.
    pub fn new(recognizer: &Recognizer, latest: Option<f64>) -> Result<Self> {
        let decoder = || recognizer.decoder().cloned().map_or_else(|| recognizer.model().decoder(), Ok);
        let search = match recognizer.search() {
            SearchConfig::Greedy(options) => {
                let search = GreedySearch::new(decoder()?, options.clone())?;
                let stream = search.stream();
                StreamKind::Greedy(Box::new((search, stream)))
            }
            SearchConfig::Beam(BeamOptions { nbest: 2.., .. }) => {
                let expected = "1 for streaming, which returns each word once";
                return Err(Error::shape("search.nbest", expected, "several"));
            }
            SearchConfig::Beam(options) => {
                let search = BeamSearch::new(decoder()?, options.clone())?;
                let stream = search.stream()?;
                StreamKind::Beam(Box::new((search, stream)))
            }
            SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(_) | SearchConfig::Lattice(_) => {
                let expected = "a greedy search or a beam with the joint network only, for streaming";
                return Err(Error::shape("search", expected, "another"));
            }
        };
        let row_width = decoder()?.width();
        let frame_seconds = recognizer.transcription_builder().frame_seconds();
        let latest = latest.map_or(usize::MAX, |seconds| (seconds / frame_seconds) as usize);
        Ok(Self { search, newest: None, open: Vec::new(), latest, row_width })
    }

    /// Searches further rows; returns the new final labels.
    pub fn advance(&mut self, rows: &[f32]) -> Result<Vec<DecodedToken>> {
        let labels = match &mut self.search {
            StreamKind::Greedy(greedy) => {
                let (search, stream) = &mut **greedy;
                search.advance(&mut [stream], &[rows])?.labels(0).to_vec()
            }
            StreamKind::Beam(beam) => {
                let (search, stream) = &mut **beam;
                let best = search.advance(&mut [stream], &[rows])?[0].best();
                self.open = best.map_or_else(Vec::new, |best| best.labels.clone());
                let frames = stream.frames();
                let is_late = |label: &DecodedToken| frames - label.frame.min(frames) > self.latest;
                let num_late = self.open.iter().take_while(|label| is_late(label)).count();
                let num_late = num_late.max(self.open.len().saturating_sub(MAX_OPEN_LABELS));
                let mut labels = if num_late > 0 { search.commit(stream, num_late)? } else { Vec::new() };
                labels.extend(stream.take_stable());
                self.open.drain(..labels.len());
                posteriors(labels)
            }
        };
        Ok(self.record(labels))
    }

    /// Commits the labels of the best hypothesis.
    ///
    /// At the end of the recording, language models score the end too.
    pub fn commit(&mut self, is_end: bool) -> Result<Vec<DecodedToken>> {
        let StreamKind::Beam(beam) = &mut self.search else { return Ok(Vec::new()) };
        let (search, stream) = &mut **beam;
        let labels = if is_end {
            let best = search.finish(&mut [stream])?[0].best();
            best.map_or_else(Vec::new, |best| best.labels.clone())
        } else {
            search.commit(stream, self.open.len())?
        };
        self.open.clear();
        Ok(self.record(posteriors(labels)))
    }

    fn record(&mut self, labels: Vec<DecodedToken>) -> Vec<DecodedToken> {
        self.newest = labels.last().map(|label| label.frame).or(self.newest);
        labels
    }

    /// Returns the labels of the best hypothesis after the final ones.
    pub fn open(&self) -> &[DecodedToken] {
        &self.open
    }

    /// Returns the width of an encoder row.
    pub fn row_width(&self) -> usize {
        self.row_width
    }

    /// Returns whether the search is a beam.
    ///
    /// Labels of a beam depend on when they are committed.
    pub fn is_beam(&self) -> bool {
        matches!(self.search, StreamKind::Beam(_))
    }

    /// Returns the number of frames so far.
    pub fn frames(&self) -> usize {
        match &self.search {
            StreamKind::Greedy(greedy) => greedy.1.frames(),
            StreamKind::Beam(beam) => beam.1.frames(),
        }
    }

    /// Returns the frames since the newest label, or since the start.
    pub fn trailing_frames(&self) -> usize {
        let newest = self.open.last().map(|label| label.frame).or(self.newest);
        newest.map_or(self.frames(), |newest| self.frames().saturating_sub(newest + 1))
    }
}
