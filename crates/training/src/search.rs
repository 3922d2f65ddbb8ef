//! How texts are looked for: a decoder with its options, over the model's own frames.
use candle_core::Tensor;
use decoding::{
    Beam, BeamSearch, CtcBeam, Emitted, Greedy, GreedySearch, Hypothesis, NBest, Ranked, ctc_beam,
    ctc_greedy, ctc_rescore, unpadded,
};
use speech::Features;

use crate::label_side::counts;
use crate::model::Model;
use crate::tensors::with_slice;
use crate::{Error, ModelConfig, Result, data};

/// A kind of search and its options.
#[derive(Debug, Clone)]
pub enum Search {
    /// The best class at each site.
    Greedy(Greedy),
    /// The best label sequences that a beam keeps.
    Beam(Beam),
    /// The same in two passes: all that the beam has kept are ordered anew, with what the head of the auxiliary CTC loss says of them
    /// ([`decoding::ctc_rescore`]).
    BeamThenCtc {
        /// The first pass.
        beam: Beam,
        /// Weight of the second, from 0 on.
        weight: f64,
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

impl Search {
    /// What models of a configuration are searched with by default: greedily, or, in a recognition lattice, the best path.
    pub fn of(config: &ModelConfig) -> Self {
        match config.loss.kind.gnat() {
            Some(_) => Search::Lattice(LatticeSearch::default()),
            None => Search::default(),
        }
    }
}

impl Search {
    /// Whether it hears sound that arrives piece by piece: a greedy search, and a beam of one pass whose kind
    /// [`streams`](decoding::BeamKind::streams) and which tells the best alone.
    pub fn streams(&self) -> bool {
        match self {
            Search::Greedy(_) => true,
            Search::Beam(beam) => beam.kind.streams() && beam.nbest == 1,
            Search::BeamThenCtc { .. } | Search::Ctc(_) | Search::Lattice(_) => false,
        }
    }
}

impl Default for Search {
    fn default() -> Self {
        Search::Greedy(Greedy::default())
    }
}

/// What was found in an utterance.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// The best labels.
    pub best: Hypothesis,
    /// They and the next best, if a beam was asked for several.
    pub ranked: Vec<Ranked>,
}

impl From<Hypothesis> for Found {
    fn from(best: Hypothesis) -> Self {
        Found { best, ranked: Vec::new() }
    }
}

impl Found {
    /// So many of what a beam has found.
    fn of(found: NBest, nbest: usize) -> Self {
        let mut ranked = found.hypotheses;
        let labels = ranked.first().map_or_else(Vec::new, |best| best.labels.clone());
        ranked.truncate(if nbest > 1 { nbest } else { 0 });
        Found { best: Hypothesis { labels: posteriors(labels), ..Hypothesis::default() }, ranked }
    }
}

/// A search over a model; its buffers stay from batch to batch.
pub(crate) enum Searcher {
    Greedy(Box<GreedySearch>),
    Beam {
        search: Box<BeamSearch>,
        /// Weight of a second pass by CTC.
        second_pass: Option<f64>,
        /// Results that are told.
        nbest: usize,
    },
    Ctc(Option<CtcBeam>),
    Lattice(LatticeSearch),
}

impl Searcher {
    pub fn new(model: &Model, search: &Search) -> Result<Self> {
        Self::with(model, None, search)
    }

    /// With a decoder of the model that was made before.
    ///
    /// # Errors
    /// [`Error::Decoding`] for an option outside its range; [`Error::Shape`] for a search by CTC in a model that has no head for it,
    /// or one by a joint network or a lattice in a model that has none.
    pub fn with(model: &Model, decoder: Option<decoding::Model>, search: &Search) -> Result<Self> {
        let decoder = || decoder.map_or_else(|| model.decoder(), Ok);
        if matches!(search, Search::Ctc(_) | Search::BeamThenCtc { .. }) && model.ctc.is_none() {
            return Err(no_ctc_head());
        }
        Ok(match search {
            Search::Greedy(options) => {
                Searcher::Greedy(Box::new(GreedySearch::new(decoder()?, options.clone())?))
            }
            Search::Ctc(options) => {
                let blank = model.blank();
                Searcher::Ctc(options.clone().map(|options| CtcBeam { blank, ..options }))
            }
            Search::Beam(beam) => Searcher::beam(decoder()?, beam.clone(), None)?,
            Search::BeamThenCtc { beam, weight } => {
                // Of no utterances: a look at the weight.
                ctc_rescore(&[], &[], 1, 0, *weight)?;
                Searcher::beam(decoder()?, beam.clone(), Some(*weight))?
            }
            Search::Lattice(LatticeSearch::Sum { beam: 0 }) => {
                return Err(Error::shape("search.beam", "at least 1 string", "0"));
            }
            Search::Lattice(search) if model.lattice().is_some() => Searcher::Lattice(*search),
            Search::Lattice(_) => return Err(no_lattice()),
        })
    }

    fn beam(decoder: decoding::Model, options: Beam, second_pass: Option<f64>) -> Result<Self> {
        let (nbest, kept) = (options.nbest, options.width);
        // A number of 0 stays one, for the search to refuse.
        let more = if second_pass.is_some() && nbest > 0 { nbest.max(kept) } else { nbest };
        let search = Box::new(BeamSearch::new(decoder, Beam { nbest: more, ..options })?);
        Ok(Searcher::Beam { search, second_pass, nbest })
    }

    /// Encodes and decodes some planes together.
    pub fn recognise(&mut self, model: &Model, planes: &[&Features]) -> Result<Vec<Found>> {
        let (rows, lengths) = data::collate(planes, &model.config().input.rows)?;
        let (encoded, lengths) = model.encoder.forward(&rows, &lengths, None)?;
        Ok(match self {
            Searcher::Greedy(search) => {
                let frames = model.frames_of(encoded)?;
                of_rows(&frames, &lengths, |rows, _| {
                    Ok(search.decode(rows)?.iter().map(Found::from).collect())
                })?
            }
            Searcher::Beam { search, second_pass, nbest } => {
                let log_probs = second_pass.map(|_| ctc_head(model, &encoded)).transpose()?;
                let frames = model.frames_of(encoded)?;
                let found = of_rows(&frames, &lengths, |rows, _| Ok(search.decode(rows)?.to_vec()))?;
                let found = match (second_pass, &log_probs) {
                    (Some(weight), Some(log_probs)) => of_rows(log_probs, &lengths, |rows, classes| {
                        ctc_rescore(&found, rows, classes, blank_of(classes), *weight)
                    })?,
                    _ => found,
                };
                found.into_iter().map(|found| Found::of(found, *nbest)).collect()
            }
            Searcher::Ctc(options) => of_rows(&ctc_head(model, &encoded)?, &lengths, |rows, classes| {
                Ok(match options {
                    None => {
                        let found = ctc_greedy(rows, classes, blank_of(classes))?;
                        let sure =
                            |found: Hypothesis| Hypothesis { labels: posteriors(found.labels), ..found };
                        found.into_iter().map(|found| sure(found).into()).collect()
                    }
                    Some(options) => {
                        let found = ctc_beam(rows, classes, options)?;
                        found.into_iter().map(|found| Found::of(found, options.nbest)).collect()
                    }
                })
            })?,
            Searcher::Lattice(search) => {
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
