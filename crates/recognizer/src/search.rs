//! How texts are looked for: a decoder with its options, over the model's own frames.
use std::sync::Arc;

use candle_core::Tensor;
use decoding::{
    Beam, BeamSearch, CtcBeam, CtcPrefixes, Emitted, Fusion, Greedy, GreedySearch, Hypothesis, NBest, Ranked,
    ctc_beam, ctc_greedy, unpadded,
};
use rayon::prelude::*;
use speech::Features;

use crate::unfused::{Unfused, UnfusedSearch};
use crate::{Error, Result};
use model::Model;
use model::ModelConfig;
use model::tensors::{counts, with_slice};

/// A kind of search and its options.
#[derive(Debug, Clone)]
pub enum SearchConfig {
    /// The best class at each site.
    Greedy(Greedy),
    /// The best label sequences that a beam keeps.
    Beam(Beam),
    /// The same, of labels that the head of the auxiliary CTC loss believes in as well ([`decoding::CtcPrefixes`]).
    BeamWithCtc {
        /// The search.
        beam: Beam,
        /// Weight of what the head says, from 0 to 1000; 0.3 is usual.
        weight: f32,
    },
    /// By the head of the auxiliary CTC loss alone, where the model has one: the best class of each frame, or, with options, a
    /// beam, whose blank is the model's.
    Ctc(Option<CtcBeam>),
    /// Through a recognition lattice, where the model is one.
    Lattice(LatticeSearch),
}

/// What is looked for in a recognition lattice.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LatticeSearch {
    /// The labels of the path with the largest weight.
    #[default]
    BestPath,
    /// The labels with the largest sum over their alignments, among those that a beam of so many finds.
    Sum {
        /// Strings that go on from frame to frame.
        beam: usize,
    },
}

impl SearchConfig {
    /// What models of a configuration are searched with by default: greedily, or, in a recognition lattice, the best path.
    pub fn default_for(config: &ModelConfig) -> Self {
        match config.loss.kind.gnat() {
            Some(_) => SearchConfig::Lattice(LatticeSearch::default()),
            None => SearchConfig::default(),
        }
    }
}

impl SearchConfig {
    /// Whether it hears sound that arrives piece by piece: a greedy search, and a beam whose kind
    /// [`streams`](decoding::BeamKind::streams), which has no CTC head beside it and tells the best alone.
    pub fn streams(&self) -> bool {
        match self {
            SearchConfig::Greedy(_) => true,
            SearchConfig::Beam(beam) => beam.kind.streams() && beam.nbest == 1,
            SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(_) | SearchConfig::Lattice(_) => false,
        }
    }
}

impl SearchConfig {
    /// Whether it may find other labels than a plain greedy search.
    pub(crate) fn needs_evidence(&self) -> bool {
        match self {
            SearchConfig::Greedy(greedy) => !greedy.fusion.is_empty() || greedy.internal_lm != 0.0,
            SearchConfig::Beam(_) | SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(Some(_)) => true,
            SearchConfig::Ctc(None) | SearchConfig::Lattice(_) => false,
        }
    }
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig::Greedy(Greedy::default())
    }
}

/// What was found in an utterance.
#[derive(Debug, Default)]
pub(crate) struct SearchResult {
    /// The best labels.
    pub best: Hypothesis,
    /// They and the next best, if a beam was asked for several.
    pub ranked: Vec<Ranked>,
    /// What the model alone finds, where the search may find something else.
    pub unfused: Option<Unfused>,
}

impl From<Hypothesis> for SearchResult {
    fn from(best: Hypothesis) -> Self {
        SearchResult { best, ..SearchResult::default() }
    }
}

impl SearchResult {
    /// So many of what a beam has found.
    fn of(found: NBest, nbest: usize) -> Self {
        let mut ranked = found.hypotheses;
        let labels = ranked.first().map_or_else(Vec::new, |best| best.labels.clone());
        ranked.truncate(if nbest > 1 { nbest } else { 0 });
        let best = Hypothesis { labels: posteriors(labels), ..Hypothesis::default() };
        SearchResult { best, ranked, unfused: None }
    }
}

/// A search over a model; its buffers stay from batch to batch.
pub(crate) struct Searcher {
    kind: SearchKind,
    /// Evidence for the silence filter, where the search itself is none.
    unfused: Option<UnfusedSearch>,
}

enum SearchKind {
    Greedy(Box<GreedySearch>),
    Beam {
        search: Box<BeamSearch>,
        /// Weight of the CTC head beside it.
        ctc: Option<f32>,
        /// Results that are told.
        nbest: usize,
    },
    Ctc(Option<CtcBeam>),
    Lattice(LatticeSearch),
}

impl Searcher {
    /// A search in a model; the decoder is that of a transducer.
    ///
    /// # Errors
    /// [`decoding::Error`] for an option outside its range; [`model::Error::Shape`] for a search by CTC in a model that has no head for
    /// it, or one by a joint network or a lattice in a model that has none.
    pub fn new(model: &Model, decoder: Option<&decoding::Model>, search: &SearchConfig) -> Result<Self> {
        let decoder = || decoder.cloned().map_or_else(|| model.decoder(), Ok);
        if matches!(search, SearchConfig::Ctc(_) | SearchConfig::BeamWithCtc { .. }) && !model.has_ctc_head()
        {
            return Err(no_ctc_head());
        }
        let by_joint = !matches!(search, SearchConfig::Ctc(_) | SearchConfig::Lattice(_));
        let unfused = match by_joint && search.needs_evidence() {
            true => Some(UnfusedSearch::new(decoder()?)?),
            false => None,
        };
        let kind = match search {
            SearchConfig::Greedy(options) => {
                SearchKind::Greedy(Box::new(GreedySearch::new(decoder()?, options.clone())?))
            }
            SearchConfig::Ctc(options) => {
                let blank = model.blank();
                SearchKind::Ctc(options.clone().map(|options| CtcBeam { blank, ..options }))
            }
            SearchConfig::Beam(beam) => SearchKind::beam(decoder()?, beam, None)?,
            SearchConfig::BeamWithCtc { beam, weight } => {
                if !(0.0..=1e3).contains(weight) {
                    let (expected, found) = ("a number from 0 to 1000", f64::from(*weight));
                    return Err(decoding::Error::Option { option: "ctc weight", expected, found }.into());
                }
                SearchKind::beam(decoder()?, beam, Some(*weight))?
            }
            SearchConfig::Lattice(LatticeSearch::Sum { beam: 0 }) => {
                return Err(Error::shape("search.beam", "at least 1 string", "0"));
            }
            SearchConfig::Lattice(search) if model.lattice().is_some() => SearchKind::Lattice(*search),
            SearchConfig::Lattice(_) => return Err(no_lattice()),
        };
        Ok(Searcher { kind, unfused })
    }

    /// Encodes and decodes some utterances together; `evidence` adds what the silence filter needs ([`SearchResult::unfused`]).
    pub fn recognize(
        &mut self,
        model: &Model,
        planes: &[&Features],
        evidence: bool,
    ) -> Result<Vec<SearchResult>> {
        let (rows, lengths) = model::collate(planes, &model.config().input.rows)?;
        let (encoded, lengths) = model.encoder().forward(&rows, &lengths, None)?;
        let Searcher { kind, unfused } = self;
        let mut unfused = unfused.as_mut().filter(|_| evidence);
        Ok(match kind {
            SearchKind::Greedy(search) => {
                let frames = model.frames_of(encoded)?;
                of_rows(&frames, &lengths, |rows, _| {
                    with_evidence(
                        search.decode(rows)?.iter().map(SearchResult::from).collect(),
                        unfused.as_deref_mut(),
                        rows,
                    )
                })?
            }
            SearchKind::Beam { search, ctc, nbest } => {
                let lists = match ctc {
                    Some(weight) => of_rows(&ctc_head(model, &encoded)?, &lengths, |rows, classes| {
                        said_by_ctc(rows, classes, *weight)
                    })?,
                    None => vec![Vec::new(); lengths.len()],
                };
                let frames = model.frames_of(encoded)?;
                of_rows(&frames, &lengths, |rows, _| {
                    let found = search.decode_with(rows, lists)?;
                    let found = found.iter().map(|found| SearchResult::of(found.clone(), *nbest)).collect();
                    with_evidence(found, unfused, rows)
                })?
            }
            SearchKind::Ctc(options) => of_rows(&ctc_head(model, &encoded)?, &lengths, |rows, classes| {
                Ok(match options {
                    None => {
                        let found = ctc_greedy(rows, classes, blank_of(classes))?;
                        let sure =
                            |found: Hypothesis| Hypothesis { labels: posteriors(found.labels), ..found };
                        found.into_iter().map(|found| sure(found).into()).collect()
                    }
                    Some(options) => {
                        let found = ctc_beam(rows, classes, options)?;
                        let evidence = Unfused::from_ctc(rows, classes, blank_of(classes))?;
                        let found = found.into_iter().map(|found| SearchResult::of(found, options.nbest));
                        let both = found.zip(evidence);
                        both.map(|(found, unfused)| SearchResult { unfused: Some(unfused), ..found })
                            .collect()
                    }
                })
            })?,
            SearchKind::Lattice(search) => {
                let gnat = model.lattice().ok_or_else(no_lattice)?;
                let num_frames = counts(&lengths)?;
                match *search {
                    LatticeSearch::BestPath => {
                        let paths = gnat.best_paths(&encoded, &num_frames)?;
                        paths.iter().map(|path| hypothesis(&path.labels(), &path.frames()).into()).collect()
                    }
                    LatticeSearch::Sum { beam } => {
                        let paths = gnat.best_strings(&encoded, &num_frames, beam)?;
                        paths.iter().map(|path| hypothesis(&path.labels(), &path.frames()).into()).collect()
                    }
                }
            }
        })
    }
}

impl SearchKind {
    fn beam(decoder: decoding::Model, options: &Beam, ctc: Option<f32>) -> Result<Self> {
        let search = Box::new(BeamSearch::new(decoder, options.clone())?);
        Ok(SearchKind::Beam { search, ctc, nbest: options.nbest })
    }
}

/// Adds what the model alone finds in the same rows.
fn with_evidence(
    mut found: Vec<SearchResult>,
    unfused: Option<&mut UnfusedSearch>,
    rows: &[&[f32]],
) -> decoding::Result<Vec<SearchResult>> {
    if let Some(search) = unfused {
        let evidence = search.decode(rows)?;
        found.iter_mut().zip(evidence).for_each(|(found, one)| found.unfused = Some(one));
    }
    Ok(found)
}

/// Calls `find` with the rows of each utterance and their width.
fn of_rows<T>(
    rows: &Tensor,
    lengths: &[usize],
    find: impl FnOnce(&[&[f32]], usize) -> decoding::Result<T>,
) -> Result<T> {
    let width = rows.dim(2)?;
    let found = with_slice(rows, |rows: &[f32]| {
        Ok(unpadded(rows, width, lengths).and_then(|utterances| find(&utterances, width)))
    })?;
    Ok(found?)
}

/// Log-probabilities of the head of the auxiliary CTC loss.
fn ctc_head(model: &Model, encoded: &Tensor) -> Result<Tensor> {
    model.ctc_of(encoded)?.ok_or_else(no_ctc_head)
}

/// What that head says of utterances, for a search by another network.
fn said_by_ctc(utterances: &[&[f32]], classes: usize, weight: f32) -> decoding::Result<Vec<Vec<Fusion>>> {
    let said = |(utterance, rows): (usize, &&[f32])| {
        let automaton = CtcPrefixes::new(rows, classes, blank_of(classes))
            .map_err(|source| decoding::Error::Utterance { utterance, source: Box::new(source) })?;
        Ok(vec![Fusion { automaton: Arc::new(automaton), weight }])
    };
    utterances.par_iter().enumerate().map(said).collect()
}

/// The blank is the last class of that head, as in the model.
fn blank_of(classes: usize) -> u32 {
    classes as u32 - 1
}

fn no_ctc_head() -> Error {
    Error::shape("search", "a model with training.ctc_weight for a search by CTC", "one without")
}

fn no_lattice() -> Error {
    let expected = "a model with loss.kind = \"gnat\" for a search in a lattice";
    Error::shape("search", expected, "a transducer")
}

/// Where the distribution is no more there, a label's confidence is its posterior.
pub(crate) fn posteriors(mut labels: Vec<Emitted>) -> Vec<Emitted> {
    labels.iter_mut().for_each(|label| label.confidence = label.log_prob.exp());
    labels
}

/// Labels of a lattice as those of the tokenizer. A lattice knows sums of paths, not how sure it is of each label.
fn hypothesis(labels: &[u32], frames: &[usize]) -> Hypothesis {
    let label = |(&label, &frame): (&u32, &usize)| Emitted {
        label: label - 1,
        frame,
        log_prob: 0.0,
        confidence: 1.0,
        ..Emitted::default()
    };
    Hypothesis { labels: labels.iter().zip(frames).map(label).collect(), ..Hypothesis::default() }
}
