//! What was recognised: labels with their times, for a whole batch.

/// A recognised label.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DecodedToken {
    /// The label.
    pub label: u32,
    /// The frame at which it was chosen, counted over all chunks.
    pub frame: usize,
    /// Frames that it moved on by itself: its duration, unclipped; 0 in the regular topology, 1 in the modified one.
    pub duration: usize,
    /// Natural log-probability among all classes at its site.
    pub log_prob: f64,
    /// Natural log-probability of its duration among the durations; 0 without durations.
    pub duration_log_prob: f64,
    /// Its raw score at its site.
    pub logit: f32,
    /// What language models and phrases added to it, weights included.
    pub fused: f32,
    /// What was asked for by [`Confidence`](crate::Confidence); 1 if nothing was.
    pub confidence: f64,
}

/// One decision of a search: a label or a blank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DecodingStep {
    /// The frame, counted over all chunks.
    pub frame: usize,
    /// The class.
    pub class: u32,
    /// Its natural log-probability among all classes.
    pub log_prob: f64,
    /// Frames that it moved on; a label that reached the limit of its frame is followed by one more.
    pub frames: usize,
}

/// Labels of one utterance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hypothesis {
    /// The labels in their order.
    pub labels: Vec<DecodedToken>,
    /// Where the search left the utterance: its length, or beyond with durations.
    pub end: usize,
    /// Whether the largest number of labels was reached before the end.
    pub is_capped: bool,
}

impl Hypothesis {
    /// Label ids.
    pub fn ids(&self) -> Vec<u32> {
        self.labels.iter().map(|label| label.label).collect()
    }

    /// `Σ log p` of the labels.
    pub fn score(&self) -> f64 {
        self.labels.iter().map(|label| label.log_prob).sum()
    }

    /// `Σ` of the labels' raw scores.
    pub fn logits(&self) -> f64 {
        self.labels.iter().map(|label| f64::from(label.logit)).sum()
    }
}

/// Labels of a batch: rows of one array `[B, capacity]` with a length each, which doubles when a row is full.
#[derive(Debug, Clone, Default)]
pub struct Hypotheses {
    labels: Vec<DecodedToken>,
    capacity: usize,
    rows: Vec<HypothesisRow>,
    steps: Vec<Vec<DecodingStep>>,
}

#[derive(Debug, Clone, Copy, Default)]
struct HypothesisRow {
    len: usize,
    end: usize,
    capped: bool,
}

impl Hypotheses {
    /// Forgets everything and has so many empty rows, with steps recorded or not; memory stays.
    pub(crate) fn reset(&mut self, rows: usize, steps: bool) {
        self.rows.clear();
        self.rows.resize(rows, HypothesisRow::default());
        let needed = rows * self.capacity;
        if self.labels.len() < needed {
            self.labels.resize(needed, DecodedToken::default());
        }
        self.steps.iter_mut().for_each(Vec::clear);
        self.steps.resize(if steps { rows } else { 0 }, Vec::new());
    }

    pub(crate) fn push(&mut self, row: usize, label: DecodedToken) {
        if self.rows[row].len == self.capacity {
            self.grow();
        }
        self.labels[row * self.capacity + self.rows[row].len] = label;
        self.rows[row].len += 1;
    }

    fn grow(&mut self) {
        let capacity = (2 * self.capacity).max(16);
        let mut labels = vec![DecodedToken::default(); capacity * self.rows.len()];
        for (at, row) in self.rows.iter().enumerate() {
            let old = &self.labels[at * self.capacity..][..row.len];
            labels[at * capacity..][..row.len].copy_from_slice(old);
        }
        (self.labels, self.capacity) = (labels, capacity);
    }

    pub(crate) fn step(&mut self, row: usize, step: DecodingStep) {
        if let Some(steps) = self.steps.get_mut(row) {
            steps.push(step);
        }
    }

    pub(crate) fn end(&mut self, row: usize, end: usize, capped: bool) {
        (self.rows[row].end, self.rows[row].capped) = (end, capped);
    }

    /// Number of utterances.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is no utterance.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The labels of an utterance.
    ///
    /// # Panics
    /// Here and below: if there is no such utterance.
    pub fn labels(&self, utterance: usize) -> &[DecodedToken] {
        &self.labels[utterance * self.capacity..][..self.rows[utterance].len]
    }

    /// Where the search left an utterance: see [`Hypothesis::end`].
    pub fn end_frame(&self, utterance: usize) -> usize {
        self.rows[utterance].end
    }

    /// Whether an utterance has as many labels as it may have: see [`Hypothesis::is_capped`].
    pub fn is_capped(&self, utterance: usize) -> bool {
        self.rows[utterance].capped
    }

    /// Every decision about an utterance, blanks included, if they were asked for.
    pub fn steps(&self, utterance: usize) -> &[DecodingStep] {
        self.steps.get(utterance).map_or(&[], Vec::as_slice)
    }

    /// An utterance for itself.
    pub fn get(&self, utterance: usize) -> Hypothesis {
        let HypothesisRow { end, capped: is_capped, .. } = self.rows[utterance];
        Hypothesis { labels: self.labels(utterance).to_vec(), end, is_capped }
    }

    /// All utterances.
    pub fn iter(&self) -> impl Iterator<Item = Hypothesis> + '_ {
        (0..self.len()).map(|utterance| self.get(utterance))
    }
}
