//! Combinations of loss options compared with plain loops over classes.
//!
//! Heads (plain, big blank, durations, factored blank), FastEmit, token weights, clamp, bands and
//! skipping are combined.
use rnnt_dp::{Regularizers, forward_backward};
use rnnt_loss::{
    DEFAULT_BUDGET, Error, Head, JointInputs, Layout, Loss, Options, Plan, Session, SkippedSites, Targets,
    TokenNormalization, Topology,
};

/// Width of the joint network.
const H: usize = 3;
/// Number of classes.
const C: usize = 6;
/// Class id of the blank.
const BLANK: u32 = 2;
/// Class id of the big blank.
const BIG_BLANK: u32 = 4;
/// Frames T of each utterance.
const FRAMES: [usize; 3] = [4, 1, 3];
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 3] = [0.5, 1.0, -2.0];
const DURATIONS: [usize; 3] = [0, 1, 2];

/// Which heads and blanks the loss has.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HeadKind {
    Plain,
    BigBlank,
    Durations,
    Factored,
}

const HEAD_KINDS: [HeadKind; 4] =
    [HeadKind::Plain, HeadKind::BigBlank, HeadKind::Durations, HeadKind::Factored];

/// Pseudo-random values.
fn values(len: usize, salt: u64) -> Vec<f64> {
    oracle::noise::normal(salt, 0, len, 1.2)
}

/// Inputs of a packed batch of three utterances.
struct Case {
    kind: HeadKind,
    targets: Targets,
    options: Options,
    sigma: f64,
    frames: Vec<f64>,
    labels: Vec<f64>,
    /// Weight and bias of tokens and of durations.
    heads: [(Vec<f64>, Vec<f64>); 2],
}

/// A site of the reference.
struct HiddenSite {
    hidden: Vec<f64>,
    utterance: usize,
    label: usize,
}

/// Gradients of weight and bias.
type HeadGradient = (Vec<f64>, Vec<f64>);

/// Losses, and gradients of frame rows, label rows and both heads.
struct LossAndGradients {
    losses: Vec<f64>,
    row_gradients: [Vec<f64>; 2],
    head_gradients: Vec<HeadGradient>,
    skipped: SkippedSites,
}

impl Case {
    /// Creates the batch of a kind of heads, with or without bands.
    fn new(kind: HeadKind, has_bands: bool, sigma: f64, options: Options) -> Self {
        let labels = vec![vec![1, 5], vec![], vec![0, 0, 3]];
        let token_weights = vec![vec![0.5, 2.0], vec![], vec![1.5, 0.0, 0.7]];
        let mut targets = Targets::new(BLANK, FRAMES.to_vec(), labels).unwrap();
        targets = targets.with_token_weights(token_weights).unwrap();
        if kind == HeadKind::BigBlank {
            targets = targets.with_big_blanks(vec![BIG_BLANK]).unwrap();
        }
        if has_bands {
            targets = targets
                .with_bands(vec![vec![0..2, 0..3, 1..3, 1..3], vec![0..1], vec![0..4, 0..4, 2..4]])
                .unwrap();
        }
        let (topology, tokens) = (Topology::rnnt(), TokenNormalization::default());
        let loss = match kind {
            HeadKind::Plain => Loss::Transducer { topology, tokens, sigma },
            HeadKind::Factored => {
                Loss::Transducer { topology, tokens: TokenNormalization::FactoredBlank, sigma }
            }
            HeadKind::BigBlank => {
                Loss::Transducer { topology: Topology::multi_blank(&[2]).unwrap(), tokens, sigma }
            }
            HeadKind::Durations => {
                Loss::Tdt { topology: Topology::tdt(&DURATIONS).unwrap(), sigma, omega: 0.0 }
            }
        };
        Self {
            kind,
            targets,
            options: Options { loss, ..options },
            sigma,
            frames: values(8 * H, 1),
            labels: values(8 * H, 2),
            heads: [(values(C * H, 3), values(C, 4)), (values(3 * H, 5), values(3, 6))],
        }
    }

    /// Runs the loss of a session.
    fn run(&self) -> LossAndGradients {
        let [tokens, durations] = self.heads.each_ref().map(|(w, b)| Head::new(w, Some(b), H).unwrap());
        let mut joint = JointInputs::new(&self.frames, &self.labels, tokens);
        if self.kind == HeadKind::Durations {
            joint = joint.with_durations(durations);
        }
        let out = Session::new(&self.options).unwrap().sum(joint, &self.targets, &WEIGHTS).unwrap();
        let actual = out.gradients;
        let mut heads = vec![(actual.head.weight, actual.head.bias)];
        if self.kind == HeadKind::Durations {
            heads.push((actual.durations.weight, actual.durations.bias));
        } else {
            assert!(actual.durations.weight.is_empty() && actual.durations.bias.is_empty());
        }
        let row_gradients = [actual.encoded, actual.predicted];
        LossAndGradients { losses: out.losses, row_gradients, head_gradients: heads, skipped: out.skipped }
    }

    /// Hidden row of every site, with its utterance and label position.
    fn sites(&self) -> Vec<HiddenSite> {
        let (mut out, mut first_frame, mut first_label) = (Vec::new(), 0, 0);
        for b in 0..3 {
            for site in self.targets.lattices().utterance_sites(b) {
                let f = &self.frames[(first_frame + site.frame) * H..];
                let g = &self.labels[(first_label + site.label) * H..];
                let hidden = (0..H).map(|k| (f[k] + g[k]).tanh()).collect();
                out.push(HiddenSite { hidden, utterance: b, label: site.label });
            }
            first_frame += self.targets.frames(b);
            first_label += self.targets.labels(b).len() + 1;
        }
        out
    }

    /// Losses and the gradients of all heads, site by site.
    fn dense_reference(&self) -> (Vec<f64>, Vec<HeadGradient>) {
        let sites = self.sites();
        let score = |(w, b): &(Vec<f64>, Vec<f64>), h: &[f64]| -> Vec<f64> {
            let dot = |w: &[f64]| w.iter().zip(h).map(|(w, h)| w * h).sum::<f64>();
            w.chunks(H).zip(b).map(|(w, b)| dot(w) + b).collect()
        };
        // Softmax over the unmasked classes.
        let softmax = |z: &[f64], is_included: &dyn Fn(usize) -> bool| -> Vec<f64> {
            let exps: Vec<f64> =
                z.iter().enumerate().map(|(c, z)| if is_included(c) { z.exp() } else { 0.0 }).collect();
            let sum: f64 = exps.iter().sum();
            exps.into_iter().map(|exp| exp / sum).collect()
        };
        let factored = self.kind == HeadKind::Factored;
        let is_token = |c: usize| !factored || c != BLANK as usize;
        let sigmoid = |z: f64| 1.0 / (1.0 + (-z).exp());
        // Classes of the token columns of a site; none for a missing next label.
        let classes = |b: usize, u: usize| {
            let next = self.targets.labels(b).get(u).copied();
            let big = (self.kind == HeadKind::BigBlank).then_some(Some(BIG_BLANK));
            [Some(BLANK), next].into_iter().chain(big).collect::<Vec<_>>()
        };
        // Emissions of all sites.
        let mut emissions = Vec::new();
        for HiddenSite { hidden: h, utterance: b, label: u } in &sites {
            let z = score(&self.heads[0], h);
            let p = softmax(&z, &is_token);
            let blank = z[BLANK as usize];
            emissions.extend(classes(*b, *u).into_iter().enumerate().map(|(column, class)| match class {
                None => 0.0,
                Some(_) if factored && column == 0 => sigmoid(blank).ln(),
                Some(class) if factored => sigmoid(-blank).ln() + p[class as usize].ln(),
                Some(class) => p[class as usize].ln(),
            }));
            if self.kind == HeadKind::Durations {
                emissions.extend(softmax(&score(&self.heads[1], h), &|_| true).into_iter().map(f64::ln));
            }
        }
        // Losses and adjoints of the emissions.
        let Options { loss, fastemit, delay_penalty, clamp, .. } = &self.options;
        let topology = loss.topology().unwrap();
        let regularizers =
            Regularizers { fastemit: *fastemit, delay_penalty: *delay_penalty, sigma: self.sigma };
        let out = forward_backward(self.targets.lattices(), topology, &emissions, &regularizers).unwrap();
        // Gradients of the heads, site by site: clipped, then times the weight of the utterance.
        let token_weights = [vec![0.5, 2.0], vec![], vec![1.5, 0.0, 0.7]];
        let clip = |g: f64| clamp.map_or(g, |limit| g.clamp(-limit, limit));
        let mut heads = [(vec![0.0; C * H], vec![0.0; C]), (vec![0.0; 3 * H], vec![0.0; 3])];
        let mut add = |head: usize, b: usize, h: &[f64], gradient: &[f64]| {
            let (weight, bias) = &mut heads[head];
            for (c, g) in gradient.iter().enumerate() {
                let g = WEIGHTS[b] * clip(*g);
                bias[c] += g;
                (0..H).for_each(|k| weight[c * H + k] += g * h[k]);
            }
        };
        let site_adjoints = sites.iter().zip(out.adjoints.chunks(topology.num_columns()));
        for (HiddenSite { hidden: h, utterance: b, label: u }, adjoints) in site_adjoints {
            let mut a = adjoints.to_vec();
            a[1] *= token_weights[*b].get(*u).unwrap_or(&1.0);
            let z = score(&self.heads[0], h);
            let p = softmax(&z, &is_token);
            let mut g = vec![0.0; C];
            for (column, class) in classes(*b, *u).into_iter().enumerate() {
                let Some(class) = class else { continue };
                if factored && column == 0 {
                    continue;
                }
                g[class as usize] += a[column];
                g.iter_mut().zip(&p).for_each(|(g, p)| *g -= a[column] * p);
            }
            if factored {
                let blank = z[BLANK as usize];
                g[BLANK as usize] = a[0] * sigmoid(-blank) - a[1] * sigmoid(blank);
            }
            add(0, *b, h, &g);
            if self.kind == HeadKind::Durations {
                let p = softmax(&score(&self.heads[1], h), &|_| true);
                let sum: f64 = a[2..].iter().sum();
                let g: Vec<f64> = a[2..].iter().zip(p).map(|(a, p)| a - sum * p).collect();
                add(1, *b, h, &g);
            }
        }
        let [tokens, durations] = heads;
        let count = if self.kind == HeadKind::Durations { 2 } else { 1 };
        (out.losses, [tokens, durations].into_iter().take(count).collect())
    }
}

#[test]
fn head_gradients_match_plain_loops() {
    for kind in HEAD_KINDS {
        for (clamp, fastemit, bands) in
            [(None, 0.0, false), (None, 0.4, true), (Some(0.05), 0.0, true), (Some(0.2), 0.7, false)]
        {
            let sigma = if matches!(kind, HeadKind::BigBlank | HeadKind::Durations) { 0.1 } else { 0.0 };
            for (budget, keep_scores) in [(DEFAULT_BUDGET, true), (usize::MAX, false)] {
                let options = Options {
                    clamp,
                    fastemit,
                    delay_penalty: 0.2,
                    budget,
                    keep_scores,
                    ..Options::default()
                };
                let case = Case::new(kind, bands, sigma, options);
                let (actual, (losses, heads)) = (case.run(), case.dense_reference());
                for (actual, expected) in actual.losses.iter().zip(&losses) {
                    assert!((actual - expected).abs() < 1e-11, "{kind:?}: {actual} {expected}");
                }
                assert_eq!(actual.head_gradients.len(), heads.len());
                for (actual, expected) in actual.head_gradients.iter().zip(&heads) {
                    let (actual, expected) =
                        ([&actual.0[..], &actual.1].concat(), [&expected.0[..], &expected.1].concat());
                    for (actual, expected) in actual.iter().zip(expected) {
                        assert!(
                            (actual - expected).abs() < 1e-11,
                            "{kind:?} {clamp:?} {bands}: {actual} {expected}"
                        );
                    }
                }
            }
        }
    }
}

/// The error and the mass of skipped sites are within their limits.
#[test]
fn skipping_errors_are_within_the_bound_for_every_head() {
    for kind in HEAD_KINDS {
        let mut skipped_any = false;
        for skip in [1e-3, 0.02, 0.1, 0.4] {
            for wave_sites in [1, 100] {
                let options = Options { fastemit: 0.5, ..Options::default() };
                let exact = Case::new(kind, false, 0.0, options.clone()).run();
                let plan = Some(Plan::custom(wave_sites, 8, 4, 2, 0));
                let actual = Case::new(kind, false, 0.0, Options { skip, plan, ..options }).run();
                let SkippedSites { sites, mass, bias_error, weight_error, input_error, .. } = actual.skipped;
                skipped_any |= sites > 0;
                let max_difference =
                    |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                let pairs = actual.head_gradients.iter().zip(&exact.head_gradients);
                for ((weight, bias), (exact_weight, exact_bias)) in pairs {
                    let sum: f64 = bias.iter().zip(exact_bias).map(|(a, b)| (a - b).abs()).sum();
                    assert!(sum <= bias_error + 1e-12, "{kind:?} {skip}: {sum} above {bias_error}");
                    assert!(max_difference(weight, exact_weight) <= weight_error + 1e-12);
                }
                for (actual, exact) in actual.row_gradients.iter().zip(&exact.row_gradients) {
                    assert!(max_difference(actual, exact) <= input_error + 1e-12);
                }
                let max_mass: f64 = WEIGHTS
                    .iter()
                    .zip(FRAMES)
                    .zip([2, 0, 3])
                    .map(|((w, t), u)| w.abs() * skip * (t + u) as f64)
                    .sum();
                assert!(mass <= max_mass * (1.0 + 1e-9), "{mass} {max_mass}");
            }
        }
        assert!(skipped_any, "{kind:?}");
    }
}

#[test]
fn the_internal_language_model_depends_on_labels_only() {
    let case = Case::new(HeadKind::Factored, false, 0.0, Options::default());
    let (w, b) = &case.heads[0];
    for (blank, options) in [(BLANK, &case.options), (0, &Options::default()), (5, &Options::default())] {
        let label = |i: u32| if i >= blank { i + 1 } else { i };
        let labels = vec![vec![label(0), label(3)], vec![], vec![label(4), label(4), label(1)]];
        let targets = Targets::new(blank, FRAMES.to_vec(), labels.clone()).unwrap();
        let head = Head::new(w, Some(b), H).unwrap();
        let mut session = Session::new(options).unwrap();
        let actual = session.internal_lm(&case.labels, head, Layout::Packed, &targets).unwrap();
        assert_eq!(actual.iter().map(Vec::len).collect::<Vec<_>>(), [2, 0, 3]);
        let padded: Vec<f64> = [(0, 3), (3, 4), (4, 8)]
            .into_iter()
            .flat_map(|(start, end)| {
                let mut rows = case.labels[start * H..end * H].to_vec();
                rows.resize(5 * H, f64::NAN);
                rows
            })
            .collect();
        let layout = Layout::Padded { frames: 4, positions: 5 };
        assert_eq!(session.internal_lm(&padded, head, layout, &targets).unwrap(), actual);
        let mut row = 0;
        for (labels, actual) in labels.iter().zip(&actual) {
            for (u, (&label, actual)) in labels.iter().zip(actual).enumerate() {
                let h: Vec<f64> = case.labels[(row + u) * H..][..H].iter().map(|g| g.tanh()).collect();
                let z = |c: usize| w[c * H..][..H].iter().zip(&h).map(|(w, h)| w * h).sum::<f64>() + b[c];
                let sum: f64 = (0..C).filter(|c| *c != blank as usize).map(|c| z(c).exp()).sum();
                assert!((z(label as usize) - sum.ln() - actual).abs() < 1e-12);
            }
            row += labels.len() + 1;
        }
    }
    let mut with_nan = case.labels.clone();
    with_nan[5 * H] = f64::NAN;
    let head = Head::new(w, Some(b), H).unwrap();
    let mut session = Session::new(&Options::default()).unwrap();
    let actual = session.internal_lm(&with_nan, head, Layout::Packed, &case.targets);
    assert!(matches!(actual, Err(Error::Scores { utterance: 2, label: 1, .. })), "{actual:?}");
    // Only the blank: there are no labels.
    let targets = Targets::new(0, vec![2], vec![vec![]]).unwrap();
    let head = Head::new(&w[..H], None, H).unwrap();
    let actual = session.internal_lm(&case.labels[..H], head, Layout::Packed, &targets).unwrap();
    assert_eq!(actual, [Vec::<f64>::new()]);
}
