//! Decoding speed, relative to frame looping and to published PyTorch figures.
use serde::Serialize;

use super::case::Family;
use super::workload::DecodingReport;

/// Seconds per frame.
const FRAME_SECONDS: f64 = 0.08;
/// Utterances per second of the best PyTorch decoder: batch, RNN-T, TDT.
///
/// The best of five decoders for RNN-T and three for TDT on the same sizes (torch 2.4.1, two
/// threads).
const TORCH_UTTERANCES_PER_SECOND: [(usize, f64, f64); 4] =
    [(1, 24.8, 27.9), (4, 29.6, 27.1), (16, 23.9, 46.7), (32, 25.0, 62.0)];
/// GFLOP/s of a large product on the machine of these figures.
pub(crate) const TORCH_SGEMM_GFLOPS: f64 = 430.0;

/// Decoding speed at the median time.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct DecodingSpeed {
    /// Counts of the decoded utterances.
    #[serde(flatten)]
    pub report: DecodingReport,
    /// Utterances per second.
    pub utterances_per_second: f64,
    /// Seconds of audio per second without the encoder; 80 ms per frame.
    pub rtfx: f64,
    /// Ratio of labels to frames.
    pub labels_per_frame: f64,
    /// GFLOP/s of a large product in the same processes.
    pub sgemm: Option<f64>,
    /// Ratio to the speed of frame looping.
    pub over_frame_looping: Option<f64>,
    /// Utterances per second of the best PyTorch decoder at this batch size.
    ///
    /// Scaled by the ratio of the rates of large products.
    pub torch: Option<f64>,
    /// Ratio to the scaled speed of PyTorch.
    pub over_torch: Option<f64>,
}

impl DecodingSpeed {
    /// Computes the speed from the median time in milliseconds.
    pub(crate) fn new(
        report: DecodingReport,
        batch: Option<usize>,
        milliseconds: f64,
        sgemm: Option<f64>,
    ) -> Self {
        let seconds = milliseconds / 1e3;
        let utterances_per_second = report.utterances as f64 / seconds;
        let figures = TORCH_UTTERANCES_PER_SECOND.iter().find(|figures| Some(figures.0) == batch);
        let torch = figures.zip(sgemm).map(|(&(_, rnnt, tdt), sgemm)| {
            let published = match report.family {
                Family::Rnnt => rnnt,
                Family::Tdt => tdt,
            };
            published * sgemm / TORCH_SGEMM_GFLOPS
        });
        Self {
            report,
            utterances_per_second,
            rtfx: report.frames as f64 * FRAME_SECONDS / seconds,
            labels_per_frame: report.labels as f64 / report.frames as f64,
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
    fn speeds_match_the_formulas() {
        let report =
            DecodingReport { family: Family::Tdt, utterances: 32, frames: 8000, labels: 2000, sites: 1 };
        let speed = DecodingSpeed::new(report, Some(16), 200.0, Some(215.0));
        assert_eq!((speed.utterances_per_second, speed.rtfx, speed.labels_per_frame), (160.0, 3200.0, 0.25));
        assert!((speed.over_torch.unwrap() - 160.0 / (46.7 / 2.0)).abs() < 1e-9);
        assert_eq!(DecodingSpeed::new(report, Some(3), 200.0, Some(215.0)).torch, None);
    }
}
