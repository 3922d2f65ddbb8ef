//! Gradients of losses of joint networks: central differences, single precision, long utterances.
use lattice::{LatticeOutput, LatticeSession, Normalize};
use oracle::differences::central;
use panda_core::Real;

use crate::{
    common::{Bar, F32_GRADIENTS, assert_within, dot, widened},
    problem::{Problem, own_name},
};

fn sum<F: Real>(problem: &Problem<F>, weights: &[f64]) -> LatticeOutput<F> {
    problem.with(|lattice, frames, labels| {
        LatticeSession::default().sum(lattice, frames, labels, weights).unwrap()
    })
}

/// Every parameter and all frames.
fn check(mut problem: Problem<f64>, what: &str) {
    let bar = Bar { relative: 2e-9, absolute: 2e-9 };
    let weights: Vec<f64> = (0..problem.num_frames.len()).map(|b| 1.0 - 0.7 * b as f64).collect();
    let found = sum(&problem, &weights);
    assert!(found.sums.iter().all(|loss| loss.is_finite() && *loss >= -1e-12), "{what}: {:?}", found.sums);
    assert_eq!(found.parameters.len(), problem.parameters.len(), "{what}");
    let value = |problem: &Problem<f64>| {
        problem.with(|lattice, frames, labels| {
            let losses =
                LatticeSession::default().distances(lattice::Sum::Loss, lattice, frames, Some(labels));
            dot(&losses.unwrap(), &weights)
        })
    };
    let at = problem.frames.clone();
    let of = |x: &[f64]| Ok(value(&Problem { frames: x.to_vec(), ..problem.clone() }));
    assert_within(&format!("{what}: frames"), &found.frames, &central(of, &at).unwrap(), bar);
    for (name, found) in &found.parameters {
        let own = own_name(name);
        let at = problem.parameters[&own].clone();
        let of = |x: &[f64]| {
            problem.parameters.insert(own.clone(), x.to_vec());
            Ok(value(&problem))
        };
        let expected = central(of, &at).unwrap();
        problem.parameters.insert(own.clone(), at);
        assert_within(&format!("{what}: {name}"), found, &expected, bar);
    }
}

#[test]
fn gradients_are_central_differences() {
    let lengths = [(4, 2), (3, 3), (0, 0), (2, 0)];
    for normalize in [None, Some(Normalize::Hat), Some(Normalize::LogSoftmax)] {
        for rnn in [false, true] {
            for (expansions, order) in [(None, 1), (Some(2), 1), (None, 2), (Some(1), 0)] {
                let problem = Problem::made_up((3, order), expansions, (4, rnn), &lengths);
                let what = format!("{normalize:?}, rnn {rnn}, K {expansions:?}, order {order}");
                check(Problem { normalize, ..problem }, &what);
            }
        }
    }
}

/// How far single precision is from double, of the same numbers.
#[derive(Debug)]
struct Apart {
    /// The largest share of the specification's bar for values.
    losses: f64,
    /// Of the bar for gradients.
    gradients: f64,
    /// The largest share of the largest element of an array.
    of_largest: f64,
}

fn apart(narrow: &Problem<f32>, weights: &[f64]) -> (Apart, Vec<f64>) {
    let (found, exact) = (sum(narrow, weights), sum(&narrow.of::<f64>(), weights));
    let mut apart = Apart { losses: 0.0, gradients: 0.0, of_largest: 0.0 };
    let largest = 4.0;
    for ((found, exact), &frames) in found.sums.iter().zip(&exact.sums).zip(&narrow.num_frames) {
        let bar = 2e-5 * exact.abs() + 1e-5 * largest * frames as f64;
        apart.losses = apart.losses.max((found - exact).abs() / bar);
    }
    let mut compare = |found: &[f32], exact: &[f64]| {
        let largest = exact.iter().fold(0.0f64, |largest, g| largest.max(g.abs()));
        for (found, exact) in widened(found).iter().zip(exact) {
            let error = (found - exact).abs();
            let bar = F32_GRADIENTS.relative * exact.abs() + F32_GRADIENTS.absolute;
            apart.gradients = apart.gradients.max(error / bar);
            // The blanks of as many frames cancel where each frame has one.
            if largest > 1e-3 {
                apart.of_largest = apart.of_largest.max(error / largest);
            }
        }
    };
    compare(&found.frames, &exact.frames);
    found.parameters.iter().for_each(|(name, found)| compare(found, &exact.parameters[name]));
    (apart, exact.sums)
}

/// Sums of projections beyond what can be prepared (|x| > 21), in contexts and in frames.
#[test]
fn large_sums_inside_tangents() {
    for (expansions, normalize) in [(None, None), (Some(2), None), (Some(1), Some(Normalize::Hat))] {
        let problem = Problem::<f32>::made_up((37, 1), expansions, (19, false), &[(13, 4), (6, 2)]);
        let mut problem = Problem { normalize, ..problem };
        for at in [3 * 5, 3 * 33 + 1] {
            problem.parameters.get_mut("weight_fn_cacher/context_embeddings").unwrap()[at] = 60.0;
        }
        (problem.frames[2 * 4], problem.frames[2 * 15 + 1]) = (-55.0, 80.0);
        let (apart, losses) = apart(&problem, &[1.0, -2.0]);
        println!("K {expansions:?}, {normalize:?}: losses {losses:?}, {apart:?}");
        assert!(apart.losses < 1.0 && apart.gradients < 1.0, "{apart:?}");
    }
}

/// The specification's section 12.6: as good after thousands of frames as after ten.
#[test]
fn long_utterances_in_single_precision() {
    let cases = [
        ((8, 1), None, 1000, 250, None),
        ((8, 1), Some(2), 1000, 400, None),
        ((5, 2), None, 3000, 700, None),
        ((32, 0), None, 3000, 900, None),
        ((8, 1), Some(1), 2000, 300, Some(Normalize::Hat)),
        ((8, 1), None, 2000, 300, Some(Normalize::LogSoftmax)),
    ];
    for (context, expansions, frames, labels, normalize) in cases {
        let problem = Problem::<f32>::made_up(context, expansions, (16, false), &[(frames, labels)]);
        let mut problem = Problem { normalize, ..problem };
        // All paths weigh thousands.
        problem.parameters.get_mut("weight_fn/Dense_0/bias").unwrap()[0] += 2.0;
        problem.parameters.get_mut("weight_fn/Dense_1/bias").unwrap().iter_mut().for_each(|c| *c += 2.0);
        let (apart, losses) = apart(&problem, &[1.0]);
        let total = problem.with(|lattice, frames, _| {
            LatticeSession::default().distances(lattice::Sum::Denominator, lattice, frames, None).unwrap()[0]
        });
        println!(
            "{context:?}, K {expansions:?}, {normalize:?}, T {frames}, U {labels}: log D {total:.0}, loss {:.0}, {apart:?}",
            losses[0]
        );
        assert!(apart.losses < 1.0 && apart.gradients < 1.0 && apart.of_largest < 1e-5, "{apart:?}");
        assert!(normalize.is_some() || total > 4000.0);
    }
}
