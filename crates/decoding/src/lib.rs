//! Transducer decoding: from projected encoder rows to labels with time stamps.
//!
//! A model is seen through two traits, [`Predictor`] and [`JointScorer`], which serve many hypotheses at once; [`DecodingModel`] holds one of each
//! and the [`TokenTable`] of its classes, read from the topology that it was trained with. Nothing here knows about audio, files of
//! recordings or training.
//!
//! [`greedy()`] takes the best class at each site, an utterance at a time: the definition. [`GreedySearch`] does the same for batches
//! and for [`Stream`]s that arrive chunk by chunk.
//!
//! What scores labels beside the model is an [`Scorer`]: an n-gram ([`mod@ngram`]), a list of phrases ([`PhraseBooster`]), the CTC head
//! of the same encoder ([`CtcPrefixScorer`]).
#![warn(missing_docs)]

mod affine;
mod beam;
mod best_class;
mod boost;
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
mod predictor;
mod safetensors;
mod scorer;
mod states;
mod token_table;
mod tree;

// Damaged files, for what reads them.
#[cfg(test)]
#[path = "../../speech/tests/suite/mutants.rs"]
mod mutants;

pub use affine::{AffineLayer, NetworkScratch};
pub use beam::{BeamKind, BeamOptions, BeamSearch, BeamStream, NBest, RankedHypothesis};
pub use boost::{
    DEFAULT_PHRASE_SCORE, Phrase, PhraseBooster, PhraseError, PhraseList, SkippedPhrase, TokenStyle,
    WordBoundaries, add_unmarked_variants, read_phrases,
};
pub use confidence::{Confidence, ConfidenceAggregation, ConfidenceMeasure};
pub use ctc::{CtcBeamOptions, CtcPrefixScorer, ctc_beam, ctc_greedy};
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
