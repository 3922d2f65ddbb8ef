//! Tests of all errors of the oracle, by variant and message.

use candle_core::{DType, Device, Tensor};
use oracle::Error;
use oracle::paths::{PathArc, REGULAR_ARCS, sum_over_paths};
use oracle::{compare, ctc, dense, reference};

fn logits(dims: [usize; 4]) -> Tensor {
    Tensor::zeros(&dims, DType::F64, &Device::Cpu).unwrap()
}

#[track_caller]
fn expect_error<T: std::fmt::Debug>(result: oracle::Result<T>, part: &str) {
    let message = result.expect_err("an error is expected").to_string();
    assert!(message.contains(part), "{message:?} does not contain {part:?}");
}

#[test]
fn dense_loss_names_the_wrong_argument() {
    let one_label = vec![vec![1_u32]];
    // Both references reject the same arguments.
    let call = |dims, frames: &[usize], labels: &[Vec<u32>], blank| {
        let by_dense = dense::transducer_loss(&logits(dims), frames, labels, blank);
        let zeros = vec![0.0; dims.iter().product()];
        let by_reference = reference::transducer_loss(&zeros, dims, frames, labels, blank, 0.0);
        assert_eq!(by_dense.is_err(), by_reference.is_err());
        by_dense
    };
    assert!(call([1, 2, 2, 3], &[2], &one_label, 0).is_ok());
    expect_error(call([1, 2, 2, 3], &[], &one_label, 0), "frames: expected 1 lengths, found 0");
    expect_error(call([1, 2, 2, 3], &[2], &[], 0), "labels: expected 1");
    expect_error(call([1, 2, 2, 3], &[3], &one_label, 0), "frames[0]: expected 1 to T = 2, found 3");
    expect_error(call([1, 2, 2, 3], &[0], &one_label, 0), "frames[0]");
    expect_error(call([1, 2, 1, 3], &[2], &one_label, 0), "labels[0]: expected at most U = 0");
    expect_error(call([1, 2, 2, 3], &[2], &[vec![3]], 0), "labels[0]: expected ids below C = 3");
    expect_error(call([1, 2, 2, 3], &[2], &one_label, 1), "other than the blank 1");
    expect_error(call([1, 2, 2, 3], &[2], &one_label, 3), "blank[0]: expected an id below C = 3");
    expect_error(call([0, 2, 2, 3], &[], &[], 0), "logits: expected at least one utterance");
}

#[test]
fn dense_loss_checks_values_and_types() {
    let labels = vec![vec![1_u32]];
    let call = |values: Vec<f64>| {
        let tensor = Tensor::from_vec(values, (1, 1, 2, 3), &Device::Cpu).unwrap();
        dense::transducer_loss(&tensor, &[1], &labels, 0)
    };
    for bad in [f64::NAN, f64::INFINITY] {
        let mut values = vec![0.0; 6];
        values[4] = bad;
        expect_error(call(values), "logits[1]");
    }
    expect_error(call([vec![f64::NEG_INFINITY; 3], vec![0.0; 3]].concat()), "logits[0]");
    let integers = Tensor::zeros((1, 1, 2, 3), DType::U32, &Device::Cpu).unwrap();
    expect_error(dense::transducer_loss(&integers, &[1], &labels, 0), "f32 or f64");
    let flat = Tensor::zeros((2, 3), DType::F64, &Device::Cpu).unwrap();
    expect_error(dense::transducer_loss(&flat, &[1], &labels, 0), "[B, T, U + 1, C]");
    expect_error(reference::transducer_loss(&[0.0; 5], [1, 1, 2, 3], &[1], &labels, 0, 0.0), "logits");
    let long = dense::transducer_loss(&logits([1, 600, 2, 3]), &[600], &labels, 0);
    assert!(matches!(long, Err(Error::TooLarge { limit: dense::MAX_DIAGONALS, .. })));
}

#[test]
fn joint_shapes_must_fit() {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F64, &Device::Cpu).unwrap();
    let call = |frames: &[usize], labels: &[usize], weight: &[usize], bias: &[usize]| {
        dense::joint_logits(
            &zeros(frames),
            &zeros(labels),
            &zeros(weight),
            &zeros(bias),
            kernels::Activation::Tanh,
        )
    };
    assert!(call(&[1, 2, 4], &[1, 3, 4], &[5, 4], &[5]).is_ok());
    expect_error(call(&[2, 4], &[1, 3, 4], &[5, 4], &[5]), "frames: expected three axes");
    expect_error(call(&[1, 2, 4], &[2, 3, 4], &[5, 4], &[5]), "labels: expected [1, U + 1, 4]");
    expect_error(call(&[1, 2, 4], &[1, 3, 4], &[5, 3], &[5]), "weight: expected [C, 4]");
    expect_error(call(&[1, 2, 4], &[1, 3, 4], &[5, 4], &[4]), "bias: expected [5]");
}

#[test]
fn invalid_arcs_and_too_many_paths_are_errors() {
    expect_error(
        sum_over_paths(&[0.0; 3], 2, 0, 2, &REGULAR_ARCS),
        "emissions: expected T (U + 1) columns = 4",
    );
    expect_error(sum_over_paths(&[], 0, 0, 2, &REGULAR_ARCS), "at least one of each");
    let still = [PathArc { frames: 0, labels: 0, column: 0, may_end: true }];
    expect_error(sum_over_paths(&[0.0; 2], 1, 0, 2, &still), "arcs[0]: expected an arc that moves");
    let missing = [PathArc { column: 2, ..REGULAR_ARCS[0] }];
    expect_error(sum_over_paths(&[0.0; 2], 1, 0, 2, &missing), "column below 2");
    expect_error(sum_over_paths(&[0.0, f64::NAN], 1, 0, 2, &REGULAR_ARCS), "emissions[1]");
    let too_large = sum_over_paths(&vec![0.0; 40 * 41 * 2], 40, 40, 2, &REGULAR_ARCS);
    assert!(matches!(too_large, Err(Error::TooLarge { .. })));
}

#[test]
fn invalid_ctc_arguments_and_too_many_labelings_are_errors() {
    let call = |count, frames, classes, target: &[u32], blank| {
        ctc::sum_over_labelings(&vec![0.0; count], frames, classes, target, blank)
    };
    expect_error(call(5, 2, 3, &[1], 0), "log_probs");
    expect_error(call(0, 0, 3, &[], 0), "log_probs");
    expect_error(call(6, 2, 3, &[0], 0), "target[0]");
    expect_error(call(6, 2, 3, &[3], 0), "target[0]");
    expect_error(call(6, 2, 3, &[1], 3), "blank[0]");
    expect_error(ctc::sum_over_labelings(&[f64::NAN, 0.0], 1, 2, &[1], 0), "log_probs[0]");
    assert!(matches!(call(300, 30, 10, &[1], 0), Err(Error::TooLarge { .. })));
    assert!(matches!(compare::difference(&[1.0], &[]), Err(Error::Shape { .. })));
}
