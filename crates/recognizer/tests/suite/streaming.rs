//! Sound that arrives in pieces, and long sound in windows: the rows of the whole.
use std::path::Path;
use std::sync::Arc;

use candle_nn::VarBuilder;
use model::encoders::{Encoder, ModuleEncoder};
use model::{Model, ModelConfig};
use proptest::prelude::*;
use recognizer::{ChunkedEncoder, Error, StreamState, StreamingEncoder, WindowConfig};
use speech::{Audio, FrontEnd};

use crate::rows::{bits, builder, cut, random, tensor, values};

const FEATURES: &str = r#"{ sample_rate = 8000, mels = 6, normalise = "running", floor_db = 90.0 }"#;

fn config_of(features: &str, encoder: &str, seed: u64) -> ModelConfig {
    let recipe = format!(
        r#"
        seed = {seed}
        data = {{ train = ["none.jsonl"] }}
        features = {features}
        tokens = {{ kind = "words" }}
        encoder = {encoder}
        predictor = {{ kind = "stateless", embedding = 3, context = 1 }}
        joint = {{ width = 7 }}
        optimizer = {{ learning_rate = 1e-3 }}
        batch = {{ max_frames = 100, max_utterances = 4 }}
        training = {{ epochs = 1 }}
        "#
    );
    ModelConfig::from_recipe(&recipe, Path::new("test.toml")).unwrap()
}

fn model_of(features: &str, encoder: &str, seed: u64) -> Model {
    Model::new(&config_of(features, encoder, seed), 4).unwrap()
}

fn one_way(stack: usize, stride: usize, factor: usize) -> Model {
    let reduction = format!("time_reduction = {{ after_layer = 1, factor = {factor} }}");
    let encoder = format!("{{ stack = {stack}, stride = {stride}, layers = 2, hidden = 9, {reduction} }}");
    model_of(FEATURES, &encoder, 1)
}

/// [`Model::encode`] on whole sound.
fn encode(model: &Model, features: &str, rows: (usize, usize), samples: &[f32]) -> Vec<f32> {
    let config = toml::from_str(features.trim_matches(['{', '}', ' ']).replace(", ", "\n").as_str()).unwrap();
    let audio = Audio { samples: samples.to_vec(), sample_rate: 8000 };
    let plane = FrontEnd::new(&config).unwrap().log_mel(&audio).unwrap().stack(rows.0, rows.1);
    let x = tensor(&plane.data, &[1, plane.frames, plane.dim]);
    values(&model.encode(&x, &[plane.frames]).unwrap().0)
}

/// Encodes what is ready and adds it to the rows of each stream.
fn listen(listener: &mut StreamingEncoder, ids: &[recognizer::StreamId], found: &mut [Vec<f32>]) {
    for heard in listener.encode().unwrap() {
        let at = ids.iter().position(|&id| id == heard.stream).unwrap();
        found[at].extend(heard.rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn streams_side_by_side_have_the_rows_of_their_whole_sound(
        lengths in prop::collection::vec(1usize..6000, 1..5),
        cuts in prop::collection::vec(prop::collection::vec(0usize..6000, 0..5), 4),
        rows in prop::sample::select(vec![(3usize, 3usize), (6, 3), (1, 2), (4, 1)]),
        factor in 1usize..3,
        seed in any::<u64>(),
        moves in any::<bool>(),
    ) {
        let model = one_way(rows.0, rows.1, factor);
        let sounds: Vec<Vec<f32>> =
            lengths.iter().enumerate().map(|(b, &n)| random(n, seed ^ b as u64, 0.3)).collect();
        let mut listener = StreamingEncoder::new(&model).unwrap();
        let mut ids: Vec<_> = sounds.iter().map(|_| listener.open()).collect();
        let mut found = vec![Vec::new(); sounds.len()];
        let mut left: Vec<Vec<usize>> = lengths.iter().zip(&cuts).map(|(&n, cuts)| cut(n, cuts)).collect();
        while left.iter().any(|ends| ends.len() > 1) {
            for b in 0..left.len() {
                let &[from, to, ref later @ ..] = &left[b][..] else { continue };
                listener.push(ids[b], &sounds[b][from..to]).unwrap();
                if later.is_empty() {
                    listener.finish(ids[b]).unwrap();
                } else if moves {
                    // Through text into a listener of its own, and back.
                    let (state, rows) = listener.state(ids[b]).unwrap();
                    found[b].extend(rows);
                    let text = serde_json::to_string(&state).unwrap();
                    let state: StreamState = serde_json::from_str(&text).unwrap();
                    prop_assert_eq!(state.samples(), to as u64);
                    listener.close(ids[b]).unwrap();
                    let mut other = StreamingEncoder::new(&model).unwrap();
                    let id = other.resume(state).unwrap();
                    ids[b] = listener.resume(other.state(id).unwrap().0).unwrap();
                }
                left[b].remove(0);
            }
            if seed % 2 == 0 {
                listen(&mut listener, &ids, &mut found);
            }
        }
        listen(&mut listener, &ids, &mut found);
        prop_assert_eq!(listener.streams().count(), 0);
        for (found, sound) in found.iter().zip(&sounds) {
            prop_assert_eq!(bits(found), bits(&encode(&model, FEATURES, rows, sound)));
        }
    }
}

#[test]
fn rows_do_not_depend_on_the_number_of_threads() {
    let model = one_way(3, 3, 2);
    let sounds: Vec<Vec<f32>> = (0..40).map(|b| random(3000 + 100 * b, b as u64, 0.3)).collect();
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut listener = StreamingEncoder::new(&model).unwrap();
            for sound in &sounds {
                let id = listener.open();
                listener.push(id, sound).unwrap();
            }
            listener.encode().unwrap().iter().flat_map(|heard| bits(&heard.rows)).collect::<Vec<_>>()
        })
    };
    let one = run(1);
    assert!(!one.is_empty() && one == run(2) && one == run(5));
}

#[test]
fn rows_of_more_channels_stream_too() {
    let config = config_of(FEATURES, "{ stack = 3, stride = 2, channels = 32, layers = 1, hidden = 4 }", 1);
    let model = Model::new(&config, 4).unwrap();
    let samples = random(5000, 3, 0.3);
    let mut listener = StreamingEncoder::new(&model).unwrap();
    let id = listener.open();
    listener.push(id, &samples).unwrap();
    listener.finish(id).unwrap();
    let found: Vec<f32> = listener.encode().unwrap().into_iter().flat_map(|heard| heard.rows).collect();
    let plane = FrontEnd::new(&config.input.features).unwrap();
    let plane = plane.log_mel(&Audio { samples, sample_rate: 8000 }).unwrap().stack_into(3, 2, 32);
    let x = tensor(&plane.data, &[1, plane.frames, 32]);
    assert_eq!(bits(&found), bits(&values(&model.encode(&x, &[plane.frames]).unwrap().0)));
}

#[test]
fn a_model_that_needs_the_whole_is_refused_with_what_to_do() {
    let both = "{ layers = 1, hidden = 4, bidirectional = true }";
    let forward = "{ layers = 1, hidden = 4 }";
    let whole = "{ sample_rate = 8000, mels = 6 }";
    let kaldi = "{ preset = \"kaldi\", sample_rate = 8000, mels = 6 }";
    for (features, encoder, found) in [
        (FEATURES, both, "an encoder that needs the whole utterance"),
        (whole, forward, "features that are normalised by the whole utterance"),
        (kaldi, forward, "features that need the whole utterance"),
    ] {
        let error = StreamingEncoder::new(&model_of(features, encoder, 1)).err().unwrap();
        assert!(matches!(error, Error::NotStreaming { .. }));
        let message = error.to_string();
        assert!(message.contains(found) && message.contains("overlapping windows"), "{message}");
    }
    let identity = |vb: &VarBuilder| -> model::Result<Arc<dyn Encoder>> {
        Ok(Arc::new(ModuleEncoder::new(candle_nn::linear(18, 5, vb.clone())?, 5, 1)?))
    };
    assert!(identity(&builder()).unwrap().stream().unwrap().is_none());
}

#[test]
fn wrong_streams_sounds_and_states_are_typed_errors() {
    let model = one_way(3, 3, 1);
    let mut listener = StreamingEncoder::new(&model).unwrap();
    assert_eq!((listener.width(), listener.sample_rate()), (7, 8000));
    let id = listener.open();
    listener.push(id, &random(900, 1, 0.5)).unwrap();
    let error = listener.push(id, &[0.0, f32::NAN]).unwrap_err();
    assert!(
        matches!(error, Error::Model(model::Error::Speech(speech::Error::NotFinite { index: 901, .. }))),
        "{error}"
    );
    let (state, rows) = listener.state(id).unwrap();
    assert_eq!(rows.len() % 7, 0);

    let error = StreamingEncoder::new(&model_of(FEATURES, "{ layers = 2, hidden = 9 }", 2))
        .unwrap()
        .resume(state.clone());
    let error = error.unwrap_err();
    assert!(matches!(error, Error::StreamState { .. }), "{error}");
    let good = serde_json::to_value(&state).unwrap();
    for (place, value) in [
        ("/features/frames", serde_json::json!(3)),
        ("/stack/stride", serde_json::json!(2)),
        ("/stack/kept", serde_json::json!([1.0])),
        ("/encoder/layers.0.h", serde_json::json!([0.0])),
        ("/model", serde_json::json!(1)),
    ] {
        let mut damaged = good.clone();
        *damaged.pointer_mut(place).unwrap() = value;
        let error = listener.resume(serde_json::from_value(damaged).unwrap()).unwrap_err();
        assert!(matches!(error, Error::StreamState { .. }), "{place}: {error}");
    }

    listener.finish(id).unwrap();
    for error in [
        listener.push(id, &[]).unwrap_err(),
        listener.finish(id).unwrap_err(),
        listener.state(id).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NoStream { id: 0, open: 0 }), "{error}");
    }
    let heard = listener.encode().unwrap();
    assert!(heard.len() == 1 && heard[0].last && heard[0].stream == id);
    assert!(matches!(listener.close(id), Err(Error::NoStream { .. })));
    assert!(listener.encode().unwrap().is_empty());

    // A stream without a sample ends without a row.
    let id = listener.open();
    listener.finish(id).unwrap();
    assert_eq!(
        listener.encode().unwrap(),
        [recognizer::EncodedChunk { stream: id, rows: vec![], last: true }]
    );
}

const WHOLE: &str = "{ sample_rate = 8000, mels = 6 }";

fn both_ways(factor: usize) -> Model {
    let encoder = format!(
        "{{ stack = 4, stride = 3, layers = 2, hidden = 9, bidirectional = true, time_reduction = {{ after_layer = 1, factor = {factor} }} }}"
    );
    model_of(WHOLE, &encoder, 1)
}

fn in_windows(model: &Model, config: WindowConfig, samples: &[f32], cuts: &[usize]) -> Vec<f32> {
    let (mut windows, mut rows) = (ChunkedEncoder::new(model, config).unwrap(), Vec::new());
    for ends in cut(samples.len(), cuts).windows(2) {
        let before = rows.len();
        let given = windows.push(&samples[ends[0]..ends[1]], &mut rows).unwrap();
        assert_eq!(rows.len() - before, given * 7);
    }
    windows.finish(&mut rows).unwrap();
    assert_eq!(windows.finish(&mut rows).unwrap(), 0);
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn windows_give_as_many_rows_as_the_whole_however_the_sound_is_cut(
        n in 1usize..30_000,
        cuts in prop::collection::vec(0usize..30_000, 0..6),
        config in prop::sample::select(vec![(1.0, 0.3), (0.5, 0.25), (0.33, 0.12), (2.0, 1.9), (20.0, 5.0)]),
        factor in 1usize..3,
    ) {
        let (model, samples) = (both_ways(factor), random(n, 5, 0.3));
        let config = WindowConfig { seconds: config.0, overlap: config.1 };
        let at_once = in_windows(&model, config, &samples, &[]);
        prop_assert_eq!(bits(&in_windows(&model, config, &samples, &cuts)), bits(&at_once));
        let whole = encode(&model, WHOLE, (4, 3), &samples);
        prop_assert_eq!(at_once.len(), whole.len());
        if n as f64 <= 8000.0 * config.seconds {
            prop_assert_eq!(bits(&at_once), bits(&whole));
        }
    }
}

/// An encoder that knows one row at a time says where a row came from; each window has statistics of its own.
#[test]
fn rows_of_windows_are_those_of_the_same_time() {
    let config = config_of(WHOLE, "{ stack = 3, stride = 3, layers = 1, hidden = 4 }", 3);
    let make = |factor| {
        Model::with_parts(&config, 4, |encoder, predictor| {
            let encoder = ModuleEncoder::new(candle_nn::linear(18, 5, encoder)?, 5, factor)?;
            let predictor = config.predictor.as_ref().unwrap().build(5, 4, &predictor)?;
            Ok((Arc::new(encoder), predictor))
        })
    };
    let (model, samples) = (make(1).unwrap(), random(40_000, 8, 0.3));
    let whole = encode(&model, WHOLE, (3, 3), &samples);
    let config = WindowConfig { seconds: 1.0, overlap: 0.4 };
    let found = in_windows(&model, config, &samples, &[]);
    let distance = |shift: usize| {
        let pairs = found[shift * 7..].iter().zip(&whole);
        pairs.map(|(a, b)| (a - b).abs()).sum::<f32>() / found.len() as f32
    };
    assert!(distance(0) < 0.2 * distance(1), "{} {}", distance(0), distance(1));
    // An encoder that shortens time where the recipe does not say so would put rows in wrong places.
    let mut windows = ChunkedEncoder::new(&make(2).unwrap(), config).unwrap();
    let error = windows.push(&samples, &mut Vec::new()).unwrap_err().to_string();
    assert!(
        error.starts_with("encoder: expected 34 rows of a window, as the recipe says, found 17"),
        "{error}"
    );
}

#[test]
fn windows_that_make_no_sense_are_refused() {
    let model = both_ways(1);
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
fn sound_as_long_as_a_window_is_one() {
    // 2 s are 33 1/3 rows of 60 ms: with 33 of them, the last 39 samples lay in a second window.
    let (model, samples) = (both_ways(2), random(16_000, 5, 0.3));
    for n in [15_960, 15_961, 16_000] {
        let config = WindowConfig { seconds: 2.0, overlap: 1.9 };
        let whole = encode(&model, WHOLE, (4, 3), &samples[..n]);
        assert_eq!(bits(&in_windows(&model, config, &samples[..n], &[])), bits(&whole), "{n}");
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
