//! Against dense scores and the lattice's own functions.
use rnnt_dp::{Regularisers, Topology, forward_backward};

use super::*;

/// Numbers that look random and are always the same.
fn wave(count: usize, step: f64, scale: f64) -> Vec<f64> {
    (0..count).map(|i| scale * (step * (i * i + 3 * i + 1) as f64).sin()).collect()
}

const HIDDEN: usize = 5;
const CLASSES: usize = 6;
const BLANK: usize = 2;

struct Case {
    frames: Vec<f64>,
    labels: Vec<f64>,
    head: Vec<f64>,
    durations: Vec<f64>,
    bias: Vec<f64>,
    targets: Targets,
}

impl Case {
    /// T 4, 2, 6 and U 2, 3, 0, packed; the second has no path where a frame emits one label at most.
    fn new() -> Self {
        let targets = Targets::new(BLANK as u32, vec![4, 2, 6], vec![vec![1, 5], vec![3, 3, 0], vec![]]);
        Self {
            frames: wave(12 * HIDDEN, 0.7, 1.5),
            labels: wave(8 * HIDDEN, 1.1, 1.5),
            head: wave(CLASSES * HIDDEN, 0.3, 1.0),
            durations: wave(3 * HIDDEN, 0.9, 1.0),
            bias: wave(CLASSES, 2.3, 0.5),
            targets: targets.unwrap(),
        }
    }

    /// Columns of all sites, by the definition; log-probabilities of the blank and the next label come from `tokens`.
    fn emissions(
        &self,
        tokens: impl Fn(&[f64], Option<usize>) -> [f64; 2],
        with_durations: bool,
    ) -> Vec<f64> {
        let scores = |h: &[f64], weight: &[f64], bias: &[f64]| -> Vec<f64> {
            let rows = weight.chunks(HIDDEN).zip(bias);
            rows.map(|(row, bias)| row.iter().zip(h).map(|(w, h)| w * h).sum::<f64>() + bias).collect()
        };
        let (mut out, mut frame_row, mut label_row) = (Vec::new(), 0, 0);
        for b in 0..self.targets.batch() {
            let labels = self.targets.labels(b);
            for site in self.targets.lattices().sites_of(b) {
                let (f, g) = (frame_row + site.frame, label_row + site.label);
                let rows =
                    self.frames[f * HIDDEN..][..HIDDEN].iter().zip(&self.labels[g * HIDDEN..][..HIDDEN]);
                let h: Vec<f64> = rows.map(|(f, g)| (f + g).tanh()).collect();
                let next = labels.get(site.label).map(|&label| label as usize);
                out.extend(tokens(&scores(&h, &self.head, &self.bias), next));
                if with_durations {
                    let z = scores(&h, &self.durations, &[0.0; 3]);
                    out.extend((0..3).map(|d| z[d] - log_sum(&z)));
                }
            }
            frame_row += self.targets.frames(b);
            label_row += labels.len() + 1;
        }
        out
    }

    fn check(&self, emissions: &[f64], durations: Option<&Head<f64>>, options: &Options) {
        let head = Head::new(&self.head, Some(&self.bias), HIDDEN).unwrap();
        let (lattices, topology) = (self.targets.lattices(), &options.topology);
        let found =
            align(&self.frames, &self.labels, &head, durations, Layout::Packed, &self.targets, options)
                .unwrap();
        let posterior = forward_backward(lattices, topology, emissions, &Regularisers::default()).unwrap();
        let paths = best_path(lattices, topology, emissions).unwrap();
        let sure = confidences(lattices, topology, &posterior.adjoints, &paths).unwrap();
        let expected = expected_emission_frames(lattices, topology, &posterior.adjoints).unwrap();
        assert!(found.iter().any(Option::is_some));
        for (b, found) in found.iter().enumerate() {
            assert_eq!(found.is_some(), posterior.losses[b].is_finite());
            let Some(found) = found else { continue };
            assert!((found.loss - posterior.losses[b]).abs() < 1e-12);
            assert!((found.log_prob - paths[b].log_prob).abs() < 1e-12);
            let steps: Vec<_> = paths[b].emitting(topology).collect();
            assert_eq!((found.tokens.len(), steps.len()), (sure[b].len(), self.targets.labels(b).len()));
            for (u, token) in found.tokens.iter().enumerate() {
                assert_eq!((token.label, token.frame), (self.targets.labels(b)[u], steps[u].site.frame));
                assert!((token.log_prob - steps[u].log_prob).abs() < 1e-12);
                assert!((token.confidence - sure[b][u]).abs() < 1e-12);
                assert!((token.expected_frame - expected[b][u]).abs() < 1e-11);
            }
        }
    }
}

fn log_sum(z: &[f64]) -> f64 {
    z.iter().map(|z| z.exp()).sum::<f64>().ln()
}

fn softmax(z: &[f64], next: Option<usize>) -> [f64; 2] {
    [z[BLANK] - log_sum(z), next.map_or(-1.0, |next| z[next] - log_sum(z))]
}

#[test]
fn is_the_best_path_of_dense_scores() {
    let mut case = Case::new();
    // Groups of one utterance each in the second; regularisers of a loss and weights of its tokens change nothing.
    case.targets = case.targets.with_token_weights(vec![vec![0.5, 2.0], vec![3.0; 3], vec![]]).unwrap();
    let plan = Plan::custom(1, 1, 4, 1, 0);
    for topology in [Topology::rnnt(), Topology::modified(), Topology::constrained()] {
        let plain = Options { topology, ..Options::default() };
        case.check(&case.emissions(softmax, false), None, &plain);
        let cut =
            Options { plan: Some(plan), fastemit: 0.3, delay_penalty: 0.1, skip: 0.5, z_loss: 0.1, ..plain };
        case.check(&case.emissions(softmax, false), None, &cut);
    }
}

#[test]
fn knows_durations_and_factored_blanks() {
    let case = Case::new();
    let durations = Head::new(&case.durations, None, HIDDEN).unwrap();
    let options = Options {
        topology: Topology::tdt(&[0, 1, 2]).unwrap(),
        sigma: 0.1,
        omega: 0.2,
        ..Options::default()
    };
    case.check(&case.emissions(softmax, true), Some(&durations), &options);

    let factored = |z: &[f64], next: Option<usize>| {
        let others: Vec<f64> = (0..CLASSES).filter(|&c| c != BLANK).map(|c| z[c]).collect();
        let sigmoid = |z: f64| -(-z).exp().ln_1p();
        let label = |next: usize| sigmoid(-z[BLANK]) + z[next] - log_sum(&others);
        [sigmoid(z[BLANK]), next.map_or(-1.0, label)]
    };
    let options = Options { factored_blank: true, ..Options::default() };
    case.check(&case.emissions(factored, false), None, &options);
}

#[test]
fn padding_and_neighbours_change_nothing() {
    let case = Case::new();
    let head = Head::new(&case.head, Some(&case.bias), HIDDEN).unwrap();
    let options = Options { topology: Topology::modified(), ..Options::default() };
    let packed =
        align(&case.frames, &case.labels, &head, None, Layout::Packed, &case.targets, &options).unwrap();
    let (mut frames, mut labels) = (vec![f64::NAN; 3 * 7 * HIDDEN], vec![f64::NAN; 3 * 5 * HIDDEN]);
    for (b, (f, g)) in [(0, 0), (4, 3), (6, 7)].into_iter().enumerate() {
        let (t, u) = (case.targets.frames(b) * HIDDEN, (case.targets.labels(b).len() + 1) * HIDDEN);
        frames[b * 7 * HIDDEN..][..t].copy_from_slice(&case.frames[f * HIDDEN..][..t]);
        labels[b * 5 * HIDDEN..][..u].copy_from_slice(&case.labels[g * HIDDEN..][..u]);
        let alone = case.targets.part(b..b + 1);
        let (f, g) = (&case.frames[f * HIDDEN..][..t], &case.labels[g * HIDDEN..][..u]);
        let alone = align(f, g, &head, None, Layout::Packed, &alone, &options).unwrap();
        assert_eq!(alone[0], packed[b]);
    }
    let layout = Layout::Padded { frames: 7, positions: 5 };
    let padded = align(&frames, &labels, &head, None, layout, &case.targets, &options).unwrap();
    assert_eq!(padded, packed);
    assert!(packed[1].is_none() && packed[2].as_ref().unwrap().tokens.is_empty());
}

#[test]
fn mistakes_are_named() {
    let case = Case::new();
    let head = Head::new(&case.head, Some(&case.bias), HIDDEN).unwrap();
    let run = |frames: &[f64], durations: Option<&Head<f64>>, topology| {
        let options = Options { topology, ..Options::default() };
        align(frames, &case.labels, &head, durations, Layout::Packed, &case.targets, &options)
    };
    let short = run(&case.frames[1..], None, Topology::rnnt());
    assert!(matches!(short, Err(Error::Shape { argument: "frames", .. })));
    let narrow = Head::new(&case.durations, None, 3).unwrap();
    let error = run(&case.frames, Some(&narrow), Topology::tdt(&[0, 1, 2]).unwrap());
    assert!(matches!(error, Err(Error::Shape { argument: "durations", .. })));
    let error = run(&case.frames, None, Topology::tdt(&[0, 1, 2]).unwrap());
    assert!(matches!(error, Err(Error::Columns { expected: 2, found: 5, .. })));
    let mut frames = case.frames.clone();
    frames[5 * HIDDEN] = f64::NAN;
    let error = run(&frames, None, Topology::rnnt()).unwrap_err();
    assert!(matches!(error, Error::Scores { utterance: 1, frame: 1, .. }), "{error}");
}
