//! Tests that the transducer loss allocates little: below N·C/4 floats.
//!
//! N: lattice nodes (t, u) of the batch, C: classes.

use candle_core::DType;
use panda::panda_core::{Head, Plan, Precision, Shape};
use panda::rnnt_loss::{self, JointInputs, Options, ScoreInputs, Session, Targets};

use crate::counting_allocator::{Measurement, exclusive, measure};
use crate::loss_problem::Problem;

#[test]
fn no_array_of_sites_times_classes_is_allocated() {
    let _guard = exclusive();
    // Each thread has scratch of the matrix library: use a fixed number of threads.
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check_loss);
}

/// Checks the composed loss, the sample-wise mode and scores in place.
fn check_loss() {
    let problem = Problem::draw(1, 3, 90, 30, 5_000, 48, 0.3);
    let (sites, classes) = (problem.targets().lattices().num_sites(), problem.classes);
    let quarter_bytes = sites * classes / 4 * size_of::<f32>();
    let shape = Shape { sites, hidden: problem.width, classes, selected: 2 };
    let budget = 4 << 20;
    let plan = Plan::<f32>::new(shape, Precision::Full, budget, true).unwrap();
    let scratch = plan.scratch(shape, Precision::Full).bytes();
    assert!(scratch <= budget, "{scratch} bytes by the plan, of {budget}");
    assert!(
        quarter_bytes > 2 * scratch,
        "the problem is too small: {quarter_bytes} bytes, scratch {scratch}"
    );

    // The composed loss, forward and backward, with the allocations of candle.
    let options = Options { budget, ..problem.options() };
    let (vars, targets) = (problem.vars(DType::F32), problem.targets());
    let [encoded, predicted, weight, bias] = &vars;
    let Measurement { largest_allocation: largest, peak_growth: growth, .. } = measure(|| {
        let loss =
            rnnt_loss::candle::transducer_loss(encoded, predicted, weight, bias, &targets, &options).unwrap();
        problem.differentiate(&loss, &vars)
    });
    println!(
        "N = {sites}, C = {classes}: N C / 4 floats are {quarter_bytes} bytes; scratch by the plan {scratch}"
    );
    println!("composed loss: largest allocation {largest}, all together {growth}");
    assert!(largest < quarter_bytes, "one allocation of {largest} bytes, N C / 4 floats are {quarter_bytes}");
    assert!(growth < quarter_bytes, "{growth} bytes alive at once, N C / 4 floats are {quarter_bytes}");

    // No array of N H either: beyond one wave of tiles a site costs a few numbers, independent of
    // H.
    let hidden_row_bytes = 512 * size_of::<f32>();
    let plan = Some(Plan::custom(128, 64, 300, 1, 0));
    let sites_and_growth = |frames: usize| {
        let problem = Problem::draw(3, 1, frames, 40, 300, 512, 0.1);
        let (vars, targets, options) =
            (problem.vars(DType::F32), problem.targets(), Options { plan, ..problem.options() });
        let [encoded, predicted, weight, bias] = &vars;
        let Measurement { peak_growth: growth, .. } = measure(|| {
            let loss =
                rnnt_loss::candle::transducer_loss(encoded, predicted, weight, bias, &targets, &options)
                    .unwrap();
            problem.differentiate(&loss, &vars)
        });
        (targets.lattices().num_sites(), growth)
    };
    let ((few_sites, few_growth), (many_sites, many_growth)) = (sites_and_growth(100), sites_and_growth(200));
    let bytes_per_site = many_growth.saturating_sub(few_growth) / (many_sites - few_sites);
    println!("per site: {bytes_per_site} bytes; a hidden row is {hidden_row_bytes}");
    assert!(bytes_per_site < hidden_row_bytes, "{bytes_per_site} bytes per site: is its hidden row stored?");

    // In sample-wise mode, a batch eight times as large adds only its losses and gradients.
    let transient_bytes = |batch: usize| {
        let (frames, labels, classes, width) = (40, 12, 700, 64);
        let targets = Targets::new(0, vec![frames; batch], vec![vec![1; labels]; batch]).unwrap();
        let value = |i: usize| (i % 97) as f32 / 97.0 - 0.5;
        let rows = |count: usize| (0..count * width).map(value).collect::<Vec<f32>>();
        let (frame_rows, label_rows) = (rows(batch * frames), rows(batch * (labels + 1)));
        let weight = rows(classes);
        let head = Head::new(&weight, None, width).unwrap();
        let layout = rnnt_loss::Layout::Padded { frames, positions: labels + 1 };
        let options = Options { budget: usize::MAX, keep_scores: false, ..Options::default() };
        let weights = vec![1.0; batch];
        let Measurement { peak_growth: growth, result: out, .. } = measure(|| {
            let joint = JointInputs::new(&frame_rows, &label_rows, head).with_layout(layout);
            Session::new(&options).unwrap().sum(joint, &targets, &weights).unwrap()
        });
        let gradients = out.gradients;
        growth
            - size_of::<f32>()
                * (gradients.encoded.len() + gradients.predicted.len() + gradients.head.weight.len())
    };
    // The first call also allocates the buffers of the matrix library, one for each thread.
    let (first_call, for_16, for_128) = (transient_bytes(16), transient_bytes(16), transient_bytes(128));
    println!(
        "sample-wise: {for_16} bytes without the gradients for 16 utterances ({first_call} in the first call), {for_128} for 128"
    );
    assert!(for_128.abs_diff(for_16) * 50 <= for_16, "{for_16} bytes for 16 utterances, {for_128} for 128");

    // Existing scores in place: no second copy of them. Their values do not matter.
    let (problem, classes) = (Problem::draw(2, 2, 40, 20, 700, 4, 1.0), 700);
    let (targets, weights) = (problem.targets(), &problem.weights);
    let layout = rnnt_loss::Layout::Padded { frames: problem.max_frames, positions: problem.positions };
    let mut scores: Vec<f32> = (0..2 * 40 * 21 * classes).map(|i| (i % 97) as f32 / 31.0).collect();
    let score_bytes = scores.len() * size_of::<f32>();
    let default = Options::default();
    let Measurement { largest_allocation: largest, .. } = measure(|| {
        let mut session = Session::new(&default).unwrap();
        session.sum_in_place(&mut scores, (classes, layout), &targets, weights).unwrap()
    });
    println!("scores in place: largest allocation {largest}, scores {score_bytes} bytes");
    assert!(largest < score_bytes / 4, "one allocation of {largest} bytes, scores are {score_bytes}");

    // The allocator does count such allocations: the function that copies the scores makes one.
    let inputs = ScoreInputs { scores: &scores, classes, layout };
    let Measurement { largest_allocation: largest, peak_growth: growth, .. } =
        measure(|| Session::new(&default).unwrap().sum(inputs, &targets, weights).unwrap());
    assert!(
        largest >= score_bytes && growth >= score_bytes,
        "the allocator does not count: {largest}, {growth}"
    );
}
