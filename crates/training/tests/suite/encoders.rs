//! Tests of the encoders of recipes, and of their gradients in training.
use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use model::encoders::{AttentionKind, BatchNormMode, ConvolutionNorm, EncoderKind};
use model::{Model, ModelConfig};
use training::data::Batch;
use training::optimizer::OptimizerConfig;
use training::{BatchShape, Error, Learner, Recipe, StepPosition, recomputed_step_bytes, step_bytes};

use super::rows::{BINS, chunks, conformer, every_kind, padded, utterances, values};
use super::toy::RECIPE;

fn model(kind: EncoderKind) -> Model {
    let recipe = RECIPE.replace("stack = 4\nstride = 4", "stack = 1\nstride = 1");
    let recipe = Recipe::parse(&recipe, "toy".as_ref()).unwrap();
    let mut config = ModelConfig { encoder: kind, ..recipe.model_config() };
    config.input.features.mels = BINS;
    Model::new(&config, 5).unwrap()
}

/// Gradients of all parameters on a batch, dropout and CTC included.
fn gradients(kind: &EncoderKind, threads: usize) -> BTreeMap<String, Vec<f32>> {
    step_gradients(kind, threads, false)
}

/// Gradients as those of [`gradients`], with or without recomputation.
fn step_gradients(kind: &EncoderKind, threads: usize, recomputes: bool) -> BTreeMap<String, Vec<f32>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let learner = Learner::new(model(kind.clone()), &OptimizerConfig::new(1e-3)).unwrap();
        let learner = learner.with_recomputation(recomputes);
        let (x, lengths) = padded(&utterances(), BINS);
        let batch_utterances = [0u32, 3, 4];
        let x = x.index_select(&Tensor::new(&batch_utterances, &Device::Cpu).unwrap(), 0).unwrap();
        let lengths = batch_utterances.map(|b| lengths[b as usize]).to_vec();
        let batch = Batch::new(x, lengths, vec![vec![0, 4], vec![1, 3, 2], vec![2]]);
        let position = StepPosition { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
        let mut batches = std::iter::once(Ok(batch));
        let (gradients, _) = learner.gradients(&mut batches, 3, &position).unwrap();
        gradients.iter().map(|(name, gradient)| (name.to_owned(), values(gradient))).collect()
    })
}

#[test]
fn gradients_reach_every_parameter_with_the_same_bits_for_any_number_of_threads() {
    for kind in every_kind() {
        let single = gradients(&kind, 1);
        let model = model(kind.clone());
        for (name, _) in model.parameters().iter() {
            let is_constant = name.ends_with("running_mean") || name.ends_with("running_var");
            assert!(!(is_constant && single.contains_key(name)), "{kind:?}: {name}");
            if is_constant {
                continue;
            }
            // A softmax does not change with the bias of the keys.
            let has_no_effect = name.ends_with("linear_k.bias");
            let reached = single.get(name).is_some_and(|g| g.iter().any(|g| g.abs() > 1e-9));
            assert!(has_no_effect || reached, "{kind:?}: {name}");
        }
        for threads in [2, 5] {
            assert!(gradients(&kind, threads) == single, "{kind:?}: {threads} threads");
        }
    }
}

#[test]
fn recomputed_layers_have_the_same_gradients_and_fewer_bytes() {
    let trained_norms = every_kind().into_iter().map(|mut kind| {
        if let EncoderKind::FastConformer(config) = &mut kind
            && config.convolution_norm == ConvolutionNorm::Batch
        {
            config.batch_norm = BatchNormMode::Trained;
        }
        kind
    });
    let (mut num_recomputed, shape) = (0, BatchShape { utterances: 4, rows: 400, labels: 20 });
    for kind in every_kind().into_iter().chain(trained_norms) {
        let (saved, recomputed) = (gradients(&kind, 2), step_gradients(&kind, 2, true));
        assert!(recomputed == saved, "{kind:?}");
        let model = model(kind.clone());
        let [saved, recomputed] = [step_bytes(&model, shape), recomputed_step_bytes(&model, shape)];
        assert_eq!(recomputed < saved, kind.recomputes(), "{kind:?}: {recomputed} {saved}");
        num_recomputed += usize::from(kind.recomputes());
    }
    assert_eq!(num_recomputed, 12);
}

#[test]
fn parameters_have_the_shapes_that_are_documented() {
    let shapes = model(EncoderKind::Conformer(conformer(AttentionKind::Full, 5, 4))).parameters().shapes();
    let shape = |name: &str| shapes[&format!("encoder.{name}")].clone();
    assert_eq!(shape("pre_encode.conv.0.weight"), [3, 1, 3, 3]);
    assert_eq!(shape("pre_encode.conv.2.weight"), [3, 3, 3, 3]);
    assert_eq!(shape("pre_encode.norm.weight"), [2 * 3]);
    assert_eq!(shape("pre_encode.out.weight"), [12, 2 * 3]);
    for (name, expected) in [
        ("norm_feed_forward1", vec![12]),
        ("feed_forward1.linear1", vec![20, 12]),
        ("feed_forward1.linear2", vec![12, 20]),
        ("norm_self_att", vec![12]),
        ("self_attn.linear_q", vec![12, 12]),
        ("self_attn.linear_k", vec![12, 12]),
        ("self_attn.linear_v", vec![12, 12]),
        ("self_attn.linear_out", vec![12, 12]),
        ("norm_conv", vec![12]),
        ("conv.pointwise_conv1", vec![24, 12]),
        ("conv.depthwise_conv", vec![12, 5]),
        ("conv.norm", vec![12]),
        ("conv.pointwise_conv2", vec![12, 12]),
        ("norm_feed_forward2", vec![12]),
        ("feed_forward2.linear1", vec![20, 12]),
        ("feed_forward2.linear2", vec![12, 20]),
        ("norm_out", vec![12]),
    ] {
        assert_eq!(shape(&format!("layers.1.{name}.weight")), expected, "{name}");
        assert_eq!(shape(&format!("layers.1.{name}.bias")), expected[..1], "{name}");
    }
    let layers = shapes.keys().filter(|name| name.starts_with("encoder.layers.")).count();
    assert_eq!(layers, 2 * 17 * 2);
}

const CONFORMER: &str = "kind = \"conformer\"\nstack = 1\nstride = 1\nlayers = 2\nwidth = 16\nheads = 2\nfeed_forward = 32\nkernel = 5\n\
                         attention = { chunk = 4, left = 2 }\nsubsampling = { channels = 8, factor = 4 }";

fn recipe(changes: &[(&str, &str)]) -> training::Result<Recipe> {
    let lstm = "stack = 4\nstride = 4\nlayers = 1\nhidden = 16\nbidirectional = true\ndropout = 0.1";
    let mut text = RECIPE.replace(lstm, CONFORMER);
    for (old, new) in changes {
        assert!(text.contains(old), "{old}");
        text = text.replace(old, new);
    }
    Recipe::parse(&text, "some.toml".as_ref())
}

#[test]
fn a_conformer_recipe_is_read_and_written_unchanged() {
    let read = recipe(&[]).unwrap();
    let EncoderKind::Conformer(config) = &read.encoder.kind else { panic!("{:?}", read.encoder.kind) };
    assert_eq!((config.attention, config.dropout), (chunks(4, 2), 0.0));
    assert_eq!(read.encoder.kind.reduction(), 4);
    assert_eq!(read.model_config().frame_ms(), 40.0);
    let full = recipe(&[("{ chunk = 4, left = 2 }", "\"full\"")]).unwrap();
    for recipe in [read, full] {
        let written = toml::to_string(&recipe).unwrap();
        assert_eq!(Recipe::parse(&written, "again.toml".as_ref()).unwrap(), recipe, "{written}");
    }
    let default = recipe(&[(", factor = 4", "")]).unwrap();
    assert_eq!(default.encoder.kind.reduction(), 4);
    assert_eq!(recipe(&[("factor = 4", "factor = 2")]).unwrap().encoder.kind.reduction(), 2);
}

#[test]
fn invalid_encoder_settings_are_errors_with_their_key() {
    for (old, new, name) in [
        ("layers = 2", "layers = 0", "encoder.layers"),
        ("width = 16\nheads", "width = 0\nheads", "encoder.width"),
        ("heads = 2", "heads = 3", "encoder.width"),
        ("heads = 2", "heads = 0", "encoder.heads"),
        ("feed_forward = 32", "feed_forward = 0", "encoder.feed_forward"),
        ("kernel = 5", "kernel = 0", "encoder.kernel"),
        ("kernel = 5\nattention = { chunk = 4, left = 2 }", "kernel = 4", "encoder.kernel"),
        ("kernel = 5", "kernel = 5\ndropout = 1.0", "encoder.dropout"),
        ("chunk = 4", "chunk = 0", "encoder.attention.chunk"),
        ("left = 2", "left = 1000000000000", "encoder.attention.left"),
        ("channels = 8", "channels = 0", "encoder.subsampling.channels"),
        ("factor = 4", "factor = 3", "encoder.subsampling.factor"),
        ("stack = 1", "stack = 3", "encoder.stack"),
        ("stride = 1", "", "encoder.stride"),
    ] {
        match recipe(&[(old, new)]).unwrap_err() {
            Error::Model(model::Error::RecipeValue { key, .. }) => assert_eq!(key, name, "{new}"),
            other => panic!("{new}: {other}"),
        }
    }
    for (old, new, key) in [
        ("heads = 2", "haeds = 2", "haeds"),
        ("left = 2", "right = 2", "right"),
        ("{ chunk = 4, left = 2 }", "\"half\"", "half"),
        ("{ chunk = 4, left = 2 }", "3", "chunk = n"),
        ("channels = 8", "chanels = 8", "chanels"),
    ] {
        let error = recipe(&[(old, new)]).unwrap_err();
        assert!(
            matches!(error, Error::Model(model::Error::RecipeSyntax { .. }))
                && error.to_string().contains(key),
            "{error}"
        );
    }
}
