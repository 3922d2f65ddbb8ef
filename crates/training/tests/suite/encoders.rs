//! Conformers, and convolutions in front of an encoder.
use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use model::encoders::{
    AttentionKind, BuildEncoder, ChunkedAttention, ConformerEncoderConfig, EncoderKind, EncoderPiece,
    EncoderState, LstmEncoderConfig, SubsamplingConfig,
};
use model::{DropoutMasks, Model, ModelConfig};
use proptest::prelude::*;
use training::data::Batch;
use training::optimizer::OptimizerConfig;
use training::{Error, Learner, Moment, Recipe};

use super::streaming::{
    FEATURES, bits, builder, encode, in_pieces, model_of, padded, random, unpadded, values,
};
use super::toy::RECIPE;

/// Values of an input row.
const BINS: usize = 7;

fn subsampling(factor: usize) -> Option<SubsamplingConfig> {
    Some(SubsamplingConfig { channels: 3, factor })
}

fn conformer(attention: AttentionKind, kernel: usize, factor: usize) -> ConformerEncoderConfig {
    ConformerEncoderConfig {
        layers: 2,
        width: 12,
        heads: 3,
        feed_forward: 20,
        kernel,
        dropout: 0.2,
        attention,
        subsampling: if factor > 1 { subsampling(factor) } else { None },
    }
}

fn chunks(chunk: usize, left: usize) -> AttentionKind {
    AttentionKind::Chunked(ChunkedAttention { chunk, left })
}

fn lstm(bidirectional: bool, factor: usize) -> LstmEncoderConfig {
    let subsampling = subsampling(factor);
    LstmEncoderConfig { layers: 2, hidden: 9, bidirectional, subsampling, ..LstmEncoderConfig::default() }
}

fn every_kind() -> Vec<EncoderKind> {
    vec![
        EncoderKind::Conformer(conformer(AttentionKind::Full, 5, 4)),
        EncoderKind::Conformer(conformer(AttentionKind::Full, 3, 1)),
        EncoderKind::Conformer(conformer(chunks(3, 2), 4, 2)),
        EncoderKind::Lstm(lstm(true, 4)),
        EncoderKind::Lstm(lstm(false, 2)),
    ]
}

const LENGTHS: [usize; 5] = [23, 0, 1, 40, 18];

fn utterances() -> Vec<Vec<f32>> {
    LENGTHS.iter().enumerate().map(|(b, n)| random(n * BINS, b as u64, 1.0)).collect()
}

#[test]
fn rows_of_an_utterance_depend_neither_on_its_mates_nor_on_padding() {
    for kind in every_kind() {
        kind.check().unwrap();
        let encoder = kind.build(BINS, &builder()).unwrap();
        let (x, lengths) = padded(&utterances(), BINS);
        let together = unpadded(encoder.forward(&x, &lengths, None).unwrap());
        let mut poisoned: Vec<Vec<Vec<f32>>> = x.to_vec3().unwrap();
        for (rows, &length) in poisoned.iter_mut().zip(&lengths) {
            rows[length..].iter_mut().for_each(|row| row.fill(f32::NAN));
        }
        let poisoned = Tensor::new(poisoned, &Device::Cpu).unwrap();
        assert_eq!(unpadded(encoder.forward(&poisoned, &lengths, None).unwrap()), together, "{kind:?}");
        for (rows, together) in utterances().iter().zip(&together) {
            let (x, lengths) = padded(std::slice::from_ref(rows), BINS);
            let alone = unpadded(encoder.forward(&x, &lengths, None).unwrap());
            assert_eq!(bits(&alone[0]), bits(together), "{kind:?}");
            let steps = rows.len() / BINS;
            assert_eq!(alone[0].len() / encoder.width(), steps.div_ceil(kind.reduction()));
        }
        assert!(together.concat().iter().all(|x| x.is_finite()));
    }
}

fn model(kind: EncoderKind) -> Model {
    let recipe = RECIPE.replace("stack = 4\nstride = 4", "stack = 1\nstride = 1");
    let recipe = Recipe::parse(&recipe, "toy".as_ref()).unwrap();
    let mut config = ModelConfig { encoder: kind, ..recipe.model() };
    config.input.features.mels = BINS;
    Model::new(&config, 5).unwrap()
}

/// Gradients of all parameters on a batch, dropout and CTC included.
fn gradients(kind: &EncoderKind, threads: usize) -> BTreeMap<String, Vec<f32>> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let learner = Learner::new(model(kind.clone()), &OptimizerConfig::new(1e-3)).unwrap();
        let (x, lengths) = padded(&utterances(), BINS);
        let keep = [0, 3, 4];
        let x = x.index_select(&Tensor::new(&[0u32, 3, 4], &Device::Cpu).unwrap(), 0).unwrap();
        let lengths = keep.map(|b| lengths[b]).to_vec();
        let batch = Batch::new(x, lengths, vec![vec![0, 4], vec![1, 3, 2], vec![2]]);
        let moment = Moment { epoch: 0, step: 0, steps_per_epoch: 1, progress: 0.0 };
        let mut parts = std::iter::once(Ok(batch));
        let (gradients, _) = learner.gradients(&mut parts, 3, &moment).unwrap();
        gradients.iter().map(|(name, gradient)| (name.to_owned(), values(gradient))).collect()
    })
}

#[test]
fn gradients_reach_every_parameter_with_the_same_bits_for_any_number_of_threads() {
    for kind in every_kind() {
        let one = gradients(&kind, 1);
        let names = model(kind.clone());
        for (name, _) in names.parameters().iter() {
            // A softmax does not change with the bias of the keys.
            let silent = name.ends_with("linear_k.bias");
            let reached = one.get(name).is_some_and(|g| g.iter().any(|g| g.abs() > 1e-9));
            assert!(silent || reached, "{kind:?}: {name}");
        }
        for threads in [2, 5] {
            assert!(gradients(&kind, threads) == one, "{kind:?}: {threads} threads");
        }
    }
}

#[test]
fn dropout_is_on_with_masks_alone() {
    for kind in every_kind().into_iter().take(3) {
        let encoder = kind.build(BINS, &builder()).unwrap();
        let (x, lengths) = padded(&utterances(), BINS);
        let run = |masks: Option<u64>| {
            let numbers: Vec<u64> = (0..lengths.len() as u64).collect();
            let mut masks = masks.map(|epoch| DropoutMasks::new(1, epoch, &numbers));
            values(&encoder.forward(&x, &lengths, masks.as_mut()).unwrap().0)
        };
        assert_eq!(run(Some(1)), run(Some(1)));
        assert!(run(Some(1)) != run(Some(2)) && run(Some(1)) != run(None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn conformers_and_subsampling_in_pieces_have_the_bits_of_the_whole(
        lengths in prop::collection::vec(0usize..30, 1..5),
        cuts in prop::collection::vec(prop::collection::vec(0usize..30, 0..6), 4),
        chunk in 1usize..5,
        left in 0usize..3,
        kernel in 1usize..6,
        factor in prop::sample::select(vec![1usize, 2, 4]),
        order in any::<u64>(),
    ) {
        let encoder = conformer(chunks(chunk, left), kernel, factor).build(BINS, &builder()).unwrap();
        let stream = encoder.stream().unwrap().unwrap();
        in_pieces(encoder.as_ref(), stream.as_ref(), &lengths, &cuts, order);
        if factor > 1 {
            let encoder = lstm(false, factor).build(BINS, &builder()).unwrap();
            let stream = encoder.stream().unwrap().unwrap();
            in_pieces(encoder.as_ref(), stream.as_ref(), &lengths, &cuts, order);
        }
    }
}

#[test]
fn only_chunks_are_a_stream_and_its_states_are_plain_values_that_are_checked() {
    let full = conformer(AttentionKind::Full, 3, 4).build(BINS, &builder()).unwrap();
    assert!(full.stream().unwrap().is_none());
    let encoder = conformer(chunks(2, 1), 3, 4).build(BINS, &builder()).unwrap();
    let stream = encoder.stream().unwrap().unwrap();
    let mut state = stream.start();
    let names: Vec<&str> = state.values.keys().map(String::as_str).collect();
    assert_eq!(names[..4], ["layers.0.keys", "layers.0.tail", "layers.1.keys", "layers.1.tail"]);
    assert_eq!(names[4..], ["subsampling.0", "subsampling.1", "waiting"]);
    let rows = random(30 * BINS, 1, 1.0);
    // 7 rows are complete, of which 6 are chunks.
    let out = stream.step(&mut [EncoderPiece { state: &mut state, rows: &rows, last: false }]).unwrap();
    assert_eq!(out[0].len(), 6 * 12);
    assert_eq!((state.values["layers.1.keys"].len(), state.values["layers.1.tail"].len()), (48, 24));
    assert_eq!(state.values["waiting"].len(), 12);
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<EncoderState>(&text).unwrap(), state);
    for (name, count, message) in [
        ("layers.1.keys", 24, "state layers.1.keys: expected [0, 48] values, found 24"),
        ("layers.0.tail", 7, "state layers.0.tail: expected [0, 12, 24] values, found 7"),
        ("subsampling.1", 0, "state subsampling.1: expected [12, 24] values, found 0"),
        ("waiting", 24, "state waiting: expected [0, 12] values, found 24"),
    ] {
        let mut damaged = state.clone();
        damaged.values.get_mut(name).unwrap().resize(count, 0.0);
        let error =
            stream.step(&mut [EncoderPiece { state: &mut damaged, rows: &rows, last: true }]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn sound_in_pieces_has_the_rows_of_the_whole() {
    let attention = "attention = { chunk = 3, left = 2 }, subsampling = { channels = 4 }";
    let sizes = "layers = 2, width = 8, heads = 2, feed_forward = 16, kernel = 4";
    let encoder = format!("{{ kind = \"conformer\", stack = 1, stride = 1, {sizes}, {attention} }}");
    let model = model_of(FEATURES, &encoder, 1);
    let samples = random(9_000, 5, 0.3);
    let whole = encode(&model, FEATURES, (1, 1), &samples);
    let mut listener = recognizer::StreamingEncoder::new(&model).unwrap();
    let stream = listener.open();
    let mut found = Vec::new();
    for piece in samples.chunks(1234) {
        listener.push(stream, piece).unwrap();
        listener.encode().unwrap().into_iter().for_each(|heard| found.extend(heard.rows));
    }
    listener.finish(stream).unwrap();
    listener.encode().unwrap().into_iter().for_each(|heard| found.extend(heard.rows));
    assert_eq!(bits(&found), bits(&whole));
    assert!(found.len() / 7 > 20);
}

#[test]
fn parameters_have_the_shapes_of_the_table() {
    let shapes = model(EncoderKind::Conformer(conformer(AttentionKind::Full, 5, 4))).parameters().shapes();
    let of = |name: &str| shapes[&format!("encoder.{name}")].clone();
    assert_eq!(of("pre_encode.conv.0.weight"), [3, 1, 3, 3]);
    assert_eq!(of("pre_encode.conv.2.weight"), [3, 3, 3, 3]);
    assert_eq!(of("pre_encode.norm.weight"), [2 * 3]);
    assert_eq!(of("pre_encode.out.weight"), [12, 2 * 3]);
    for (name, shape) in [
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
        assert_eq!(of(&format!("layers.1.{name}.weight")), shape, "{name}");
        assert_eq!(of(&format!("layers.1.{name}.bias")), shape[..1], "{name}");
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
fn a_recipe_says_it_all_and_is_written_as_it_was_read() {
    let read = recipe(&[]).unwrap();
    let EncoderKind::Conformer(config) = &read.encoder.kind else { panic!("{:?}", read.encoder.kind) };
    assert_eq!((config.attention, config.dropout), (chunks(4, 2), 0.0));
    assert_eq!(read.encoder.kind.reduction(), 4);
    assert_eq!(read.model().frame_ms(), 40.0);
    let full = recipe(&[("{ chunk = 4, left = 2 }", "\"full\"")]).unwrap();
    for recipe in [read, full] {
        let written = toml::to_string(&recipe).unwrap();
        assert_eq!(Recipe::parse(&written, "again.toml".as_ref()).unwrap(), recipe, "{written}");
    }
    let two = recipe(&[(", factor = 4", "")]).unwrap();
    assert_eq!(two.encoder.kind.reduction(), 4);
    assert_eq!(recipe(&[("factor = 4", "factor = 2")]).unwrap().encoder.kind.reduction(), 2);
}

#[test]
fn what_does_not_fit_is_named() {
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
