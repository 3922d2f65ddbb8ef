//! Times the forward and backward pass of an encoder on synthetic rows.
//!
//! ```text
//! cargo run --release -p panda-model --example encoder_step -- LAYERS WIDTH HEADS [REPETITIONS]
//! ```
//! The batch has 16 utterances of 12 s, 80 mels every 10 ms, subsampled to a row every 40 ms; the
//! feed-forward width is four times the width, the kernel has 31 taps. Prints the median and the
//! fastest time in milliseconds, with and without the convolutions in front.
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use model::encoders::{BuildEncoder, ConformerEncoderConfig, SubsamplingConfig};
use model::{Parameters, Result};

/// Utterances of the batch.
const BATCH: usize = 16;
/// Mel bands of an input frame.
const MELS: usize = 80;
/// Frames of an utterance of 12 s: one every 10 ms, or every 40 ms after subsampling.
const FRAMES: usize = 1200;
const SUBSAMPLED_FRAMES: usize = 300;

/// Returns synthetic input rows.
fn synthetic_rows(frames: usize, width: usize) -> Result<Tensor> {
    let values: Vec<f32> = (0..BATCH * frames * width).map(|i| (0.37 * i as f32).sin()).collect();
    Ok(Tensor::from_vec(values, (BATCH, frames, width), &Device::Cpu)?)
}

/// Times of one repetition.
#[derive(Clone, Copy)]
struct PassTimes {
    /// Forward and backward pass.
    step_ms: f64,
    forward_ms: f64,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn main() -> Result<()> {
    let arguments: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let &[layers, width, heads, ref rest @ ..] = &arguments[..] else {
        println!("encoder_step LAYERS WIDTH HEADS [REPETITIONS]");
        return Ok(());
    };
    let repetitions = rest.first().copied().unwrap_or(5);
    let config = ConformerEncoderConfig {
        layers,
        width,
        heads,
        feed_forward: 4 * width,
        kernel: 31,
        subsampling: Some(SubsamplingConfig { channels: 32, factor: 4 }),
        ..ConformerEncoderConfig::default()
    };
    let without_subsampling = ConformerEncoderConfig { subsampling: None, ..config.clone() };
    for (name, config, frames, input_width) in
        [("layers", without_subsampling, SUBSAMPLED_FRAMES, width), ("all", config, FRAMES, MELS)]
    {
        config.check()?;
        let (parameters, encoder) = Parameters::build(1, |vb| config.build(input_width, &vb))?;
        let (x, lengths) = (synthetic_rows(frames, input_width)?, [frames; BATCH]);
        let mut times = Vec::new();
        for _ in 0..repetitions.max(1) {
            let start = Instant::now();
            let (out, _) = encoder.forward(&x, &lengths, None)?;
            let forward_time = start.elapsed();
            out.sqr()?.sum_all()?.backward()?;
            times.push(PassTimes {
                step_ms: milliseconds(start.elapsed()),
                forward_ms: milliseconds(forward_time),
            });
        }
        times.sort_by(|a, b| a.step_ms.total_cmp(&b.step_ms));
        let (median, fastest) = (times[times.len() / 2], times[0]);
        println!(
            "{name}: {} parameters, median {:.0} ms (forward {:.0}), fastest {:.0} ms (forward {:.0})",
            parameters.count(),
            median.step_ms,
            median.forward_ms,
            fastest.step_ms,
            fastest.forward_ms
        );
    }
    Ok(())
}
