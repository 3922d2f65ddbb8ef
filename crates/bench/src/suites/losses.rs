//! Suites of losses: the transducer loss over its sizes, and lattices with given emissions.
use rnnt_loss::DEFAULT_BUDGET;

use super::{Choice, SHORT, middle, thousands};
use crate::case::LengthSpread::{Even, Ragged};
use crate::case::Posteriors::{Flat, Peaked};
use crate::case::{Budget, Case, CaseWork, FirstPassScores, LossWork, Method, Plan, PrunedWork, System};
use crate::machine::cores;

const CLASSES_CLASSES: [usize; 10] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072, 262_144];
const CLASSES_QUICK: [usize; 2] = [1024, 8192];

/// N = 2,600, H = 512, and case S5 in the table alone.
pub fn classes(choice: &Choice) -> Plan {
    let classes = if choice.quick { &CLASSES_QUICK[..] } else { &CLASSES_CLASSES };
    let systems = || {
        [Some(choice.ours()), Some(choice.ours_kept()), choice.ours_bf16(), Some(choice.dense())]
            .into_iter()
            .flatten()
            .collect()
    };
    let mut cases: Vec<Case> = classes
        .iter()
        .map(|&classes| Case {
            name: format!("C={classes}"),
            mark: Some((classes as f64, thousands(classes))),
            work: CaseWork::Loss(middle(classes)),
            systems: systems(),
        })
        .collect();
    if !choice.quick {
        cases.push(Case {
            name: "S5".to_owned(),
            mark: None,
            work: CaseWork::Loss(SHORT),
            systems: systems(),
        });
    }
    Plan { suite: "classes", title: "2,600 sites, H = 512", axis: "classes", cases }
}

const BATCH_QUICK: [usize; 3] = [1, 2, 4];

/// Ragged batches of up to 139 frames and 27 labels, H = 256, C = 1,024.
pub fn batch(choice: &Choice) -> Plan {
    let all: Vec<usize> = (0..=10).map(|power| 1 << power).collect();
    let batches = if choice.quick { &BATCH_QUICK[..] } else { &all };
    let case = |&batch: &usize| Case {
        name: format!("B={batch}"),
        mark: Some((batch as f64, thousands(batch))),
        work: CaseWork::Loss(LossWork {
            batch,
            frames: 139,
            labels: 27,
            hidden: 256,
            classes: 1024,
            model: Flat,
            lengths: Ragged,
        }),
        systems: vec![choice.ours(), choice.dense()],
    };
    let cases = batches.iter().map(case).collect();
    Plan { suite: "batch", title: "139 frames x 27 labels, H = 256, C = 1,024", axis: "utterances", cases }
}

const LENGTHS_FRAMES: [usize; 10] = [50, 64, 83, 107, 139, 179, 232, 299, 387, 500];
const LENGTHS_LABELS: [usize; 10] = [10, 12, 16, 21, 27, 35, 46, 59, 77, 100];
/// A careful guess of what a thread does in a second, to tell which cases would take more than a minute a step.
const LENGTHS_OPERATIONS: f64 = 1.5e11;
const LENGTHS_MINUTE: f64 = 60.0;

/// H = 256 and C = 1,024, the smaller scale of the two, in the picture; the paper's 1,024 and 4,096 in the table.
pub fn lengths(choice: &Choice) -> Plan {
    let case = |(frames, labels): (usize, usize), hidden: usize, classes: usize| {
        let small = hidden == 256;
        let name = format!("{frames}x{labels}");
        let mark = small.then(|| ((frames * (labels + 1)) as f64, name.clone()));
        let name = if small { name } else { format!("{name} H={hidden} C={classes}") };
        let work = LossWork { batch: 16, frames, labels, hidden, classes, model: Flat, lengths: Ragged };
        Case { name, mark, work: CaseWork::Loss(work), systems: vec![choice.ours(), choice.dense()] }
    };
    let grid = || LENGTHS_FRAMES.into_iter().zip(LENGTHS_LABELS);
    let mut cases: Vec<Case> = match choice.quick {
        true => grid().take(2).map(|lengths| case(lengths, 256, 1024)).collect(),
        false => grid().map(|lengths| case(lengths, 256, 1024)).collect(),
    };
    if !choice.quick {
        let large = grid().map(|lengths| case(lengths, 1024, 4096));
        cases.extend(large.filter(|case| match &case.work {
            CaseWork::Loss(work) => {
                work.operations() / LENGTHS_OPERATIONS / choice.threads as f64 <= LENGTHS_MINUTE
            }
            _ => true,
        }));
    }
    let title = "16 utterances, H = 256, C = 1,024";
    Plan { suite: "lengths", title, axis: "frames x labels of the longest", cases }
}

/// `ours` has all cores, or as many threads as the command line says; the rivals have fewer.
pub fn threads(choice: &Choice) -> Plan {
    let most = choice.threads.max(cores().min(2));
    let mut fewer: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|&n| n < most).collect();
    // One thread is the measure of all: it comes last.
    fewer.reverse();
    let fewer: Vec<System> = fewer
        .into_iter()
        .map(|threads| System {
            name: if threads == 1 { "1-thread".to_owned() } else { format!("{threads}-threads") },
            threads,
            ..choice.ours()
        })
        .collect();
    let case = |(place, (name, work)): (usize, (&str, LossWork))| Case {
        name: name.to_owned(),
        // Three shapes that have no common measure stand at equal distances.
        mark: Some((2f64.powi(place as i32), name.to_owned())),
        work: CaseWork::Loss(work),
        systems: std::iter::once(System { threads: most, ..choice.ours() }).chain(fewer.clone()).collect(),
    };
    let all = [("C=8192", middle(8192)), ("S5", SHORT), ("C=65536", middle(65_536))];
    let count = if choice.quick { 1 } else { all.len() };
    let cases = all.into_iter().take(count).enumerate().map(case).collect();
    Plan { suite: "threads", title: "Threads", axis: "shape", cases }
}

/// Loses less than the rounding of `f32`.
const SKIP_EPSILON: f64 = 1e-6;
const SKIP_WORKS: [LossWork; 3] =
    [sharp(8, [50, 10], 256, 1024), sharp(8, [100, 25], 256, 1024), sharp(4, [200, 50], 512, 4096)];
/// Utterances of a manifest.
const SKIP_UTTERANCES: usize = 64;
const SKIP_QUICK_UTTERANCES: usize = 8;

const fn sharp(batch: usize, [frames, labels]: [usize; 2], hidden: usize, classes: usize) -> LossWork {
    LossWork { batch, frames, labels, hidden, classes, model: Peaked, lengths: Ragged }
}

/// On a trained model's lattices if there is one, and on made-up ones that are as sharp otherwise.
pub fn skip(choice: &Choice) -> Plan {
    let exact = System { name: "exact".to_owned(), ..choice.ours() };
    let method = match exact.method.clone() {
        Method::Ours { budget, bf16, .. } => Method::Ours { budget, skip: SKIP_EPSILON, bf16 },
        method => method,
    };
    let ours = System { method, ..choice.ours() };
    let case = |name: String, mark: (f64, String), work: CaseWork| Case {
        name,
        mark: Some(mark),
        work,
        systems: vec![ours.clone(), exact.clone()],
    };
    let cases = match &choice.model {
        Some((checkpoint, manifest)) => {
            let utterances = if choice.quick { SKIP_QUICK_UTTERANCES } else { SKIP_UTTERANCES };
            let name = manifest.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let (checkpoint, manifest) = (checkpoint.clone(), manifest.clone());
            vec![case(name.clone(), (1.0, name), CaseWork::Model { checkpoint, manifest, utterances })]
        }
        None => {
            let works = if choice.quick { &SKIP_WORKS[..2] } else { &SKIP_WORKS };
            let described = works.iter().map(|work| {
                let LossWork { batch, frames, labels, hidden, classes, .. } = *work;
                let sites = work.sizes().sites;
                let name = format!("B={batch} {frames}x{labels} H={hidden} C={classes}");
                case(name, (sites as f64, thousands(sites)), CaseWork::Loss(*work))
            });
            described.collect()
        }
    };
    let title = "Sites of little occupancy left out, ε = 1e-6";
    Plan { suite: "skip", title, axis: "sites", cases }
}

const PRUNED_CLASSES: [usize; 5] = [500, 1024, 4096, 16_384, 65_536];
const PRUNED_QUICK: [usize; 2] = [500, 4096];
/// Beyond, matrices of the trivial joiner's scores would be larger than all else.
const PRUNED_MATRICES: usize = 4096;

/// T 200, U 50, H 512, five positions a frame; B 8, at which k2's pruned loss was measured, quick 2.
pub fn pruned(choice: &Choice) -> Plan {
    let classes = if choice.quick { &PRUNED_QUICK[..] } else { &PRUNED_CLASSES };
    let case = |&classes: &usize| {
        let batch = if choice.quick { 2 } else { 8 };
        let loss =
            LossWork { batch, frames: 200, labels: 50, hidden: 512, classes, model: Flat, lengths: Even };
        let scores =
            if classes <= PRUNED_MATRICES { FirstPassScores::Matrices } else { FirstPassScores::Heads };
        let budget = Budget::Bytes(choice.budget.unwrap_or(DEFAULT_BUDGET));
        let systems = vec![
            choice.system("pruned", Method::Pruned(budget)),
            choice.system("pruned-dense", Method::PrunedTextbook),
            choice.system("full", Method::Ours { budget, skip: 0.0, bf16: false }),
            choice.system("full-dense", Method::Textbook),
        ];
        Case {
            name: format!("C={classes}"),
            mark: Some((classes as f64, thousands(classes))),
            work: CaseWork::Pruned(PrunedWork { loss, s_range: 5, scores }),
            systems,
        }
    };
    let cases = classes.iter().map(case).collect();
    Plan { suite: "pruned", title: "200 frames x 50 labels, H = 512, s_range 5", axis: "classes", cases }
}

const DP_SIZES: [[usize; 3]; 6] =
    [[1, 50, 10], [16, 50, 10], [1, 500, 100], [16, 139, 27], [16, 500, 100], [4, 2000, 400]];
const DP_QUICK: [[usize; 3]; 3] = [[16, 50, 10], [1, 500, 100], [16, 500, 100]];

/// Lattices from one short utterance to long ones and many.
pub fn dp(choice: &Choice) -> Plan {
    let sizes = if choice.quick { &DP_QUICK[..] } else { &DP_SIZES };
    let case = |(place, &sizes): (usize, &[usize; 3])| {
        let [batch, frames, labels] = sizes;
        Case {
            name: format!("B={batch} {frames}x{labels}"),
            // At equal distances: one and sixteen utterances have no common measure.
            mark: Some((2f64.powi(place as i32), format!("{batch}x{frames}x{labels}"))),
            work: CaseWork::Lattices { sizes },
            systems: vec![choice.ours(), choice.system("textbook", choice.dense().method)],
        }
    };
    let cases = sizes.iter().enumerate().map(case).collect();
    Plan { suite: "dp", title: "Lattices alone", axis: "utterances x frames x labels", cases }
}
