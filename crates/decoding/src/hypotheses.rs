//! Results of greedy search and CTC decoding: labels with their frames.
//!
//! Frames are encoder frames. A search emits a label at a site: a frame after the labels so far.

/// A decoded label with its frame and scores.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DecodedToken {
    /// The label.
    pub label: u32,
    /// The frame that emits it, counted over all chunks.
    pub frame: usize,
    /// Frames that it advances: its duration; 0 in the regular topology, 1 in the modified one.
    pub duration: usize,
    /// Natural log-probability among all classes at its site.
    pub log_prob: f64,
    /// Natural log-probability of its duration among the durations; 0 without durations.
    pub duration_log_prob: f64,
    /// Score (logit) of the joint at its site.
    pub logit: f32,
    /// Weighted sum of the fusion scores.
    pub fused: f32,
    /// Confidence in [0, 1]; 1 unless [`Confidence`](crate::Confidence) was requested.
    pub confidence: f64,
}

/// A decision of a search: a label or a blank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct DecodingStep {
    /// The frame, counted over all chunks.
    pub frame: usize,
    /// The class.
    pub class: u32,
    /// Its natural log-probability among all classes.
    pub log_prob: f64,
    /// Frames that the class advances.
    ///
    /// After a label that advances by 0 and is the last that its frame may emit, the search
    /// still continues with the next frame.
    pub frames: usize,
}

/// Decoded labels of one utterance.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Hypothesis {
    /// Labels in order of time.
    pub labels: Vec<DecodedToken>,
    /// Frame at which the search ended.
    ///
    /// The number of frames, or more if the last class advances beyond the end; less only if
    /// [`Self::is_capped`].
    pub end_frame: usize,
    /// Whether the limit on the labels of an utterance ended the search.
    pub is_capped: bool,
}

impl Hypothesis {
    /// Label ids.
    pub fn ids(&self) -> Vec<u32> {
        self.labels.iter().map(|label| label.label).collect()
    }

    /// Sum of the labels' [`DecodedToken::log_prob`].
    ///
    /// It does not include blanks, durations and fusion scores.
    pub fn score(&self) -> f64 {
        self.labels.iter().map(|label| label.log_prob).sum()
    }

    /// Sum of the labels' [`DecodedToken::logit`].
    pub fn logit_sum(&self) -> f64 {
        self.labels.iter().map(|label| f64::from(label.logit)).sum()
    }
}

/// Labels for which a row of [`Hypotheses`] has space initially.
const MIN_CAPACITY: usize = 16;

/// Decoded labels of a batch.
///
/// A row has the labels of one utterance. The rows of all B utterances are in one array
/// `[B, capacity]` with a length per row; the capacity doubles when a row is full.
#[derive(Debug, Clone, Default)]
pub struct Hypotheses {
    labels: Vec<DecodedToken>,
    /// Labels for which a row has space.
    capacity: usize,
    rows: Vec<HypothesisRow>,
    /// Decisions of each row; empty unless they are recorded.
    steps: Vec<Vec<DecodingStep>>,
}

/// Sizes and end of the result of one utterance.
#[derive(Debug, Clone, Copy, Default)]
struct HypothesisRow {
    /// Number of labels.
    len: usize,
    /// [`Hypothesis::end_frame`].
    end_frame: usize,
    /// [`Hypothesis::is_capped`].
    is_capped: bool,
}

impl Hypotheses {
    /// Removes all labels and sets the number of rows; memory is kept.
    pub(crate) fn reset(&mut self, rows: usize, record_steps: bool) {
        self.rows.clear();
        self.rows.resize(rows, HypothesisRow::default());
        let min_len = rows * self.capacity;
        if self.labels.len() < min_len {
            self.labels.resize(min_len, DecodedToken::default());
        }
        self.steps.iter_mut().for_each(Vec::clear);
        self.steps.resize(if record_steps { rows } else { 0 }, Vec::new());
    }

    /// Appends a label to a row.
    pub(crate) fn push(&mut self, row: usize, label: DecodedToken) {
        if self.rows[row].len == self.capacity {
            self.grow();
        }
        self.labels[row * self.capacity + self.rows[row].len] = label;
        self.rows[row].len += 1;
    }

    /// Doubles the capacity of all rows.
    fn grow(&mut self) {
        let capacity = (2 * self.capacity).max(MIN_CAPACITY);
        let mut labels = vec![DecodedToken::default(); capacity * self.rows.len()];
        for (index, row) in self.rows.iter().enumerate() {
            let old_labels = &self.labels[index * self.capacity..][..row.len];
            labels[index * capacity..][..row.len].copy_from_slice(old_labels);
        }
        (self.labels, self.capacity) = (labels, capacity);
    }

    /// Records a decision, if decisions are recorded.
    pub(crate) fn record_step(&mut self, row: usize, step: DecodingStep) {
        if let Some(steps) = self.steps.get_mut(row) {
            steps.push(step);
        }
    }

    /// Sets [`Hypothesis::end_frame`] and [`Hypothesis::is_capped`] of a row.
    pub(crate) fn set_end(&mut self, row: usize, end_frame: usize, is_capped: bool) {
        (self.rows[row].end_frame, self.rows[row].is_capped) = (end_frame, is_capped);
    }

    /// Number of utterances.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Labels of an utterance.
    ///
    /// # Panics
    /// If there is no such utterance, as in the methods below.
    pub fn labels(&self, utterance: usize) -> &[DecodedToken] {
        &self.labels[utterance * self.capacity..][..self.rows[utterance].len]
    }

    /// [`Hypothesis::end_frame`] of an utterance.
    pub fn end_frame(&self, utterance: usize) -> usize {
        self.rows[utterance].end_frame
    }

    /// [`Hypothesis::is_capped`] of an utterance.
    pub fn is_capped(&self, utterance: usize) -> bool {
        self.rows[utterance].is_capped
    }

    /// Decisions of an utterance, blanks included, if they were recorded.
    pub fn steps(&self, utterance: usize) -> &[DecodingStep] {
        self.steps.get(utterance).map_or(&[], Vec::as_slice)
    }

    /// Copies the result of one utterance.
    pub fn get(&self, utterance: usize) -> Hypothesis {
        let HypothesisRow { end_frame, is_capped, .. } = self.rows[utterance];
        Hypothesis { labels: self.labels(utterance).to_vec(), end_frame, is_capped }
    }

    /// Iterates over the results of all utterances.
    pub fn iter(&self) -> impl Iterator<Item = Hypothesis> + '_ {
        (0..self.len()).map(|utterance| self.get(utterance))
    }
}
