//! Alignments of a loss session compared with best paths of dense scores.
//!
//! The reference computes the emissions of every site from the definition, in `f64`.
use rnnt_dp::{Regularizers, best_path, confidences, expected_emission_frames, forward_backward};
use rnnt_loss::{
    Error, Head, JointInputs, Layout, Loss, Options, Plan, Session, Targets, TokenNormalization, Topology,
};

/// Deterministic pseudo-random numbers.
fn pseudo_random(count: usize, step: f64, scale: f64) -> Vec<f64> {
    (0..count).map(|i| scale * (step * (i * i + 3 * i + 1) as f64).sin()).collect()
}

/// Width of the joint network.
const HIDDEN: usize = 5;
/// Number of classes.
const CLASSES: usize = 6;
/// Class id of the blank.
const BLANK: usize = 2;

/// Inputs of a packed batch, and weights of the heads.
struct Case {
    /// Projected encoder rows.
    frames: Vec<f64>,
    /// Projected predictor rows.
    labels: Vec<f64>,
    /// Weight of the token head.
    head: Vec<f64>,
    /// Weight of the duration head.
    durations: Vec<f64>,
    /// Bias of the token head.
    bias: Vec<f64>,
    targets: Targets,
}

impl Case {
    /// T = 4, 2, 6 and U = 2, 3, 0; with one label per frame, the second has no path.
    fn new() -> Self {
        let targets = Targets::new(BLANK as u32, vec![4, 2, 6], vec![vec![1, 5], vec![3, 3, 0], vec![]]);
        Self {
            frames: pseudo_random(12 * HIDDEN, 0.7, 1.5),
            labels: pseudo_random(8 * HIDDEN, 1.1, 1.5),
            head: pseudo_random(CLASSES * HIDDEN, 0.3, 1.0),
            durations: pseudo_random(3 * HIDDEN, 0.9, 1.0),
            bias: pseudo_random(CLASSES, 2.3, 0.5),
            targets: targets.unwrap(),
        }
    }

    /// Emissions of all sites by the definition.
    ///
    /// `tokens` returns the log-probabilities of the blank and the next label.
    fn emissions(
        &self,
        tokens: impl Fn(&[f64], Option<usize>) -> [f64; 2],
        with_durations: bool,
    ) -> Vec<f64> {
        let scores = |h: &[f64], weight: &[f64], bias: &[f64]| -> Vec<f64> {
            let rows = weight.chunks(HIDDEN).zip(bias);
            rows.map(|(row, bias)| row.iter().zip(h).map(|(w, h)| w * h).sum::<f64>() + bias).collect()
        };
        let (mut out, mut first_frame, mut first_label) = (Vec::new(), 0, 0);
        for b in 0..self.targets.batch() {
            let labels = self.targets.labels(b);
            for site in self.targets.lattices().utterance_sites(b) {
                let frame_row = &self.frames[(first_frame + site.frame) * HIDDEN..][..HIDDEN];
                let label_row = &self.labels[(first_label + site.label) * HIDDEN..][..HIDDEN];
                let h: Vec<f64> = frame_row.iter().zip(label_row).map(|(f, g)| (f + g).tanh()).collect();
                let next = labels.get(site.label).map(|&label| label as usize);
                out.extend(tokens(&scores(&h, &self.head, &self.bias), next));
                if with_durations {
                    let z = scores(&h, &self.durations, &[0.0; 3]);
                    out.extend((0..3).map(|d| z[d] - log_sum(&z)));
                }
            }
            first_frame += self.targets.frames(b);
            first_label += labels.len() + 1;
        }
        out
    }

    fn joint(&self) -> JointInputs<'_, f64> {
        JointInputs::new(&self.frames, &self.labels, Head::new(&self.head, Some(&self.bias), HIDDEN).unwrap())
    }

    /// Compares the alignments of a session with best paths of emissions.
    fn check(&self, emissions: &[f64], durations: Option<Head<f64>>, options: &Options) {
        let (lattices, topology) = (self.targets.lattices(), options.loss.topology().unwrap());
        let joint = JointInputs { durations, ..self.joint() };
        let alignments = Session::new(options).unwrap().align(&joint, &self.targets).unwrap();
        let posterior = forward_backward(lattices, topology, emissions, &Regularizers::default()).unwrap();
        let paths = best_path(lattices, topology, emissions).unwrap();
        let confidences = confidences(lattices, topology, &posterior.adjoints, &paths).unwrap();
        let expected = expected_emission_frames(lattices, topology, &posterior.adjoints).unwrap();
        assert!(alignments.iter().any(Option::is_some));
        for (b, alignment) in alignments.iter().enumerate() {
            assert_eq!(alignment.is_some(), posterior.losses[b].is_finite());
            let Some(alignment) = alignment else { continue };
            assert!((alignment.loss - posterior.losses[b]).abs() < 1e-12);
            assert!((alignment.log_prob - paths[b].log_prob).abs() < 1e-12);
            let steps: Vec<_> = paths[b].label_steps(topology).collect();
            assert_eq!(
                (alignment.labels.len(), steps.len()),
                (confidences[b].len(), self.targets.labels(b).len())
            );
            for (u, token) in alignment.labels.iter().enumerate() {
                assert_eq!((token.label, token.frame), (self.targets.labels(b)[u], steps[u].site.frame));
                assert!((token.log_prob - steps[u].log_prob).abs() < 1e-12);
                assert!((token.confidence - confidences[b][u]).abs() < 1e-12);
                assert!((token.expected_frame - expected[b][u]).abs() < 1e-11);
            }
        }
    }
}

fn log_sum(z: &[f64]) -> f64 {
    z.iter().map(|z| z.exp()).sum::<f64>().ln()
}

/// Log-probabilities of blank and next label; -1 if there is no next label.
fn softmax(z: &[f64], next: Option<usize>) -> [f64; 2] {
    [z[BLANK] - log_sum(z), next.map_or(-1.0, |next| z[next] - log_sum(z))]
}

#[test]
fn alignments_match_best_paths_of_dense_scores() {
    let mut case = Case::new();
    // Groups of one utterance, regularizers and token weights change nothing.
    case.targets = case.targets.with_token_weights(vec![vec![0.5, 2.0], vec![3.0; 3], vec![]]).unwrap();
    let plan = Plan::custom(1, 1, 4, 1, 0);
    for topology in [Topology::rnnt(), Topology::modified(), Topology::constrained()] {
        let plain = Options::new(Loss::with_topology(topology));
        case.check(&case.emissions(softmax, false), None, &plain);
        let grouped = Options { plan: Some(plan), fastemit: 0.3, delay_penalty: 0.1, skip: 0.5, ..plain };
        case.check(&case.emissions(softmax, false), None, &grouped);
        let with_z_loss = Options { skip: 0.0, z_loss: 0.1, ..grouped };
        case.check(&case.emissions(softmax, false), None, &with_z_loss);
    }
}

#[test]
fn durations_and_factored_blanks_are_supported() {
    let case = Case::new();
    let durations = Head::new(&case.durations, None, HIDDEN).unwrap();
    let topology = Topology::tdt(&[0, 1, 2]).unwrap();
    let options = Options::new(Loss::Tdt { topology, sigma: 0.1, omega: 0.2 });
    case.check(&case.emissions(softmax, true), Some(durations), &options);

    let factored = |z: &[f64], next: Option<usize>| {
        let label_scores: Vec<f64> = (0..CLASSES).filter(|&c| c != BLANK).map(|c| z[c]).collect();
        let sigmoid = |z: f64| -(-z).exp().ln_1p();
        let label = |next: usize| sigmoid(-z[BLANK]) + z[next] - log_sum(&label_scores);
        [sigmoid(z[BLANK]), next.map_or(-1.0, label)]
    };
    let (topology, tokens) = (Topology::rnnt(), TokenNormalization::FactoredBlank);
    for sigma in [0.0, 0.3] {
        let options = Options::new(Loss::Transducer { topology: topology.clone(), tokens, sigma });
        case.check(&case.emissions(factored, false), None, &options);
    }
}

#[test]
fn alignments_do_not_depend_on_padding_and_batch() {
    let case = Case::new();
    let session = Session::new(&Options::new(Loss::with_topology(Topology::modified()))).unwrap();
    let packed = session.align(&case.joint(), &case.targets).unwrap();
    let (mut frames, mut labels) = (vec![f64::NAN; 3 * 7 * HIDDEN], vec![f64::NAN; 3 * 5 * HIDDEN]);
    for (b, (first_frame, first_label)) in [(0, 0), (4, 3), (6, 7)].into_iter().enumerate() {
        let frames_len = case.targets.frames(b) * HIDDEN;
        let labels_len = (case.targets.labels(b).len() + 1) * HIDDEN;
        let utterance_frames = &case.frames[first_frame * HIDDEN..][..frames_len];
        let utterance_labels = &case.labels[first_label * HIDDEN..][..labels_len];
        frames[b * 7 * HIDDEN..][..frames_len].copy_from_slice(utterance_frames);
        labels[b * 5 * HIDDEN..][..labels_len].copy_from_slice(utterance_labels);
        let frame_counts = vec![case.targets.frames(b)];
        let targets =
            Targets::new(BLANK as u32, frame_counts, vec![case.targets.labels(b).to_vec()]).unwrap();
        let joint = JointInputs::new(utterance_frames, utterance_labels, case.joint().head);
        assert_eq!(session.align(&joint, &targets).unwrap()[0], packed[b]);
    }
    let layout = Layout::Padded { frames: 7, positions: 5 };
    let joint = JointInputs::new(&frames, &labels, case.joint().head).with_layout(layout);
    let padded = session.align(&joint, &case.targets).unwrap();
    assert_eq!(padded, packed);
    assert!(packed[1].is_none() && packed[2].as_ref().unwrap().labels.is_empty());
}

#[test]
fn invalid_inputs_are_errors() {
    let case = Case::new();
    let run = |encoded: &[f64], durations: Option<Head<f64>>, loss: Loss| {
        let joint = JointInputs { encoded, durations, ..case.joint() };
        Session::new(&Options::new(loss))?.align(&joint, &case.targets)
    };
    let short = run(&case.frames[1..], None, Loss::rnnt());
    assert!(matches!(short, Err(Error::Shape { argument: "encoded", .. })));
    let narrow = Head::new(&case.durations[..3 * 3], None, 3).unwrap();
    let error = run(&case.frames, Some(narrow), Loss::tdt(&[0, 1, 2]).unwrap());
    assert!(matches!(error, Err(Error::Shape { argument: "durations", .. })));
    let error = run(&case.frames, None, Loss::tdt(&[0, 1, 2]).unwrap());
    assert!(matches!(error, Err(Error::Durations { expected: 3, found: 0 })));
    let error = run(&case.frames, None, Loss::with_topology(Topology::tdt(&[0, 1, 2]).unwrap()));
    assert!(matches!(error, Err(Error::Columns { expected: 2, found: 5, .. })));
    assert!(matches!(run(&case.frames, None, Loss::Ctc), Err(Error::Inputs { .. })));
    let mut frames = case.frames.clone();
    frames[5 * HIDDEN] = f64::NAN;
    let error = run(&frames, None, Loss::rnnt()).unwrap_err();
    assert!(matches!(error, Error::Scores { utterance: 1, frame: 1, .. }), "{error}");
}
