//! The LSTM operation against one written in plain candle operations with autograd.
use candle_core::{DType, Device, Tensor, Var};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::lstm;

fn random(shape: &[usize], seed: u64, scale: f64) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let values: Vec<f64> =
        (0..shape.iter().product()).map(|_| scale * (2.0 * rng.random::<f64>() - 1.0)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// One utterance `[T, D]`, one direction, op by op; returns `[T, H]`.
fn plain(x: &Tensor, weight: &Tensor, reverse: bool) -> Tensor {
    let (frames, _) = x.dims2().unwrap();
    let hidden = weight.dims()[1] / 4;
    let mut h = Tensor::zeros((1, hidden), DType::F64, &Device::Cpu).unwrap();
    let mut c = h.clone();
    let one = Tensor::ones((1, 1), DType::F64, &Device::Cpu).unwrap();
    let mut rows = Vec::new();
    let sigmoid = |x: Tensor| (x.neg().unwrap().exp().unwrap() + 1.0).unwrap().recip().unwrap();
    for t in 0..frames {
        let t = if reverse { frames - 1 - t } else { t };
        let z = Tensor::cat(&[&x.narrow(0, t, 1).unwrap(), &h, &one], 1).unwrap();
        let a = z.matmul(weight).unwrap();
        let gate = |k: usize| a.narrow(1, k * hidden, hidden).unwrap();
        let (i, f, o) = (sigmoid(gate(0)), sigmoid(gate(1)), sigmoid(gate(2)));
        c = ((f * &c).unwrap() + (i * gate(3).tanh().unwrap()).unwrap()).unwrap();
        h = (o * c.tanh().unwrap()).unwrap();
        rows.push(h.clone());
    }
    if reverse {
        rows.reverse();
    }
    Tensor::cat(&rows, 0).unwrap()
}

fn values(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64) {
    assert_eq!(a.dims(), b.dims());
    for (a, b) in values(a).iter().zip(values(b)) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{a} is not {b}");
    }
}

const LENGTHS: [usize; 5] = [3, 7, 0, 1, 7];
const SHAPE: [usize; 3] = [5, 7, 3];

fn case(directions: usize) -> (Var, Vec<Var>, Tensor) {
    let hidden = 4;
    let x = Var::from_tensor(&random(&SHAPE, 1, 1.0)).unwrap();
    let weights = (0..directions)
        .map(|k| Var::from_tensor(&random(&[SHAPE[2] + hidden + 1, 4 * hidden], 2 + k as u64, 0.8)).unwrap())
        .collect();
    let above = random(&[SHAPE[0], SHAPE[1], directions * hidden], 9, 1.0);
    (x, weights, above)
}

fn check_against_plain(directions: usize) {
    let (x, weights, above) = case(directions);
    let refs: Vec<&Tensor> = weights.iter().map(|w| w.as_tensor()).collect();
    let out = lstm(&x, &LENGTHS, &refs).unwrap();
    let grads = (&out * &above).unwrap().sum_all().unwrap().backward().unwrap();

    let mut rows = Vec::new();
    for (b, &length) in LENGTHS.iter().enumerate() {
        let width = directions * 4;
        let padding = Tensor::zeros((SHAPE[1] - length, width), DType::F64, &Device::Cpu).unwrap();
        if length == 0 {
            rows.push(padding);
            continue;
        }
        let utterance = x.get(b).unwrap().narrow(0, 0, length).unwrap();
        let both: Vec<Tensor> = refs.iter().enumerate().map(|(k, w)| plain(&utterance, w, k == 1)).collect();
        let full = Tensor::cat(&both, 1).unwrap();
        rows.push(if length < SHAPE[1] { Tensor::cat(&[full, padding], 0).unwrap() } else { full });
    }
    let expected = Tensor::stack(&rows, 0).unwrap();
    let expected_grads = (&expected * &above).unwrap().sum_all().unwrap().backward().unwrap();
    assert_close(&out, &expected, 1e-12);
    assert_close(grads.get(&x).unwrap(), expected_grads.get(&x).unwrap(), 1e-11);
    for w in &weights {
        assert_close(grads.get(w).unwrap(), expected_grads.get(w).unwrap(), 1e-11);
    }
}

#[test]
fn one_direction_agrees_with_plain_operations() {
    check_against_plain(1);
}

#[test]
fn two_directions_agree_with_plain_operations() {
    check_against_plain(2);
}

/// Output and all gradients in f32, as bits.
fn bits(threads: usize) -> Vec<u32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let lengths: Vec<usize> = (0..37).map(|b| (b * 7) % 12).collect();
        let x = Var::from_tensor(&random(&[37, 12, 20], 3, 1.0).to_dtype(DType::F32).unwrap()).unwrap();
        let weights = [4, 5].map(|seed| {
            Var::from_tensor(&random(&[20 + 24 + 1, 96], seed, 0.3).to_dtype(DType::F32).unwrap()).unwrap()
        });
        let out = lstm(&x, &lengths, &[&weights[0], &weights[1]]).unwrap();
        let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let tensors =
            [&out, grads.get(&x).unwrap(), grads.get(&weights[0]).unwrap(), grads.get(&weights[1]).unwrap()];
        tensors
            .iter()
            .flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .map(f32::to_bits)
            .collect()
    })
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let one = bits(1);
    assert!(one == bits(2) && one == bits(5));
}

#[test]
fn padding_is_inert_even_if_it_is_nan() {
    let (x, weights, _) = case(2);
    let mut poisoned: Vec<Vec<Vec<f64>>> = x.to_vec3().unwrap();
    for (rows, &length) in poisoned.iter_mut().zip(&LENGTHS) {
        rows[length..].iter_mut().for_each(|row| row.fill(f64::NAN));
    }
    let poisoned = Var::new(poisoned, &Device::Cpu).unwrap();
    let run = |x: &Var| {
        let out = lstm(x, &LENGTHS, &[&weights[0], &weights[1]]).unwrap();
        let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let all =
            [&out, grads.get(x).unwrap(), grads.get(&weights[0]).unwrap(), grads.get(&weights[1]).unwrap()];
        all.map(values)
    };
    assert_eq!(run(&x), run(&poisoned));
}

#[test]
fn a_second_backward_pass_gives_the_same_gradients() {
    let (x, weights, _) = case(1);
    let loss = lstm(&x, &LENGTHS, &[&weights[0]]).unwrap().sqr().unwrap().sum_all().unwrap();
    let (first, second) = (loss.backward().unwrap(), loss.backward().unwrap());
    assert_eq!(values(first.get(&x).unwrap()), values(second.get(&x).unwrap()));
}

#[test]
fn misfitting_arguments_are_named() {
    let x = random(&[2, 3, 4], 1, 1.0);
    let weight = random(&[4 + 2 + 1, 8], 2, 1.0);
    for (lengths, weights, name) in [
        (vec![3], vec![&weight], "lengths"),
        (vec![4, 1], vec![&weight], "lengths"),
        (vec![3, 1], vec![], "weights"),
        (vec![3, 1], vec![&x], "weight"),
    ] {
        let error = lstm(&x, &lengths, &weights).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}
