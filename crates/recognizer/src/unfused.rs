//! Greedy search with the model only, the silence filter's evidence of speech.
//!
//! Fusion (language models, phrases, penalties, CTC) could add words to silence. The silence filter
//! therefore compares the posteriors of this search, not those of the fused one, with its minimum.
use decoding::{
    DecodedToken, DecodingModel, DecodingStep, GreedyOptions, GreedySearch, GreedyStream, ctc_greedy,
};

/// The search result of the model without any fusion.
///
/// No language models, phrases, penalties or CTC head take part.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnfusedResult {
    /// Labels of a greedy search.
    pub labels: Vec<DecodedToken>,
    /// Largest `1 - p(blank)` over the frames where the greedy search took a blank.
    ///
    /// If there are several blanks, only the one taken is subtracted.
    pub max_label_posterior: f64,
}

impl UnfusedResult {
    fn new(labels: &[DecodedToken], steps: &[DecodingStep]) -> Self {
        UnfusedResult { labels: labels.to_vec(), max_label_posterior: max_label_posterior(labels, steps) }
    }

    /// Computes the result of each utterance from a CTC head.
    ///
    /// `rows` are log-probabilities `[T_b, C]`: frames of utterance b, classes.
    pub(crate) fn from_ctc(rows: &[&[f32]], classes: usize, blank: u32) -> decoding::Result<Vec<Self>> {
        let hypotheses = ctc_greedy(rows, classes, blank)?;
        let new_result = |(hypothesis, rows): (decoding::Hypothesis, &&[f32])| {
            let blank_log_probs = rows.chunks_exact(classes).map(|row| row[blank as usize]);
            let min_blank_log_prob = blank_log_probs.fold(0f32, f32::min);
            UnfusedResult {
                labels: hypothesis.labels,
                max_label_posterior: 1.0 - f64::from(min_blank_log_prob).exp(),
            }
        };
        Ok(hypotheses.into_iter().zip(rows).map(new_result).collect())
    }
}

/// Returns `max 1 - p` over the steps that are not labels.
fn max_label_posterior(labels: &[DecodedToken], steps: &[DecodingStep]) -> f64 {
    // Labels occur among the steps in order.
    let mut labels = labels.iter().peekable();
    let mut max_posterior = 0f64;
    for step in steps {
        match labels.next_if(|label| label.frame == step.frame && label.label == step.class) {
            Some(_) => {}
            None => max_posterior = max_posterior.max(1.0 - step.log_prob.exp()),
        }
    }
    max_posterior
}

/// A greedy search with only the joint network.
pub(crate) struct UnfusedSearch(GreedySearch);

impl UnfusedSearch {
    /// Creates a search with default options.
    ///
    /// # Errors
    /// Those of [`GreedySearch::new`].
    pub(crate) fn new(decoder: DecodingModel) -> decoding::Result<Self> {
        let options = GreedyOptions { record_steps: true, ..GreedyOptions::default() };
        Ok(UnfusedSearch(GreedySearch::new(decoder, options)?))
    }

    /// Searches whole utterances: projected encoder rows `[T_b, H]` of each.
    pub(crate) fn decode(&mut self, rows: &[&[f32]]) -> decoding::Result<Vec<UnfusedResult>> {
        let results = self.0.decode(rows)?;
        Ok((0..results.len())
            .map(|index| UnfusedResult::new(results.labels(index), results.steps(index)))
            .collect())
    }

    /// Returns the initial state of a streamed recording.
    pub(crate) fn stream(&self) -> GreedyStream {
        self.0.stream()
    }

    /// Searches the next rows of a recording.
    pub(crate) fn advance(
        &mut self,
        stream: &mut GreedyStream,
        rows: &[f32],
    ) -> decoding::Result<UnfusedResult> {
        let results = self.0.advance(&mut [stream], &[rows])?;
        Ok(UnfusedResult::new(results.labels(0), results.steps(0)))
    }
}
