//! Tests of the reference losses: each matches the next.
//!
//! The order is: sums over all paths, the f64 recursion, candle's autograd, central differences.

use candle_core::{DType, Device, Tensor, Var};
use kernels::Activation;
use oracle::compare::{assert_close, difference};
use oracle::dense;
use oracle::paths::{PathArc, REGULAR_ARCS, sum_over_paths};
use oracle::reference::{self, log_softmax};
use oracle::{ctc, differences, noise};
use proptest::prelude::*;

/// A ragged batch small enough to enumerate every path.
#[derive(Clone, Debug)]
struct RaggedBatch {
    dims: [usize; 4],
    frames: Vec<usize>,
    labels: Vec<Vec<u32>>,
    blank: u32,
    logits: Vec<f64>,
}

impl RaggedBatch {
    fn tensor(&self) -> Tensor {
        Tensor::from_vec(self.logits.clone(), &self.dims, &Device::Cpu).unwrap()
    }

    /// Blank and label log-probabilities `[N, 2]` of one utterance, packed.
    fn emissions(&self, b: usize) -> Vec<f64> {
        let [_, frames, positions, classes] = self.dims;
        let mut out = Vec::new();
        for t in 0..self.frames[b] {
            for u in 0..=self.labels[b].len() {
                let mut row = self.logits[((b * frames + t) * positions + u) * classes..][..classes].to_vec();
                log_softmax(&mut row);
                out.push(row[self.blank as usize]);
                // There is no label after the last; this value must not matter.
                out.push(self.labels[b].get(u).map_or(0.0, |&id| row[id as usize]));
            }
        }
        out
    }

    fn reference(&self, fastemit: f64) -> reference::ReferenceLoss {
        let Self { logits, dims, frames, labels, blank } = self;
        reference::transducer_loss(logits, *dims, frames, labels, *blank, fastemit).unwrap()
    }

    /// Loss and gradient of its sum by candle.
    fn dense(&self, fastemit: f64) -> (Vec<f64>, Vec<f64>) {
        let logits = Var::from_tensor(&self.tensor()).unwrap();
        let loss = dense::transducer_loss_fastemit(&logits, &self.frames, &self.labels, self.blank, fastemit)
            .unwrap();
        let grads = loss.sum_all().unwrap().backward().unwrap();
        let gradient = grads.get(&logits).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        (loss.to_vec1().unwrap(), gradient)
    }
}

fn ragged_batches() -> impl Strategy<Value = RaggedBatch> {
    (1_usize..4, 1_usize..5, 0_usize..4, 2_u32..6, any::<u64>(), 0.1..6.0_f64).prop_map(
        |(batch, most_frames, most_labels, classes, seed, scale)| {
            let draw = |purpose: u64, below: usize| {
                noise::integers(seed, purpose, batch, below as u32).into_iter().map(|n| n as usize)
            };
            let blank = noise::integers(seed, 0, 1, classes)[0];
            // The first utterance fills the padded shape, the others are ragged.
            let frames: Vec<usize> =
                std::iter::once(most_frames).chain(draw(1, most_frames).skip(1).map(|n| n + 1)).collect();
            let counts = std::iter::once(most_labels).chain(draw(2, most_labels + 1).skip(1));
            let labels = counts
                .enumerate()
                .map(|(b, count)| noise::labels(seed, 10 + b as u64, count, classes, blank))
                .collect();
            let dims = [batch, most_frames, most_labels + 1, classes as usize];
            let logits = noise::normal(seed, 3, dims.iter().product(), scale);
            RaggedBatch { dims, frames, labels, blank, logits }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn recursion_matches_the_sum_over_all_paths(case in ragged_batches()) {
        let computed = case.reference(0.0);
        let [_, frames, positions, classes] = case.dims;
        for b in 0..case.frames.len() {
            let (frame_count, label_count) = (case.frames[b], case.labels[b].len());
            let paths = sum_over_paths(&case.emissions(b), frame_count, label_count, 2, &REGULAR_ARCS).unwrap();
            assert_close("loss", &[computed.loss[b]], &[-paths.log_likelihood], 1e-11);
            // Every path takes T blanks and U labels.
            let total: f64 = paths.occupancies.iter().sum();
            assert_close("occupancies", &[total], &[(frame_count + label_count) as f64], 1e-11);
            for t in 0..frame_count {
                for u in 0..=label_count {
                    let site = (b * frames + t) * positions + u;
                    let row = &computed.gradient[site * classes..][..classes];
                    assert_close("sum over classes", &[row.iter().sum()], &[0.0], 1e-12);
                    let mut probs = case.logits[site * classes..][..classes].to_vec();
                    log_softmax(&mut probs);
                    let emission_index = (t * (label_count + 1) + u) * 2;
                    let [blank_occupancy, label_occupancy] =
                        [0, 1].map(|column| paths.occupancies[emission_index + column]);
                    let mut expected: Vec<f64> =
                        probs.iter().map(|p| p.exp() * (blank_occupancy + label_occupancy)).collect();
                    expected[case.blank as usize] -= blank_occupancy;
                    if u < label_count {
                        expected[case.labels[b][u] as usize] -= label_occupancy;
                    }
                    assert_close("gradient", row, &expected, 1e-11);
                }
            }
        }
    }

    #[test]
    fn autograd_matches_the_recursion(case in ragged_batches(), fastemit in 0.0..1.0_f64) {
        for fastemit in [0.0, fastemit] {
            let expected = case.reference(fastemit);
            let (loss, gradient) = case.dense(fastemit);
            assert_close("loss", &loss, &expected.loss, 1e-11);
            assert_close("gradient", &gradient, &expected.gradient, 1e-11);
        }
    }

    #[test]
    fn padding_may_contain_nan(case in ragged_batches()) {
        let mut with_invalid_padding = case.clone();
        let [_, frames, positions, classes] = case.dims;
        for (i, score) in with_invalid_padding.logits.iter_mut().enumerate() {
            let site = i / classes;
            let (b, t, u) = (site / positions / frames, site / positions % frames, site % positions);
            if t >= case.frames[b] || u > case.labels[b].len() {
                *score = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][i % 3];
            }
        }
        prop_assert_eq!(case.dense(0.0), with_invalid_padding.dense(0.0));
        prop_assert_eq!(case.reference(0.0).gradient, with_invalid_padding.reference(0.0).gradient);
    }

    #[test]
    fn f32_matches_f64_to_single_precision(case in ragged_batches()) {
        let single = case.tensor().to_dtype(DType::F32).unwrap();
        let loss = dense::transducer_loss(&single, &case.frames, &case.labels, case.blank).unwrap();
        prop_assert_eq!(loss.dtype(), DType::F32);
        let loss = loss.to_dtype(DType::F64).unwrap().to_vec1::<f64>().unwrap();
        // A log-probability is accurate to a few ULPs of its logits: a loss near 0 has no relative
        // accuracy.
        let largest = case.logits.iter().fold(1.0f64, |m, z| m.max(z.abs()));
        for (b, (actual, expected)) in loss.iter().zip(&case.reference(0.0).loss).enumerate() {
            let arcs = (case.frames[b] + case.labels[b].len()) as f64;
            let bound = 4.0 * arcs * f64::from(f32::EPSILON) * largest;
            prop_assert!((actual - expected).abs() <= bound, "{actual} against {expected}, bound {bound:e}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn central_differences_match(case in ragged_batches()) {
        let RaggedBatch { dims, frames, labels, blank, .. } = &case;
        let total = |logits: &[f64]| {
            let computed = reference::transducer_loss(logits, *dims, frames, labels, *blank, 0.0)?;
            Ok(computed.loss.iter().sum())
        };
        let gradient = differences::central_difference(total, &case.logits).unwrap();
        assert_close("gradient", &gradient, &case.reference(0.0).gradient, 1e-9);
    }
}

#[test]
fn fastemit_differs_from_the_plain_gradient() {
    let case = RaggedBatch {
        dims: [1, 2, 2, 3],
        frames: vec![2],
        labels: vec![vec![1]],
        blank: 0,
        logits: noise::normal(1, 0, 12, 1.0),
    };
    let (plain, with_fastemit) = (case.dense(0.0).1, case.dense(0.5).1);
    assert!(difference(&with_fastemit, &plain).unwrap().absolute > 1e-2);
}

#[test]
fn two_paths_match_a_computation_by_hand() {
    // T = 2, U = 1: label in frame 0, then two blanks; or blank, label, blank.
    let emissions = [0.5, 0.25, 0.125, 0.9, 0.7, 0.2, 0.4, 0.9_f64].map(f64::ln);
    let sums = sum_over_paths(&emissions, 2, 1, 2, &REGULAR_ARCS).unwrap();
    let (early, late) = (0.25 * 0.125 * 0.4, 0.5 * 0.2 * 0.4);
    assert_eq!(sums.count, 2);
    assert_close("likelihood", &[sums.log_likelihood.exp()], &[early + late], 1e-15);
    assert_close("label in frame 0", &sums.occupancies[1..2], &[early / (early + late)], 1e-15);
    assert_close("last blank", &sums.occupancies[6..7], &[1.0], 1e-15);
}

#[test]
fn other_topologies_count_their_paths() {
    // A label consumes a frame: choose which U of T frames carry one.
    let modified = [REGULAR_ARCS[0], PathArc { frames: 1, labels: 1, column: 1, may_end: true }];
    let sums = sum_over_paths(&vec![0.0; 6 * 3 * 2], 6, 2, 2, &modified).unwrap();
    assert_eq!(sums.count, 15);
    // Blanks of one, two and three frames, no label: compositions of 4 into parts up to 3.
    let long_blanks = [1, 2, 3].map(|n| PathArc { frames: n, labels: 0, column: n - 1, may_end: true });
    assert_eq!(sum_over_paths(&[0.0; 12], 4, 0, 3, &long_blanks).unwrap().count, 7);
    // Regular: C(T + U - 1, U), since the last arc is a blank.
    assert_eq!(sum_over_paths(&vec![0.0; 5 * 4 * 2], 5, 3, 2, &REGULAR_ARCS).unwrap().count, 35);
}

#[test]
fn no_path_is_a_value_with_zero_gradient() {
    // Utterance 0 can never emit its label; utterance 1 is not affected.
    let mut case = RaggedBatch {
        dims: [2, 2, 2, 3],
        frames: vec![2, 2],
        labels: vec![vec![2], vec![1]],
        blank: 0,
        logits: noise::normal(4, 0, 24, 1.0),
    };
    (0..4).for_each(|site| case.logits[site * 3 + 2] = f64::NEG_INFINITY);
    let expected = case.reference(0.0);
    assert_eq!(expected.loss[0], f64::INFINITY);
    assert!(expected.loss[1].is_finite());
    assert!(expected.gradient[..12].iter().all(|&g| g == 0.0));
    let (loss, gradient) = case.dense(0.3);
    assert_close("loss", &loss, &expected.loss, 1e-12);
    assert!(gradient[..12].iter().all(|&g| g == 0.0));
    let paths = sum_over_paths(&case.emissions(0), 2, 1, 2, &REGULAR_ARCS).unwrap();
    assert_eq!((paths.count, paths.log_likelihood), (2, f64::NEG_INFINITY));
}

#[test]
fn a_masked_arc_blocks_only_its_paths() {
    let mut case = RaggedBatch {
        dims: [1, 3, 3, 4],
        frames: vec![3],
        labels: vec![vec![2, 3]],
        blank: 1,
        logits: noise::normal(9, 0, 36, 1.0),
    };
    case.logits[2] = f64::NEG_INFINITY; // label 2 at (0, 0)
    case.logits[(3 + 1) * 4 + 1] = f64::NEG_INFINITY; // blank at (1, 1)
    let expected = case.reference(0.0);
    let paths = sum_over_paths(&case.emissions(0), 3, 2, 2, &REGULAR_ARCS).unwrap();
    assert_close("loss", &expected.loss, &[-paths.log_likelihood], 1e-12);
    let (loss, gradient) = case.dense(0.0);
    assert_close("loss", &loss, &expected.loss, 1e-12);
    assert_close("gradient", &gradient, &expected.gradient, 1e-12);
}

#[test]
fn the_largest_graph_fits_a_test_stack() {
    let (frames, positions) = (dense::MAX_DIAGONALS - 4, 5);
    let case = RaggedBatch {
        dims: [1, frames, positions, 3],
        frames: vec![frames],
        labels: vec![vec![1; positions - 1]],
        blank: 0,
        logits: noise::normal(2, 0, frames * positions * 3, 1.0),
    };
    let expected = case.reference(0.0);
    let (loss, gradient) = case.dense(0.0);
    assert_close("loss", &loss, &expected.loss, 1e-9);
    assert_close("gradient", &gradient, &expected.gradient, 1e-10);
}

#[test]
fn joint_gradients_match_central_differences() {
    let (dims, width) = ([2, 3, 2, 4], 3);
    let (frames, labels) = (vec![3, 2], vec![vec![2], vec![]]);
    let shapes = [vec![2, 3, width], vec![2, 2, width], vec![4, width], vec![4]];
    let sizes: Vec<usize> = shapes.iter().map(|s| s.iter().product()).collect();
    type Loss = fn(&Tensor, &[usize], &[Vec<u32>], u32) -> oracle::Result<Tensor>;
    let losses: [Loss; 2] = [dense::transducer_loss, dense::low_memory_transducer_loss];
    let cases = [Activation::Tanh, Activation::Relu].map(|activation| losses.map(|loss| (activation, loss)));
    for (activation, loss) in cases.into_iter().flatten() {
        let inputs = noise::normal(3, 0, sizes.iter().sum(), 1.0);
        let split = |flat: &[f64]| -> Vec<Var> {
            let mut remaining = flat;
            let variables = shapes.iter().zip(&sizes).map(|(shape, &size)| {
                let (values, following) = remaining.split_at(size);
                remaining = following;
                Var::from_slice(values, shape.clone(), &Device::Cpu).unwrap()
            });
            variables.collect()
        };
        let total = |vars: &[Var]| {
            let logits = dense::joint_logits(&vars[0], &vars[1], &vars[2], &vars[3], activation)?;
            assert_eq!(logits.dims(), dims);
            Ok::<_, oracle::Error>(loss(&logits, &frames, &labels, 1)?.sum_all()?)
        };
        let vars = split(&inputs);
        let grads = total(&vars).unwrap().backward().unwrap();
        let gradients: Vec<f64> = vars
            .iter()
            .flat_map(|v| grads.get(v).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap())
            .collect();
        let expected =
            differences::central_difference(|flat| Ok(total(&split(flat))?.to_scalar::<f64>()?), &inputs)
                .unwrap();
        assert_close("joint gradients", &gradients, &expected, 1e-9);
    }
}

#[test]
fn ctc_probabilities_match_sums_by_hand_and_total_one() {
    // Two frames, target "1": 11, 01 and 10.
    let probs = [0.5, 0.3, 0.2, 0.1, 0.6, 0.3_f64].map(f64::ln);
    let sums = ctc::sum_over_labelings(&probs, 2, 3, &[1], 0).unwrap();
    assert_eq!(sums.count, 3);
    let likelihood = 0.3 * 0.6 + 0.5 * 0.6 + 0.3 * 0.1;
    assert_close("likelihood", &[sums.log_likelihood.exp()], &[likelihood], 1e-15);
    assert_close("frame 0 is 1", &sums.occupancies[1..2], &[0.3 * 0.7 / likelihood], 1e-14);
    for frame in sums.occupancies.chunks(3) {
        assert_close("a frame carries one class", &[frame.iter().sum()], &[1.0], 1e-14);
    }
    // A repeated label needs a blank in between: impossible in two frames.
    let none = ctc::sum_over_labelings(&probs, 2, 3, &[1, 1], 0).unwrap();
    assert_eq!((none.count, none.log_likelihood), (0, f64::NEG_INFINITY));
    // The probabilities of all targets of four frames and three classes sum to 1.
    let logits = noise::normal(1, 0, 12, 1.0);
    let mut log_probs: Vec<Vec<f64>> = logits.chunks(3).map(<[f64]>::to_vec).collect();
    log_probs.iter_mut().for_each(|row| log_softmax(row));
    let mut targets: Vec<Vec<u32>> =
        (0..81_u32).map(|n| ctc::collapse(&[n % 3, n / 3 % 3, n / 9 % 3, n / 27], 2)).collect();
    targets.sort();
    targets.dedup();
    let total: f64 = targets
        .iter()
        .map(|t| ctc::sum_over_labelings(&log_probs.concat(), 4, 3, t, 2).unwrap().log_likelihood.exp())
        .sum();
    assert_close("all targets", &[total], &[1.0], 1e-13);
}
