//! `DecodingModel`: predictor, joint network and token table of a transducer.
use std::sync::Arc;

use rnnt_dp::Topology;

use crate::class_mask::MaskedJoint;
use crate::{ClassMask, JointScorer, NetworkScratch, Predictor, Result, States, TokenTable};

/// Predictor, joint network and token table of a transducer.
#[derive(Clone)]
pub struct DecodingModel {
    predictor: Arc<dyn Predictor>,
    joint: Arc<dyn JointScorer>,
    token_table: TokenTable,
    /// Predictor state (one row) and label row before any label.
    start: (States, Vec<f32>),
    fingerprint: u64,
}

impl std::fmt::Debug for DecodingModel {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.debug_struct("DecodingModel")
            .field("token_table", &self.token_table)
            .field("width", &self.frame_width())
            .finish()
    }
}

impl DecodingModel {
    /// Creates a model whose classes advance as the tokens of `topology` do.
    ///
    /// `big_blanks` are the classes of the topology's big blanks, in order.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if the widths of predictor and joint differ, or the
    /// predictor has fewer ids than there are labels; those of [`TokenTable::new`].
    pub fn new(
        predictor: Arc<dyn Predictor>,
        joint: Arc<dyn JointScorer>,
        blank: u32,
        big_blanks: &[u32],
        topology: &Topology,
    ) -> Result<Self> {
        let token_table = TokenTable::new(joint.classes(), blank, big_blanks, topology)?;
        if predictor.width() != joint.prediction_width() {
            let expected = format!("rows of {}, as the predictor's", predictor.width());
            return Err(crate::Error::shape("joint", expected, joint.prediction_width()));
        }
        if joint.durations() != topology.num_durations() {
            let expected = format!("{} durations, as the topology has", topology.num_durations());
            return Err(crate::Error::shape("joint", expected, joint.durations()));
        }
        let last_label = (0..joint.classes() as u32).rev().find(|&class| !token_table.is_blank(class));
        if let Some(label) = last_label.filter(|&label| label as usize >= predictor.label_ids()) {
            return Err(crate::Error::shape(
                "predictor",
                format!("more than {label} ids"),
                predictor.label_ids(),
            ));
        }
        let (states, predicted) = predictor.start();
        let mut label_row = vec![0.0; joint.label_row_width()];
        joint.project(&predicted, &mut label_row, &mut NetworkScratch::default());
        let fingerprint = model_fingerprint(&*predictor, &*joint, &token_table, &states, &label_row);
        Ok(Self { predictor, joint, token_table, start: (states, label_row), fingerprint })
    }

    /// Restricts the labels that searches may emit.
    ///
    /// Scores, log-probabilities and confidences are then those of the distribution over the
    /// allowed classes; see [`ClassMask`].
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for a mask that does not fit; see
    /// [`ClassMask::check`].
    pub fn with_mask(&self, mask: &ClassMask) -> Result<Self> {
        let joint: Arc<dyn JointScorer> =
            Arc::new(MaskedJoint::new(self.joint.clone(), &self.token_table, mask)?);
        let (states, label_row) = self.start();
        let fingerprint = model_fingerprint(&*self.predictor, &*joint, &self.token_table, states, label_row);
        Ok(Self { joint, fingerprint, ..self.clone() })
    }

    /// The predictor.
    pub fn predictor(&self) -> &Arc<dyn Predictor> {
        &self.predictor
    }

    /// The joint network.
    pub fn joint(&self) -> &Arc<dyn JointScorer> {
        &self.joint
    }

    /// Blanks, labels and durations of the classes.
    pub fn token_table(&self) -> &TokenTable {
        &self.token_table
    }

    /// Width of the frame rows that searches take.
    pub fn frame_width(&self) -> usize {
        self.joint.frame_width()
    }

    /// Predictor state (one row) and label row before any label.
    pub fn start(&self) -> (&States, &[f32]) {
        (&self.start.0, &self.start.1)
    }

    /// Hash of the model; the state of a stream contains it.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Width of a row of scores: classes C, then durations D.
    pub(crate) fn outputs(&self) -> usize {
        self.joint.classes() + self.joint.durations()
    }

    /// Advances each hypothesis by one label and writes its label row.
    ///
    /// `predicted` is scratch memory for the predictor's output.
    pub(crate) fn step(
        &self,
        labels: &[u32],
        states: &mut States,
        rows: &mut [f32],
        predicted: &mut Vec<f32>,
        scratch: &mut NetworkScratch,
    ) {
        let predicted = crate::affine::resized(predicted, labels.len() * self.predictor.width());
        self.predictor.step(labels, states, predicted, scratch);
        self.joint.project(predicted, rows, scratch);
    }
}

/// Initial value of the FNV-1a hash with 64 bits.
const FNV_OFFSET_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
/// Factor of the FNV-1a hash with 64 bits.
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// FNV-1a over token table, start state, a predictor step and scores.
fn model_fingerprint(
    predictor: &dyn Predictor,
    joint: &dyn JointScorer,
    token_table: &TokenTable,
    states: &States,
    label_row: &[f32],
) -> u64 {
    let mut words: Vec<u32> = Vec::new();
    let mut add_words = |values: &[f32]| words.extend(values.iter().map(|value| value.to_bits()));
    // Scores of a synthetic frame at the start.
    let frame: Vec<f32> = (0..joint.frame_width()).map(|i| (i as f32 + 1.0).sin()).collect();
    let mut scores = vec![0.0; joint.classes() + joint.durations()];
    let (mut scratch, site) =
        (NetworkScratch::default(), [crate::SiteIndex { utterance: 0, frame: 0, label_row: 0 }]);
    joint.scores(
        &crate::SiteBatch { frames: &[&frame], label_rows: label_row, sites: &site },
        &mut scores,
        &mut scratch,
    );
    add_words(&scores);
    add_words(label_row);
    add_words(states.values());
    // A predictor step on the last label.
    if let Some(label) = (0..joint.classes() as u32).rev().find(|&class| !token_table.is_blank(class)) {
        let (mut states, mut predicted) = (states.clone(), vec![0.0; predictor.width()]);
        predictor.step(&[label], &mut states, &mut predicted, &mut scratch);
        add_words(&predicted);
        add_words(states.values());
        words.extend(states.labels());
    }
    words.extend(states.labels());
    words.extend(token_table.fingerprint_words());
    words.into_iter().fold(FNV_OFFSET_BASIS, |hash, word| (hash ^ u64::from(word)).wrapping_mul(FNV_PRIME))
}
