//! How fast utterances were decoded, beside frame-looping and what PyTorch decoders are known to do.
use serde::Serialize;

use super::answer::DecodingReport;
use super::case::Family;

/// Seconds of a frame.
const FRAME: f64 = 0.08;
/// Utterances per second of the best PyTorch decoder on these sizes, of five for RNN-T and three for TDT (torch 2.4.1, two threads):
/// batch, RNN-T, TDT.
const TORCH: [(usize, f64, f64); 4] = [(1, 24.8, 27.9), (4, 29.6, 27.1), (16, 23.9, 46.7), (32, 25.0, 62.0)];
/// GFLOP/s of a large product on the machine of those figures, with two threads.
pub const TORCH_SGEMM: f64 = 430.0;

/// Rates at the median time.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// What was decoded.
    #[serde(flatten)]
    pub of: DecodingReport,
    /// Utterances per second.
    pub utterances_per_second: f64,
    /// Seconds of audio decoded in a second, the encoder's time not counted; 80 ms a frame.
    pub rtfx: f64,
    /// Labels by frames.
    pub labels_per_frame: f64,
    /// GFLOP/s of a large product in the same processes.
    pub sgemm: Option<f64>,
    /// Speed by that of frame-looping.
    pub over_frame_looping: Option<f64>,
    /// Utterances per second of the best PyTorch decoder at this batch size, scaled by the ratio of large products.
    pub torch: Option<f64>,
    /// Speed by that.
    pub over_torch: Option<f64>,
}

impl Speed {
    /// Rates of a row that took so many milliseconds.
    pub fn new(of: DecodingReport, batch: Option<usize>, milliseconds: f64, sgemm: Option<f64>) -> Self {
        let seconds = milliseconds / 1e3;
        let utterances_per_second = of.utterances as f64 / seconds;
        let known = TORCH.iter().find(|known| Some(known.0) == batch);
        let torch = known.zip(sgemm).map(|(&(_, rnnt, tdt), sgemm)| {
            let theirs = match of.family {
                Family::Rnnt => rnnt,
                Family::Tdt => tdt,
            };
            theirs * sgemm / TORCH_SGEMM
        });
        Self {
            of,
            utterances_per_second,
            rtfx: of.frames as f64 * FRAME / seconds,
            labels_per_frame: of.labels as f64 / of.frames as f64,
            sgemm,
            over_frame_looping: None,
            torch,
            over_torch: torch.map(|torch| utterances_per_second / torch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_work() {
        let of = DecodingReport { family: Family::Tdt, utterances: 32, frames: 8000, labels: 2000, sites: 1 };
        let speed = Speed::new(of, Some(16), 200.0, Some(215.0));
        assert_eq!((speed.utterances_per_second, speed.rtfx, speed.labels_per_frame), (160.0, 3200.0, 0.25));
        assert!((speed.over_torch.unwrap() - 160.0 / (46.7 / 2.0)).abs() < 1e-9);
        assert_eq!(Speed::new(of, Some(3), 200.0, Some(215.0)).torch, None);
    }
}
