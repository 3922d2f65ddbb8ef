//! Lower bounds of the times of training steps, from operations and bytes.
//!
//! The suite `train` compares measured times with them.
use serde::Serialize;

use super::case::TrainWork;
use super::workload::median;
use super::workload::{CaseShape, PartTimes, TrainingReport};

/// Width of an encoder input row: 80 mel bands of 3 frames.
const INPUT_WIDTH: usize = 240;
/// Encoder layers before the time reduction by two.
const LAYERS_BEFORE_REDUCTION: usize = 2;
/// Encoder layers after the time reduction.
const LAYERS_AFTER_REDUCTION: usize = 3;
/// Predictor layers.
const PREDICTOR_LAYERS: usize = 2;
/// Bytes per parameter that a step of LAMB reads and writes.
///
/// Three passes over 4-byte values: the norm reads the gradient; the moments read weight, gradient
/// and two moments and write the moments; the update reads weight and moments and writes the
/// weight.
const LAMB_BYTES: u64 = 4 + 24 + 16;
/// Bytes per parameter of the moving average: reads average and weight, writes average.
const EMA_BYTES: u64 = 12;

/// Sizes of an LSTM layer: rows of an utterance, widths of input and state.
struct LstmShape {
    rows: usize,
    input: usize,
    hidden: usize,
}

impl TrainWork {
    /// Returns the sizes for reports.
    pub(crate) fn shape(&self) -> CaseShape {
        let [_, _, joint] = self.widths;
        CaseShape {
            B: Some(self.batch),
            T: Some(self.frames()),
            U: Some(self.labels),
            H: Some(joint),
            C: Some(self.tokens + 1),
            N: Some(self.batch * self.frames() * (self.labels + 1)),
        }
    }

    /// Returns the number of encoder frames, T.
    fn frames(&self) -> usize {
        self.rows.div_ceil(2)
    }

    /// Returns the LSTM layers of encoder and predictor.
    fn lstm_layers(&self) -> Vec<LstmShape> {
        let [encoder, predictor, _] = self.widths;
        let layer = |rows, input, hidden| LstmShape { rows, input, hidden };
        let before = (0..LAYERS_BEFORE_REDUCTION).map(|layer_index| {
            layer(self.rows, if layer_index == 0 { INPUT_WIDTH } else { encoder }, encoder)
        });
        let after =
            |layer_index| layer(self.frames(), if layer_index == 0 { 2 * encoder } else { encoder }, encoder);
        let labels = (0..PREDICTOR_LAYERS).map(|_| layer(self.labels + 1, predictor, predictor));
        before.chain((0..LAYERS_AFTER_REDUCTION).map(after)).chain(labels).collect()
    }

    /// Returns the floating-point operations that a step requires.
    ///
    /// Counts each matrix product forward, and backward for rows and weights; the input has no
    /// gradient. Recomputed products count once.
    pub(crate) fn operations(&self) -> u64 {
        // Multiplications of one utterance; the four gates of an LSTM are one product.
        let Self { batch, rows, labels, tokens, widths: [encoder, predictor, joint] } = *self;
        let lstm: usize = self
            .lstm_layers()
            .iter()
            .map(|layer| layer.rows * 4 * layer.hidden * (layer.input + layer.hidden))
            .sum();
        let projections = (self.frames() * encoder + (labels + 1) * predictor) * joint;
        let sites = self.frames() * (labels + 1) * joint * (tokens + 1);
        let products = 3 * (lstm + projections + sites) - rows * 4 * encoder * INPUT_WIDTH;
        (2 * batch * products) as u64
    }

    /// Returns the bytes of recurrent weights, each read at every frame.
    ///
    /// Forward and backward.
    pub(crate) fn recurrent_bytes(&self) -> u64 {
        self.lstm_layers()
            .iter()
            .map(|l| (2 * l.rows * 4 * l.hidden * l.hidden * size_of::<f32>()) as u64)
            .sum()
    }

    /// Returns the number of values of the largest recurrent weight.
    pub(crate) fn largest_recurrent(&self) -> usize {
        self.lstm_layers().iter().map(|l| 4 * l.hidden * l.hidden).max().unwrap_or(0)
    }

    /// Returns the bytes that a step of the optimizer reads and writes.
    pub(crate) fn optimizer_bytes(parameters: usize, ema: bool) -> u64 {
        (LAMB_BYTES + if ema { EMA_BYTES } else { 0 }) * parameters as u64
    }

    /// Returns the approximate bytes of weights, moments, average and batch.
    pub(crate) fn input_bytes(&self) -> u64 {
        let weights: usize = self.lstm_layers().iter().map(|l| 4 * l.hidden * (l.input + l.hidden + 2)).sum();
        let [encoder, predictor, joint] = self.widths;
        let heads = self.tokens * (predictor + joint) + (encoder + predictor) * joint;
        (size_of::<f32>() * (4 * (weights + heads) + self.batch * self.rows * INPUT_WIDTH)) as u64
    }
}

/// Lower bounds of the time of a step in milliseconds, by resource.
///
/// The resources may be used at the same time, so the bounds do not add up.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct LowerBounds {
    /// Matrix products at the rate of a large one.
    pub products: Option<f64>,
    /// Reads of recurrent weights at every frame, at [`TrainingReport::cached_read_rate`].
    pub recurrent: f64,
    /// Reads and writes of the optimizer, at the rate of the memory.
    pub optimizer: f64,
}

/// Speed of training.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct TrainingSpeed {
    /// Medians over the processes.
    #[serde(flatten)]
    pub report: TrainingReport,
    /// Utterances per second at the median time.
    pub utterances_per_second: f64,
    /// Lower bounds of the time.
    pub lower_bounds: LowerBounds,
}

impl TrainingSpeed {
    /// Computes speed and lower bounds from the median time of a step.
    ///
    /// Returns none without reports.
    pub(crate) fn new(
        reports: &[TrainingReport],
        milliseconds: f64,
        operations: Option<u64>,
        sgemm: Option<f64>,
    ) -> Option<Self> {
        let first = reports.first()?;
        let median_of = |value: fn(&TrainingReport) -> f64| {
            median(&reports.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
        };
        let report = TrainingReport {
            parts: PartTimes {
                encoder: median_of(|report| report.parts.encoder),
                predictor: median_of(|report| report.parts.predictor),
                loss: median_of(|report| report.parts.loss),
                backward: median_of(|report| report.parts.backward),
                optimizer: median_of(|report| report.parts.optimizer),
            },
            resident_bytes: reports.iter().filter_map(|report| report.resident_bytes).max(),
            cached_read_rate: median_of(|report| report.cached_read_rate),
            memory_read_rate: median_of(|report| report.memory_read_rate),
            ..*first
        };
        let time = |bytes: u64, rate: f64| bytes as f64 / rate / 1e6;
        let lower_bounds = LowerBounds {
            products: operations.zip(sgemm).map(|(operations, sgemm)| operations as f64 / sgemm / 1e6),
            recurrent: time(report.recurrent_bytes, report.cached_read_rate),
            optimizer: time(report.optimizer_bytes, report.memory_read_rate),
        };
        let utterances_per_second = report.utterances as f64 / milliseconds * 1e3;
        Some(Self { report, utterances_per_second, lower_bounds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_and_bytes_match_the_formulas() {
        let work = TrainWork { batch: 1, rows: 400, labels: 60, tokens: 1023, widths: [1024, 512, 512] };
        // Encoder: 3 x 22.6 GFLOP less the input gradient; predictor 1.5, projections 0.7, joint
        // 38.4.
        let lstm = 400 * 4096 * (1264 + 2048) + 200 * 4096 * (3072 + 2 * 2048) + 61 * 2048 * 2048;
        let projections_and_joint = 200 * 1024 * 512 + 61 * 512 * 512 + 200 * 61 * 512 * 1024;
        assert_eq!(work.operations(), 6 * (lstm + projections_and_joint) - 2 * 400 * 4096 * 240);
        let recurrent_bytes = 2 * 4 * (1400 * 4096 * 1024 + 2 * 61 * 2048 * 512);
        assert_eq!((work.recurrent_bytes(), work.largest_recurrent()), (recurrent_bytes, 4096 * 1024));
        assert_eq!(TrainWork::optimizer_bytes(10, false), 440);
        assert_eq!(work.shape().N, Some(200 * 61));
    }

    #[test]
    fn lower_bounds_are_work_by_rate() {
        let parts = PartTimes::default();
        let report = |cached_read_rate| TrainingReport {
            utterances: 4,
            parameters: 10,
            parts,
            resident_bytes: None,
            recurrent_bytes: 2_000_000_000,
            optimizer_bytes: 500_000_000,
            cached_read_rate,
            memory_read_rate: 50.0,
        };
        let reports = [report(100.0), report(300.0), report(200.0)];
        let training = TrainingSpeed::new(&reports, 500.0, Some(4_000_000_000), Some(400.0)).unwrap();
        let LowerBounds { products, recurrent, optimizer } = training.lower_bounds;
        assert_eq!((products, recurrent, optimizer), (Some(10.0), 10.0, 10.0));
        assert_eq!(training.utterances_per_second, 8.0);
        assert!(TrainingSpeed::new(&[], 1.0, None, None).is_none());
    }
}
