//! How texts are looked for: what `evaluate` and `transcribe` have in common.
use decoding::{Aggregate, Confidence, Greedy, Measure};
use training::{Recogniser, Search};

use crate::error::Result;

/// Arguments of a search.
#[derive(clap::Args)]
pub struct SearchArguments {
    /// Most labels that one frame may emit
    #[arg(long, value_name = "N", default_value_t = 8)]
    max_symbols: usize,
    /// Measure of the confidences that are written: max-prob, gibbs-lin, gibbs-exp, tsallis-lin, tsallis-exp, renyi-lin, renyi-exp
    #[arg(long, value_name = "MEASURE", default_value = Measure::MaxProb.name())]
    confidence: Measure,
    /// Its exponent: below 1, unlikely labels count for more; 0.33 is usual for the measures of entropy
    #[arg(long, value_name = "A", default_value_t = 1.0)]
    confidence_exponent: f64,
    /// How the confidences of its tokens make that of a word: min, mean, max, product
    #[arg(long, value_name = "HOW", default_value = "min")]
    word_confidence: Aggregate,
}

impl SearchArguments {
    /// A recogniser that searches as the arguments say.
    pub fn apply(&self, recogniser: Recogniser) -> Result<Recogniser> {
        let confidence = Some(Confidence { measure: self.confidence, exponent: self.confidence_exponent });
        let greedy = Greedy { max_symbols: Some(self.max_symbols), confidence, ..Greedy::default() };
        Ok(recogniser.with_search(Search::Greedy(greedy))?.with_aggregate(self.word_confidence))
    }
}
