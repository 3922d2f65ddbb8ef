//! Loss gradients of lattices with joint networks, compared with differences.
//!
//! Gradients in single precision are compared with double precision, also for long utterances and
//! large weights.
use lattice::{LatticeOutput, LatticeSession, Normalize};
use oracle::differences::central_difference;
use panda_core::Real;

use crate::{
    common::{F32_GRADIENTS, Tolerance, assert_within, dot, widened},
    problem::{Problem, own_name},
};

fn sum<F: Real>(problem: &Problem<F>, weights: &[f64]) -> LatticeOutput<F> {
    problem.with(|lattice, frames, labels| {
        LatticeSession::default().sum(lattice, frames, labels, weights).unwrap()
    })
}

/// Compares the gradients of all parameters and frames with differences.
fn assert_gradients(mut problem: Problem<f64>, case: &str) {
    let tolerance = Tolerance { relative: 2e-9, absolute: 2e-9 };
    let weights: Vec<f64> = (0..problem.num_frames.len()).map(|b| 1.0 - 0.7 * b as f64).collect();
    let computed = sum(&problem, &weights);
    assert!(
        computed.sums.iter().all(|loss| loss.is_finite() && *loss >= -1e-12),
        "{case}: {:?}",
        computed.sums
    );
    assert_eq!(computed.parameters.len(), problem.parameters.len(), "{case}");
    let value = |problem: &Problem<f64>| {
        problem.with(|lattice, frames, labels| {
            let losses =
                LatticeSession::default().distances(lattice::PathSum::Loss, lattice, frames, Some(labels));
            dot(&losses.unwrap(), &weights)
        })
    };
    let point = problem.frames.clone();
    let value_at = |x: &[f64]| Ok(value(&Problem { frames: x.to_vec(), ..problem.clone() }));
    assert_within(
        &format!("{case}: frames"),
        &computed.frames,
        &central_difference(value_at, &point).unwrap(),
        tolerance,
    );
    for (name, computed) in &computed.parameters {
        let parameter = own_name(name);
        let point = problem.parameters[&parameter].clone();
        let value_at = |x: &[f64]| {
            problem.parameters.insert(parameter.clone(), x.to_vec());
            Ok(value(&problem))
        };
        let expected = central_difference(value_at, &point).unwrap();
        problem.parameters.insert(parameter.clone(), point);
        assert_within(&format!("{case}: {name}"), computed, &expected, tolerance);
    }
}

#[test]
fn gradients_equal_central_differences() {
    let lengths = [(4, 2), (3, 3), (0, 0), (2, 0)];
    for normalize in [None, Some(Normalize::Hat), Some(Normalize::LogSoftmax)] {
        for rnn in [false, true] {
            for (expansions, order) in [(None, 1), (Some(2), 1), (None, 2), (Some(1), 0)] {
                let problem = Problem::random((3, order), expansions, (4, rnn), &lengths);
                let case = format!("{normalize:?}, rnn {rnn}, K {expansions:?}, order {order}");
                assert_gradients(Problem { normalize, ..problem }, &case);
            }
        }
    }
}

/// Errors of single precision relative to double precision.
#[derive(Debug)]
struct RelativeErrors {
    /// Largest error of a loss, relative to the tolerance of the specification.
    losses: f64,
    /// Largest error of a gradient, relative to its tolerance.
    gradients: f64,
    /// Largest error relative to the largest element of an array.
    maximum: f64,
}

fn relative_errors(narrow: &Problem<f32>, weights: &[f64]) -> (RelativeErrors, Vec<f64>) {
    let (computed, exact) = (sum(narrow, weights), sum(&narrow.cast::<f64>(), weights));
    let mut errors = RelativeErrors { losses: 0.0, gradients: 0.0, maximum: 0.0 };
    let largest = 4.0;
    for ((computed, exact), &frames) in computed.sums.iter().zip(&exact.sums).zip(&narrow.num_frames) {
        let tolerance = 2e-5 * exact.abs() + 1e-5 * largest * frames as f64;
        errors.losses = errors.losses.max((computed - exact).abs() / tolerance);
    }
    let mut compare = |computed: &[f32], exact: &[f64]| {
        let largest = exact.iter().fold(0.0f64, |largest, g| largest.max(g.abs()));
        for (computed, exact) in widened(computed).iter().zip(exact) {
            let error = (computed - exact).abs();
            let tolerance = F32_GRADIENTS.relative * exact.abs() + F32_GRADIENTS.absolute;
            errors.gradients = errors.gradients.max(error / tolerance);
            // If each frame has one blank, the gradient of blanks cancels.
            if largest > 1e-3 {
                errors.maximum = errors.maximum.max(error / largest);
            }
        }
    };
    compare(&computed.frames, &exact.frames);
    computed.parameters.iter().for_each(|(name, computed)| compare(computed, &exact.parameters[name]));
    (errors, exact.sums)
}

/// Projections are too large for their exponential form (|x| > 21).
///
/// Large values are in contexts and in frames.
#[test]
fn large_sums_inside_tangents_are_accurate() {
    for (expansions, normalize) in [(None, None), (Some(2), None), (Some(1), Some(Normalize::Hat))] {
        let problem = Problem::<f32>::random((37, 1), expansions, (19, false), &[(13, 4), (6, 2)]);
        let mut problem = Problem { normalize, ..problem };
        for index in [3 * 5, 3 * 33 + 1] {
            problem.parameters.get_mut("weight_fn_cacher/context_embeddings").unwrap()[index] = 60.0;
        }
        (problem.frames[2 * 4], problem.frames[2 * 15 + 1]) = (-55.0, 80.0);
        let (errors, losses) = relative_errors(&problem, &[1.0, -2.0]);
        println!("K {expansions:?}, {normalize:?}: losses {losses:?}, {errors:?}");
        assert!(errors.losses < 1.0 && errors.gradients < 1.0, "{errors:?}");
    }
}

/// Section 12.6 of the specification: errors do not grow with the number of frames.
#[test]
fn long_utterances_are_accurate_in_single_precision() {
    let cases = [
        ((8, 1), None, 1000, 250, None),
        ((8, 1), Some(2), 1000, 400, None),
        ((5, 2), None, 3000, 700, None),
        ((32, 0), None, 3000, 900, None),
        ((8, 1), Some(1), 2000, 300, Some(Normalize::Hat)),
        ((8, 1), None, 2000, 300, Some(Normalize::LogSoftmax)),
    ];
    for (context, expansions, frames, labels, normalize) in cases {
        let problem = Problem::<f32>::random(context, expansions, (16, false), &[(frames, labels)]);
        let mut problem = Problem { normalize, ..problem };
        // All paths have weights of thousands.
        problem.parameters.get_mut("weight_fn/Dense_0/bias").unwrap()[0] += 2.0;
        problem.parameters.get_mut("weight_fn/Dense_1/bias").unwrap().iter_mut().for_each(|c| *c += 2.0);
        let (errors, losses) = relative_errors(&problem, &[1.0]);
        let total = problem.with(|lattice, frames, _| {
            LatticeSession::default().distances(lattice::PathSum::Denominator, lattice, frames, None).unwrap()
                [0]
        });
        println!(
            "{context:?}, K {expansions:?}, {normalize:?}, T {frames}, U {labels}: log D {total:.0}, loss {:.0}, {errors:?}",
            losses[0]
        );
        assert!(errors.losses < 1.0 && errors.gradients < 1.0 && errors.maximum < 1e-5, "{errors:?}");
        assert!(normalize.is_some() || total > 4000.0);
    }
}
