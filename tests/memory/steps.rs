//! Training holds its buffers: from its second step on, a session over tensors asks for nothing large.
use candle_core::{Device, Tensor, Var};
use panda::{
    panda_core::{
        Adjoints, Backward, Gradients, Head, Precision, Rows, Selection, Sites, Workspace, backward, forward,
    },
    rnnt_loss::{
        Loss, MemoryBudget, Options, Targets, Topology,
        candle::{HeadTensors, JointTensors, LossSession},
    },
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

#[test]
fn a_second_call_of_the_normaliser_allocates_nothing_large() {
    let _alone = turn();
    let (sites, hidden, classes, per_site) = (20_000, 8, 600, 2);
    let made_up = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 101.0 - 0.5).collect::<Vec<_>>();
    let (hidden_rows, weight) = (made_up(sites * hidden), made_up(classes * hidden));
    let rows = &Rows::new(&hidden_rows, hidden).unwrap();
    let head = &Head::new(&weight, None, hidden).unwrap();
    let ids = (0..sites * per_site).map(|i| (i % classes) as u32).collect();
    let selection = &Selection::new(ids, vec![true; sites * per_site], per_site).unwrap();
    let all = vec![-0.5; sites * per_site];
    let some: Vec<_> =
        (0..sites * per_site).map(|i| if i / per_site % 3 == 0 { 0.0 } else { -0.5 }).collect();
    let mut into = Gradients::zero(rows.zero_gradient(), head);
    for budget in [
        MemoryBudget::recompute(),
        MemoryBudget::bytes(4 << 20),
        MemoryBudget::default(),
        MemoryBudget::unlimited(),
    ] {
        for precision in [Precision::Full, Precision::Bf16] {
            for emissions in [&all, &some] {
                let mut workspace = Workspace::new(budget).with_precision(precision);
                let mut step = || {
                    let normalized = forward(rows, head, selection, &mut workspace).unwrap();
                    let adjoints = &Adjoints::new(emissions);
                    let arguments =
                        Backward { sites: rows, head, selection, normalized: &normalized, adjoints };
                    let counted = backward(arguments, &mut workspace, &mut into).unwrap();
                    assert!(counted >= sites / 2);
                    workspace.recycle(normalized);
                };
                let (first, ..) = measure(&mut step);
                assert!(first > sites * per_site * 8, "nothing to hold: {first}");
                let (second, growth, ()) = measure(&mut step);
                let what = format!("{budget:?}, {precision:?}");
                assert!(second <= 64 << 10, "{what}: an allocation of {second} bytes in the second step");
                assert!(growth <= 64 << 10, "{what}: {growth} bytes more in the second step");
            }
        }
    }
}
