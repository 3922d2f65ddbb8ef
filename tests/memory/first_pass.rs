//! Tests that the pruned loss's first pass stays within its planned memory.
//!
//! All plans must give equal results.
use panda::pruned::{
    Batch, Error, FirstPass, Heads, Linear, Matrices, Options, Plan, ScoreSource, Unigram, Workspace,
    first_pass_with,
};

use crate::counting_allocator::{Measurement, exclusive, measure};

/// Returns deterministic pseudo-random numbers.
fn test_values(count: usize, scale: f32) -> Vec<f32> {
    let hash = |i: usize| (i as u32 ^ 77).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (0..count).map(|i| scale * (hash(i) as f32 / u32::MAX as f32 - 0.5)).collect()
}

/// Plans from the fastest to the smallest.
fn plans<S: ScoreSource<f32>>(source: &S, batch: &Batch, options: &Options) -> Vec<Plan> {
    let planned_bytes = |plan: Plan| plan.scratch(source, batch, options).total().bytes();
    let (smallest, best) = (planned_bytes(Plan::minimal()), planned_bytes(Plan::default()));
    let error = Plan::within(source, batch, options, smallest - 1);
    assert_eq!(error, Err(Error::Memory { needed: smallest, found: smallest - 1 }));
    let within = |bytes: usize| {
        let plan = Plan::within(source, batch, options, bytes).unwrap();
        assert!(planned_bytes(plan) <= bytes);
        plan
    };
    let middle = (1..4).map(|i| within(smallest + (best - smallest) / 4 * i));
    [within(usize::MAX)].into_iter().chain(middle).chain([within(smallest)]).collect()
}

/// Input widths of the linear layers of the simple joiner.
const FRAME_WIDTH: usize = 9;
const LABEL_WIDTH: usize = 7;
/// Bytes that a single allocation of a second pass may take.
const LARGE_BYTES: usize = 64 << 10;

/// Checks memory and results of all plans.
fn check_plans<S: ScoreSource<f32>>(source: &S, batch: &Batch, options: &Options) {
    let weights: Vec<f64> = (0..batch.len()).map(|b| 1.0 - b as f64 / 9.0).collect();
    let mut first: Option<FirstPass<f32>> = None;
    for plan in plans(source, batch, options) {
        let planned = plan.scratch(source, batch, options);
        let before = crate::counting_allocator::live_bytes();
        let mut workspace = Workspace::default();
        for step in 0..2 {
            let mut gradient = source.zero_gradient();
            let Measurement { largest_allocation: largest, peak_growth: growth, result: pass } =
                measure(|| {
                    let pass = first_pass_with(source, batch, options, plan, &mut workspace).unwrap();
                    pass.backward_into(source, &weights, &mut gradient, &mut workspace).unwrap();
                    pass
                });
            match step {
                0 => assert!(
                    growth <= planned.total().bytes(),
                    "{plan:?} {options:?}: {growth}, planned {planned:?}"
                ),
                _ => assert!(
                    largest <= LARGE_BYTES,
                    "{plan:?} {options:?}: {largest} at once in a second pass"
                ),
            }
            let first = first.get_or_insert_with(|| pass.clone());
            for (actual, expected) in pass.losses.iter().zip(&first.losses) {
                assert!((actual - expected).abs() <= 1e-5 * expected.abs(), "{plan:?}: {actual} {expected}");
            }
            for (actual, expected) in pass.occupancies.iter().zip(&first.occupancies) {
                assert!((actual - expected).abs() < 1e-3, "{plan:?}: {actual} {expected}");
            }
            workspace.recycle(pass);
            drop(gradient);
        }
        let live = crate::counting_allocator::live_bytes() - before;
        assert!(
            live <= planned.total().bytes() + first.iter().map(cloned_bytes).sum::<usize>(),
            "{live} bytes live, planned {planned:?}"
        );
    }
}

/// Returns the bytes of a cloned result.
fn cloned_bytes(pass: &FirstPass<f32>) -> usize {
    let before = crate::counting_allocator::live_bytes();
    let _clone = pass.clone();
    crate::counting_allocator::live_bytes() - before
}

#[test]
fn a_first_pass_uses_at_most_its_planned_memory() {
    let _guard = exclusive();
    let classes = 1500;
    let shapes = [(150, 20), (9, 140), (1, 0), (40, 12)];
    let labels = |u: usize| (0..u).map(|i| 1 + (i as u32 * 7) % 1400).collect();
    let batch = Batch::packed(
        0,
        shapes.iter().map(|shape| shape.0).collect(),
        shapes.iter().map(|shape| labels(shape.1)).collect(),
    );
    let batch = batch.unwrap();
    let (frame_rows, label_rows) = shapes
        .iter()
        .fold((0, 0), |(frame_rows, label_rows), shape| (frame_rows + shape.0, label_rows + shape.1 + 1));
    let mut has_rare_pairs = [false; 2];
    // Large differences of scores make sums of products underflow: rare pairs.
    for (i, scale) in [3.0, 3000.0].into_iter().enumerate() {
        let (am, lm) =
            (test_values(frame_rows * classes, scale), test_values(label_rows * classes + 5, scale));
        let matrices = Matrices::new(&am, &lm[5..], classes).unwrap();
        let largest = |row: &[f32]| row.iter().copied().fold(f32::MIN, f32::max);
        let label = &lm[5..][..classes];
        has_rare_pairs[i] = am.chunks_exact(classes).any(|frame| {
            let joint: Vec<f32> = frame.iter().zip(label).map(|(am, lm)| am + lm).collect();
            largest(&joint) - largest(frame) - largest(label) < -90.0
        });
        let values = |count: usize| test_values(count, scale.sqrt());
        let (frame_inputs, frame_weight) = (values(frame_rows * FRAME_WIDTH), values(classes * FRAME_WIDTH));
        let (label_inputs, label_weight) = (values(label_rows * LABEL_WIDTH), values(classes * LABEL_WIDTH));
        let frame_head = Linear::new(&frame_inputs, &frame_weight, None, FRAME_WIDTH).unwrap();
        let label_head = Linear::new(&label_inputs, &label_weight, None, LABEL_WIDTH).unwrap();
        let heads = Heads::new(frame_head, label_head).unwrap();
        let smoothed = Options { lm_only_scale: 0.1, am_only_scale: 0.2, ..Options::default() };
        let all_rows = Options { unigram: Unigram::AllRows, ..smoothed.clone() };
        for options in [Options::default(), smoothed, all_rows] {
            check_plans(&matrices, &batch, &options);
            check_plans(&heads, &batch, &options);
        }
    }
    assert_eq!(has_rare_pairs, [false, true], "expected rare pairs with large scores only");
}

#[test]
fn the_smallest_plan_gives_equal_bits_with_any_number_of_threads() {
    let _guard = exclusive();
    let (am, lm) = (test_values(60 * 300, 3.0), test_values(24 * 300 + 5, 3.0));
    let source = Matrices::new(&am, &lm[5..], 300).unwrap();
    let batch = Batch::packed(0, vec![40, 20], vec![vec![3; 13], vec![5; 9]]).unwrap();
    let results = [1, 3].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let pass = first_pass_with(
                &source,
                &batch,
                &Options::default(),
                Plan::minimal(),
                &mut Workspace::default(),
            );
            let pass = pass.unwrap();
            let gradient = pass.backward(&source, &[1.0, 0.5]).unwrap();
            (pass, gradient)
        })
    });
    assert!(results[0] == results[1]);
}
