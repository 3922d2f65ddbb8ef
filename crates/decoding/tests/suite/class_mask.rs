//! Tests of class masks: a masked model decodes as a model without the forbidden classes.
use std::sync::Arc;

use decoding::{
    Activation, AffineLayer, BeamKind, BeamOptions, BeamSearch, ClassMask, ClassScores, Confidence,
    CtcBeamOptions, CtcGreedySearch, DecodedToken, DecodingModel, Error, Fusion, GreedyOptions, GreedySearch,
    JointNetwork, JointScorer, NetworkScratch, Predictor, PredictorActivation, SiteBatch, StatelessPredictor,
    States, ctc_beam, greedy,
};
use rnnt_dp::Topology;

use super::ctc::random_log_probs;
use super::table_models::{frames, random_model};

/// Number of classes of the test models.
const CLASSES: usize = 8;

/// A predictor whose labels are some of another one's.
struct CompactPredictor {
    predictor: Arc<dyn Predictor>,
    /// The label of the other predictor for each label.
    kept: Vec<u32>,
}

impl Predictor for CompactPredictor {
    fn width(&self) -> usize {
        self.predictor.width()
    }
    fn label_ids(&self) -> usize {
        self.kept.len()
    }
    fn context(&self) -> usize {
        self.predictor.context()
    }
    fn start(&self) -> (States, Vec<f32>) {
        self.predictor.start()
    }
    fn step(&self, labels: &[u32], states: &mut States, out: &mut [f32], scratch: &mut NetworkScratch) {
        let labels: Vec<u32> = labels.iter().map(|&label| self.kept[label as usize]).collect();
        self.predictor.step(&labels, states, out, scratch);
    }
}

/// A joint network whose classes are some of another one's.
struct CompactJoint {
    joint: Arc<dyn JointScorer>,
    /// The class of the other network for each class.
    kept: Vec<u32>,
    blank: u32,
}

impl CompactJoint {
    /// Copies the columns of the kept classes, and of the durations.
    fn copy_columns(&self, rows: &[f32], durations: usize, out: &mut [f32]) {
        let rows = rows.chunks_exact(self.joint.classes() + durations);
        for (out, row) in out.chunks_exact_mut(self.kept.len() + durations).zip(rows) {
            let columns = self.kept.iter().map(|&class| row[class as usize]);
            let columns = columns.chain(row[self.joint.classes()..].iter().copied());
            out.iter_mut().zip(columns).for_each(|(out, score)| *out = score);
        }
    }
}

impl JointScorer for CompactJoint {
    fn frame_width(&self) -> usize {
        self.joint.frame_width()
    }
    fn prediction_width(&self) -> usize {
        self.joint.prediction_width()
    }
    fn label_row_width(&self) -> usize {
        self.joint.label_row_width()
    }
    fn classes(&self) -> usize {
        self.kept.len()
    }
    fn durations(&self) -> usize {
        self.joint.durations()
    }
    fn project(&self, predicted: &[f32], rows: &mut [f32], scratch: &mut NetworkScratch) {
        self.joint.project(predicted, rows, scratch);
    }
    fn scores(&self, sites: &SiteBatch, out: &mut [f32], scratch: &mut NetworkScratch) {
        let mut rows = vec![0.0; sites.sites.len() * (self.joint.classes() + self.durations())];
        self.joint.scores(sites, &mut rows, scratch);
        self.copy_columns(&rows, self.durations(), out);
    }
    fn has_internal_lm(&self) -> bool {
        self.joint.has_internal_lm()
    }
    fn internal_lm(&self, rows: &[f32], out: &mut [f32], scratch: &mut NetworkScratch) {
        let mut all = vec![0.0; rows.len() / self.label_row_width() * self.joint.classes()];
        self.joint.internal_lm(rows, &mut all, scratch);
        self.copy_columns(&all, 0, out);
        for row in out.chunks_exact_mut(self.kept.len()) {
            let labels = (0..self.kept.len()).filter(|&class| class != self.blank as usize);
            let sum: f64 = labels.clone().map(|class| f64::from(row[class]).exp()).sum();
            labels.for_each(|class| row[class] -= sum.ln() as f32);
        }
    }
}

/// A model with a mask, and the model without the forbidden classes.
struct Case {
    name: &'static str,
    model: DecodingModel,
    mask: ClassMask,
    compact: DecodingModel,
    /// Class of the model for each class of the compact one.
    kept: Vec<u32>,
    /// Frame rows of an utterance.
    rows: Vec<f32>,
}

impl Case {
    fn new(
        name: &'static str,
        model: DecodingModel,
        topology: &Topology,
        forbidden: &[u32],
        rows: Vec<f32>,
    ) -> Self {
        let is_allowed: Vec<bool> = (0..CLASSES as u32).map(|class| !forbidden.contains(&class)).collect();
        let kept: Vec<u32> = (0..CLASSES as u32).filter(|class| !forbidden.contains(class)).collect();
        let position = |class: u32| kept.iter().position(|&other| other == class).unwrap() as u32;
        let blanks: Vec<u32> = model.token_table().blanks().map(position).collect();
        let predictor = CompactPredictor { predictor: model.predictor().clone(), kept: kept.clone() };
        let joint = CompactJoint { joint: model.joint().clone(), kept: kept.clone(), blank: blanks[0] };
        let compact =
            DecodingModel::new(Arc::new(predictor), Arc::new(joint), blanks[0], &blanks[1..], topology);
        Case { name, model, mask: ClassMask::new(&is_allowed), compact: compact.unwrap(), kept, rows }
    }

    fn masked(&self) -> DecodingModel {
        self.model.with_mask(&self.mask).unwrap()
    }

    /// Scores of classes for the model, and for the compact one.
    fn fusions(&self) -> [Vec<Fusion>; 2] {
        let scores: Vec<f32> = (0..CLASSES).map(|class| (class as f32 * 2.3).sin()).collect();
        let compact = self.kept.iter().map(|&class| scores[class as usize]).collect();
        [scores, compact]
            .map(|scores| vec![Fusion { scorer: Arc::new(ClassScores::new(scores).unwrap()), weight: 0.8 }])
    }

    /// Asserts that both models have the same labels.
    fn assert_equal_labels(&self, masked: &[DecodedToken], compact: &[DecodedToken]) {
        let context = |what: &str| format!("{}: {what}: {masked:?} {compact:?}", self.name);
        assert_eq!(masked.len(), compact.len(), "{}", context("labels"));
        for (masked, compact) in masked.iter().zip(compact) {
            assert_eq!(masked.label, self.kept[compact.label as usize], "{}", context("label"));
            assert_eq!(
                (masked.frame, masked.duration),
                (compact.frame, compact.duration),
                "{}",
                context("frame")
            );
            assert_eq!((masked.logit, masked.fused), (compact.logit, compact.fused), "{}", context("score"));
            for (masked, compact) in [
                (masked.log_prob, compact.log_prob),
                (masked.duration_log_prob, compact.duration_log_prob),
                (masked.confidence, compact.confidence),
            ] {
                assert!((masked - compact).abs() < 1e-5, "{}", context("log-probability"));
            }
        }
    }
}

/// RNN-T, modified, TDT and multi-blank models, and one with a factored blank.
fn cases(seed: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for (name, topology, blank, big_blanks, forbidden) in [
        ("rnnt", Topology::rnnt(), 7, &[][..], &[0, 3, 4][..]),
        ("modified", Topology::modified(), 2, &[], &[7, 1]),
        ("tdt", Topology::tdt(&[0, 1, 3]).unwrap(), 7, &[], &[5, 6]),
        ("multi-blank", Topology::multi_blank(&[2, 3]).unwrap(), 5, &[6, 7], &[1, 2, 3]),
    ] {
        let model = random_model(&topology, CLASSES, blank, big_blanks, seed, 5.0);
        cases.push(Case::new(name, model, &topology, forbidden, frames(0, 30)));
    }
    cases.push(factored_blank_case(seed));
    cases
}

/// A stateless predictor and a joint network with a factored blank.
fn factored_blank_case(seed: u32) -> Case {
    const WIDTH: usize = 4;
    let numbers = |count: usize, step: f32| -> Vec<f32> {
        (0..count).map(|i| 1.5 * ((i * i + 1) as f32 * step + seed as f32).sin()).collect()
    };
    let predictor = StatelessPredictor::new(
        (&numbers(CLASSES * WIDTH, 0.31), WIDTH),
        &numbers(WIDTH * WIDTH, 0.77),
        &numbers(WIDTH, 0.13),
        &[0],
        PredictorActivation::Tanh,
    );
    let layer = |outputs: usize, step: f32| {
        let bias = numbers(outputs, step + 1.0);
        AffineLayer::new("layer", &numbers(outputs * WIDTH, step), WIDTH, Some(&bias)).unwrap()
    };
    let joint = JointNetwork::new(Activation::Tanh, None, layer(WIDTH, 0.21), layer(CLASSES, 0.57), 0);
    let joint = joint.unwrap().with_factored_blank(0).unwrap();
    let topology = Topology::rnnt();
    let model = DecodingModel::new(Arc::new(predictor.unwrap()), Arc::new(joint), 0, &[], &topology).unwrap();
    Case::new("factored blank", model, &topology, &[2, 3, 7], numbers(30 * WIDTH, 0.37))
}

#[test]
fn greedy_search_is_that_of_the_model_without_the_forbidden_classes() {
    let mut num_changed = 0;
    for case in (0..12).flat_map(cases) {
        let internal_lm = if case.model.joint().has_internal_lm() { 0.4 } else { 0.0 };
        let [fusion, compact_fusion] = case.fusions();
        for (fusion, compact_fusion, internal_lm) in
            [(vec![], vec![], 0.0), (fusion, compact_fusion, internal_lm)]
        {
            let options = GreedyOptions {
                fusion,
                internal_lm,
                max_symbols: Some(3),
                confidence: Some(Confidence::default()),
                ..GreedyOptions::default()
            };
            let compact_options = GreedyOptions { fusion: compact_fusion, ..options.clone() };
            let mut search = GreedySearch::new(case.masked(), options.clone()).unwrap();
            let masked = search.decode(&[&case.rows]).unwrap().get(0);
            let mut compact = GreedySearch::new(case.compact.clone(), compact_options).unwrap();
            let expected = compact.decode(&[&case.rows]).unwrap().get(0);
            case.assert_equal_labels(&masked.labels, &expected.labels);
            assert_eq!(masked.end_frame, expected.end_frame);
            let reference = greedy(&case.masked(), &case.rows, &options).unwrap();
            case.assert_equal_labels(&reference.labels, &expected.labels);
            // Without a mask, the search emits a forbidden label in most cases.
            let mut unmasked = GreedySearch::new(case.model.clone(), options).unwrap();
            let unmasked = unmasked.decode(&[&case.rows]).unwrap();
            num_changed += usize::from(unmasked.labels(0).iter().any(|label| !case.mask.allows(label.label)));
            // A stream.
            let (mut stream, mut labels) = (search.stream(), Vec::new());
            for chunk in case.rows.chunks(7 * case.model.frame_width()) {
                labels.extend_from_slice(search.advance(&mut [&mut stream], &[chunk]).unwrap().labels(0));
            }
            assert_eq!(labels, masked.labels, "{}", case.name);
        }
    }
    assert!(num_changed > 60, "{num_changed}");
}

#[test]
fn beams_are_those_of_the_model_without_the_forbidden_classes() {
    let mut num_searches = 0;
    for case in (0..6).flat_map(cases) {
        let internal_lm = if case.model.joint().has_internal_lm() { 0.4 } else { 0.0 };
        for kind in [
            BeamKind::Modified,
            BeamKind::Alsd { max_labels: None },
            BeamKind::Malsd { max_symbols: 3 },
            BeamKind::Maes { expansions: 2, beta: 2, gamma: 2.3, prefix: 1 },
        ] {
            let [fusion, compact_fusion] = case.fusions();
            let options = BeamOptions {
                kind,
                width: 4,
                nbest: 4,
                blank_penalty: 0.2,
                temperature: 1.3,
                fusion,
                internal_lm,
                ..BeamOptions::default()
            };
            let compact_options = BeamOptions { fusion: compact_fusion, ..options.clone() };
            let Ok(mut search) = BeamSearch::new(case.masked(), options) else { continue };
            num_searches += 1;
            let masked = search.decode(&[&case.rows]).unwrap()[0].clone();
            let mut compact = BeamSearch::new(case.compact.clone(), compact_options).unwrap();
            let expected = &compact.decode(&[&case.rows]).unwrap()[0];
            assert_eq!(masked.hypotheses.len(), expected.hypotheses.len(), "{} {kind:?}", case.name);
            for (masked, expected) in masked.hypotheses.iter().zip(&expected.hypotheses) {
                case.assert_equal_labels(&masked.labels, &expected.labels);
                assert!((masked.log_prob - expected.log_prob).abs() < 1e-4, "{} {kind:?}", case.name);
            }
        }
    }
    assert_eq!(num_searches, 6 * 13);
}

#[test]
fn a_mask_of_all_classes_changes_no_bit() {
    for case in cases(3) {
        let masked = case.model.with_mask(&ClassMask::new(&[true; CLASSES])).unwrap();
        let options = GreedyOptions { confidence: Some(Confidence::default()), ..GreedyOptions::default() };
        let greedy_search = |model: &DecodingModel| {
            let mut search = GreedySearch::new(model.clone(), options.clone()).unwrap();
            search.decode(&[&case.rows]).unwrap().get(0)
        };
        assert_eq!(greedy_search(&masked), greedy_search(&case.model));
        let beam = |model: &DecodingModel| {
            let kind = BeamKind::Malsd { max_symbols: 3 };
            let mut search = BeamSearch::new(model.clone(), BeamOptions { kind, ..BeamOptions::default() });
            search.as_mut().unwrap().decode(&[&case.rows]).unwrap()[0].clone()
        };
        assert_eq!(beam(&masked), beam(&case.model));
        assert_eq!(masked.fingerprint(), case.model.fingerprint());
        assert_ne!(case.masked().fingerprint(), case.model.fingerprint());
    }
}

#[test]
fn masked_ctc_searches_are_those_of_renormalized_rows_without_the_classes() {
    let (classes, blank, kept) = (6, 5, [0u32, 2, 4, 5]);
    let mask = ClassMask::new(&[true, false, true, false, true, true]);
    for seed in 0..10 {
        let rows = random_log_probs(40, classes, seed, 4.0);
        let probabilities = |row: &[f32]| -> Vec<f64> {
            kept.iter().map(|&class| f64::from(row[class as usize]).exp()).collect()
        };
        let compact: Vec<f32> = rows
            .chunks(classes)
            .map(probabilities)
            .flat_map(|row| {
                let sum: f64 = row.iter().sum();
                row.into_iter().map(move |p| (p / sum).ln() as f32)
            })
            .collect();
        let search = CtcGreedySearch::new(classes, blank).unwrap().with_mask(mask.clone()).unwrap();
        let masked = search.decode(&[&rows]).unwrap().remove(0);
        let expected = CtcGreedySearch::new(4, 3).unwrap().decode(&[&compact]).unwrap().remove(0);
        let labels = |labels: &[DecodedToken]| -> Vec<(u32, usize)> {
            labels.iter().map(|label| (label.label, label.frame)).collect()
        };
        let mapped = |labels: &[DecodedToken]| -> Vec<(u32, usize)> {
            labels.iter().map(|label| (kept[label.label as usize], label.frame)).collect()
        };
        assert_eq!(labels(&masked.labels), mapped(&expected.labels));
        for (masked, expected) in masked.labels.iter().zip(&expected.labels) {
            assert!((masked.log_prob - expected.log_prob).abs() < 1e-5);
        }
        // A beam over renormalized rows.
        let mut masked_rows = rows.clone();
        mask.renormalize(&mut masked_rows);
        let options = CtcBeamOptions { blank, width: 6, nbest: 3, ..CtcBeamOptions::default() };
        let compact_options = CtcBeamOptions { blank: 3, ..options.clone() };
        let masked = &ctc_beam(&[&masked_rows], classes, &options).unwrap()[0];
        let expected = &ctc_beam(&[&compact], 4, &compact_options).unwrap()[0];
        for (masked, expected) in masked.hypotheses.iter().zip(&expected.hypotheses) {
            assert_eq!(labels(&masked.labels), mapped(&expected.labels));
            assert!((masked.log_prob - expected.log_prob).abs() < 1e-4);
        }
        // All classes allowed: no bit changes.
        let mut unchanged = rows.clone();
        ClassMask::new(&[true; 6]).renormalize(&mut unchanged);
        assert_eq!(unchanged, rows);
    }
}

#[test]
fn masks_that_do_not_fit_are_errors_and_invalid_scores_are_found() {
    let model = random_model(&Topology::multi_blank(&[2]).unwrap(), 4, 2, &[3], 1, 2.0);
    let error = |is_allowed: &[bool]| model.with_mask(&ClassMask::new(is_allowed)).unwrap_err().to_string();
    assert_eq!(error(&[true; 5]), "mask: expected a flag for each of 4 classes, found 5");
    assert_eq!(error(&[true, true, true, false]), "mask: expected all blanks to be allowed, found class 3");
    assert_eq!(error(&[false, false, true, true]), "mask: expected at least one allowed label, found none");
    let search = CtcGreedySearch::new(3, 0).unwrap();
    assert!(search.clone().with_mask(ClassMask::new(&[false, true, true])).is_err());

    // NaN is reported even at a forbidden class; a frame of only forbidden classes is an error.
    let search = search.with_mask(ClassMask::new(&[true, false, true])).unwrap();
    for (rows, class) in [([0.0, f32::NAN, 0.0], 1), ([0.0, f32::INFINITY, 0.0], 1)] {
        let Err(Error::Utterance { source, .. }) = search.decode(&[&rows]) else { panic!("{rows:?}") };
        assert!(matches!(*source, Error::Score { class: found, .. } if found == class), "{source}");
    }
    let rows = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    assert!(search.decode(&[&rows]).is_err());
    let masked = model.with_mask(&ClassMask::new(&[false, true, true, true])).unwrap();
    let mut search = GreedySearch::new(masked, GreedyOptions::default()).unwrap();
    assert!(matches!(search.decode(&[&[f32::NAN]]), Err(Error::Utterance { .. })));
}
