//! Transducer decoding: from projected encoder rows to labels with time stamps.
//!
//! Three types to start with:
//!
//! - [`DecodingModel`] is the part of a transducer that a search evaluates: a [`Predictor`], a
//!   [`JointScorer`] and the [`TokenTable`] of the classes. Both traits process many hypotheses per
//!   call and are open to other implementations.
//! - [`GreedySearch`] takes the best class at each site (a frame after the labels so far), for
//!   batches and for [`GreedyStream`]s that arrive in chunks. [`greedy()`] is the reference
//!   implementation, one utterance at a time.
//! - [`BeamSearch`] keeps several hypotheses ([`BeamKind`] lists the algorithms) and returns an
//!   [`NBest`] list; it decodes [`BeamStream`]s as well.
//!
//! A [`Scorer`] adds scores of labels to those of the model: an n-gram ([`mod@ngram`]), a list of
//! phrases ([`PhraseBooster`]) or the CTC head of the same encoder ([`CtcPrefixScorer`]). A
//! [`Fusion`] pairs it with a weight. A [`ClassMask`] restricts the labels that a search may emit.
//! CTC models need no transducer: [`CtcGreedySearch`], [`ctc_beam`].
//!
//! ```
//! use decoding::{
//!     Activation, DecodingModel, GreedyOptions, GreedySearch, JointNetwork, PredictorActivation,
//!     StatelessPredictor, AffineLayer,
//! };
//! use rnnt_dp::Topology;
//! use std::sync::Arc;
//!
//! // Two classes, of which 0 is the blank; all layers have width 1.
//! let tanh = PredictorActivation::Tanh;
//! let predictor = StatelessPredictor::new((&[0.0, 0.0], 1), &[1.0], &[0.0], &[0], tanh)?;
//! let layer = |name, weight: &[f32]| AffineLayer::new(name, weight, 1, None);
//! let (pred, head) = (layer("pred", &[1.0])?, layer("head", &[1.0, 2.0])?);
//! let joint = JointNetwork::new(Activation::Relu, None, pred, head, 0)?;
//! let topology = Topology::modified();
//! let model = DecodingModel::new(Arc::new(predictor), Arc::new(joint), 0, &[], &topology)?;
//! let mut search = GreedySearch::new(model, GreedyOptions::default())?;
//! // One utterance of three frames; in the modified topology a label advances by one frame.
//! let hypotheses = search.decode(&[&[0.0, 5.0, 0.0]])?;
//! assert_eq!(hypotheses.get(0).ids(), [1]);
//! assert_eq!(hypotheses.labels(0)[0].frame, 1);
//! # Ok::<(), decoding::Error>(())
//! ```
//!
//! Read on in [`GreedySearch`] and [`BeamKind`] for the algorithms, and in docs/decoding.md for use
//! from the command line and from Rust.
#![warn(missing_docs)]

mod affine;
mod beam;
mod best_class;
mod boost;
mod class_mask;
mod confidence;
mod ctc;
mod error;
mod factored_blank;
mod greedy;
mod hypotheses;
mod joint;
mod largest;
mod model;
pub mod ngram;
mod packed_weight;
mod predictor;
mod safetensors;
mod scorer;
mod states;
mod token_table;
mod tree;

// Generators of damaged files, for the tests of the readers.
#[cfg(test)]
#[path = "../../speech/tests/suite/mutants.rs"]
mod mutants;

pub use affine::{AffineLayer, NetworkScratch};
pub use beam::{BeamKind, BeamOptions, BeamSearch, BeamStream, NBest, RankedHypothesis};
pub use boost::{
    DEFAULT_PHRASE_SCORE, Phrase, PhraseBooster, PhraseError, PhraseList, SkippedPhrase, TokenStyle,
    WordBoundaries, add_unmarked_variants, read_phrases,
};
pub use class_mask::ClassMask;
pub use confidence::{Confidence, ConfidenceAggregation, ConfidenceMeasure};
pub use ctc::{CtcBeamOptions, CtcGreedySearch, CtcGreedyStream, CtcPrefixScorer, ctc_beam, ctc_greedy};
pub use error::{Error, Result};
pub use factored_blank::factor_blank;
pub use greedy::{GreedyOptions, GreedySearch, GreedyStream, frame_looping, greedy, unpad};
pub use hypotheses::{DecodedToken, DecodingStep, Hypotheses, Hypothesis};
pub use joint::{JointNetwork, JointScorer, SiteBatch, SiteIndex};
pub use kernels::Activation;
pub use model::DecodingModel;
pub use predictor::{LstmLayer, LstmPredictor, NO_LABEL, Predictor, PredictorActivation, StatelessPredictor};
pub use safetensors::{ActivationName, DecodingModelConfig, PredictorConfig};
pub use scorer::{ClassScores, Fusion, Scorer};
pub use states::{StateShape, States};
pub use token_table::TokenTable;
