//! Tests of self-attention: values and gradients equal those of candle operations and autograd.

use candle_core::{D, DType, Device, Var};

use super::*;
use crate::operation::tests::{check_gradients, test_values, values};

/// Computes one head of one utterance with candle's operations.
///
/// q, k and v are `[T, d]`. `in_window(query, key)` is true for keys in the window of a query.
fn plain_head(q: &Tensor, k: &Tensor, v: &Tensor, in_window: impl Fn(usize, usize) -> bool) -> Tensor {
    let (rows, width) = q.dims2().unwrap();
    let half = width / 2;
    let table = |f: fn(f64) -> f64| {
        let angle =
            |index: usize| (index / half) as f64 * 10_000f64.powf(-((index % half) as f64) / half as f64);
        Tensor::from_iter((0..rows * half).map(|index| f(angle(index))), &Device::Cpu)
            .unwrap()
            .reshape((rows, half))
    };
    let (cos, sin) = (table(f64::cos).unwrap(), table(f64::sin).unwrap());
    let rotate = |x: &Tensor| {
        let (a, b) = (x.narrow(1, 0, half).unwrap(), x.narrow(1, half, half).unwrap());
        let rotated_a = ((&a * &cos).unwrap() - (&b * &sin).unwrap()).unwrap();
        Tensor::cat(&[rotated_a, ((b * &cos).unwrap() + (a * &sin).unwrap()).unwrap()], 1).unwrap()
    };
    let scores = rotate(q).matmul(&rotate(k).t().unwrap()).unwrap();
    let scores = (scores / (width as f64).sqrt()).unwrap();
    let mask = (0..rows * rows)
        .map(|index| if in_window(index / rows, index % rows) { 0.0 } else { f64::NEG_INFINITY });
    let mask = Tensor::from_iter(mask, &Device::Cpu).unwrap().reshape((rows, rows)).unwrap();
    let p = candle_nn::ops::softmax(&(scores + mask).unwrap(), D::Minus1).unwrap();
    p.matmul(v).unwrap()
}

/// Computes all heads of all utterances, as [`attention`] does.
fn plain_attention(qkv: &Tensor, ragged: &Ragged, heads: usize, chunks: Option<ChunkSizes>) -> Tensor {
    let width = qkv.dims()[1] / 3;
    let head_width = width / heads;
    let utterance = |b: usize| {
        let range = ragged.range(b);
        let rows = qkv.narrow(0, range.start, range.len()).unwrap();
        let part = |matrix: usize, head: usize| {
            rows.narrow(1, matrix * width + head * head_width, head_width).unwrap()
        };
        let in_window = |q: usize, k: usize| {
            chunks.is_none_or(|ChunkSizes { chunk_rows, left_chunks }| {
                let [query_chunk, key_chunk] = [q / chunk_rows, k / chunk_rows];
                key_chunk <= query_chunk && key_chunk + left_chunks >= query_chunk
            })
        };
        let heads: Vec<Tensor> =
            (0..heads).map(|h| plain_head(&part(0, h), &part(1, h), &part(2, h), in_window)).collect();
        Tensor::cat(&heads, 1).unwrap()
    };
    let rows: Vec<Tensor> =
        (0..ragged.utterances()).filter(|&b| !ragged.range(b).is_empty()).map(utterance).collect();
    Tensor::cat(&rows, 0).unwrap()
}

/// Full attention, and chunks of several sizes.
const WINDOWS: [Option<ChunkSizes>; 4] = [
    None,
    Some(ChunkSizes { chunk_rows: 3, left_chunks: 1 }),
    Some(ChunkSizes { chunk_rows: 1, left_chunks: 0 }),
    Some(ChunkSizes { chunk_rows: 4, left_chunks: 5 }),
];

#[test]
fn values_and_gradients_equal_those_of_plain_operations() {
    for (lengths, heads, head_width) in [(&[5, 0, 11][..], 2, 4), (&[1], 1, 2), (&[70, 130], 3, 6)] {
        let ragged = Ragged::new(lengths);
        let qkv = test_values(&[ragged.rows(), 3 * heads * head_width], 0.9);
        for chunks in WINDOWS {
            let (fused, plain) = (
                attention(&qkv, &ragged, heads, chunks).unwrap(),
                plain_attention(&qkv, &ragged, heads, chunks),
            );
            let assert_close = |a: &Tensor, b: &Tensor| {
                let pairs = values(a).into_iter().zip(values(b));
                pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-11, "{chunks:?}: {a} {b}"));
            };
            assert_close(&fused, &plain);
            let gradients = |y: Tensor| y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            assert_close(gradients(fused).get(&qkv).unwrap(), gradients(plain).get(&qkv).unwrap());
        }
    }
}

#[test]
fn gradients_equal_finite_differences() {
    for chunks in WINDOWS {
        let ragged = Ragged::new(&[2, 0, 7]);
        check_gradients(|x| attention(&x[0], &ragged, 2, chunks).unwrap(), &[test_values(&[9, 24], 0.9)]);
    }
}

/// Rows at other positions of another utterance have the same results.
#[test]
fn scores_depend_on_the_distance_of_key_and_query_only() {
    let qkv = test_values(&[6, 12], 0.9);
    let chunks = Some(ChunkSizes { chunk_rows: 2, left_chunks: 1 });
    let full = values(&attention(&qkv, &Ragged::new(&[6]), 1, chunks).unwrap());
    // Without the first chunk of two rows; a row of results has four values.
    let later_rows = qkv.narrow(0, 2, 4).unwrap();
    let later = values(&attention(&later_rows, &Ragged::new(&[4]), 1, chunks).unwrap());
    assert_eq!(full[16..], later[8..]);
}

#[test]
fn context_rows_are_keys_only_and_do_not_change_the_bits() {
    let heads = HeadShape { count: 2, total_width: 8 };
    let qkv: Vec<f32> = values(&test_values(&[14, 24], 0.9)).into_iter().map(|x| x as f32).collect();
    let chunks = Some(ChunkSizes { chunk_rows: 4, left_chunks: 1 });
    let full = forward(&[AttentionInput { qkv: &qkv, context_rows: 0 }], heads, chunks);
    // Two chunks, then the third with the second as its context.
    let (start, end) = (&qkv[..8 * 24], &qkv[4 * 24..]);
    let inputs =
        [AttentionInput { qkv: start, context_rows: 0 }, AttentionInput { qkv: end, context_rows: 4 }];
    let chunked = forward(&inputs, heads, chunks);
    assert_eq!(chunked, full);
}

#[test]
fn bits_do_not_depend_on_threads_or_other_utterances() {
    let lengths = [40, 1, 0, 77];
    let run = |lengths: &[usize], first_row: usize, threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let ragged = Ragged::new(lengths);
            let all = test_values(&[118, 36], 0.9).to_dtype(DType::F32).unwrap();
            let x = Var::from_tensor(&all.narrow(0, first_row, ragged.rows()).unwrap()).unwrap();
            let out = attention(&x, &ragged, 3, None).unwrap();
            let gradients = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            (values(&out), values(gradients.get(&x).unwrap()))
        })
    };
    let all = run(&lengths, 0, 1);
    assert!(all == run(&lengths, 0, 2) && all == run(&lengths, 0, 5));
    // The last utterance follows 41 rows; it has 12 values of each of q, k and v.
    let ((all_out, all_gradient), (out, gradient)) = (all, run(&[77], 41, 2));
    assert!(all_out[41 * 12..] == out && all_gradient[41 * 36..] == gradient);
}

#[test]
fn errors_of_shapes_name_the_argument() {
    let qkv = test_values(&[5, 24], 1.0);
    for (lengths, heads) in [(&[5][..], 3), (&[4], 2), (&[5], 0)] {
        let error = attention(&qkv, &Ragged::new(lengths), heads, None).unwrap_err();
        assert!(error.to_string().starts_with("qkv: expected"), "{error}");
    }
}
