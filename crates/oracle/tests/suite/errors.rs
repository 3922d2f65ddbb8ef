//! Every refusal of the oracles, by variant.

use candle_core::{DType, Device, Tensor};
use oracle::Error;
use oracle::paths::{Arc, REGULAR, sum_over_paths};
use oracle::{compare, ctc, dense, reference};

fn logits(dims: [usize; 4]) -> Tensor {
    Tensor::zeros(&dims, DType::F64, &Device::Cpu).unwrap()
}

#[track_caller]
fn refuses<T: std::fmt::Debug>(result: oracle::Result<T>, words: &str) {
    let message = result.expect_err("must be refused").to_string();
    assert!(message.contains(words), "{message:?} does not speak of {words:?}");
}

#[test]
fn dense_loss_names_what_is_wrong() {
    let one = vec![vec![1_u32]];
    let call = |dims, frames: &[usize], labels: &[Vec<u32>], blank| {
        let slow = dense::transducer_loss(&logits(dims), frames, labels, blank);
        let zeros = vec![0.0; dims.iter().product()];
        let plain = reference::transducer_loss(&zeros, dims, frames, labels, blank, 0.0);
        assert_eq!(slow.is_err(), plain.is_err());
        slow
    };
    assert!(call([1, 2, 2, 3], &[2], &one, 0).is_ok());
    refuses(call([1, 2, 2, 3], &[], &one, 0), "frames: expected 1 lengths, found 0");
    refuses(call([1, 2, 2, 3], &[2], &[], 0), "labels: expected 1");
    refuses(call([1, 2, 2, 3], &[3], &one, 0), "frames[0]: expected 1 to T = 2, found 3");
    refuses(call([1, 2, 2, 3], &[0], &one, 0), "frames[0]");
    refuses(call([1, 2, 1, 3], &[2], &one, 0), "labels[0]: expected at most U = 0");
    refuses(call([1, 2, 2, 3], &[2], &[vec![3]], 0), "labels[0]: expected ids below C = 3");
    refuses(call([1, 2, 2, 3], &[2], &one, 1), "other than the blank 1");
    refuses(call([1, 2, 2, 3], &[2], &one, 3), "blank[0]: expected an id below C = 3");
    refuses(call([0, 2, 2, 3], &[], &[], 0), "logits: expected at least one utterance");
}

#[test]
fn dense_loss_looks_at_values_and_types() {
    let labels = vec![vec![1_u32]];
    let call = |values: Vec<f64>| {
        let tensor = Tensor::from_vec(values, (1, 1, 2, 3), &Device::Cpu).unwrap();
        dense::transducer_loss(&tensor, &[1], &labels, 0)
    };
    for bad in [f64::NAN, f64::INFINITY] {
        let mut values = vec![0.0; 6];
        values[4] = bad;
        refuses(call(values), "logits[1]");
    }
    refuses(call([vec![f64::NEG_INFINITY; 3], vec![0.0; 3]].concat()), "logits[0]");
    let whole = Tensor::zeros((1, 1, 2, 3), DType::U32, &Device::Cpu).unwrap();
    refuses(dense::transducer_loss(&whole, &[1], &labels, 0), "f32 or f64");
    let flat = Tensor::zeros((2, 3), DType::F64, &Device::Cpu).unwrap();
    refuses(dense::transducer_loss(&flat, &[1], &labels, 0), "[B, T, U + 1, C]");
    refuses(reference::transducer_loss(&[0.0; 5], [1, 1, 2, 3], &[1], &labels, 0, 0.0), "logits");
    let long = dense::transducer_loss(&logits([1, 600, 2, 3]), &[600], &labels, 0);
    assert!(matches!(long, Err(Error::TooLarge { limit: dense::MAX_DIAGONALS, .. })));
}

#[test]
fn joint_shapes_must_fit() {
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F64, &Device::Cpu).unwrap();
    let call = |a: &[usize], b: &[usize], c: &[usize], d: &[usize]| {
        dense::joint_logits(&zeros(a), &zeros(b), &zeros(c), &zeros(d), kernels::Activation::Tanh)
    };
    assert!(call(&[1, 2, 4], &[1, 3, 4], &[5, 4], &[5]).is_ok());
    refuses(call(&[2, 4], &[1, 3, 4], &[5, 4], &[5]), "frames: expected three axes");
    refuses(call(&[1, 2, 4], &[2, 3, 4], &[5, 4], &[5]), "labels: expected [1, U + 1, 4]");
    refuses(call(&[1, 2, 4], &[1, 3, 4], &[5, 3], &[5]), "weight: expected [C, 4]");
    refuses(call(&[1, 2, 4], &[1, 3, 4], &[5, 4], &[4]), "bias: expected [5]");
}

#[test]
fn paths_refuse_what_they_cannot_count() {
    refuses(sum_over_paths(&[0.0; 3], 2, 0, 2, &REGULAR), "emissions: expected T (U + 1) columns = 4");
    refuses(sum_over_paths(&[], 0, 0, 2, &REGULAR), "at least one of each");
    let still = [Arc { frames: 0, labels: 0, column: 0, may_end: true }];
    refuses(sum_over_paths(&[0.0; 2], 1, 0, 2, &still), "arcs[0]: expected an arc that moves");
    let missing = [Arc { column: 2, ..REGULAR[0] }];
    refuses(sum_over_paths(&[0.0; 2], 1, 0, 2, &missing), "column below 2");
    refuses(sum_over_paths(&[0.0, f64::NAN], 1, 0, 2, &REGULAR), "emissions[1]");
    let many = sum_over_paths(&vec![0.0; 40 * 41 * 2], 40, 40, 2, &REGULAR);
    assert!(matches!(many, Err(Error::TooLarge { .. })));
}

#[test]
fn ctc_refuses_what_it_cannot_try() {
    let call = |n, t, c, target: &[u32], blank| ctc::sum_over_labellings(&vec![0.0; n], t, c, target, blank);
    refuses(call(5, 2, 3, &[1], 0), "log_probs");
    refuses(call(0, 0, 3, &[], 0), "log_probs");
    refuses(call(6, 2, 3, &[0], 0), "target[0]");
    refuses(call(6, 2, 3, &[3], 0), "target[0]");
    refuses(call(6, 2, 3, &[1], 3), "blank[0]");
    refuses(ctc::sum_over_labellings(&[f64::NAN, 0.0], 1, 2, &[1], 0), "log_probs[0]");
    assert!(matches!(call(300, 30, 10, &[1], 0), Err(Error::TooLarge { .. })));
    assert!(matches!(compare::gap(&[1.0], &[]), Err(Error::Shape { .. })));
}
