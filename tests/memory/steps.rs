//! Training holds its buffers: from its second step on, a session over tensors asks for nothing large.
use candle_core::{Device, Tensor, Var};
use panda::rnnt_loss::{
    Loss, MemoryBudget, Options, Targets, Topology,
    candle::{HeadTensors, JointTensors, LossSession},
};

use crate::counting::{measure, turn};

#[test]
fn a_second_step_of_a_shape_allocates_nothing_large() {
    let _alone = turn();
    // Losses, gradients and the compact numbers of 3,360 sites, which are new in every step, stay below the bound; hidden rows,
    // packed factors and scores would not.
    let (batch, frames, labels, hidden, classes) = (4, 40, 20, 16, 800);
    let targets = Targets::new(0, vec![frames; batch], vec![vec![1; labels]; batch]).unwrap();
    let rows = |shape: &[usize]| Var::randn(0_f32, 1.0, shape, &Device::Cpu).unwrap();
    let [encoded, predicted] = [frames, labels + 1].map(|rows_of| rows(&[batch, rows_of, hidden]));
    let (weight, bias) = (rows(&[classes, hidden]), rows(&[classes]));
    let weights = vec![1.0 / batch as f64; batch];
    for budget in [MemoryBudget::recompute(), MemoryBudget::bytes(2 << 20), MemoryBudget::default()] {
        for topology in [Topology::rnnt(), Topology::modified()] {
            let options = Options { budget, ..Options::of(Loss::over(topology)) };
            let session = LossSession::new(&options).unwrap();
            let step = || {
                let head = HeadTensors { weight: &weight, bias: Some(&bias) };
                let inputs = JointTensors {
                    encoded: &encoded,
                    predicted: &predicted,
                    head,
                    durations: None,
                    dropout: None,
                };
                let out = session.sum(inputs, &targets, &weights).unwrap();
                out.sum.backward().unwrap()
            };
            let (first, ..) = measure(step);
            assert!(first > 64 << 10, "nothing to hold: {first}");
            let (second, _, gradients) = measure(step);
            assert!(second <= 64 << 10, "{budget:?}: an allocation of {second} bytes in the second step");
            let of_weight: &Tensor = gradients.get(&weight).unwrap();
            assert_eq!(of_weight.dims(), [classes, hidden]);
        }
    }
}
