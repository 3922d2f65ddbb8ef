//! Tests that greedy search allocates nothing after its first call.
use std::sync::Arc;

use panda::decoding::{
    Activation, AffineLayer, DecodingModel, GreedyOptions, GreedySearch, JointNetwork, LstmLayer,
    LstmPredictor,
};
use panda::rnnt_dp::Topology;

use crate::counting_allocator::{allocation_count, exclusive, measure};

const WIDTH: usize = 48;
const CLASSES: usize = 40;
/// Allowed peak of a call, in bytes: lists of lengths and streams.
const MAX_CALL_BYTES: usize = 2048;

/// Returns deterministic values.
fn test_values(count: usize, step: f32) -> Vec<f32> {
    (0..count).map(|i| (i as f32 * step).sin() * 0.7).collect()
}

/// Returns a model with two LSTM layers.
fn model(topology: &Topology) -> DecodingModel {
    let layer = |inputs: usize, step: f32| {
        [test_values(4 * WIDTH * inputs, step), test_values(4 * WIDTH * WIDTH, 1.3 * step)]
    };
    let (first, second, bias) = (layer(WIDTH, 0.71), layer(WIDTH, 0.37), vec![0.1; 4 * WIDTH]);
    let layers = [&first, &second].map(|[input, recurrent]| LstmLayer { input, recurrent, bias: &bias });
    let predictor = LstmPredictor::new(&test_values(CLASSES * WIDTH, 0.93), WIDTH, &layers, 0).unwrap();
    let outputs = CLASSES + topology.num_durations();
    let head = AffineLayer::new("head", &test_values(outputs * WIDTH, 0.57), WIDTH, None).unwrap();
    let projection = AffineLayer::new("projection", &test_values(WIDTH * WIDTH, 0.29), WIDTH, None).unwrap();
    let network =
        JointNetwork::new(Activation::Tanh, None, projection, head, topology.num_durations()).unwrap();
    DecodingModel::new(Arc::new(predictor), Arc::new(network), 0, &[], topology).unwrap()
}

#[test]
fn steps_of_a_second_call_do_not_allocate() {
    let _guard = exclusive();
    for name in ["regular", "tdt:0,1,2"] {
        let model = model(&name.parse().unwrap());
        let mut search = GreedySearch::new(model, GreedyOptions::default()).unwrap();
        let rows = test_values(400 * WIDTH, 0.413);
        let long: Vec<&[f32]> = [400, 300, 7, 0].map(|frames| &rows[..frames * WIDTH]).to_vec();
        let short: Vec<&[f32]> = [40, 30, 7, 0].map(|frames| &rows[..frames * WIDTH]).to_vec();
        // A pool of one thread: all allocations of a call are counted, and its packing buffer
        // exists.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let labels = pool.install(|| search.decode(&long).unwrap().labels(0).len());
        assert!(labels > 50, "{name}: only {labels} labels");
        let [long_count, short_count] = [&long, &short].map(|utterances| {
            let (mut peak, mut count) = (0, 0);
            pool.install(|| {
                peak = measure(|| count = allocation_count(|| search.decode(utterances).map(drop).unwrap()))
                    .peak_growth;
            });
            assert!(peak < MAX_CALL_BYTES, "{name}: {peak} bytes");
            count
        });
        // Each call allocates lists of lengths and streams; a step allocates nothing.
        assert_eq!(long_count, short_count, "{name}");
        assert!(long_count < 10, "{name}: {long_count} allocations");
    }
}
