//! `SearchConfig`: a kind of search and its options.
use decoding::{BeamOptions, CtcBeamOptions, GreedyOptions};
use model::config::LossKind;
use model::{Model, ModelConfig};

/// A kind of search and its options.
#[derive(Debug, Clone)]
pub enum SearchConfig {
    /// The best class at each site (lattice node).
    Greedy(GreedyOptions),
    /// Beam search.
    Beam(BeamOptions),
    /// Beam search with prefix scores of the auxiliary CTC head ([`decoding::CtcPrefixScorer`]).
    BeamWithCtc {
        /// The beam search.
        beam: BeamOptions,
        /// Weight of the CTC head, from 0 to 1000; 0.3 is typical.
        weight: f32,
    },
    /// Search with only the CTC head: greedy or, with options, a beam.
    ///
    /// The head is that of a CTC model or of an auxiliary loss.
    ///
    /// The blank of the options is ignored: it is that of the model.
    Ctc(Option<CtcBeamOptions>),
    /// Search in a recognition lattice, for lattice models.
    Lattice(LatticeSearch),
}

/// The criterion of a lattice search.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LatticeSearch {
    /// The labels of the path with the largest weight.
    #[default]
    BestPath,
    /// The best labels by sum over alignments, among those in a beam.
    Sum {
        /// Label strings kept per frame.
        beam: usize,
    },
}

impl SearchConfig {
    /// Returns the default search of a model: greedy, or the best lattice path.
    pub(crate) fn default_for(config: &ModelConfig) -> Self {
        match config.loss.kind {
            LossKind::Gnat(_) => SearchConfig::Lattice(LatticeSearch::default()),
            LossKind::Ctc {} => SearchConfig::Ctc(None),
            _ => SearchConfig::default(),
        }
    }

    /// Returns whether the search supports streaming in a model.
    pub(crate) fn supports_streams(&self, model: &Model) -> bool {
        match self {
            SearchConfig::Greedy(_) => true,
            SearchConfig::Beam(beam) => beam.kind.supports_streaming() && beam.nbest == 1,
            SearchConfig::Ctc(None) => model.is_ctc(),
            SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(Some(_)) | SearchConfig::Lattice(_) => false,
        }
    }

    /// Returns whether the silence filter needs a separate greedy search.
    ///
    /// True if results may differ from those of a plain greedy search.
    pub(crate) fn needs_unfused_search(&self) -> bool {
        match self {
            SearchConfig::Greedy(greedy) => !greedy.fusion.is_empty() || greedy.internal_lm != 0.0,
            SearchConfig::Beam(_) | SearchConfig::BeamWithCtc { .. } | SearchConfig::Ctc(Some(_)) => true,
            SearchConfig::Ctc(None) | SearchConfig::Lattice(_) => false,
        }
    }
}

impl Default for SearchConfig {
    fn default() -> Self {
        SearchConfig::Greedy(GreedyOptions::default())
    }
}
