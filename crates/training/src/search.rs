//! How texts are looked for: a decoder with its options, over the model's own frames.
use decoding::{Beam, BeamSearch, Greedy, GreedySearch, Hypothesis, unpadded};
use speech::Features;

use crate::model::Model;
use crate::recipe::Recipe;
use crate::tensors::with_slice;
use crate::{Result, data};

/// A kind of search and its options.
#[derive(Debug, Clone)]
pub enum Search {
    /// The best class at each site.
    Greedy(Greedy),
    /// The best label sequences that a beam keeps.
    Beam(Beam),
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
}

impl Searcher {
    pub fn new(decoder: decoding::Model, search: &Search) -> Result<Self> {
        Ok(match search {
            Search::Greedy(options) => {
                Searcher::Greedy(Box::new(GreedySearch::new(decoder, options.clone())?))
            }
            Search::Beam(options) => Searcher::Beam(Box::new(BeamSearch::new(decoder, options.clone())?)),
        })
    }

    /// The best labels of each utterance, from its projected frames; where its end was is not told.
    pub fn decode(&mut self, frames: &[&[f32]]) -> Result<Vec<Hypothesis>> {
        Ok(match self {
            Searcher::Greedy(search) => search.decode(frames)?.iter().collect(),
            Searcher::Beam(search) => {
                let best = |found: &decoding::NBest| Hypothesis {
                    labels: found.best().map_or_else(Vec::new, |best| best.labels.clone()),
                    ..Hypothesis::default()
                };
                search.decode(frames)?.iter().map(best).collect()
            }
        })
    }

    /// Encodes and decodes some planes together.
    pub fn recognise(
        &mut self,
        model: &Model,
        recipe: &Recipe,
        planes: &[&Features],
    ) -> Result<Vec<Hypothesis>> {
        let (rows, lengths) = data::collate(planes, &recipe.encoder.rows)?;
        let (frames, lengths) = model.encode(&rows, &lengths)?;
        let width = frames.dim(2)?;
        with_slice(&frames, |frames: &[f32]| {
            let utterances = unpadded(frames, width, &lengths);
            Ok(utterances.map_err(crate::Error::from).and_then(|utterances| self.decode(&utterances)))
        })?
    }
}
