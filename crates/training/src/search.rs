//! How texts are looked for: a decoder with its options, over the model's own frames.
use decoding::{
    Beam, BeamSearch, CtcBeam, Emitted, Greedy, GreedySearch, Hypothesis, NBest, ctc_beam, ctc_greedy,
    unpadded,
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

impl Default for Search {
    fn default() -> Self {
        Search::Greedy(Greedy::default())
    }
}

/// A search over a model; its buffers stay from batch to batch.
pub(crate) enum Searcher {
    Greedy(Box<GreedySearch>),
    Beam(Box<BeamSearch>),
    Ctc(Option<CtcBeam>),
    Lattice(LatticeSearch),
}

impl Searcher {
    pub fn new(model: &Model, search: &Search) -> Result<Self> {
        Self::with(model, None, search)
    }

    /// With a decoder of the model that was made before.
    pub fn with(model: &Model, decoder: Option<decoding::Model>, search: &Search) -> Result<Self> {
        let decoder = || decoder.map_or_else(|| model.decoder(), Ok);
        Ok(match search {
            Search::Greedy(options) => {
                Searcher::Greedy(Box::new(GreedySearch::new(decoder()?, options.clone())?))
            }
            Search::Ctc(options) => {
                let blank = model.blank();
                Searcher::Ctc(options.clone().map(|options| CtcBeam { blank, ..options }))
            }
            Search::Beam(options) => Searcher::Beam(Box::new(BeamSearch::new(decoder()?, options.clone())?)),
            Search::Lattice(LatticeSearch::Sum { beam: 0 }) => {
                return Err(Error::shape("search.beam", "at least 1 string", "0"));
            }
            Search::Lattice(search) if model.lattice().is_some() => Searcher::Lattice(*search),
            Search::Lattice(_) => {
                return Err(Error::shape(
                    "search",
                    "a model with loss.kind = \"gnat\" for a search in a lattice",
                    "a transducer",
                ));
            }
        })
    }

    /// Encodes and decodes some planes together; of a beam's best labels, only they are told.
    ///
    /// # Errors
    /// [`Error::Shape`] for a search by CTC in a model that has no head for it.
    pub fn recognise(&mut self, model: &Model, planes: &[&Features]) -> Result<Vec<Hypothesis>> {
        let (rows, lengths) = data::collate(planes, &model.config().input.rows)?;
        let (frames, lengths) = match self {
            Searcher::Ctc(_) => model.ctc_log_probs(&rows, &lengths)?.ok_or_else(|| {
                Error::shape("search", "a model with training.ctc_weight for a search by CTC", "none")
            })?,
            _ => model.encode(&rows, &lengths)?,
        };
        if let (Searcher::Lattice(search), Some(gnat)) = (&*self, model.lattice()) {
            let num_frames = counts(&lengths)?;
            return Ok(match search {
                LatticeSearch::BestPath => {
                    let paths = gnat.best_paths(&frames, &num_frames)?;
                    paths.iter().map(|path| hypothesis(&path.labels(), &path.frames())).collect()
                }
                &LatticeSearch::Sum { beam } => {
                    let paths = gnat.best_strings(&frames, &num_frames, beam)?;
                    paths.iter().map(|path| hypothesis(&path.labels(), &path.frames())).collect()
                }
            });
        }
        let width = frames.dim(2)?;
        with_slice(&frames, |frames: &[f32]| {
            Ok(unpadded(frames, width, &lengths).and_then(|utterances| self.decode(&utterances, width)))
        })?
        .map_err(Error::from)
    }

    fn decode(&mut self, rows: &[&[f32]], width: usize) -> decoding::Result<Vec<Hypothesis>> {
        // Where the distribution is no more there, a label's confidence is its posterior.
        let posteriors = |mut found: Hypothesis| {
            found.labels.iter_mut().for_each(|label| label.confidence = label.log_prob.exp());
            found
        };
        let best = |found: &NBest| {
            let labels = found.best().map_or_else(Vec::new, |best| best.labels.clone());
            posteriors(Hypothesis { labels, ..Hypothesis::default() })
        };
        Ok(match self {
            Searcher::Greedy(search) => search.decode(rows)?.iter().collect(),
            Searcher::Lattice(_) => Vec::new(),
            Searcher::Beam(search) => search.decode(rows)?.iter().map(best).collect(),
            // The blank is the last class of this head, as in the model.
            Searcher::Ctc(None) => {
                ctc_greedy(rows, width, width as u32 - 1)?.into_iter().map(posteriors).collect()
            }
            Searcher::Ctc(Some(options)) => ctc_beam(rows, width, options)?.iter().map(best).collect(),
        })
    }
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
