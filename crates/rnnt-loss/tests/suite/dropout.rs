//! Dropout in the joint network of a loss: masks, gradients and invariance.
use oracle::differences::central_difference;
use pruned::Matrices;
use rnnt_loss::{
    Activation, Dropout, Error, Gradients, Head, HiddenInputs, JointInputs, Layout, Loss, LossOutput,
    Options, PassScales, Plan, PrunedInputs, Pruning, Session, SimpleInputs, Targets,
};

/// Width of the joint network; not a multiple of the units in a word of the mask.
const H: usize = 11;
/// Number of classes.
const C: usize = 5;
/// Frames T and labels U of each utterance.
const SHAPES: [(usize, usize); 3] = [(4, 2), (1, 0), (3, 3)];
/// Weights of the utterances in the sum of losses.
const WEIGHTS: [f64; 3] = [0.5, 1.5, -2.0];
const DROPOUT: Dropout = Dropout { rate: 0.375, seed: 17 };
const ACTIVATIONS: [Activation; 2] = [Activation::Tanh, Activation::Relu];

/// Pseudo-random values.
fn values(len: usize, salt: u64) -> Vec<f64> {
    oracle::noise::normal(salt, 0, len, 0.8)
}

/// A packed batch: frame rows, label rows, and the head.
#[derive(Clone)]
struct Batch {
    /// Frames T and labels U of each utterance.
    shapes: Vec<(usize, usize)>,
    targets: Targets,
    frames: Vec<f64>,
    labels: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl Batch {
    fn new(shapes: &[(usize, usize)]) -> Self {
        let (mut frames, mut labels, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for &(t, u) in shapes {
            // The values of an utterance depend only on its shape.
            frames.extend(values(t * H, (100 * t + u) as u64));
            labels.extend(values((u + 1) * H, (100 * t + u + 50) as u64));
            ids.push((0..u).map(|i| 1 + (i * 3 + t) as u32 % (C as u32 - 1)).collect());
        }
        let targets = Targets::new(0, shapes.iter().map(|shape| shape.0).collect(), ids).unwrap();
        let (weight, bias) = (values(C * H, 1), values(C, 2));
        Self { shapes: shapes.to_vec(), targets, frames, labels, weight, bias }
    }

    fn head(&self) -> Head<'_, f64> {
        Head::new(&self.weight, Some(&self.bias), H).unwrap()
    }

    fn joint(&self) -> JointInputs<'_, f64> {
        JointInputs::new(&self.frames, &self.labels, self.head())
    }

    fn run(&self, options: &Options, dropout: Option<Dropout>) -> LossOutput<f64> {
        let joint = JointInputs { dropout, ..self.joint() };
        Session::new(options).unwrap().sum(joint, &self.targets, &WEIGHTS[..self.shapes.len()]).unwrap()
    }

    /// Frames, labels, weight and bias, concatenated.
    fn all(&self) -> Vec<f64> {
        [&self.frames[..], &self.labels, &self.weight, &self.bias].concat()
    }

    /// The same batch with other values, in the order of [`Batch::all`].
    fn with_values(&self, mut all: &[f64]) -> Self {
        let mut take_values = |len: usize| all.split_off(..len).unwrap().to_vec();
        let [frames, labels, weight, bias] =
            [self.frames.len(), self.labels.len(), self.weight.len(), self.bias.len()].map(&mut take_values);
        Self { frames, labels, weight, bias, ..self.clone() }
    }
}

fn options_with(activation: Activation) -> Options {
    Options { activation, ..Options::default() }
}

/// Gradients of the inputs, concatenated.
fn concatenate_gradients(gradients: &Gradients<f64>) -> Vec<f64> {
    let Gradients { encoded, predicted, head, .. } = gradients;
    [&encoded[..], predicted, &head.weight, &head.bias].concat()
}

/// Weighted sum of losses.
fn weighted_sum(losses: &[f64]) -> f64 {
    losses.iter().zip(WEIGHTS).map(|(loss, weight)| loss * weight).sum()
}

#[track_caller]
fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        assert!((actual - expected).abs() <= tolerance, "entry {i}: {actual} {expected}");
    }
}

/// The mixing function of SplitMix64.
fn mix(z: u64) -> u64 {
    let z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Factor of unit k at a site, by definition: 0, or 1 / (1 - rate).
fn mask_factor(Dropout { rate, seed }: Dropout, b: usize, t: usize, u: usize, k: usize) -> f64 {
    let key =
        mix(mix(mix(seed).wrapping_add(b as u64)).wrapping_add((t as u64) << 32).wrapping_add(u as u64));
    let byte = mix(key.wrapping_add(k as u64 / 8)) >> (8 * (k % 8)) & 255;
    let threshold = 256.0 * rate;
    if (byte as f64) < threshold { 0.0 } else { 256.0 / (256.0 - threshold) }
}

/// Losses and gradients match those of hidden rows that are masked explicitly.
#[test]
fn losses_match_those_of_explicitly_masked_rows() {
    let batch = Batch::new(&SHAPES);
    for activation in ACTIVATIONS {
        // Of each unit of each site: value, slope, and indices of the values that it adds.
        let (mut hidden, mut slopes, mut indices) = (Vec::new(), Vec::new(), Vec::new());
        let (mut frame, mut label) = (0, 0);
        for (b, &(t, u)) in SHAPES.iter().enumerate() {
            for site in batch.targets.lattices().utterance_sites(b) {
                for k in 0..H {
                    let (f, g) = ((frame + site.frame) * H + k, (label + site.label) * H + k);
                    let x = batch.frames[f] + batch.labels[g];
                    let (value, slope) = match activation {
                        Activation::Tanh => (x.tanh(), 1.0 - x.tanh() * x.tanh()),
                        Activation::Relu => (x.max(0.0), f64::from(u8::from(x > 0.0))),
                    };
                    let factor = mask_factor(DROPOUT, b, site.frame, site.label, k);
                    hidden.push(factor * value);
                    slopes.push(factor * slope);
                    indices.push((f, g));
                }
            }
            (frame, label) = (frame + t, label + u + 1);
        }
        let dropped = slopes.iter().filter(|slope| **slope == 0.0).count();
        assert!(dropped > 0 && dropped < slopes.len());
        let mut session = Session::new(&Options::default()).unwrap();
        let expected =
            session.sum(HiddenInputs::new(&hidden, batch.head()), &batch.targets, &WEIGHTS).unwrap();
        let actual = batch.run(&options_with(activation), Some(DROPOUT));
        assert_close(&actual.losses, &expected.losses, 1e-12);
        assert_close(&actual.gradients.head.weight, &expected.gradients.head.weight, 1e-12);
        assert_close(&actual.gradients.head.bias, &expected.gradients.head.bias, 1e-12);
        let (mut frames, mut labels) = (vec![0.0; batch.frames.len()], vec![0.0; batch.labels.len()]);
        for ((g, slope), (frame, label)) in expected.gradients.hidden.iter().zip(slopes).zip(indices) {
            frames[frame] += g * slope;
            labels[label] += g * slope;
        }
        assert_close(&actual.gradients.encoded, &frames, 1e-12);
        assert_close(&actual.gradients.predicted, &labels, 1e-12);
    }
}

#[test]
fn gradients_match_central_differences() {
    let batch = Batch::new(&SHAPES);
    for activation in ACTIVATIONS {
        for loss in [Loss::rnnt(), Loss::hat()] {
            let (budget, keep_scores) = (usize::MAX, false);
            let options = Options {
                budget,
                keep_scores,
                label_smoothing: 0.0,
                z_loss: 0.1,
                loss,
                ..options_with(activation)
            };
            let actual = concatenate_gradients(&batch.run(&options, Some(DROPOUT)).gradients);
            let loss =
                |all: &[f64]| Ok(weighted_sum(&batch.with_values(all).run(&options, Some(DROPOUT)).losses));
            assert_close(&actual, &central_difference(loss, &batch.all()).unwrap(), 3e-7);
        }
    }
}

#[test]
fn durations_and_pruning_use_the_same_masks() {
    let batch = Batch::new(&SHAPES);
    let (duration_weight, duration_bias) = (values(3 * H, 8), values(3, 9));
    let durations = Head::new(&duration_weight, Some(&duration_bias), H).unwrap();
    let options = Options::new(Loss::tdt(&[0, 1, 2]).unwrap());
    let run = |batch: &Batch| {
        let joint = batch.joint().with_durations(durations).with_dropout(DROPOUT);
        Session::new(&options).unwrap().sum(joint, &batch.targets, &WEIGHTS).unwrap()
    };
    let loss = |all: &[f64]| Ok(weighted_sum(&run(&batch.with_values(all)).losses));
    assert_close(
        &concatenate_gradients(&run(&batch).gradients),
        &central_difference(loss, &batch.all()).unwrap(),
        3e-7,
    );

    // Retained sites have the same masks as in the whole lattice.
    let rows = |rows: &[f64]| values(rows.len() / H * C, 12);
    let (am, lm) = (rows(&batch.frames), rows(&batch.labels));
    let simple = SimpleInputs::Matrices(Matrices::new(&am, &lm, C).unwrap());
    let (joint, scales) = (batch.joint().with_dropout(DROPOUT), PassScales::default());
    let pruning = Pruning { s_range: 2, ..Pruning::default() };
    let mut session = Session::new(&Options::new(Loss::pruned(pruning))).unwrap();
    let actual = session.sum(PrunedInputs { simple, joint, scales }, &batch.targets, &WEIGHTS).unwrap();
    let ranges = actual.first_pass.unwrap().ranges;
    let bands = (0..3).map(|b| (0..SHAPES[b].0).map(|t| ranges.band(b, t)).collect()).collect();
    let retained = batch.targets.with_bands(bands).unwrap();
    assert!(retained.lattices().num_sites() < batch.targets.lattices().num_sites());
    let second = Session::new(&Options::default()).unwrap().sum(joint, &retained, &WEIGHTS).unwrap();
    assert_eq!(actual.losses, second.losses);
    assert_eq!(concatenate_gradients(&actual.gradients), concatenate_gradients(&second.gradients));
}

#[test]
fn results_do_not_depend_on_padding_groups_blocking_and_threads() {
    let batch = Batch::new(&SHAPES);
    let (frames, positions) = (6, 5);
    let pad = |rows: &[f64], stride: usize, row_count: &dyn Fn(usize) -> usize| {
        let mut rest = rows;
        let mut padded = vec![f64::NAN; SHAPES.len() * stride * H];
        for (b, padded) in padded.chunks_mut(stride * H).enumerate() {
            padded[..row_count(b) * H].copy_from_slice(rest.split_off(..row_count(b) * H).unwrap());
        }
        padded
    };
    let f = pad(&batch.frames, frames, &|b| SHAPES[b].0);
    let g = pad(&batch.labels, positions, &|b| SHAPES[b].1 + 1);
    for activation in ACTIVATIONS {
        let options = options_with(activation);
        let expected = batch.run(&options, Some(DROPOUT));
        let joint = JointInputs::new(&f, &g, batch.head()).with_dropout(DROPOUT);
        let joint = joint.with_layout(Layout::Padded { frames, positions });
        let mut session = Session::new(&options).unwrap();
        let padded = session.sum(joint, &batch.targets, &WEIGHTS).unwrap();
        assert_eq!((&padded.losses, &padded.gradients.head), (&expected.losses, &expected.gradients.head));
        let unpad = |rows: &[f64], stride: usize, row_count: &dyn Fn(usize) -> usize| -> Vec<f64> {
            let utterances = rows.chunks(stride * H).enumerate();
            utterances.flat_map(|(b, rows)| &rows[..row_count(b) * H]).copied().collect()
        };
        assert_eq!(unpad(&padded.gradients.encoded, frames, &|b| SHAPES[b].0), expected.gradients.encoded);
        let predicted = unpad(&padded.gradients.predicted, positions, &|b| SHAPES[b].1 + 1);
        assert_eq!(predicted, expected.gradients.predicted);

        // All utterances at once, and in groups.
        let joint = batch.joint().with_dropout(DROPOUT);
        let at_once = session.forward(joint, &batch.targets).unwrap().backward(&WEIGHTS).unwrap();
        assert_eq!(at_once.losses, expected.losses);
        assert_close(
            &concatenate_gradients(&at_once.gradients),
            &concatenate_gradients(&expected.gradients),
            1e-12,
        );
        for (wave_sites, block_sites, tile_classes, saved_scores) in
            [(1, 1, 2, 0), (8, 3, 4, 5), (100, 8, 5, 0), (100, 100, 1, 100)]
        {
            let plan = Some(Plan::custom(wave_sites, block_sites, tile_classes, 2, saved_scores));
            let actual = batch.run(&Options { plan, ..options.clone() }, Some(DROPOUT));
            assert_close(&actual.losses, &expected.losses, 1e-12);
            assert_close(
                &concatenate_gradients(&actual.gradients),
                &concatenate_gradients(&expected.gradients),
                1e-12,
            );
        }
        for threads in [1, 2, 5] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            assert_eq!(pool.install(|| batch.run(&options, Some(DROPOUT))), expected, "{threads} threads");
        }
        // The bits of losses do not depend on the group.
        let grouped = |wave_sites| {
            let plan = Some(Plan::custom(wave_sites, 1, C, 1, 0));
            batch.run(&Options { plan, ..options.clone() }, Some(DROPOUT))
        };
        assert_eq!(grouped(1).losses, grouped(100).losses);
    }
}

/// Masks depend on the index in the batch, not on other utterances.
#[test]
fn results_do_not_depend_on_batch_mates() {
    // Loss and encoder gradient of the second utterance.
    let second_utterance = |shapes: [(usize, usize); 3]| {
        let batch = Batch::new(&shapes);
        let out = batch.run(&Options::default(), Some(DROPOUT));
        let (start, len) = (shapes[0].0 * H, shapes[1].0 * H);
        (out.losses[1], out.gradients.encoded[start..start + len].to_vec())
    };
    let expected = second_utterance([(4, 2), (3, 3), (1, 0)]);
    assert_eq!(second_utterance([(1, 1), (3, 3), (7, 2)]), expected);
    assert_eq!(second_utterance([(9, 4), (3, 3), (3, 3)]), expected);
    // The same utterance at another index has a different mask.
    let elsewhere = Batch::new(&[(3, 3)]).run(&Options::default(), Some(DROPOUT));
    assert_ne!(elsewhere.losses[0], expected.0);
}

#[test]
fn a_rate_of_zero_has_no_effect_and_seeds_differ() {
    let batch = Batch::new(&SHAPES);
    for activation in ACTIVATIONS {
        let options = options_with(activation);
        let plain = batch.run(&options, None);
        let run_with = |rate, seed| batch.run(&options, Some(Dropout { rate, seed }));
        assert_eq!(run_with(0.0, 3), plain);
        assert_ne!(run_with(0.375, 3).losses, plain.losses);
        assert_ne!(run_with(0.375, 3).losses, run_with(0.375, 4).losses);
        assert_eq!(run_with(0.375, 3), run_with(0.375, 3));
    }
    // Alignment ignores dropout.
    let session = Session::new(&Options::default()).unwrap();
    let plain = session.align(&batch.joint(), &batch.targets).unwrap();
    assert_eq!(session.align(&batch.joint().with_dropout(DROPOUT), &batch.targets).unwrap(), plain);
}

#[test]
fn invalid_rates_are_errors() {
    let batch = Batch::new(&SHAPES);
    let mut session = Session::new(&Options::default()).unwrap();
    for rate in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY] {
        let joint = batch.joint().with_dropout(Dropout { rate, seed: 1 });
        let same = |actual: f64| actual.to_bits() == rate.to_bits();
        let actual = session.sum(joint, &batch.targets, &WEIGHTS);
        assert!(matches!(actual, Err(Error::Dropout { found }) if same(found)));
        let actual = session.forward(joint, &batch.targets).map(|pending| pending.losses().to_vec());
        assert!(matches!(actual, Err(Error::Dropout { found }) if same(found)));
    }
}

/// Dropout scales the remaining units and their derivatives.
#[test]
fn skipping_errors_are_within_the_bound() {
    let batch = Batch::new(&SHAPES);
    for activation in ACTIVATIONS {
        for rate in [0.375, 0.9] {
            let dropout = Some(Dropout { rate, seed: 5 });
            let exact = batch.run(&options_with(activation), dropout);
            let mut skipped = 0;
            for skip in [1e-3, 0.02, 0.1, 0.4] {
                let actual = batch.run(&Options { skip, ..options_with(activation) }, dropout);
                let bound = actual.skipped;
                skipped += bound.sites;
                let (actual, exact) = (&actual.gradients, &exact.gradients);
                for (actual, exact, bound) in [
                    (&actual.encoded, &exact.encoded, bound.input_error),
                    (&actual.predicted, &exact.predicted, bound.input_error),
                    (&actual.head.weight, &exact.head.weight, bound.weight_error),
                ] {
                    assert_close(actual, exact, bound + 1e-12);
                }
                let bias = actual.head.bias.iter().zip(&exact.head.bias);
                assert!(bias.map(|(a, b)| (a - b).abs()).sum::<f64>() <= bound.bias_error + 1e-12);
            }
            assert!(skipped > 0, "nothing was left out");
        }
    }
}
