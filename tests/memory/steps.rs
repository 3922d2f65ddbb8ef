//! Training holds its buffers: from its second step on, a session over tensors asks for nothing large.
use candle_core::{Device, Var};
use panda::rnnt_loss::{
    Dropout, Loss, MemoryBudget, Options, Targets, Tokens, Topology,
    candle::{HeadTensors, JointTensors, LossSession, RowTensors, TensorInputs},
};

use crate::counting::{measure, turn};

/// Bytes that a single allocation of a second step may take.
const LARGE: usize = 64 << 10;

/// Rows and heads of 20,100 sites: their gradients, which are results, are small.
struct Batch {
    targets: Targets,
    encoded: Var,
    predicted: Var,
    head: [Var; 2],
    durations: [Var; 2],
}

const FRAMES: usize = 150;
const LABELS: usize = 66;
const CLASSES: usize = 40;

impl Batch {
    fn new() -> Self {
        let (batch, hidden) = (2, 8);
        let labels = (0..LABELS as u32).map(|u| 3 + u * 7 % 37).collect();
        let targets = Targets::new(0, vec![FRAMES; batch], vec![labels; batch]).unwrap();
        let rows = |shape: &[usize]| Var::randn(0_f32, 1.0, shape, &Device::Cpu).unwrap();
        let layer = |classes| [rows(&[classes, hidden]), rows(&[classes])];
        Self {
            targets,
            encoded: rows(&[batch, FRAMES, hidden]),
            predicted: rows(&[batch, LABELS + 1, hidden]),
            head: layer(CLASSES),
            durations: layer(3),
        }
    }

    /// Largest allocations of the first two steps.
    fn steps(&self, options: &Options, dropout: Option<Dropout>) -> [usize; 2] {
        let ([weight, bias], [of_durations, its_bias]) = (&self.head, &self.durations);
        let head = HeadTensors { weight, bias: Some(bias) };
        let durations = matches!(options.loss, Loss::Tdt { .. })
            .then_some(HeadTensors { weight: of_durations, bias: Some(its_bias) });
        let inputs: TensorInputs = match options.loss {
            Loss::Ctc => RowTensors { hidden: &self.encoded, head }.into(),
            _ => {
                let (encoded, predicted) = (&self.encoded, &self.predicted);
                JointTensors { encoded, predicted, head, durations, dropout }.into()
            }
        };
        let targets = match options.loss.topology() {
            Some(topology) if topology.tokens() > 2 => {
                self.targets.clone().with_big_blanks(vec![1, 2]).unwrap()
            }
            _ => self.targets.clone(),
        };
        let session = LossSession::new(options).unwrap();
        let weights = [0.5; 2];
        [(); 2].map(|()| {
            let step = || session.sum(inputs, &targets, &weights).unwrap().sum.backward().unwrap();
            let (largest, _, gradients) = measure(step);
            assert_eq!(gradients.get(weight).unwrap().dims(), weight.dims());
            largest
        })
    }
}

#[test]
fn a_second_step_of_a_shape_allocates_nothing_large() {
    let _alone = turn();
    let batch = Batch::new();
    let losses = [
        Loss::rnnt(),
        Loss::over(Topology::modified()),
        Loss::hat(),
        Loss::multi_blank(&[2, 4]).unwrap(),
        Loss::Transducer { topology: Topology::rnnt(), tokens: Tokens::Softmax, sigma: 0.1 },
        Loss::tdt(&[0, 1, 2]).unwrap(),
        Loss::Tdt { topology: Topology::tdt(&[0, 1, 2]).unwrap(), sigma: 0.0, omega: 0.2 },
        Loss::Ctc,
    ];
    for budget in [MemoryBudget::recompute(), MemoryBudget::bytes(6 << 20), MemoryBudget::default()] {
        for loss in &losses {
            let plain = Options { budget, ..Options::of(loss.clone()) };
            let (ctc, factored) = (*loss == Loss::Ctc, *loss == Loss::hat());
            let smoothed = Options { label_smoothing: 0.1, z_loss: 1e-4, ..plain.clone() };
            let clamped = Options { clamp: Some(0.1), fastemit: 0.01, ..plain.clone() };
            let skipping = Options { skip: 1e-6, ..plain.clone() };
            let delayed = Options { delay_penalty: 0.01, ..plain.clone() };
            let kinds =
                [(plain, true), (smoothed, !factored), (clamped, true), (skipping, !ctc), (delayed, true)];
            for (options, _) in kinds.iter().filter(|(_, meaningful)| *meaningful) {
                for dropout in [None, Some(Dropout { rate: 0.1, seed: 7 })] {
                    if dropout.is_some() && ctc {
                        continue;
                    }
                    let [first, second] = batch.steps(options, dropout);
                    assert!(first > LARGE, "nothing to hold: {first}");
                    assert!(
                        second <= LARGE,
                        "{options:?}: an allocation of {second} bytes in the second step"
                    );
                }
            }
        }
    }
}
