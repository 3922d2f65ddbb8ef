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
    /// Reads an n-gram of labels, or of words that labels spell.
    ///
    /// `unknown_character` is the score per character of an unknown word; none for labels.
    #[staticmethod]
    fn ngram(py: Python, arpa: &[u8], names: Vec<String>, unknown_character: Option<f32>) -> PyResult<Self> {
        py.detach(|| {
            let table = NgramTable::read(arpa)
                .map_err(|error| PyValueError::new_err(format!("ARPA file: {error}")))?;
            let Some(unknown_character) = unknown_character else {
                let ngram = Ngram::new(&table, &names, OutOfVocabulary::Ignore).map_err(value_error)?;
                return Ok(Self(Arc::new(ngram)));
            };
            let options = WordNgramOptions { unknown_character, ..WordNgramOptions::default() };
            Ok(Self(Arc::new(WordNgram::new(&table, &names, options).map_err(value_error)?)))
        })
    }

    /// Boosts phrases of labels, each with the score of the whole phrase.
    #[staticmethod]
    fn phrases(phrases: Vec<(Vec<u32>, f32)>, names: Vec<String>, depth_scaling: f32) -> PyResult<Self> {
        let style = TokenStyle::from_names(&names);
        let boundaries = WordBoundaries::from_names(&names, style);
        let mut phrases: Vec<Phrase> =
            phrases.into_iter().map(|(tokens, score)| Phrase::with_total(tokens, score)).collect();
        add_unmarked_variants(&mut phrases, &names);
        let booster = PhraseBooster::with_boundaries(&phrases, &boundaries, depth_scaling);
        Ok(Self(Arc::new(booster.map_err(value_error)?)))
    }

    /// Adds a constant score to each class.
    #[staticmethod]
    fn class_scores(scores: Vec<f32>) -> PyResult<Self> {
        Ok(Self(Arc::new(ClassScores::new(scores).map_err(value_error)?)))
    }
}

fn value_error(error: impl std::error::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}
