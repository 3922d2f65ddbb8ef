//! Scorers of label sequences for Python: n-grams, phrases, and scores of classes.
use std::sync::Arc;

use ::decoding::{
    ClassScores, Phrase, PhraseBooster, Scorer, TokenStyle, WordBoundaries, add_unmarked_variants,
    ngram::{Ngram, NgramTable, OutOfVocabulary, WordNgram, WordNgramOptions},
};
use pyo3::{PyErr, PyResult, Python, exceptions::PyValueError, pyclass, pymethods};

/// A scorer of label sequences.
#[pyclass(frozen, module = "panda_rnnt._native")]
pub struct LabelScorer(Arc<dyn Scorer>);

impl LabelScorer {
    /// The scorer.
    pub fn scorer(&self) -> Arc<dyn Scorer> {
        self.0.clone()
    }
}

#[pymethods]
impl LabelScorer {
    /// Reads an ARPA file over labels, or with a penalty per unknown character over words.
    #[staticmethod]
    fn ngram(py: Python, arpa: &[u8], names: Vec<String>, unknown_character: Option<f32>) -> PyResult<Self> {
        let outcome = py.detach(|| -> ::decoding::ngram::Result<Self> {
            let table = NgramTable::read(arpa)?;
            Ok(match unknown_character {
                None => Self(Arc::new(Ngram::new(&table, &names, OutOfVocabulary::Ignore)?)),
                Some(unknown_character) => {
                    let options = WordNgramOptions { unknown_character, ..WordNgramOptions::default() };
                    Self(Arc::new(WordNgram::new(&table, &names, options)?))
                }
            })
        });
        outcome.map_err(|error| value_error("arpa", error))
    }

    /// Boosts phrases of labels, each with the score of the whole phrase.
    #[staticmethod]
    fn phrases(phrases: Vec<(Vec<u32>, f32)>, names: Vec<String>, depth_scaling: f32) -> PyResult<Self> {
        let style = TokenStyle::from_names(&names);
        let boundaries = WordBoundaries::from_names(&names, style);
        let mut phrases: Vec<Phrase> =
            phrases.into_iter().map(|(tokens, score)| Phrase::with_total(tokens, score)).collect();
        add_unmarked_variants(&mut phrases, &names);
        match PhraseBooster::with_boundaries(&phrases, &boundaries, depth_scaling) {
            Ok(booster) => Ok(Self(Arc::new(booster))),
            Err(error) => Err(PyValueError::new_err(error.to_string())),
        }
    }

    /// Adds a constant score to each class.
    #[staticmethod]
    fn class_scores(scores: Vec<f32>) -> PyResult<Self> {
        match ClassScores::new(scores) {
            Ok(scores) => Ok(Self(Arc::new(scores))),
            Err(error) => Err(PyValueError::new_err(error.to_string())),
        }
    }
}

fn value_error(argument: &str, error: ::decoding::ngram::Error) -> PyErr {
    PyValueError::new_err(format!("{argument}: {error}"))
}
