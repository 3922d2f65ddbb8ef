//! Tests of the LSTM layer against candle operations and autograd.
use candle_core::{DType, Device, Tensor, Var, WithDType};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use kernels::{Affine, PackedRecurrentWeight, PackedRight, UNITS_PER_STRIP, View};

use super::layout::{self, LayerBlocking, LayerSizes, ROWS_PER_BLOCK, TapeLayout, group_size};
use super::{BufferPools, LstmContext, LstmWeights, apply_with_blocking, lstm};

/// Returns uniform values within ±scale.
fn random_tensor(shape: &[usize], seed: u64, scale: f64) -> Tensor {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let values: Vec<f64> =
        (0..shape.iter().product()).map(|_| scale * (2.0 * rng.random::<f64>() - 1.0)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Computes one utterance `[T, D]` in one direction with plain operations; returns `[T, H]`.
fn plain_direction(x: &Tensor, weights: &LstmWeights, is_reverse: bool) -> Tensor {
    let (frames, _) = x.dims2().unwrap();
    let hidden = weights.recurrent.dims()[1];
    let mut h = Tensor::zeros((1, hidden), DType::F64, &Device::Cpu).unwrap();
    let mut c = h.clone();
    let mut rows = Vec::new();
    let sigmoid = |x: Tensor| (x.neg().unwrap().exp().unwrap() + 1.0).unwrap().recip().unwrap();
    for t in 0..frames {
        let t = if is_reverse { frames - 1 - t } else { t };
        let a = x.narrow(0, t, 1).unwrap().matmul(&weights.input.t().unwrap()).unwrap();
        let a = (a + h.matmul(&weights.recurrent.t().unwrap()).unwrap()).unwrap();
        let a = a.broadcast_add(&weights.bias).unwrap();
        let gate = |index: usize| a.narrow(1, index * hidden, hidden).unwrap();
        let (i, f, o) = (sigmoid(gate(0)), sigmoid(gate(1)), sigmoid(gate(3)));
        c = ((f * &c).unwrap() + (i * gate(2).tanh().unwrap()).unwrap()).unwrap();
        h = (o * c.tanh().unwrap()).unwrap();
        rows.push(h.clone());
    }
    if is_reverse {
        rows.reverse();
    }
    Tensor::cat(&rows, 0).unwrap()
}

/// Copies all elements.
fn values(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(a: &Tensor, b: &Tensor, tolerance: f64) {
    assert_eq!(a.dims(), b.dims());
    for (a, b) in values(a).iter().zip(values(b)) {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{a} is not {b}");
    }
}

/// Frames of each utterance of a test case.
const LENGTHS: [usize; 5] = [3, 7, 0, 1, 7];
/// Utterances of a test case.
const BATCH: usize = LENGTHS.len();
/// Frames of the padded tensor of a test case.
const FRAMES: usize = 7;
/// Input width of a test case.
const INPUT_WIDTH: usize = 3;
/// State width of a test case.
const HIDDEN: usize = 4;

/// Creates the weights of a direction, and variables that share their storage.
fn random_direction(
    input_width: usize,
    hidden: usize,
    seed: u64,
    scale: f64,
    dtype: DType,
) -> (Vec<Var>, LstmWeights) {
    let shapes: [&[usize]; 3] = [&[4 * hidden, input_width], &[4 * hidden, hidden], &[4 * hidden]];
    let variable = |(k, shape): (usize, &&[usize])| {
        Var::from_tensor(&random_tensor(shape, 10 * seed + k as u64, scale).to_dtype(dtype).unwrap()).unwrap()
    };
    let variables: Vec<Var> = shapes.iter().enumerate().map(variable).collect();
    let [input, recurrent, bias] = [0, 1, 2].map(|k| variables[k].as_tensor().clone());
    (variables, LstmWeights { input, recurrent, bias })
}

/// Returns input, variables, weights and the gradient of the output.
fn test_case(directions: usize) -> (Var, Vec<Var>, Vec<LstmWeights>, Tensor) {
    let x = Var::from_tensor(&random_tensor(&[BATCH, FRAMES, INPUT_WIDTH], 1, 1.0)).unwrap();
    let (variables, weights): (Vec<_>, Vec<_>) =
        (0..directions).map(|k| random_direction(INPUT_WIDTH, HIDDEN, 2 + k as u64, 0.8, DType::F64)).unzip();
    let d_out = random_tensor(&[BATCH, FRAMES, directions * HIDDEN], 9, 1.0);
    (x, variables.concat(), weights, d_out)
}

/// Compares output and gradients with those of plain operations.
fn check_against_plain(directions: usize) {
    let (x, variables, weights, d_out) = test_case(directions);
    let out = lstm(&x, &LENGTHS, &weights).unwrap();
    let grads = (&out * &d_out).unwrap().sum_all().unwrap().backward().unwrap();

    let mut rows = Vec::new();
    for (b, &length) in LENGTHS.iter().enumerate() {
        let width = directions * HIDDEN;
        let padding = Tensor::zeros((FRAMES - length, width), DType::F64, &Device::Cpu).unwrap();
        if length == 0 {
            rows.push(padding);
            continue;
        }
        let utterance = x.get(b).unwrap().narrow(0, 0, length).unwrap();
        let directions: Vec<Tensor> =
            weights.iter().enumerate().map(|(k, w)| plain_direction(&utterance, w, k == 1)).collect();
        let full = Tensor::cat(&directions, 1).unwrap();
        rows.push(if length < FRAMES { Tensor::cat(&[full, padding], 0).unwrap() } else { full });
    }
    let expected = Tensor::stack(&rows, 0).unwrap();
    let expected_grads = (&expected * &d_out).unwrap().sum_all().unwrap().backward().unwrap();
    assert_close(&out, &expected, 1e-12);
    assert_close(grads.get(&x).unwrap(), expected_grads.get(&x).unwrap(), 1e-11);
    for w in &variables {
        assert_close(grads.get(w).unwrap(), expected_grads.get(w).unwrap(), 1e-11);
    }
}

#[test]
fn one_direction_equals_plain_operations() {
    check_against_plain(1);
}

#[test]
fn two_directions_equal_plain_operations() {
    check_against_plain(2);
}

/// Returns the bits of output and all gradients in f32.
fn output_and_gradient_bits(threads: usize) -> Vec<u32> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let lengths: Vec<usize> = (0..37).map(|b| (b * 7) % 12).collect();
        let x =
            Var::from_tensor(&random_tensor(&[37, 12, 20], 3, 1.0).to_dtype(DType::F32).unwrap()).unwrap();
        let [(first, w_first), (second, w_second)] =
            [4, 5].map(|seed| random_direction(20, 24, seed, 0.3, DType::F32));
        let out = lstm(&x, &lengths, &[w_first, w_second]).unwrap();
        let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let variables = [&x].into_iter().chain(&first).chain(&second);
        let tensors: Vec<&Tensor> =
            [&out].into_iter().chain(variables.map(|v| grads.get(v).unwrap())).collect();
        tensors
            .iter()
            .flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap())
            .map(f32::to_bits)
            .collect()
    })
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let single = output_and_gradient_bits(1);
    assert!(single == output_and_gradient_bits(2) && single == output_and_gradient_bits(5));
}

/// Returns output and gradients of a layer with a blocking.
fn values_with_blocking<F: kernels::Real + WithDType>(
    blocking: LayerBlocking,
    lengths: &[usize],
    hidden: usize,
    directions: usize,
    threads: usize,
) -> Vec<Vec<f64>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| training_step::<F>(None, lengths, blocking, 20, hidden, directions, 1.0))
}

/// Returns output and gradients for inputs of a scale.
fn training_step<F: kernels::Real + WithDType>(
    pools: Option<&BufferPools>,
    lengths: &[usize],
    blocking: LayerBlocking,
    input_width: usize,
    hidden: usize,
    directions: usize,
    scale: f64,
) -> Vec<Vec<f64>> {
    let frames = lengths.iter().max().copied().unwrap_or(0) + 1;
    let shape = [lengths.len(), frames, input_width];
    let x = Var::from_tensor(&random_tensor(&shape, 3, scale).to_dtype(F::DTYPE).unwrap()).unwrap();
    let (variables, weights): (Vec<_>, Vec<_>) =
        (0..directions).map(|k| random_direction(input_width, hidden, 4 + k as u64, 0.3, F::DTYPE)).unzip();
    let sizes = LayerSizes { frames, input_width, hidden };
    let context = LstmContext { pools, hooks: None };
    let out = apply_with_blocking::<F>(context, &x, lengths, blocking, sizes, &weights).unwrap();
    let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let gradients = [x].into_iter().chain(variables.concat()).map(|v| grads.get(&v).unwrap().clone());
    [out].into_iter().chain(gradients).map(|t| values(&t.to_dtype(DType::F64).unwrap())).collect()
}

/// Compares steps with used buffers, which are full of NaN.
fn check_used_buffers<F: kernels::Real + WithDType>() {
    let pools = BufferPools::default();
    let ragged: Vec<usize> = (0..37).map(|b| (b * 7) % 12).collect();
    for (lengths, [input_width, hidden], directions) in [
        (ragged.clone(), [20, 24], 2),
        (vec![9; 21], [520, 512], 1),
        (vec![1, 9, 4], [20, 37], 2),
        (ragged, [30, 40], 1),
        (vec![70, 69], [300, 37], 1),
    ] {
        for blocking in [LayerBlocking::Groups(8), LayerBlocking::Strips] {
            let step = |pools, scale| {
                training_step::<F>(pools, &lengths, blocking, input_width, hidden, directions, scale)
            };
            let fresh = step(None, 1.0);
            let poisoned = step(Some(&pools), f64::NAN);
            assert!(poisoned[0].iter().any(|value| value.is_nan()));
            assert!(step(Some(&pools), 1.0) == fresh, "{lengths:?}, {input_width} to {hidden}, {blocking:?}");
        }
    }
    assert!(pools.get::<F>().bytes() > 0);
}

#[test]
fn the_contents_of_used_buffers_do_not_matter() {
    check_used_buffers::<f32>();
    check_used_buffers::<f64>();
}

#[test]
fn pools_have_the_size_of_the_largest_step() {
    let pools = BufferPools::default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let step = |lengths: &[usize]| {
        let blocking = LayerBlocking::Groups(8);
        pool.install(|| training_step::<f32>(Some(&pools), lengths, blocking, 24, 40, 2, 1.0));
        pools.get::<f32>().bytes()
    };
    let large = step(&[40; 12]);
    for lengths in [&[3, 2, 1][..], &[40; 12], &[39; 11], &[1]] {
        assert_eq!(step(lengths), large, "{lengths:?}");
    }
}

#[test]
fn strips_have_the_bits_of_groups_for_any_number_of_threads() {
    let ragged: Vec<usize> = (0..37).map(|b| (b * 7) % 12).collect();
    for (lengths, hidden, directions) in [
        (ragged, 24, 2),
        (vec![5], 40, 1),
        (vec![4; 16], 8, 1),
        (vec![2, 6, 6], 16, 2),
        (vec![0, 0], 8, 1),
        (vec![3; 17], 37, 1),
        (vec![0, 1, 2, 1, 0, 9], 150, 2),
    ] {
        let one_group = LayerBlocking::Groups(lengths.len());
        let groups = values_with_blocking::<f32>(one_group, &lengths, hidden, directions, 2);
        for threads in [1, 2, 3, 8] {
            let strips =
                values_with_blocking::<f32>(LayerBlocking::Strips, &lengths, hidden, directions, threads);
            assert!(groups == strips, "{lengths:?}, H = {hidden}, {threads} threads");
        }
        let [groups, strips] = [one_group, LayerBlocking::Strips]
            .map(|blocking| values_with_blocking::<f64>(blocking, &lengths, hidden, directions, 2));
        assert!(groups == strips, "{lengths:?}, H = {hidden}");
    }
}

/// Returns output and input gradient of some utterances.
fn results_by_utterance(
    blocking: LayerBlocking,
    lengths: &[usize],
    selected: &[usize],
) -> Vec<[Vec<f64>; 2]> {
    let (input_width, hidden, frames) = (20, 40, 9);
    let full = random_tensor(&[lengths.len(), frames, input_width], 3, 1.0).to_dtype(DType::F32).unwrap();
    let rows: Vec<Tensor> = selected.iter().map(|&b| full.get(b).unwrap()).collect();
    let x = Var::from_tensor(&Tensor::stack(&rows, 0).unwrap()).unwrap();
    let (_, weights) = random_direction(input_width, hidden, 4, 0.3, DType::F32);
    let lengths: Vec<usize> = selected.iter().map(|&b| lengths[b]).collect();
    let sizes = LayerSizes { frames, input_width, hidden };
    let context = LstmContext::default();
    let out = apply_with_blocking::<f32>(context, &x, &lengths, blocking, sizes, &[weights]).unwrap();
    let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let utterances = lengths.iter().enumerate().map(|(b, &length)| {
        [&out, grads.get(&x).unwrap()].map(|t| {
            let rows = t.get(b).unwrap().narrow(0, 0, length.max(1)).unwrap();
            values(&rows.to_dtype(DType::F64).unwrap())
        })
    });
    utterances.collect()
}

#[test]
fn the_bits_of_an_utterance_do_not_depend_on_other_utterances() {
    let lengths: Vec<usize> = (0..17).map(|b| (b * 5) % 10).collect();
    let all: Vec<usize> = (0..17).collect();
    for blocking in [LayerBlocking::Strips, LayerBlocking::Groups(8)] {
        let together = results_by_utterance(blocking, &lengths, &all);
        for selected in [&all[..1], &all[3..7], &all[9..]] {
            let separate = results_by_utterance(blocking, &lengths, selected);
            assert!(separate == together[selected[0]..][..selected.len()], "{blocking:?}, {selected:?}");
        }
    }
}

#[test]
fn weights_that_are_not_variables_have_no_gradients() {
    let (x, variables, weights, _) = test_case(2);
    let grads = |weights: &[LstmWeights]| {
        lstm(&x, &LENGTHS, weights).unwrap().sqr().unwrap().sum_all().unwrap().backward().unwrap()
    };
    let mut frozen = weights.clone();
    let LstmWeights { input, recurrent, bias } = &mut frozen[0];
    [input, recurrent, bias].into_iter().for_each(|weight| *weight = weight.detach());
    let (full, partial) = (grads(&weights), grads(&frozen));
    assert!(variables[..3].iter().all(|weight| partial.get(weight).is_none()));
    for variable in [&x].into_iter().chain(&variables[3..]) {
        assert_eq!(values(full.get(variable).unwrap()), values(partial.get(variable).unwrap()));
    }
}

#[test]
fn parallel_backward_passes_of_one_graph_do_not_mix_their_gradients() {
    let (x, variables, weights, d_out) = test_case(2);
    let out = lstm(&x, &LENGTHS, &weights).unwrap();
    let gradients = |scale: f64| {
        let loss = (&out * (&d_out * scale).unwrap()).unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        variables.iter().map(|v| values(grads.get(v).unwrap())).collect::<Vec<_>>()
    };
    let sequential: Vec<_> = (1..5).map(|scale| gradients(f64::from(scale))).collect();
    let gradients = &gradients;
    for _ in 0..20 {
        let parallel: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (1..5).map(|scale| scope.spawn(move || gradients(f64::from(scale)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(sequential == parallel);
    }
}

#[test]
fn padding_is_not_read_even_if_it_is_nan() {
    let (x, variables, weights, _) = test_case(2);
    let mut poisoned: Vec<Vec<Vec<f64>>> = x.to_vec3().unwrap();
    for (rows, &length) in poisoned.iter_mut().zip(&LENGTHS) {
        rows[length..].iter_mut().for_each(|row| row.fill(f64::NAN));
    }
    let poisoned = Var::new(poisoned, &Device::Cpu).unwrap();
    let run = |x: &Var| {
        let out = lstm(x, &LENGTHS, &weights).unwrap();
        let grads = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
        let all = [x].into_iter().chain(&variables).map(|v| values(grads.get(v).unwrap()));
        (values(&out), all.collect::<Vec<_>>())
    };
    assert_eq!(run(&x), run(&poisoned));
}

#[test]
fn a_second_backward_pass_has_the_same_gradients() {
    let (x, _, weights, _) = test_case(1);
    let loss = lstm(&x, &LENGTHS, &weights).unwrap().sqr().unwrap().sum_all().unwrap();
    let (first, second) = (loss.backward().unwrap(), loss.backward().unwrap());
    assert_eq!(values(first.get(&x).unwrap()), values(second.get(&x).unwrap()));
}

#[test]
fn errors_name_the_invalid_argument() {
    let x = random_tensor(&[2, 3, 4], 1, 1.0);
    let (_, valid) = random_direction(4, 2, 2, 1.0, DType::F64);
    let changed = |change: fn(&mut LstmWeights, &Tensor)| {
        let mut weights = valid.clone();
        change(&mut weights, &x);
        weights
    };
    for (lengths, weights, name) in [
        (vec![3], vec![valid.clone()], "lengths"),
        (vec![4, 1], vec![valid.clone()], "lengths"),
        (vec![3, 1], vec![], "directions"),
        (vec![3, 1], vec![valid.clone(), valid.clone(), valid.clone()], "directions"),
        (vec![3, 1], vec![changed(|w, x| w.input = x.clone())], "weight_ih: expected [8, 4]"),
        (vec![3, 1], vec![changed(|w, x| w.recurrent = x.clone())], "weight_"),
        (vec![3, 1], vec![changed(|w, _| w.bias = w.bias.narrow(0, 0, 7).unwrap())], "bias_ih: expected [8]"),
        (vec![3, 1], vec![changed(|w, _| w.bias = w.bias.to_dtype(DType::F32).unwrap())], "bias_ih"),
    ] {
        let error = lstm(&x, &lengths, &weights).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
    }
}

/// Compares parameters by name with candle's own layer.
#[test]
fn weights_can_be_exchanged_with_candle() {
    use candle_nn::rnn::{Direction, LSTMConfig, RNN};

    let map = candle_nn::VarMap::new();
    let vb = candle_nn::VarBuilder::from_varmap(&map, DType::F64, &Device::Cpu);
    let candle_layer = |direction| {
        let config = LSTMConfig { b_hh_init: None, direction, layer_idx: 1, ..LSTMConfig::default() };
        candle_nn::lstm(INPUT_WIDTH, HIDDEN, config, vb.clone()).unwrap()
    };
    let (first, second) = (candle_layer(Direction::Forward), candle_layer(Direction::Backward));
    let count = map.all_vars().len();
    let layer = super::Lstm::new(INPUT_WIDTH, HIDDEN, 1, true, &vb).unwrap();
    assert_eq!(
        (map.all_vars().len(), layer.width()),
        (count, 2 * HIDDEN),
        "a name that candle does not have"
    );
    for variable in map.all_vars() {
        variable.set(&random_tensor(variable.dims(), variable.elem_count() as u64, 0.8)).unwrap();
    }
    let x = random_tensor(&[2, FRAMES, INPUT_WIDTH], 1, 1.0);
    let run = |layer: &candle_nn::LSTM, x: &Tensor| layer.states_to_tensor(&layer.seq(x).unwrap()).unwrap();
    let reversed = Tensor::from_vec((0..FRAMES as u32).rev().collect(), FRAMES, &Device::Cpu).unwrap();
    let reverse = |x: Tensor| x.index_select(&reversed, 1).unwrap();
    let expected = Tensor::cat(&[run(&first, &x), reverse(run(&second, &reverse(x.clone())))], 2).unwrap();
    assert_close(&layer.forward(&x, &[FRAMES; 2]).unwrap(), &expected, 1e-12);
}

#[test]
fn the_shape_of_a_batch_determines_its_groups() {
    // Groups of 8 until 64 threads would have two of 16 each; at least two, so that a direction can
    // use two cores.
    let sizes = |batches: [usize; 6], directions| batches.map(|batch| group_size(batch, directions));
    assert_eq!(sizes([1, 4, 16, 32, 1024, 4096], 1), [1, 2, 8, 8, 8, 16]);
    assert_eq!(sizes([1, 4, 16, 32, 1024, 4096], 2), [1, 4, 8, 8, 16, 16]);
    for (batch, directions) in [(32, 1), (32, 2), (5, 1), (1, 2), (0, 1)] {
        let lengths: Vec<usize> = (0..batch).map(|b| 100 + b % 7).collect();
        let layout = TapeLayout::new(&lengths, LayerBlocking::Groups(group_size(batch, directions)), false);
        assert_eq!(layout.groups.len(), batch.div_ceil(group_size(batch, directions)));
        assert_eq!(layout.rows(), lengths.iter().sum::<usize>());
        // Every row belongs to one frame of one utterance.
        let frames = (0..batch).flat_map(|b| (0..110).map(move |t| (b, t)));
        let mut used_rows: Vec<usize> = frames.clone().filter_map(|(b, t)| layout.row(b, t)).collect();
        used_rows.sort_unstable();
        assert!(used_rows.into_iter().eq(0..layout.rows()));
        for (b, t) in frames {
            let row = layout.row(b, t);
            assert_eq!(row.is_some(), t < lengths[b]);
            assert!(row.is_none_or(|row| layout.frame(row) == (b, t)));
        }
    }
}

/// Returns the number of tasks of each parallel step.
///
/// Input and output have the same width, so that both weights are divided equally.
fn tasks_by_step(batch: usize, frames: usize, hidden: usize) -> Vec<(&'static str, usize)> {
    let layout = TapeLayout::new(&vec![frames; batch], layout::select_blocking(batch, 1, hidden), false);
    let (rows, width) = (layout.rows(), 4 * hidden);
    let weight = vec![0.0f32; width * hidden];
    let layer_tasks = Affine::new(View::new(&weight, width, hidden).transposed(), None).tasks(rows);
    let strips = hidden.div_ceil(UNITS_PER_STRIP);
    let [forward, backward] = PackedRecurrentWeight::<f32>::tasks_for(hidden);
    vec![
        ("rows that are packed", rows.div_ceil(ROWS_PER_BLOCK)),
        ("packing W_ihᵀ", PackedRight::<f32>::tasks_for(hidden, width)),
        ("x W_ihᵀ", layer_tasks.rows),
        (
            "steps",
            if layout.uses_strips() {
                strips * batch.div_ceil(layout.groups[0].band_size())
            } else {
                layout.groups.len()
            },
        ),
        ("rows that are unpacked", (batch * frames).div_ceil(ROWS_PER_BLOCK)),
        ("packing W_ih", PackedRight::<f32>::tasks_for(width, hidden)),
        ("dx, dW and db", layer_tasks.rows + 2 * layer_tasks.parameters),
        ("dW and db, of an input that needs no gradient", 2 * layer_tasks.parameters),
        ("packing W_hh", forward),
        ("packing W_hhᵀ", backward),
    ]
}

#[test]
fn every_parallel_step_has_two_tasks_for_each_of_64_threads() {
    let shapes = [16, 24, 32, 48, 64].into_iter().flat_map(|batch| [(batch, 120, 512), (batch, 120, 1024)]);
    for (batch, frames, hidden) in shapes.chain([(16, 100, 1024)]) {
        for (step, count) in tasks_by_step(batch, frames, hidden) {
            match step {
                // Frames depend on each other; units and utterances are independent. Groups of
                // fewer than 8 utterances would read the recurrent weight too often, and strips of
                // fewer than 8 units would not fill a micro-kernel.
                "steps" if hidden < 1024 => assert_eq!(count, batch / 8),
                // Fewer tasks for a small weight.
                "packing W_ihᵀ" | "packing W_ih" if hidden < 1024 => {
                    assert!(count >= 64, "{step}: {count}")
                }
                _ => assert!(count >= 128, "{step}: {count} for B = {batch}, T = {frames}, H = {hidden}"),
            }
        }
    }
}

#[test]
fn wide_layers_of_few_utterances_are_divided_into_strips() {
    let blocking = |batch, hidden| layout::select_blocking(batch, 1, hidden);
    let strips = [blocking(16, 1024), blocking(1, 1024), blocking(4, 1028), blocking(512, 1024)];
    assert_eq!(strips, [LayerBlocking::Strips; 4]);
    // Too few strips; enough groups.
    assert_eq!([blocking(64, 512), blocking(1024, 1024)], [LayerBlocking::Groups(8); 2]);
    assert_eq!(layout::select_blocking(0, 2, 1 << 20), LayerBlocking::Groups(1));
}
