//! Tests of the statistics of batch norms in training: constant ones, and those of batches.
use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use candle_core::{Device, Tensor};
use distributed::{ProcessGroup, ThreadCommunicator, TransferFormat};
use model::{Checkpoint, Model};
use recognizer::Recognizer;
use training::recipe::RecipeOverrides;
use training::{StartMode, train_with};

use super::toy::Toy;

const LSTM: &str = "stack = 4\nstride = 4\nlayers = 1\nhidden = 16\nbidirectional = true\ndropout = 0.1";

/// A FastConformer with batch norms; rows have 4 frames.
const FAST_CONFORMER: &str = "kind = \"fastconformer\"\nstack = 1\nstride = 1\nlayers = 2\nwidth = 8\nheads = 2\nfeed_forward = 16\n\
                              kernel = 5\nconvolution_norm = \"batch\"\nsubsampling = { channels = 4, factor = 4 }\ndropout = 0.1";

/// The mean of the second layer in the file of initial weights.
const MEAN: [f32; 8] = [0.5, -0.25, 0.125, 1.0, 0.0, 0.75, -1.0, 0.375];

/// Trains on `ranks` ranks.
fn train_on_ranks(recipe: &Path, run: &Path, ranks: usize, epochs: u64, start: StartMode) {
    let outcomes = ThreadCommunicator::run(ranks, |communicator| {
        let mut group = ProcessGroup::new(communicator, TransferFormat::F32);
        let overrides = RecipeOverrides { epochs: Some(epochs), ..RecipeOverrides::default() };
        train_with(recipe, overrides, run, start, &mut group, &mut (), &AtomicBool::new(false))
    });
    outcomes.into_iter().for_each(|outcome| assert!(!outcome.unwrap().stopped));
}

#[test]
fn statistics_of_batch_norms_are_stored_but_neither_trained_nor_reduced() {
    let toy = Toy::new();
    let mean = Tensor::from_slice(&MEAN, 8, &Device::Cpu).unwrap();
    let tensors = HashMap::from([("encoder.layers.1.conv.batch_norm.running_mean".to_owned(), mean)]);
    candle_core::safetensors::save(&tensors, toy.path("init.safetensors")).unwrap();
    let init = format!("[init]\nweights = {:?}\n[optimizer]", toy.path("init.safetensors"));
    for (kind, ranks) in [("adamw", 1), ("adamw", 2), ("lamb", 2)] {
        let optimizer = format!("{init}\nkind = \"{kind}\"");
        let recipe = toy.recipe(&[(LSTM, FAST_CONFORMER), ("[optimizer]", &optimizer)]);
        let run = toy.path(&format!("{kind} on {ranks}"));
        train_on_ranks(&recipe, &run, ranks, 1, StartMode::Fresh);
        train_on_ranks(&recipe, &run, ranks, 2, StartMode::Resume);

        let path = run.join("last.safetensors");
        let checkpoint = Checkpoint::read(&path).unwrap();
        let average = checkpoint.average.as_ref().unwrap();
        for layer in 0..2 {
            let name = |part: &str| format!("encoder.layers.{layer}.conv.batch_norm.{part}");
            let expected_mean = if layer == 1 { MEAN } else { [0.0; 8] };
            for values in [&checkpoint.weights, average] {
                assert_eq!(values[&name("running_mean")], expected_mean, "{kind}");
                assert_eq!(values[&name("running_var")], [1.0; 8], "{kind}");
                assert_ne!(values[&name("bias")], [0.0; 8], "{kind}");
            }
            assert_eq!(checkpoint.optimizer_state.len(), 2);
            for moments in checkpoint.optimizer_state.values() {
                assert!(moments.contains_key(&name("weight")));
                assert!(!moments.contains_key(&name("running_mean")));
                assert!(!moments.contains_key(&name("running_var")));
            }
        }
        let recognizer = Recognizer::load(&path).unwrap();
        let config = checkpoint.model_config(&path).unwrap();
        let model = Model::new(&config, checkpoint.tokenizer(&path).unwrap().size()).unwrap();
        model.parameters().set(average).unwrap();
        let checksums = recognizer.model().weight_checksums().unwrap();
        assert_eq!(checksums, model.weight_checksums().unwrap());

        // A checkpoint without the statistics is rejected.
        let mut damaged = checkpoint;
        damaged.weights.remove("encoder.layers.1.conv.batch_norm.running_mean");
        damaged.write(&toy.path("damaged.safetensors")).unwrap();
        let error = Recognizer::load(&toy.path("damaged.safetensors")).err().unwrap().to_string();
        assert!(error.contains("running_mean"), "{error}");
    }
}

/// Trains with batch norms of batches; returns the last checkpoint.
fn train_batch_norms(toy: &Toy, name: &str, ranks: usize, changes: &[(&str, &str)]) -> Checkpoint {
    let encoder = FAST_CONFORMER.replace("norm = \"batch\"", "norm = \"batch\"\nbatch_norm = \"trained\"");
    let run = toy.path(name);
    let recipe = toy.recipe(&[&[(LSTM, encoder.as_str())], changes].concat());
    train_on_ranks(&recipe, &run, ranks, 1, StartMode::Fresh);
    train_on_ranks(&recipe, &run, ranks, 2, StartMode::Resume);
    Checkpoint::read(&run.join("last.safetensors")).unwrap()
}

fn is_statistic(name: &str) -> bool {
    name.ends_with("running_mean") || name.ends_with("running_var")
}

#[test]
fn statistics_of_trained_batch_norms_follow_the_batches() {
    let toy = Toy::new();
    let hold = ("ema = 0.9", "ema = 0.9\ndecay = \"hold\"");
    let saved = train_batch_norms(&toy, "saved", 1, &[hold]);
    let statistics: Vec<_> = saved.weights.iter().filter(|(name, _)| is_statistic(name)).collect();
    assert_eq!(statistics.len(), 4);
    for (name, values) in &statistics {
        let initial = if name.ends_with("running_mean") { 0.0 } else { 1.0 };
        assert!(values.iter().all(|&value| value != initial && value.is_finite()), "{name}: {values:?}");
        // Evaluation uses averaged statistics with averaged weights.
        assert_ne!(saved.average.as_ref().unwrap()[*name], **values);
    }
    // Layers that are computed twice in a step are counted once.
    let recompute = ("epochs = 3", "epochs = 3\nrecompute = true");
    let recomputed = train_batch_norms(&toy, "recomputed", 1, &[hold, recompute]);
    assert!(recomputed.weights == saved.weights && recomputed.average == saved.average);
    // A resumed run has the bits of another.
    let encoder = FAST_CONFORMER.replace("norm = \"batch\"", "norm = \"batch\"\nbatch_norm = \"trained\"");
    let recipe = toy.recipe(&[(LSTM, encoder.as_str()), hold]);
    train_on_ranks(&recipe, &toy.path("unbroken"), 1, 2, StartMode::Fresh);
    let unbroken = Checkpoint::read(&toy.path("unbroken/last.safetensors")).unwrap();
    assert!(unbroken.weights == saved.weights);
    // Ranks compare their weights at each epoch. The statistics are those of their batches.
    let on_ranks = train_batch_norms(&toy, "ranks", 2, &[hold]);
    let mean = "encoder.layers.1.conv.batch_norm.running_mean";
    assert_ne!(on_ranks.weights[mean], [0.0; 8]);
    Recognizer::load(&toy.path("ranks/last.safetensors")).unwrap();
}

#[test]
fn frozen_batch_norms_keep_their_statistics() {
    let toy = Toy::new();
    let first = train_batch_norms(&toy, "first", 1, &[]);
    let init = "[init]\nweights = \"first/last.safetensors\"\nfrozen = [\"encoder.layers.0\"]\n[optimizer]";
    let second = train_batch_norms(&toy, "second", 1, &[("[optimizer]", init)]);
    for (name, values) in second.weights.iter().filter(|(name, _)| is_statistic(name)) {
        let first_values = &first.average.as_ref().unwrap()[name];
        assert_eq!(values == first_values, name.starts_with("encoder.layers.0."), "{name}");
    }
    // A layer norm has no statistics.
    let layer = FAST_CONFORMER.replace("norm = \"batch\"", "norm = \"layer\"\nbatch_norm = \"trained\"");
    let error = training::Recipe::read(&toy.recipe(&[(LSTM, layer.as_str())]), None).unwrap_err().to_string();
    assert!(error.contains("encoder.batch_norm: expected \"frozen\" without convolution_norm"), "{error}");
}
