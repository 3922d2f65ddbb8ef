//! Times the forward and backward pass of an encoder on synthetic rows.
//!
//! ```text
//! cargo run --release -p panda-model --example encoder_step -- LAYERS WIDTH HEADS [REPETITIONS]
//! ```
//! The batch has 16 utterances of 12 s, 80 mels every 10 ms, subsampled to a row every 40 ms; the
//! feed-forward width is four times the width, the kernel has 31 taps. Prints the median and the
//! fastest time in milliseconds, with and without the convolutions in front.
use std::time::Instant;

use candle_core::{Device, Tensor};
use model::encoders::{BuildEncoder, ConformerEncoderConfig, SubsamplingConfig};
use model::{Parameters, Result};

const BATCH: usize = 16;
const MELS: usize = 80;

fn rows(frames: usize, width: usize) -> Result<Tensor> {
    let values: Vec<f32> = (0..BATCH * frames * width).map(|i| (0.37 * i as f32).sin()).collect();
    Ok(Tensor::from_vec(values, (BATCH, frames, width), &Device::Cpu)?)
}

fn main() -> Result<()> {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let &[layers, width, heads, ref rest @ ..] = &numbers[..] else {
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
    let plain = ConformerEncoderConfig { subsampling: None, ..config.clone() };
    for (name, config, frames, input) in [("layers", plain, 300, width), ("all", config, 1200, MELS)] {
        config.check()?;
        let (parameters, encoder) = Parameters::build(1, |vb| config.build(input, &vb))?;
        let (x, lengths) = (rows(frames, input)?, [frames; BATCH]);
        let mut times = Vec::new();
        for _ in 0..repetitions.max(1) {
            let start = Instant::now();
            let (out, _) = encoder.forward(&x, &lengths, None)?;
            let middle = start.elapsed();
            out.sqr()?.sum_all()?.backward()?;
            times.push((start.elapsed().as_secs_f64() * 1e3, middle.as_secs_f64() * 1e3));
        }
        times.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (median, fastest) = (times[times.len() / 2], times[0]);
        println!(
            "{name}: {} parameters, median {:.0} ms (forward {:.0}), fastest {:.0} ms (forward {:.0})",
            parameters.count(),
            median.0,
            median.1,
            fastest.0,
            fastest.1
        );
    }
    Ok(())
}
