//! Invalid input of lattices gives an error that names the argument.
//!
//! There is never a panic or a silent NaN. The tests are by kind of input: labels, frames, shapes,
//! parameters, arc weights, contexts, budgets and search options.
use lattice::{
    AlignmentLattice, Arcs, BeamOptions, BestPathStream, Context, Embeddings, Error, Frames, FullNGram,
    JointWeightFn, Labels, LatticeSession, LocallyNormalized, Merge, NBestOptions, NextStateTable, Normalize,
    Options, PathSum, RecognitionLattice, Result, SharedRnn, TableWeightFn, WeightFn,
    distance::{arc_sums_step, forward_step, string_distance, string_forward_step},
    expectation::{PathStatistic, expectation},
};
use rnnt_dp::semiring::{Count, Log};

use crate::{
    common::random,
    problem::{FEATURES, Problem},
};

#[track_caller]
fn assert_message<T>(result: Result<T>, parts: &[&str]) {
    let message = match result {
        Ok(_) => panic!("no error, expected {parts:?}"),
        Err(error) => error.to_string(),
    };
    assert!(parts.iter().all(|part| message.contains(part)), "{message}: expected {parts:?}");
}

fn problem() -> Problem<f32> {
    Problem::random((3, 1), Some(2), (5, false), &[(4, 2), (6, 3), (2, 1)])
}

fn losses(problem: &Problem<f32>) -> Result<Vec<f64>> {
    problem.with(|lattice, frames, labels| {
        let mut session = LatticeSession::default();
        let planned = session.plan(lattice, frames, labels).map(|_| ());
        let summed = session.sum(lattice, frames, labels, &[1.0; 3]).map(|output| output.sums);
        let pending = session.forward(lattice, frames, labels).map(|pending| pending.losses().to_vec());
        let distances = session.distances(PathSum::Loss, lattice, frames, Some(labels));
        // Compared as text because NaN differs from itself.
        assert_eq!(format!("{summed:?}"), format!("{pending:?}"));
        assert_eq!(format!("{summed:?}"), format!("{distances:?}"));
        if let Err(error) = planned {
            assert_eq!(format!("{summed:?}"), format!("{:?}", Err::<(), _>(error)));
        }
        summed
    })
}

#[test]
fn labels_out_of_range_are_errors() {
    for (label, message) in [(0, "found 0"), (4, "found 4"), (u32::MAX, "found 4294967295")] {
        let mut problem = problem();
        problem.labels[3 + 2] = label;
        let parts = ["labels", "1 to 3", "position 2", "utterance 1", message];
        assert_message(losses(&problem), &parts);
        problem.with(|lattice, frames, labels| {
            let mut session = LatticeSession::default();
            assert_message(session.best_alignments(lattice, frames, labels), &parts);
            assert_message(
                session.sum_paths(PathSum::Numerator, lattice, frames, Some(labels), &[1.0; 3]),
                &parts,
            );
            assert_message(session.plan(lattice, frames, labels), &parts);
        });
        problem.num_labels[1] = 2;
        losses(&problem).unwrap();
    }
}

#[test]
fn frames_that_are_not_finite_are_errors() {
    for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut problem = problem();
        problem.frames[(6 + 3) * FEATURES + 1] = value;
        let frames = |problem: &Problem<f32>| {
            Frames::new(&problem.frames, &[3, 6, FEATURES], &problem.num_frames).map(|_| ())
        };
        assert_message(frames(&problem), &["frames", "frame 3 of utterance 1"]);
        problem.num_frames[1] = 3;
        frames(&problem).unwrap();
        losses(&problem).unwrap();
    }
}

#[test]
fn shapes_that_disagree_are_errors() {
    let values = [0.0f32; 24];
    let max = usize::MAX;
    let new = |shape: &[usize], lengths: &[usize]| Frames::new(&values, shape, lengths).map(|_| ());
    assert_message(new(&[], &[1]), &["frames", "0 axes"]);
    assert_message(new(&[24], &[1]), &["frames", "1 axes"]);
    assert_message(new(&[2, 4, 2], &[4, 4]), &["frames", "16 values", "24"]);
    assert_message(new(&[2, 6, 2], &[6]), &["num_frames", "2 lengths", "found 1"]);
    assert_message(new(&[max, max, 2], &[1]), &["frames"]);
    assert_message(new(&[max, 2, 2], &[1]), &["frames"]);
    assert_message(Frames::<f32>::new(&[], &[1, max, 0], &[max]), &["frames", "at least 1 feature"]);
    assert_message(Frames::<f32>::new(&[], &[max, 0, 1], &[1]), &["num_frames"]);
    let ids = [1u32; 6];
    assert_message(Labels::new(&ids, &[], &[1]), &["labels", "0 axes"]);
    assert_message(Labels::new(&ids, &[2, 2], &[1, 1]), &["labels", "4 values", "6"]);
    assert_message(Labels::new(&ids, &[2, 3], &[1]), &["num_labels", "2 lengths"]);
    assert_message(Labels::new(&ids, &[max, max], &[1]), &["labels"]);

    let problem = problem();
    problem.with(|lattice, frames, labels| {
        let mut session = LatticeSession::default();
        let ids = [1u32; 6];
        for (shape, lengths) in [(&[2, 3][..], &[1; 2][..]), (&[3, 1, 2], &[1; 3]), (&[1, 3, 2], &[1; 3])] {
            let labels = Labels::new(&ids, shape, lengths).unwrap();
            let parts = ["labels", "[3] of the frames"];
            assert_message(session.sum(lattice, frames, &labels, &[1.0; 3]), &parts);
            assert_message(session.plan(lattice, frames, &labels), &parts);
            assert_message(session.best_alignments(lattice, frames, &labels), &parts);
        }
        let wide = vec![0.0; 3 * 6 * 7];
        let wide = Frames::new(&wide, &[3, 6, 7], &[1; 3]).unwrap();
        assert_message(session.best_paths(lattice, &wide), &["frames", "2 features", "7"]);
        assert_message(session.plan(lattice, &wide, labels), &["frames", "2 features", "7"]);
        assert_message(
            session.sum_paths(PathSum::Numerator, lattice, frames, None, &[1.0; 3]),
            &["labels", "none"],
        );
        assert_message(session.distances(PathSum::Loss, lattice, frames, None), &["labels", "none"]);
        for weights in [&[1.0; 2][..], &[1.0; 4], &[]] {
            assert_message(session.sum(lattice, frames, labels, weights), &["weights", "3 weights"]);
            let pending = session.forward(lattice, frames, labels).unwrap();
            assert_message(pending.backward(weights), &["weights", "3 weights"]);
        }
        // The last two values are infinite in single precision.
        for bad in [f64::NAN, f64::INFINITY, 1e39, -1e300] {
            assert_message(session.sum(lattice, frames, labels, &[1.0, bad, 0.0]), &["weights", "index 1"]);
            let pending = session.forward(lattice, frames, labels).unwrap();
            assert_message(pending.backward(&[1.0, bad, 0.0]), &["weights", "index 1"]);
        }
    });
}

#[test]
fn parameters_that_are_not_finite_are_errors() {
    for rnn in [false, true] {
        let good = Problem::<f32>::random((3, 1), None, (5, rnn), &[(4, 2), (6, 3), (2, 1)]);
        for normalize in [None, Some(Normalize::Hat), Some(Normalize::LogSoftmax)] {
            for name in good.parameters.keys() {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut problem = Problem { normalize, ..good.clone() };
                    let parameter = problem.parameters.get_mut(name).unwrap();
                    let last = parameter.len() - 1;
                    parameter[last] = value;
                    assert_message(losses(&problem), &[name, &format!("index {last}")]);
                }
                // One value more, one less, and none.
                for change in [1, -1, i64::MIN] {
                    let mut problem = Problem { normalize, ..good.clone() };
                    let parameter = problem.parameters.get_mut(name).unwrap();
                    let len = parameter.len().saturating_add_signed(change as isize);
                    parameter.resize(len, 0.0);
                    problem.with(|lattice, frames, labels| {
                        let mut session = LatticeSession::default();
                        let _ = session.plan(lattice, frames, labels);
                        assert!(session.sum(lattice, frames, labels, &[1.0; 3]).is_err(), "{name} of {len}");
                        assert!(session.best_paths(lattice, frames).is_err(), "{name} of {len}");
                    });
                }
            }
        }
    }
}

/// Finite parameters with infinite sums.
#[test]
fn too_large_parameters_never_give_nan() {
    for name in problem().parameters.keys() {
        for value in [3e38f32, -3e38, 1e20] {
            let mut problem = problem();
            problem.parameters.get_mut(name).unwrap().fill(value);
            problem.with(|lattice, frames, labels| {
                let mut session = LatticeSession::default();
                match session.sum(lattice, frames, labels, &[1.0; 3]) {
                    Ok(output) => {
                        assert!(output.sums.iter().all(|loss| !loss.is_nan()), "{name} {value}");
                        let all = output.parameters.values().flatten().chain(&output.frames);
                        assert!(all.into_iter().all(|g| !g.is_nan()), "{name} {value}");
                    }
                    Err(error) => println!("{name} {value:e}: {error}"),
                }
            });
        }
    }
    let mut problem = problem();
    problem.parameters.get_mut("weight_fn/project_frame/kernel").unwrap().fill(3e38);
    problem.frames.fill(10.0);
    assert_message(losses(&problem), &["weight_fn/project_frame/kernel", "frame 0 of utterance 0"]);
    let mut problem = self::problem();
    problem.parameters.get_mut("weight_fn/project_context_embeddings/kernel").unwrap().fill(3e38);
    let embeddings = problem.parameters.get_mut("weight_fn_cacher/context_embeddings").unwrap();
    embeddings.fill(0.0);
    // A state that no utterance of one frame leaves.
    embeddings[3 * 2..3 * 3].copy_from_slice(&[9.0, -9.0, 9.0]);
    problem.num_frames = vec![1; 3];
    assert_message(losses(&problem), &["weight_fn/project_context_embeddings/kernel", "state 2"]);
}

/// Enormous arc weights give an error or results without NaN.
#[test]
fn enormous_arc_weights_never_give_nan() {
    fn check_scales<F: lattice::Real>(scales: &[f64]) {
        let (v, frame_count) = (2usize, 6usize);
        let mut errors = 0;
        let mut results = 0;
        for &scale in scales {
            for seed in 0..60 {
                let context = FullNGram::new(v, 1).unwrap();
                let size = frame_count * context.states() * (1 + v);
                let sign = random::<f64>(size, seed, 1.0);
                let table: Vec<F> = sign
                    .iter()
                    .map(|&w| {
                        let large = if seed % 3 == 0 { w } else { w.signum() * w.abs().powi(8) };
                        if seed % 5 == 0 && w < -0.7 { F::NEG_INFINITY } else { F::from_f64(scale * large) }
                    })
                    .collect();
                let table = TableWeightFn::new(&table, &[frame_count, context.states(), 1 + v]).unwrap();
                let expansions = [None, Some(1), Some(2)][seed as usize % 3];
                let alignment = expansions.map_or(AlignmentLattice::FrameDependent, |k| {
                    AlignmentLattice::frame_label_dependent(k).unwrap()
                });
                let lattice = RecognitionLattice::new(&context, alignment, &table).unwrap();
                let rows: Vec<F> = (0..frame_count).map(|t| F::from_f64(t as f64)).collect();
                let frames = Frames::new(&rows, &[1, frame_count, 1], &[frame_count]).unwrap();
                let labels = Labels::new(&[1, 2, 1], &[1, 3], &[3]).unwrap();
                let mut session = LatticeSession::default();
                match session.sum(&lattice, &frames, &labels, &[1.0]) {
                    Err(_) => errors += 1,
                    Ok(output) => {
                        results += 1;
                        assert!(!output.sums[0].is_nan(), "{scale:e} {seed}");
                        // Differences of two posteriors, which may be imprecise by 10 %.
                        let gradient = &output.parameters["table"];
                        let largest = gradient.iter().map(|g| g.to_f64().abs()).fold(0.0, f64::max);
                        assert!(
                            gradient.iter().all(|g| g.to_f64().is_finite()),
                            "{scale:e} {seed}: {gradient:?}"
                        );
                        assert!(largest < 2.2, "{scale:e} {seed}: {largest:e}");
                    }
                }
                if let Ok((blank, label_arcs)) = session.marginals(&lattice, &frames) {
                    for (b, l) in blank.chunks(context.states()).zip(label_arcs.chunks(context.states() * v))
                    {
                        let sum = |values: &[F]| values.iter().map(|g| g.to_f64()).sum::<f64>();
                        let frame_sum = sum(b) + if expansions.is_none() { sum(l) } else { 0.0 };
                        let sums = session.distances(PathSum::Denominator, &lattice, &frames, None).unwrap();
                        if sums[0] > f64::NEG_INFINITY {
                            assert!((0.89..1.11).contains(&frame_sum), "{scale:e} {seed}: {frame_sum}");
                        }
                    }
                }
                if let Ok(paths) = session.best_paths(&lattice, &frames) {
                    assert!(!paths[0].weight.is_nan());
                }
                if let Ok(paths) = session.best_alignments(&lattice, &frames, &labels) {
                    assert!(!paths[0].weight.is_nan());
                }
            }
        }
        println!("{results} results, {errors} errors");
    }
    check_scales::<f32>(&[1e3, 1e5, 1e6, 1e7, 1e8, 1e9, 1e12, 1e20, 1e30, 1e37, 1e38, 3.4e38]);
    check_scales::<f64>(&[1e3, 1e8, 1e14, 1e15, 1e16, 1e18, 1e30, 1e300, 1e307, 1.7e308]);
}

#[test]
fn invalid_contexts_are_errors() {
    let max = usize::MAX;
    assert_message(FullNGram::new(0, 1), &["vocabulary", "at least 1"]);
    assert_message(FullNGram::new(2, max), &["order"]);
    assert_message(FullNGram::new(max, 1), &["order"]);
    assert_message(FullNGram::new(max, 2), &["order"]);
    assert_message(FullNGram::new(1 << 16, 2), &["order"]);
    assert_eq!(FullNGram::new(1, 1000).unwrap().states(), 1001);
    assert_eq!(FullNGram::new(max, 0).unwrap().states(), 1);
    assert_message(NextStateTable::new(&[], 0, 3), &["table", "at least 1 state"]);
    assert_message(NextStateTable::new(&[], 3, 0), &["table", "at least 1 state"]);
    assert_message(NextStateTable::new(&[0, 0, 0], 2, 2), &["table", "4 values", "3"]);
    assert_message(NextStateTable::new(&[0, 1, 0, 2], 2, 2), &["state 1", "label 2", "found 2"]);
    assert_message(NextStateTable::new(&[0, -1, 0, 0], 2, 2), &["state 0", "label 2", "found -1"]);
    assert_message(NextStateTable::new(&[i64::MAX], 1, 1), &["state 0", "label 1"]);
    assert_message(NextStateTable::new(&[], max, max), &["table", "context states"]);
    assert_message(NextStateTable::new(&[], 1 << 31, max), &["table"]);
    assert_message(AlignmentLattice::frame_label_dependent(max), &["expansions"]);
    let context = FullNGram::new(2, 1).unwrap();
    assert_message(lattice::context::walk_states(&context, &[1, 3]), &["labels", "position 1", "found 3"]);
}

#[test]
fn tables_that_do_not_fit_are_errors() {
    let max = usize::MAX;
    let new = |values: &[f64], shape: &[usize]| TableWeightFn::new(values, shape).map(|_| ());
    assert_message(new(&[], &[]), &["table", "axes"]);
    assert_message(new(&[0.0; 4], &[2, 2]), &["table", "axes"]);
    assert_message(new(&[0.0; 4], &[4, 1, 1]), &["table", "2 columns"]);
    assert_message(new(&[0.0; 4], &[4, 1, 0]), &["table", "2 columns"]);
    assert_message(new(&[0.0; 5], &[2, 1, 2]), &["table", "4 values", "5"]);
    assert_message(new(&[], &[max, max, 2, 2]), &["table"]);
    assert_message(new(&[0.0, f64::NAN, 0.0, 0.0], &[2, 1, 2]), &["table", "index 1", "NaN"]);
    assert_message(new(&[0.0, 0.0, f64::INFINITY, 0.0], &[2, 1, 2]), &["table", "index 2"]);

    let context = FullNGram::new(1, 0).unwrap();
    let values = [0.5f64; 3 * 2 * 2];
    let table = TableWeightFn::new(&values, &[3, 2, 1, 2]).unwrap();
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &table).unwrap();
    let mut session = LatticeSession::default();
    // Different utterances than those of the table.
    let x = [0.0, 1.0, 1.0, 0.0];
    let frames = Frames::new(&x, &[2, 2, 1], &[2, 2]).unwrap();
    assert_message(session.best_paths(&lattice, &frames), &["frames", "3 utterances", "2"]);
    // Rows that the table does not have.
    for bad in [2.0, -1.0, 1e300] {
        let x = [0.0, 1.0, 0.0, 0.0, 0.0, bad];
        let frames = Frames::new(&x, &[3, 2, 1], &[2, 1, 2]).unwrap();
        assert_message(
            session.best_paths(&lattice, &frames),
            &["frames", "below 2", "frame 1 of utterance 2"],
        );
    }
    let none = TableWeightFn::<f64>::new(&[], &[0, 1, 2]).unwrap();
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &none).unwrap();
    let frames = Frames::new(&[0.0; 2], &[2, 1], &[2]).unwrap();
    assert_message(session.best_paths(&lattice, &frames), &["frames", "below 0", "frame 0 of utterance 0"]);
    // Weights for another context, and for more states than can be numbered.
    let two_labels = FullNGram::new(2, 0).unwrap();
    let lattice = |context, table| RecognitionLattice::new(context, AlignmentLattice::FrameDependent, table);
    assert_message(lattice(&two_labels, &none), &["weight_fn.vocabulary", "2"]);
    let enormous = TableWeightFn::<f64>::new(&[], &[0, 1, max]).unwrap();
    let context = FullNGram::new(max - 1, 0).unwrap();
    assert_message(lattice(&context, &enormous), &["context"]);
}

/// A joint network of any sizes.
fn joint(embeddings: Embeddings<f32>, states: usize, vocabulary: usize) -> JointWeightFn<f32> {
    JointWeightFn {
        embeddings,
        states,
        vocabulary,
        project_context: &[0.5],
        project_frame: &[0.5],
        joint_bias: &[0.5],
        blank_kernel: &[0.5],
        blank_bias: &[0.5],
        label_kernel: &[0.5],
        label_bias: &[0.5],
    }
}

#[test]
fn joint_networks_that_do_not_fit_are_errors() {
    let max = usize::MAX;
    let good = joint(Embeddings::Table(&[0.5]), 1, 1);
    good.bind(&mut Vec::new()).unwrap();
    let sizes = [0, 1, 2, 3, 1 << 31, 1 << 62, 1 << 63, max - 1, max];
    let rnn = |vocabulary, order, embedding| {
        let gates: [&[f32]; 4] = [&[0.5]; 4];
        Embeddings::Rnn(SharedRnn {
            vocabulary,
            order,
            embedding,
            input: gates,
            recurrent: gates,
            bias: gates,
        })
    };
    for &states in &sizes {
        for &vocabulary in &sizes {
            for embeddings in
                [Embeddings::Table(&[0.5][..]), Embeddings::Table(&[]), rnn(vocabulary, 1, &[0.5; 2])]
            {
                let joint = JointWeightFn { states, vocabulary, embeddings, ..good };
                let fits = (states, vocabulary) == (1, 1) || (states, vocabulary) == (2, 1);
                if !fits {
                    assert!(joint.bind(&mut Vec::new()).is_err(), "{states} {vocabulary}");
                }
                let _ = joint.context_embeddings().map(|_| ());
                for frames in [1, 1 << 40, max] {
                    let workload =
                        lattice::Workload { frames, wave: frames, positions: frames, gradients: true };
                    joint.scratch(workload);
                    LocallyNormalized::new(joint, Normalize::Hat).scratch(workload);
                    LocallyNormalized::new(joint, Normalize::LogSoftmax).scratch(workload);
                    if frames > 1 && states == 3 && vocabulary > 0 {
                        assert!(joint.scratch(workload).bytes() >= 1 << 40);
                    }
                }
            }
        }
    }
    for field in 0..7 {
        let mut broken = good;
        let empty: &[f32] = &[];
        match field {
            0 => broken.project_context = empty,
            1 => broken.project_frame = &[0.5; 2],
            2 => broken.joint_bias = empty,
            3 => broken.blank_kernel = empty,
            4 => broken.blank_bias = empty,
            5 => broken.label_kernel = empty,
            _ => broken.label_bias = empty,
        }
        if field == 1 {
            assert_eq!(WeightFn::<f32>::frame_size(&broken), Some(2));
            continue;
        }
        assert!(broken.bind(&mut Vec::new()).is_err(), "{field}");
        let context = FullNGram::new(1, 0).unwrap();
        let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &broken).unwrap();
        let frames = Frames::new(&[0.0], &[1, 1], &[1]).unwrap();
        let labels = Labels::new(&[1], &[1], &[1]).unwrap();
        let mut session = LatticeSession::default();
        let _ = session.plan(&lattice, &frames, &labels);
        session.sum(&lattice, &frames, &labels, &[1.0]).unwrap_err();
    }
    // No features, but frames always have some.
    let blind = JointWeightFn { project_frame: &[], ..good };
    let context = FullNGram::new(1, 0).unwrap();
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &blind).unwrap();
    let frames = Frames::new(&[0.0], &[1, 1], &[1]).unwrap();
    assert_message(LatticeSession::default().best_paths(&lattice, &frames), &["frames", "0 features", "1"]);
}

/// A network of too many states is rejected before allocations.
#[test]
fn enormous_contexts_are_planned_first() {
    let (vocabulary, order) = (2, 29);
    let context = FullNGram::new(vocabulary, order).unwrap();
    let gates: [&[f32]; 4] = [&[0.5]; 4];
    let embedding = [0.5; 3];
    let rnn =
        SharedRnn { vocabulary, order, embedding: &embedding, input: gates, recurrent: gates, bias: gates };
    let joint = JointWeightFn {
        label_kernel: &[0.5; 2],
        label_bias: &[0.5; 2],
        ..joint(Embeddings::Rnn(rnn), context.states(), vocabulary)
    };
    let lattice = RecognitionLattice::new(&context, AlignmentLattice::FrameDependent, &joint).unwrap();
    let frames = Frames::new(&[0.0; 4], &[1, 4, 1], &[4]).unwrap();
    let labels = Labels::new(&[1], &[1, 1], &[1]).unwrap();
    let mut session = LatticeSession::default();
    let parts = ["budget: expected at least"];
    assert_message(session.plan(&lattice, &frames, &labels), &parts);
    assert_message(session.sum(&lattice, &frames, &labels, &[1.0]), &parts);
    assert_message(session.best_paths(&lattice, &frames), &parts);
    assert_message(session.marginals(&lattice, &frames), &parts);
}

#[test]
fn empty_input_is_valid() {
    for expansions in [None, Some(0), Some(2)] {
        for normalize in [None, Some(Normalize::Hat), Some(Normalize::LogSoftmax)] {
            let no_utterances = Problem::<f32>::random((3, 1), expansions, (5, true), &[]);
            let no_frames = Problem::<f32>::random((3, 1), expansions, (5, true), &[(0, 0), (0, 0), (0, 0)]);
            for (problem, count) in [(no_utterances, 0), (no_frames, 3)] {
                let problem = Problem { normalize, ..problem };
                let weights = vec![1.0; count];
                problem.with(|lattice, frames, labels| {
                    let mut session = LatticeSession::default();
                    let output = session.sum(lattice, frames, labels, &weights).unwrap();
                    assert_eq!(output.sums, vec![0.0; count]);
                    assert!(
                        output.parameters.values().flatten().all(|&g| g == 0.0) && output.frames.is_empty()
                    );
                    let pending = session.forward(lattice, frames, labels).unwrap();
                    assert_eq!(pending.backward(&weights).unwrap(), output);
                    let denominator = session.distances(PathSum::Denominator, lattice, frames, None).unwrap();
                    assert_eq!(denominator, vec![0.0; count]);
                    assert!(session.alphas(lattice, frames).unwrap().is_empty());
                    let (blank, label_arcs) = session.marginals(lattice, frames).unwrap();
                    assert!(blank.is_empty() && label_arcs.is_empty());
                    let paths = session.best_paths(lattice, frames).unwrap();
                    assert_eq!(paths, session.best_alignments(lattice, frames, labels).unwrap());
                    assert!(
                        paths.len() == count
                            && paths.iter().all(|p| p.weight == 0.0 && p.labels().is_empty())
                    );
                });
            }
        }
    }
    // Empty axes next to enormous ones.
    let max = usize::MAX;
    let problem = problem();
    problem.with(|lattice, _, _| {
        let frames = Frames::new(&[], &[0, max, FEATURES], &[]).unwrap();
        let labels = Labels::new(&[], &[0, max], &[]).unwrap();
        let mut session = LatticeSession::default();
        assert!(session.sum(lattice, &frames, &labels, &[]).unwrap().sums.is_empty());
        assert!(session.marginals(lattice, &frames).unwrap().0.is_empty());
        assert!(session.alphas(lattice, &frames).unwrap().is_empty());
    });
}

#[test]
fn labels_without_storage_have_no_path() {
    // U = 0 with M > 0, and counts beyond the array.
    let mut problem = problem();
    (problem.padded_labels, problem.labels, problem.num_labels) = (0, Vec::new(), vec![0, 1, usize::MAX]);
    let computed = losses(&problem).unwrap();
    assert!(computed[0].is_finite() && computed[1] == f64::INFINITY && computed[2] == f64::INFINITY);
}

/// Budgets that are too small for the session and for its normalizer.
#[test]
fn budgets_below_the_smallest_plan_are_errors() {
    for normalize in [None, Some(Normalize::Hat), Some(Normalize::LogSoftmax)] {
        let problem = Problem { normalize, ..problem() };
        problem.with(|lattice, frames, labels| {
            let mut session = LatticeSession::new(Options::new(0));
            let errors = [
                session.sum(lattice, frames, labels, &[1.0; 3]).map(|_| ()),
                session.forward(lattice, frames, labels).map(|_| ()),
                session.distances(PathSum::Loss, lattice, frames, Some(labels)).map(|_| ()),
                session.marginals(lattice, frames).map(|_| ()),
                session.alphas(lattice, frames).map(|_| ()),
                session.best_paths(lattice, frames).map(|_| ()),
                session.best_alignments(lattice, frames, labels).map(|_| ()),
            ];
            for error in errors {
                assert!(matches!(error, Err(Error::Budget { found: 0, .. })), "{error:?}");
            }
        });
    }
}

/// The largest number of labels per frame.
#[test]
fn the_largest_number_of_labels_per_frame_gives_equal_sums() {
    let problem = Problem::<f32>::random((2, 1), Some(1 << 16), (3, false), &[(2, 5), (0, 1), (1, 0)]);
    let five_labels = Problem::<f32>::random((2, 1), Some(5), (3, false), &[(2, 5), (0, 1), (1, 0)]);
    problem.with(|lattice, frames, labels| {
        let mut session = LatticeSession::default();
        let computed = session.distances(PathSum::Numerator, lattice, frames, Some(labels)).unwrap();
        let expected = five_labels.with(|lattice, frames, labels| {
            LatticeSession::default().distances(PathSum::Numerator, lattice, frames, Some(labels)).unwrap()
        });
        assert_eq!(computed, expected);
        let path = &session.best_alignments(lattice, frames, labels).unwrap()[0];
        assert_eq!(path.alignment.len(), 2 * ((1 << 16) + 1));
        assert_eq!(path.labels().len(), 5);
    });
}

/// Searches, samples and exports with extreme arguments.
#[test]
fn searches_check_extreme_arguments() {
    let problem = Problem::<f32>::random((2, 1), Some(1), (3, false), &[(2, 1), (1, 0)]);
    let max = usize::MAX;
    problem.with(|lattice, frames, _| {
        let mut session = LatticeSession::default();
        assert_message(session.sample_paths(lattice, frames, max, 1), &["count"]);
        assert_message(session.n_best_paths(lattice, frames, max), &["budget"]);
        assert!(session.n_best_paths(lattice, frames, 0).unwrap().iter().all(Vec::is_empty));
        assert!(session.sample_paths(lattice, frames, 0, 1).unwrap().iter().all(Vec::is_empty));
        for (count, max_prefixes) in [(max, max), (0, 0), (max, 0), (0, max)] {
            let options = NBestOptions { count, merge: Merge::Sum, max_prefixes };
            let _ = session.n_best_strings(lattice, frames, options).map(|_| ());
        }
        assert_message(
            session.beam_search(lattice, frames, BeamOptions { width: 0, merge: Merge::Max }, &()),
            &["width"],
        );
        assert_message(
            session.beam_search(lattice, frames, BeamOptions { width: max, merge: Merge::Max }, &()),
            &["budget"],
        );
        for margin in [-1.0, f64::NAN] {
            assert_message(BestPathStream::new(lattice, margin).map(|_| ()), &["margin"]);
        }
        let mut stream = BestPathStream::new(lattice, f64::INFINITY).unwrap();
        assert_message(stream.push(&[0.0; 3]), &["3"]);
        assert_message(stream.push(&[0.0, 0.0, 0.0, f32::NAN]), &["frame 1"]);
        stream.push(&[]).unwrap();
        stream.push(&[0.5; 4]).unwrap();
        assert!(stream.finish().weight.is_finite());
        assert_message(lattice.arc_list(frames, 2, 100).map(|_| ()), &["utterance", "2"]);
        assert_message(lattice.arc_list(frames, 0, 0).map(|_| ()), &["0"]);
        let arcs = lattice.arc_list(frames, 0, max).unwrap();
        assert_message(arcs.to_openfst(Some(&["a"])).map(|_| ()), &["names"]);
        let context = |state: usize| state.to_string();
        for (alignment, per_frame) in [(vec![3, 0, 0, 0], 2), (vec![1, 0], 1), (vec![], 0), (vec![1], 0)] {
            let path = lattice::LatticePath { alignment, per_frame, weight: 0.0 };
            assert_message(arcs.to_dot(None, context, Some(&path)), &["path"]);
        }
        let path = lattice::LatticePath { alignment: vec![1; 90], per_frame: 2, weight: 0.0 };
        arcs.to_dot(None, context, Some(&path)).unwrap();
    });
}

#[test]
fn steps_and_expectations_check_sizes() {
    let context = FullNGram::new(2, 1).unwrap();
    let alignment = AlignmentLattice::frame_label_dependent(1).unwrap();
    let numbers = [0.0f64; 64];
    for blank in [0, 1, 3, 4, 6, 7] {
        for label_arcs in [0, 1, 6, 7, 12, 13] {
            for alpha in [0, 2, 3, 4] {
                let arcs = Arcs { blank: &numbers[..blank], labels: &numbers[..label_arcs] };
                let fits = alpha == 3 && ((blank, label_arcs) == (3, 6) || (blank, label_arcs) == (6, 12));
                let computed = forward_step::<Log>(&context, alignment, arcs, &numbers[..alpha]);
                assert_eq!(computed.is_ok(), fits, "{blank} {label_arcs} {alpha}");
                let computed =
                    arc_sums_step::<Log>(&context, alignment, arcs, &numbers[..alpha], &numbers[..alpha]);
                assert_eq!(computed.is_ok(), fits, "{blank} {label_arcs} {alpha}");
                let fits = alpha > 0 && blank == label_arcs && (blank == alpha || blank == 2 * alpha);
                let computed = string_forward_step::<Log>(alignment, arcs, &numbers[..alpha]);
                assert_eq!(computed.is_ok(), fits, "{blank} {label_arcs} {alpha}");
            }
            let arcs = Arcs { blank: &numbers[..blank], labels: &numbers[..label_arcs] };
            let computed = expectation(&context, alignment, arcs, PathStatistic::Entropy);
            assert_eq!(computed.is_ok(), blank % 3 == 0 && label_arcs == 2 * blank, "{blank} {label_arcs}");
        }
    }
    for bad in [f64::NAN, f64::INFINITY] {
        let arcs = Arcs { blank: &[0.0, bad, 0.0], labels: &[0.0; 6] };
        let computed = expectation(&context, alignment, arcs, PathStatistic::Entropy);
        // Only a label reaches the state in this frame, and its blank ends the frame.
        assert!(computed.is_err(), "{computed:?}");
        let cost = |_: usize, _: lattice::distance::FrameArc| bad;
        let arcs = Arcs { blank: &[0.0; 3], labels: &[0.0; 6] };
        assert!(expectation(&context, alignment, arcs, PathStatistic::Cost(&cost)).is_err());
    }
    let count = |_: usize, _: lattice::distance::FrameArc| 1;
    for (labels, parts) in [(&[0u32][..], ["position 0", "found 0"]), (&[1, 3], ["position 1", "found 3"])] {
        assert_message(string_distance::<Count>(&context, alignment, labels, 2, count).map(|_| ()), &parts);
    }
}

/// A context with an invalid state after its last state.
struct InvalidContext;

impl Context for InvalidContext {
    fn states(&self) -> usize {
        3
    }
    fn vocabulary(&self) -> usize {
        2
    }
    fn next_state(&self, state: usize, label: usize) -> usize {
        state + label - 1
    }
    fn next_states(&self, state: usize) -> lattice::context::NextStates<'_> {
        lattice::context::NextStates::Run(state)
    }
}

#[test]
fn a_context_with_an_invalid_state_is_rejected() {
    let table = TableWeightFn::new(&[0.0f32; 9], &[1, 3, 3]).unwrap();
    let Err(error) = RecognitionLattice::new(&InvalidContext, AlignmentLattice::FrameDependent, &table)
    else {
        panic!("state 3 does not exist")
    };
    assert_eq!(
        error.to_string(),
        "context: expected a state below 3 after each of 2 labels, found others after state 2"
    );
}
