//! Tests that streamed and windowed encoding give the rows of complete audio.
//!
//! Covers [`StreamingEncoder`] and [`ChunkedEncoder`]; `cuts` are the positions in samples where a
//! signal is divided into chunks.
use std::path::Path;
use std::sync::Arc;

use candle_nn::VarBuilder;
use model::encoders::{Encoder, ModuleEncoder};
use model::{Model, ModelConfig};
use proptest::prelude::*;
use recognizer::{ChunkedEncoder, Error, StreamState, StreamingEncoder, WindowConfig};
use speech::{Audio, FrontEnd};

use crate::rows::{bits, builder, cut, random, tensor, values};

/// Width of the joint network, which is that of the projected rows.
const WIDTH: usize = 7;
/// Sample rate of all features here, in Hz.
const SAMPLE_RATE: f64 = 8000.0;
/// Features that can be streamed.
const FEATURES: &str = r#"{ sample_rate = 8000, mels = 6, normalize = "running", floor_db = 90.0 }"#;

fn parse_config(features: &str, encoder: &str, seed: u64) -> ModelConfig {
    let recipe = format!(
        r#"
        seed = {seed}
        data = {{ train = ["none.jsonl"] }}
        features = {features}
        tokens = {{ kind = "words" }}
        encoder = {encoder}
        predictor = {{ kind = "stateless", embedding = 3, context = 1 }}
        joint = {{ width = {WIDTH} }}
        optimizer = {{ learning_rate = 1e-3 }}
        batch = {{ max_frames = 100, max_utterances = 4 }}
        training = {{ epochs = 1 }}
        "#
    );
    ModelConfig::from_recipe(&recipe, Path::new("test.toml")).unwrap()
}

fn new_model(features: &str, encoder: &str, seed: u64) -> Model {
    Model::new(&parse_config(features, encoder, seed), 4).unwrap()
}

/// A model with a causal encoder; time reduction joins `factor` rows.
fn forward_model(stack: usize, stride: usize, factor: usize) -> Model {
    let reduction = format!("time_reduction = {{ after_layer = 1, factor = {factor} }}");
    let encoder = format!("{{ stack = {stack}, stride = {stride}, layers = 2, hidden = 9, {reduction} }}");
    new_model(FEATURES, &encoder, 1)
}

/// The result of [`Model::encode`] for complete audio.
fn encode_at_once(model: &Model, features: &str, stack: usize, stride: usize, samples: &[f32]) -> Vec<f32> {
    let config = toml::from_str(features.trim_matches(['{', '}', ' ']).replace(", ", "\n").as_str()).unwrap();
    let audio = Audio { samples: samples.to_vec(), sample_rate: 8000 };
    let stacked = FrontEnd::new(&config).unwrap().log_mel(&audio).unwrap().stack(stack, stride);
    let x = tensor(&stacked.data, &[1, stacked.frames, stacked.dim]);
    values(&model.encode(&x, &[stacked.frames]).unwrap().0)
}

/// Encodes the available audio and appends the rows of each stream.
fn encode_ready(encoder: &mut StreamingEncoder, ids: &[recognizer::StreamId], rows: &mut [Vec<f32>]) {
    for chunk in encoder.encode().unwrap() {
        let index = ids.iter().position(|&id| id == chunk.stream).unwrap();
        rows[index].extend(chunk.rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn concurrent_streams_have_the_rows_of_their_complete_audio(
        lengths in prop::collection::vec(1usize..6000, 1..5),
        cuts in prop::collection::vec(prop::collection::vec(0usize..6000, 0..5), 4),
        (stack, stride) in prop::sample::select(vec![(3usize, 3usize), (6, 3), (1, 2), (4, 1)]),
        factor in 1usize..3,
        seed in any::<u64>(),
        resumes_elsewhere in any::<bool>(),
    ) {
        let model = forward_model(stack, stride, factor);
        let signals: Vec<Vec<f32>> =
            lengths.iter().enumerate().map(|(b, &length)| random(length, seed ^ b as u64, 0.3)).collect();
        let mut encoder = StreamingEncoder::new(&model).unwrap();
        let mut ids: Vec<_> = signals.iter().map(|_| encoder.open()).collect();
        let mut stream_rows = vec![Vec::new(); signals.len()];
        // Where the remaining chunks of each signal start and end.
        let mut remaining_bounds: Vec<Vec<usize>> =
            lengths.iter().zip(&cuts).map(|(&length, cuts)| cut(length, cuts)).collect();
        while remaining_bounds.iter().any(|bounds| bounds.len() > 1) {
            for b in 0..remaining_bounds.len() {
                let &[start, end, ref later_bounds @ ..] = &remaining_bounds[b][..] else { continue };
                encoder.push(ids[b], &signals[b][start..end]).unwrap();
                if later_bounds.is_empty() {
                    encoder.finish(ids[b]).unwrap();
                } else if resumes_elsewhere {
                    // Through text into a second encoder, and back.
                    let (state, rows) = encoder.state(ids[b]).unwrap();
                    stream_rows[b].extend(rows);
                    let text = serde_json::to_string(&state).unwrap();
                    let state: StreamState = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(state.samples(), end as u64);
                    encoder.close(ids[b]).unwrap();
                    let mut second = StreamingEncoder::new(&model).unwrap();
                    let id = second.resume(state).unwrap();
                    ids[b] = encoder.resume(second.state(id).unwrap().0).unwrap();
                }
                remaining_bounds[b].remove(0);
            }
            if seed % 2 == 0 {
                encode_ready(&mut encoder, &ids, &mut stream_rows);
            }
        }
        encode_ready(&mut encoder, &ids, &mut stream_rows);
        prop_assert_eq!(encoder.streams().count(), 0);
        for (stream_rows, signal) in stream_rows.iter().zip(&signals) {
            prop_assert_eq!(bits(stream_rows), bits(&encode_at_once(&model, FEATURES, stack, stride, signal)));
        }
    }
}

#[test]
fn rows_do_not_depend_on_the_number_of_threads() {
    let model = forward_model(3, 3, 2);
    let signals: Vec<Vec<f32>> = (0..40).map(|b| random(3000 + 100 * b, b as u64, 0.3)).collect();
    let encode_on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut encoder = StreamingEncoder::new(&model).unwrap();
            for signal in &signals {
                let id = encoder.open();
                encoder.push(id, signal).unwrap();
            }
            encoder.encode().unwrap().iter().flat_map(|chunk| bits(&chunk.rows)).collect::<Vec<_>>()
        })
    };
    let single_threaded = encode_on(1);
    assert!(!single_threaded.is_empty());
    assert!(single_threaded == encode_on(2) && single_threaded == encode_on(5));
}

#[test]
fn features_of_several_channels_are_streamed() {
    let config =
        parse_config(FEATURES, "{ stack = 3, stride = 2, channels = 32, layers = 1, hidden = 4 }", 1);
    let model = Model::new(&config, 4).unwrap();
    let samples = random(5000, 3, 0.3);
    let mut encoder = StreamingEncoder::new(&model).unwrap();
    let id = encoder.open();
    encoder.push(id, &samples).unwrap();
    encoder.finish(id).unwrap();
    let rows: Vec<f32> = encoder.encode().unwrap().into_iter().flat_map(|chunk| chunk.rows).collect();
    let front_end = FrontEnd::new(&config.input.features).unwrap();
    let stacked = front_end.log_mel(&Audio { samples, sample_rate: 8000 }).unwrap().stack_padded(3, 2, 32);
    let x = tensor(&stacked.data, &[1, stacked.frames, 32]);
    assert_eq!(bits(&rows), bits(&values(&model.encode(&x, &[stacked.frames]).unwrap().0)));
}

#[test]
fn models_that_require_complete_utterances_are_refused_with_advice() {
    let bidirectional = "{ layers = 1, hidden = 4, bidirectional = true }";
    let forward = "{ layers = 1, hidden = 4 }";
    let utterance = "{ sample_rate = 8000, mels = 6 }";
    let kaldi = "{ preset = \"kaldi\", sample_rate = 8000, mels = 6 }";
    for (features, encoder, part) in [
        (FEATURES, bidirectional, "an encoder that needs the whole utterance"),
        (utterance, forward, "features that are normalized by the whole utterance"),
        (kaldi, forward, "features that need the whole utterance"),
    ] {
        let error = StreamingEncoder::new(&new_model(features, encoder, 1)).err().unwrap();
        assert!(matches!(error, Error::NotStreaming { .. }));
        let message = error.to_string();
        assert!(message.contains(part) && message.contains("overlapping windows"), "{message}");
    }
    let identity = |vb: &VarBuilder| -> model::Result<Arc<dyn Encoder>> {
        Ok(Arc::new(ModuleEncoder::new(candle_nn::linear(18, 5, vb.clone())?, 5, 1)?))
    };
    assert!(identity(&builder()).unwrap().stream().unwrap().is_none());
}

#[test]
fn invalid_streams_samples_and_states_are_typed_errors() {
    let model = forward_model(3, 3, 1);
    let mut encoder = StreamingEncoder::new(&model).unwrap();
    assert_eq!((encoder.width(), encoder.sample_rate()), (WIDTH, 8000));
    let id = encoder.open();
    encoder.push(id, &random(900, 1, 0.5)).unwrap();
    let error = encoder.push(id, &[0.0, f32::NAN]).unwrap_err();
    assert!(
        matches!(error, Error::Model(model::Error::Speech(speech::Error::NotFinite { index: 901, .. }))),
        "{error}"
    );
    let (state, rows) = encoder.state(id).unwrap();
    assert_eq!(rows.len() % WIDTH, 0);

    let error = StreamingEncoder::new(&new_model(FEATURES, "{ layers = 2, hidden = 9 }", 2))
        .unwrap()
        .resume(state.clone());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::StreamState { .. }), "{error}");
    let valid = serde_json::to_value(&state).unwrap();
    for (pointer, value) in [
        ("/features/frames", serde_json::json!(3)),
        ("/stack/stride", serde_json::json!(2)),
        ("/stack/kept", serde_json::json!([1.0])),
        ("/encoder/layers.0.h", serde_json::json!([0.0])),
        ("/model", serde_json::json!(1)),
    ] {
        let mut damaged = valid.clone();
        *damaged.pointer_mut(pointer).unwrap() = value;
        let error = encoder.resume(serde_json::from_value(damaged).unwrap()).unwrap_err();
        assert!(matches!(error, Error::StreamState { .. }), "{pointer}: {error}");
    }

    encoder.finish(id).unwrap();
    for error in
        [encoder.push(id, &[]).unwrap_err(), encoder.finish(id).unwrap_err(), encoder.state(id).unwrap_err()]
    {
        assert!(matches!(error, Error::NoStream { id: 0, open: 0 }), "{error}");
    }
    let chunks = encoder.encode().unwrap();
    assert!(chunks.len() == 1 && chunks[0].last && chunks[0].stream == id);
    assert!(matches!(encoder.close(id), Err(Error::NoStream { .. })));
    assert!(encoder.encode().unwrap().is_empty());

    // A stream without a sample ends without a row.
    let id = encoder.open();
    encoder.finish(id).unwrap();
    assert_eq!(
        encoder.encode().unwrap(),
        [recognizer::EncodedChunk { stream: id, rows: vec![], last: true }]
    );
}

/// Features that are normalized by whole utterances.
const UTTERANCE_FEATURES: &str = "{ sample_rate = 8000, mels = 6 }";

/// A model that needs whole utterances; time reduction joins `factor` rows.
fn bidirectional_model(factor: usize) -> Model {
    let encoder = format!(
        "{{ stack = 4, stride = 3, layers = 2, hidden = 9, bidirectional = true, time_reduction = {{ after_layer = 1, factor = {factor} }} }}"
    );
    new_model(UTTERANCE_FEATURES, &encoder, 1)
}

/// The rows of all windows of a signal, which arrives in chunks.
fn encode_windows(model: &Model, config: WindowConfig, samples: &[f32], cuts: &[usize]) -> Vec<f32> {
    let (mut encoder, mut rows) = (ChunkedEncoder::new(model, config).unwrap(), Vec::new());
    for bounds in cut(samples.len(), cuts).windows(2) {
        let old_length = rows.len();
        let num_rows = encoder.push(&samples[bounds[0]..bounds[1]], &mut rows).unwrap();
        assert_eq!(rows.len() - old_length, num_rows * WIDTH);
    }
    encoder.finish(&mut rows).unwrap();
    assert_eq!(encoder.finish(&mut rows).unwrap(), 0);
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn windows_give_as_many_rows_as_complete_audio(
        num_samples in 1usize..30_000,
        cuts in prop::collection::vec(0usize..30_000, 0..6),
        (seconds, overlap) in prop::sample::select(
            vec![(1.0, 0.3), (0.5, 0.25), (0.33, 0.12), (2.0, 1.9), (20.0, 5.0)]
        ),
        factor in 1usize..3,
    ) {
        let (model, samples) = (bidirectional_model(factor), random(num_samples, 5, 0.3));
        let config = WindowConfig { seconds, overlap };
        let windowed = encode_windows(&model, config, &samples, &[]);
        prop_assert_eq!(bits(&encode_windows(&model, config, &samples, &cuts)), bits(&windowed));
        let complete = encode_at_once(&model, UTTERANCE_FEATURES, 4, 3, &samples);
        prop_assert_eq!(windowed.len(), complete.len());
        // One window is the complete audio.
        if num_samples as f64 <= SAMPLE_RATE * seconds {
            prop_assert_eq!(bits(&windowed), bits(&complete));
        }
    }
}

/// Compares windows with complete audio for an encoder without context.
///
/// Each window has separate feature statistics.
#[test]
fn rows_of_windows_are_at_the_same_time() {
    let config = parse_config(UTTERANCE_FEATURES, "{ stack = 3, stride = 3, layers = 1, hidden = 4 }", 3);
    let new_context_free_model = |factor| {
        Model::with_parts(&config, 4, |encoder, predictor| {
            let encoder = ModuleEncoder::new(candle_nn::linear(18, 5, encoder)?, 5, factor)?;
            let predictor = config.predictor.as_ref().unwrap().build(5, 4, &predictor)?;
            Ok((Arc::new(encoder), predictor))
        })
    };
    let (model, samples) = (new_context_free_model(1).unwrap(), random(40_000, 8, 0.3));
    let complete = encode_at_once(&model, UTTERANCE_FEATURES, 3, 3, &samples);
    let config = WindowConfig { seconds: 1.0, overlap: 0.4 };
    let windowed = encode_windows(&model, config, &samples, &[]);
    let distance = |shift: usize| {
        let pairs = windowed[shift * WIDTH..].iter().zip(&complete);
        pairs.map(|(a, b)| (a - b).abs()).sum::<f32>() / windowed.len() as f32
    };
    assert!(distance(0) < 0.2 * distance(1), "{} {}", distance(0), distance(1));
    // An encoder with a time reduction that is not in the recipe would return misplaced rows.
    let mut windows = ChunkedEncoder::new(&new_context_free_model(2).unwrap(), config).unwrap();
    let error = windows.push(&samples, &mut Vec::new()).unwrap_err().to_string();
    assert!(error.starts_with("encoder: expected 34 rows per window, as in the recipe, found 17"), "{error}");
}

#[test]
fn invalid_windows_are_refused() {
    let model = bidirectional_model(1);
    for (seconds, overlap, argument) in [
        (20.0, 20.0, "overlap"),
        (20.0, 0.0, "overlap"),
        (20.0, 0.03, "overlap"),
        (20.0, f64::NAN, "overlap"),
        (0.09, 0.08, "overlap"),
        (f64::NAN, 5.0, "seconds"),
        (f64::INFINITY, 5.0, "seconds"),
        (-1.0, 0.5, "seconds"),
    ] {
        let error = ChunkedEncoder::new(&model, WindowConfig { seconds, overlap }).err().unwrap().to_string();
        assert!(error.starts_with(argument), "{seconds} {overlap}: {error}");
    }
    let (mut windows, mut rows) = (ChunkedEncoder::new(&model, WindowConfig::default()).unwrap(), Vec::new());
    windows.push(&[0.1; 100], &mut rows).unwrap();
    let error = windows.push(&[0.1, f32::INFINITY], &mut rows).unwrap_err();
    assert!(
        matches!(error, Error::Model(model::Error::Speech(speech::Error::NotFinite { index: 101, .. }))),
        "{error}"
    );
}

#[test]
fn audio_of_the_length_of_a_window_is_encoded_in_one_window() {
    // 2 s are 33 1/3 rows of 60 ms: with 33 rows, the last 39 samples would be in a second window.
    let (model, samples) = (bidirectional_model(2), random(16_000, 5, 0.3));
    for num_samples in [15_960, 15_961, 16_000] {
        let config = WindowConfig { seconds: 2.0, overlap: 1.9 };
        let samples = &samples[..num_samples];
        let complete = encode_at_once(&model, UTTERANCE_FEATURES, 4, 3, samples);
        let windowed = encode_windows(&model, config, samples, &[]);
        assert_eq!(bits(&windowed), bits(&complete), "{num_samples}");
    }
}

#[test]
fn chunked_audio_has_the_rows_of_complete_audio() {
    let attention = "attention = { chunk = 3, left = 2 }, subsampling = { channels = 4 }";
    let sizes = "layers = 2, width = 8, heads = 2, feed_forward = 16, kernel = 4";
    let encoder = format!("{{ kind = \"conformer\", stack = 1, stride = 1, {sizes}, {attention} }}");
    let model = new_model(FEATURES, &encoder, 1);
    let samples = random(9_000, 5, 0.3);
    let complete = encode_at_once(&model, FEATURES, 1, 1, &samples);
    let mut encoder = recognizer::StreamingEncoder::new(&model).unwrap();
    let stream = encoder.open();
    let mut rows = Vec::new();
    for samples in samples.chunks(1234) {
        encoder.push(stream, samples).unwrap();
        encoder.encode().unwrap().into_iter().for_each(|chunk| rows.extend(chunk.rows));
    }
    encoder.finish(stream).unwrap();
    encoder.encode().unwrap().into_iter().for_each(|chunk| rows.extend(chunk.rows));
    assert_eq!(bits(&rows), bits(&complete));
    assert!(rows.len() / WIDTH > 20);
}
