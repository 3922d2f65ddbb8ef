//! Entropy and expected costs of lattice paths, compared with enumeration.
//!
//! Gradients are compared with central differences.
use lattice::{
    AlignmentLattice, Arcs, Embeddings, Error, Frames, FullNGram, JointWeightFn, LatticeOutput,
    RecognitionLattice, TableWeightFn, WeightFn,
    distance::FrameArc,
    expectation::{ExpectationGradient, PathStatistic, alignment_errors, expectation},
};
use oracle::{compare::assert_near, differences, noise::normal};
use proptest::prelude::*;

use crate::tiny::{PathArc, TinyLattice, path_arc, tiny};

/// Weights do not depend on the alignment state.
fn weight(tiny: &TinyLattice, arc: PathArc) -> f64 {
    tiny.weight(PathArc { alignment: 0, ..arc })
}

/// Returns the arc weights: *N x C* and *N x C x V*.
fn arc_weights(tiny: &TinyLattice) -> (Vec<f64>, Vec<f64>) {
    let (states, labels) = (tiny.automaton.rows().len(), tiny.automaton.rows()[0].len());
    let arc_weight = |row: usize, label: usize| {
        weight(tiny, PathArc { frame: row / states, alignment: 0, context: row % states, label })
    };
    let rows = tiny.frames * states;
    let blank = (0..rows).map(|row| arc_weight(row, 0)).collect();
    (blank, (0..rows * labels).map(|index| arc_weight(index / labels, index % labels + 1)).collect())
}

/// Returns both statistics.
fn statistics(cost: &dyn Fn(usize, FrameArc) -> f64) -> [PathStatistic<'_>; 2] {
    [PathStatistic::Entropy, PathStatistic::Cost(cost)]
}

/// Computes entropy and expected cost by their definition.
fn enumerated(tiny: &TinyLattice) -> Option<[f64; 2]> {
    let paths = tiny.paths();
    let weights: Vec<f64> =
        paths.iter().map(|path| path.iter().map(|&arc| weight(tiny, arc)).sum()).collect();
    let total: f64 = weights.iter().map(|w: &f64| w.exp()).sum();
    if total == 0.0 {
        return None;
    }
    let (mut entropy, mut risk) = (0.0, 0.0);
    for (path, w) in paths.iter().zip(weights) {
        let p = w.exp() / total;
        if p > 0.0 {
            entropy -= p * p.ln();
            risk += p * path.iter().map(|&arc| tiny.cost(arc)).sum::<f64>();
        }
    }
    Some([entropy, risk])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn means_equal_enumeration_and_gradients_equal_differences(tiny in tiny()) {
        let (context, alignment) = (tiny.automaton.context(), tiny.alignment());
        let (blank, label_arcs) = arc_weights(&tiny);
        let blank_count = blank.len();
        let weights = [blank, label_arcs].concat();
        let cost = |t: usize, arc: FrameArc| tiny.cost(path_arc(t, arc));
        let expected = enumerated(&tiny);
        for (index, statistic) in statistics(&cost).into_iter().enumerate() {
            let expectation_of = |weights: &[f64]| {
                let arcs = Arcs { blank: &weights[..blank_count], labels: &weights[blank_count..] };
                expectation(&*context, alignment, arcs, statistic).unwrap()
            };
            let computed = expectation_of(&weights);
            assert_near(
                "mean",
                &[computed.mean],
                &[expected.map_or(f64::INFINITY, |expected| expected[index])],
                1e-10,
                1e-10,
            );
            prop_assert_eq!(expected.is_none(), computed.log_sum == f64::NEG_INFINITY);
            let gradient = [computed.blank, computed.labels].concat();
            // Blocked arcs have no gradient; differences change only the others.
            let unblocked: Vec<usize> = (0..weights.len()).filter(|&i| weights[i].is_finite()).collect();
            let blocked = (0..weights.len()).filter(|i| !unblocked.contains(i));
            prop_assert!(blocked.into_iter().all(|i| gradient[i] == 0.0));
            let differences = if expected.is_none() {
                vec![0.0; unblocked.len()]
            } else {
                let mean_at = |values: &[f64]| {
                    let mut weights = weights.clone();
                    unblocked.iter().zip(values).for_each(|(&i, &value)| weights[i] = value);
                    Ok(expectation_of(&weights).mean)
                };
                let point: Vec<f64> = unblocked.iter().map(|&i| weights[i]).collect();
                differences::central_difference(mean_at, &point).unwrap()
            };
            let gradient: Vec<f64> = unblocked.iter().map(|&i| gradient[i]).collect();
            assert_near("gradient", &gradient, &differences, 1e-8, 1e-8);
        }
    }
}

/// Lengths of the utterances of a batch, whose padding is invalid.
const LENGTHS: [usize; 3] = [4, 0, 2];
/// T
const PADDED: usize = 5;

/// Returns random arc weights, *B x T x C x (1 + V)*.
fn table(states: usize, labels: usize) -> Vec<f64> {
    let mut values = normal(7, 1, LENGTHS.len() * PADDED * states * (1 + labels), 1.0);
    // Some blocked arcs.
    values.iter_mut().step_by(13).for_each(|w| *w = f64::NEG_INFINITY);
    values
}

/// Returns the rows of the table that frames use; NaN in padding.
fn rows() -> Vec<f64> {
    let row = |index: usize| {
        let (utterance, frame) = (index / PADDED, index % PADDED);
        if frame < LENGTHS[utterance] { frame as f64 } else { f64::NAN }
    };
    (0..LENGTHS.len() * PADDED).map(row).collect()
}

/// Returns label errors against a reference of each utterance.
fn costs(alignment: AlignmentLattice) -> impl Fn(usize) -> Box<dyn Fn(usize, FrameArc) -> f64> {
    move |utterance| {
        let reference: Vec<u32> = (0..30).map(|i| [0, 1, 2, 0][(i + utterance) % 4]).collect();
        Box::new(move |t, arc| alignment_errors(alignment, &reference)(t, arc))
    }
}

#[test]
fn batches_equal_single_utterances() {
    let context = FullNGram::new(2, 1).unwrap();
    let (states, labels) = (3, 2);
    let values = table(states, labels);
    let shape = [LENGTHS.len(), PADDED, states, 1 + labels];
    let weight_fn = TableWeightFn::new(&values, &shape).unwrap();
    let rows = rows();
    let frames = Frames::new(&rows, &[LENGTHS.len(), PADDED, 1], &LENGTHS).unwrap();
    let weights = [0.5, 3.0, -2.0];
    for alignment in [AlignmentLattice::FrameDependent, AlignmentLattice::frame_label_dependent(2).unwrap()] {
        let lattice = RecognitionLattice::new(&context, alignment, &weight_fn).unwrap();
        let label_costs: Vec<_> = (0..LENGTHS.len()).map(costs(alignment)).collect();
        for entropy in [true, false] {
            let statistic = |utterance: usize| {
                if entropy { PathStatistic::Entropy } else { PathStatistic::Cost(&*label_costs[utterance]) }
            };
            let computed = lattice.expectation_gradients(&frames, statistic, &weights).unwrap();
            assert_eq!(computed.sums, lattice.expectations(&frames, statistic).unwrap());
            assert_eq!(computed.frames, vec![0.0; rows.len()]);
            let mut expected = vec![0.0; values.len()];
            for (utterance, &length) in LENGTHS.iter().enumerate() {
                let start = utterance * PADDED * states * (1 + labels);
                let utterance_values = values[start..][..length * states * (1 + labels)].chunks(1 + labels);
                let blank: Vec<f64> = utterance_values.clone().map(|row| row[0]).collect();
                let label_arcs: Vec<f64> = utterance_values.flat_map(|row| row[1..].to_vec()).collect();
                let arcs = Arcs { blank: &blank, labels: &label_arcs };
                let ExpectationGradient { mean, blank, labels: label_arcs, .. } =
                    expectation(&context, alignment, arcs, statistic(utterance)).unwrap();
                assert_eq!(computed.sums[utterance], mean);
                for (row, (b, l)) in blank.iter().zip(label_arcs.chunks(labels)).enumerate() {
                    let to = &mut expected[start + row * (1 + labels)..][..1 + labels];
                    to[0] = weights[utterance] * b;
                    to[1..].iter_mut().zip(l).for_each(|(to, l)| *to = weights[utterance] * l);
                }
            }
            assert_eq!(computed.parameters["table"], expected);
            assert!(expected.iter().any(|&g| g != 0.0));
            assert_eq!(computed.sums[1], 0.0, "an utterance without frames has one path");
        }
    }
}

/// Results in f32 against f64 for the same weights.
#[test]
fn single_precision_is_close_to_double() {
    let context = FullNGram::new(2, 1).unwrap();
    let narrow: Vec<f32> = table(3, 2).into_iter().map(|w| w as f32).collect();
    let wide: Vec<f64> = narrow.iter().map(|&w| w.into()).collect();
    let rows: Vec<f32> = rows().into_iter().map(|x| x as f32).collect();
    let wide_rows: Vec<f64> = rows.iter().map(|&x| x.into()).collect();
    fn run<F: lattice::Real>(context: &FullNGram, values: &[F], rows: &[F]) -> LatticeOutput<F> {
        let weight_fn = TableWeightFn::new(values, &[LENGTHS.len(), PADDED, 3, 3]).unwrap();
        let lattice = RecognitionLattice::new(context, AlignmentLattice::FrameDependent, &weight_fn).unwrap();
        let frames = Frames::new(rows, &[LENGTHS.len(), PADDED, 1], &LENGTHS).unwrap();
        lattice.expectation_gradients(&frames, |_| PathStatistic::Entropy, &[1.0; LENGTHS.len()]).unwrap()
    }
    let (computed, expected) = (run(&context, &narrow, &rows), run(&context, &wide, &wide_rows));
    assert_eq!(computed.sums, expected.sums);
    let gradient: Vec<f64> = computed.parameters["table"].iter().map(|&g| g.into()).collect();
    assert_near("table", &gradient, &expected.parameters["table"], 1e-7, 1e-9);
}

/// A joint network that owns its parameters.
struct OwnedNetwork {
    parameters: Vec<Vec<f64>>,
}

/// Numbers of elements of the parameters.
const SIZES: [usize; 8] = [3 * 2, 2 * 4, 3 * 4, 4, 4, 1, 4 * 2, 2];

impl OwnedNetwork {
    fn new() -> Self {
        let sizes = SIZES.iter().enumerate();
        Self { parameters: sizes.map(|(i, &size)| normal(9, i as u64, size, 0.7)).collect() }
    }

    fn with<T>(&self, run: impl FnOnce(&dyn WeightFn<f64>) -> T) -> T {
        let [e, wc, wf, bias, w0, c0, w1, c1] = &self.parameters[..] else { unreachable!() };
        run(&JointWeightFn {
            embeddings: Embeddings::Table(e),
            states: 3,
            vocabulary: 2,
            project_context: wc,
            project_frame: wf,
            joint_bias: bias,
            blank_kernel: w0,
            blank_bias: c0,
            label_kernel: w1,
            label_bias: c1,
        })
    }
}

#[test]
fn gradients_of_parameters_and_frames_equal_differences() {
    const NAMES: [&str; 8] = [
        "weight_fn_cacher/context_embeddings",
        "weight_fn/project_context_embeddings/kernel",
        "weight_fn/project_frame/kernel",
        "weight_fn/joint_bias",
        "weight_fn/Dense_0/kernel",
        "weight_fn/Dense_0/bias",
        "weight_fn/Dense_1/kernel",
        "weight_fn/Dense_1/bias",
    ];
    let context = FullNGram::new(2, 1).unwrap();
    let (network, rows, weights) = (OwnedNetwork::new(), normal(11, 1, 2 * 3 * 3, 1.0), [1.5, -0.5]);
    for alignment in [AlignmentLattice::FrameDependent, AlignmentLattice::frame_label_dependent(1).unwrap()] {
        let label_costs: Vec<_> = (0..2).map(costs(alignment)).collect();
        for entropy in [true, false] {
            let statistic = |utterance: usize| {
                if entropy { PathStatistic::Entropy } else { PathStatistic::Cost(&*label_costs[utterance]) }
            };
            let run = |network: &OwnedNetwork, rows: &[f64]| -> LatticeOutput<f64> {
                let frames = Frames::new(rows, &[2, 3, 3], &[3, 2]).unwrap();
                network.with(|weight_fn| {
                    let lattice = RecognitionLattice::new(&context, alignment, weight_fn).unwrap();
                    lattice.expectation_gradients(&frames, statistic, &weights).unwrap()
                })
            };
            let total = |output: LatticeOutput<f64>| {
                output.sums.iter().zip(weights).map(|(sum, w)| sum * w).sum::<f64>()
            };
            let computed = run(&network, &rows);
            let expected =
                differences::central_difference(|rows| Ok(total(run(&network, rows))), &rows).unwrap();
            assert_near("frames", &computed.frames, &expected, 1e-8, 1e-8);
            assert!(computed.frames[15..].iter().all(|&g| g == 0.0), "padding");
            for (i, name) in NAMES.iter().enumerate() {
                let total_at = |values: &[f64]| {
                    let mut parameters = network.parameters.clone();
                    parameters[i] = values.to_vec();
                    Ok(total(run(&OwnedNetwork { parameters }, &rows)))
                };
                let expected = differences::central_difference(total_at, &network.parameters[i]).unwrap();
                assert_near(name, &computed.parameters[*name], &expected, 1e-8, 1e-8);
            }
        }
    }
}

#[test]
fn invalid_arguments_are_reported() {
    let context = FullNGram::new(1, 0).unwrap();
    let alignment = AlignmentLattice::FrameDependent;
    let run = |blank: &[f64], label_arcs: &[f64], statistic: PathStatistic| {
        expectation(&context, alignment, Arcs { blank, labels: label_arcs }, statistic)
    };
    let nan = |_: usize, _: FrameArc| f64::NAN;
    let error = |result: Result<ExpectationGradient, Error>| result.unwrap_err().to_string();
    let blocked = f64::NEG_INFINITY;
    assert!(error(run(&[0.0], &[0.0, 0.0], PathStatistic::Entropy)).starts_with("arcs.labels: expected 1"));
    assert!(error(run(&[0.0], &[0.0], PathStatistic::Cost(&nan))).contains("NaN in utterance 0"));
    for wrong in [f64::NAN, f64::INFINITY] {
        assert!(matches!(
            run(&[wrong], &[0.0], PathStatistic::Entropy),
            Err(Error::Overflow { utterance: 0, .. })
        ));
    }
    // The cost of a blocked arc is not evaluated; without a path there is no mean.
    let blank_cost = |_: usize, arc: FrameArc| if arc.label == 0 { 2.0 } else { f64::NAN };
    let computed = run(&[0.0], &[blocked], PathStatistic::Cost(&blank_cost)).unwrap();
    assert_eq!((computed.mean, computed.blank, computed.labels), (2.0, vec![0.0], vec![0.0]));
    for statistic in [PathStatistic::Entropy, PathStatistic::Cost(&nan)] {
        let computed = run(&[blocked], &[blocked], statistic).unwrap();
        assert_eq!((computed.log_sum, computed.mean), (blocked, f64::INFINITY));
        assert_eq!((computed.blank, computed.labels), (vec![0.0], vec![0.0]));
    }
    let weight_fn = TableWeightFn::new(&[0.0, 0.0], &[1, 1, 2]).unwrap();
    let lattice = RecognitionLattice::new(&context, alignment, &weight_fn).unwrap();
    let frames = Frames::new(&[0.0, 0.0], &[2, 1, 1], &[1, 1]).unwrap();
    for weights in [vec![1.0], vec![1.0, f64::NAN]] {
        assert!(lattice.expectation_gradients(&frames, |_| PathStatistic::Entropy, &weights).is_err());
    }
    let statistic =
        |utterance| if utterance == 1 { PathStatistic::Cost(&nan) } else { PathStatistic::Entropy };
    let computed = lattice.expectations(&frames, statistic).unwrap_err().to_string();
    assert!(computed.contains("NaN in utterance 1"), "{computed}");
}
