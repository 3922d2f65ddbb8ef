//! No step of the composed loss allocates a quarter of N·C floats, and all of them together do not either.

use candle_core::DType;
use panda::panda_core::{Head, Plan, Precision, Shape};
use panda::rnnt_loss::{self, JointInputs, Options, ScoreInputs, Session, Targets};

use crate::common::Problem;
use crate::counting::{measure, turn};

#[test]
fn nothing_of_sites_times_classes_is_kept() {
    let _turn = turn();
    // Each thread has a scratch of the matrix library, so that their number must not depend on the machine.
    rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap().install(check);
}

fn check() {
    let problem = Problem::draw(1, 3, 90, 30, 5_000, 48, 0.3);
    let (n, classes) = (problem.targets().lattices().sites(), problem.classes);
    let quarter = n * classes / 4 * size_of::<f32>();
    let shape = Shape { sites: n, hidden: problem.width, classes, selected: 2 };
    let budget = 4 << 20;
    let plan = Plan::<f32>::new(shape, Precision::Full, budget, true).unwrap();
    let scratch = plan.scratch(shape, Precision::Full).bytes();
    assert!(scratch <= budget, "{scratch} bytes by the plan, of {budget}");
    assert!(
        quarter > 2 * scratch,
        "too small to mean anything: {quarter} bytes against {scratch} of scratch"
    );

    // The composed loss, forward and backward, with whatever candle adds.
    let options = Options { budget, ..problem.options() };
    let (vars, targets) = (problem.vars(DType::F32), problem.targets());
    let [f, g, w, b] = &vars;
    let (largest, growth, _) = measure(|| {
        let loss = rnnt_loss::candle::transducer_loss(f, g, w, b, &targets, &options).unwrap();
        problem.finish(&loss, &vars)
    });
    println!("N = {n}, C = {classes}: N C / 4 floats are {quarter} bytes; scratch by the plan {scratch}");
    println!("composed loss: largest allocation {largest}, all together {growth}");
    assert!(largest < quarter, "one allocation of {largest} bytes, N C / 4 floats are {quarter}");
    assert!(growth < quarter, "{growth} bytes alive at once, N C / 4 floats are {quarter}");

    // Nor is anything of N H: beyond a wave of tiles another site costs a few numbers, however wide the joint.
    let plan = Some(Plan::custom(128, 64, 300, 1, 0));
    let grow = |frames: usize| {
        let problem = Problem::draw(3, 1, frames, 40, 300, 512, 0.1);
        let (vars, targets, options) =
            (problem.vars(DType::F32), problem.targets(), Options { plan, ..problem.options() });
        let [f, g, w, b] = &vars;
        let (_, growth, _) = measure(|| {
            let loss = rnnt_loss::candle::transducer_loss(f, g, w, b, &targets, &options).unwrap();
            problem.finish(&loss, &vars)
        });
        (targets.lattices().sites(), growth)
    };
    let ((few, before), (many, after)) = (grow(100), grow(200));
    let each = after.saturating_sub(before) / (many - few);
    println!("another site: {each} bytes; its hidden row would be {}", 512 * size_of::<f32>());
    assert!(each < 512 * size_of::<f32>(), "another site costs {each} bytes: is its hidden row kept?");

    // Sample-wise, eight times the batch takes no more than its own losses and gradients.
    let transient = |batch: usize| {
        let (t, u, classes, width) = (40, 12, 700, 64);
        let targets = Targets::new(0, vec![t; batch], vec![vec![1; u]; batch]).unwrap();
        let value = |i: usize| (i % 97) as f32 / 97.0 - 0.5;
        let rows = |count: usize| (0..count * width).map(value).collect::<Vec<f32>>();
        let (f, g, w) = (rows(batch * t), rows(batch * (u + 1)), rows(classes));
        let head = Head::new(&w, None, width).unwrap();
        let layout = rnnt_loss::Layout::Padded { frames: t, positions: u + 1 };
        let options = Options { budget: usize::MAX, keep_scores: false, ..Options::default() };
        let weights = vec![1.0; batch];
        let (_, growth, out) = measure(|| {
            let joint = JointInputs::new(&f, &g, head).with_layout(layout);
            Session::new(&options).unwrap().sum(joint, &targets, &weights).unwrap()
        });
        let found = out.gradients;
        growth - size_of::<f32>() * (found.encoded.len() + found.predicted.len() + found.head.weight.len())
    };
    // The first call also makes the buffers that the matrix library keeps for each thread.
    let (first, some, many) = (transient(16), transient(16), transient(128));
    println!(
        "sample-wise: {some} bytes beside the gradients for 16 utterances ({first} at first), {many} for 128"
    );
    assert!(many.abs_diff(some) * 50 <= some, "{some} bytes for 16 utterances, {many} for 128");

    // Scores that exist already: in place there is no second copy of them. (Any numbers will do as scores.)
    let (few, classes) = (Problem::draw(2, 2, 40, 20, 700, 4, 1.0), 700);
    let (targets, weights) = (few.targets(), &few.weights);
    let layout = rnnt_loss::Layout::Padded { frames: few.most_frames, positions: few.positions };
    let mut scores: Vec<f32> = (0..2 * 40 * 21 * classes).map(|i| (i % 97) as f32 / 31.0).collect();
    let whole = scores.len() * size_of::<f32>();
    let default = Options::default();
    let (largest, ..) = measure(|| {
        let mut session = Session::new(&default).unwrap();
        session.sum_in_place(&mut scores, (classes, layout), &targets, weights).unwrap()
    });
    println!("scores in place: largest allocation {largest} beside {whole} bytes of scores");
    assert!(largest < whole / 4, "one allocation of {largest} bytes beside scores of {whole}");

    // The counter does see such allocations: the door that copies the scores makes one.
    let inputs = ScoreInputs { scores: &scores, classes, layout };
    let (largest, growth, _) =
        measure(|| Session::new(&default).unwrap().sum(inputs, &targets, weights).unwrap());
    assert!(largest >= whole && growth >= whole, "the allocator does not count: {largest}, {growth}");
}
