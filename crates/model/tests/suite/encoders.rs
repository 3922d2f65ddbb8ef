//! Tests of LSTM, Conformer and FastConformer encoders: padding, dropout, streaming in chunks.
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use model::encoders::{
    AttentionKind, BuildEncoder, Encoder, EncoderChunk, EncoderState, EncoderStream, LstmEncoder,
    LstmEncoderConfig, NumberFormat, TimeReduction,
};
use model::{Lstm, LstmState, TrainingPass};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::rows::{
    BINS, bits, builder, chunks, conformer, cut, every_kind, lstm, padded, random, tensor, unpadded,
    utterances, values,
};

#[test]
fn rows_of_an_utterance_depend_neither_on_other_utterances_nor_on_padding() {
    for kind in every_kind() {
        kind.check().unwrap();
        let encoder = kind.build(BINS, &builder()).unwrap();
        let (x, lengths) = padded(&utterances(), BINS);
        let batched = unpadded(encoder.forward(&x, &lengths, None).unwrap());
        let mut padded_with_nan: Vec<Vec<Vec<f32>>> = x.to_vec3().unwrap();
        for (rows, &length) in padded_with_nan.iter_mut().zip(&lengths) {
            rows[length..].iter_mut().for_each(|row| row.fill(f32::NAN));
        }
        let padded_with_nan = Tensor::new(padded_with_nan, &Device::Cpu).unwrap();
        let rows_with_nan = unpadded(encoder.forward(&padded_with_nan, &lengths, None).unwrap());
        assert_eq!(rows_with_nan, batched, "{kind:?}");
        for (rows, batched) in utterances().iter().zip(&batched) {
            let (x, lengths) = padded(std::slice::from_ref(rows), BINS);
            let single = unpadded(encoder.forward(&x, &lengths, None).unwrap());
            assert_eq!(bits(&single[0]), bits(batched), "{kind:?}");
            let input_rows = rows.len() / BINS;
            assert_eq!(single[0].len() / encoder.width(), kind.output_rows(input_rows));
        }
        assert!(batched.concat().iter().all(|x| x.is_finite()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_lstm_in_chunks_has_the_bits_of_one_call(
        lengths in prop::collection::vec(0usize..14, 1..19),
        cuts in prop::collection::vec(0usize..14, 0..4),
        input_width in 1usize..20,
        hidden in prop::sample::select(vec![1usize, 5, 16, 33]),
        seed in any::<u64>(),
    ) {
        let weights = [
            ("weight_ih_l0", tensor(&random(4 * hidden * input_width, seed, 0.5), &[4 * hidden, input_width])),
            ("weight_hh_l0", tensor(&random(4 * hidden * hidden, seed ^ 1, 0.5), &[4 * hidden, hidden])),
            ("bias_ih_l0", tensor(&random(4 * hidden, seed ^ 2, 0.5), &[4 * hidden])),
        ];
        let weights = weights.map(|(name, weight)| (name.to_owned(), weight)).into();
        let vb = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
        let layer = Lstm::new(input_width, hidden, 0, false, &vb).unwrap();
        let utterance = |(b, n): (usize, &usize)| random(n * input_width, seed ^ (b as u64 + 3), 1.0);
        let utterances: Vec<Vec<f32>> = lengths.iter().enumerate().map(utterance).collect();
        let (x, lengths) = padded(&utterances, input_width);
        let full = unpadded((layer.forward(&x, &lengths).unwrap(), lengths.clone()));

        // All utterances are cut at the same times, so that short ones have empty chunks.
        let packed = layer.pack(NumberFormat::F32).unwrap();
        let encoded = packed.encode(&utterances.concat(), &lengths).unwrap();
        prop_assert_eq!(bits(&encoded), bits(&full.concat()));
        let mut states = vec![LstmState::new(hidden); lengths.len()];
        let mut streamed = vec![Vec::new(); lengths.len()];
        for bounds in cut(14, &cuts).windows(2) {
            let chunk = |b: usize| {
                let [start, end] = [bounds[0], bounds[1]].map(|bound| bound.min(lengths[b]) * input_width);
                &utterances[b][start..end]
            };
            let chunks: Vec<&[f32]> = (0..lengths.len()).map(chunk).collect();
            let counts: Vec<usize> = chunks.iter().map(|chunk| chunk.len() / input_width).collect();
            let mut rows = &packed.step(&chunks.concat(), &counts, &mut states).unwrap()[..];
            for (streamed, count) in streamed.iter_mut().zip(counts) {
                streamed.extend_from_slice(&rows[..count * hidden]);
                rows = &rows[count * hidden..];
            }
        }
        for (streamed, full) in streamed.iter().zip(&full) {
            prop_assert_eq!(bits(streamed), bits(full));
        }
    }

    #[test]
    fn an_encoder_in_chunks_has_the_bits_of_one_call(
        lengths in prop::collection::vec(0usize..17, 1..5),
        cuts in prop::collection::vec(prop::collection::vec(0usize..17, 0..5), 4),
        layers in 1usize..4,
        after in 0usize..3,
        factor in 1usize..4,
        seed in any::<u64>(),
    ) {
        let reduction = TimeReduction { after_layer: after % layers, factor };
        let (encoder, stream) = lstm_encoder(layers, Some(reduction));
        expect_same_bits_in_chunks(&encoder, stream.as_ref(), &lengths, &cuts, seed);
    }
}

/// Asserts that chunks of utterances have the bits of one call.
///
/// `seed` selects the values, and which utterances are encoded in one call.
fn expect_same_bits_in_chunks(
    encoder: &dyn Encoder,
    stream: &dyn EncoderStream,
    lengths: &[usize],
    cuts: &[Vec<usize>],
    seed: u64,
) {
    let input_width = stream.input();
    let utterances: Vec<Vec<f32>> =
        lengths.iter().enumerate().map(|(b, n)| random(n * input_width, seed ^ b as u64, 1.0)).collect();
    let (x, all_lengths) = padded(&utterances, input_width);
    let full = unpadded(encoder.forward(&x, &all_lengths, None).unwrap());

    // Random chunks of the utterances, of which some are encoded in one call.
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut remaining: Vec<Vec<usize>> = lengths.iter().zip(cuts).map(|(&n, cuts)| cut(n, cuts)).collect();
    let mut states = vec![stream.start(); lengths.len()];
    let mut streamed = vec![Vec::new(); lengths.len()];
    while remaining.iter().any(|bounds| bounds.len() > 1) {
        let selected: Vec<usize> =
            (0..remaining.len()).filter(|&b| remaining[b].len() > 1 && rng.random::<bool>()).collect();
        let mut selected_states: Vec<(usize, EncoderState)> =
            selected.iter().map(|&b| (b, std::mem::take(&mut states[b]))).collect();
        let mut chunks: Vec<EncoderChunk> = selected_states
            .iter_mut()
            .map(|(b, state)| {
                let bounds = &remaining[*b];
                EncoderChunk {
                    state,
                    rows: &utterances[*b][bounds[0] * input_width..bounds[1] * input_width],
                    is_last: bounds.len() == 2,
                }
            })
            .collect();
        let rows = stream.step(&mut chunks).unwrap();
        for ((b, state), rows) in selected_states.into_iter().zip(rows) {
            streamed[b].extend(rows);
            states[b] = state;
            remaining[b].remove(0);
        }
    }
    for (streamed, full) in streamed.iter().zip(&full) {
        assert_eq!(bits(streamed), bits(full));
    }
    assert!(states.iter().all(|state| *state == stream.start()));
}

/// Returns a small LSTM encoder, and its streaming copy.
fn lstm_encoder(layers: usize, reduction: Option<TimeReduction>) -> (LstmEncoder, Arc<dyn EncoderStream>) {
    let config = LstmEncoderConfig {
        layers,
        hidden: 9,
        bidirectional: false,
        dropout: 0.2,
        time_reduction: reduction,
        ..LstmEncoderConfig::default()
    };
    config.check().unwrap();
    let encoder = LstmEncoder::new(&config, 4, &builder()).unwrap();
    let stream = encoder.stream().unwrap().unwrap();
    (encoder, stream)
}

#[test]
fn states_of_an_lstm_stream_are_serializable_and_checked() {
    let (_, stream) = lstm_encoder(2, Some(TimeReduction { after_layer: 1, factor: 3 }));
    let mut state = stream.start();
    let names: Vec<&str> = state.values.keys().map(String::as_str).collect();
    assert_eq!(names, ["layers.0.c", "layers.0.h", "layers.1.c", "layers.1.h", "reduction.rows"]);
    stream
        .step(&mut [EncoderChunk { state: &mut state, rows: &random(16, 1, 1.0), is_last: false }])
        .unwrap();
    assert_eq!(state.values["reduction.rows"].len(), 9);
    let text = serde_json::to_string(&state).unwrap();
    assert_eq!(serde_json::from_str::<EncoderState>(&text).unwrap(), state);

    type Damage = fn(&mut EncoderState);
    let damages: [(Damage, &str); 5] = [
        (|s| drop(s.values.remove("layers.0.h")), "state layers.0.h: expected [9] values, found none"),
        (
            |s| s.values.get_mut("layers.1.c").unwrap().truncate(8),
            "state layers.1.c: expected [9] values, found 8",
        ),
        (
            |s| s.values.get_mut("layers.0.c").unwrap()[3] = f32::NAN,
            "state layers.0.c: expected finite values",
        ),
        (
            |s| s.values.get_mut("reduction.rows").unwrap().truncate(5),
            "state reduction.rows: expected [0, 9, 18] values",
        ),
        (
            |s| drop(s.values.insert("more".into(), vec![])),
            "state: expected the encoder's own values only, found more",
        ),
    ];
    for (damage, message) in damages {
        let (mut damaged, mut valid) = (state.clone(), state.clone());
        damage(&mut damaged);
        let rows = random(4, 2, 1.0);
        let chunks = &mut [
            EncoderChunk { state: &mut valid, rows: &rows, is_last: false },
            EncoderChunk { state: &mut damaged, rows: &rows, is_last: false },
        ];
        let error = stream.step(chunks).unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
        assert_eq!(valid, state, "the state of another utterance changes although the call is an error");
    }
    for rows in [&[1.0, 2.0, 3.0][..], &[1.0, f32::NAN, 0.0, 0.0]] {
        let before = state.clone();
        let error = stream.step(&mut [EncoderChunk { state: &mut state, rows, is_last: true }]).unwrap_err();
        assert!(error.to_string().starts_with("rows: expected"), "{error}");
        assert_eq!(state, before);
    }
}

#[test]
fn dropout_is_only_active_in_a_training_pass() {
    for kind in every_kind().into_iter().take(6) {
        let encoder = kind.build(BINS, &builder()).unwrap();
        let (x, lengths) = padded(&utterances(), BINS);
        let run = |epoch: Option<u64>| {
            let ids: Vec<u64> = (0..lengths.len() as u64).collect();
            let mut pass = epoch.map(|epoch| TrainingPass::new(1, epoch, &ids));
            values(&encoder.forward(&x, &lengths, pass.as_mut()).unwrap().0)
        };
        assert_eq!(run(Some(1)), run(Some(1)));
        assert!(run(Some(1)) != run(Some(2)) && run(Some(1)) != run(None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn conformers_and_subsampling_in_chunks_have_the_bits_of_one_call(
        lengths in prop::collection::vec(0usize..30, 1..5),
        cuts in prop::collection::vec(prop::collection::vec(0usize..30, 0..6), 4),
        chunk in 1usize..5,
        left in 0usize..3,
        kernel in 1usize..6,
        factor in prop::sample::select(vec![1usize, 2, 4]),
        seed in any::<u64>(),
    ) {
        let config = conformer(chunks(chunk, left), kernel, factor);
        let encoder = config.build(BINS, &builder()).unwrap();
        let stream = encoder.stream().unwrap().unwrap();
        expect_same_bits_in_chunks(encoder.as_ref(), stream.as_ref(), &lengths, &cuts, seed);
        if factor > 1 {
            let encoder = lstm(false, factor).build(BINS, &builder()).unwrap();
            let stream = encoder.stream().unwrap().unwrap();
            expect_same_bits_in_chunks(encoder.as_ref(), stream.as_ref(), &lengths, &cuts, seed);
        }
    }
}

#[test]
fn only_chunked_attention_streams_with_serializable_checked_states() {
    let full = conformer(AttentionKind::Full, 3, 4).build(BINS, &builder()).unwrap();
    assert!(full.stream().unwrap().is_none());
    let encoder = conformer(chunks(2, 1), 3, 4).build(BINS, &builder()).unwrap();
    let stream = encoder.stream().unwrap().unwrap();
    let mut state = stream.start();
    let names: Vec<&str> = state.values.keys().map(String::as_str).collect();
    assert_eq!(names[..4], ["layers.0.keys", "layers.0.tail", "layers.1.keys", "layers.1.tail"]);
    assert_eq!(names[4..], ["subsampling.0", "subsampling.1", "waiting"]);
    let rows = random(30 * BINS, 1, 1.0);
    // 7 rows are complete, of which 6 are full chunks.
    let out = stream.step(&mut [EncoderChunk { state: &mut state, rows: &rows, is_last: false }]).unwrap();
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
            stream.step(&mut [EncoderChunk { state: &mut damaged, rows: &rows, is_last: true }]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}
