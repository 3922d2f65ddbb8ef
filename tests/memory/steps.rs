//! Tests that training sessions reuse buffers: later steps allocate nothing large.
use candle_core::{Device, Var};
use panda::{
    panda_core::{
        Adjoints, BackwardInputs, Gradients, Head, Precision, Rows, Selection, Sites, Workspace, backward,
        forward,
    },
    rnnt_loss::{
        DEFAULT_BUDGET, Dropout, Loss, Options, PassScales, Pruning, Targets, TokenNormalization, Topology,
        candle::{
            HeadTensors, HiddenTensors, JointTensors, LossSession, PrunedTensors, SimpleTensors, TensorInputs,
        },
    },
};

use crate::counting_allocator::{Measurement, exclusive, measure};

/// Largest single allocation allowed in a second step, in bytes.
const LARGE_BYTES: usize = 64 << 10;

/// Rows and heads of a batch, with small sizes.
///
/// Gradients are results, which every step allocates; they stay below `LARGE_BYTES`.
struct Batch {
    targets: Targets,
    encoded: Var,
    predicted: Var,
    head: [Var; 2],
    durations: [Var; 2],
    /// Heads of the simple joiner, over the same rows.
    simple: [[Var; 2]; 2],
}

impl Batch {
    fn new(batch: usize, frames: usize, labels: usize, hidden: usize, classes: usize) -> Self {
        let ids = (0..labels).map(|u| 3 + u as u32 * 7 % 37).collect();
        let targets = Targets::new(0, vec![frames; batch], vec![ids; batch]).unwrap();
        let rows = |shape: &[usize]| Var::randn(0_f32, 1.0, shape, &Device::Cpu).unwrap();
        let layer = |classes| [rows(&[classes, hidden]), rows(&[classes])];
        Self {
            targets,
            encoded: rows(&[batch, frames, hidden]),
            predicted: rows(&[batch, labels + 1, hidden]),
            head: layer(classes),
            durations: layer(3),
            simple: [layer(classes), layer(classes)],
        }
    }

    /// Returns the largest allocation of the first and of the second step.
    fn largest_allocations(&self, options: &Options, dropout: Option<Dropout>) -> [usize; 2] {
        let ([weight, bias], [duration_weight, duration_bias]) = (&self.head, &self.durations);
        let head = HeadTensors { weight, bias: Some(bias) };
        let durations = matches!(options.loss, Loss::Tdt { .. })
            .then_some(HeadTensors { weight: duration_weight, bias: Some(duration_bias) });
        let inputs: TensorInputs = match options.loss {
            Loss::Ctc => HiddenTensors { hidden: &self.encoded, head }.into(),
            _ => {
                let (encoded, predicted) = (&self.encoded, &self.predicted);
                let joint = JointTensors { encoded, predicted, head, durations, dropout };
                let [am, lm] = [0, 1]
                    .map(|side| &self.simple[side])
                    .map(|[weight, bias]| HeadTensors { weight, bias: Some(bias) });
                let simple = SimpleTensors { frames: encoded, labels: predicted, am, lm };
                match options.loss {
                    Loss::Pruned { .. } => {
                        PrunedTensors { simple, joint, scales: PassScales::default() }.into()
                    }
                    _ => joint.into(),
                }
            }
        };
        let targets = match options.loss.topology() {
            Some(topology) if topology.num_tokens() > 2 => {
                self.targets.clone().with_big_blanks(vec![1, 2]).unwrap()
            }
            _ => self.targets.clone(),
        };
        let session = LossSession::new(options).unwrap();
        let weights = vec![1.0 / targets.batch() as f64; targets.batch()];
        [(); 2].map(|()| {
            let step = || session.sum(inputs, &targets, &weights).unwrap().sum.backward().unwrap();
            let Measurement { largest_allocation: largest, result: gradients, .. } = measure(step);
            assert_eq!(gradients.get(weight).unwrap().dims(), weight.dims());
            largest
        })
    }
}

#[test]
fn a_second_step_of_a_shape_allocates_nothing_large() {
    let _guard = exclusive();
    let (many_sites, many_classes) = (Batch::new(2, 150, 66, 8, 40), Batch::new(4, 40, 20, 16, 800));
    let losses = [
        Loss::rnnt(),
        Loss::with_topology(Topology::modified()),
        Loss::hat(),
        Loss::multi_blank(&[2, 4]).unwrap(),
        Loss::Transducer { topology: Topology::rnnt(), tokens: TokenNormalization::Softmax, sigma: 0.1 },
        Loss::tdt(&[0, 1, 2]).unwrap(),
        Loss::Tdt { topology: Topology::tdt(&[0, 1, 2]).unwrap(), sigma: 0.0, omega: 0.2 },
        Loss::Ctc,
        Loss::pruned(Pruning::default()),
        Loss::pruned(Pruning { lm_only_scale: 0.25, am_only_scale: 0.1, ..Pruning::default() }),
        Loss::pruned(Pruning {
            am_only_scale: 0.1,
            unigram: panda::pruned::Unigram::AllRows,
            ..Pruning::default()
        }),
    ];
    for (budget, keep_scores) in [(usize::MAX, false), (6 << 20, true), (DEFAULT_BUDGET, true)] {
        for loss in &losses {
            let plain = Options { budget, keep_scores, ..Options::new(loss.clone()) };
            let (is_ctc, is_factored) = (*loss == Loss::Ctc, *loss == Loss::hat());
            let smoothed = Options { label_smoothing: 0.1, z_loss: 1e-4, ..plain.clone() };
            let clamped = Options { clamp: Some(0.1), fastemit: 0.01, ..plain.clone() };
            let skipping = Options { skip: 1e-6, ..plain.clone() };
            let delayed = Options { delay_penalty: 0.01, ..plain.clone() };
            // Options, and whether the loss supports them.
            let kinds = [
                (plain, true),
                (smoothed, !is_factored),
                (clamped, true),
                (skipping, !is_ctc),
                (delayed, true),
            ];
            // The second pass of the pruned loss has the options of a transducer; check only two.
            let limit = if matches!(loss, Loss::Pruned { .. }) { 2 } else { kinds.len() };
            for (options, _) in kinds.iter().take(limit).filter(|(_, is_valid)| *is_valid) {
                for dropout in [None, Some(Dropout { rate: 0.1, seed: 7 })] {
                    if dropout.is_some() && is_ctc {
                        continue;
                    }
                    for batch in [&many_sites, &many_classes] {
                        let [first, second] = batch.largest_allocations(options, dropout);
                        assert!(first > LARGE_BYTES, "the first step must allocate buffers: {first}");
                        assert!(
                            second <= LARGE_BYTES,
                            "{options:?}: {second} bytes at once in the second step"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_second_call_of_the_normalizer_allocates_nothing_large() {
    let _guard = exclusive();
    let (sites, hidden, classes, selected) = (20_000, 8, 600, 2);
    let numbers = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
    let (hidden_rows, weight) = (numbers(sites * hidden), numbers(classes * hidden));
    let rows = &Rows::new(&hidden_rows, hidden).unwrap();
    let head = &Head::new(&weight, None, hidden).unwrap();
    let ids = (0..sites * selected).map(|i| (i % classes) as u32).collect();
    let selection = &Selection::new(ids, vec![true; sites * selected], selected).unwrap();
    let dense_adjoints = vec![-0.5; sites * selected];
    let sparse_adjoints: Vec<_> =
        (0..sites * selected).map(|i| if i / selected % 3 == 0 { 0.0 } else { -0.5 }).collect();
    let mut gradients = Gradients::zero(rows.zero_gradient(), head);
    for (budget, keep_scores) in
        [(usize::MAX, false), (4 << 20, true), (DEFAULT_BUDGET, true), (usize::MAX, true)]
    {
        for precision in [Precision::Full, Precision::Bf16] {
            for emissions in [&dense_adjoints, &sparse_adjoints] {
                let mut workspace = Workspace::new(budget, keep_scores).with_precision(precision);
                let mut step = || {
                    let normalized = forward(rows, head, selection, &mut workspace).unwrap();
                    let adjoints = &Adjoints::new(emissions);
                    let arguments =
                        BackwardInputs { sites: rows, head, selection, normalized: &normalized, adjoints };
                    let sites_with_gradient = backward(arguments, &mut workspace, &mut gradients).unwrap();
                    assert!(sites_with_gradient >= sites / 2);
                    workspace.recycle(normalized);
                };
                let Measurement { largest_allocation: first, .. } = measure(&mut step);
                assert!(first > sites * selected * 8, "the first step must allocate buffers: {first}");
                let Measurement { largest_allocation: second, peak_growth: growth, .. } = measure(&mut step);
                let case = format!("{budget}, {keep_scores}, {precision:?}");
                assert!(second <= LARGE_BYTES, "{case}: an allocation of {second} bytes in the second step");
                assert!(growth <= LARGE_BYTES, "{case}: {growth} bytes more in the second step");
            }
        }
    }
}
