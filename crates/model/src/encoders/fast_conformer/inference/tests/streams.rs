//! Compares streams with whole utterances.
use std::sync::Arc;

use kernels::packed::NumberFormat;

use super::{BANDS, config, features, packed, weights};
use crate::encoders::fast_conformer::{
    AttentionLimits, ConvolutionNorm, DepthwiseSubsamplingConfig, FastConformerEncoderConfig,
    FastConformerStream,
};
use crate::encoders::{EncoderChunk, EncoderState, EncoderStream};

fn causal(attention: AttentionLimits) -> FastConformerEncoderConfig {
    FastConformerEncoderConfig {
        subsampling: DepthwiseSubsamplingConfig { channels: 6, factor: 4, causal: true },
        causal_convolution: true,
        attention,
        ..config()
    }
}

fn window(left: usize, right: usize) -> AttentionLimits {
    AttentionLimits::Window { left: Some(left), right: Some(right) }
}

fn chunks(chunk: usize, left: usize) -> AttentionLimits {
    AttentionLimits::Chunks { chunk, left: Some(left) }
}

fn configs() -> Vec<FastConformerEncoderConfig> {
    let norm = ConvolutionNorm::Layer;
    let subsampling = DepthwiseSubsamplingConfig { channels: 6, factor: 8, causal: true };
    vec![
        causal(chunks(3, 6)),
        FastConformerEncoderConfig { convolution_norm: norm, bias: false, kernel: 4, ..causal(chunks(1, 4)) },
        FastConformerEncoderConfig { subsampling, ..causal(chunks(4, 0)) },
        causal(window(5, 0)),
        FastConformerEncoderConfig { convolution_norm: norm, kernel: 1, ..causal(window(5, 2)) },
        FastConformerEncoderConfig { width: 40, heads: 2, ..causal(window(70, 13)) },
    ]
}

/// Streams utterances together, with the given numbers of frames in each call.
fn stream_all(stream: &FastConformerStream, utterances: &[Vec<f32>], sizes: &[usize]) -> Vec<Vec<f32>> {
    let mut states: Vec<EncoderState> = utterances.iter().map(|_| stream.start()).collect();
    let mut rows = vec![Vec::new(); utterances.len()];
    let mut positions = vec![0; utterances.len()];
    let mut open: Vec<usize> = (0..utterances.len()).collect();
    for step in 0.. {
        let mut calls = Vec::new();
        for (b, state) in states.iter_mut().enumerate().filter(|(b, _)| open.contains(b)) {
            let count = sizes[(step + b) % sizes.len()] * BANDS;
            let end = utterances[b].len().min(positions[b] + count);
            let is_last = end == utterances[b].len();
            calls.push((b, EncoderChunk { state, rows: &utterances[b][positions[b]..end], is_last }));
            positions[b] = end;
        }
        if calls.is_empty() {
            return rows;
        }
        let (ids, mut chunks): (Vec<usize>, Vec<EncoderChunk>) = calls.into_iter().unzip();
        open.retain(|b| !ids.iter().zip(&chunks).any(|(id, chunk)| id == b && chunk.is_last));
        for (id, new_rows) in ids.into_iter().zip(stream.step(&mut chunks).unwrap()) {
            rows[id].extend(new_rows);
        }
    }
    unreachable!("the loop ends with the utterances")
}

#[test]
fn streams_have_the_bits_of_whole_utterances() {
    for config in configs() {
        let weights = weights(&config);
        let encoder = Arc::new(packed(&config, &weights, NumberFormat::F32));
        let stream = encoder.stream().unwrap();
        let utterances: Vec<Vec<f32>> =
            [150, 0, 1, 2, 7, 8, 9, 333].iter().map(|&frames| features(frames as u64, frames)).collect();
        for sizes in [&[1][..], &[2], &[3, 0, 11], &[400], &[64]] {
            for (rows, frames) in stream_all(&stream, &utterances, sizes).iter().zip(&utterances) {
                let offline = encoder.encode(&[frames]).unwrap().rows;
                assert_eq!(rows.len(), offline.len(), "{config:?} {sizes:?} {} frames", frames.len() / BANDS);
                assert!(*rows == offline, "{config:?} {sizes:?} {} frames", frames.len() / BANDS);
            }
        }
    }
}

/// A row arrives when its later rows in all layers do.
#[test]
fn rows_are_not_delayed_longer_than_needed() {
    for (attention, delay) in [(window(5, 0), 0), (window(5, 2), 4), (chunks(3, 6), 2)] {
        let config = causal(attention);
        let encoder = Arc::new(packed(&config, &weights(&config), NumberFormat::F32));
        let stream = encoder.stream().unwrap();
        let (mut state, frames) = (stream.start(), features(1, 200));
        let (mut rows, mut complete) = (0, 0);
        for (index, frame) in frames.chunks(BANDS).enumerate() {
            let mut chunk = [EncoderChunk { state: &mut state, rows: frame, is_last: false }];
            rows += stream.step(&mut chunk).unwrap()[0].len() / config.width;
            // Row t of a causal subsampling by 4 needs the frames up to 4 t.
            complete = index / 4 + 1;
            assert!(rows + delay >= complete && rows <= complete, "{attention:?} {index}: {rows}");
        }
        assert!(complete == 50 && rows + delay >= complete);
    }
}

#[test]
fn bf16_streams_are_close_to_whole_utterances() {
    for config in configs() {
        let weights = weights(&config);
        let encoder = Arc::new(packed(&config, &weights, NumberFormat::Bf16));
        let utterances = [features(9, 200)];
        let rows = stream_all(&encoder.stream().unwrap(), &utterances, &[7]);
        let offline = encoder.encode(&[&utterances[0]]).unwrap().rows;
        let error = rows[0].iter().zip(&offline).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(rows[0].len() == offline.len() && error < 0.05, "{config:?}: {error}");
    }
}

#[test]
fn states_are_checked_and_only_causal_encoders_stream() {
    let causal = causal(window(5, 2));
    let weights_of =
        |config: &FastConformerEncoderConfig| Arc::new(packed(config, &weights(config), NumberFormat::F32));
    let full = AttentionLimits::Window { left: None, right: Some(0) };
    let subsampling = DepthwiseSubsamplingConfig { causal: false, ..causal.subsampling.clone() };
    for config in [
        config(),
        FastConformerEncoderConfig { attention: full, ..causal.clone() },
        FastConformerEncoderConfig { subsampling, ..causal.clone() },
        FastConformerEncoderConfig { causal_convolution: false, kernel: 5, ..causal.clone() },
    ] {
        assert!(weights_of(&config).stream().is_none());
    }
    let stream = weights_of(&causal).stream().unwrap();
    let error = |change: &dyn Fn(&mut EncoderState)| {
        let mut state = stream.start();
        change(&mut state);
        let mut chunk = [EncoderChunk { state: &mut state, rows: &[], is_last: false }];
        stream.step(&mut chunk).unwrap_err().to_string()
    };
    let set = |name: &'static str, count: usize| {
        move |state: &mut EncoderState| drop(state.values.insert(name.into(), vec![0.0; count]))
    };
    assert_eq!(
        error(&set("layers.0.pending", 24)),
        "state layers.0.pending: expected at most 0 values, as in layers.0.keys, found 24"
    );
    assert!(error(&set("layers.0.tail", 13)).starts_with("state layers.0.tail: expected [0, 12, "));
    assert!(error(&set("layers.9.tail", 12)).starts_with("state: expected the encoder's own values only"));
}
