//! Benchmark suites of losses: the transducer loss at many sizes, lattice recursions.
use rnnt_loss::DEFAULT_BUDGET;

use super::{SHORT_UTTERANCES, SuiteOptions, medium_utterance, thousands};
use crate::case::LengthSpread::{Even, Ragged};
use crate::case::Posteriors::{Flat, Peaked};
use crate::case::{
    Budget, Case, CaseWork, FirstPassScores, LossSizes, Method, Plan, PlotMark, PrunedWork, System,
};
use crate::machine::available_cores;

const CLASSES_CLASSES: [usize; 10] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144];
const CLASSES_QUICK: [usize; 2] = [1024, 8192];

/// Cases of the suite `classes`: N = 2,600 and H = 512; case S5 is in the table only.
pub(super) fn classes(options: &SuiteOptions) -> Plan {
    let classes = if options.quick { &CLASSES_QUICK[..] } else { &CLASSES_CLASSES };
    let systems = || {
        [Some(options.panda()), Some(options.panda_kept()), options.panda_bf16(), Some(options.dense())]
            .into_iter()
            .flatten()
            .collect()
    };
    let mut cases: Vec<Case> = classes
        .iter()
        .map(|&classes| Case {
            name: format!("C={classes}"),
            mark: Some(PlotMark { x: classes as f64, label: thousands(classes) }),
            work: CaseWork::Loss(medium_utterance(classes)),
            systems: systems(),
        })
        .collect();
    if !options.quick {
        cases.push(Case {
            name: "S5".to_owned(),
            mark: None,
            work: CaseWork::Loss(SHORT_UTTERANCES),
            systems: systems(),
        });
    }
    Plan { suite: "classes", title: "2,600 sites, H = 512", axis: "classes", cases }
}

const BATCH_QUICK: [usize; 3] = [1, 2, 4];

/// Cases of the suite `batch`.
///
/// Ragged batches of up to 139 frames and 27 labels, H = 256, C = 1,024.
pub(super) fn batch(options: &SuiteOptions) -> Plan {
    let powers: Vec<usize> = (0..=10).map(|power| 1 << power).collect();
    let batches = if options.quick { &BATCH_QUICK[..] } else { &powers };
    let case = |&batch: &usize| Case {
        name: format!("B={batch}"),
        mark: Some(PlotMark { x: batch as f64, label: thousands(batch) }),
        work: CaseWork::Loss(LossSizes {
            batch,
            frames: 139,
            labels: 27,
            hidden: 256,
            classes: 1024,
            posteriors: Flat,
            lengths: Ragged,
        }),
        systems: vec![options.panda(), options.dense()],
    };
    let cases = batches.iter().map(case).collect();
    Plan { suite: "batch", title: "139 frames x 27 labels, H = 256, C = 1,024", axis: "utterances", cases }
}

const LENGTHS_FRAMES: [usize; 10] = [50, 64, 83, 107, 139, 179, 232, 299, 387, 500];
const LENGTHS_LABELS: [usize; 10] = [10, 12, 16, 21, 27, 35, 46, 59, 77, 100];
/// Conservative estimate of FLOP/s per thread, to exclude slow cases.
const LENGTHS_FLOPS_PER_THREAD: f64 = 1.5e11;
/// Maximum estimated seconds of a step.
const LENGTHS_MAX_SECONDS: f64 = 60.0;

/// Cases of the suite `lengths`.
///
/// H = 256 and C = 1,024 in the plot; H = 1,024 and C = 4,096 (arXiv 2211.16270) in the table.
pub(super) fn lengths(options: &SuiteOptions) -> Plan {
    let case = |(frames, labels): (usize, usize), hidden: usize, classes: usize| {
        let is_plotted = hidden == 256;
        let name = format!("{frames}x{labels}");
        let mark = is_plotted.then(|| PlotMark { x: (frames * (labels + 1)) as f64, label: name.clone() });
        let name = if is_plotted { name } else { format!("{name} H={hidden} C={classes}") };
        let work =
            LossSizes { batch: 16, frames, labels, hidden, classes, posteriors: Flat, lengths: Ragged };
        Case { name, mark, work: CaseWork::Loss(work), systems: vec![options.panda(), options.dense()] }
    };
    let grid = || LENGTHS_FRAMES.into_iter().zip(LENGTHS_LABELS);
    let mut cases: Vec<Case> = match options.quick {
        true => grid().take(2).map(|lengths| case(lengths, 256, 1024)).collect(),
        false => grid().map(|lengths| case(lengths, 256, 1024)).collect(),
    };
    if !options.quick {
        let large = grid().map(|lengths| case(lengths, 1024, 4096));
        cases.extend(large.filter(|case| match &case.work {
            CaseWork::Loss(work) => {
                work.operations() / LENGTHS_FLOPS_PER_THREAD / options.threads as f64 <= LENGTHS_MAX_SECONDS
            }
            _ => true,
        }));
    }
    let title = "16 utterances, H = 256, C = 1,024";
    Plan { suite: "lengths", title, axis: "frames x labels of the longest", cases }
}

/// Cases of the suite `threads`.
///
/// `panda` uses all cores, or the threads of the command line; other systems use fewer.
pub(super) fn threads(options: &SuiteOptions) -> Plan {
    let max_threads = options.threads.max(available_cores().min(2));
    let mut counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|&n| n < max_threads).collect();
    // The last system is the baseline: one thread.
    counts.reverse();
    let systems: Vec<System> = counts
        .into_iter()
        .map(|threads| System {
            name: if threads == 1 { "1-thread".to_owned() } else { format!("{threads}-threads") },
            threads,
            ..options.panda()
        })
        .collect();
    let case = |(index, (name, work)): (usize, (&str, LossSizes))| Case {
        name: name.to_owned(),
        // The shapes have no common scale, so they are at equal distances.
        mark: Some(PlotMark { x: 2f64.powi(index as i32), label: name.to_owned() }),
        work: CaseWork::Loss(work),
        systems: std::iter::once(System { threads: max_threads, ..options.panda() })
            .chain(systems.clone())
            .collect(),
    };
    let works =
        [("C=8192", medium_utterance(8192)), ("S5", SHORT_UTTERANCES), ("C=65536", medium_utterance(65_536))];
    let count = if options.quick { 1 } else { works.len() };
    let cases = works.into_iter().take(count).enumerate().map(case).collect();
    Plan { suite: "threads", title: "Threads", axis: "shape", cases }
}

/// Occupancy threshold; the error is below the rounding of `f32`.
const SKIP_EPSILON: f64 = 1e-6;
const SKIP_WORKS: [LossSizes; 3] =
    [peaked(8, [50, 10], 256, 1024), peaked(8, [100, 25], 256, 1024), peaked(4, [200, 50], 512, 4096)];
/// Maximum number of utterances of a manifest.
const SKIP_UTTERANCES: usize = 64;
const SKIP_QUICK_UTTERANCES: usize = 8;

const fn peaked(batch: usize, [frames, labels]: [usize; 2], hidden: usize, classes: usize) -> LossSizes {
    LossSizes { batch, frames, labels, hidden, classes, posteriors: Peaked, lengths: Ragged }
}

/// Cases of the suite `skip`: a trained model if given, else synthetic peaked posteriors.
pub(super) fn skip(options: &SuiteOptions) -> Plan {
    let exact = System { name: "exact".to_owned(), ..options.panda() };
    let method = match exact.method.clone() {
        Method::Panda { budget, bf16, .. } => Method::Panda { budget, skip: SKIP_EPSILON, bf16 },
        method => method,
    };
    let skipping = System { method, ..options.panda() };
    let case = |name: String, mark: PlotMark, work: CaseWork| Case {
        name,
        mark: Some(mark),
        work,
        systems: vec![skipping.clone(), exact.clone()],
    };
    let cases = match &options.model {
        Some((checkpoint, manifest)) => {
            let utterances = if options.quick { SKIP_QUICK_UTTERANCES } else { SKIP_UTTERANCES };
            let name = manifest.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (checkpoint, manifest) = (checkpoint.clone(), manifest.clone());
            let mark = PlotMark { x: 1.0, label: name.clone() };
            vec![case(name, mark, CaseWork::Model { checkpoint, manifest, utterances })]
        }
        None => {
            let works = if options.quick { &SKIP_WORKS[..2] } else { &SKIP_WORKS };
            let cases = works.iter().map(|work| {
                let LossSizes { batch, frames, labels, hidden, classes, .. } = *work;
                let sites = work.sizes().sites;
                let name = format!("B={batch} {frames}x{labels} H={hidden} C={classes}");
                let mark = PlotMark { x: sites as f64, label: thousands(sites) };
                case(name, mark, CaseWork::Loss(*work))
            });
            cases.collect()
        }
    };
    let title = "Sites of little occupancy left out, ε = 1e-6";
    Plan { suite: "skip", title, axis: "sites", cases }
}

const PRUNED_CLASSES: [usize; 5] = [500, 1024, 4096, 16_384, 65_536];
const PRUNED_QUICK: [usize; 2] = [500, 4096];
/// Maximum number of classes with score matrices of the simple joiner.
///
/// For more classes the matrices would be larger than all other memory.
const PRUNED_MAX_MATRIX_CLASSES: usize = 4096;

/// Cases of the suite `pruned`.
///
/// T = 200, U = 50, H = 512, five positions per frame; B = 8 as in measurements of k2, quick 2.
pub(super) fn pruned(options: &SuiteOptions) -> Plan {
    let classes = if options.quick { &PRUNED_QUICK[..] } else { &PRUNED_CLASSES };
    let case = |&classes: &usize| {
        let batch = if options.quick { 2 } else { 8 };
        let loss = LossSizes {
            batch,
            frames: 200,
            labels: 50,
            hidden: 512,
            classes,
            posteriors: Flat,
            lengths: Even,
        };
        let scores = if classes <= PRUNED_MAX_MATRIX_CLASSES {
            FirstPassScores::Matrices
        } else {
            FirstPassScores::Heads
        };
        let budget = Budget::Bytes(options.budget.unwrap_or(DEFAULT_BUDGET));
        let systems = vec![
            options.system("pruned", Method::Pruned(budget)),
            options.system("pruned-dense", Method::PrunedBaseline),
            options.system("full", Method::Panda { budget, skip: 0.0, bf16: false }),
            options.system("full-dense", Method::Baseline),
        ];
        Case {
            name: format!("C={classes}"),
            mark: Some(PlotMark { x: classes as f64, label: thousands(classes) }),
            work: CaseWork::Pruned(PrunedWork { loss, s_range: 5, scores }),
            systems,
        }
    };
    let cases = classes.iter().map(case).collect();
    Plan { suite: "pruned", title: "200 frames x 50 labels, H = 512, s_range 5", axis: "classes", cases }
}

/// B, T, U of each case.
const DP_SIZES: [[usize; 3]; 6] =
    [[1, 50, 10], [16, 50, 10], [1, 500, 100], [16, 139, 27], [16, 500, 100], [4, 2000, 400]];
const DP_QUICK: [[usize; 3]; 3] = [[16, 50, 10], [1, 500, 100], [16, 500, 100]];

/// Cases of the suite `dp`: from one short utterance to many long ones.
pub(super) fn dp(options: &SuiteOptions) -> Plan {
    let sizes = if options.quick { &DP_QUICK[..] } else { &DP_SIZES };
    let case = |(index, &sizes): (usize, &[usize; 3])| {
        let [batch, frames, labels] = sizes;
        Case {
            name: format!("B={batch} {frames}x{labels}"),
            // The shapes have no common scale, so they are at equal distances.
            mark: Some(PlotMark { x: 2f64.powi(index as i32), label: format!("{batch}x{frames}x{labels}") }),
            work: CaseWork::Lattices { sizes },
            systems: vec![options.panda(), options.system("textbook", options.dense().method)],
        }
    };
    let cases = sizes.iter().enumerate().map(case).collect();
    Plan { suite: "dp", title: "Lattices with given emissions", axis: "utterances x frames x labels", cases }
}
