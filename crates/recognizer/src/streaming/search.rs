//! A search whose state is carried from piece to piece.
use decoding::{BeamOptions, BeamSearch, BeamStream, DecodedToken, GreedySearch, GreedyStream};

use crate::recognizer::Recognizer;
use crate::search::{SearchConfig, posteriors};
use crate::{Error, Result};

/// Labels that a beam leaves open, at most.
const OPEN: usize = 1000;

/// A search and what it knows of the recording so far.
pub(super) struct StreamingSearch {
    search: StreamKind,
    /// Frame of the newest label that is final.
    newest: Option<usize>,
    /// What seems to come behind the labels that are final.
    open: Vec<DecodedToken>,
    /// Frames that a label may be open.
    latest: usize,
    /// Width of an encoder row.
    row_width: usize,
}

enum StreamKind {
    Greedy(Box<(GreedySearch, GreedyStream)>),
    Beam(Box<(BeamSearch, BeamStream)>),
}

impl StreamingSearch {
    /// # Errors
    /// [`Error::Shape`] for a search that knows no pieces; [`Error::Decoding`] for a kind of beam search that knows none.
    pub fn new(recognizer: &Recognizer, latest: Option<f64>) -> Result<Self> {
        let decoder = || recognizer.decoder().cloned().map_or_else(|| recognizer.model().decoder(), Ok);
        let search = match recognizer.search() {
            SearchConfig::Greedy(options) => {
                let search = GreedySearch::new(decoder()?, options.clone())?;
                let stream = search.stream();
                StreamKind::Greedy(Box::new((search, stream)))
            }
            SearchConfig::Beam(BeamOptions { nbest: 2.., .. }) => {
                let expected = "1 for sound that is still arriving, whose words are told once";
                return Err(Error::shape("search.nbest", expected, "several"));
            }
            SearchConfig::Beam(options) => {
                let search = BeamSearch::new(decoder()?, options.clone())?;
                let stream = search.stream()?;
                StreamKind::Beam(Box::new((search, stream)))
            }
            SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(_) | SearchConfig::Lattice(_) => {
                let expected =
                    "a greedy one or a beam by the joint network alone for sound that is still arriving";
                return Err(Error::shape("search", expected, "another"));
            }
        };
        let row_width = decoder()?.width();
        let frame_seconds = recognizer.writer().frame_seconds();
        let latest = latest.map_or(usize::MAX, |seconds| (seconds / frame_seconds) as usize);
        Ok(Self { search, newest: None, open: Vec::new(), latest, row_width })
    }

    /// Searches on through some rows: the labels that are final since.
    pub fn advance(&mut self, rows: &[f32]) -> Result<Vec<DecodedToken>> {
        let found = match &mut self.search {
            StreamKind::Greedy(greedy) => {
                let (search, stream) = &mut **greedy;
                search.advance(&mut [stream], &[rows])?.labels(0).to_vec()
            }
            StreamKind::Beam(beam) => {
                let (search, stream) = &mut **beam;
                let best = search.advance(&mut [stream], &[rows])?[0].best();
                self.open = best.map_or_else(Vec::new, |best| best.labels.clone());
                let frames = stream.frames();
                let late = |label: &DecodedToken| frames - label.frame.min(frames) > self.latest;
                let late = self.open.iter().take_while(|label| late(label)).count();
                let late = late.max(self.open.len().saturating_sub(OPEN));
                let mut found = if late > 0 { search.commit(stream, late)? } else { Vec::new() };
                found.extend(stream.take_stable());
                self.open.drain(..found.len());
                posteriors(found)
            }
        };
        Ok(self.told(found))
    }

    /// Decides for what the best hypothesis has; at the end of the recording, what language models say of ends counts.
    pub fn settle(&mut self, last: bool) -> Result<Vec<DecodedToken>> {
        let StreamKind::Beam(beam) = &mut self.search else { return Ok(Vec::new()) };
        let (search, stream) = &mut **beam;
        let found = if last {
            let best = search.finish(&mut [stream])?[0].best();
            best.map_or_else(Vec::new, |best| best.labels.clone())
        } else {
            search.commit(stream, self.open.len())?
        };
        self.open.clear();
        Ok(self.told(posteriors(found)))
    }

    fn told(&mut self, found: Vec<DecodedToken>) -> Vec<DecodedToken> {
        self.newest = found.last().map(|label| label.frame).or(self.newest);
        found
    }

    /// What seems to come behind the labels that are final.
    pub fn open(&self) -> &[DecodedToken] {
        &self.open
    }

    /// Width of an encoder row.
    pub fn row_width(&self) -> usize {
        self.row_width
    }

    /// Whether the search is a beam, whose labels depend on when they are decided.
    pub fn is_beam(&self) -> bool {
        matches!(self.search, StreamKind::Beam(_))
    }

    /// Frames so far.
    pub fn frames(&self) -> usize {
        match &self.search {
            StreamKind::Greedy(greedy) => greedy.1.frames(),
            StreamKind::Beam(beam) => beam.1.frames(),
        }
    }

    /// Frames since the newest label, or since the start.
    pub fn trailing_frames(&self) -> usize {
        let newest = self.open.last().map(|label| label.frame).or(self.newest);
        newest.map_or(self.frames(), |newest| self.frames().saturating_sub(newest + 1))
    }
}
