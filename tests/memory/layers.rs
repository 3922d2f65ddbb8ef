//! Tests that LSTM layers reuse their buffers: later steps allocate only results.
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::{VarBuilder, VarMap};
use panda::model::Lstm;

use crate::counting_allocator::{LARGE_ALLOCATION, exclusive, large_allocations};

/// Widths of the input and of the state.
const INPUT: usize = 56;
const HIDDEN: usize = 72;

/// Two LSTM layers, each with one or two directions.
struct LstmStack {
    layers: Vec<Lstm>,
    directions: usize,
}

impl LstmStack {
    fn new(directions: usize) -> Self {
        let vb = VarBuilder::from_varmap(&VarMap::new(), DType::F32, &Device::Cpu);
        let layer =
            |(index, input): (usize, usize)| Lstm::new(input, HIDDEN, index, directions == 2, &vb).unwrap();
        let widths = [INPUT, directions * HIDDEN];
        let layers = Lstm::with_shared_buffers(widths.into_iter().enumerate().map(layer).collect());
        LstmStack { layers, directions }
    }

    /// Returns the sizes of large allocations of a step.
    ///
    /// Outputs and gradients do not count.
    fn step(&self, lengths: &[usize]) -> Vec<usize> {
        let (batch, frames, width) =
            (lengths.len(), *lengths.iter().max().unwrap(), self.directions * HIDDEN);
        let input = Var::randn(0f32, 1.0, (batch, frames, INPUT), &Device::Cpu).unwrap();
        let output_gradient = Tensor::randn(0f32, 1.0, (batch, frames, width), &Device::Cpu).unwrap();
        let (sizes, gradients) = large_allocations(|| {
            let apply_layer = |rows: Tensor, layer: &Lstm| layer.forward(&rows, lengths).unwrap();
            let out = self.layers.iter().fold(input.as_tensor().clone(), apply_layer);
            (out * &output_gradient).unwrap().sum_all().unwrap().backward().unwrap()
        });
        assert_eq!(gradients.get(&input).unwrap().dims(), input.dims());
        // Results: rows of both layers, and gradients of the weights of four gates, in f32.
        let row_values = [INPUT, width].map(|width| batch * frames * width);
        let weight_values = [INPUT, HIDDEN, width].map(|inputs| 4 * HIDDEN * inputs);
        let results: Vec<usize> =
            row_values.into_iter().chain(weight_values).map(|count| size_of::<f32>() * count).collect();
        assert!(results.iter().all(|&bytes| bytes >= LARGE_ALLOCATION), "results must be large allocations");
        sizes.into_iter().filter(|size| !results.contains(size)).collect()
    }
}

/// Frames of each utterance.
const LENGTHS: [usize; 12] = [61, 60, 7, 33, 41, 20, 55, 58, 12, 1, 0, 47];

#[test]
fn a_second_step_of_lstm_layers_allocates_only_its_results() {
    let _guard = exclusive();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    for directions in [1, 2] {
        let stack = LstmStack::new(directions);
        let step = |lengths: &[usize]| pool.install(|| stack.step(lengths));
        assert!(step(&LENGTHS).len() > 8, "the first step must allocate buffers");
        for lengths in [&LENGTHS[..], &LENGTHS[..5], &[59; 3], &LENGTHS] {
            assert_eq!(step(lengths), [0usize; 0], "{directions} directions, {lengths:?}");
        }
    }
}

#[test]
fn steps_of_lstm_layers_on_two_threads_stop_allocating() {
    let _guard = exclusive();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let stack = LstmStack::new(2);
    // How many buffers of a kind are in use at once depends on the threads; the maximum is reached
    // early.
    let first_without = (0..50).position(|_| pool.install(|| stack.step(&LENGTHS)).is_empty());
    assert!(first_without.is_some_and(|step| step > 0), "{first_without:?}");
}
