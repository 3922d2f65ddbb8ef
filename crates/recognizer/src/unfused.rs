//! Greedy search by the model alone, as evidence of speech next to a fused search.
use decoding::{
    DecodedToken, DecodingModel, DecodingStep, GreedyOptions, GreedySearch, GreedyStream, ctc_greedy,
};

/// Labels that the model finds without language models, phrases, penalties or a second head.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unfused {
    /// Labels of a greedy search.
    pub labels: Vec<DecodedToken>,
    /// `max_t 1 - p(blank)` over the frames at which the greedy search took a blank.
    ///
    /// Of several blanks, only the one that was taken is subtracted.
    pub label_posterior: f64,
}

impl Unfused {
    fn new(labels: &[DecodedToken], steps: &[DecodingStep]) -> Self {
        Unfused { labels: labels.to_vec(), label_posterior: label_posterior(labels, steps) }
    }

    /// Evidence from log-probabilities `[T, C]` of a CTC head; its blank is the class `blank`.
    pub fn from_ctc(rows: &[&[f32]], classes: usize, blank: u32) -> decoding::Result<Vec<Self>> {
        let found = ctc_greedy(rows, classes, blank)?;
        let evidence = |(found, rows): (decoding::Hypothesis, &&[f32])| {
            let blanks = rows.chunks_exact(classes).map(|row| row[blank as usize]);
            let least = blanks.fold(0f32, f32::min);
            Unfused { labels: found.labels, label_posterior: 1.0 - f64::from(least).exp() }
        };
        Ok(found.into_iter().zip(rows).map(evidence).collect())
    }
}

/// `max 1 - p` over the steps that are not labels.
fn label_posterior(labels: &[DecodedToken], steps: &[DecodingStep]) -> f64 {
    // Labels stand among the steps in their order.
    let mut labels = labels.iter().peekable();
    let mut most = 0f64;
    for step in steps {
        match labels.next_if(|label| label.frame == step.frame && label.label == step.class) {
            Some(_) => {}
            None => most = most.max(1.0 - step.log_prob.exp()),
        }
    }
    most
}

/// A greedy search by the joint network alone.
pub(crate) struct UnfusedSearch(GreedySearch);

impl UnfusedSearch {
    /// # Errors
    /// Those of [`GreedySearch::new`].
    pub fn new(decoder: DecodingModel) -> decoding::Result<Self> {
        let options = GreedyOptions { record_steps: true, ..GreedyOptions::default() };
        Ok(UnfusedSearch(GreedySearch::new(decoder, options)?))
    }

    /// Searches whole utterances, `[T_b, H]` each.
    pub fn decode(&mut self, rows: &[&[f32]]) -> decoding::Result<Vec<Unfused>> {
        let found = self.0.decode(rows)?;
        Ok((0..found.len()).map(|at| Unfused::new(found.labels(at), found.steps(at))).collect())
    }

    /// State of a recording that arrives in pieces.
    pub fn stream(&self) -> GreedyStream {
        self.0.stream()
    }

    /// Searches the next rows of one recording.
    pub fn advance(&mut self, stream: &mut GreedyStream, rows: &[f32]) -> decoding::Result<Unfused> {
        let found = self.0.advance(&mut [stream], &[rows])?;
        Ok(Unfused::new(found.labels(0), found.steps(0)))
    }
}
