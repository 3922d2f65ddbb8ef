//! Transducer decoding: from projected encoder rows to labels with time stamps.
//!
//! A model is seen through two traits, [`Predictor`] and [`JointScorer`], which serve many hypotheses at once; [`Model`] holds one of each
//! and the [`TokenTable`] of its classes, read from the topology that it was trained with. Nothing here knows about audio, files of
//! recordings or training.
//!
//! [`greedy()`] takes the best class at each site, an utterance at a time: the definition. [`GreedySearch`] does the same for batches
//! and for [`Stream`]s that arrive chunk by chunk.
//!
//! What scores labels beside the model is an [`Scorer`]: an n-gram ([`mod@ngram`]), a list of phrases ([`Boost`]), the CTC head
//! of the same encoder ([`CtcPrefixes`]).
#![warn(missing_docs)]

mod affine;
mod beam;
mod best_class;
mod boost;
mod confidence;
mod ctc;
mod error;
mod factored;
mod greedy;
mod hypotheses;
mod joint;
mod largest;
mod model;
mod model_file;
pub mod ngram;
mod predictor;
mod scorer;
mod states;
mod token_table;
mod tree;

// Damaged files, for what reads them.
#[cfg(test)]
#[path = "../../speech/tests/suite/mutants.rs"]
mod mutants;

pub use affine::{AffineLayer, NetworkScratch};
pub use beam::{Beam, BeamKind, BeamSearch, BeamStream, NBest, Ranked};
pub use boost::{
    Boost, Boundaries, PHRASE_SCORE, Phrase, PhraseError, PhraseList, SkippedPhrase, TokenStyle,
    add_unmarked, read_phrases,
};
pub use confidence::{Aggregate, Confidence, Measure};
pub use ctc::{CtcBeam, CtcPrefixes, ctc_beam, ctc_greedy};
pub use error::{Error, Result};
pub use factored::factor_blank;
pub use greedy::{Greedy, GreedySearch, Stream, frame_looping, greedy, unpadded};
pub use hypotheses::{DecodingStep, Emitted, Hypotheses, Hypothesis};
pub use joint::{JointScorer, Network, SiteBatch, SiteIndex};
pub use kernels::Activation;
pub use model::Model;
pub use model_file::{ActivationName, ModelConfig, PredictorConfig};
pub use predictor::{Finish, LstmLayer, LstmPredictor, NOTHING, Predictor, StatelessPredictor};
pub use scorer::{Fusion, PerClass, Scorer};
pub use states::{StateShape, States};
pub use token_table::TokenTable;
