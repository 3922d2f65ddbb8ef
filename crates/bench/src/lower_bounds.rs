//! What a training step cannot do without, and how near it comes.
use serde::Serialize;

use super::answer::median;
use super::answer::{CaseShape, PartTimes, TrainingReport};
use super::case::TrainWork;

/// Values of an input row: 80 mels of 3 frames.
const INPUT: usize = 240;
/// Layers of the encoder below the reduction of time by two, and above it.
const LAYERS: [usize; 2] = [2, 3];
/// Layers of the predictor.
const PREDICTOR: usize = 2;
/// Bytes of a weight that a step of LAMB reads and writes: the gradient for its norm; weight, gradient and moments in, moments out;
/// weight and moments in, weight out.
const LAMB: u64 = 4 + 24 + 16;
/// The same of the moving average: average and weight in, average out.
const EMA: u64 = 12;

/// An LSTM layer: rows of an utterance, width of the input and of the state.
struct LstmShape {
    rows: usize,
    input: usize,
    hidden: usize,
}

impl TrainWork {
    /// As it is reported.
    pub fn shape(&self) -> CaseShape {
        let (some, [_, _, joint]) = (Some, self.widths);
        CaseShape {
            B: some(self.batch),
            T: some(self.frames()),
            U: some(self.labels),
            H: some(joint),
            C: some(self.tokens + 1),
            N: some(self.batch * self.frames() * (self.labels + 1)),
        }
    }

    /// T
    fn frames(&self) -> usize {
        self.rows.div_ceil(2)
    }

    fn layers(&self) -> Vec<LstmShape> {
        let [encoder, predictor, _] = self.widths;
        let layer = |rows, input, hidden| LstmShape { rows, input, hidden };
        let below = (0..LAYERS[0]).map(|at| layer(self.rows, if at == 0 { INPUT } else { encoder }, encoder));
        let above = |at| layer(self.frames(), if at == 0 { 2 * encoder } else { encoder }, encoder);
        let labels = (0..PREDICTOR).map(|_| layer(self.labels + 1, predictor, predictor));
        below.chain((0..LAYERS[1]).map(above)).chain(labels).collect()
    }

    /// Floating-point operations of the products that a step needs: each forward, and backward for rows and for weights; the
    /// input has no gradient. What is computed twice, to be kept nowhere, counts once.
    pub fn operations(&self) -> u64 {
        let Self { batch, rows, labels, tokens, widths: [encoder, predictor, joint] } = *self;
        let lstm: usize = self.layers().iter().map(|l| l.rows * 4 * l.hidden * (l.input + l.hidden)).sum();
        let projections = (self.frames() * encoder + (labels + 1) * predictor) * joint;
        let sites = self.frames() * (labels + 1) * joint * (tokens + 1);
        let products = 3 * (lstm + projections + sites) - rows * 4 * encoder * INPUT;
        (2 * batch * products) as u64
    }

    /// Bytes of recurrent weights, each read at every frame, there and back.
    pub fn recurrent_bytes(&self) -> u64 {
        self.layers().iter().map(|l| (2 * l.rows * 4 * l.hidden * l.hidden * size_of::<f32>()) as u64).sum()
    }

    /// Numbers of the largest recurrent weight.
    pub fn largest_recurrent(&self) -> usize {
        self.layers().iter().map(|l| 4 * l.hidden * l.hidden).max().unwrap_or(0)
    }

    /// Bytes that the optimiser reads and writes.
    pub fn optimiser_bytes(parameters: usize, ema: bool) -> u64 {
        (LAMB + if ema { EMA } else { 0 }) * parameters as u64
    }

    /// Bytes of the model, its moments and its average, and of the batch, about.
    pub fn input_bytes(&self) -> u64 {
        let weights: usize = self.layers().iter().map(|l| 4 * l.hidden * (l.input + l.hidden + 2)).sum();
        let [encoder, predictor, joint] = self.widths;
        let heads = self.tokens * (predictor + joint) + (encoder + predictor) * joint;
        (size_of::<f32>() * (4 * (weights + heads) + self.batch * self.rows * INPUT)) as u64
    }
}

/// Milliseconds that a step needs at least, by one resource each; they may overlap.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Floors {
    /// Its products at the rate of a large one.
    pub products: Option<f64>,
    /// The recurrent weights at every frame, from where so many bytes lie when they are read again and again.
    pub recurrent: f64,
    /// The optimiser's bytes from memory.
    pub optimiser: f64,
}

/// How fast a model was trained.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Training {
    /// What was trained, each number the median of the processes.
    #[serde(flatten)]
    pub of: TrainingReport,
    /// Utterances per second at the median time.
    pub utterances_per_second: f64,
    /// What it cannot do without.
    pub floors: Floors,
}

impl Training {
    /// Rates of a row that took so many milliseconds; none without reports.
    pub fn new(
        reports: &[TrainingReport],
        milliseconds: f64,
        operations: Option<u64>,
        sgemm: Option<f64>,
    ) -> Option<Self> {
        let first = reports.first()?;
        let middle = |value: fn(&TrainingReport) -> f64| {
            median(&reports.iter().map(value).collect::<Vec<_>>()).unwrap_or_default()
        };
        let of = TrainingReport {
            parts: PartTimes {
                encoder: middle(|of| of.parts.encoder),
                predictor: middle(|of| of.parts.predictor),
                loss: middle(|of| of.parts.loss),
                backward: middle(|of| of.parts.backward),
                optimiser: middle(|of| of.parts.optimiser),
            },
            resident_bytes: reports.iter().filter_map(|of| of.resident_bytes).max(),
            cached: middle(|of| of.cached),
            streamed: middle(|of| of.streamed),
            ..*first
        };
        let time = |bytes: u64, rate: f64| bytes as f64 / rate / 1e6;
        let floors = Floors {
            products: operations.zip(sgemm).map(|(operations, sgemm)| operations as f64 / sgemm / 1e6),
            recurrent: time(of.recurrent_bytes, of.cached),
            optimiser: time(of.optimiser_bytes, of.streamed),
        };
        let utterances_per_second = of.utterances as f64 / milliseconds * 1e3;
        Some(Self { of, utterances_per_second, floors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_those_of_the_specification() {
        let work = TrainWork { batch: 1, rows: 400, labels: 60, tokens: 1023, widths: [1024, 512, 512] };
        // Encoder: 3 x 22.6 GFLOP less the gradient of the input, predictor 1.5, projections 0.7, joint 38.4.
        let lstm = 400 * 4096 * (1264 + 2048) + 200 * 4096 * (3072 + 2 * 2048) + 61 * 2048 * 2048;
        let rest = 200 * 1024 * 512 + 61 * 512 * 512 + 200 * 61 * 512 * 1024;
        assert_eq!(work.operations(), 6 * (lstm + rest) - 2 * 400 * 4096 * 240);
        let read = 2 * 4 * (1400 * 4096 * 1024 + 2 * 61 * 2048 * 512);
        assert_eq!((work.recurrent_bytes(), work.largest_recurrent()), (read, 4096 * 1024));
        assert_eq!(TrainWork::optimiser_bytes(10, false), 440);
        assert_eq!(work.shape().N, Some(200 * 61));
    }

    #[test]
    fn floors_are_work_by_rate() {
        let parts = PartTimes::default();
        let report = |cached| TrainingReport {
            utterances: 4,
            parameters: 10,
            parts,
            resident_bytes: None,
            recurrent_bytes: 2_000_000_000,
            optimiser_bytes: 500_000_000,
            cached,
            streamed: 50.0,
        };
        let all = [report(100.0), report(300.0), report(200.0)];
        let training = Training::new(&all, 500.0, Some(4_000_000_000), Some(400.0)).unwrap();
        let Floors { products, recurrent, optimiser } = training.floors;
        assert_eq!((products, recurrent, optimiser), (Some(10.0), 10.0, 10.0));
        assert_eq!(training.utterances_per_second, 8.0);
        assert!(Training::new(&[], 1.0, None, None).is_none());
    }
}
