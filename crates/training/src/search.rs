//! How texts are looked for: a decoder with its options, over the model's own frames.
use decoding::{
    Beam, BeamSearch, CtcBeam, Greedy, GreedySearch, Hypothesis, NBest, ctc_beam, ctc_greedy, unpadded,
};
use speech::Features;

use crate::model::Model;
use crate::recipe::Recipe;
use crate::tensors::with_slice;
use crate::{Error, Result, data};

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
}

impl Searcher {
    pub fn new(decoder: decoding::Model, search: &Search) -> Result<Self> {
        Ok(match search {
            Search::Greedy(options) => {
                Searcher::Greedy(Box::new(GreedySearch::new(decoder, options.clone())?))
            }
            Search::Ctc(options) => {
                let blank = decoder.rules().blank();
                Searcher::Ctc(options.clone().map(|options| CtcBeam { blank, ..options }))
            }
            Search::Beam(options) => Searcher::Beam(Box::new(BeamSearch::new(decoder, options.clone())?)),
        })
    }

    /// Encodes and decodes some planes together; of a beam's best labels, only they are told.
    ///
    /// # Errors
    /// [`Error::Shape`] for a search by CTC in a model that has no head for it.
    pub fn recognise(
        &mut self,
        model: &Model,
        recipe: &Recipe,
        planes: &[&Features],
    ) -> Result<Vec<Hypothesis>> {
        let (rows, lengths) = data::collate(planes, &recipe.encoder.rows)?;
        let (frames, lengths) = match self {
            Searcher::Ctc(_) => model.ctc_log_probs(&rows, &lengths)?.ok_or_else(|| {
                Error::shape("search", "a model with training.ctc_weight for a search by CTC", "none")
            })?,
            _ => model.encode(&rows, &lengths)?,
        };
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
            Searcher::Beam(search) => search.decode(rows)?.iter().map(best).collect(),
            // The blank is the last class of this head, as in the model.
            Searcher::Ctc(None) => {
                ctc_greedy(rows, width, width as u32 - 1)?.into_iter().map(posteriors).collect()
            }
            Searcher::Ctc(Some(options)) => ctc_beam(rows, width, options)?.iter().map(best).collect(),
        })
    }
}
