//! Tests of attention with relative positions: brute force, finite differences, bits.
use candle_core::{DType, Var};

use super::*;
use crate::operation::tests::{check_gradients, test_values, values};

/// Limits of all kinds, also limits beyond the utterances.
const LIMITS: [AttentionLimits; 8] = [
    AttentionLimits::Full,
    AttentionLimits::Window { left: Some(3), right: Some(1) },
    AttentionLimits::Window { left: Some(0), right: Some(0) },
    AttentionLimits::Window { left: None, right: Some(2) },
    AttentionLimits::Window { left: Some(70), right: None },
    AttentionLimits::Chunks { chunk: 3, left: Some(3) },
    AttentionLimits::Chunks { chunk: 1, left: Some(0) },
    AttentionLimits::Chunks { chunk: 4, left: None },
];

/// Returns `[qkv, positions, biases]` for utterances of these lengths.
fn arguments(ragged: &Ragged, width: usize, heads: usize, limits: AttentionLimits) -> [Var; 3] {
    let longest = ragged.lengths().into_iter().max().unwrap();
    let distances = DistanceRange::new(limits, longest);
    [
        test_values(&[ragged.rows(), 3 * width], 0.9),
        test_values(&[distances.count(), width], 1.3),
        test_values(&[2 * heads, width / heads], 0.4),
    ]
}

fn run(arguments: &[Var], ragged: &Arc<Ragged>, heads: usize, limits: AttentionLimits) -> Tensor {
    relative_attention(&arguments[0], &arguments[1], &arguments[2], ragged, heads, limits).unwrap()
}

/// Computes the sums of the definition, one score after the other.
fn brute_force(arguments: &[Var], ragged: &Ragged, heads: usize, limits: AttentionLimits) -> Vec<f64> {
    let [qkv, positions, biases] = [0, 1, 2].map(|index| values(&arguments[index]));
    let width = arguments[0].dims()[1] / 3;
    let d = width / heads;
    let past = DistanceRange::new(limits, ragged.lengths().into_iter().max().unwrap()).past;
    let mut out = vec![0.0; ragged.rows() * width];
    for b in 0..ragged.utterances() {
        let (first, rows) = (ragged.range(b).start, ragged.range(b).len());
        for (h, i) in (0..heads).flat_map(|h| (0..rows).map(move |i| (h, i))) {
            let value =
                |matrix: usize, t: usize, c: usize| qkv[(first + t) * 3 * width + matrix * width + h * d + c];
            let score = |j: usize| {
                let position = &positions[(past + j - i) * width + h * d..];
                let term = |c: usize| {
                    (value(0, i, c) + biases[h * d + c]) * value(1, j, c)
                        + (value(0, i, c) + biases[width + h * d + c]) * position[c]
                };
                (0..d).map(term).sum::<f64>() / (d as f64).sqrt()
            };
            let weights: Vec<(usize, f64)> = limits.keys(i, rows).map(|j| (j, score(j).exp())).collect();
            let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
            for c in 0..d {
                out[(first + i) * width + h * d + c] =
                    weights.iter().map(|&(j, weight)| weight / sum * value(2, j, c)).sum();
            }
        }
    }
    out
}

/// The longest utterances need several tiles of queries.
#[test]
fn values_equal_brute_force() {
    for (lengths, heads, width) in
        [(&[5, 0, 11][..], 2, 8), (&[1], 1, 2), (&[70, 131, 64], 3, 9), (&[2, 1], 4, 4)]
    {
        let ragged = Ragged::new(lengths);
        for limits in LIMITS {
            let arguments = arguments(&ragged, width, heads, limits);
            let fused = values(&run(&arguments, &ragged, heads, limits));
            let expected = brute_force(&arguments, &ragged, heads, limits);
            let pairs = fused.iter().zip(&expected);
            pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-12, "{limits:?}, {lengths:?}: {a} {b}"));
        }
    }
}

#[test]
fn gradients_equal_finite_differences() {
    for limits in LIMITS {
        let ragged = Ragged::new(&[2, 0, 7]);
        let arguments = arguments(&ragged, 6, 2, limits);
        check_gradients(|x| run(x, &ragged, 2, limits), &arguments);
    }
}

/// Gradients of several tiles, by the directional derivative.
#[test]
fn gradients_of_long_utterances_equal_a_directional_derivative() {
    for limits in LIMITS {
        let ragged = Ragged::new(&[131, 40, 67]);
        let arguments = arguments(&ragged, 4, 2, limits);
        let loss = |arguments: &[Var]| {
            let out = run(arguments, &ragged, 2, limits);
            (&out * test_values(out.dims(), 2.3).as_tensor()).unwrap().sum_all().unwrap()
        };
        let gradients = loss(&arguments).backward().unwrap();
        for index in 0..3 {
            let direction = test_values(arguments[index].dims(), 1.7);
            let gradient = (gradients.get(&arguments[index]).unwrap() * direction.as_tensor()).unwrap();
            let gradient = gradient.sum_all().unwrap().to_scalar::<f64>().unwrap();
            let shifted = |step: f64| {
                let mut arguments = arguments.to_vec();
                let value = (arguments[index].as_tensor() + (direction.as_tensor() * step).unwrap()).unwrap();
                arguments[index] = Var::from_tensor(&value).unwrap();
                loss(&arguments).to_scalar::<f64>().unwrap()
            };
            let expected = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
            let is_close = (gradient - expected).abs() < 1e-7 * (1.0 + expected.abs());
            assert!(is_close, "{limits:?}, argument {index}: {gradient} {expected}");
        }
    }
}

#[test]
fn bits_do_not_depend_on_threads_or_other_utterances() {
    let lengths = [140, 1, 0, 77];
    for limits in LIMITS {
        let run = |lengths: &[usize], first_row: usize, threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let ragged = Ragged::new(lengths);
                let to_f32 = |x: &Tensor| Var::from_tensor(&x.to_dtype(DType::F32).unwrap()).unwrap();
                let all = test_values(&[218, 36], 0.9);
                let qkv = to_f32(&all.narrow(0, first_row, ragged.rows()).unwrap());
                // The positions of a distance are the same for all lengths.
                let longest = lengths.iter().copied().max().unwrap();
                let distances = DistanceRange::new(limits, longest);
                let positions = tensors_of(distances.sinusoids::<f32>(12), distances.count());
                let biases = to_f32(&test_values(&[6, 4], 0.4));
                let out = relative_attention(&qkv, &positions, &biases, &ragged, 3, limits).unwrap();
                let gradients = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                let gradient = |x: &Var| values(gradients.get(x).unwrap());
                [values(&out), gradient(&qkv), gradient(&biases), gradient(&positions)]
            })
        };
        let all = run(&lengths, 0, 1);
        assert!(all == run(&lengths, 0, 2) && all == run(&lengths, 0, 5), "{limits:?}");
        let single = run(&[77], 141, 2);
        assert!(all[0].ends_with(&single[0]) && all[1].ends_with(&single[1]), "{limits:?}");
    }
}

fn tensors_of(rows: Vec<f32>, count: usize) -> Var {
    let width = rows.len() / count;
    Var::from_tensor(&crate::tensors::from_vec(rows, (count, width)).unwrap()).unwrap()
}

/// Rows of an earlier part of a stream are keys only.
#[test]
fn context_rows_are_keys_only() {
    let heads = HeadShape { count: 2, total_width: 8 };
    for (limits, context_rows, queries) in [
        (AttentionLimits::Chunks { chunk: 4, left: Some(8) }, 8, 4),
        (AttentionLimits::Chunks { chunk: 4, left: Some(4) }, 4, 6),
        (AttentionLimits::Window { left: Some(5), right: Some(0) }, 5, 3),
        (AttentionLimits::Full, 9, 5),
    ] {
        let rows = context_rows + queries + 12;
        let distances = DistanceRange::new(limits, rows);
        let to_f32 = |x: &Tensor| -> Vec<f32> { values(x).into_iter().map(|x| x as f32).collect() };
        let qkv = to_f32(&test_values(&[rows, 24], 0.9));
        let biases = to_f32(&test_values(&[2, 8], 0.4));
        let sinusoids = distances.sinusoids::<f32>(8);
        let positions = PositionRows { rows: &sinusoids, distances };
        let end = match limits {
            AttentionLimits::Full => rows,
            _ => 12 + context_rows + queries,
        };
        let full = forward(
            &[AttentionInput { qkv: &qkv[..end * 24], context_rows: 0 }],
            positions,
            &biases,
            heads,
            limits,
        );
        // The first query is row 12 + context_rows, a multiple of 4 rows after the start.
        let first = match limits {
            AttentionLimits::Full => 0,
            _ => 12,
        };
        let context_rows = end - queries - first;
        let input = AttentionInput { qkv: &qkv[first * 24..end * 24], context_rows };
        let last = forward(&[input, input], positions, &biases, heads, limits);
        assert_eq!(last[..queries * 8], last[queries * 8..]);
        let expected = &full[full.len() - queries * 8..];
        for (a, b) in last.iter().zip(expected) {
            assert!((a - b).abs() < 1e-6, "{limits:?}: {a} {b}");
        }
    }
}

#[test]
fn errors_of_shapes_name_the_argument() {
    let ragged = Ragged::new(&[5]);
    let full = AttentionLimits::Full;
    for (qkv, positions, biases, heads, message) in [
        ([5, 24], [9, 8], [2, 8], 3, "qkv: expected [5, a multiple of 3 for each of 3 heads]"),
        ([4, 24], [9, 8], [2, 8], 2, "qkv: expected [5, a multiple of 3"),
        ([5, 24], [9, 8], [2, 8], 0, "qkv: expected"),
        ([5, 24], [8, 8], [2, 8], 2, "positions: expected [9, 8], found [8, 8]"),
        ([5, 24], [9, 8], [2, 7], 2, "biases: expected 16 values, found [2, 7]"),
    ] {
        let [qkv, positions, biases] = [&qkv, &positions, &biases].map(|shape| test_values(shape, 1.0));
        let error = relative_attention(&qkv, &positions, &biases, &ragged, heads, full).unwrap_err();
        assert!(error.to_string().starts_with(message), "{error}");
    }
}
